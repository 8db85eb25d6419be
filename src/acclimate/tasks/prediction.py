"""Predicting the rows of a table with fine-tuned models, and comparing the predictions of two models."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.adaptation.result import open_work_folder
from acclimate.base.device import choose_precision, default_device
from acclimate.base.errors import UserError, printable, warn_once
from acclimate.base.files import check_writable, write_text
from acclimate.base.locks import output_lock
from acclimate.base.options import build, recorded, values, verb
from acclimate.base.progress import Progress
from acclimate.base.records import Record, read_kept
from acclimate.base.verbs import show_place
from acclimate.base.version import __version__
from acclimate.data.csv_reader import split_columns
from acclimate.data.opening import decode_line, read_numbered_lines
from acclimate.data.reading import DEFAULT_READING, EDITS, ReadingOptions
from acclimate.data.rows import LeftOut, Row, column_names, join_columns
from acclimate.data.task_kinds import READ_ALIKE, TASK_KINDS, check_fixed_texts, open_source
from acclimate.data.writing import check_table_name, write_rows
from acclimate.engine.distributed import ProcessGroup
from acclimate.evaluation.significance import Interval, bootstrap_intervals, paired_bootstrap
from acclimate.models.checkpoints import load_config, model_fingerprint
from acclimate.results.display import Displayed, data_frame
from acclimate.results.study import StudyResults, table_results
from acclimate.tasks.groups import number_known_groups
from acclimate.tasks.interfaces import Answer, Predictor
from acclimate.tasks.kinds.retrieval.data import read_passages
from acclimate.tasks.prediction_options import PredictOptions
from acclimate.tasks.record import read_training
from acclimate.tasks.sources import read_every_row

if TYPE_CHECKING:
    import pandas

CHUNK = 2_000
"""Rows between two saves; an interrupted prediction goes on after the last of them."""
USUAL_LENGTH = 512
"""Maximum tokens per text for a model that was not fine-tuned here; the model's own limit applies, too."""
SHOWN = 10
"""Rows of the description that differ between two models."""


@dataclass(frozen=True, repr=False)
class PredictResult(Displayed):
    """Rows with their predictions.

    Attributes:
        rows: The rows, with the new columns.
        columns: The new columns that hold the answer, one for each model.
        skipped: Number of rows without a text, which have no prediction.
        models: Names of the models.
        changed: Numbers of the rows, from one, for which two models differ.
        right: For each of these, the name of the model that is right; empty if neither is, or the row has no label.
        metric: What ``scores`` are; empty if the rows have no labels.
        scores: The score of each model on the rows with a label, with its 95 % interval over groups of rows.
        scored: Number of rows with a gold answer.
        difference: Score of the second model minus the first, with its interval; None for one model.
        out: Path of the written file.
    """

    rows: list[dict[str, Any]]
    columns: list[str]
    skipped: int
    models: list[str]
    changed: list[int] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    metric: str = ""
    scores: list[tuple[float, float, float]] = field(default_factory=list)
    scored: int = 0
    difference: Interval | None = None
    out: Path | None = None

    def describe(self) -> list[str]:
        """Return what was predicted, and how the models differ, in a few lines."""
        lines = [f"{len(self.rows) - self.skipped:,} rows predicted"]
        if self.skipped:
            lines[0] += f"; {self.skipped:,} without a text have no prediction"
        for name, (score, low, high) in zip(self.models, self.scores, strict=False):
            lines.append(f"{name}: {self.metric} {score:.4f} ({low:.4f} to {high:.4f}) on {self.scored:,} rows")
        if len(self.models) > 1:
            lines.append(f"{len(self.changed):,} of {len(self.rows) - self.skipped:,} rows differ")
            for place, number in enumerate(self.changed[:SHOWN]):
                shown = " / ".join(_short(self.rows[number - 1][column]) for column in self.columns)
                note = f" (right: {self.right[place]})" if self.right and self.right[place] else ""
                lines.append(f"  row {number}: {shown}{note}")
            if (more := len(self.changed) - SHOWN) > 0:
                lines.append(f"  and {more:,} more")
        if self.difference is not None:
            found = self.difference
            lines.append(
                f"{self.models[1]} minus {self.models[0]}: {self.metric} {found.difference:+.4f} "
                f"({found.low:+.4f} to {found.high:+.4f}), about these two models"
            )
        return lines

    def as_results(self) -> StudyResults:
        """Return the first rows as the results of a study."""
        return table_results("Predictions", {"Predictions": self.rows[:SHOWN]})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame."""
        return data_frame(self.rows)


def _short(value: Any) -> str:
    return f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False):.60}"


class _SavedAnswer(Record):
    cells: dict[str, Any]
    value: Any


def load_predictor(model: str | Path, max_length: int | None) -> Predictor:
    """Load a trained model as a predictor of its kind of task.

    Raises:
        UserError: If the model does not exist, or is not trained for a kind of task.
    """
    config = load_config(model)
    record = read_training(model)
    known = record.result.kind
    kinds = [TASK_KINDS.lookup(name)() for name in TASK_KINDS.names()]
    kind = next((kind for kind in kinds if kind.reads(model, config, known)), None)
    if kind is None:
        raise UserError(
            f"'{model}' has no head of a task ({', '.join(config.architectures or ['no architecture named'])}): "
            f"fine-tune it first, with acclimate finetune --model {model} --task TASK."
        )
    trained = record.identity.options.max_length
    predictor: Predictor = kind.predictor(model, max_length or trained or _usual_length(config), default_device())
    predictor.reading = record.result.reading
    predictor.kind = kind
    if hasattr(predictor.head, "prepare"):  # sentence encoders are on their device
        predictor.head.prepare()
    return predictor


def _usual_length(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None)
    return min(USUAL_LENGTH, limit) if isinstance(limit, int) and limit > 0 else USUAL_LENGTH


def read_data(source: Any, columns: ReadingOptions) -> list[Row]:
    """Return the rows of any source that tasks are read from, and of a text file with a text per line.

    Args:
        source: As :func:`acclimate.data.task_kinds.open_source` returns it.
        columns: The columns that the user named.

    Raises:
        UserError: If the source cannot be read, or holds no rows.
    """
    if isinstance(source, Path) and not source.is_dir():
        for name in TASK_KINDS.names():
            if found := TASK_KINDS.lookup(name)().unlabelled_rows(source, columns):
                return found
    if isinstance(source, Path) and ".txt" in source.suffixes:
        texts = [(number, decode_line(line)[0]) for number, line in read_numbered_lines(source, columns.encoding)]
        rows = [(f"{source}:{number}", {"text": text}) for number, text in texts if text.strip()]
    else:
        rows = read_every_row(source, "data", columns)
    if not rows:
        raise UserError("The data hold no rows.")
    return rows


def _predict_rows(
    predictor: Predictor, examples: Sequence[Any], options: PredictOptions, work: Path | None, title: str
) -> list[Answer | None]:
    """Return the answer to each example that is not None; chunks that are in the working folder are read from it."""
    precision = choose_precision(options.precision, default_device())
    found: list[Answer | None] = []
    with Progress(title, len(examples), unit="rows", enabled=options.progress) as progress:
        for start in range(0, len(examples), CHUNK):
            chunk = examples[start : start + CHUNK]
            part = None if work is None else work / f"{start:09d}.json"
            saved = None if part is None else read_kept(part, dict[str, list[_SavedAnswer | None]])
            if saved is None or [one is None for one in saved.get("answers", ())] != [one is None for one in chunk]:
                answers = iter(predictor.answer([one for one in chunk if one is not None], precision))
                made = [None if one is None else next(answers) for one in chunk]
                saved = {"answers": [answer and answer._asdict() for answer in made]}
                if part is not None:
                    write_text(part, json.dumps(saved, ensure_ascii=False))
            found += [answer and Answer(**answer) for answer in saved["answers"]]
            progress.update(len(found))
    return found


def _hash_rows(rows: Sequence[Row]) -> str:
    digest = hashlib.sha256()
    for _, row in rows:
        digest.update(json.dumps(row, default=str).encode("utf-8", "backslashreplace") + b"\n")
    return digest.hexdigest()


def _names_of(models: Sequence[str | Path]) -> list[str]:
    """Return a short name of each model: its last part that differs."""
    parts = [Path(str(model)).parts for model in models]
    if len(models) < 2:
        return [parts[0][-1]]
    names = [
        next((p for p, q in zip(own[::-1], other[::-1], strict=False) if p != q), own[-1])
        for own, other in zip(parts, parts[::-1], strict=True)
    ]
    return names if len(set(names)) == len(names) else [str(number + 1) for number in range(len(names))]


def _add_columns(rows: list[dict[str, Any]], answers: Sequence[Answer | None], main: str, suffix: str) -> str:
    """Add the cells of answers to rows, under names that no row has; return the name of the main column."""
    taken = {name for row in rows for name in row}
    cells = list(dict.fromkeys(name for answer in answers if answer for name in answer.cells)) or [main]
    names = {}
    for cell in cells:
        name = f"{cell}{suffix}"
        names[cell] = name if name not in taken else f"predicted_{name}"
        while names[cell] in taken:
            names[cell] += "_"
    for row, answer in zip(rows, answers, strict=True):
        row.update({name: answer.cells[cell] if answer else None for cell, name in names.items()})
    return names.get(main, next(iter(names.values())))


def _read_gold(predictors: Sequence[Predictor], rows: Sequence[Row], columns: ReadingOptions) -> list[Any] | None:
    """Return the gold answer of each row, or None; None if there are none. Say which are no class of the models."""
    gold = predictors[0].gold(rows, columns)
    known = {label for predictor in predictors for label in predictor.labels}
    given = Counter(name for value in gold or () if value is not None for name in predictors[0].named(value))
    unknown = [name for name in given if name not in known]
    if known and unknown:
        nothing = len(unknown) == len(given)
        warn_once(
            f"{'None' if nothing else f'{sum(given[name] for name in unknown):,}'} of {given.total():,} gold labels "
            f"{'is' if nothing else 'are not'} a class of the model, such as '{unknown[0]:.40}', so "
            f"{'nothing is scored' if nothing else 'they count as wrong'}; it has {', '.join(sorted(known)):.200}."
        )
        return None if nothing else gold
    return gold


def _compare(
    predictors: Sequence[Predictor],
    answers: Sequence[Sequence[Answer | None]],
    gold: Sequence[Any] | None,
    rows: Sequence[Row],
    columns: ReadingOptions,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the fields of the result on gold answers and on the difference between two models."""
    fields = dict[str, Any]()
    if len(answers) > 1:
        pairs = list(zip(*answers, strict=True))
        fields["changed"] = [n for n, (a, b) in enumerate(pairs, 1) if a and b and _differs(a.value, b.value)]
        fields["right"] = [_who_is_right(pairs[n - 1], gold and gold[n - 1], names) for n in fields["changed"]]
    known = [
        n for n, value in enumerate(gold or ()) if value is not None and all(made[n] is not None for made in answers)
    ]
    if gold is None or not known:
        return fields
    every, name = predictors[0].groups(rows, columns)
    groups = {"groups": number_known_groups(every[n] for n in known), "group_name": name}
    values = [[gold[n] for n in known], *([made[n].value for n in known if made[n]] for made in answers)]  # type: ignore[union-attr]
    scoring, (true, *shown) = predictors[0].scoring(values, groups)
    metric = scoring.metrics[0]
    ends = [bootstrap_intervals(scoring, true, own, [metric])[metric] for own in shown]
    fields |= {"metric": metric, "scored": len(known)}
    fields["scores"] = [(scoring.score(true, own, metric), *end) for own, end in zip(shown, ends, strict=True)]
    if len(answers) > 1:
        fields["difference"] = paired_bootstrap(true, [shown[1]], [shown[0]], metric, scoring=scoring)
    return fields


def _differs(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) > 1e-6 * max(1.0, abs(first), abs(second))
    return bool(first != second)


@verb(PredictOptions)
def predict(options: PredictOptions) -> PredictResult:
    """Predict rows with a fine-tuned model, and write them with all their columns and the predictions.

    Classes have a ``label`` and its ``probability`` (lists of both, if a text can have several), numbers a ``score``,
    entities ``spans`` with start, end, label, text and score, questions an ``answer``, multiple choice a ``choice``. A
    sentence encoder ranks ``passages`` for each row, or gives a ``score`` for each pair of texts. Where the rows have
    a column of that name, the new one is called ``predicted_label`` and so on. A row without a text stays, and has no
    prediction.

    Two models give the columns ``label_NAME`` of each; the result says which rows differ and, where rows have gold
    answers, which model is right, with the difference of their scores and its interval over groups of rows.

    Texts of similar length share a batch. Every 2,000 rows are saved: an interrupted prediction goes on there.

    Returns:
        The rows with their predictions.

    Raises:
        UserError: If a model is not trained for a kind of task, the rows or their columns cannot be read, or the
            output exists.
    """
    models = list(options.model)
    if not 1 <= len(models) <= 2:
        raise UserError(f"Give one model, or two to compare them, not {len(models)}.")
    out = _check_output(options)
    data, column = open_source(options.data)
    columns = build(
        ReadingOptions,
        **values(options, ReadingOptions) | {"text_column": options.text_column or column, "passages": None},
    )
    rows = read_data(data, columns)
    passages = None if options.passages is None else read_data(open_source(options.passages)[0], DEFAULT_READING)
    names, predictors = _names_of(models), [_load(model, options) for model in models]
    reading = [_learned(predictor, columns, rows) for predictor in predictors]
    if len({(one.main, one.multi_label) for one in predictors}) > 1:
        raise UserError(f"'{models[0]}' and '{models[1]}' are models of different kinds; compare two of one kind.")
    labelled = join_columns(rows, reading[0])
    gold = _read_gold(predictors, labelled, reading[0])
    identity: dict[str, Any] = {
        "acclimate": __version__,
        "data": _hash_rows(rows),
        "passages": passages and _hash_rows(passages),
    }
    identity |= {"options": recorded(options, ("model", "data", "passages"))}
    work = [None if out is None else out.parent / f".{out.name}.work-{number}" for number in range(len(models))]
    answers = []
    for model, name, predictor, own, folder in zip(models, names, predictors, reading, work, strict=True):
        read = join_columns(rows, own)
        check_fixed_texts(predictor.kind, name, own.edits or read is not rows)
        if passages is not None:
            left = LeftOut("passages", what="table of")
            predictor.passages = {key: own.edits(text) for key, text in read_passages(passages, left).items()}
            predictor.top = options.top
            if options.hybrid:
                predictor.fuse_with_bm25()
        examples = predictor.read(read, own)
        if not any(example is not None for example in examples):
            raise UserError(f"None of the {len(rows):,} rows has a text; name its column with --text-column.")
        with nullcontext() if folder is None else output_lock(folder):
            if folder is not None:
                found = {"model": model_fingerprint(str(model)), "reading": values(own)}
                open_work_folder(folder, json.loads(json.dumps(identity | found)), ProcessGroup())
            answers.append(_predict_rows(predictor, examples, options, folder, f"predict with {name}"))
    made = [dict(row) for _, row in rows]
    suffixes = [f"_{name}" for name in names] if len(models) > 1 else [""]
    added = [
        _add_columns(made, found, predictor.main, suffix)
        for found, predictor, suffix in zip(answers, predictors, suffixes, strict=True)
    ]
    fields = _compare(predictors, answers, gold, labelled, reading[0], names)
    skipped = sum(all(found[place] is None for found in answers) for place in range(len(rows)))
    if out is not None:
        write_rows(out, made)
        for folder in filter(None, work):
            shutil.rmtree(folder, ignore_errors=True)
    return PredictResult(made, added, skipped, names, out=out, **fields)


def _check_output(options: PredictOptions) -> Path | None:
    """Check that the output can be written, before anything is read; return its path."""
    if options.out is None:
        return None
    out = Path(options.out)
    check_table_name(out)
    check_writable(out)
    if (
        out.exists()
        and isinstance(options.data, str | Path)
        and Path(options.data).exists()
        and out.samefile(options.data)
    ):
        raise UserError(f"'{out}' is the data; choose another output.")
    if out.exists() and not options.overwrite:
        raise UserError(f"'{out}' exists; choose another file, or replace it with --overwrite.")
    return out


def _load(model: str | Path, options: PredictOptions) -> Any:
    """Load a model as a predictor; only a sentence encoder may have passages."""
    if options.hybrid and options.passages is None:
        raise UserError("'hybrid' ranks passages: give them with --passages FILE.")
    predictor = load_predictor(model, options.max_length)
    if options.passages is not None and not predictor.ranks:
        raise UserError(f"'passages' is for sentence encoders, and '{model}' is none; remove it.")
    return predictor


def _learned(predictor: Predictor, given: ReadingOptions, rows: Sequence[Row]) -> ReadingOptions:
    """Return how rows are read: as the rows of the task that a model has learned, unless the user says otherwise."""
    names = column_names(rows)
    known = {
        name: value
        for name, value in predictor.reading.items()
        if name in READ_ALIKE
        and getattr(given, name) == getattr(DEFAULT_READING, name)
        and (name in EDITS or {*split_columns(value, names)} <= {*names})
    }
    return build(ReadingOptions, **values(given) | known)


def _who_is_right(answers: Sequence[Answer | None], gold: Any, names: Sequence[str]) -> str:
    """Return the name of the model that is right, or for numbers nearer; empty if both or none are."""
    if gold is None:
        return ""
    if isinstance(gold, float):
        distance = [abs(answer.value - gold) if answer else float("inf") for answer in answers]
        return names[int(distance[1] < distance[0])] if distance[0] != distance[1] else ""
    if isinstance(gold, list) and gold and isinstance(gold[0], str):  # the answers to a question
        right = [bool(answer and answer.value and answer.value[0] in gold) for answer in answers]
    else:
        right = [bool(answer and answer.value == gold) for answer in answers]
    return names[right.index(True)] if sum(right) == 1 else ""


def show_predictions(result: PredictResult, options: PredictOptions) -> Iterator[str]:
    """Yield what ``acclimate predict`` prints."""
    yield from map(printable, result.describe())
    yield from show_place("written", result.out)
