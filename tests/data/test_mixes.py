"""Mixes that are known before the training: fixed weights, phases, upsampling at the end, and long documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.mix.base import MIXES, History, Round, ask, read_mix
from tests.cases import each

NAMES, SIZES = ("domain", "law", "news"), np.array([100.0, 300.0, 600.0])


def proposals(mix, names=NAMES, sizes=SIZES, parents=None):
    """Ask a mix at all its moments; return the weights: (moments, sources)."""
    rounds, found = [], []
    for moment in mix.moments:
        history = History(
            names, sizes, 100, moment, (*rounds, Round(round(100 * moment), sizes)),
            np.arange(len(names)) if parents is None else np.array(parents),
        )  # fmt: skip
        found.append(ask(mix, history))
        rounds.append(Round(history.step, sizes, weights=found[-1]))
    return np.array(found)


@each(
    ("mix", "moments", "weights"),
    [
        ("fixed", [0], [[1 / 3, 1 / 3, 1 / 3]]),
        ({"fixed": "size"}, [0], [[0.1, 0.3, 0.6]]),
        ("fixed domain=3 law=1", [0], [[0.75, 0.25, 0]]),
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
    mix = read_mix(mix)
    mix.check(NAMES)
    assert mix.moments == pytest.approx(moments)
    np.testing.assert_allclose(proposals(mix), weights)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(1, 29),
    st.sampled_from([0.2, 0.5, 0.9]),
)
def test_long_documents_get_their_share_within_each_source(documents, threshold, share):
    """Compared with a loop over the documents; each source keeps its share of the tokens."""
    mix = read_mix({"lengths": {"threshold": threshold, "share": share}})
    names, sizes, parents, expected = [], [], [], []
    total = sum(map(sum, documents))
    for number, lengths in enumerate(documents):
        assert mix.classify(np.array(lengths)).tolist() == [length > threshold for length in lengths]
        parts = {"short": 0, "long": 0}
        for length in lengths:
            parts["long" if length > threshold else "short"] += length
        if min(parts.values()):
            long = max(share, parts["long"] / sum(lengths))
        else:
            long = float(parts["long"] > 0)
        for name, weight in (("short", 1 - long), ("long", long)):
            if parts[name]:
                names.append(f"source {number} ({name})")
                sizes.append(float(parts[name]))
                parents.append(number)
                expected.append(sum(lengths) / total * weight)
    (found,) = proposals(mix, tuple(names), np.array(sizes), parents)
    np.testing.assert_allclose(found, expected)


@each(
    ("mix", "message"),
    [
        ("fixd", "Unknown mix 'fixd'"),
        ("fixed domain", "NAME parameter=value"),
        ("fixed 'domain=1", "NAME parameter=value"),
        (3, "not 3"),
        ({"fixed": 1, "phases": 2}, "A mix is a name"),
        ("fixed domain=-1", "nonnegative"),
        ("fixed domain=0", "not all 0"),
        ("fixed domain=much", "parameter 'weights"),
        ("fixed weights=large", "equal, size"),
        ("fixed nws=1", "Did you mean 'news'"),
        ("phases", "needs the sources of each phase"),
        ("phases chain=law,,domain", "needs the sources of each phase"),
        ("phases chain=law,domain lengths=1", "as many positive numbers, such as 1,1"),
        ("phases chain=law,domain lengths=1,x", "as many positive numbers"),
        ("phases chain=law,domain", "reads the source 'news' in no phase"),
        ("phases chain=law,domain,news within=half", "within"),
        ("upsample sources=laws", "Did you mean 'law'"),
        ("upsample tail=1", "tail"),
        ("upsample weight=1 without=domain", "no other source has a weight at the end"),
        ("lengths threshold=0", "threshold"),
        ("lengths weights=long", "equal, size"),
    ],
)
def test_invalid_mixes_are_explained(mix, message):
    with pytest.raises(UserError, match=message):
        read_mix(mix).check(NAMES)


def test_proposals_are_checked():
    mix = read_mix("fixed")
    for wrong in ([0.5, 0.5], [0.5, 0.6, -0.1], [0.5, np.nan, 0.5], [0.2, 0.2, 0.2]):
        object.__setattr__(mix, "propose", lambda history, wrong=wrong: np.array(wrong))
        with pytest.raises(UserError, match="expected 3 nonnegative numbers with the sum 1"):
            proposals(mix)


def test_the_identity_and_the_description_name_the_parameters():
    mix = read_mix("upsample sources=law reuse=true")
    assert mix.reuse and "reuse" not in mix.identity() and mix.identity()["sources"] == "law"
    assert mix.describe() == "upsample sources=law reuse=True"
    assert read_mix("fixed domain=0.7 law=0.3").describe() == "fixed domain=0.7 law=0.3"
    assert all(MIXES.lookup(name).summary and MIXES.lookup(name).__doc__ for name in MIXES.names())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=3))
def test_a_round_is_restored_from_json(values):
    one = Round(3, np.arange(len(values)), train_loss=np.array(values), gradients=np.eye(len(values)))
    again = Round.from_dict(one.to_dict())
    np.testing.assert_array_equal(again.train_loss, one.train_loss)
    np.testing.assert_array_equal(again.gradients, one.gradients)
    assert again.step == 3 and again.heldout_loss is None
