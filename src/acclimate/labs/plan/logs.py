"""Measured points for plans: rows of tables and JSON lines, results of studies, and logs of trainings."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acclimate.adaptation.replay_options import list_replayed, read_shares
from acclimate.base.errors import UserError, did_you_mean, first_line, shorten
from acclimate.base.files import check_regular_file, read_json, read_lines
from acclimate.results.study import StudyResults

Row = dict[str, Any]
DOMAIN = ("domain", "domain text")
"""Names of the domain text in the mixture of an adaptation, with a mix and without one."""
LARGEST = 1e30
"""Largest number that a point can hold, so that its square is a number."""
RESULTS, LOG, STATE = "results.json", "log.jsonl", "trainer_state.json"


def read_rows(sources: Any, kind: str, required: Sequence[str]) -> list[Row]:
    """Return measured points from files, folders or memory.

    Args:
        sources: One or several of: a ``.csv``, ``.tsv`` or ``.jsonl`` file with named columns, the ``results.json`` of
            a study or its folder, a model folder with the log of its training, a ``trainer_state.json`` of
            ``transformers``; or rows in memory, as dictionaries or a data frame.
        kind: ``"losses"``, ``"scores"`` or ``"curves"``: what is taken from results and logs.
        required: Columns that every row must have.

    Raises:
        UserError: If a source cannot be read, has no such points, or lacks a column.
    """
    if hasattr(sources, "to_dict") and hasattr(sources, "columns"):
        sources = sources.to_dict("records")
    many = [sources] if isinstance(sources, str | Path | Mapping) else list(sources)
    paths = [Path(source).resolve() for source in many if isinstance(source, str | Path)]
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise UserError(f"'{twice}' is given twice; its points would count as independent. Give it once.")
    rows: list[Row] = []
    for number, source in enumerate(many):
        found = [dict(source)] if isinstance(source, Mapping) else _read_file(Path(source), kind, number)
        where = f"row {number + 1}" if isinstance(source, Mapping) else f"'{source}'"
        for row in found:
            lacking = [name for name in required if _is_empty(row.get(name))]
            if lacking:
                known = [str(name) for name in row if name not in lacking]
                raise UserError(
                    f"{where} has a row without {', '.join(lacking)}.{did_you_mean(lacking[0], known)} Every row "
                    f"needs {', '.join(required)}."
                )
        rows += found
    return rows


def take_number(row: Row, name: str, least: float = -LARGEST, most: float = LARGEST) -> float:
    """Return a number of a row.

    Raises:
        UserError: If it is not a finite number, or out of bounds.
    """
    try:
        value = float(row[name])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and least <= value <= most):
        limits = {-LARGEST: "", 0.0: " of at least 0", 1.0: " of at least 1"}[least]
        limits += f" and at most {most:g}" if most < LARGEST or value > most else ""
        raise UserError(f"The column '{name}' holds {shorten(row[name])}; give a finite number{limits} in each row.")
    return value


def select_rows(rows: list[Row], name: str, wanted: str | None, flag: str) -> list[Row]:
    """Return the rows with one value of a column, such as the model; rows without the column count as one value.

    Raises:
        UserError: If there are several values and none is chosen, or the chosen one or the column does not occur.
    """
    given = [row.get(name) for row in rows]
    named = ["" if _is_empty(value) or value != value else str(value) for value in given]
    values = list(dict.fromkeys(value for value in named if value))
    if wanted is None:
        if len(values) > 1:
            raise UserError(f"The points are of several {name}s: {', '.join(values)}. Choose one with {flag}.")
        return rows
    if not values:
        raise UserError(f"The points have no column '{name}', so {flag} chooses nothing; leave it out.")
    if wanted not in values:
        raise UserError(f"No point is of the {name} '{wanted}'.{did_you_mean(wanted, values)} There are: {values}.")
    return [row for row, value in zip(rows, named, strict=True) if value in ("", wanted)]


def _is_empty(value: Any) -> bool:
    return str(value) in ("", "None", "<NA>")  # the last is from pandas


def _read_file(path: Path, kind: str, number: int) -> list[Row]:
    if path.is_dir():
        names = (LOG, STATE) if kind == "curves" else (RESULTS,)
        inside = next((path / name for name in names if (path / name).is_file()), None)
        if inside is None:
            raise UserError(f"The folder '{path}' has no {' and no '.join(names)}; give a file of points.")
        path = inside
    check_regular_file(path)
    if not path.is_file():
        raise UserError(f"'{path}' does not exist. Give a .csv or .jsonl file of points, or a folder with {RESULTS}.")
    try:
        if path.suffix in (".csv", ".tsv"):
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows: list[Row] = list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
        elif path.suffix == ".json":
            rows = _read_json(path, kind)
        else:
            lines = read_lines(path)
            rows = [json.loads(line) for line in lines if line.strip()]
        if not all(isinstance(row, dict) for row in rows):
            raise UserError(f"'{path}' holds lines that are not objects, such as {{\"tokens\": 1000}}.")
        if kind == "curves":
            rows = [{"run": f"{number + 1}", **row} for row in _flatten_log(rows)]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError, csv.Error) as error:
        lacks = isinstance(error, KeyError)
        why = f"the key {error} is missing" if lacks else f"it has another form: {first_line(error)}"
        raise UserError(f"'{path}' cannot be read, as {why}. Give a .csv or .jsonl file of points.") from error
    if not rows:
        raise UserError(f"'{path}' holds no points.")
    return rows


def _read_json(path: Path, kind: str) -> list[Row]:
    if kind == "curves":
        state = read_json(path)
        if not isinstance(state, dict) or "log_history" not in state:
            raise UserError(f"'{path}' is not a {STATE} of transformers; give one, or a log with learning rates.")
        return list(state["log_history"])
    results = StudyResults.load(path)
    rows = list(loss_points(results) if kind == "losses" else score_points(results))
    if not rows:
        needs = "losses on domain and general text" if kind == "losses" else "scores on end tasks"
        raise UserError(f"The study '{path}' measured no {needs}; both are needed for this plan.")
    return rows


def _flatten_log(rows: Iterable[Row]) -> Iterable[Row]:
    """Yield the lines of a log with each measured loss in a column of its own: loss, heldout, general or eval_loss."""
    for row in rows:
        measured = {}
        for name in ("heldout", "general"):
            if isinstance(row.get(name), dict):
                terms = row[name].get("terms")
                terms = terms if isinstance(terms, dict) else {}
                measured[name] = terms.get("mlm", terms.get("clm", row[name].get("loss")))
        yield {**row, **measured}


def loss_points(results: StudyResults) -> Iterable[Row]:
    """Yield a row per adaptation of a study that measured domain and general text, and a row of the base model."""
    shares = {method["label"]: _domain_share(method.get("adapt", {})) for method in results.config.get("methods", [])}
    # Tokens of the text of each selection; a run without replay does not record how often it read its text.
    selected = {method["label"]: str(method.get("select")) for method in results.config.get("methods", [])}
    sizes: dict[tuple[str | None, str | None, str], float] = {}
    for row in results.adaptations:
        for text in row.mix:
            if text["name"] in DOMAIN and text.get("epochs"):
                sizes[row.model, row.domain, selected.get(row.method, "")] = text["tokens"] / text["epochs"]
    losses = {(row.model, row.domain, row.method, row.task, row.text): row for row in results.losses}
    done = set()
    for row in results.adaptations:
        place = (row.model, row.domain, row.method, row.task)
        domain, general = (losses.get((*place, text)) for text in ("domain", "general"))  # type: ignore[arg-type]
        if row.head or domain is None or general is None or not row.tokens:
            continue
        about = {"model": row.model, "domain": row.domain}
        if place[:2] not in done and None not in (domain.before, general.before):
            done.add(place[:2])
            yield {
                **about,
                "share": 1.0,
                "tokens": 0,
                "domain_loss": domain.before,
                "general_loss": general.before,
            }
        mixed = next((text["realized"] for text in row.mix if text["name"] in DOMAIN), None)
        share = shares.get(row.method, 1.0) if mixed is None else mixed
        found = [dict(zip(loss.adapt_seeds, loss.by_seed, strict=False)).get(row.seed) for loss in (domain, general)]
        if share is not None and None not in found:
            measured = {"domain_loss": found[0], "general_loss": found[1], "seconds": row.seconds}
            size = sizes.get((row.model, row.domain, selected.get(row.method, "")))
            repeated = {"epochs": share * row.tokens / size} if size else {}
            about_run = {"method": row.method, "share": share, "tokens": row.tokens, "seed": row.seed}
            yield {**about, **about_run, **repeated, **measured}


def _domain_share(adapt: Mapping[str, Any]) -> float | None:
    """Return the share of domain text that the settings of an adaptation ask for; None if a mix decides."""
    if adapt.get("mix") is not None:
        return None
    return 1 - sum(source.share for source in list_replayed(read_shares(adapt.get("replay"))))


def score_points(results: StudyResults) -> Iterable[Row]:
    """Yield a row per seed of fine-tuning: labels, score, whether the model was adapted, and where it belongs.

    Tasks that share a path are one task with several numbers of labels. Errors are negative, so that higher is better.
    """
    tasks = [task for domain in results.config.get("domains", []) for task in domain.get("tasks", [])]
    paths = {task["name"]: Path(str(task["path"])).name for task in tasks if isinstance(task, dict)}
    seconds = {(row.model, row.domain, row.method): row.seconds for row in results.adaptations if not row.head}
    turns: list[int | None] = [*results.adapt_seeds] or [None]
    adapted_from = {seed: turns[number % len(turns)] for number, seed in enumerate(results.seeds)}
    for row in results.scores:
        sign, metric = (-1, f"negative {row.metric}") if row.metric in row.errors else (1, row.metric)
        for seed, score in zip(row.seeds, row.summaries[row.metric].by_seed, strict=True):
            yield {
                **{"model": row.model, "domain": row.domain, "task": paths.get(row.task, row.task)},
                **{"method": row.method, "adapted": row.method != results.baseline, "seed": seed},
                **{"labels": row.train_size, "score": sign * score, "metric": metric},
                "adaptation": adapted_from.get(seed) if row.method != results.baseline else None,
                "seconds": seconds.get((row.model, row.domain, row.method)),
            }
