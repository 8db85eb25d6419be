"""Plans: planted laws are recovered from noisy points, vague answers are refused, and what is read is checked."""

from __future__ import annotations

import csv
import itertools
import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, curve_fit
from typer.testing import CliRunner

from acclimate import plan_ratio
from acclimate.cli import app
from acclimate.errors import UserError
from acclimate.options import build
from acclimate.options.planning import RatioOptions
from acclimate.planning.laws import DomainLaw, MixtureLaw, PowerLaw, fit_law
from acclimate.planning.logs import loss_points, read_rows
from acclimate.planning.plans import read_plan
from acclimate.results import StudyResults
from acclimate.study import StudyConfig
from acclimate.study.pilots import ratio_study
from tests.cases import each
from tests.docs.blocks import ROOT

SHARES, TOKENS, NOISE = (0.1, 0.3, 0.5, 0.75, 1.0), (1e6, 4e6, 16e6, 64e6), 0.003
TARGET = 4 * TOKENS[-1]
FEW = {"resamples": 20, "progress": False}


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


@each(("law", "seed"), [(dcpt, 0), (dcpt, 1), (cmr, 0), (cmr, 1), (cmr, 2)])
def test_planted_laws_are_recovered_at_four_times_the_tokens(law, seed):
    rows = plan_ratio(points(law, seed), law=law.__name__, seed=seed, **FEW).to_pandas()
    for text, planted in zip(("domain", "general"), law(rows["domain share"].to_numpy(), TARGET), strict=True):
        error = np.abs(rows[f"{text} loss"].to_numpy() - planted)
        assert error.mean() <= 0.005 and error.max() <= 0.01, (text, error)


def test_the_law_that_predicts_the_largest_runs_better_is_chosen():
    for law in (dcpt, cmr):
        plan = plan_ratio(points(law), **FEW)
        assert plan["law"] == law.__name__
        other = ({"dcpt", "cmr"} - {plan["law"]}).pop()
        assert plan["checks"][plan["law"]]["rms"] < plan["checks"][other]["rms"]


def test_the_share_solves_the_planted_law():
    plan = plan_ratio(points(cmr, noise=0.001), law="cmr", tolerance=0.2, **FEW)
    solved = brentq(lambda share: cmr(share, TARGET)[1] - 2.57, 0.1, 1)
    share = plan["share"]
    assert share["low"] - 0.01 <= solved <= share["high"] + 0.01 and not plan["refused"]
    assert abs(share["value"] - solved) < 0.03
    assert share["value"] == pytest.approx(plan["critical"]["target"] or share["value"], abs=0.1)


def test_a_vague_answer_is_refused():
    plan = plan_ratio(points(dcpt, noise=0.05), tolerance=0.03, resamples=40)
    assert "more than half of the measured range" in plan["refused"]
    assert repr(plan).startswith("No share is recommended")


def test_limits_of_the_answer_are_named():
    low = plan_ratio(points(cmr), law="cmr", base_loss=1.0, **FEW)
    assert low["share"]["value"] is None and "the smallest share measured" in repr(low)
    high = plan_ratio(points(cmr), law="cmr", tolerance=5, target_tokens=10**10, **FEW)
    assert high["share"]["value"] == 1 and "No limit was found" in repr(high) and "unreliable" in repr(high)


def test_limited_domain_text_is_read_once():
    plan = plan_ratio(points(dcpt), law="dcpt", domain_tokens=40_000_000, tolerance=1, **FEW)
    grid = np.linspace(0.1, 1, 2001)
    best = grid[np.argmin(dcpt(grid, 4e7 / grid)[0])]
    assert plan["predicted"]["domain"]["value"] == pytest.approx(dcpt(best, 4e7 / best)[0], abs=0.005)
    assert plan["target_tokens"] == pytest.approx(4e7 / plan["share"]["value"], rel=1e-6)


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
    ("Choose one with --domain", [{**row, "domain": f"d{number % 2}"} for number, row in enumerate(GOOD)], {}),
    ("Did you mean 'biomed'", [{**row, "domain": "biomed"} for row in GOOD], {"domain": "biomd"}),
    ("--parameters", SIZES, {}),
    ("no term for the size", SIZES, {"law": "cmr", "parameters": 3}),
    ("at least 3 domains", GOOD, {"law": "cross-domain"}),
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


@settings(max_examples=6, deadline=None)
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
    call = ["plan", "ratio", "--log", str(file), "--law", "cmr", "--tolerance", "0.2", "--resamples", "20"]
    shown = CliRunner().invoke(app, [*call, "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "Domain share: " in shown.output and "--replay-share" in shown.output
    assert {"plan.json", "plan.png", "plan.svg"} == {path.name for path in out.iterdir()}
    again = CliRunner().invoke(app, [*call, "--json"])
    assert json.loads(again.output)["share"] == read_plan(out)["share"]


def test_the_study_of_a_plan(tmp_path):
    (tmp_path / "text.txt").write_text("good soup\n")
    text = str(tmp_path / "text.txt")
    options = build(RatioOptions, (), run=True, model="model", corpus=text, general=text, tokens=664_062, budgets=4,
                    settings={"adapt.batch_size": 64})  # fmt: skip
    study = ratio_study(options)
    adapted = [method["adapt"] for method in study["methods"][1:]]
    assert len(adapted) == 20 and sum(one["tokens"] for one in adapted) == pytest.approx(664_062, rel=0.001)
    assert sorted({one["replay_share"] for one in adapted}) == [0.0, 0.25, 0.5, 0.7, 0.9]
    tokens = sorted({one["tokens"] for one in adapted})
    assert [b / a for a, b in itertools.pairwise(tokens)] == pytest.approx([4] * 3, rel=0.01)
    assert study["adapt"]["batch_size"] == 64 and study["adapt_seeds"] == 1
    StudyConfig.of(study, "study of a plan")
