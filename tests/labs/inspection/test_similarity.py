"""Cosines, correlations and bins against plain loops, and the similarity expected by chance."""

from __future__ import annotations

import math

import pytest
import torch

from acclimate.labs.inspection.similarity import correlations, cosines, random_similarity, shares


@pytest.fixture
def stacks():
    generator = torch.Generator().manual_seed(3)
    return torch.rand(3, 2, 5, generator=generator), torch.rand(2, 2, 5, generator=generator)


def test_cosines_against_a_loop(stacks):
    first, second = stacks
    found = cosines(first, second)
    assert found.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            a, b = first[i].flatten().tolist(), second[j].flatten().tolist()
            dot = sum(x * y for x, y in zip(a, b, strict=True))
            assert float(found[i, j]) == pytest.approx(dot / math.hypot(*a) / math.hypot(*b), abs=1e-6)


def test_correlations_within_layers_against_a_loop(stacks):
    first, second = stacks
    found = correlations(first, second)
    for i in range(3):
        for j in range(2):
            layers = []
            for layer in range(2):
                a, b = first[i, layer].tolist(), second[j, layer].tolist()
                mean_a, mean_b = sum(a) / 5, sum(b) / 5
                dot = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
                size = math.hypot(*(x - mean_a for x in a)) * math.hypot(*(y - mean_b for y in b))
                layers.append(dot / size)
            assert float(found[i, j]) == pytest.approx(sum(layers) / 2, abs=1e-5)


def test_correlation_is_invariant_to_the_scale_of_a_layer():
    one = torch.rand(1, 2, 6, generator=torch.Generator().manual_seed(1))
    scaled = one * torch.tensor([1.0, 1000.0])[None, :, None]
    assert float(correlations(one, scaled)) == pytest.approx(1.0, abs=1e-5)


def test_the_cosine_with_zeros_is_zero():
    assert float(cosines(torch.zeros(1, 2, 3), torch.ones(1, 2, 3))) == 0.0


def test_bins_include_their_lower_edge_and_the_last_its_upper_edge():
    values = torch.tensor([[[0.0, 0.1, 0.25], [0.5, 0.75, 1.0]], [[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]]])
    found = shares(values)
    assert found[0].tolist() == pytest.approx([2 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6])
    assert found[1].tolist() == [0, 0, 0, 0, 1]


def test_chance_for_twelve_layers_of_twelve_heads():
    """The chance level is far from zero; the paper reports a cosine of 0.92."""
    found = random_similarity(12, 12, draws=3000)
    assert found["normal"]["cosine"]["mean"] == pytest.approx(0.79, abs=0.01)
    assert found["uniform"]["cosine"]["mean"] == pytest.approx(0.83, abs=0.01)
    for spread in (found["normal"]["cosine"], found["uniform"]["cosine"]):
        assert spread["low"] < spread["mean"] < spread["high"] < 0.9
    assert [spread["mean"] for spread in found["normal"]["shares"][3:]] == pytest.approx([0.22, 0.27], abs=0.01)
    for kind in found.values():
        assert sum(spread["mean"] for spread in kind["shares"]) == pytest.approx(1.0)


def test_chance_against_a_loop_over_pairs():
    """One draw at a time, with the normalization (Eq. 10) in full."""
    generator = torch.Generator().manual_seed(9)

    def protection():
        rows = []
        for _ in range(3):
            row = torch.randn(5, generator=generator)
            rows.append(torch.tanh((row - row.mean()) / row.std()).abs())
        return torch.cat(rows)

    draws = []
    for _ in range(4000):
        one, two = protection(), protection()
        draws.append(float(one @ two / one.norm() / two.norm()))
    assert random_similarity(3, 5, draws=4000)["normal"]["cosine"]["mean"] == pytest.approx(
        sum(draws) / len(draws), abs=0.01
    )


def test_chance_is_lower_if_only_important_units_are_protected():
    both = random_similarity(12, 12, draws=500)["normal"]["cosine"]["mean"]
    upper = random_similarity(12, 12, "important", draws=500)["normal"]["cosine"]["mean"]
    assert upper < both - 0.2
