"""The report of a study: an HTML page, Markdown, terminal tables, and a summary in words."""

from acclimate.report.page import render, write_report
from acclimate.report.summary import summarize
from acclimate.report.text import markdown, results_table, write_markdown, write_tables

__all__ = ["markdown", "render", "results_table", "summarize", "write_markdown", "write_report", "write_tables"]
