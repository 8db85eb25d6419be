"""The plan of a tournament: which entrants take part, and what fits into the time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.labs.auto.plan import (
    BASE,
    CHEAPEST,
    CLAIM_SEEDS,
    CLAIM_SHARE,
    ETA,
    FEWEST_DEV_GROUPS,
    FEWEST_DEV_ITEMS,
    FEWEST_TOKENS,
    MOST_ENTRANTS,
    RACE_SEEDS,
    RESERVE,
    Facts,
    Price,
    Prices,
    afterwards,
    choose_entrants,
    make_plan,
    reprice,
)
from tests.cases import each

FACTS = {"kind": "masked", "documents": 10_000, "train_rows": 100, "replayable": True, "minutes": 600.0}


def labels(**facts) -> tuple[list[str], dict[str, str]]:
    entrants, skipped = choose_entrants(Facts(**{**FACTS, **facts}))
    return [one.label for one in entrants], {one.label: one.reason for one in skipped}


def test_the_base_model_and_the_cheapest_come_first_and_twelve_are_enough():
    found, skipped = labels()
    assert found[:2] == [BASE, CHEAPEST]
    assert len(found) == MOST_ENTRANTS and not skipped
    assert {"lm, low rate", "lm + replay", "tapt", "lm, nearest text", "lssd", "lm, LoRA", "dga"} <= set(found)
    more, left_out = labels(embeds=True)
    assert len(more) == MOST_ENTRANTS and "tsdae" in more
    assert set(left_out) == {"self-distill", "selective"}


@each(
    ("facts", "label", "why"),
    [
        ({"replayable": False}, "lm + replay", "general text"),
        ({"documents": 999}, "lm, nearest text", "fewer than 10 documents per train row"),
        ({"minutes": 60.0}, "selective", "180 minutes"),
        ({"usable": lambda name: "no heads" if name == "dga" else None}, "dga", "no heads"),
    ],
)
def test_what_does_not_fit_is_left_out_with_its_reason(facts, label, why):
    found, skipped = labels(**facts)
    assert label not in found
    assert why in skipped[label]


def test_a_model_that_replays_by_default_also_races_without_replay():
    found, _ = labels(kind="causal", replays=True)
    assert "lm, no replay" in found and "lm + replay" not in found


def test_a_chat_vector_is_added_afterwards():
    plain = choose_entrants(Facts(**FACTS))[0][1]
    assert [[*one.merge["method"]] for one in afterwards(plain, None)] == [["interpolation"]]
    assert [[*one.merge["method"]] for one in afterwards(plain, "chatty")] == [["interpolation"], ["chat-vector"]]
    assert {one.trained for one in afterwards(plain, "chatty")} == {CHEAPEST}


def slow_race(names, rungs, prices, extras) -> float:
    """Seconds of a race in which the most expensive survive, term by term."""
    total = RACE_SEEDS * prices.scoring + prices.measuring
    for number, rung in enumerate(rungs):
        costs = sorted(
            prices.adapting[name].overhead + prices.adapting[name].per_token * rung.tokens for name in names
        )
        for cost in costs[max(0, len(costs) - rung.width) :]:
            models = 1 + (extras if number == len(rungs) - 1 else 0)
            total += RACE_SEEDS * (cost + models * (prices.scoring + prices.measuring))
    return total


times = st.floats(0.01, 100)


@settings(max_examples=150, deadline=None)
@given(
    count=st.integers(1, 11),
    scoring=times,
    measuring=times,
    adapting=st.lists(st.tuples(times, st.floats(1e-6, 1e-2)), min_size=11, max_size=11),
    minutes=st.floats(0.5, 5_000),
    corpus_tokens=st.floats(1, 1e9),
    dev_items=st.integers(1, 2_000),
    share=st.none() | st.floats(0.001, 1),
    timing=st.floats(0, 200),
    parallel=st.integers(1, 8),
    extras=st.integers(1, 2),
    most=st.none() | st.integers(1, 10**8),
)
def test_no_plan_exceeds_its_budget(
    count, scoring, measuring, adapting, minutes, corpus_tokens, dev_items, share, timing, parallel, extras, most
):
    entrants = choose_entrants(Facts(**FACTS))[0][: count + 1]
    prices = Prices(scoring=scoring, measuring=measuring, timing=timing)
    for entrant, (overhead, per_token) in zip(entrants[1:], adapting, strict=False):
        prices.adapting[entrant.label] = Price(overhead=overhead, per_token=per_token)
    given_ = {"minutes": minutes, "corpus_tokens": corpus_tokens, "dev_items": dev_items, "parallel": parallel}
    given_["dev_groups"] = groups = None if share is None else max(1, int(share * dev_items))
    try:
        plan = make_plan(entrants, [], prices, extras=extras, most_tokens=most, **given_)
    except UserError as error:
        needed = int(str(error).split("about ")[1].split(" minutes")[0])
        assert needed >= minutes
        make_plan(entrants, [], prices, extras=extras, most_tokens=most, **{**given_, "minutes": needed * 1.001})
        return
    names = [one.label for one in plan.entrants if one.label != BASE]
    assert [one.label for one in plan.entrants[:2]] == [BASE, CHEAPEST]
    assert len(plan.entrants) <= MOST_ENTRANTS
    assert {one.label for one in (*plan.entrants, *plan.skipped)} == {one.label for one in entrants}
    budget = (60 * minutes * (1 - RESERVE) - timing) * parallel
    costly = max(prices.adapting[name].overhead + prices.adapting[name].per_token * plan.tokens for name in names)
    claim = CLAIM_SEEDS * (costly + measuring + 2 * scoring) + measuring
    assert plan.claim_seconds == pytest.approx(claim)
    idle = (parallel - 1) * (costly + measuring + scoring)
    if dev_items < FEWEST_DEV_ITEMS or (groups is not None and groups < FEWEST_DEV_GROUPS):
        assert not plan.races and names == [CHEAPEST] and plan.notes
        assert claim + idle <= budget * (1 + 1e-9)
        return
    race = slow_race(names, plan.rungs, prices, extras)
    assert plan.race_seconds == pytest.approx(race)
    assert race + idle <= (1 - CLAIM_SHARE) * budget * (1 + 1e-9)
    assert claim + idle <= CLAIM_SHARE * budget * (1 + 1e-9)
    sizes = [rung.tokens for rung in plan.rungs]
    assert len(sizes) in (2, 3) and sizes == sorted(sizes)
    assert plan.tokens <= (most or max(corpus_tokens, ETA * FEWEST_TOKENS))
    widths = [rung.width for rung in plan.rungs]
    assert widths == sorted(widths, reverse=True) and widths[-1] >= min(2, len(names))


def test_too_little_time_is_refused_with_the_time_that_is_enough():
    entrants = choose_entrants(Facts(**FACTS))[0]
    prices = Prices(
        scoring=30, measuring=2, adapting={one.label: Price(overhead=5, per_token=1e-3) for one in entrants[1:]}
    )
    with pytest.raises(UserError, match=r"2 minutes are too short for two rungs and the claim.*about \d+ minutes"):
        make_plan(entrants, [], prices, minutes=2, corpus_tokens=1e6, dev_items=1_000)
    plan = make_plan(entrants, [], prices, minutes=60, corpus_tokens=1e6, dev_items=1_000)
    assert 1 < len(plan.entrants) < len(entrants)
    assert {one.reason for one in plan.skipped} == {"there is no time for it in 60 minutes"}


def test_a_rung_corrects_the_price_of_an_entrant():
    prices = Prices(scoring=1, measuring=1, adapting={"lm": Price(overhead=10, per_token=1e-3)})
    assert reprice(prices, "lm", 1_000, 30.0).adapting["lm"].seconds(1_000) == pytest.approx(30)
    assert reprice(prices, "lm", 1_000, 4.0).adapting["lm"].seconds(1_000) == pytest.approx(4)
