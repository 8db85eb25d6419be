"""``acclimate periods``: text and tasks over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import over_time, print_next
from acclimate.cli.options import command
from acclimate.labs.periods.options import (
    PeriodOptions,
    PeriodsGapOptions,
    PeriodsQuestionsOptions,
    PeriodsSelfTrainOptions,
    PeriodsSplitOptions,
    PeriodsSurprisalOptions,
)


@command(
    over_time,
    PeriodsSplitOptions,
    name="split",
    example="acclimate periods split --corpus posts.jsonl --by year --out years/",
)
def split(options: PeriodsSplitOptions) -> None:
    """Write rows with dates as one file per period."""
    from acclimate.labs.periods.split import split_periods as run

    report = _print(run(**values(options)))
    last = report["periods"][-1]["file"]
    print_next(
        ["acclimate", "adapt", "--model", "MODEL", "--corpus", last, "--out", "adapted"], "to the latest period"
    )


@command(
    over_time,
    PeriodsGapOptions,
    name="gap",
    without=("seed",),
    example="acclimate periods gap --model roberta-base --task dated.csv --by year --out gap/",
)
def gap(options: PeriodsGapOptions) -> None:
    """Fine-tune on each period and score on all of them: how much worse models get with their age.

    All models learn from the same number of rows and are tested on the same rows; differences have intervals over rows
    and seeds.
    """
    from acclimate.labs.periods.gap import temporal_gap as run

    _print(run(**values(options)))
    _print_place(options.out)
    usual = values(PeriodOptions())
    dates = {name: getattr(options, name) for name in usual if getattr(options, name) != usual[name]}
    changed = [part for name, value in dates.items() for part in (f"--{name.replace('_', '-')}", value)]
    words = ["--model", options.model, "--task", options.task, *changed, "--out", "updated"]
    print_next(["acclimate", "periods", "self-train", *words], "to keep a model current without new labels")


@command(
    over_time,
    PeriodsSelfTrainOptions,
    name="self-train",
    without=("seed",),
    example="acclimate periods self-train --model roberta-base --task dated.csv --by year --out updated/",
)
def self_train(options: PeriodsSelfTrainOptions) -> None:
    """Carry the labels of the first period to later ones by labels that the model predicts, and test on all.

    True labels of later periods only test. Each difference compares with the model of the first period.
    """
    from acclimate.labs.periods.self_training import temporal_self_training as run

    _print(run(**values(options)))
    _print_place(options.out)
    if models := sorted((Path(options.out) / "models" / "seed-0").glob("*/")):
        print_next(["acclimate", "push", models[-1], "USER/NAME"], "to share the latest model")


@command(
    over_time,
    PeriodsSurprisalOptions,
    name="surprisal",
    plugins=True,
    example="acclimate periods surprisal --model roberta-base --corpus posts.jsonl --by year --out surprisal/",
)
def surprisal(options: PeriodsSurprisalOptions) -> None:
    """Adapt a model to the text of each period, and measure held-out text of all periods under each of them.

    The losses show how language changes, and the model that is surprised least is a guess of the date of a text.
    """
    from acclimate.labs.periods.surprisal import temporal_surprisal as run

    report = _print(run(**values(options)))
    _print_place(options.out)
    echo(f"Losses of each text: {Path(options.out) / 'texts.jsonl'}")
    if report["base"] is not None:
        latest = Path(options.out) / "models" / report["matrix"][-1]["model"]
        print_next(["acclimate", "finetune", "--model", latest, "--task", "TASK", "--out", "finetuned"])


@command(
    over_time,
    PeriodsQuestionsOptions,
    name="questions",
    example="acclimate periods questions --model gpt2 --model adapted/ --questions news.jsonl --by 2023-06",
)
def questions(options: PeriodsQuestionsOptions) -> None:
    """Answer dated multiple-choice questions with decoders as they are: what they know of each period.

    The first model, such as the base model, is what the others are compared with, question by question.
    """
    from acclimate.labs.periods.questions import temporal_questions as run

    _print(run(**values(options)))
    _print_place(options.out)


def _print_place(out: Any) -> None:
    if out is not None:
        echo(f"Report: {Path(out) / 'report.html'}; numbers: {Path(out) / 'periods.json'}")


def _print(report: Any) -> Any:
    for line in report.describe():
        echo(line)
    return report
