"""What a reader sees: the report as one HTML file, tables for the terminal, and the answer in words."""

from acclimate.report.html import render, write_report
from acclimate.report.table import results_table
from acclimate.report.words import answer

__all__ = ["answer", "render", "results_table", "write_report"]
