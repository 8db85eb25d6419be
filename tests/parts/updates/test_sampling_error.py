"""Standard error of importance: against a naive jackknife, and against the true error on synthetic data."""

from __future__ import annotations

import pytest
import torch

from acclimate.parts.updates import estimate_sampling_error, mean_importance, normalize_importance
from acclimate.parts.updates.importance import MIN_GROUPS
from tests.cases import each


def groups(count: int, texts: int, noise: float, seed: int, units: int = 12):
    """Return groups of texts with noisy importance in two layers, and the importance without noise."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.rand(2, units, generator=torch.Generator().manual_seed(99)) + 1.0
    made = []
    for _ in range(count):
        values = true + noise * torch.randn(texts, 2, units, generator=generator)
        made.append((texts, {"H": values.sum(0)}))
    return made, true


def test_equals_a_naive_jackknife():
    """Groups have different sizes; with two parts, the larger error counts."""
    generator = torch.Generator().manual_seed(1)
    texts = [3, 5, 4, 6, 2]
    made = [
        (
            number,
            {"H": torch.rand(2, 4, generator=generator) * number, "I": torch.rand(2, 6, generator=generator) * number},
        )
        for number in texts
    ]
    errors = []
    for part in "HI":
        scores = []
        for left_out in range(len(made)):
            rest = [made[place] for place in range(len(made)) if place != left_out]
            mean = sum(sums[part].double() for _, sums in rest) / sum(number for number, _ in rest)
            scores.append([[torch.tanh((v - row.mean()) / row.std()) for v in row] for row in mean])
        squares = []
        for layer in range(2):
            for unit in range(len(scores[0][layer])):
                values = [score[layer][unit] for score in scores]
                middle = sum(values) / len(values)
                squares.append((len(values) - 1) / len(values) * sum((value - middle) ** 2 for value in values))
        errors.append(float(torch.stack(squares).mean().sqrt()))
    assert estimate_sampling_error(made) == pytest.approx(max(errors), rel=1e-9)
    assert errors[0] != pytest.approx(errors[1], rel=1e-3)


@each("count", [4, 8, 20])
def test_matches_the_true_error(count):
    """Compared with the noise-free importance, averaged over 40 measurements."""
    claimed, real = [], []
    for seed in range(40):
        made, true = groups(count, 50, 0.6, seed)
        claimed.append(estimate_sampling_error(made) ** 2)
        off = normalize_importance(mean_importance(made)["H"]) - normalize_importance(true)
        real.append(float(off.square().mean()))
    ratio = (sum(claimed) / sum(real)) ** 0.5
    assert 0.75 < ratio < 1.35


def test_falls_with_the_square_root_of_the_sample_size():
    few, many = (
        sum(estimate_sampling_error(groups(count, 50, 0.6, seed)[0]) for seed in range(20)) / 20 for count in (6, 24)
    )
    assert many == pytest.approx(few / 2, rel=0.15)


def test_none_for_too_few_groups_and_zero_for_equal_ones():
    made, _ = groups(MIN_GROUPS, 5, 0.5, 0)
    assert estimate_sampling_error(made[:-1]) is None
    assert estimate_sampling_error([made[0]] * MIN_GROUPS) == pytest.approx(0.0, abs=1e-9)
    single = [(3, {"H": torch.rand(2, 1)}) for _ in range(MIN_GROUPS)]
    assert estimate_sampling_error(single) == 0.0, "a layer with one unit has no spread"
