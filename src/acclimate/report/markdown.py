"""The answer and the tables of a study as Markdown, to be put into an issue, a README or a paper's notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from acclimate.files import write_text
from acclimate.report.answer import answer
from acclimate.report.cells import Table
from acclimate.report.table import tables

SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\|*_`<>[]"})


def write_markdown(results: dict[str, Any], path: str | Path) -> Path:
    """Write :func:`markdown` to a file; return its path."""
    return write_text(path, markdown(results))


def markdown(results: dict[str, Any]) -> str:
    """Return notes, the answer in words with its caveats, every table, and what it was measured on.

    Args:
        results: As ``acclimate.compare`` returns and stores in ``results.json``.
    """
    environment = results.get("environment", {})
    packages = [name for name in ("acclimate", "torch", "transformers") if name in environment]
    where = ", ".join(f"{name} {environment[name]}" for name in packages)
    machine = ", ".join(part for part in (environment.get("processor"), where) if part)
    said = answer(results)
    parts = [f"# {_safe(results['title'] or results['name'])}", *map(_safe, results["notes"]), _safe(said["headline"])]
    parts += ["\n".join(f"- {_safe(caveat)}" for caveat in said["caveats"])] if said["caveats"] else []
    parts += [_table(table) for table in tables(results)]
    parts.append(_safe(f"Finished {results['finished'][:10]}" + (f" on {machine}." if machine else ".")))
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    rules = ["--:" if number else "---" for number in table.numeric]
    lines = [[_safe(name) for name in table.columns], rules]
    lines += [[_safe(entry.text) for entry in row] for row in table.rows]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join(part for part in (f"## {_safe(table.title)}", _safe(table.note), body) if part)


def _safe(text: str) -> str:
    """Keep what comes from data from being read as markup."""
    return " ".join(text.split()).translate(SPECIAL)
