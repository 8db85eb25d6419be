"""The answer in words: did adaptation help here, how sure is that, and what did it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

METRIC_NAMES = {
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "positive_micro_f1": "micro-F1 of the positive classes",
    "document_f1": "document F1",
    "f1": "F1",
    "mrr": "MRR",
}
VERDICTS = {"win": "helped", "loss": "hurt", "tie": "no difference shown"}
NO_DIFFERENCE = "made no difference that these data can show"


def metric_name(metric: str) -> str:
    """Name a metric for people."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def metrics_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """List the metrics of rows of scores, those of the first task first."""
    return list(dict.fromkeys(metric for row in rows for metric in row["metrics"]))


def signed(value: float, digits: int = 1) -> str:
    """Format with a sign, and a true minus; what rounds to zero has none."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def plain(value: float, digits: int = 1) -> str:
    """Format with a true minus."""
    text = f"{value:.{digits}f}".replace("-", "−")
    return text[1:] if not text.strip("−0.") else text


def p_text(p: float) -> str:
    """Write a p-value as ``p = 0.03`` or ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def interval_text(entry: dict[str, Any], scale: float = 1.0, digits: int = 1) -> str:
    """Write the two ends of an interval."""
    return f"{signed(scale * entry['low'], digits)} to {signed(scale * entry['high'], digits)}"


def joined(parts: Sequence[str], last: str = "and") -> str:
    """Join with commas and a word before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}" if parts else ""


def place_name(results: dict[str, Any], row: dict[str, Any]) -> str:
    """Name the place of a row; what is the same in the whole study is left out."""
    parts = []
    if len(results["models"]) > 1:
        parts.append(row["model"])
    if len(results["domains"]) > 1 or not row.get("task"):
        parts.append(row["domain"])
    if row.get("task") and row["task"] != row["domain"]:
        parts.append(row["task"])
    return " · ".join(parts) or row["domain"]


def method_name(row: dict[str, Any]) -> str:
    """Name the method of a row of losses or adaptations, and the task where it was adapted for that one alone."""
    return f"{row['method']}, {row['task']}" if row.get("task") else str(row["method"])


def answer(results: dict[str, Any]) -> dict[str, Any]:
    """Put the results into words.

    Returns:
        ``headline``, one sentence or a few; ``places``, for each task or domain a ``name`` and ``lines`` with a
        ``verdict`` and a ``text``; ``details``, the same for what would be too long up there; and ``caveats``, what
        the reader has to know before relying on it.
    """
    compared = [row for row in results["scores"] if row.get("difference")]
    alone = len(results["models"]) == 1 and len(results["domains"]) == 1
    tasks: dict[str, list[dict[str, str]]] = {}
    texts: dict[str, list[dict[str, str]]] = {}
    for model in results["models"]:
        for domain in results["domains"]:
            here = {"model": model, "domain": domain}
            for row in compared:
                if here.items() <= row.items():
                    tasks.setdefault(place_name(results, row), []).append(_score_line(row, results["baseline"]))
            for row in results["losses"]:
                if here.items() <= row.items() and "difference" in row:
                    texts.setdefault(_text_place(results, row), []).append(_loss_line(row))
    return {
        "headline": _headline(results, compared),
        "places": _listed({**tasks, **texts} if alone or not tasks else tasks),
        "details": [] if alone or not tasks else _listed(texts),
        "caveats": _caveats(results, compared),
    }


def _listed(places: dict[str, list[dict[str, str]]]) -> list[dict[str, Any]]:
    return [{"name": name, "lines": lines} for name, lines in places.items()]


def _text_place(results: dict[str, Any], row: dict[str, Any]) -> str:
    name = "general text, what was forgotten" if row["text"] == "general" else "held-out text of the domain"
    if len(results["models"]) == 1 and len(results["domains"]) == 1:
        return name.capitalize()
    return f"{place_name(results, {**row, 'task': None})} · {name}"


def _score_line(row: dict[str, Any], baseline: str) -> dict[str, str]:
    metric = row["metric"]
    entry = row["difference"][metric]
    points, after = 100 * entry["difference"], 100 * row[metric]["mean"]
    before = after - points
    name = metric_name(metric)
    change = f"{name} {plain(before)} → {plain(after)}, {signed(points)} points against {baseline}"
    span = f"95 % interval {interval_text(entry, 100)}, {p_text(entry['p'])}"
    if entry["verdict"] == "tie":
        return {"verdict": "tie", "method": row["method"], "text": f"{NO_DIFFERENCE}: {change} ({span})."}
    word = "helped" if entry["verdict"] == "win" else "hurt"
    adjusted = entry.get("p_holm", entry["p"])
    doubt = f" Corrected for all comparisons of the study it is less certain ({p_text(adjusted)})."
    return {
        "verdict": entry["verdict"],
        "method": row["method"],
        "text": f"{word}: {change} ({span}).{doubt if _doubtful(entry) else ''}",
    }


def _loss_line(row: dict[str, Any]) -> dict[str, str]:
    entry = row["difference"]
    nats, percent = entry["difference"], row["percent"]
    numbers = f"{plain(row['before'], 3)} → {plain(row['nats'], 3)} nats"
    share = f", {signed(percent)} %" if percent is not None else ""
    span = f"95 % interval {interval_text(entry, 1, 3)}"
    change = f"masked-LM loss {numbers} ({signed(nats, 3)}{share}; {span})"
    general = row["text"] == "general"
    if entry["verdict"] == "tie":
        verdict, word = "tie", "no change that these texts can show"
    elif nats > 0:  # a loss that rises is bad news
        verdict, word = "loss", "forgot" if general else "got worse at the domain"
    else:
        verdict, word = "win", "got better at general text too" if general else "learnt the domain"
    return {"verdict": verdict, "method": row["method"], "name": method_name(row), "text": f"{word}: {change}."}


def _headline(results: dict[str, Any], compared: list[dict[str, Any]]) -> str:
    sentences = []
    methods = [method["label"] for method in results["methods"]]
    places = {place_name(results, row) for row in compared}
    if compared:
        words = []
        for method in methods:
            rows = [row for row in compared if row["method"] == method]
            if rows:
                words.append(f"{method} {_counted(rows, len(places))}")
        where = f"On {next(iter(places))}, " if len(places) == 1 else ""
        sentences.append(f"{where}{joined(words)}.")
    elif results["scores"]:
        sentences.append("There is nothing to compare: only one method has scores.")
    general = [row for row in results["losses"] if row["text"] == "general" and "difference" in row]
    if not compared:
        domain = [row for row in results["losses"] if row["text"] == "domain" and "difference" in row]
        sentences += _cost(domain, methods, "On held-out text of the domain the masked-LM loss changed by")
    sentences += _cost(general, methods, "On general text the masked-LM loss changed by")
    sentences += _kept(results, methods)
    if results["losses"] and not general:
        sentences.append("What was forgotten of general text was not measured.")
    return " ".join(sentences) or "No cell of this study has a result."


def _counted(rows: list[dict[str, Any]], places: int) -> str:
    """Say for one method where it helped and where not."""
    verdicts = [row["difference"][row["metric"]]["verdict"] for row in rows]
    if places == 1 and len(rows) == 1:
        entry = rows[0]["difference"][rows[0]["metric"]]
        word = NO_DIFFERENCE if verdicts[0] == "tie" else VERDICTS[verdicts[0]]
        metric = metric_name(rows[0]["metric"])
        doubt = ", but not once corrected for all comparisons" if _doubtful(entry) else ""
        points = f"{signed(100 * entry['difference'])} points of {metric}, {interval_text(entry, 100)}"
        return f"{word}{doubt} ({points})"
    said = []
    for verdict, word in (("win", "helped"), ("loss", "hurt"), ("tie", NO_DIFFERENCE)):
        count = verdicts.count(verdict)
        if count:
            unit = "comparisons" if len({row["model"] for row in rows}) > 1 else "tasks"
            entries = [row["difference"][row["metric"]] for row in rows]
            left = sum(entry["verdict"] == verdict and not _doubtful(entry) for entry in entries)
            corrected = f" ({left or 'none'} once corrected for all comparisons)" if left < count else ""
            said.append(f"{word} on {count} of {len(rows)} {unit}{corrected}")
    mean = sum(100 * row["difference"][row["metric"]]["difference"] for row in rows) / len(rows)
    return f"{joined(said)} (mean {signed(mean)} points)"


def _doubtful(entry: dict[str, Any]) -> bool:
    """Say whether Holm's correction takes away what the interval shows."""
    return entry["verdict"] != "tie" and entry.get("p_holm", entry["p"]) >= 0.05


def _cost(rows: list[dict[str, Any]], methods: list[str], start: str) -> list[str]:
    """Say what the loss did, as the mean over the places of the study."""
    words = []
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        if mine:
            nats = sum(row["difference"]["difference"] for row in mine) / len(mine)
            percent = sum(row["percent"] or 0.0 for row in mine) / len(mine)
            span = f"; {interval_text(mine[0]['difference'], 1, 3)}" if len(mine) == 1 else ""
            words.append(f"{signed(nats, 3)} nats ({signed(percent)} %{span}) with {method}")
    return [f"{start} {joined(words)}."] if words else []


def _kept(results: dict[str, Any], methods: list[str]) -> list[str]:
    """Say in one sentence what each method did to other tasks; nothing where that was not measured."""
    words = []
    for method in methods:
        rows = [row for row in results.get("kept", []) if row["method"] == method and row.get("difference")]
        if rows:
            entries = [row["difference"][row["metric"]] for row in rows]
            hurt = sum(entry["verdict"] == "loss" for entry in entries)
            mean = sum(100 * entry["difference"] for entry in entries) / len(entries)
            words.append(f"{method} lost on {hurt} of {len(rows)} (mean {signed(mean)} points)")
    return [f"On tasks of other domains, {joined(words)}."] if words else []


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


def _caveats(results: dict[str, Any], compared: list[dict[str, Any]]) -> list[str]:
    said = []
    if results["failures"]:
        count = len(results["failures"])
        said.append(f"{count} {'cell has' if count == 1 else 'cells have'} no result; see the end of this page.")
    said += _leaked(results) + _repeated(results)
    if compared:
        seeds = min(len(row["difference"]["seeds"]) for row in compared)
        if seeds == 1:
            said.append(
                "Only one seed: the intervals know the luck of the test items but not that of training, so they are "
                "too narrow. Run at least three seeds before believing them."
            )
        elif seeds == 2:
            said.append("Two seeds say little about the luck of training; the intervals are wide and still uncertain.")
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
