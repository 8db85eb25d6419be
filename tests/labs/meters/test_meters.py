"""The divergence of two models against a plain computation over the whole vocabulary, and the distance of weights."""

from __future__ import annotations

import math

import pytest
import torch

from acclimate.evaluation.lm_loss import divergence, read_targets
from acclimate.labs.meters.meters import measure_meters, weight_distance
from acclimate.models.loading import load_language_model
from tests.cases import each
from tests.tiny import TEXTS, add_token, save_tiny


@each("kind", ["bert", "llama"])
def test_divergence_is_that_of_all_probabilities(kind, tmp_path, monkeypatch):
    paths = [save_tiny(kind, tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    before, after = (load_language_model(path) for path in paths)
    total = count = 0.0
    for document in read_targets(before.model, before.tokenizer, TEXTS, 24):
        for row in document.rows:
            with torch.no_grad():
                both = [one.model.eval()(torch.tensor(row.ids[None])).logits[0].double() for one in (before, after)]
            p, q = (logits.softmax(-1).tolist() for logits in both)
            for place in (row.labels >= 0).nonzero()[0]:
                total += sum(a * math.log(a / b) for a, b in zip(p[place], q[place], strict=True))
                count += 1
    monkeypatch.setattr("acclimate.evaluation.lm_loss.logit_rows", lambda model: 3)
    found = measure_meters(*paths, {"domain": TEXTS, "general": TEXTS[:1]}, max_length=24)
    assert found["kl"]["domain"] == pytest.approx(total / count, rel=1e-4) and found["kl"]["general"] > 0
    weights = dict(after.model.named_parameters())
    with torch.no_grad():
        moved = sum((weights[name] - weight).square().sum() for name, weight in before.model.named_parameters())
        norm = sum(weight.square().sum() for _, weight in before.model.named_parameters())
    assert found["distance"] == pytest.approx(float(moved / norm) ** 0.5, rel=1e-4)
    assert measure_meters(paths[0], paths[0], {"t": TEXTS}, max_length=24) == {"kl": {"t": 0.0}, "distance": 0.0}


def test_predictions_over_another_vocabulary_are_not_compared(tmp_path):
    paths = [save_tiny("bert", tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    add_token(paths[1], "pizzaiolo")
    found = measure_meters(*paths, {"t": TEXTS}, max_length=24)
    assert found["kl"] == {"t": None} and found["distance"] > 0


def test_unused_rows_of_the_vocabulary_have_no_weight():
    base, adapted = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.0, 1.0, 1.0, -1.0]])
    p, q = base.softmax(-1)[0], adapted.softmax(-1)[0]
    assert divergence(base, adapted).item() == pytest.approx(float((p * (p / q[:3]).log()).sum()))
    assert divergence(adapted, base).item() == pytest.approx(float(divergence(adapted[:, :3], base)))


def test_distance_of_the_weights_that_both_models_have():
    base, wider = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 2)
    base.weight.data, wider.weight.data = torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0, 5.0], [9.0, 9.0]])
    assert weight_distance(base, wider) == pytest.approx(1 / 5)
