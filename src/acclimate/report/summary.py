"""The result of a study in words: gains, costs and caveats."""

from __future__ import annotations

from typing import Any

from acclimate.report.formatting import (
    VERDICTS,
    interval_text,
    joined,
    method_name,
    metric_name,
    p_text,
    place_name,
    plain,
    signed,
)

NO_DIFFERENCE = "made no difference that these data can show"
WORDS = {**VERDICTS, "tie": NO_DIFFERENCE}
FEW = 5
"""Methods up to which the headline speaks of each; of more it names the best and the worst."""


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
        "caveats": caveats(results, compared),
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
    points, before, after = (100 * entry[name] for name in ("difference", "before", "after"))
    change = f"{metric_name(metric)} {plain(before)} → {plain(after)}, {signed(points)} points against {baseline}"
    span = f"95 % interval {interval_text(entry, 100)}, {p_text(entry['p'])}"
    if entry["verdict"] == "tie":
        return {"verdict": "tie", "method": row["method"], "text": f"{NO_DIFFERENCE}: {change} ({span})."}
    word = WORDS[entry["verdict"]]
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
        rows = {method: [row for row in compared if row["method"] == method] for method in methods}
        rows = {method: mine for method, mine in rows.items() if mine}
        where = f"On {next(iter(places))}, " if len(places) == 1 else ""
        if len(rows) > FEW:
            sentences.append(f"{where or 'Over all, '}{_ranked(rows, len(places))}")
        else:
            words = [f"{method} {_counted(mine, len(places))}" for method, mine in rows.items()]
            sentences.append(f"{where}{joined(words)}.")
    elif results["scores"]:
        why = "only one method has scores"
        if len({row["method"] for row in results["scores"]}) > 1:
            why = f"the baseline, {results['baseline']}, has no scores for it"
        sentences.append(f"There is nothing to compare: {why}.")
    general = [row for row in results["losses"] if row["text"] == "general" and "difference" in row]
    if not compared:
        domain = [row for row in results["losses"] if row["text"] == "domain" and "difference" in row]
        sentences += _cost(domain, methods, "On held-out text of the domain the masked-LM loss changed by")
    sentences += _cost(general, methods, "On general text the masked-LM loss changed by")
    sentences += _kept(results, methods)
    if results["losses"] and not general:
        measured = any(row["text"] == "general" for row in results["losses"])
        why = "cannot be said: there is nothing to compare it with" if measured else "was not measured"
        sentences.append(f"What was forgotten of general text {why}.")
    return " ".join(sentences) or "No cell of this study has a result."


def _counted(rows: list[dict[str, Any]], places: int) -> str:
    """Say for one method where it helped and where not."""
    entries = [_entry(row) for row in rows]
    if places == 1 and len(rows) == 1:
        (entry,) = entries
        word = WORDS[entry["verdict"]]
        metric = metric_name(rows[0]["metric"])
        doubt = ", but not once corrected for all comparisons" if _doubtful(entry) else ""
        points = f"{signed(100 * entry['difference'])} points of {metric}, {interval_text(entry, 100)}"
        return f"{word}{doubt} ({points})"
    unit = "comparisons" if len({row["model"] for row in rows}) > 1 else "tasks"
    said = [f"{word} on {count} of {len(rows)} {unit}{left}" for word, count, left in _verdicts(entries)]
    return f"{joined(said)} (mean {signed(_points(rows))} points)"


def _verdicts(entries: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Return each verdict in words, its count, and how many are left once all comparisons are corrected for."""
    found = []
    for verdict, word in WORDS.items():
        doubts = [_doubtful(entry) for entry in entries if entry["verdict"] == verdict]
        left = doubts.count(False)
        corrected = f" ({left or 'none'} once corrected for all comparisons)" if any(doubts) else ""
        if doubts:
            found.append((word, len(doubts), corrected))
    return found


def _ranked(rows: dict[str, list[dict[str, Any]]], places: int) -> str:
    """Say of many methods how many comparisons were won and lost, and which did best and worst on average."""
    entries = [_entry(row) for mine in rows.values() for row in mine]
    counts = [f"{count} {word}{left}" for word, count, left in _verdicts(entries)]
    unit = "methods" if len(entries) == len(rows) else f"comparisons of {len(rows)} methods"
    best, worst = (pick(rows, key=lambda method: _points(rows[method])) for pick in (max, min))
    ends = [f"{end}: {method} {_counted(rows[method], places)}" for end, method in (("best", best), ("worst", worst))]
    return f"of {len(entries)} {unit} {joined(counts)}. On average {'; '.join(ends)}."


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = row["difference"][row["metric"]]
    return entry


def _points(rows: list[dict[str, Any]]) -> float:
    """Return the mean difference of some comparisons, in points."""
    return sum(100 * _entry(row)["difference"] for row in rows) / len(rows)


def _doubtful(entry: dict[str, Any]) -> bool:
    """Say whether Holm's correction takes away what the interval shows."""
    return entry["verdict"] != "tie" and entry.get("p_holm", entry["p"]) >= 0.05


def _cost(rows: list[dict[str, Any]], methods: list[str], start: str) -> list[str]:
    """Say what the loss did, as the mean over the places of the study."""
    words = {}
    for method in methods:
        mine = [row for row in rows if row["method"] == method]
        if mine:
            nats = sum(row["difference"]["difference"] for row in mine) / len(mine)
            percent = sum(row["percent"] or 0.0 for row in mine) / len(mine)
            span = f"; {interval_text(mine[0]['difference'], 1, 3)}" if len(mine) == 1 else ""
            words[f"{signed(nats, 3)} nats ({signed(percent)} %{span}) with {method}"] = nats
    return [f"{start} {_all_or_ends(words, '{} to {}')}."] if words else []


def _all_or_ends(words: dict[str, float], ends: str) -> str:
    """Say all of a few methods; of many, put that of the lowest value and that of the highest into ``ends``."""
    if len(words) <= FEW:
        return joined(list(words))
    return ends.format(min(words, key=words.__getitem__), max(words, key=words.__getitem__))


def _kept(results: dict[str, Any], methods: list[str]) -> list[str]:
    """Say in one sentence what each method did to other tasks; nothing where that was not measured."""
    words = {}
    for method in methods:
        rows = [row for row in results.get("kept", []) if row["method"] == method and row.get("difference")]
        if rows:
            hurt = sum(_entry(row)["verdict"] == "loss" for row in rows)
            mean = _points(rows)
            words[f"{method} lost on {hurt} of {len(rows)} (mean {signed(mean)} points)"] = mean
    said = _all_or_ends(words, "at worst and at best {} and {}")
    return [f"On tasks of other domains, {said}."] if words else []


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
