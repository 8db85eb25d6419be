"""Comparisons of finished evaluations: pairing, refusals, verdicts, requirements, and what is written."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
from typer.testing import CliRunner

import acclimate
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.labs.judge import judging
from acclimate.labs.judge.logs import Run, Scores
from acclimate.report import markdown, render, summarize
from acclimate.results.requirements import MET, NOT_MET, UNDECIDED
from acclimate.results.scores import BETTER, NO_DIFFERENCE, TOO_FEW_GROUPS, WORSE
from acclimate.results.study import StudyResults
from tests.cases import each

WORDS = ("fine-tun", "adapted", "adaptation", "trainings", "seeds of", "study", "helped", "hurt", "baseline")
"""Words that are not true of evaluations of any two models."""


def scores(values, groups=None, names=None, **more):
    names = names or [f"item {number}" for number in range(len(values))]
    named = {} if groups is None else {"groups": [f"g{one}" for one in groups], "group_name": "passage"}
    return Scores(names, np.asarray(values, dtype=float), **named, **more)


def run(place, values, seed=None, task="mmlu", metric="acc", groups=None, **settings):
    own = values if isinstance(values, Scores) else scores(values, groups)
    return Run(place, seed, {(task, metric): own}, {}, {task: settings} if settings else {}, "")


@pytest.fixture
def judge(monkeypatch):
    """Compare lists of runs, the first with the others."""

    def call(*sides, **options):
        places = {f"side-{number}": runs for number, runs in enumerate(sides)}
        monkeypatch.setattr(judging, "read_runs", places.__getitem__)
        return acclimate.judge(list(places), **options)

    return call


def binary(rate, items=400, seed=0):
    return (np.random.default_rng(seed).random(items) < rate).astype(float)


def entry(results, task="mmlu"):
    return next(row.comparison for row in results.scores if row.task == task and row.comparison)


def test_the_verdict_is_about_the_second_side_minus_the_first(judge):
    one, other = [run("a", binary(0.5))], [run("b", binary(0.8, seed=1))]
    better, worse = entry(judge(one, other)), entry(judge(other, one))
    assert (better.verdict, worse.verdict) == (BETTER, WORSE)
    assert better.difference == pytest.approx(-worse.difference) and better.difference > 0
    assert better.p == better.p_holm < 0.001


def test_items_are_joined_by_name_in_any_order(judge):
    values, other = binary(0.5), binary(0.6, seed=1)
    groups = np.arange(400) // 5
    plain = judge([run("a", values, groups=groups)], [run("b", other, groups=groups)])
    order = random.Random(0).sample(range(400), 400)
    mixed = scores(other[order], groups[order], [f"item {number}" for number in order])
    shuffled = judge([run("a", values, groups=groups)], [run("b", mixed)])
    assert vars(entry(plain)) == pytest.approx(vars(entry(shuffled)))
    assert plain.scores[0].test_units == 80 and plain.scores[0].group_name == "passage"


def test_missing_items_are_refused_by_number(judge):
    full, short = scores(binary(0.5, 100)), scores(binary(0.5, 88))
    lacks = r"'b' lacks 12 of the 100 items of task 'mmlu' in 'a', such as 'item 88', 'item 89' and 'item 90'"
    with pytest.raises(UserError, match=lacks):
        judge([run("a", full)], [run("b", short)])
    with pytest.raises(UserError, match="'a' lacks 12 of the 100"):
        judge([run("a", short)], [run("b", full)])
    with pytest.raises(UserError, match="'a2' lacks 12"):
        judge([run("a", full), run("a2", short)], [run("b", full)])


def test_other_settings_are_refused_with_what_differs(judge):
    with pytest.raises(
        UserError, match=r"'b' and 'a' evaluate task 'mmlu' .*: few shot 5 and 0 and the prompts differ. Evaluate"
    ):
        judge(
            [run("a", binary(0.5), few_shot=0, limit=None, prompts="3a")],
            [run("b", binary(0.5), few_shot=5, split="test", prompts="4b")],
        )


@each(
    ("changes", "message"),
    [
        ({"groups": ["x"] * 20 + ["y"] * 20}, "different groups"),
        ({"is_error": True}, "in different ways"),
        ({"weights": np.arange(1.0, 41.0)}, "in different ways"),
    ],
)
def test_scores_that_mean_different_things_are_refused(judge, changes, message):
    names, values = [f"i{number}" for number in range(40)], binary(0.5, 40)
    ours = Scores(names, values, [f"{number % 9}" for number in range(40)])
    with pytest.raises(UserError, match=message):
        judge([run("a", ours)], [run("b", Scores(names, values, **changes))])


def test_tasks_and_rows_that_are_not_compared_are_named(judge):
    first, second = run("a", binary(0.5)), run("b", binary(0.6))
    first.scores["piqa", "acc"] = scores(binary(0.5))
    second.scores["arc", "acc"] = scores(binary(0.5))
    second.left_out["without a score"] = 3
    notes = " ".join(judge([first], [second]).notes)
    assert "Not compared, since not in 'side-1': piqa of 'side-0'." in notes
    assert "since not in 'side-0': arc of 'side-1'" in notes and "'b': 3 items without a score left out." in notes
    with pytest.raises(UserError, match="No task is in all runs of 'side-0' and of another side: 'side-0' has mmlu"):
        judge([run("a", binary(0.5))], [run("b", binary(0.5), task="other")])


def test_seeds_on_both_sides_are_paired_in_any_order_and_others_are_independent(judge):
    rng, shared = np.random.default_rng(0), {}
    sides = []
    for gain in (0.0, 0.05):
        own = []
        for seed in "012":
            chance = shared.setdefault(seed, rng.normal(0, 0.3))
            own.append(run(seed, np.clip(rng.normal(0.4 + chance + gain, 0.05, 300), 0, 1), seed))
        sides.append(own)
    paired = entry(judge(sides[0], sides[1][::-1]))
    alone = entry(judge(sides[0], [run(one.place, one.scores["mmlu", "acc"]) for one in sides[1]]))
    assert paired.verdict == BETTER and alone.verdict == NO_DIFFERENCE
    assert paired.difference == pytest.approx(alone.difference)


@each(
    ("sizes", "seeds", "about"),
    [
        ((1, 1), None, "is about these two models and other items"),
        ((3, 3), "abc", "other items and other seeds: the 3 runs of both sides are paired by seed"),
        ((3, 3), None, "other runs of both sides (3 of side-1 and 3 of side-0, which are independent)"),
        ((1, 4), None, "other runs of side-1 (4 here); side-0 is this one model"),
    ],
)
def test_the_output_says_what_the_interval_is_about(judge, sizes, seeds, about):
    sides = [
        [run(f"{side}{number}", binary(0.5, 60, number), seeds and seeds[number]) for number in range(size)]
        for side, size in enumerate(sizes)
    ]
    assert about in judge(*sides).evaluations.caveats[0]


def test_holm_counts_the_first_metric_of_each_task_and_candidate(judge):
    reference, others = (
        run("a", binary(0.5, 100)),
        [run(name, binary(0.62, 100, seed)) for seed, name in enumerate("bc", 1)],
    )
    for one in (reference, *others):
        one.scores["mmlu", "acc_norm"] = one.scores["mmlu", "acc"]
    results = judge([reference], *([one] for one in others))
    found = [row.difference.metrics for row in results.scores if row.difference]
    assert [own["acc_norm"].p_holm for own in found] == [None, None]
    least = min(own["acc"].p for own in found)
    assert min(own["acc"].p_holm for own in found) == pytest.approx(2 * least)
    assert [row.method for row in results.scores] == ["side-0", "side-1", "side-2"]


def test_metrics_can_be_chosen_and_their_order_decides(judge):
    sides = [run(name, binary(0.5, 60, seed)) for seed, name in enumerate("ab")]
    for one in sides:
        one.scores["mmlu", "acc_norm"] = scores(binary(0.5, 60))
    results = judge([sides[0]], [sides[1]], metrics=["acc_norm", "acc"])
    assert results.scores[0].metric == "acc_norm" and results.scores[0].metrics == ["acc_norm", "acc"]
    assert judge([sides[0]], [sides[1]], metrics="acc").scores[0].metrics == ["acc"]
    with pytest.raises(UserError, match="No task in f1 is in"):
        judge([sides[0]], [sides[1]], metrics="f1")


def test_losses_have_their_own_unit_and_lower_is_better(judge):
    rng = np.random.default_rng(0)
    losses = rng.gamma(3, 1, 200)
    sides = [[run("ab"[n], scores(losses - 0.1 * n + rng.normal(0, 0.05, 200), is_error=True))] for n in (0, 1)]
    results = judge(*sides, require=["mmlu < 0", "mmlu:acc < -5"])
    assert not results.scores and results.tables[0].title == judging.OWN_UNIT
    assert results.tables[0].rows[0][3] == BETTER
    assert summarize(results).verdict.startswith("On mmlu (acc), side-1: better, −0.1")
    assert [one.state for one in results.decision.requirements] == [MET, NOT_MET]
    assert "better" in markdown(results)
    with pytest.raises(UserError, match="Lower values"):
        judge(*sides, require="mmlu > 0")


def test_the_direction_of_a_metric_is_said_and_can_be_given(judge):
    values = np.random.default_rng(0).gamma(3, 1, 60)
    sides = [[run("a", values, metric="pain")], [run("b", 1.5 * values + 1, metric="pain")]]
    results = judge(*sides)
    assert results.tables[0].rows[0][3] == BETTER and "Higher is better of pain; if not, name it" in results.notes[0]
    results = judge(*sides, lower="pain")
    assert results.tables[0].rows[0][3] == WORSE and results.notes == ["Lower is better of pain."]
    with pytest.raises(UserError, match="Unknown metric 'pian'"):
        judge(*sides, lower="pian")


def test_one_scale_and_one_unit_hold_for_all_sides(judge):
    zeros_and_ones = binary(0.5, 60)
    with pytest.raises(
        UserError, match="'a' has scores between 0 and 1 in 'acc' of task 'mmlu', and 'b' scores up to 100"
    ):
        judge([run("a", zeros_and_ones)], [run("b", 100 * zeros_and_ones)])
    more = binary(0.9, 60, seed=1)
    sides = [[run("a", zeros_and_ones)], [run("b", more)], [run("c", np.where(np.arange(60) == 3, 1.2, more))]]
    results = judge(*sides, require="mmlu > 0.1")
    assert not results.scores and [row[3] for row in results.tables[0].rows] == [BETTER, BETTER]
    assert len({one.scale for one in results.decision.requirements[0].results}) == 1


def test_copies_of_a_run_are_one_run(judge):
    sides = [[run(f"{side}{n}", binary(0.5, 60, side)) for n in range(3)] for side in (0, 1)]
    results = judge(*sides)
    assert "is about these two models" in results.evaluations.caveats[0]
    assert results.notes[0].startswith("The 3 runs of 'side-0' have the same scores, as copies of one evaluation have")
    sides[0][2] = run("other", binary(0.5, 60, 7))
    assert "other runs of side-0 (3 here)" in judge(*sides).evaluations.caveats[0]


def test_few_groups_have_no_verdict_and_leave_requirements_undecided(judge):
    values, other = np.zeros(40), np.ones(40)
    groups = np.arange(40) // 5  # eight
    results = judge([run("a", values, groups=groups)], [run("b", other, groups=groups)], require="mmlu > 0")
    assert entry(results).verdict == TOO_FEW_GROUPS and entry(results).p is None
    assert results.decision.state == UNDECIDED and results.decision.exit_code == 3
    assert "too few groups: 8 passages (40 items)" in results.decision.describe()[0]
    assert "mmlu has 8 passages (40 items); a verdict needs at least 10" in " ".join(results.evaluations.caveats)
    rough = judge([run("a", values[:20])], [run("b", other[:20])])
    assert entry(rough).verdict == BETTER and "rough: mmlu has 20 items" in " ".join(rough.evaluations.caveats)


@each(
    ("requirement", "state"),
    [("mmlu > 0", MET), ("mmlu >= 25", UNDECIDED), ("mmlu > 60", NOT_MET), ("mmlu:acc > 0", MET)],
)
def test_requirements_are_decided_in_points(judge, requirement, state):
    sides = [[run("a", binary(0.5))], [run("b", binary(0.75, seed=1))]]
    assert judge(*sides, require=requirement).decision.state == state


def test_equal_answers_leave_room_for_what_the_items_could_not_show(judge):
    same = entry(judge([run("a", binary(0.5, 100))], [run("b", binary(0.5, 100))]))
    assert same.difference == 0 and same.low == -same.high < 0
    graded = entry(judge([run("a", np.full(100, 0.5))], [run("b", np.full(100, 0.5))]))
    assert graded.low == pytest.approx(-(1 - 0.025**0.01))


def test_differences_that_do_not_vary_have_a_bound_or_no_interval(judge):
    values = np.random.default_rng(0).random(60) / 2
    bounded = judge([run("a", values)], [run("b", values + 0.25)], require="mmlu > 10", power=1)
    assert entry(bounded).verdict == BETTER and entry(bounded).low < 0.25 < entry(bounded).high < 0.4
    assert bounded.decision.state == MET and bounded.tables[0].rows[0][2] == "unknown: no variation"
    for scale in (1, 1e6):
        sides = [[run("ab"[n], scores(scale * (5 * values + n / 3), is_error=True))] for n in (0, 1)]
        results = judge(*sides, require="mmlu < 1")
        assert results.decision.describe()[0].endswith("no variation, so no interval)")
        row = results.tables[0].rows[0]
        assert row[2].endswith(" (no interval)") and row[3] == "no verdict" and row[7:] == [None] * 4
        assert "all items of side-1 on mmlu (acc) differ by the same amount" in markdown(results)


def test_a_file_cannot_be_the_folder_of_a_report(judge, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file; give a folder"):
        judge([run("a", binary(0.5))], [run("b", binary(0.6))], out=tmp_path / "file")


def test_the_power_table_says_what_is_needed(judge):
    sides = [[run(f"{n}{seed}", binary(0.5, 300, 10 * n + seed), str(seed)) for seed in range(3)] for n in (0, 1)]
    (table,) = judge(*sides, power=2).tables
    assert table.title == "Needed to see 2 percentage points" and table.columns[2] == "items needed"
    assert table.rows[0][4:] == ["300 items", 3]
    single = judge([sides[0][0]], [sides[1][0]], power=2).tables[0].rows[0]
    assert int(single[2].replace(",", "")) > 5_000 and single[3] == "unknown: one run"
    losses = [[run("ab"[n], binary(0.5, 60, n) * 3, metric="loss")] for n in (0, 1)]
    table = judge(*losses, power=0.5).tables[1]
    assert table.title == "Needed to see 0.5" and table.rows[0][0] == "mmlu (loss)" and table.rows[0][2] != "10"
    assert judge(*losses, power=300).tables[1].rows[0][2] == "10", "fewer have no verdict"
    unequal = [[run(f"{n}{seed}", binary(0.5, 60, 10 * n + seed)) for seed in range(2 + 3 * n)] for n in (0, 1)]
    assert judge(*unequal, power=2).tables[0].rows[0][5] == 2
    chance = [[run(f"{n}{seed}", np.full(50, 0.1 * seed * n), str(seed)) for seed in range(3)] for n in (0, 1)]
    assert judge(*chance, power=1).tables[0].rows[0][2] == "no number suffices"


def test_the_report_is_that_of_compare_in_words_that_are_true(judge, tmp_path):
    groups = np.arange(60) // 2
    sides = [[run(f"{n}{seed}", binary(0.4 + n / 3, 60, seed), groups=groups) for seed in range(2)] for n in (0, 1)]
    for one in itertools.chain(*sides):
        one.scores["wiki", "bits_per_byte"] = scores(
            np.random.default_rng(len(one.place)).gamma(3, 1, 60), is_error=True
        )
    results = judge(*sides, power=1, out=tmp_path / "out")
    files = {file.name: file.read_text(encoding="utf-8") for file in (tmp_path / "out").iterdir()}
    assert set(files) == {"report.html", "results.json", "results.md", "results.csv", "results.tex"}
    page = files["report.html"].partition("</style>")[2].partition("<script>")[0].lower()
    for text in (
        page,
        files["results.md"].lower(),
        files["results.tex"].lower(),
        "\n".join(results.describe()).lower(),
    ):
        assert not [word for word in (*WORDS, ">method<", "| method |", "& method &") if word in text]
    assert "30 passages" in files["report.html"] and "bits_per_byte" in files["report.html"]
    again = StudyResults.load(tmp_path / "out" / "results.json")
    assert render(again, tmp_path) == render(results, tmp_path)


def test_the_command_prints_the_table_and_exits_with_the_decision(monkeypatch, tmp_path):
    places = {"base": [run("a", binary(0.5))], "tuned": [run("b", binary(0.8, seed=1))]}
    monkeypatch.setattr(judging, "read_runs", places.__getitem__)
    out = str(tmp_path / "out")
    result = CliRunner().invoke(app, ["judge", "base", "B=tuned", "--require", "mmlu > 0", "--out", out])
    assert result.exit_code == 0, result.output
    assert "Scores in %" in result.stdout and "Requirement met: mmlu > 0" in result.stdout
    assert "these two models" in result.stdout and "report.html" in result.stdout
    assert CliRunner().invoke(app, ["judge", "base", "tuned", "--require", "mmlu > 50"]).exit_code == 1
    assert CliRunner().invoke(app, ["judge", "base", "tuned", "--require", "mmlu > 30"]).exit_code == 3
    printed = CliRunner().invoke(app, ["judge", "base", "tuned", "--json"])
    document = json.loads(printed.stdout.splitlines()[-1])
    assert document["result"]["evaluations"]["sides"][1]["name"] == "tuned"
    assert document["result"]["scores"][1]["difference"]["metrics"]["acc"]["verdict"] == BETTER
