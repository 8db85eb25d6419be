"""The measured rows as a table: for the terminal, and for the page in ``docs/``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acclimate.errors import UserError
from benchmarks.rows import ROWS

BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"


def _goal(row: dict[str, Any]) -> str:
    return f"{'>=' if row['kind'] == 'speed' else '<='} {row['goal']:g} x"


def _amount(row: dict[str, Any], side: str) -> str:
    if row["kind"] == "memory":
        return f"{row[side] / 2**20:,.0f} MiB"
    return f"{row[side]:,.0f}"


def _spread(row: dict[str, Any]) -> str:
    return "" if row["rounds"] == 1 else f"{row['lowest']:.2f} to {row['highest']:.2f}"


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table with aligned columns; rates are real tokens per second."""
    head = ["work", "against", "precision", "goal", "median", "spread", "rounds", "ours", "theirs", ""]
    lines = [head]
    for row in rows:
        lines.append([
            row["work"], row["against"], row["precision"], _goal(row), f"{row['ratio']:.2f} x", _spread(row),
            str(row["rounds"]), _amount(row, "ours"), _amount(row, "theirs"), "met" if row["met"] else "SHORT",
        ])  # fmt: skip
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def in_order(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of several runs in the order of the goals."""
    order = {row.key: place for place, row in enumerate(ROWS)}
    rows = [row for result in results for row in result["rows"]]
    return sorted(rows, key=lambda row: (order.get(row["key"], len(order)), row["precision"] != "fp32"))


def _how(result: dict[str, Any]) -> str:
    """Say when, where and how a run was made."""
    where, how = result["machine"], result["settings"]
    place = f"{where['processor']}, {where['threads']} threads" + (
        f", {where['accelerator']}" if "accelerator" in where else ""
    )
    kind = "quick look" if how["quick"] else "full run"
    shapes = ", ".join(dict.fromkeys(row["shape"] for row in result["rows"]))
    return (
        f"{result['date']}, {kind} ({shapes}), {result['minutes']:.0f} minutes: {how['rounds']} rounds, turns of at "
        f"least {how['seconds']:g} s, {how['batch']} texts a step of ours. {place}; torch {where['torch']}, "
        f"transformers {where['transformers']}."
    )


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Return the section of the page: when, where and how, the table, and what falls short."""
    rows = in_order(results)
    lines = [
        *dict.fromkeys(_how(result) for result in results),
        "Each figure is the median over rounds, in brackets the lowest and the highest.",
        "Rates are real tokens a second.",
        "",
        "| work | against | | goal | measured | ours | theirs | |",
        "|---|---|---|---|---|--:|--:|---|",
    ]
    for row in rows:
        spread = f" ({_spread(row)})" if _spread(row) else ""
        cells = [
            row["work"], row["against"], row["precision"], _goal(row), f"{row['ratio']:.2f} x{spread}",
            _amount(row, "ours"), _amount(row, "theirs"), "met" if row["met"] else "**short**",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    short = sum(not row["met"] for row in rows)
    lines += ["", f"{short} of {len(rows)} goals fall short." if short else "Every goal that was measured is met."]
    timed = [row for row in rows if row["kind"] != "memory"]
    measured = {f"{row['shape']} {row['precision']}{mark}" for row in timed for mark in ("", f" {row['key']}")}
    failed = {name for result in results for name in result["failed"]} - measured  # what one run missed, another has
    if failed:
        lines += ["", f"Not measured, because a contender failed: {', '.join(sorted(failed))}."]
    return "\n".join(lines)


def update_page(page: Path, results: Sequence[dict[str, Any]]) -> None:
    """Replace what stands between the markers of a page.

    Raises:
        UserError: If the page has no such markers.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"'{page}' lacks the lines '{BEGIN}' and '{END}', between which the table goes.")
    page.write_text(f"{before}{begin}\n\n{markdown(results)}\n\n{end}{after}", encoding="utf-8")
