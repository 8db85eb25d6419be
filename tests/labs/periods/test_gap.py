"""Scores over time: intervals and slopes against slow computations, and the whole command on a planted decay."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import acclimate
import acclimate.labs.periods.dated_tasks
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.evaluation.scoring import SingleLabel
from acclimate.evaluation.significance import paired_bootstrap
from acclimate.labs.periods.dates import Period
from acclimate.labs.periods.decay import Column, ScoreMatrix
from tests.cases import each
from tests.tiny import WORDS

YEARS = [Period(year, f"{year}") for year in (2010, 2011, 2013)]


def column(gold, predicted):
    return Column(
        len(gold), [[SingleLabel().resampler(gold, one, "accuracy")[1] for one in seeds] for seeds in predicted]
    )


def random_columns(seed=0):
    rng = np.random.default_rng(seed)
    gold = [rng.integers(2, size=items) for items in (30, 40, 50)]
    predicted = [
        [[np.where(rng.random(len(one)) < 0.6, one, 1 - one) for _ in range(3)] for _ in YEARS] for one in gold
    ]
    return gold, predicted


def test_a_group_in_several_periods_is_resampled_in_all_of_them():
    """The same authors in each period: what a model gets wrong by author does not average out over periods."""
    gold, authors = np.zeros(40, int), [f"author {number}" for number in range(40)]
    predicted = [[[np.arange(40) % 3 // 2], [np.arange(40) % 4 // 3], [np.zeros(40, int)]]] * 3
    columns = [column(gold, one) for one in predicted]
    apart, joined = (ScoreMatrix(YEARS, made) for made in (columns, [replace(one, names=authors) for one in columns]))
    weights = np.array([[1, 1, 1], [-1, -1, -1], [0, 0, 0]]) / 3
    assert joined.contrast(weights).error == pytest.approx(apart.contrast(weights).error * 3**0.5, rel=0.1)


def test_a_matrix_and_its_distances_are_those_of_single_comparisons():
    gold, predicted = random_columns()
    matrix = ScoreMatrix(YEARS, [column(*pair) for pair in zip(gold, predicted, strict=True)])
    for model in range(3):
        for place in range(3):
            hits = [np.mean(one == gold[place]) for one in predicted[place][model]]
            assert matrix.means[model, place] == pytest.approx(np.mean(hits))
    rows = {row["distance"]: row for row in matrix.by_distance()}
    assert sorted(rows) == [-3, -2, -1, 0, 1, 2, 3]
    assert rows[0]["pairs"] == 3 and rows[0]["difference"] is None
    assert rows[3]["score"] == pytest.approx(matrix.means[0, 2])  # the model of 2010 on 2013
    one = paired_bootstrap(gold[2], predicted[2][0], predicted[2][2], "accuracy")
    assert rows[3]["difference"] == pytest.approx(one.difference)
    assert (rows[3]["low"], rows[3]["high"]) == pytest.approx((one.low, one.high), abs=0.02)


@each("is_error", [False, True])
def test_the_loss_per_year_is_the_mean_slope_of_fitted_lines(is_error):
    gold, predicted = random_columns(1)
    matrix = ScoreMatrix(YEARS, [column(*pair) for pair in zip(gold, predicted, strict=True)], is_error=is_error)
    slopes = []
    for place, period in enumerate(YEARS):
        apart = np.array([own.index - period.index for own in YEARS], dtype=float)
        change = matrix.means[:, place] - matrix.means[place, place]
        slopes.append(np.polyfit(apart, -change * np.sign(apart), 1)[0])
    expected = np.mean(slopes) * (-1 if is_error else 1)
    found = matrix.loss_per_unit()
    assert found.difference == pytest.approx(expected)
    assert found.low < found.difference < found.high and found.is_error


def test_the_interval_covers_a_planted_loss():
    covered = 0
    for trial in range(40):
        rng = np.random.default_rng(trial)
        gold = [rng.integers(2, size=60) for _ in YEARS]
        columns = []
        for place, own in enumerate(gold):
            right = [0.9 - 0.1 * abs(model.index - YEARS[place].index) for model in YEARS]  # 0.1 per year
            columns.append(
                column(own, [[np.where(rng.random(60) < share, own, 1 - own) for _ in range(3)] for share in right])
            )
        found = ScoreMatrix(YEARS, columns, seed=trial).loss_per_unit()
        covered += found.low <= 0.1 <= found.high
    assert covered >= 34


def dated_rows(years=(2010, 2011, 2012), each_year=40):
    rng, words = random.Random(0), [word for word in WORDS if word.isalpha()]
    return [
        {
            "text": f"{' '.join(rng.choices(words, k=4))} {'good' if n % 2 else 'bad'} {year} {n}",
            "label": "yes" if n % 2 else "no",
            "year": year,
        }
        for year in years
        for n in range(each_year)
    ]


@pytest.fixture
def forgetful(monkeypatch):
    """Replace fine-tuning by a model that is right with a probability that falls by 0.2 per year of distance."""
    calls = []

    def finetune(model, task, *, seed, out=None, **options):
        own = {int(example.text.split()[-2]) for example in task.train}
        assert len(own) == 1
        calls.append((own.pop(), seed, len(task.train)))
        gold = [example.label for example in task.test]
        draw = random.Random(f"{calls[-1]}")
        apart = [abs(int(example.text.split()[-2]) - calls[-1][0]) for example in task.test]
        predicted = [
            label if draw.random() < 0.95 - 0.2 * years else 1 - label
            for label, years in zip(gold, apart, strict=True)
        ]
        return SimpleNamespace(gold=gold, predicted=predicted)

    monkeypatch.setattr(acclimate.labs.periods.dated_tasks, "finetune", finetune)
    return calls


def test_the_gap_is_found_and_a_finished_training_is_not_repeated(forgetful, tiny_bert, tmp_path):
    rows = [*dated_rows(each_year=200), {"text": "late", "label": "no", "year": "?"}, dated_rows()[0] | {"year": 2012}]
    table = tmp_path / "task.jsonl"
    options = {"metric": "accuracy", "progress": False, "out": tmp_path / "gap"}
    report = acclimate.periods_gap(tiny_bert, rows, **options)
    slope = report["loss_per_unit"]
    assert slope["low"] < 0.2 < slope["high"] and slope["low"] > 0.1
    assert {size["train"] for size in report["sizes"].values()} == {count for *_, count in forgetful}
    assert sorted((year, seed) for year, seed, _ in forgetful) == [
        (year, seed) for year in (2010, 2011, 2012) for seed in range(3)
    ]
    page = (tmp_path / "gap" / "report.html").read_text()
    assert "Scores by distance in time" in page and "temporal degradation" in page
    rows_by_distance = {row["distance"]: row for row in report["by_distance"]}
    assert rows_by_distance[2]["verdict"] == "hurt" and rows_by_distance[2]["high"] < 0
    said = repr(report)
    assert "1 whose date cannot be read (such as '?')" in said and "1 with the same text as one of an earlier" in said
    done = len(forgetful)
    assert acclimate.periods_gap(tiny_bert, rows, **options) == report and len(forgetful) == done
    acclimate.periods_gap(tiny_bert, rows, **options, train_size=20)
    assert len(forgetful) == 2 * done and not table.exists()


def test_no_text_is_in_train_and_test(forgetful, tiny_bert):
    rows = dated_rows(each_year=60)
    repeated = [row | {"text": row["text"].upper()} for row in rows[::3]]
    dated = acclimate.labs.periods.dated_tasks.read_dated_task(
        acclimate.base.options.build(acclimate.labs.periods.options.PeriodsGapOptions, tiny_bert, [*rows, *repeated])
    )
    trained = {example.text.casefold() for found in dated.train.values() for example in found}
    tested = {example.text.casefold() for found in dated.test.values() for example in found}
    assert trained and tested and not trained & tested
    assert [len(dated.train[period]) + len(dated.test[period]) for period in dated.periods] == [80] * 3


def test_no_group_is_learned_in_one_period_and_tested_in_another(tiny_bert):
    rows = [row | {"patient": f"p{number % 30}"} for number, row in enumerate(dated_rows(each_year=60))]
    options = acclimate.base.options.build(acclimate.labs.periods.options.PeriodsGapOptions, tiny_bert, rows)
    dated = acclimate.labs.periods.dated_tasks.read_dated_task(options)
    trained, tested = (
        {example.group for found in part.values() for example in found} for part in (dated.train, dated.test)
    )
    assert trained and tested and not trained & tested and dated.task.group_name == "patient"
    assert all(0 < len(dated.test[period]) < len(dated.train[period]) for period in dated.periods)


@pytest.mark.slow
def test_the_command_trains_a_model_and_says_what_to_do_next(tiny_bert, tmp_path):
    table = tmp_path / "task.csv"
    lines = [f"{row['text']},{row['label']},{row['year']}" for row in dated_rows((2010, 2011), 12)]
    table.write_text("\n".join(["text,label,year", *lines]))
    words = ["periods", "gap", "--model", tiny_bert, "--task", table, "--least", 8, "--seeds", 1, "--epochs", 1]
    words += ["--max-length", 16, "--precision", "fp32", "--out", tmp_path / "gap", "--quiet"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.exception
    assert "macro_f1 of the model of each period" in result.output and "temporal degradation" in result.output
    assert (tmp_path / "gap" / "periods.json").is_file()
    assert f"acclimate periods self-train --model {tiny_bert} --task {table}" in result.output.splitlines()[-1]


@each(
    ("rows", "options", "message"),
    [
        (dated_rows((2010,)), {"least": 5}, "2 periods of at least 5 rows are needed, but there is 1"),
        (dated_rows(), {}, "2 periods of at least 50 rows are needed, but there are 0"),
        (dated_rows(), {"least": 5, "train_size": 999}, "fewer than --train-size 999"),
        (dated_rows(), {"least": 5, "metric": "acuracy"}, "Did you mean 'accuracy'"),
        (dated_rows(), {"least": 5, "by": "yaer"}, "Did you mean 'year'"),
        ([{"text": "a", "label": "b"}], {}, "no column of dates"),
    ],
)
def test_a_gap_that_cannot_be_measured_is_one_line(rows, options, message, tiny_bert):
    with pytest.raises(UserError, match=message):
        acclimate.periods_gap(tiny_bert, rows, progress=False, **options)


def test_the_folder_of_something_else_is_kept(forgetful, tiny_bert, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        acclimate.periods_gap(tiny_bert, dated_rows(), least=5, out=tmp_path, progress=False)
    with pytest.raises(UserError, match="is a file; give a folder"):
        acclimate.periods_gap(tiny_bert, dated_rows(), least=5, out=tmp_path / "notes.txt", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
