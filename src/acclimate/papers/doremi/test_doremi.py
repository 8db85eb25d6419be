"""DoReMi against a slow computation of the formula of the paper."""

from __future__ import annotations

import math

import numpy as np

from acclimate.data.mix.base import read_mix
from tests.cases import each
from tests.data.rounds import EVERY, train


@each("clip", ["token", "source"])
def test_a_step_of_doremi_is_the_formula_of_the_paper(clip, tmp_path):
    """``w <- (1 - c) w exp(eta max(excess, 0)) / sum + c / k``."""
    mix = read_mix({"doremi": {"reference": str(tmp_path), "eta": 2, "smoothing": 0.1, "clip": clip, "every": EVERY}})
    loss, reference = np.array([[3.0, 2.0, 1.0], [2.5, 2.5, 1.0]]), np.array([2.0, 2.4, 1.5])
    excess = np.maximum(loss - reference, 0)
    given = {"excess_loss": lambda n: excess[n]}
    if clip == "source":
        given = {"heldout_loss": lambda n: loss[n], "reference_loss": lambda _: reference}
    found = train(mix, 2, **given)
    expected = [1 / 3] * 3
    for round_ in range(2):
        raw = [weight * math.exp(2 * one) for weight, one in zip(expected, excess[round_], strict=True)]
        expected = [0.9 * one / sum(raw) + 0.1 / 3 for one in raw]
        np.testing.assert_allclose(found[round_], expected, rtol=1e-10)


def test_the_identity_of_doremi_is_the_content_of_its_reference(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"one")
    mix = read_mix({"doremi": str(tmp_path)})
    first = mix.identity()
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert first["reference"] != mix.identity()["reference"]
