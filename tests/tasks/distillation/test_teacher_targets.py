"""Teacher targets are computed once, for all examples, and cached."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from tokenizers import processors
from transformers import AutoTokenizer

from acclimate.base.errors import UserError
from acclimate.parts.modules.connectors import Connectors
from acclimate.tasks.distillation import teacher_targets as module
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.distillation.teacher_targets import (
    compute_teacher_targets,
    first_token_states,
    representation_width,
    run_teacher,
)
from acclimate.tasks.kinds.classification.classifier import load_classifier
from tests.cases import each
from tests.tasks.distillation.conftest import CPU
from tests.tasks.test_classification import keyword_task
from tests.tiny import ENCODERS


@pytest.fixture
def loaded(teacher):
    return load_classifier(teacher, keyword_task().labels, 64, CPU)


@pytest.mark.parametrize("kind", ["none", "teacher"])
def test_targets_equal_those_of_each_example_alone(loaded, kind):
    connectors = Connectors(kind, 32, 32 if kind == "none" else 13, 0)
    rows = loaded.features(keyword_task().train)
    targets = run_teacher(loaded, rows, connectors, "fp32")
    active = targets.active(range(len(rows)))
    assert active.shape == (64, connectors.units)
    model = loaded.model.eval()
    for place, row in enumerate(rows):
        inputs = {name: torch.tensor([value]) for name, value in row.items() if name != "labels"}
        with torch.no_grad():
            output = model(**inputs, output_hidden_states=True)
            state = output.hidden_states[-1][0, 0]  # the input of the pooler
            if kind == "teacher":
                state = connectors.teacher.weight @ state + connectors.teacher.bias
            assert torch.equal(first_token_states(model, inputs)[0], output.hidden_states[-1][0, 0])
        sure = state.abs() > 1e-4  # padding changes the last bits
        assert torch.equal((state > 0)[sure], active[place][sure])
        torch.testing.assert_close(output.logits[0], targets.logits[place], atol=1e-5, rtol=0)
    assert active.float().mean() not in (0.0, 1.0)
    assert torch.equal(targets.active([5, 2]), active[[5, 2]])


def test_cached_targets_equal_recomputed_ones(loaded, monkeypatch):
    connectors = Connectors("teacher", 32, 24, 0)
    rows = loaded.features(keyword_task(train=20).train)
    anew = run_teacher(loaded, rows, connectors, "fp32")
    first = compute_teacher_targets(loaded, rows, connectors, "fp32")

    def no_pass(*_):
        raise AssertionError("the teacher was read again")

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_teacher", no_pass)
        kept = compute_teacher_targets(loaded, rows, Connectors("teacher", 32, 24, 0), "fp32")
    for targets in (first, kept):
        assert torch.equal(targets.bits, anew.bits)
        assert torch.equal(targets.logits, anew.logits)


def test_the_teacher_reads_without_dropout(loaded):
    connectors = Connectors("none", 32, 32, 0)
    rows = loaded.features(keyword_task(train=20).train)
    calm = run_teacher(loaded, rows, connectors, "fp32")
    loaded.model.train()
    again = run_teacher(loaded, rows, connectors, "fp32")
    assert torch.equal(again.bits, calm.bits) and torch.equal(again.logits, calm.logits)


def test_the_cache_key_covers_everything_that_changes_targets(loaded):
    rows = loaded.features(keyword_task(train=20).train)
    keys = [
        module._targets_key(loaded, rows, Connectors("teacher", 32, 24, 0), "fp32"),
        module._targets_key(loaded, rows[1:], Connectors("teacher", 32, 24, 0), "fp32"),
        module._targets_key(loaded, rows, Connectors("teacher", 32, 24, 1), "fp32"),
        module._targets_key(loaded, rows, Connectors("none", 32, 32, 0), "fp32"),
        module._targets_key(loaded, rows, Connectors("teacher", 32, 24, 0), "bf16"),
    ]
    with torch.no_grad():
        next(loaded.model.parameters()).add_(1)
    keys.append(module._targets_key(loaded, rows, Connectors("teacher", 32, 24, 0), "fp32"))
    assert len(set(keys)) == len(keys)


@each("kind", sorted(ENCODERS))
def test_every_architecture_returns_first_token_states(encoders, kind):
    task = keyword_task(train=6)
    torch.manual_seed(0)
    classifier = load_classifier(encoders[kind], task.labels, 64, CPU)
    rows = classifier.features(task.train)
    targets = run_teacher(classifier, rows, Connectors("none", representation_width(encoders[kind]), 32, 0), "fp32")
    inputs = classifier.collate(rows)
    labels = inputs.pop("labels")
    assert len(labels) == 6
    with torch.no_grad():
        states = first_token_states(classifier.model.eval(), inputs)
        last = classifier.model(**inputs, output_hidden_states=True).hidden_states[-1][:, 0]
    torch.testing.assert_close(states, last)
    sure = states.abs() > 1e-4
    assert torch.equal((states > 0)[sure], targets.active(range(6))[sure])


@each("change", ["no token", "last", "decoder"])
def test_a_model_without_a_representative_first_token(teacher, tmp_path, change):
    copy = shutil.copytree(teacher, tmp_path / "copy")
    assert representation_width(copy) == 32
    tokenizer = AutoTokenizer.from_pretrained(copy)
    if change == "no token":
        tokenizer.cls_token = None
    elif change == "last":  # the text's representation comes last, as in XLNet
        special = [("[CLS]", 2), ("[SEP]", 3)]
        last = processors.TemplateProcessing(single="$A [SEP] [CLS]", special_tokens=special)
        tokenizer.backend_tokenizer.post_processor = last
    else:
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "is_encoder_decoder": True}))
    tokenizer.save_pretrained(copy)
    assert representation_width(copy) is None
    with pytest.raises(UserError, match=r"no first token.*use the objective 'kl'"):
        distill(teacher, copy, keyword_task(), progress=False)
