"""A short text may have no masked token: it contributes nothing, and training continues."""

from __future__ import annotations

import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.data.documents import Corpus
from acclimate.kernels import gradients
from acclimate.models.loading import load_language_model
from tests.tiny import ENCODERS, save_tiny

KINDS, QUICK = sorted(ENCODERS), ("bert", "modernbert")
WORDS = ["pizza", "wine", "soup", "good soup", "cold pasta", "rude", "fresh", "the menu"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            pytest.param("mlm", kind, marks=[] if kind in ("bert", "modernbert") else pytest.mark.slow)
            for kind in KINDS
        ),
        pytest.param("kd", "bert", marks=pytest.mark.needs("kd")),
        pytest.param("simcse", "bert", marks=pytest.mark.needs("simcse")),
    ],
)
def test_steps_without_masked_tokens_train_on(name, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(gradients, "MIN_OUTPUTS", 11)  # take the path for the large vocabularies of real models
    counts = []
    score = gradients.RowProjection.forward
    monkeypatch.setattr(
        gradients.RowProjection,
        "forward",
        lambda self, states: counts.append(states.shape[:-1].numel()) or score(self, states),
    )
    start = save_tiny(kind, tmp_path / "start")
    options = {"steps": 8, "batch_size": 1, "precision": "fp32", "progress": False, "max_length": 16}
    if name == "simcse":
        options["dropout"] = 0.1
    found = adapt(start, Corpus.of(WORDS), get(name), tmp_path / "out", **options)
    assert found.steps == 8
    assert 0 in counts, "a step without a chosen token"
    assert all(torch.isfinite(value).all() for value in load_language_model(tmp_path / "out").model.parameters())
