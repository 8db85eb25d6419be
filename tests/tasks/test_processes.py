"""Two processes, as ``torchrun`` starts them, train every kind of task and decoders as one does, or refuse by name."""

from __future__ import annotations

import json
import random

import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import TASK_KINDS, load_task
from acclimate.engine.distributed import join_process_group, leave_process_group
from acclimate.tasks.finetune import finetune
from tests.adaptation.together import NO_DROPOUT, launch
from tests.papers.test_contract import DOCUMENTS
from tests.papers.test_contract import SHORT as ADAPTED
from tests.tasks.test_contract import SAMPLES
from tests.tiny import save_tiny

TUNED = {"epochs": 2, "batch_size": 6, "learning_rate": 1e-3, "max_length": 48, "precision": "fp32", "progress": False}
REFUSED = {"retrieval": "Embeddings are trained in one process; start it without torchrun"}
PAIRS = sorted({(kind, model) for kind in TASK_KINDS.names() for model in (SAMPLES[kind].model, "llama")})
ADAPTATIONS = {
    "whole": {},
    "packed": {"layout": "packed"},
    "joined": {"documents": "joined"},
    "low-rank": {"adapter": "lora"},
}
pytestmark = pytest.mark.slow


def task_of(kind):
    chance = random.Random(1)
    rows = {split: [SAMPLES[kind].row(chance, number) for number in range(size)] for split, size in SIZES.items()}
    return load_task(rows, name="tiny")


SIZES = {"train": 15, "dev": 6, "test": 7}  # the last step of an epoch has three rows


def train(out):
    """Train everything in this process, or with the others that were started with it."""
    group = join_process_group()
    made = out / f"{group.size}"
    for kind, model in PAIRS:
        given = {**TUNED, **{name: value for name, value in SAMPLES[kind].options.items() if name != "epochs"}}
        if kind in REFUSED:
            if group.size > 1:
                with pytest.raises(UserError, match=REFUSED[kind]):
                    finetune(out / model, task_of(kind), out=made / f"{kind}-{model}", **given)
            continue
        finetune(out / model, task_of(kind), out=made / f"{kind}-{model}", **given)
    for name, options in ADAPTATIONS.items():
        adapt(out / "llama", Corpus.of(DOCUMENTS), "lm", made / name, **{**ADAPTED, "steps": 4, **options})
    leave_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, _own_cache):
    pytest.importorskip("peft")
    pytest.importorskip("sentence_transformers")
    out = tmp_path_factory.mktemp("trained")
    save_tiny("bert", out / "bert", **NO_DROPOUT)
    save_tiny("llama", out / "llama", classifier_dropout=0.0)  # of the head of tagging
    launch(train, out)
    train(out)
    return out


@pytest.mark.parametrize("name", [*(f"{kind}-{model}" for kind, model in PAIRS if kind not in REFUSED), *ADAPTATIONS])
def test_weights_and_scores_are_those_of_one_process(name, trained):
    one, two = (load_file(trained / count / name / "model.safetensors") for count in "12")
    assert one.keys() == two.keys()
    for key, value in one.items():
        if key == "qa_outputs.bias":  # the softmax over a window does not depend on it
            continue
        torch.testing.assert_close(two[key], value, atol=5e-4, rtol=1e-2, msg=key)
    if name not in ADAPTATIONS:
        found, expected = (json.loads((trained / count / name / "metrics.json").read_text()) for count in "21")
        assert (found["steps"], found["epoch"]) == (expected["steps"], expected["epoch"])
        assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
    assert not list(trained.glob("*/.*.work"))
