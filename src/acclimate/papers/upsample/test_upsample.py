"""Weights of the mix at all its moments."""

from __future__ import annotations

from acclimate.data.mix.base import read_mix
from tests.cases import each
from tests.data.moments import check_refusal, check_weights


@each(
    ("mix", "moments", "weights"),
    [
        ("upsample", [0, 0.8], [[0.1, 0.3, 0.6], [0.5, 1 / 6, 1 / 3]]),
        (
            {"upsample": {"sources": ["domain", "law"], "weight": 0.8, "tail": 0.1, "start": "equal"}},
            [0, 0.9],
            [[1 / 3, 1 / 3, 1 / 3], [0.4, 0.4, 0.2]],
        ),
        ("upsample without=news", [0, 0.8], [[0.1, 0.3, 0.6], [0.75, 0.25, 0]]),
        ({"upsample": {"start": {"law": 1, "news": 3}}}, [0, 0.8], [[0, 0.25, 0.75], [0.5, 0.125, 0.375]]),
    ],
)
def test_weights_are_those_of_the_definition(mix, moments, weights):
    check_weights(mix, moments, weights)


@each(
    ("mix", "message"),
    [
        ("upsample sources=laws", "Did you mean 'law'"),
        ("upsample tail=1", "tail"),
        ("upsample weight=1 without=domain", "no other source has a weight at the end"),
    ],
)
def test_invalid_mixes_are_explained(mix, message):
    check_refusal(mix, message)


def test_the_identity_and_the_description_name_the_parameters():
    mix = read_mix("upsample sources=law reuse=true")
    assert mix.reuse and mix.identity()["sources"] == "law"
    assert mix.describe() == "upsample sources=law reuse=True"
