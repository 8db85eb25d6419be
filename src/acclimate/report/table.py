"""The tables of results, as plain rows for the HTML report and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acclimate.report.accounts import accounts
from acclimate.report.cells import Entry, Table, mean_entry, p_entry
from acclimate.report.lost import kept, leakage, moved, repeated
from acclimate.report.searched import searched
from acclimate.report.took import adaptations, distillations, scored
from acclimate.report.words import VERDICTS, interval_text, method_name, metric_name, metrics_of, plain, signed

OPPOSITE = {"win": "loss", "loss": "win", "tie": "tie"}
"""What a verdict on a loss means for people: a loss that rises is bad news."""


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the tables of a study that have rows: scores, losses, and what they took."""
    made = [_tally(results), _scores(results), _losses(results), kept(results), moved(results)]
    made += [leakage(results), repeated(results), scored(results), adaptations(results), accounts(results)]
    made += [distillations(results), *map(_extra, results.get("sections", [])), searched(results)]
    return [_without_constant(table) for table in made if table.rows]


def _extra(section: Mapping[str, Any]) -> Table:
    """Return the table of a :class:`acclimate.results.Section`, which a further kind of job brings."""
    digits, places = section["digits"], range(len(section["columns"]))
    numeric = [all(isinstance(row[place], int | float | None) for row in section["rows"]) for place in places]
    table = Table(section["title"], section["note"], list(section["columns"]), numeric)
    for row in section["rows"]:
        table.rows.append([_extra_entry(value, digits) for value in row])
    return table


def _extra_entry(value: Any, digits: int) -> Entry:
    if isinstance(value, float):
        return Entry(plain(value, digits), value)
    return Entry("–") if value is None else Entry(f"{value:,}", value) if isinstance(value, int) else Entry(str(value))


def _tally(results: dict[str, Any]) -> Table:
    """Count wins, ties and losses; a study of one task says as much in its scores."""
    names = ["model", "method", "tasks", "helped", "no difference shown", "hurt", "helped (Holm)", "hurt (Holm)"]
    note = (
        f"On how many tasks the 95 % interval of the difference to {results['baseline']} lies above zero, includes "
        "it, or lies below; and on how many it still does after Holm's correction for all comparisons of the study. "
        "Mean: of the differences over the tasks, in points of 100, each task in its own metric. Tasks count alike, "
        "however many test items they have."
    )
    table = Table("Wins, ties and losses over tasks", note, [*names, "mean"], [False] * 2 + [True] * 7)
    counted = ("tasks", "win", "tie", "loss", "win_holm", "loss_holm")
    for row in results.get("tally", []):
        if max(other["tasks"] for other in results["tally"]) > 1:
            counts = [Entry(str(row[name]), row[name]) for name in counted]
            mean = Entry(signed(100 * row["mean"]), row["mean"])
            table.rows.append([Entry(row["model"]), Entry(row["method"]), *counts, mean])
    return table


def _scores(results: dict[str, Any]) -> Table:
    metrics = metrics_of(results["scores"])
    calibrated = any("ece" in row for row in results["scores"])
    judged = metric_name(metrics[0]) if metrics else ""
    names = ["model", "domain", "task", "method", judged]
    names += ["difference", "95 % interval", "in words", "p", "p (Holm)", *map(metric_name, metrics[1:])]
    names += ["p (t-test)", "p (these models)", *(["ECE"] if calibrated else [])]
    note = (
        f"Mean ± standard deviation over seeds, in points of 100. Difference: to {results['baseline']}, paired by "
        f"seed and test item, in the metric of the task ({judged} unless it says otherwise). Interval and p: "
        "bootstrap over test items joined with the variance over seeds. p (Holm): corrected for all comparisons of "
        "the study. p (t-test): of the scores over seeds, blind to the luck of the test items. p (these models): "
        "permutation of test items, blind to the luck of the seeds."
    )
    if calibrated:
        bins = {round(1 / (entry["high"] - entry["low"])) for row in results["scores"] for entry in _bins(row)}
        over = f", over {' or '.join(map(str, sorted(bins)))} bins of equal width" if bins else ""
        note += (
            f" ECE: expected calibration error, how far confidence is from the share that is right{over}; less is "
            "better."
        )
    numeric = [name not in ("model", "domain", "task", "method", "in words") for name in names]
    table = Table("Scores on end tasks", note, names, numeric)
    for row in results["scores"]:
        cells = [Entry(row[name]) for name in ("model", "domain", "task", "method")]
        cells.append(mean_entry(row.get(metrics[0])))
        others = [mean_entry(row.get(metric)) for metric in metrics[1:]]
        last = [mean_entry(row.get("ece"))] if calibrated else []
        if row.get("difference"):
            entry = row["difference"][row["metric"]]
            unit = "" if row["metric"] == metrics[0] else f" ({metric_name(row['metric'])})"
            cells += [
                Entry(signed(100 * entry["difference"]) + unit, entry["difference"]),
                Entry(interval_text(entry, 100), entry["low"]),
                Entry(VERDICTS[entry["verdict"]], None, entry["verdict"]),
                p_entry(entry["p"]),
                p_entry(entry.get("p_holm")),
                *others,
                p_entry(entry.get("p_t")),
                p_entry(entry["p_models"]),
                *last,
            ]
        else:
            word = "baseline" if row["method"] == results["baseline"] else "–"
            cells += [
                Entry("–"),
                Entry("–"),
                Entry(word),
                Entry("–"),
                Entry("–"),
                *others,
                Entry("–"),
                Entry("–"),
                *last,
            ]
        table.rows.append(cells)
    return table


def _bins(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the bins of confidence of a row of scores, if it has any."""
    return row.get("reliability") or []


def _losses(results: dict[str, Any]) -> Table:
    names = ["model", "domain", "text", "method", "before", "after", "change", "95 % interval", "%", "in words"]
    note = (
        "Masked-LM loss in nats per masked token, 15 % of the tokens masked, the same masks for every method of a "
        "model; less is better. Interval: paired bootstrap over documents."
    )
    numeric = [False] * 4 + [True] * 5 + [False]
    if any("bits_per_byte" in row for row in results["losses"]):
        names += ["bits per byte: before", "after"]
        numeric += [True, True]
        note += (
            " Bits per byte: the same loss for every token read, over the bytes of UTF-8 that these stand for, so "
            "that vocabularies compare; a pseudo-measure, as each token is guessed from both sides."
        )
    table = Table("What was learnt and what was forgotten", note, names, numeric)
    for row in results["losses"]:
        cells = [Entry(row["model"]), Entry(row["domain"])]
        cells += [Entry("domain, held out" if row["text"] == "domain" else "general"), Entry(method_name(row))]
        after = Entry(plain(row["nats"], 3), row["nats"])
        if "difference" in row:
            entry = row["difference"]
            mark = OPPOSITE[entry["verdict"]]
            word = {"win": "lower", "loss": "higher", "tie": "no change shown"}[mark]
            percent = row["percent"]
            cells += [
                Entry(plain(row["before"], 3), row["before"]),
                after,
                Entry(signed(entry["difference"], 3), entry["difference"]),
                Entry(interval_text(entry, 1, 3), entry["low"]),
                Entry("–") if percent is None else Entry(signed(percent), percent),
                Entry(word, None, mark),
            ]
        else:
            cells += [Entry("–"), after, *[Entry("–")] * 4]
        if "bits per byte: before" in names:
            bits = [row.get(name) for name in ("bits_per_byte_before", "bits_per_byte")]
            cells += [Entry("–") if value is None else Entry(plain(value, 3), value) for value in bits]
        table.rows.append(cells)
    return table


def _without_constant(table: Table) -> Table:
    """Leave out the columns that say the same in a study of one model or one domain."""
    dropped = {
        place
        for place, name in enumerate(table.columns)
        if name in ("model", "domain", "seed") and len({row[place].text for row in table.rows}) == 1
    }
    kept = [place for place in range(len(table.columns)) if place not in dropped]
    rows = [[row[place] for place in kept] for row in table.rows]
    numeric = [table.numeric[place] for place in kept]
    return Table(table.title, table.note, [table.columns[place] for place in kept], numeric, rows)
