"""Drift: embeddings computed by hand, linear CKA against the paper's formula, layers against plain forward passes."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers

from acclimate.base.errors import UserError
from acclimate.labs.inspection.drift import LinearCKA, embedding_drift, measure_drift
from acclimate.models.encoding import encode_layers
from tests.cases import each
from tests.tiny import ENCODERS, TEXTS, add_token, save_tiny, tiny_tokenizer

BEFORE = np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
AFTER = np.array([[3.0, 4.0], [0.0, 5.0], [0.0, 1.0], [0.0, 0.0]])


def test_embedding_drift_by_hand():
    found = embedding_drift(BEFORE, AFTER)
    assert found.distance == pytest.approx((0 + 3 + math.sqrt(2) + 0) / 4)
    assert found.coordinate == pytest.approx(found.distance / math.sqrt(2))
    assert found.share == pytest.approx(found.distance / ((5 + 2 + 1 + 0) / 4))
    assert found.cosine == pytest.approx((1 + 1 + 0) / 3)  # a row of zeros has no direction
    assert (found.moved, found.tokens) == (0.5, 4)


def test_weighted_embedding_drift_by_hand():
    found = embedding_drift(BEFORE, AFTER, np.array([1, 3, 0, 0]))
    assert found.distance == pytest.approx(3 * 3 / 4)
    assert (found.moved, found.tokens) == (0.75, 2)
    assert found.cosine == pytest.approx(1.0)
    for weights in (np.zeros(4), np.ones(3)):
        with pytest.raises(ValueError, match="weights"):
            embedding_drift(BEFORE, AFTER, weights)


def paper_cka(x: np.ndarray, y: np.ndarray) -> float:
    """HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with linear kernels, entry by entry (Kornblith et al., Eq. 3)."""
    n = len(x)
    kernels = []
    for values in (x, y):
        kernel = [[sum(a * b for a, b in zip(one, other, strict=True)) for other in values] for one in values]
        rows = [sum(row) / n for row in kernel]
        total = sum(rows) / n
        kernels.append([[kernel[i][j] - rows[i] - rows[j] + total for j in range(n)] for i in range(n)])

    def hsic(k, m):
        return sum(k[i][j] * m[j][i] for i in range(n) for j in range(n)) / (n - 1) ** 2

    return hsic(*kernels) / (hsic(kernels[0], kernels[0]) * hsic(kernels[1], kernels[1])) ** 0.5


def cka(x: np.ndarray, y: np.ndarray, pieces: int = 1) -> float:
    found = LinearCKA()
    for one, other in zip(np.array_split(x, pieces), np.array_split(y, pieces), strict=True):
        found.add(torch.from_numpy(one), torch.from_numpy(other))
    return found.value()


@each("pieces", [1, 3, 12])
def test_cka_against_the_formula_of_the_paper(pieces):
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 2, (12, 4)), rng.normal(-1, 1, (12, 5))
    y[:, :2] += x[:, :2]
    assert cka(x, y, pieces) == pytest.approx(paper_cka(x, y), rel=1e-9)
    assert 0 < cka(x, y) < 1


def test_cka_is_invariant_to_rotation_scale_and_shift_only():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 6))
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    assert cka(x, 2.5 * x @ rotation + 7) == pytest.approx(1)
    assert cka(x, x @ np.diag([1, 1, 1, 1, 1, 20.0])) < 0.8
    assert cka(x, rng.normal(size=(300, 6))) < 0.1
    assert cka(x, np.ones((300, 2))) == 0


def test_constant_states_have_no_similarity():
    row = 3 * torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    for other in (row.expand(7, 8) * 1.1, torch.randn(7, 8, generator=torch.Generator().manual_seed(1))):
        found = LinearCKA()
        found.add(row.expand(7, 8), other)
        assert found.value() == 0.0


@each("kind", sorted(ENCODERS))
def test_a_model_does_not_drift_from_itself(kind, tmp_path):
    folder = save_tiny(kind, tmp_path / "model")
    found = measure_drift(folder, folder, TEXTS, max_length=16)
    assert len(found["layers"]) == 3
    for layer in found["layers"]:
        assert layer["cka"] == pytest.approx(1, abs=1e-9) and layer["cosine"] == pytest.approx(1, abs=1e-6)
        assert layer["distance"] == pytest.approx(0, abs=1e-6)
    assert found["embeddings"]["all"]["distance"] == found["embeddings"]["read"]["moved"] == 0
    assert found["texts"] == len(TEXTS)


def test_layers_against_a_plain_forward_pass_of_each_text(tmp_path, monkeypatch):
    before, after = save_tiny("bert", tmp_path / "a"), save_tiny("bert", tmp_path / "b", seed=1)
    tokenizer = tiny_tokenizer()
    states: list[list[torch.Tensor]] = []
    for folder in (before, after):
        model = transformers.AutoModel.from_pretrained(folder).eval()
        layers: list[list[torch.Tensor]] = [[], [], []]
        for text in TEXTS:
            ids = torch.tensor([tokenizer(text, truncation=True, max_length=12)["input_ids"]])
            with torch.no_grad():
                for layer, hidden in zip(layers, model(ids, output_hidden_states=True).hidden_states, strict=True):
                    layer.append(hidden[0, 1:-1])  # without [CLS] and [SEP]
        states.append([torch.cat(layer) for layer in layers])
    monkeypatch.setenv("ACCLIMATE_MEMORY_GB", "0.0005")  # enough for 45 tokens
    with patch("acclimate.labs.inspection.drift.encode_layers", wraps=encode_layers) as read:
        measure_drift(before, after, TEXTS, max_length=12)
    assert [call.args[1].shape[0] for call in read.call_args_list[:2]] == [3, 3]
    for budget in (1, 16, 4096):
        monkeypatch.setattr("acclimate.labs.inspection.drift.micro_batch_tokens", lambda *_, size=budget: size)
        found = measure_drift(before, after, TEXTS, max_length=12)
        assert found["tokens"] == len(states[0][0])
        for layer, one, other in zip(found["layers"], *states, strict=True):
            assert layer["cka"] == pytest.approx(cka(one.numpy(), other.numpy()), abs=1e-5)
            assert layer["distance"] == pytest.approx((other - one).norm(dim=1).mean().item(), rel=1e-5)
            share = ((other - one).norm(dim=1).sum() / one.norm(dim=1).sum()).item()
            assert layer["share"] == pytest.approx(share, rel=1e-5)
            assert layer["cosine"] == pytest.approx(torch.cosine_similarity(one, other, dim=1).mean().item(), abs=1e-6)


def test_a_special_token_in_a_text_is_ordinary_text(tmp_path):
    folder, text = save_tiny("bert", tmp_path / "model"), "the food [MASK] was [SEP] good"
    plain = tiny_tokenizer()(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert measure_drift(folder, folder, [text, *TEXTS[:2]], max_length=32)["tokens"] - measure_drift(
        folder, folder, TEXTS[:2], max_length=32
    )["tokens"] == len(plain)


def test_different_vocabularies_and_empty_text_are_errors(tmp_path):
    one = save_tiny("bert", tmp_path / "a")
    other = save_tiny("bert", tmp_path / "b")
    add_token(other, "pasta e fagioli")
    with pytest.raises(UserError, match="different vocabularies"):
        measure_drift(one, other, TEXTS)
    with pytest.raises(UserError, match="no tokens"):
        measure_drift(one, one, ["", " "])
