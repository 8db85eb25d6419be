"""What to know before believing a study: what its numbers leave out, and which of them say nothing."""

from __future__ import annotations

from typing import Any

from acclimate.report.words import joined, place_name


def caveats(results: dict[str, Any], compared: list[dict[str, Any]]) -> list[str]:
    """Return what the reader of a study should know before believing it, a sentence or two each.

    Args:
        results: Of the study.
        compared: Its rows that were compared with the baseline.
    """
    said = []
    if results["failures"]:
        count = len(results["failures"])
        said.append(f"{count} {'cell has' if count == 1 else 'cells have'} no result; see the end of this page.")
    said += _unlearnt(results) + _mixed(results) + _unread(results) + _leaked(results) + _repeated(results)
    if unlooked := results.get("unlooked"):
        said.append(
            f"Dev and test texts of the tasks were not looked for in {joined(unlooked)}; the same command without "
            "'--report-only' does it."
        )
    if compared:
        seeds = min(len(row["difference"]["seeds"]) for row in compared)
        if seeds == 1:
            said.append(
                "Only one seed: the intervals know the luck of the test items but not that of training, so they are "
                "too narrow. Run at least three seeds before believing them."
            )
        elif seeds == 2:
            said.append(
                "Two seeds say little about the luck of training, and their intervals are uncertain themselves."
            )
        if results.get("shared_adaptation"):
            said.append(
                "Each method was adapted once and shared by all seeds of fine-tuning, so the intervals do not include "
                "the luck of the adaptation itself. Set adapt_seeds to include it."
            )
        if len(compared) > 1:
            said.append(
                f"{len(compared)} comparisons were made. One in twenty is expected to look like a difference by "
                "chance alone; the column p (Holm) corrects for that."
            )
    return said


def _mixed(results: dict[str, Any]) -> list[str]:
    """Warn of tasks on which one model was trained in fp32 and another in bf16, be it the same method's next seed."""
    places: dict[str, dict[str, list[str]]] = {}
    for row in results["scores"]:
        place = places.setdefault(place_name(results, row), {})
        if row.get("precisions"):  # cells from before it was kept have none
            place.setdefault(" and ".join(row["precisions"]), []).append(row["method"])
    told = []
    for name, found in places.items():
        if len(found) > 1 or any(" and " in precisions for precisions in found):
            parts = (f"{precision}: {joined(methods)}" for precision, methods in found.items())
            told.append(f"{name} ({'; '.join(parts)})")
    if not told:
        return []
    return [
        f"Not all models of a task were trained in the same precision: {', '.join(told)}. What differs between them "
        "may be the arithmetic. 'precision: auto', the default, is what a machine does fastest; say which it shall be."
    ]


def _unread(results: dict[str, Any]) -> list[str]:
    """Warn of each text that models were adapted to of which records could not be read."""
    lost = {}
    for run in results.get("adaptations") or []:
        if broken := run.get("broken"):
            text = f"the text of {run['domain']}" if run["domain"] else "the text"
            lost[broken["first"]] = (
                f"Of {text} {broken['records']:,} records could not be read and were left out "
                f"({broken['documents']:,} documents were read); the first: {broken['first']}."
            )
    return list(lost.values())


def _leaked(results: dict[str, Any]) -> list[str]:
    """Warn of each corpus that models were adapted to although it holds texts that they are judged on."""
    said = []
    for corpus in results.get("leakage") or []:
        parts = [_found_texts(row) for row in corpus["texts"] if row["found"]]
        if parts and "train_of" not in corpus and not corpus["removed"]:
            said.append(
                f"The text of {corpus['domain']} that models were adapted to holds {joined(parts)}, without labels. "
                "What was learnt there may be these very texts; 'leakage: remove' leaves the documents out."
            )
    return said


def _found_texts(row: dict[str, Any]) -> str:
    return f"{row['found']:,} of the {row['texts']:,} {row['split']} texts of {row['task']}"


def _repeated(results: dict[str, Any]) -> list[str]:
    """Warn of train splits that hold texts of the dev and test splits of their task."""
    parts = []
    for learnt in results.get("leakage") or []:
        for row in learnt["texts"] if "train_of" in learnt else []:
            if row["found"]:
                where = "" if learnt["train_of"] == row["task"] else f" (in {learnt['train_of']}, learnt before it)"
                parts.append(f"{_found_texts(row)}{where}")
    if not parts:
        return []
    return [
        f"Train splits hold {joined(parts)}. Models learn these with a label, all methods the same ones, so that "
        "scores on them say little of new texts. They were left in: train splits are used as they are."
    ]


def _unlearnt(results: dict[str, Any]) -> list[str]:
    """Warn of models that give nearly all test items of a task one answer."""
    found: dict[str, list[str]] = {}
    for row in [*results["scores"], *results.get("kept", [])]:
        if count := row.get("one_answer"):
            seeds = len(row["seeds"])
            where = "" if count == seeds else f" in {count} of {seeds} seeds"
            found.setdefault(place_name(results, row), []).append(row["method"] + where)
    if not found:
        return []
    places = "; ".join(f"{place} ({joined(methods)})" for place, methods in found.items())
    return [
        f"Nearly all test items got one and the same answer: {places}. These models have not learnt the task, so that "
        "what they score says nothing of their adaptation. Train them longer, at another learning rate or on more "
        "rows; 'search' finds out on dev."
    ]
