"""Next steps after a study, depending on its results, with their commands."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.adaptation.options import BUDGETS
from acclimate.base.options import defaults, option_words
from acclimate.data.reading import EDITS, ReadingOptions, TextOptions, reading_names
from acclimate.results.cells import joined
from acclimate.results.scores import HELPED, HURT, NO_DIFFERENCE, NOT_LEARNED, WITHHELD, Comparison, ScoreRow
from acclimate.results.study import StudyResults
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.recipe import default_epochs

REPEAT = "Repeat the training, so that its variance is known and there can be a verdict:"
LEARNING_RATE = 1e-4
"""Learning rate of most methods, where the study does not set one."""


@dataclass
class Step:
    """Something to do next.

    Attributes:
        text: The step and its reason.
        commands: Shell commands for it.
        page: Name of the page of the documentation that says more, or empty.
    """

    text: str
    commands: tuple[str, ...] = ()
    page: str = ""


def next_steps(results: StudyResults, folder: Path | None = None) -> list[Step]:
    """Return what to do next, most urgent first.

    Args:
        results: Results of a study.
        folder: Folder of the study, for the commands; by default ``runs/NAME``.
    """
    results = StudyResults.from_dict(results)
    if results.evaluations:  # nothing was trained
        return []
    return list(_steps(results, _Study(results, folder or results.folder or Path("runs") / results.name)))


def learning_words(results: StudyResults, folder: Path) -> list[str]:
    """Return the command, after ``acclimate``, that trains models which have not learned longer; none if all have."""
    rows = _unlearned(results)
    return shlex.split(_learn(_Study(results, folder), rows).commands[0])[1:] if rows else []


def _unlearned(results: StudyResults) -> list[ScoreRow]:
    """Return the scores of models that have not learned their task."""
    found = ((row, row.comparison) for row in results.scores)
    return [row for row, entry in found if row.collapsed or (entry and entry.verdict == NOT_LEARNED)]


def predict_words(results: StudyResults, folder: Path) -> list[str]:
    """Return the command, after ``acclimate``, that uses the first of the kept models that are best.

    Args:
        results: Results of a study.
        folder: Folder of the study.

    Returns:
        The words; none if the study keeps no models.
    """
    return next((words for words, _ in _predictions(_Study(results, folder))), [])


def _predictions(study: _Study) -> Iterator[tuple[list[str], list[str]]]:
    """Yield for each task the command that uses its best model, and the one that compares it with the baseline."""
    kept = study.results.rows.get("kept", [])
    for row in (row for row in kept if row["best"]):
        places = [[one[name] for name in ("model", "domain", "task")] for one in (row, *kept)]
        pair = [one for one, place in zip(kept, places[1:], strict=True) if place == places[0]]  # the baseline first
        words = [["--model", str(study.folder / one["folder"])] for one in (row, *pair)]
        data = ["--data", "DATA", "--out"]
        both = ["predict", *itertools.chain(*words[1:]), *data, "compared.csv"] if len(pair) > 1 else []
        yield ["predict", *words[0], *data, "predictions.csv"], both


def _text(flag: str, sources: Sequence[Any]) -> list[str]:
    """Return a flag with each source of a study, and their encoding, as words of a command."""
    words, encoding = list[str](), list[str]()
    for source in sources or [flag.removeprefix("--").upper()]:
        given = source if isinstance(source, Mapping) else {"path": source}
        words += [flag, f"{given['path']}:{given['text_column']}" if given.get("text_column") else str(given["path"])]
        encoding = ["--encoding", str(given["encoding"])] if given.get("encoding") else encoding
    return words + encoding


@dataclass
class _Study:
    """A study and its folder, to write commands with."""

    results: StudyResults
    folder: Path

    def again(self, *changes: str) -> str:
        """Return the command that runs the study with changes; it reuses the jobs that do not change."""
        plugins = [word for file in sorted(self.folder.glob("plugins/*.py")) for word in ("--plugin", str(file))]
        words = ["acclimate", "compare", str(self.folder / "study.yaml"), *plugins, "--out", str(self.folder)]
        words += ["--keep", "best"] * bool(self.results.config.get("keep"))
        new = {change.partition("=")[0] for change in changes}
        given = {name: value for name, value in (self.results.settings or {}).items() if name not in {"keep", *new}}
        before = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in given.items()]
        return shlex.join([*words, *(word for change in (*before, *changes) for word in ("--set", change))])

    def setting(self, section: str, name: str, default: Any) -> Any:
        """Return a setting of the study, or the default of the software."""
        value = (self.results.config.get(section) or {}).get(name)
        return default if value is None else value

    def corpus(self, domain: str) -> list[str]:
        """Return the sources of the text of a domain, as words of a command."""
        found = [source for entry in self._domains(domain) for source in entry.get("corpus") or []]
        given = self.results.config.get("adapt") or {}
        read = {name: given.get(name) for name in ("text_column", *EDITS)}
        return [*_text("--corpus", found), *option_words(TextOptions, read)]

    def general(self) -> list[str]:
        """Return the sources of general text, as words of a command."""
        return _text("--general", self.results.config.get("general") or [])

    def task(self, row: ScoreRow) -> list[str]:
        """Return the task of a score and how it is read, as words of a command."""
        task = self._task(row)
        return ["--task", str(task.get("path", "TASK")), *option_words(ReadingOptions, task)]

    def recipe(self, row: ScoreRow) -> list[str]:
        """Return the settings of fine-tuning behind a score, with what a search found, as words of a command."""
        found = [one for one in self.results.searches if one.task == row.task and row.method in one.methods]
        chosen = [one.chosen or {} for one in found if (one.model, one.domain) == (row.model, row.domain)]
        settings = {**(self.results.config.get("finetune") or {}), **self._task(row)}
        settings = {name: value for one in (settings, *chosen) for name, value in one.items()}
        changed = row.kind == "retrieval" or settings.keys() & {"epochs", "few_shot", "limit_train"}
        if not changed:  # by default the number of rows decides, and now there are more
            batch = settings.get("batch_size") or defaults(FinetuneOptions)["batch_size"]
            settings["epochs"] = default_epochs(row.train_size or 1, batch)
        unused = {*reading_names(), "model", "task", "select", "few_shot", "metric"}
        return option_words(FinetuneOptions, {name: settings[name] for name in settings.keys() - unused})

    def _task(self, row: ScoreRow) -> dict[str, Any]:
        for task in (task for entry in self._domains(row.domain) for task in entry.get("tasks") or []):
            if row.task in (task.get("name"), Path(task["path"]).name, Path(task["path"]).stem):
                return dict(task)
        return {}

    def _domains(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in self.results.config.get("domains") or [] if entry.get("name") == name]

    def model(self, row: ScoreRow) -> str:
        """Return the folder of the adapted model behind a score; empty if the study has none."""
        for run in self.results.adaptations:
            mine = (run.model, run.domain or row.domain, run.method) == (row.model, row.domain, row.method)
            if mine and run.task in (None, row.task) and run.folder:
                return str(self.folder / run.folder)
        return ""


def _steps(results: StudyResults, study: _Study) -> Iterator[Step]:
    if results.failures:
        yield Step("Some jobs have no result. The same command computes only these:", (study.again(),))
    compared = [(row, entry) for row in results.scores if (entry := row.comparison)]
    by_verdict: dict[str, list[tuple[ScoreRow, Comparison]]] = {}
    for row, entry in compared:
        by_verdict.setdefault(entry.verdict, []).append((row, entry))
    if unlearned := _unlearned(results):
        yield _learn(study, unlearned)
    if WITHHELD in by_verdict:
        seeds = max((len(row.seeds) for row, _ in by_verdict[WITHHELD]), default=1)
        change = "adapt_seeds=3" if seeds > 1 else "seeds=3"
        yield Step(REPEAT, (study.again(change),))
    for use, compare in _predictions(study):
        commands = [shlex.join(["acclimate", *words]) for words in (use, compare) if words]
        yield Step(
            "Use the fine-tuned model that was kept; with the baseline's, list the rows that change:", (*commands,)
        )
    if wins := by_verdict.get(HELPED):
        yield _use(study, max(wins, key=lambda pair: pair[1].difference)[0])
        yield from _forgetting(results, study, {row.method for row, _ in wins})
    elif ties := [pair for pair in by_verdict.get(NO_DIFFERENCE, ()) if pair[0] not in unlearned]:
        yield from _more_evidence(study, ties)
    if by_verdict.get(HURT) and not by_verdict.get(HELPED):
        rate = study.setting("adapt", "learning_rate", LEARNING_RATE)
        methods = joined(list(dict.fromkeys(row.method for row, _ in by_verdict[HURT])))
        yield Step(
            f"Keep the base model rather than the one adapted with {methods}, or adapt more gently:",
            (study.again(f"adapt.learning_rate={rate / 4:g}"),),
        )
    if not compared and results.losses:
        yield from _losses_only(results, study)


def _learn(study: _Study, rows: Sequence[ScoreRow]) -> Step:
    """Train enough: at least the default steps, or more than before, at a learning rate that a search chooses."""
    batch = study.setting("finetune", "batch_size", defaults(FinetuneOptions)["batch_size"])
    usual = default_epochs(min((row.train_size or 1 for row in rows), default=1), batch)
    given = study.setting("finetune", "epochs", None)
    epochs = 2 * usual if given is None else max(4 * given, usual)
    changes = [f"finetune.epochs={epochs}"]
    if not study.results.config.get("search"):
        changes += ["search=true"]
        if study.setting("finetune", "learning_rate", None) is not None:
            changes += ["finetune.learning_rate=null"]
    return Step(
        "Fine-tuning has to work before adaptation can be compared. Train longer, at a learning rate that a search on "
        "dev chooses:",
        (study.again(*changes),),
        "study",
    )


def _use(study: _Study, row: ScoreRow) -> Step:
    model = study.model(row)
    text = f"Use the model adapted with {row.method}: fine-tune it on all your labels, as in this study, or share it."
    if not model:
        return Step(text)
    tune = ["acclimate", "finetune", "--model", model, *study.task(row), "--all-labels", *study.recipe(row)]
    tune += ["--out", str(study.folder / "tuned")]
    return Step(text, (shlex.join(tune), shlex.join(["acclimate", "push", model, "USER/NAME"])))


def _forgetting(results: StudyResults, study: _Study, methods: set[str]) -> Iterator[Step]:
    """Say how to forget less, if a method that helped has a higher loss on general text."""
    lost = [
        row.method
        for row in results.losses
        if row.text == "general" and row.method in methods and row.difference
        if row.difference.verdict == HURT
    ]
    if lost:
        yield Step(
            f"{joined(list(dict.fromkeys(lost)))} forgot some general text. If the model needs it, mix general text "
            "into the adaptation, but not the text that forgetting is measured on:",
            (study.again("adapt.replay={TEXT: 0.2}"),),
        )


def _more_evidence(study: _Study, ties: list[tuple[ScoreRow, Comparison]]) -> Iterator[Step]:
    """Narrow the interval, or stop."""
    row, entry = max(ties, key=lambda pair: pair[1].high - pair[1].low)
    width = 50 * (entry.high - entry.low)
    unseen = (
        f"An effect of less than about {width:.1f} percentage points cannot be seen here."
        if width >= 0.05
        else "The scores are equal on these test items and seeds, which does not prove that nothing changed."
    )
    yield Step(
        f"{unseen} If an effect would matter, run more seeds or use more test items; if not, keep the base model:",
        (study.again(f"seeds={max(5, 2 * len(row.seeds))}"),),
    )
    advise = ["acclimate", "advise", "--model", _model_path(study, row.model)]
    advise += [*study.corpus(row.domain), *study.general()]
    yield Step("Find out how far the text is from what the model knows:", (shlex.join(advise),))


def _losses_only(results: StudyResults, study: _Study) -> Iterator[Step]:
    """Ask for an end task if the loss fell, and for more training if it did not."""
    domain = [row for row in results.losses if row.text == "domain" and row.difference]
    verdicts = {row.difference.verdict for row in domain if row.difference}
    if verdicts == {WITHHELD}:
        yield Step(REPEAT, (study.again("adapt_seeds=3"),))
    elif HELPED in verdicts:
        model = _model_path(study, domain[0].model)
        corpus = study.corpus(domain[0].domain)
        words = ["acclimate", "compare", "--model", model, *corpus, "--task", "TASK"]
        out = str(study.folder.with_name(f"{study.folder.name}-task"))
        yield Step(
            "The model predicts text of the domain better. Only a task with labels shows whether that helps in use:",
            (shlex.join([*words, "--out", out]),),
            "study",
        )
    elif domain:
        budget = next((name for name in BUDGETS if study.setting("adapt", name, None)), "epochs")
        more = f"adapt.{budget}={3 * study.setting('adapt', budget, 1):g}"
        yield Step(
            "The loss on the domain did not fall. Train longer, or with another learning rate:", (study.again(more),)
        )


def _model_path(study: _Study, name: str) -> str:
    for model in study.results.config.get("models") or []:
        if isinstance(model, dict) and name in (model.get("name"), model.get("path")):
            return str(model.get("path", name))
    return name
