"""Scores per item from the logs of evaluations: lm-eval, lighteval, inspect_ai, tables, and predictions."""

from __future__ import annotations

import glob
import math
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from acclimate.base.errors import UserError, printable, warn_once
from acclimate.data.documents import format_count
from acclimate.data.opening import check_file
from acclimate.data.rows import LeftOut, RowError
from acclimate.labs.judge.formats import (
    GROUPS,
    OWN_FILES,
    READ,
    RESULTS,
    SUFFIXES,
    Item,
    Log,
    NoLogError,
    UnfinishedError,
    digest,
    open_log,
    translate_damage,
)

ERROR_NAMES = re.compile(
    r"(?:^|[_\W])(?:perplexity|ppl|\w*loss|nll|\w*cross_?entropy|xent|surprisal|bits_per_byte|bpb|bpc|wer|cer|ter|mer|"
    r"errors?|mae|mse|rmse|mape|brier\w*|ece|\w*distance|\w*divergence)(?:$|[_\W])",
    re.I,
)
"""Names of metrics of which lower is better, where a log does not say it."""


@dataclass(frozen=True)
class Scores:
    """The scores of one run on one task in one metric.

    Attributes:
        names: Identity of each item; unique.
        values: Score of each item (items,), float64, finite.
        groups: What each item belongs to, such as a passage; None if no two items share one, or nothing is known.
        group_name: What such a group is: a passage, a document, a subject; "item" without groups.
        is_error: Whether lower is better, as for a perplexity.
        weights: Weight of each item in the mean (items,), such as its bytes; None for equal weights.
    """

    names: list[str]
    values: np.ndarray
    groups: list[str] | None = None
    group_name: str = "item"
    is_error: bool = False
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Run:
    """The log of one evaluation of one model.

    Attributes:
        place: File or folder, for messages.
        seed: Seed of the training or adaptation; None if the log names none.
        scores: The scores by task and metric.
        left_out: Number of rows that are left out, by reason.
        settings: What must be equal in two logs for a task to be comparable, by task: split, hash of the prompts,
            number of examples in the prompt, limit; empty if unknown.
        model: Name of the model; that of the file or folder if the log names none.
    """

    place: str
    seed: str | None
    scores: dict[tuple[str, str], Scores]
    left_out: dict[str, int] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: str = ""


def read_runs(source: str | Path) -> list[Run]:
    """Read the logs of one side of a comparison.

    Args:
        source: A file, a folder, or a pattern of files such as ``"runs/seed-*"``. Several runs are seeds or
            adaptations of one side. Files of one folder with different tasks are one run; tables of the same task are
            several. Rows that cannot be used are counted in the first run of their file.

    Returns:
        The runs, sorted by place and seed.

    Raises:
        UserError: If nothing can be read, a log is damaged, or two evaluations of a model are in one folder.
    """
    grouped: dict[tuple[Any, ...], list[_Part]] = {}
    for log in _open_logs(source):
        for part in _read_parts(log):
            model = "" if log.tool == "table" else log.model
            grouped.setdefault((str(log.folder), log.tool, model, part.seed or ""), []).append(part)
    runs = []
    for _, parts in sorted(grouped.items()):
        tasks = Counter(task for part in parts for task in {task for task, _ in part.scores})
        twice = next((task for task, count in tasks.items() if count > 1), None)
        if twice is not None and parts[0].log.tool != "table":
            first, second = [part.log.path for part in parts if any(task == twice for task, _ in part.scores)][:2]
            raise UserError(
                f"'{first}' and '{second}' are two evaluations of '{twice}' by one model; give one of the files, or "
                "move each evaluation into a folder of its own."
            )
        runs += [_merge([part]) for part in parts] if twice is not None else [_merge(parts)]
    return runs


class Items:
    """The items of one task, while they are read."""

    def __init__(self) -> None:
        self._keys: list[tuple[str, str]] = []  # name and order
        self._prompts: list[str] = []
        self._values: dict[str, tuple[array[float], array[float]]] = {}  # with their weights
        self._groups: dict[str, list[str | None]] = {}

    def add(self, item: Item) -> None:
        """Add an item."""
        place = len(self._keys)
        self._keys.append((item.name, item.order))
        self._prompts.append(item.prompt)
        for metric, score in item.scores.items():
            value, weight = score if isinstance(score, tuple) else (score, None)
            columns = self._values.setdefault(metric, (array("d"), array("d")))
            for column, one in zip(columns, (value, weight), strict=True):
                column.extend([math.nan] * (place - len(column)))
                column.append(math.nan if one is None else one)
        for name, group in item.groups.items():
            names = self._groups.setdefault(name, [])
            names.extend([None] * (place - len(names)))
            names.append(group)

    def prompts(self) -> str:
        """Return a hash of the prompts, in any order of the items; empty if they are not logged."""
        pairs = sorted((name, prompt) for (name, _), prompt in zip(self._keys, self._prompts, strict=True))
        return digest(pairs) if all(self._prompts) else ""

    def scores(self, where: str, repeats: str, left_out: Counter[str]) -> dict[str, Scores]:
        """Return the scores by metric, sorted by the names of the items.

        Args:
            where: The log and the task, for messages.
            repeats: See :class:`acclimate.labs.judge.formats.Log`.
            left_out: Gets the number of items that are left out, by reason.

        Raises:
            UserError: If an item has two different scores where that is a mistake.
        """
        order = sorted(range(len(self._keys)), key=self._keys.__getitem__)
        names = [self._keys[place][0] for place in order]
        columns = {
            metric: [np.array([*one, *[math.nan] * (len(names) - len(one))])[order] for one in pair]
            for metric, pair in self._values.items()
        }
        starts = np.array([place for place, name in enumerate(names) if not place or names[place - 1] != name])
        repeated = len(names) - len(starts)
        if repeated and repeats == "content":
            names = [
                name if number == 1 else f"{name}#{number}"
                for name, same in groupby(names)
                for number, _ in enumerate(same, 1)
            ]
            warn_once(f"{where}: {repeated:,} items have the same content as another; they are numbered.")
        elif repeated:
            if repeats == "mistake":
                _check_equal(where, names, starts, [pair[0] for pair in columns.values()])
                left_out["that repeat another"] += repeated
                warn_once(f"{where}: {format_count(repeated, 'row')} with the item and score of another left out.")
            columns = {metric: [_segment_means(one, starts) for one in pair] for metric, pair in columns.items()}
            names, order = [names[place] for place in starts], [order[place] for place in starts]
        found = {}
        for metric, (values, weights) in columns.items():
            kept = np.flatnonzero(np.isfinite(values))
            missing = len(values) - len(kept)
            if not len(kept):
                warn_once(printable(f"{where}: '{metric}' has no number per item, so it is not compared."))
            elif missing:
                reason = f"without a number in '{metric}'"
                warn_once(printable(f"{where}: {missing:,} of {len(values):,} items are {reason} and left out."))
                left_out[reason] += missing
            if len(kept):
                found[metric] = Scores(
                    [names[place] for place in kept],
                    values[kept],
                    *self._choose_groups([order[place] for place in kept]),
                    bool(ERROR_NAMES.search(metric)),
                    None if np.isnan(weights).all() else np.nan_to_num(weights[kept], nan=1.0),
                )
        return found

    def _choose_groups(self, order: Sequence[int]) -> tuple[list[str] | None, str]:
        """Return the coarsest groups that items of an order share, and what they are.

        A column of groups says that items belong together also where it has one group; other fields may be constant
        for other reasons.
        """
        for field_name, name in {"group": "group", **GROUPS}.items():
            column = self._groups.get(field_name, [])
            found = [column[place] for place in order if place < len(column)]
            groups = [group for group in found if group is not None]
            least = 1 if field_name == "group" else 2
            if len(groups) == len(order) and least <= len(set(groups)) < len(groups):
                return groups, name
        return None, "item"


def _check_equal(where: str, names: Sequence[str], starts: np.ndarray, columns: Sequence[np.ndarray]) -> None:
    """Check that items of one name have the same scores.

    Raises:
        UserError: If they have not.
    """
    first = np.repeat(starts, np.diff(starts, append=len(names)))
    for values in columns:
        different = np.flatnonzero(~((values == values[first]) | (np.isnan(values) & np.isnan(values[first]))))
        if len(different):
            place = different[0]
            raise UserError(
                f"{where}: {len(different):,} rows repeat an item with another score, such as '{names[place]}' with "
                f"{values[first[place]]:g} and {values[place]:g}. Keep one row per item, or add a column 'seed'."
            )


def _segment_means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the mean of the finite values of each segment; NaN if it has none."""
    counts = np.add.reduceat(np.isfinite(values).astype(float), starts)
    return np.where(counts, np.add.reduceat(np.nan_to_num(values), starts) / np.maximum(counts, 1), math.nan)


class _Part(NamedTuple):
    """The scores of one seed in one file."""

    log: Log
    seed: str | None
    scores: dict[tuple[str, str], Scores]
    left_out: Counter[str]
    settings: dict[str, dict[str, Any]]


def _read_parts(log: Log) -> list[_Part]:
    """Read a log; each seed in it is a part.

    Raises:
        UserError: If nothing can be read, more than a fifth of the rows cannot be used, or items are ambiguous.
    """
    left = LeftOut(printable(str(log.path)), what="log")
    tasks: dict[str | None, dict[tuple[str, str], Items]] = {}

    def keep(item: Item | RowError) -> bool:
        if isinstance(item, RowError):
            raise item
        if all(score is None for score in item.scores.values()):
            raise RowError(item.where, "without a score")
        tasks.setdefault(item.seed, {}).setdefault((item.task, item.metric), Items()).add(item)
        return True

    with translate_damage(log.path):
        kept = left.read("the rows", log.items, keep)
    left.report({"the rows": kept})
    if not kept:
        raise UserError(f"'{log.path}' has no items. Formats that are read: {READ}.")
    parts = []
    for seed, items in sorted(tasks.items(), key=lambda pair: str(pair[0])):
        part = _Part(log, seed, {}, Counter(), {})
        for (task, _), own in sorted(items.items()):
            found = own.scores(printable(f"'{log.path}', task '{task}'"), log.repeats, part.left_out)
            for metric, scores in found.items():
                is_error = log.errors.get(metric, scores.is_error)
                part.scores[task, metric] = replace(scores, is_error=is_error)
            prompts = own.prompts()
            settings = log.settings | ({"prompts": prompts} if prompts else {})
            if settings:
                part.settings[task] = settings
        parts.append(part)
    parts[0].left_out.update(error.fault for error in left.errors.get("the rows", ()))
    return parts


def _merge(parts: Sequence[_Part]) -> Run:
    """Return a run of the files of one folder, which have different tasks."""
    log = parts[0].log
    place, model = (log.path, log.model) if len(parts) == 1 else (log.folder, log.model)
    if len(parts) > 1 and log.tool == "table":
        model = log.folder.resolve().name
    run = Run(str(place), parts[0].seed, {}, {}, {}, model)
    for part in parts:
        run.scores.update(part.scores)
        run.settings.update(part.settings)
        run.left_out.update(Counter(run.left_out) + part.left_out)
    return run


def _find_files(source: str | Path) -> dict[Path, bool]:
    """Return the files that a name refers to, and whether it names them and not their folder.

    Raises:
        UserError: If there are none.
    """
    path = Path(source).expanduser()
    try:
        matches = [path]
        if glob.has_magic(str(path)) and not path.exists():
            matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        folders = {match for match in matches if match.is_dir()}
    except (OSError, ValueError) as error:
        raise UserError(f"'{str(source)[:80]}' is not the name of a file or folder.") from error
    if not matches:
        raise UserError(f"'{path}' matches nothing; give a file, a folder or a pattern in quotes.")
    files: dict[Path, bool] = {}
    for match in matches:
        if match in folders:
            files |= {file: False for file in _list_files(match) if file not in files}
        else:
            check_file(match)
            files[match] = True
    return files


def _open_logs(source: str | Path) -> Iterator[Log]:
    """Open the logs that a name refers to.

    Raises:
        UserError: If there are none.
    """
    files = _find_files(source)
    others: dict[Path, str] = {}
    for file, is_named in files.items():
        try:
            yield open_log(file, is_named)
        except NoLogError as error:
            if is_named and len(files) == 1:
                raise
            others[file] = str(error)
            if isinstance(error, UnfinishedError):
                warn_once(f"{error} It is left out.")  # its message is printable
    if len(others) == len(files):
        means = next((reason for file, reason in others.items() if RESULTS.fullmatch(file.name)), None)
        raise UserError(means or f"'{source}' has no log of an evaluation. Formats that are read: {READ}.")
    unknown = [file.name for file in others if not file.name.endswith((".json", ".eval", *OWN_FILES))]
    if unknown:
        names = ", ".join(unknown[:5])
        warn_once(printable(f"'{source}': {len(unknown):,} files are no logs and are left out: {names:.200}."))


def _list_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders that can be logs, without hidden ones."""

    def refuse(error: OSError) -> None:
        raise UserError(f"Cannot read '{error.filename}': {error.strerror}.") from error

    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if name.lower().endswith(SUFFIXES) and name[0] != "."]
    return sorted(found)
