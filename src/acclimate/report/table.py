"""The tables of results: once as plain rows, shown in the terminal and in the HTML report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from acclimate.report.words import (
    VERDICTS,
    interval_text,
    method_name,
    metric_name,
    metrics_of,
    place_name,
    plain,
    signed,
)

if TYPE_CHECKING:
    import rich.table


@dataclass
class Entry:
    """What stands in a cell of a table.

    Attributes:
        text: What is shown.
        value: What is sorted by; None sorts by the text.
        mark: ``"win"``, ``"loss"``, ``"tie"`` or nothing.
    """

    text: str
    value: float | None = None
    mark: str = ""


@dataclass
class Table:
    """A table: its title, an explanation, column names, which columns hold numbers, and rows."""

    title: str
    note: str
    columns: list[str]
    numeric: list[bool]
    rows: list[list[Entry]] = field(default_factory=list)


def tables(results: dict[str, Any]) -> list[Table]:
    """Return the tables of a study that have rows: scores, losses, what adaptations and distillations took."""
    made = [_scores(results), _losses(results), _adaptations(results), _distillations(results)]
    return [_without_constant(table) for table in made if table.rows]


def _scores(results: dict[str, Any]) -> Table:
    metrics = metrics_of(results["scores"])
    calibrated = any("ece" in row for row in results["scores"])
    judged = metric_name(metrics[0]) if metrics else ""
    names = ["model", "domain", "task", "method", judged]
    names += ["difference", "95 % interval", "in words", "p", "p (Holm)", *map(metric_name, metrics[1:])]
    names += ["p (these models)", *(["ECE"] if calibrated else [])]
    note = (
        f"Mean ± standard deviation over seeds, in points of 100. Difference: to {results['baseline']}, paired by "
        f"seed and test item, in the metric of the task ({judged} unless it says otherwise). Interval and p: "
        "bootstrap over test items joined with the variance over seeds. p (these models): permutation of test items, "
        "blind to the luck of the seeds."
    )
    if calibrated:
        note += " ECE: expected calibration error, how far confidence is from the share that is right; less is better."
    numeric = [name not in ("model", "domain", "task", "method", "in words") for name in names]
    table = Table("Scores on end tasks", note, names, numeric)
    for row in results["scores"]:
        cells = [Entry(row[name]) for name in ("model", "domain", "task", "method")]
        cells.append(_mean(row.get(metrics[0])))
        others = [_mean(row.get(metric)) for metric in metrics[1:]]
        last = [_mean(row.get("ece"))] if calibrated else []
        if row.get("difference"):
            entry = row["difference"][row["metric"]]
            unit = "" if row["metric"] == metrics[0] else f" ({metric_name(row['metric'])})"
            cells += [
                Entry(signed(100 * entry["difference"]) + unit, entry["difference"]),
                Entry(interval_text(entry, 100), entry["low"]),
                Entry(VERDICTS[entry["verdict"]], None, entry["verdict"]),
                _p(entry["p"]),
                _p(entry.get("p_holm")),
                *others,
                _p(entry["p_models"]),
                *last,
            ]
        else:
            word = "baseline" if row["method"] == results["baseline"] else "–"
            cells += [Entry("–"), Entry("–"), Entry(word), Entry("–"), Entry("–"), *others, Entry("–"), *last]
        table.rows.append(cells)
    return table


def _losses(results: dict[str, Any]) -> Table:
    names = ["model", "domain", "text", "method", "before", "after", "change", "95 % interval", "%", "in words"]
    note = (
        "Masked-LM loss in nats per masked token, 15 % of the tokens masked, the same masks for every method of a "
        "model; less is better. Interval: paired bootstrap over documents."
    )
    table = Table("What was learnt and what was forgotten", note, names, [False] * 4 + [True] * 5 + [False])
    for row in results["losses"]:
        cells = [Entry(row["model"]), Entry(row["domain"])]
        cells += [Entry("domain, held out" if row["text"] == "domain" else "general"), Entry(method_name(row))]
        after = Entry(plain(row["nats"], 3), row["nats"])
        if "difference" in row:
            entry = row["difference"]
            mark = _OPPOSITE[entry["verdict"]]
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
        table.rows.append(cells)
    return table


def _adaptations(results: dict[str, Any]) -> Table:
    names = ["model", "domain", "method", "seed", "tokens", "steps", "minutes", "tokens/s", "folder"]
    note = "Tokens of text that were read, and minutes of training without loading and tokenising."
    table = Table("What adaptation took", note, names, [False] * 3 + [True] * 5 + [False])
    for row in results["adaptations"]:
        tokens, seconds = row["tokens"] or 0, row["seconds"] or 0.0
        speed = tokens / seconds if seconds else 0.0
        table.rows.append(
            [
                Entry(row["model"] or ""),
                Entry(row["domain"] or "all"),
                Entry(method_name(row)),
                Entry("–" if row["seed"] is None else str(row["seed"]), row["seed"]),
                Entry(f"{tokens:,}", tokens),
                Entry(f"{row['steps'] or 0:,}", row["steps"]),
                Entry(f"{seconds / 60:.1f}", seconds),
                Entry(f"{speed:,.0f}" if speed else "–", speed),
                Entry(row["folder"]),
            ]
        )
    return table


def _distillations(results: dict[str, Any]) -> Table:
    names = ["model", "domain", "task", "method", "metric", "teacher", "student before", "after"]
    names += ["units that differ: before", "distilled", "at the end", "of", "minutes, teacher", "minutes, student"]
    note = (
        "Means over seeds, in points of 100. Units that differ: how many units of the representation are active in "
        "only one of teacher and student (Eq. 4 of DoKTra). Minutes: fine-tuning of the teacher, once; fine-tuning of "
        "the student and distillation, for each seed. How the teacher was adapted is not counted in either."
    )
    table = Table("What distillation took", note, names, [False] * 5 + [True] * 9)
    for row in results.get("distillations", []):
        curve = row["disagreement"]
        cells = [Entry(row[name]) for name in ("model", "domain", "task", "method")]
        cells.append(Entry(metric_name(row["metric"])))
        cells += [Entry(plain(100 * row[name]), row[name]) for name in ("teacher", "before", "after")]
        units = [curve[0], curve[row["distilled_epochs"]], curve[-1], row["units"]]
        cells += [Entry(plain(value, 0), value) for value in units]
        cells += [Entry(plain(row[name] / 60), row[name]) for name in ("teacher_seconds", "seconds")]
        table.rows.append(cells)
    return table


def _mean(score: dict[str, Any] | None) -> Entry:
    if score is None:
        return Entry("–")
    spread = "" if score["sd"] is None else f" ± {100 * score['sd']:.1f}"
    return Entry(f"{100 * score['mean']:.1f}{spread}", score["mean"])


def _p(value: float | None) -> Entry:
    return Entry("–") if value is None else Entry("< 0.001" if value < 0.001 else f"{value:.3f}", value)


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


_STYLES = {"win": "green", "loss": "red"}
_OPPOSITE = {"win": "loss", "loss": "win", "tie": "tie"}  # a loss that rises is bad news


def results_table(results: dict[str, Any]) -> list[rich.table.Table]:
    """Return the main tables for a terminal of 80 columns: scores, and losses. The report has all of them."""
    shown = []
    if results["scores"]:
        title = f"Scores, mean ± sd over seeds; difference to {results['baseline']} with 95 % interval"
        two = {tuple(row["metrics"][:2]) for row in results["scores"]}
        metrics = next(iter(two)) if len(two) == 1 else ()  # tasks of several kinds share no metric but their own
        names = [metric_name(metric) for metric in metrics] or ["score"]
        places = _by_place((place_name(results, row), _brief_score(row, metrics)) for row in results["scores"])
        shown.append(_terminal(title, ["", *names, "difference", ""], places))
    if results["losses"]:
        title = "Masked-LM loss in nats, before and after; change with 95 % interval"
        places = _by_place((_text_name(results, row), _brief_loss(row)) for row in results["losses"])
        shown.append(_terminal(title, ["", "before", "after", "change", "%"], places))
    return shown


def _by_place(rows: Iterable[tuple[str, list[Entry]]]) -> dict[str, list[list[Entry]]]:
    places: dict[str, list[list[Entry]]] = {}
    for place, row in rows:
        places.setdefault(place, []).append(row)
    return places


def _text_name(results: dict[str, Any], row: dict[str, Any]) -> str:
    name = "general text" if row["text"] == "general" else "held-out domain text"
    alone = len(results["models"]) == 1 and len(results["domains"]) == 1
    return name if alone else f"{place_name(results, {**row, 'task': None})}: {name}"


def _brief_score(row: dict[str, Any], metrics: Sequence[str]) -> list[Entry]:
    cells = [Entry(row["method"]), *(_mean(row.get(metric)) for metric in metrics or [row["metric"]])]
    if not row.get("difference"):
        return [*cells, Entry(""), Entry("")]
    entry = row["difference"][row["metric"]]
    span = f"{signed(100 * entry['difference'])} [{signed(100 * entry['low'])}, {signed(100 * entry['high'])}]"
    return [*cells, Entry(span), Entry(entry["verdict"], None, entry["verdict"])]


def _brief_loss(row: dict[str, Any]) -> list[Entry]:
    if "difference" not in row:
        return [Entry(method_name(row)), Entry(""), Entry(plain(row["nats"], 3)), Entry(""), Entry("")]
    entry = row["difference"]
    span = f"{signed(entry['difference'], 3)} [{signed(entry['low'], 3)}, {signed(entry['high'], 3)}]"
    return [
        Entry(method_name(row)),
        Entry(plain(row["before"], 3)),
        Entry(plain(row["nats"], 3)),
        Entry(span, None, _OPPOSITE[entry["verdict"]]),
        Entry("" if row["percent"] is None else signed(row["percent"])),
    ]


def _terminal(title: str, columns: list[str], places: dict[str, list[list[Entry]]]) -> rich.table.Table:
    """Make a table in which each place has a line of its own, and its methods follow."""
    import rich.box
    import rich.table
    from rich.text import Text

    made = rich.table.Table(title=title, title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    for place, rows in places.items():
        made.add_row(Text(place, style="bold"))
        for row in rows:
            texts = [Text(entry.text, style=_STYLES.get(entry.mark, "")) for entry in row]
            made.add_row(Text("  ") + texts[0], *texts[1:])
    return made
