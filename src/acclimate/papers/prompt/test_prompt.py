"""Methods with virtual tokens, end to end on a tiny model."""

from __future__ import annotations

import torch
import transformers
from safetensors.torch import load_file

from acclimate import finetune
from acclimate.adaptation.method import lookup
from acclimate.models.loading import virtual_ids
from tests.papers.virtual import TABLE, run
from tests.tasks.test_classification import keyword_task


def test_only_the_prompt_changes(tiny_bert, tmp_path):
    run(tiny_bert, "prompt", tmp_path / "out", {"length": 5}, weight_decay=0.1, learning_rate=None)
    run(tiny_bert, "prompt", tmp_path / "start", {"length": 5}, learning_rate=1e-30)
    before, start, after = (
        load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "start", tmp_path / "out")
    )
    ids = virtual_ids(transformers.AutoTokenizer.from_pretrained(tmp_path / "out"))
    assert len(ids) == 5
    old = min(ids)
    for name, value in after.items():
        kept = value[:old] if name == TABLE or name.endswith(("predictions.bias", "decoder.bias")) else value
        assert torch.equal(kept, before[name][: len(kept)] if kept.shape != before[name].shape else before[name])
    assert ((after[TABLE][ids] - start[TABLE][ids]).abs() > 0.1).any(1).all(), (
        "the default learning rate is the paper's 0.3"
    )


def test_a_method_has_a_default_learning_rate_that_can_be_overridden(tiny_bert, tmp_path):
    assert lookup("prompt").learning_rate == 0.3
    assert lookup("mlm").learning_rate == 1e-4
    result = run(tiny_bert, "prompt", tmp_path / "out", {"length": 2}, learning_rate=0.1)
    assert result.parameters["learning_rate"] == 0.1


def test_the_prompt_does_not_count_towards_max_length_or_the_token_budget(tiny_bert, tmp_path):
    plain = run(tiny_bert, "mlm", tmp_path / "plain", max_length=10)
    longer = run(tiny_bert, "prompt", tmp_path / "prompt", {"length": 5}, max_length=10)
    # Not exactly equal, because the balancing of short last pieces depends on the length of the whole row.
    assert abs(longer.tokens - plain.tokens) <= 0.1 * plain.tokens, "prompt tokens are not counted"
    steps = [
        run(tiny_bert, method, tmp_path / f"budget-{method}", settings, steps=None, tokens=300, max_length=10).steps
        for method, settings in (("mlm", None), ("prompt", {"length": 5}))
    ]
    assert abs(steps[0] - steps[1]) <= 1, "the token budget counts text only"


def test_fine_tuning_trains_virtual_tokens_and_model(tiny_bert, tmp_path):
    run(tiny_bert, "prompt", tmp_path / "out", {"length": 3})
    finetune(tmp_path / "out", keyword_task(), out=tmp_path / "tuned", epochs=1, learning_rate=1e-3, progress=False)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "tuned"))
    ids = virtual_ids(transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned"))
    assert ids
    assert not torch.equal(before[TABLE][ids], after[TABLE][ids])
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(before[name], after[name])
