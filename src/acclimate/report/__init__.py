"""What a reader sees: the report as one HTML file, tables for the terminal, and the answer in words."""

from acclimate.report.answer import answer
from acclimate.report.html import render, write_report
from acclimate.report.markdown import markdown, write_markdown
from acclimate.report.terminal import results_table

__all__ = ["answer", "markdown", "render", "results_table", "write_markdown", "write_report"]
