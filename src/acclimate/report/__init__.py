"""The report of a study: an HTML page, Markdown, terminal tables, and a summary in words."""

from pathlib import Path

from acclimate.base.files import write_json
from acclimate.report.page import render, write_report
from acclimate.report.summary import summarize
from acclimate.report.text import markdown, results_table, write_markdown, write_tables
from acclimate.results.study import PAGE, REPORT, RESULTS, StudyResults


def write_results(results: StudyResults, folder: Path) -> None:
    """Write ``results.json``, ``results.md``, ``report.html``, ``results.csv`` and ``results.tex`` into a folder."""
    write_json(folder / RESULTS, results.to_dict())  # first: the numbers remain if a figure cannot be drawn
    write_markdown(results, folder / PAGE)
    write_report(results, folder / REPORT)
    write_tables(results, folder)


__all__ = [
    "markdown",
    "render",
    "results_table",
    "summarize",
    "write_markdown",
    "write_report",
    "write_results",
    "write_tables",
]
