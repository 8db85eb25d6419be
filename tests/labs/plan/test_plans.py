"""Plans: planted laws are recovered from noisy points, vague answers are refused, and what is read is checked."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, curve_fit
from typer.testing import CliRunner

from acclimate import plan_budget, plan_ratio, plan_schedule
from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.cli.main import app
from acclimate.labs.plan import ratio
from acclimate.labs.plan.laws import DomainLaw, MixtureLaw, PowerLaw, fit_law, interval
from acclimate.labs.plan.logs import loss_points, read_rows, score_points
from acclimate.labs.plan.options import BudgetOptions, RatioOptions, ScheduleOptions
from acclimate.labs.plan.pilots import budget_study, ratio_study
from acclimate.labs.plan.plans import Estimate, read_plan
from acclimate.labs.plan.schedule import Schedule, measure_areas, read_curves
from acclimate.results.study import StudyResults
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.docs.blocks import ROOT
from tests.study_files import spelled_today
from tests.tiny import WORDS

SHARES, TOKENS, NOISE = (0.1, 0.3, 0.5, 0.75, 1.0), (1e6, 4e6, 16e6, 64e6), 0.003
TARGET = 4 * TOKENS[-1]
FEW = {"resamples": 10, "progress": False}


def dcpt(share, tokens):
    """Return planted domain and general losses of a D-CPT law."""
    general = 1 - share
    return (
        2.0 + 0.3 * share**0.3 / (tokens / 1e6) ** 0.35 + 0.12 / (share + 0.1) ** 0.6,
        2.2 + 0.2 * general**0.3 / (tokens / 1e6) ** 0.3 + 0.1 / (general + 0.1) ** 0.5,
    )


def cmr(share, tokens):
    """Return planted losses that are power laws in the share and in the tokens."""
    fall = ((tokens / 1e6) ** -0.4 - 1) / -0.4
    return 3.0 - 0.4 * share**0.7 - 0.1 * fall * share**0.7, 2.5 + 0.05 * share**1.5 + 0.04 * share**1.5 * fall


def points(law, seed=0, noise=NOISE, tokens=TOKENS, **more):
    rng = np.random.default_rng(seed)
    rows = [{"share": 1, "tokens": 0, "domain_loss": 4.0, "general_loss": 2.37, **more}]
    for size in tokens:
        for share in SHARES:
            domain, general = np.array(law(share, size)) + rng.normal(0, noise, 2)
            rows.append({"share": share, "tokens": size, "domain_loss": domain, "general_loss": general, **more})
    return rows


@each(("law", "seed"), [(dcpt, 0), (cmr, 0)])
def test_planted_laws_are_recovered_at_four_times_the_tokens(law, seed):
    rows = plan_ratio(points(law, seed), law=law.__name__, seed=seed, **FEW).to_pandas()
    for text, planted in zip(("domain", "general"), law(rows["domain share"].to_numpy(), TARGET), strict=True):
        error = np.abs(rows[f"{text} loss"].to_numpy() - planted)
        assert error.mean() <= 0.005 and error.max() <= 0.01, (text, error)


@pytest.mark.slow
def test_planted_laws_are_recovered_with_any_noise():
    for law, seed in itertools.product((dcpt, cmr), range(1, 9)):
        rows = plan_ratio(points(law, seed), law=law.__name__, seed=seed, **FEW).to_pandas()
        for text, planted in zip(("domain", "general"), law(rows["domain share"].to_numpy(), TARGET), strict=True):
            assert np.abs(rows[f"{text} loss"].to_numpy() - planted).mean() <= 0.005, (law, seed, text)


def test_the_law_that_predicts_the_largest_runs_better_on_general_text_is_chosen():
    plan = plan_ratio(points(dcpt), **FEW)
    assert plan["law"] == "dcpt" and plan["checks"]["dcpt"]["general"] < plan["checks"]["cmr"]["general"]


def forgetting(share, tokens):
    """Return planted losses with a general loss that rises with the tokens, the more so the larger the share is."""
    general = 2.37 + (0.02 + 0.1 * share**2) * 0.35 * np.log(tokens / 3e5)
    return 3.0 - 0.4 * share**0.7 - 0.1 * share**0.7 * np.log(tokens / 1e6), general


@pytest.mark.slow
def test_a_law_that_cannot_rise_with_the_tokens_is_ruled_out_where_general_text_is_forgotten():
    plan = plan_ratio(points(forgetting, 5, noise=0.01), **FEW)
    assert plan["laws"] == {"cmr": True, "dcpt": False} and plan["law"] == "cmr"
    expected = brentq(lambda share: forgetting(share, TARGET)[1] - 2.42, 0.1, 1)
    assert plan["refused"] or plan["share"]["low"] - 0.05 <= expected <= plan["share"]["high"] + 0.05


@pytest.mark.slow
def test_the_law_is_chosen_again_in_each_bootstrap_sample():
    given = build(RatioOptions, points(dcpt, 3, noise=0.02), resamples=20)
    measured = ratio.read_points(given)
    laws = {}
    for law in (MixtureLaw(), DomainLaw()):
        fits = {text: fit_law(law, measured.at(text), losses) for text, losses in measured.losses.items()}
        laws[law.name] = fits, ratio._fit_smaller(law, measured, 0)
    assert {fits["general"].law.name for fits in ratio._draw("dcpt", laws, measured, given)} == {"cmr", "dcpt"}
    alone = ratio._draw("dcpt", {"dcpt": laws["dcpt"]}, measured, given)
    assert {fits["general"].law.name for fits in alone} == {"dcpt"}


def test_laws_that_fit_as_well_and_disagree_are_no_answer():
    found = Estimate(0.8, 0.75, 0.85)
    assert ratio._find_disagreement("dcpt", found, {"cmr": 0.84}, 0.01) == ""
    assert "shares of 0.80 and 0.48" in ratio._find_disagreement("dcpt", found, {"cmr": 0.48}, 0.01)


def changed(change, noise=0.003):
    """Return points of a mixture whose losses are changed by a function of (row, number)."""
    rows = points(cmr, noise=noise)
    return [{**row, **change(row, number)} if row["tokens"] else row for number, row in enumerate(rows)]


@each(("match", "change"), [
    ("is the same in all", lambda row, number: {"domain_loss": 2.0}),
    ("is the same in all", lambda row, number: {"general_loss": 1e-300}),
    ("rises with tokens", lambda row, number: {"domain_loss": 1 + 0.3 * np.log(row["tokens"] / 1e6) + 1e-3 * number}),
    ("does not depend on its share", lambda row, number: {"domain_loss": 2.0 + 0.01 * (number * 7 % 11)}),
    ("domain text rises with its share", lambda row, number: {"domain_loss": 2 + row["share"] + 0.01 * (number % 3)}),
    ("general text falls with the share", lambda row, number: {"general_loss": 3 - row["share"] + number % 3 / 99}),
    ("scatter by", lambda row, number: {"general_loss": 2.4 + 0.3 * (number * 7 % 11)}),
    ("impossible or worse than a guess", lambda row, number: {"general_loss": row["general_loss"] + 20}),
    ("impossible or worse than a guess", lambda row, number: {"domain_loss": row["domain_loss"] * 1e20}),
])  # fmt: skip
@pytest.mark.slow
def test_degenerate_losses_give_no_share(match, change):
    plan = plan_ratio(changed(change), law="cmr", **FEW)
    assert match in plan["refused"] and repr(plan).startswith("No share is recommended")


def test_the_drop_of_a_domain_is_over_its_smallest_budget():
    rows = [row for row in points(dcpt, noise=0) if row["share"] == 1.0]
    first, *runs = [{**row, "domain": "d"} for row in rows]
    assert [run["tokens"] for run in runs] == list(TOKENS)  # later budgets fall further
    found = ratio._domain_traits("d", [first, *runs[::-1]])
    assert found == {"first": 4.0, "drop": pytest.approx(4.0 - runs[0]["domain_loss"])}


def test_the_share_solves_the_planted_law():
    plan = plan_ratio(points(cmr, noise=0.001), law="cmr", tolerance=0.2, **FEW)
    solved = brentq(lambda share: cmr(share, TARGET)[1] - 2.57, 0.1, 1)
    share = plan["share"]
    assert share["low"] - 0.01 <= solved <= share["high"] + 0.01 and not plan["refused"]
    assert abs(share["value"] - solved) < 0.03
    assert share["value"] == pytest.approx(plan["critical"]["target"] or share["value"], abs=0.1)


def test_a_vague_answer_is_refused():
    plan = plan_ratio(points(dcpt, noise=0.04), law="dcpt", tolerance=0.04, resamples=25)
    assert "more than half of the measured range" in plan["refused"]
    assert repr(plan).startswith("No share is recommended")


def test_limits_of_the_answer_are_named():
    low = plan_ratio(points(cmr), law="cmr", base_loss=1.0, **FEW)
    assert low["share"]["value"] is None and "the smallest share measured" in repr(low)
    high = plan_ratio(points(cmr), law="cmr", tolerance=5, target_tokens=10**10, **FEW)
    assert high["share"]["value"] == 1 and "No limit was found" in repr(high) and "unreliable" in repr(high)


def test_shares_beyond_the_first_that_forgets_do_not_count():
    """The general loss of a D-CPT law falls at a share of one, where no general text is left."""
    wide = {"law": "dcpt", "target_tokens": 1_000_000, **FEW}
    top = dcpt(np.linspace(0.1, 0.99, 90), 1e6)[1].max()
    assert dcpt(1.0, 1e6)[1] < top - 0.03
    plan = plan_ratio(points(dcpt, noise=1e-4), base_loss=dcpt(1.0, 1e6)[1] + 0.01, tolerance=0, **wide)
    assert 0.1 < plan["share"]["value"] < 0.95


def test_limited_domain_text_is_read_once():
    plan = plan_ratio(points(dcpt), law="dcpt", domain_tokens=40_000_000, tolerance=1, **FEW)
    grid = np.linspace(0.1, 1, 2001)
    best = grid[np.argmin(dcpt(grid, 4e7 / grid)[0])]
    assert plan["predicted"]["domain"]["value"] == pytest.approx(dcpt(best, 4e7 / best)[0], abs=0.005)
    assert plan["target_tokens"] == pytest.approx(4e7 / plan["share"]["value"], rel=1e-6)


def repeating(share, tokens, unique, decay=4, worth=0.1, harm=np.zeros_like):
    """Return planted losses of domain text of ``unique`` tokens, whose tokens lose value with every repetition."""
    epochs = np.maximum(1, share * tokens / unique)
    value = np.minimum(share * tokens, unique) + unique * decay * (1 - np.exp((1 - epochs) / decay))
    domain = 2 + 1.5 * ((value + worth * (1 - share) * tokens) / 1e4) ** -0.3 + harm(epochs)
    return domain, cmr(share, tokens)[1]


LARGE = 64e6
"""Tokens of a training whose runs have at most a sixteenth."""


def repeated(law, unique, matched):
    """Return runs of at most a sixteenth of the tokens, whose domain text is as small as they are, or is whole.

    One run reads no domain text at all.
    """
    rows, rng = [{"share": 1, "tokens": 0, "domain_loss": 4.0, "general_loss": 2.37}], np.random.default_rng(1)
    for tokens, share in [*itertools.product(LARGE / 16 / 4.0 ** np.arange(4), SHARES), (LARGE / 16, 0.0)]:
        text = unique * (tokens if matched else LARGE)
        domain, general = np.array(law(share, tokens, text)) + rng.normal(0, NOISE, 2)
        losses = {"domain_loss": domain, "general_loss": general, "epochs": share * tokens / text}
        rows.append({"share": share, "tokens": tokens, **losses})
    return rows


def check_repeated(law, unique):
    grid = np.linspace(0.1, 1, 901)
    best = grid[np.argmin(law(grid, LARGE, unique * LARGE)[0])]
    given = {"tolerance": 3, "target_tokens": int(LARGE), "domain_tokens": int(unique * LARGE), "law": "cmr", **FEW}
    plan = plan_ratio(repeated(law, unique, True), repeat=True, **given)
    assert abs(plan["share"]["value"] - best) <= 0.05 and not plan["refused"], (best, plan["share"], plan["refused"])
    assert plan["epochs"] == pytest.approx(plan["share"]["value"] / unique)
    assert "is read" in repr(plan)
    return best, given


def test_runs_that_repeat_as_often_as_the_training_find_its_share_at_a_sixteenth_of_the_tokens():
    best, given = check_repeated(repeating, 0.05)
    rows = repeated(repeating, 0.05, False)
    today = plan_ratio(rows, **{**given, "domain_tokens": None})
    assert abs(today["share"]["value"] - best) > 0.3
    assert "the runs read theirs at most 1.2 times" in plan_ratio(rows, repeat=True, **given)["refused"]


@pytest.mark.slow
@each(("law", "unique"), [
    (partial(repeating, decay=15, worth=0.05), 0.01),
    (partial(repeating, worth=0.05, harm=lambda epochs: 0.004 * np.maximum(0, epochs - 3)), 0.05),
    (partial(repeating, harm=lambda epochs: 0.01 * np.maximum(0, epochs - 4)), 0.1),
    (partial(repeating, harm=lambda epochs: 0.0004 * (epochs - 1) ** 2), 0.05),
])  # fmt: skip
def test_repetitions_that_harm_are_found_as_well(law, unique):
    check_repeated(law, unique)


@pytest.mark.slow
def test_the_cross_domain_law_plans_a_domain_of_which_only_small_runs_are_known():
    def planted(coefficient, share, tokens):
        domain, general = dcpt(share, tokens)
        return domain + 0.25 / coefficient**0.8, general

    def find_drop(first):
        """Return the fall of the domain loss with the fewest tokens, on which the law itself depends."""
        lowest = min(dcpt(share, TOKENS[0])[0] for share in SHARES)
        return brentq(lambda drop: first - drop - lowest - 0.25 / (1 / first + 1.5 * drop) ** 0.8, 1e-6, first)

    firsts = (3.5, 3.25, 3.6, 4.0, 3.8, 3.35)
    coefficients = [1 / first + 1.5 * find_drop(first) for first in firsts]
    rows = []
    for number, (first, coefficient) in enumerate(zip(firsts, coefficients, strict=True)):
        own = points(partial(planted, coefficient), number, noise=0.001, domain=f"d{number}")
        own[0]["domain_loss"] = first
        rows += own if number else own[: 1 + len(SHARES)]
    plan = plan_ratio(rows, law="cross-domain", domain="d0", tolerance=1, target_tokens=TARGET, **FEW)
    found = plan.to_pandas()
    error = found["domain loss"] - planted(coefficients[0], found["domain share"].to_numpy(), TARGET)[0]
    assert np.abs(error).mean() <= 0.005


def test_cross_domain_and_size_terms_by_the_definition():
    exponents = np.array([0.3, 0.4, 0.1, 0.6, 0.5, 0.8, 1.5])
    inputs = {name: np.array([value]) for name, value in
              {"share": 0.4, "tokens": 3.0, "parameters": 2.0, "first": 3.0, "drop": 0.2}.items()}  # fmt: skip
    found = DomainLaw(sizes=True, domains=True).columns(exponents, inputs) @ np.array([1.0, 2.0, 0.3, 0.7, 0.9])
    coefficient = 1 / 3.0 + 1.5 * 0.2
    expected = 1 + 2 * 0.4**0.3 / 3**0.4 + 0.3 / 0.5**0.6 + 0.7 / 2**0.5 + 0.9 / coefficient**0.8
    assert found[0] == pytest.approx(expected)
    exact = MixtureLaw().columns(np.array([1.5, 0.0]), {"domain_share": np.array([0.5]), "tokens": np.array([7.0])})
    near = MixtureLaw().columns(np.array([1.5, 1e-6]), {"domain_share": np.array([0.5]), "tokens": np.array([7.0])})
    assert exact == pytest.approx(near, rel=1e-5)


def test_fits_against_scipy():
    rng = np.random.default_rng(3)
    x = np.geomspace(8, 2000, 12)
    y = 0.9 - 1.5 * x**-0.5 + rng.normal(0, 0.004, 12)
    found = fit_law(PowerLaw(-3, -0.05), {"x": x}, y)
    expected, _ = curve_fit(lambda x, a, b, p: a + b * x**p, x, y, p0=(0.8, -1, -0.6), maxfev=10_000)
    assert np.allclose([*found.coefficients, *found.exponents], expected, rtol=0.06)
    y[4] += 2  # one outlier, which least squares would follow
    robust = fit_law(PowerLaw(-3, -0.05), {"x": x}, y).predict({"x": x})
    assert np.abs(robust - (0.9 - 1.5 * x**-0.5))[[0, 6, 11]].max() < 0.02
    with pytest.raises(ValueError, match="needs more points"):
        fit_law(PowerLaw(-3, -0.05), {"x": x[:3]}, y[:3])


def test_points_of_a_study():
    results = StudyResults.load(ROOT / "docs" / "results" / "mixtures" / "results.json")
    methods = [{**row, "adapt": spelled_today(row.get("adapt") or {})} for row in results.config["methods"]]
    results = replace(results, config={**results.config, "methods": methods})
    rows = [row for row in loss_points(results) if row["domain"] == "biomed"]
    (base,) = [row for row in rows if row["tokens"] == 0]
    losses = {(row.method, row.text): row for row in results.losses if row.domain == "biomed"}
    assert base["general_loss"] == losses["replay", "general"].before
    replay = [row for row in rows if row.get("method") == "replay"]
    assert {row["share"] for row in replay} == {0.7} and len(replay) == len(results.adapt_seeds)
    assert [row["domain_loss"] for row in replay] == losses["replay", "domain"].by_seed


GOOD = points(dcpt)
SIZES = [{**row, "parameters": number + 1} for number, row in enumerate(GOOD)]
RUN = {"run": True, "general": "g.txt", "out": "out"}


@each(("match", "rows", "more"), [
    ("--log", (), {}),
    ("holds no points", "share,tokens,domain_loss,general_loss\n", {}),
    ("cannot be read", b"share\xff\n1\n", {}),
    ("does not exist", "no.csv", {}),
    (r"without share\. Did you mean 'shares'", [{**row, "shares": 1, "share": None} for row in GOOD], {}),
    ("at most 1", [*GOOD, {**GOOD[1], "share": 2}], {}),
    ("finite number", [*GOOD, {**GOOD[1], "tokens": "many"}], {}),
    ("at least 3 shares", GOOD[:6], {}),
    ("--base-loss", GOOD[1:], {}),
    ("holds nan", [*GOOD, {**GOOD[1], "general_loss": float("nan")}], {}),
    (r"at most 1e\+30", [*GOOD, {**GOOD[1], "general_loss": 1e300}], {}),
    ("Choose one with --domain", [{**row, "domain": f"d{number % 2}"} for number, row in enumerate(GOOD)], {}),
    ("Did you mean 'biomed'", [{**row, "domain": "biomed"} for row in GOOD], {"domain": "biomd"}),
    ("no column 'model'", GOOD, {"base": "bert"}),
    ("--parameters", SIZES, {}),
    ("no term for the size", SIZES, {"law": "cmr", "parameters": 3}),
    ("at least 3 domains", GOOD, {"law": "cross-domain"}),
    ("needs --domain-tokens", GOOD, {"repeat": True}),
    ("column epochs.* 20 of 20 runs", GOOD, {"repeat": True, "domain_tokens": 10**6}),
    ("and --target-tokens", (), {**RUN, "model": "m", "tokens": 10**6, "repeat": True, "domain_tokens": 10**6}),
    ("remove --log", GOOD, RUN),
    ("--out", (), {**RUN, "out": None}),
    ("--model", (), {**RUN, "tokens": 10**6}),
    ("at least", (), {**RUN, "tokens": 100}),
    ("at least three different shares", (), {**RUN, "tokens": 10**6, "shares": "0.5,1"}),
])  # fmt: skip
def test_bad_points_are_refused_in_one_line(tmp_path, monkeypatch, match, rows, more):
    monkeypatch.chdir(tmp_path)
    if isinstance(rows, bytes) or (isinstance(rows, str) and "," in rows):
        (tmp_path / "log.csv").write_bytes(rows if isinstance(rows, bytes) else rows.encode())
        rows = "log.csv"
    with pytest.raises(UserError, match=match) as caught:
        plan_ratio(rows, **{**FEW, **more})
    assert "\n" not in str(caught.value)


def test_domains_may_be_numbers():
    rows = [{**row, "domain": domain, "model": float("nan")} for row in GOOD for domain in (1, 2)]
    assert plan_ratio(rows, domain="2", **FEW)["points"] == len(GOOD) - 1


@settings(max_examples=4, deadline=None)
@given(st.lists(st.fixed_dictionaries({
    "share": st.one_of(st.floats(-1, 2), st.text(max_size=3), st.none()),
    "tokens": st.one_of(st.integers(-5, 10**16), st.just("nan")),
    "domain_loss": st.floats(allow_nan=True, width=32), "general_loss": st.floats(0, 10)}), max_size=12))  # fmt: skip
def test_any_rows_give_a_plan_or_one_line(rows):
    try:
        plan_ratio(rows, base_loss=1.0, **FEW)
    except UserError as error:
        assert str(error) and "\n" not in str(error)


def test_the_command_writes_a_plan(tmp_path):
    file, out = tmp_path / "runs.csv", tmp_path / "plan"
    with file.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, points(cmr)[0])
        writer.writeheader()
        writer.writerows(points(cmr))
    assert len(read_rows(file, "losses", ["share"])) == 21
    call = ["plan", "ratio", "--log", str(file), "--law", "cmr", "--tolerance", "0.2", "--resamples", "10"]
    shown = CliRunner().invoke(app, [*call, "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "Domain share: " in shown.output and "--replay" in shown.output
    assert {"plan.json", "plan.png", "plan.svg"} == {path.name for path in out.iterdir()}
    again = CliRunner().invoke(app, [*call, "--json"])
    assert json.loads(again.stdout)["result"]["share"] == read_plan(out)["share"]


def test_the_study_of_a_plan(tmp_path):
    (tmp_path / "text.txt").write_text("good soup\n")
    text = str(tmp_path / "text.txt")
    options = build(RatioOptions, (), run=True, model="model", corpus=text, general=text, tokens=664_062, budgets=4,
                    settings={"adapt.batch_size": 64})  # fmt: skip
    study = ratio_study(options)
    adapted = [method["adapt"] for method in study["methods"][1:]]
    assert len(adapted) == 20 and sum(one["tokens"] for one in adapted) == pytest.approx(664_062, rel=0.001)
    assert sorted({one.get("replay", 0.0) for one in adapted}) == [0.0, 0.25, 0.5, 0.7, 0.9]
    tokens = sorted({one["tokens"] for one in adapted})
    assert [b / a for a, b in itertools.pairwise(tokens)] == pytest.approx([4] * 3, rel=0.01)
    assert study["adapt"]["batch_size"] == 64 and study["adapt_seeds"] == 1
    StudyConfig.of(study, "study of a plan")
    study = ratio_study(replace(options, repeat=True, domain_tokens=10_000, target_tokens=200_000))
    parts = {one["adapt"]["tokens"]: one["select"]["random"]["share"] for one in study["methods"][1:]}
    assert parts == {tokens: tokens / 200_000 for tokens in tokens}
    StudyConfig.of(study, "study of a plan")


def learning_curve(labels, adapted):
    """Return planted scores: the adapted model starts higher and ends at the same score."""
    return 0.9 - (1.0 if adapted else 1.6) * labels**-0.4


def scores(noise=1e-5, seed=0, **more):
    rng = np.random.default_rng(seed)
    return [
        {
            "labels": labels,
            "adapted": adapted,
            "score": learning_curve(labels, adapted) + noise * rng.normal(),
            "adaptation": number % 3,
            **more,
        }
        for number, labels in enumerate((50, 100, 200, 400, 800, 1600))
        for adapted in (False, True)
    ]


def test_the_switch_over_is_exact_on_planted_curves():
    price, cost = 0.5, 60.0

    def gain(budget):
        return learning_curve((budget - cost) / price, True) - learning_curve(budget / price, False)

    expected = brentq(gain, 80, 1000)
    plan = plan_budget(scores(), price=price, cost=cost, budget=[70, 90, 400, 20], **FEW)
    assert plan["switch"]["value"] == pytest.approx(expected, rel=1e-4) and not plan["refused"]
    assert [made["decision"] for made in plan["budgets"]] == ["annotate", "annotate", "adapt", "adapt"]
    assert [made["budget"] for made in plan["budgets"]] == [20, 70, 90, 400]
    assert plan["budgets"][-1]["labels"] == {"annotate": 800, "adapt": 680}
    assert plan["budgets"][-1]["difference"]["value"] == pytest.approx(gain(400), abs=1e-4)
    assert plan["budgets"][0]["adapt"] is None  # the adaptation costs more
    assert plan["until"] is None
    noisy = plan_budget(scores(0.003), price=price, cost=cost, resamples=40)["switch"]
    assert noisy["low"] <= expected <= noisy["high"] and noisy["high"] - noisy["low"] > 1


def test_one_way_to_spend_may_win_everywhere():
    never = plan_budget(scores(), price=0.01, cost=10_000, **FEW)
    assert never["switch"]["value"] is None and repr(never).startswith("Spend the budget on labels")
    always = plan_budget(scores(), price=1, cost=0, **FEW)
    assert always["switch"]["value"] == always["range"][0] and repr(always).startswith("Adapt first")
    few = plan_budget(scores(), price=1, cost=50, max_labels=100, budget=1000, **FEW)
    assert few["budgets"][0]["labels"] == {"annotate": 100, "adapt": 100} and "adapt" in few["budgets"][0]["decision"]
    same = plan_budget([{**row, "score": 0.5} for row in scores()], price=1, cost=0, **FEW)
    assert repr(same).startswith("No difference is shown") and "not a learning curve" not in repr(same)
    vague = plan_budget(scores(0.1), price=0.5, cost=60, resamples=25)
    assert "more than half" in vague["refused"] and repr(vague).startswith("No switch-over budget")


@each("value", [0.0, 0.5, 9.0, -1e6, 1e-12])
def test_equal_scores_are_no_difference_in_the_headline_and_in_the_rows(value):
    plan = plan_budget([{**row, "score": value} for row in scores()], price=1, cost=20, budget=(400, 800), **FEW)
    assert repr(plan).startswith(("No difference is shown", "No switch-over budget"))
    rows = plan.to_pandas()
    assert set(rows["decision"]) | {made["decision"] for made in plan["budgets"]} == {"no difference shown"}


def test_scores_that_never_vary_decide_nothing():
    rows = [{**row, "score": 0.6 if row["adapted"] else 0.5} for row in scores()]
    assert len({row["score"] for row in rows}) == 2
    plan = plan_budget(rows, price=1, cost=20, budget=(400, 800), **FEW)
    assert "says nothing about their scatter" in plan["refused"]
    assert {made["decision"] for made in plan["budgets"]} == {"no difference shown"}


def test_a_log_is_given_once(tmp_path):
    file = tmp_path / "scores.csv"
    file.write_text("labels,score,adapted\n50,0.5,0\n")
    with pytest.raises(UserError, match="is given twice"):
        read_rows([file, str(tmp_path / "." / "scores.csv")], "scores", ["labels"])


@each(
    ("price", "cost", "noise"),
    [(1, 0, 0), (1, 20, 1e-5), (0.5, 60, 0.003), (0.01, 10_000, 1e-5), (1, 0, 0.01), (1, 50, 0.02)],
)
def test_the_headline_of_a_budget_agrees_with_its_rows(price, cost, noise):
    plan = plan_budget(scores(noise), price=price, cost=cost, **FEW)
    rows, headline = plan.to_pandas(), plan["lines"][0]
    adapting = rows[rows["decision"] == "adapt"]["budget"]
    if headline.startswith("Adapt first"):
        assert f"{adapting.min():,.2f}" in headline
    elif headline.startswith(("Spend", "No difference")):
        assert not len(adapting)
    elif not noise:
        assert "lie exactly on the curves" in headline and not len(adapting)
    else:
        assert headline.startswith(("Below", "No switch-over"))


@each("adaptations", [1, 2])
def test_one_adaptation_decides_nothing(adaptations):
    rows = [{**row, "adaptation": number // 2 % adaptations} for number, row in enumerate(scores())]
    plan = plan_budget(rows, price=0.5, cost=60, budget=(70, 400, 20), **FEW)
    assert "the variance between adaptations is unknown" in plan["refused"] and plan["adaptations"] == adaptations
    assert [made["decision"] for made in plan["budgets"]] == ["annotate", "no difference shown", "no difference shown"]
    unnamed = plan_budget([{**row, "adaptation": None} for row in rows], price=0.5, cost=60, **FEW)
    assert unnamed["adaptations"] == 1 and unnamed["refused"]


def test_scores_that_fall_with_more_labels_are_no_learning_curve():
    plan = plan_budget([{**row, "score": -row["score"]} for row in scores()], price=0.5, cost=60, **FEW)
    assert "fall with more labels" in plan["refused"] and repr(plan).startswith("No switch-over budget")


@each(("option", "value"), [
    ("--budget", -5), ("--budget", 0), ("--budget", 10**400), ("--budget", 1e300), ("--price", 1e-300), ("--price", 0),
    ("--price", 10**400), ("--cost", -1), ("--cost", 1e300), ("--hour-price", 1e-300),
])  # fmt: skip
def test_money_out_of_range_is_refused_by_the_name_of_the_option(option, value):
    given = {"price": 1, "cost": 2, option.strip("-").replace("-", "_"): value}
    with pytest.raises(UserError, match=f"'{option.strip('-').replace('-', '_')}'"):
        plan_budget(scores(), **given, **FEW)


def test_labels_may_catch_up_again():
    def planted(labels, adapted):
        return 0.85 - 1.0 * labels**-0.5 if adapted else 0.9 - 1.4 * labels**-0.4

    rows = [
        {**row, "score": planted(row["labels"], row["adapted"]) + 1e-5 * (number % 3)}
        for number, row in enumerate(scores())
    ]
    plan = plan_budget(rows, price=1, cost=100, **FEW)

    def gain(budget):
        return planted(budget - 100, True) - planted(budget, False)

    middle = (plan["switch"]["value"] + plan["until"]) / 2
    assert plan["switch"]["value"] == pytest.approx(brentq(gain, 101, middle), rel=1e-3)
    assert plan["until"] == pytest.approx(brentq(gain, middle, 5000), rel=1e-3) and "as good again" in repr(plan)
    table = plan.to_pandas()
    last = table[table["decision"] == "adapt"]["budget"].max()
    assert last < table["budget"].max() and f"{last:,.2f}" in plan["lines"][0]


def test_the_cost_is_that_of_the_measured_time():
    plan = plan_budget(scores(seconds=1800), price=0.5, hour_price=120, **FEW)
    assert plan["cost"] == 60


def test_scores_of_a_study():
    results = StudyResults.load(ROOT / "docs" / "results" / "mixtures" / "results.json")
    rows = [row for row in score_points(results) if row["task"] == "chemprot"]
    assert {row["method"] for row in rows if not row["adapted"]} == {"none"}
    row = next(row for row in results.scores if (row.task, row.method) == ("chemprot", "replay"))
    assert [one["score"] for one in rows if one["method"] == "replay"] == row.summaries[row.metric].by_seed
    assert {one["labels"] for one in rows} == {row.train_size}
    for one in rows:
        if one["adapted"]:
            place = one["model"], one["domain"], one["method"]
            assert one["seconds"] in {
                made.seconds for made in results.adaptations if (made.model, made.domain, made.method) == place
            }


def test_errors_count_as_negative_scores():
    results = StudyResults.load(ROOT / "docs" / "results" / "mixtures" / "results.json")
    row = results.scores[0]
    row.errors = [row.metric]
    points = [one for one in score_points(results) if one["metric"] == f"negative {row.metric}"]
    assert [-one["score"] for one in points] == row.summaries[row.metric].by_seed


@each(("match", "rows", "more"), [
    ("--price", scores(), {"price": None}),
    ("either --cost", scores(), {"cost": None}),
    ("either --cost", scores(), {"hour_price": 3}),
    ("less than the 50 labels", scores(), {"max_labels": 10}),
    ("no time", scores(), {"cost": None, "hour_price": 3}),
    ("at least 4 numbers of labels", scores()[:6], {}),
    ("give 1 for an adapted model", [{**row, "adapted": "perhaps"} for row in scores()], {}),
    ("Choose one with --method", [{**row, "method": f"m{number % 4}"} for number, row in enumerate(scores())], {}),
    ("--task", (), {"run": True, "out": "out", "model": "m"}),
    ("--labels needs at least 4", (), {"run": True, "out": "out", "model": "m", "task": "t", "labels": "50,100"}),
])  # fmt: skip
def test_bad_scores_are_refused_in_one_line(tmp_path, monkeypatch, match, rows, more):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=match) as caught:
        plan_budget(rows, **{"price": 1, "cost": 2, **FEW, **more})
    assert "\n" not in str(caught.value)


def test_the_study_of_a_budget_plan(tmp_path):
    (tmp_path / "text.txt").write_text("good soup\n")
    given = {
        "model": "model",
        "corpus": str(tmp_path / "text.txt"),
        "task": str(tmp_path / "reviews.csv"),
        "tokens": 10**6,
    }
    rows = "".join(f"soup {number},{'good' if number % 2 else 'bad'}\n" for number in range(180))
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows)
    study = budget_study(build(BudgetOptions, (), run=True, seeds=3, labels="10,20,40,80,160", **given))
    tasks = study["domains"][0]["tasks"]
    assert [(task["name"], task["limit_train"]) for task in tasks] == [(f"reviews-{n}", n) for n in (10, 20, 40, 80)]
    assert study["methods"] == ["none", "lm"] and study["seeds"] == 3 and study["adapt"] == {"tokens": 10**6}
    StudyConfig.of(study, "study of a plan")
    with pytest.raises(UserError, match=r"reviews.csv' has 126 rows to train on: give at least 4 numbers up to that"):
        budget_study(build(BudgetOptions, (), run=True, labels="50,100,200,400", **given))


PRETRAINED, DECAY = 0.02, 0.99


def dynamics(rates, steps):
    """Return planted losses after steps, by the sums of the paper's definition."""
    found = []
    for step in steps:
        area, annealing = sum(rates[:step]), 0.0
        for i in range(1, step):
            annealing += sum((rates[k - 1] - rates[k]) * DECAY ** (i - k) for k in range(1, i + 1))
        shift = -0.6 * (1 - (1 + 60 * area) ** -0.5)
        found.append(3 + 0.02 * (PRETRAINED + area) ** -0.5 - 2.0 * annealing + shift)
    return found


def curve(text, run, noise=0.0, every=10):
    rates = Schedule.parse(text).rates()
    steps = range(0, len(rates) + 1, every)
    rng = np.random.default_rng(len(rates))
    logged = [{"run": run, "step": step + 1, "learning_rate": rate} for step, rate in enumerate(rates)]
    losses = zip(steps, dynamics(list(rates), steps), strict=True)
    return logged + [{"run": run, "step": step, "heldout": loss + noise * rng.normal()} for step, loss in losses]


def test_areas_by_the_definition():
    rates = Schedule.parse("wsd steps=20 peak=0.01 warmup=0.2 decay=0.3").rates()
    area, annealing = measure_areas(rates, 0.9)
    for step in (1, 7, 20):
        expected = sum(
            (rates[k - 1] - rates[k]) * 0.9 ** (i - k) for i in range(1, step) for k in range(1, i + 1)
        )  # fmt: skip
        assert area[step - 1] == pytest.approx(sum(rates[:step])) and annealing[step - 1] == pytest.approx(expected)


def test_the_final_loss_of_another_schedule():
    known = curve("constant steps=150 peak=0.001", "a", 3e-4) + curve("linear steps=100 peak=0.001", "b", 3e-4)
    wanted = [f"{shape} steps={steps} peak=0.001" for shape in ("cosine", "linear") for steps in (150, 300)]
    plan = plan_schedule(known, schedule=wanted, decay=DECAY, **FEW)
    for made, text in zip(plan["schedules"], wanted, strict=True):
        rates = list(Schedule.parse(text).rates())
        (expected,) = dynamics(rates, [len(rates)])
        assert made["value"] == pytest.approx(expected, abs=0.005), text
    assert plan["best"].startswith(("cosine steps=300", "linear steps=300")) and plan["loss"] == "heldout"


TRAININGS = [f"{shape} peak=0.001" for shape in ("constant steps=150", "linear steps=100", "cosine steps=120",
                                                 "wsd steps=150")]  # fmt: skip
EQUAL = ("linear steps=200 peak=0.001", "cosine steps=200 peak=0.000933843331756409")
"""Schedules with the same planted loss at the end."""


def with_deviations(seed, deviation=0.005, noise=0.01, trainings=TRAININGS):
    """Return logs of trainings, each with a deviation of its own."""
    rng = np.random.default_rng(seed)
    rows = []
    for text in trainings:
        shift = deviation * rng.normal()
        rows += [
            {**row, "heldout": row["heldout"] + shift + noise * rng.normal()} if "heldout" in row else row
            for row in curve(text, text)
        ]
    return rows


def test_few_trainings_recommend_nothing():
    plan = plan_schedule(with_deviations(0, trainings=TRAININGS[:3]), schedule=EQUAL, decay=DECAY, **FEW)
    assert "the variance between trainings is unknown" in plan["refused"]
    assert repr(plan).startswith("No schedule is recommended") and "leave out the variance" in repr(plan)


def test_the_points_of_a_training_are_not_independent():
    """Schedules of the same loss: without the variance of trainings in the intervals, one is found to be better."""
    plan = plan_schedule(with_deviations(1, noise=0.002), schedule=EQUAL, decay=DECAY, resamples=20, progress=False)
    assert not plan["refused"] and plan["difference"]["low"] <= 0
    rng, inputs = np.random.default_rng(0), {"x": np.tile(np.geomspace(50, 1600, 6), 4) / 200}
    runs = np.repeat(np.arange(4), 6)
    values = 0.9 - 0.2 * inputs["x"] ** -0.4 + np.array([-0.02, 0.0, 0.01, 0.02])[runs] + rng.normal(0, 0.001, 24)
    alone, shared = (
        np.array([draw.predict({"x": np.array([4.0])})[0] for draw in fit.draws])
        for fit in (fit_law(PowerLaw(-3, -0.02), inputs, values, runs=own, resamples=60) for own in (None, runs))
    )
    assert shared.std() > 2 * alone.std()


@each("change", [lambda row: 2.0, lambda row: row["heldout"] + 50])
def test_degenerate_losses_recommend_no_schedule(change):
    rows = [{**row, "heldout": change(row)} if "heldout" in row else row for row in with_deviations(0)]
    assert plan_schedule(rows, schedule=EQUAL, decay=DECAY, **FEW)["refused"]


def test_a_single_schedule_is_not_enough_to_separate_its_effects():
    plan = plan_schedule(curve("linear steps=160 peak=0.001", "a", 0.02), **FEW)
    assert "cannot be separated" in plan["refused"] and repr(plan).startswith("No schedule is recommended: all")
    assert len(plan["schedules"]) == 6


@each(("match", "rows", "more"), [
    ("at least one training", (), {}),
    ("Unknown schedule 'linera'", curve("linear steps=20 peak=0.1", "a"), {"schedule": "linera steps=2 peak=1"}),
    ("Unknown schedule ''", curve("linear steps=20 peak=0.1", "a"), {"schedule": [""]}),
    ("above zero", [{"step": step, "loss": 2.0, "learning_rate": 0} for step in range(20)], {}),
    ("needs steps= and peak=", curve("linear steps=20 peak=0.1", "a"), {"schedule": "linear"}),
    ("steps must be a number", curve("linear steps=20 peak=0.1", "a"), {"schedule": "linear steps=2.5 peak=1"}),
    ("too few", curve("linear steps=20 peak=0.1", "a"), {}),
    ("no column learning_rate", [{"step": 1, "loss": 2.0}], {}),
    ("no column eval", [{"step": 1, "loss": 2.0, "learning_rate": 1.0}], {"loss": "eval"}),
    ("no learning rates", [{"step": 1, "loss": 2.0}, {"step": 1, "learning_rate": 1.0, "run": "b"}], {}),
])  # fmt: skip
def test_bad_curves_are_refused_in_one_line(match, rows, more):
    with pytest.raises(UserError, match=match) as caught:
        plan_schedule(rows, **FEW, **more)
    assert "\n" not in str(caught.value)


@each("heldout", [{"terms": 5}, {"terms": {"mlm": "a"}}, {"terms": {"clm": [1]}}, {"loss": {}}, {}, [5], "a", True])
def test_a_log_of_another_form_is_an_error_that_names_the_column(heldout, tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps({"step": 1, "learning_rate": 1.0, "heldout": heldout}) + "\n")
    with pytest.raises(UserError, match=r"heldout|above zero|too few"):
        plan_schedule(tmp_path / "log.jsonl", loss="heldout", **FEW)


def test_logs_of_trainings_are_read(tmp_path):
    ours, theirs = tmp_path / "model", tmp_path / "checkpoint"
    ours.mkdir()
    theirs.mkdir()
    rates = Schedule.parse("linear steps=60 peak=0.001").rates()
    lines = [{"step": step, "learning_rate": rates[step - 1], "loss": 3.0} for step in range(1, 61, 4)]
    lines += [{"step": step, "heldout": {"terms": {"mlm": 3 - 0.01 * step}, "loss": 9.0}} for step in range(0, 61, 5)]
    (ours / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    history = [{"step": step, "learning_rate": rates[step - 1], "loss": 3.0} for step in range(1, 61, 4)]
    history += [{"step": step, "eval_loss": 3 - 0.01 * step} for step in range(5, 61, 5)]
    (theirs / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    for folder, points in ((ours, 13), (theirs, 12)):
        (found,), loss = read_curves(build(ScheduleOptions, folder))
        assert len(found.rates) == 60 and len(found.losses) == points
        assert np.allclose(found.rates[8:57], rates[8:57], atol=1e-5)
        assert loss == ("heldout" if folder == ours else "eval_loss")
        assert found.losses[-1] == pytest.approx(2.4)


SMALL = {"adapt.batch_size": 8, "adapt.max_length": 32, "evaluate.documents": 20, "evaluate.max_length": 32}


def _write_text(path, seed, documents=400):
    rng = np.random.default_rng(seed)
    words = [word for word in WORDS if word.isalpha()]
    path.write_text("".join(" ".join(rng.choice(words, 30)) + f" {line}\n" for line in range(documents)))
    return str(path)


@pytest.mark.slow
def test_a_plan_makes_its_own_runs_and_resumes(tmp_path, tiny_bert):
    general = _write_text(tmp_path / "general.txt", 1, 800)
    given = {"model": str(tiny_bert), "corpus": _write_text(tmp_path / "cs.txt", 0), "run": True, "progress": False}
    options = {"general": general, "tokens": 70_000, "shares": (0.3, 0.6, 1.0), "budgets": 3, "law": "cmr"}
    options |= {"settings": SMALL, "resamples": 10}
    plan = plan_ratio(out=tmp_path / "plan", **given, **options)
    assert plan["points"] == 9 and plan["base"]["general"] > 0
    rows = list(loss_points(StudyResults.load(tmp_path / "plan" / "runs" / "results.json")))
    assert {round(row["share"], 1) for row in rows if row["tokens"]} == {0.3, 0.6, 1.0}
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "plan" / "runs" / "jobs").rglob("*.json")}
    assert plan_ratio(out=tmp_path / "plan", **given, **options)["share"] == plan["share"]
    assert before and all(file.stat().st_mtime_ns == time for file, time in before.items())
    assert plan_ratio(tmp_path / "plan" / "runs", law="cmr", resamples=10)["share"] == plan["share"]


@pytest.mark.slow
def test_a_budget_plan_makes_its_own_runs(tmp_path, tiny_bert):
    folder = tmp_path / "task"
    folder.mkdir()
    for split, count in (("train", 60), ("dev", 8), ("test", 20)):
        rows = [{"text": f"good soup {line}" if line % 2 else f"cold data {line}", "label": str(line % 2)}
                for line in range(count)]  # fmt: skip
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = plan_budget(
        **{"run": True, "model": str(tiny_bert), "corpus": _write_text(tmp_path / "cs.txt", 0), "task": str(folder)},
        **{"labels": (8, 16, 32, 48), "tokens": 5_000, "price": 1, "cost": 10, "budget": 40, "out": tmp_path / "plan"},
        **{"settings": {**SMALL, "finetune.epochs": 1, "finetune.max_length": 16}, **FEW},
    )
    assert plan["points"] == {"annotate": 12, "adapt": 12} and plan["budgets"][0]["labels"] == {
        "annotate": 40,
        "adapt": 30,
    }


@pytest.mark.slow
def test_intervals_cover_planted_values_in_about_nine_of_ten_simulations():
    sizes = np.repeat([50, 100, 200, 400, 800], 3) / 200
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        measured = learning_curve(sizes * 200, False) + rng.normal(0, 0.004, len(sizes))
        fit = fit_law(PowerLaw(-3, -0.02), {"x": sizes}, measured, seed=seed, resamples=100)
        low, high = interval(np.array([draw.predict({"x": np.array([16.0])})[0] for draw in fit.draws]))
        covered += low <= learning_curve(3200, False) <= high
    assert 85 <= covered <= 100


SIMULATED = {"resamples": 60, "progress": False}


@pytest.mark.slow
@pytest.mark.parametrize(("law", "noise"), [(forgetting, 0.01), (forgetting, 0.015), (dcpt, 0.01)])
def test_shares_that_are_given_are_mostly_right(law, noise):
    """The choice of the law is in the interval, or the answer is refused."""
    grid = np.linspace(0.1, 1, 901)
    above = np.flatnonzero(law(grid, TARGET)[1] > 2.42)
    truth, covered, answered = grid[above[0] - 1] if len(above) else 1.0, 0, 0
    for seed in range(12):
        plan = plan_ratio(points(law, seed, noise), seed=seed, **SIMULATED)
        answered += not plan["refused"]
        covered += not plan["refused"] and plan["share"]["low"] - 0.01 <= truth <= plan["share"]["high"] + 0.01
    assert answered - covered <= 3


@pytest.mark.slow
def test_schedules_of_the_same_loss_seldom_differ():
    truth = dynamics(list(Schedule.parse(EQUAL[0]).rates()), [200])[0]
    wrong, covered = 0, 0
    for seed in range(20):
        plan = plan_schedule(with_deviations(seed), schedule=EQUAL, decay=DECAY, seed=seed, **SIMULATED)
        wrong += not plan["refused"] and plan["difference"]["low"] > 0
        covered += sum(made["low"] <= truth <= made["high"] for made in plan["schedules"])
    assert wrong <= 3 and covered >= 34


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.0, 0.03])
def test_the_variance_of_adaptations_is_in_the_decision(gain):
    wrong, covered = 0, 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        deviation = rng.normal(0, 0.015, 3)
        rows = [
            {"labels": labels, "adapted": adapted, "adaptation": number,
             "score": learning_curve(labels, False) + adapted * (gain + deviation[number]) + 0.01 * rng.normal()}
            for labels in (50, 100, 200, 400, 800) for number in range(3) for adapted in (0, 1)
        ]  # fmt: skip
        (made,) = plan_budget(rows, price=1, cost=0, budget=400, seed=seed, **SIMULATED)["budgets"]
        wrong += made["decision"] == ("annotate" if gain else "adapt")
        covered += made["difference"]["low"] <= gain <= made["difference"]["high"]
    assert wrong <= 3 and covered >= 35
