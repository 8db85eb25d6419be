"""Requirements: what they say, when they are met, and the exit code of a command that has them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.results.requirements import (
    MET,
    NOT_MET,
    UNDECIDED,
    Bounds,
    Decision,
    Requirement,
    check_names,
    decide,
    parse_requirements,
)
from acclimate.results.scores import HELPED, NOT_LEARNED, WITHHELD, Interval
from tests.cases import each

SIGNS = st.sampled_from([">", ">=", "<", "<="])
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)
MARKS = "ab0.-e /,:<>=!é\n\0"
NAMES = st.text(MARKS, min_size=1).filter(lambda name: name.strip() == name and name[-1] not in "<>=!")
ORDER = [NOT_MET, UNDECIDED, MET]


def bounds(low, high, **more):
    return Bounds(estimate=(low + high) / 2, low=low, high=high, **{"scale": 1.0, **more})


def state(text, *results):
    (requirement,) = parse_requirements(text)
    return decide([requirement], {requirement.name: results}).state


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first example of a process takes a second
@given(NAMES, SIGNS, NUMBERS)
def test_a_requirement_is_read_as_it_is_written(name, sign, bound):
    requirement = Requirement(name, sign, bound)
    for text in (str(requirement), f"  {name}{sign}{bound!r} "):
        assert parse_requirements([text]) == [requirement]


@each(
    ("text", "read"),
    [
        ("mmlu > 0", ("mmlu", ">", 0)),
        ("general>=-0.5", ("general", ">=", -0.5)),
        ("squad, dev set:exact match <= 1e2", ("squad, dev set:exact match", "<=", 100)),
        ("leaderboard/mmlu pro < .5", ("leaderboard/mmlu pro", "<", 0.5)),
        ("a > 3 > 0", ("a > 3", ">", 0)),
    ],
)
def test_names_have_blanks_commas_and_slashes(text, read):
    assert parse_requirements(text) == [read]


@each(
    "text",
    [
        *("", ">", "mmlu", "mmlu >", "> 0", " > 0", "mmlu = 0", "mmlu == 0", "mmlu => 0", "mmlu != 0", "mmlu >> 0"),
        *(
            "mmlu > zero",
            "mmlu > nan",
            "mmlu > inf",
            "mmlu > 1e999",
            "mmlu > 0 %",
            "mmlu > 1,5",
            "mmlu > 1_0",
            "mmlu ≥ 0",
        ),
        *("mmlu > ٣", "mmlu > 0x10", "mmlu > 0\0", None, 3, ["mmlu > 0"]),
    ],
)
def test_what_is_no_requirement_is_refused_with_an_example(text):
    with pytest.raises(UserError, match=r"must be a name, one of .* such as 'reviews > 0', not "):
        parse_requirements([text])


@given(st.text(MARKS, max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        (requirement,) = parse_requirements([text])
    except UserError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert parse_requirements([str(requirement)]) == [requirement]


@each(
    ("sign", "low", "high", "expected"),
    [
        *((">", 0.1, 2, MET), (">", 0, 2, UNDECIDED), (">", -2, 0, NOT_MET), (">", 0, 0, NOT_MET)),
        *((">=", 0, 2, MET), (">=", -2, 0, UNDECIDED), (">=", -2, -0.1, NOT_MET), (">=", 0, 0, MET)),
        *(("<", -2, -0.1, MET), ("<", -2, 0, UNDECIDED), ("<", 0, 2, NOT_MET), ("<", 0, 0, NOT_MET)),
        *(("<=", -2, 0, MET), ("<=", 0, 2, UNDECIDED), ("<=", 0.1, 2, NOT_MET), ("<=", 0, 0, MET)),
        *((">", -1, 1, UNDECIDED), (">", 0.1, math.inf, MET), (">", -1, math.inf, UNDECIDED)),
        *((">", math.nan, -1, UNDECIDED), ("<", math.nan, -1, UNDECIDED), (">", -math.inf, math.inf, UNDECIDED)),
    ],
)
def test_the_whole_interval_decides_and_the_sign_at_equality(sign, low, high, expected):
    assert state(f"x {sign} 0", bounds(low, high)) == expected


@given(SIGNS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_stricter_requirement_is_not_easier_to_meet(sign, first, second, one, other):
    low, high = sorted([first, second])
    easy, strict = sorted([one, other], reverse="<" in sign)
    states = [decide([Requirement("x", sign, bound)], {"x": [bounds(low, high)]}).state for bound in (easy, strict)]
    assert ORDER.index(states[0]) >= ORDER.index(states[1])


@given(SIGNS, st.integers(-999, 999), st.integers(-999, 999), st.integers(-999, 999))
def test_numbers_are_in_the_unit_that_is_shown(sign, bound, first, second):
    """Tenths of a point decide as whole numbers do, also at equality, whatever shares are in floating point."""
    low, high = sorted([first, second])
    whole = decide([Requirement("x", sign, bound)], {"x": [bounds(low, high)]})
    tenths = decide([Requirement("x", sign, bound / 10)], {"x": [bounds(low / 1000, high / 1000, scale=100.0)]})
    assert whole.state == tenths.state


@given(SIGNS, NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6))
def test_a_requirement_holds_for_all_that_it_names(sign, bound, pairs):
    requirement = Requirement("x", sign, bound)
    results = [bounds(*sorted(pair)) for pair in pairs]
    alone = [decide([requirement], {"x": [one]}).state for one in results]
    assert decide([requirement], {"x": results}).state == min(alone, key=ORDER.index)
    together = decide([requirement] * len(results), {"x": results})
    assert together.state == min(alone, key=ORDER.index) and len(together.describe()) == len(results)


@given(SIGNS, NUMBERS, NUMBERS, NUMBERS)
def test_the_opposite_requirement_has_the_opposite_answer(sign, bound, first, second):
    opposite = {">": "<=", "<=": ">", ">=": "<", "<": ">="}[sign]
    result = [bounds(*sorted([first, second]))]
    assume(result[0].low <= result[0].high)
    here, there = (decide([Requirement("x", one, bound)], {"x": result}).state for one in (sign, opposite))
    assert (here, there) in [(MET, NOT_MET), (NOT_MET, MET), (UNDECIDED, UNDECIDED)]


def test_exit_codes_and_lines():
    sure, unsure, worse = bounds(0.5, 1.5, of="lm"), bounds(-1, 1, of="dga"), bounds(-3, -2, of="tapt", unit="nats")
    requirements = parse_requirements(["a > 0", "b > 0"])
    assert decide([], {}).exit_code == 0
    for results, code in (([sure], 0), ([sure, unsure], 3), ([sure, unsure, worse], 1), ([], 3)):
        assert decide(requirements, {"a": [sure], "b": results}).exit_code == code
    decision = decide(requirements, {"a": [sure], "b": [unsure, *[unsure] * 3]})
    assert decision.describe() == [
        "Requirement met: a > 0 (lm +1.0 points [+0.5, +1.5])",
        "Requirement undecided: b > 0 ("
        + "; ".join(["dga 0.0 points [−1.0, +1.0]: the interval contains 0"] * 3)
        + "; and 1 more)",
    ]
    assert Decision.from_dict(decision.to_dict()) == decision
    assert decide(requirements, {"a": [], "b": [worse]}).describe() == [
        "Requirement undecided: a > 0 (there is no result)",
        "Requirement not met: b > 0 (tapt −2.500 nats [−3.000, −2.000])",
    ]


@each(("verdict", "why"), [(WITHHELD, "one seed or adaptation"), (NOT_LEARNED, "not learned the task")])
def test_an_interval_without_a_verdict_decides_nothing(verdict, why):
    interval = Interval(difference=0.02, low=0.01, high=0.03, p=0.01, verdict=HELPED)
    assert state("x > 0", Bounds.of_interval(interval)) == MET
    without = Bounds.of_interval(interval.without_verdict(verdict), of="lm")
    for text in ("x > 0", "x < 0"):
        decision = decide(parse_requirements(text), {"x": [without]})
        assert decision.state == UNDECIDED and why in decision.describe()[0]
        assert "lm +2.0 points [+1.0, +3.0]" in decision.describe()[0]


def test_unknown_names_and_wrong_directions_are_mistakes():
    names = ["reviews", "general"]
    check_names(parse_requirements(["reviews > 0", "general <= 0.02"]), names, ["general"])
    with pytest.raises(UserError, match=r"'review'\. Did you mean 'reviews'\? Available: general, reviews\."):
        check_names(parse_requirements(["review > 0"]), names)
    with pytest.raises(UserError, match=r"Lower values of 'general' are better, so require 'general <= -0.5', not"):
        decide(parse_requirements(["general >= -0.5"]), {"general": [replace(bounds(0, 1), is_error=True)]})
