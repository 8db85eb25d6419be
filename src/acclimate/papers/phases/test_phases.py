"""Weights of the mix at all its moments."""

from __future__ import annotations

from tests.cases import each
from tests.data.moments import check_refusal, check_weights


@each(
    ("mix", "moments", "weights"),
    [
        (
            "phases chain=law+news,law+domain,domain",
            [0, 1 / 3, 2 / 3],
            [[0, 1 / 3, 2 / 3], [0.25, 0.75, 0], [1, 0, 0]],
        ),
        (
            {"phases": {"chain": ["law", "news + domain"], "lengths": "3,1", "within": "equal"}},
            [0, 0.75],
            [[0, 1, 0], [0.5, 0, 0.5]],
        ),
    ],
)
def test_weights_are_those_of_the_definition(mix, moments, weights):
    check_weights(mix, moments, weights)


@each(
    ("mix", "message"),
    [
        ("phases", "needs the sources of each phase"),
        ("phases chain=law,,domain", "needs the sources of each phase"),
        ("phases chain=law,domain lengths=1", "as many positive numbers, such as 1,1"),
        ("phases chain=law,domain lengths=1,x", "as many positive numbers"),
        ("phases chain=law,domain", "reads the source 'news' in no phase"),
        ("phases chain=law,domain,news within=half", "within"),
    ],
)
def test_invalid_mixes_are_explained(mix, message):
    check_refusal(mix, message)
