"""What a study shows in a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from acclimate.report.cells import Entry, mean_entry
from acclimate.report.table import OPPOSITE
from acclimate.report.words import method_name, metric_name, place_name, plain, signed

if TYPE_CHECKING:
    import rich.table

_STYLES = {"win": "green", "loss": "red"}


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
    cells = [Entry(row["method"]), *(mean_entry(row.get(metric)) for metric in metrics or [row["metric"]])]
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
        Entry(span, None, OPPOSITE[entry["verdict"]]),
        Entry("" if row["percent"] is None else signed(row["percent"])),
    ]


def _terminal(title: str, columns: list[str], places: dict[str, list[list[Entry]]]) -> rich.table.Table:
    """Make a table in which each place has a line of its own, and its methods follow."""
    import rich.box
    import rich.table
    from rich.text import Text

    # As Text: a name with brackets is no markup.
    made = rich.table.Table(title=Text(title), title_justify="left", title_style="bold", box=rich.box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
    for place, rows in places.items():
        made.add_row(Text(place, style="bold"))
        for row in rows:
            texts = [Text(entry.text, style=_STYLES.get(entry.mark, "")) for entry in row]
            made.add_row(Text("  ") + texts[0], *texts[1:])
    return made
