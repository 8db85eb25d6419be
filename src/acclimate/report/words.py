"""Names and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

METRIC_NAMES = {
    "macro_f1": "macro-F1",
    "micro_f1": "micro-F1",
    "positive_micro_f1": "micro-F1 of the positive classes",
    "document_f1": "document F1",
    "f1": "F1",
    "mrr": "MRR",
}
VERDICTS = {"win": "helped", "loss": "hurt", "tie": "no difference shown"}


def metric_name(metric: str) -> str:
    """Name a metric for people."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def metrics_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """List the metrics of rows of scores, those of the first task first."""
    return list(dict.fromkeys(metric for row in rows for metric in row["metrics"]))


def signed(value: float, digits: int = 1) -> str:
    """Format with a sign, and a true minus; what rounds to zero has none."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def plain(value: float, digits: int = 1) -> str:
    """Format with a true minus; what rounds to zero has none."""
    text = f"{value:.{digits}f}".replace("-", "−")
    return text.lstrip("−") if not text.strip("−0.") else text


def p_text(p: float) -> str:
    """Write a p-value as ``p = 0.03`` or ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def interval_text(entry: dict[str, Any], scale: float = 1.0, digits: int = 1) -> str:
    """Write the two ends of an interval."""
    return f"{signed(scale * entry['low'], digits)} to {signed(scale * entry['high'], digits)}"


def joined(parts: Sequence[str], last: str = "and") -> str:
    """Join with commas and a word before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}" if parts else ""


def place_name(results: dict[str, Any], row: dict[str, Any]) -> str:
    """Name the place of a row; what is the same in the whole study is left out."""
    parts = []
    if len(results["models"]) > 1:
        parts.append(row["model"])
    if len(results["domains"]) > 1 or not row.get("task"):
        parts.append(row["domain"])
    if row.get("task") and row["task"] != row["domain"]:
        parts.append(row["task"])
    return " · ".join(parts) or row["domain"]


def method_name(row: dict[str, Any]) -> str:
    """Name the method of a row of losses or adaptations, and the task where it was adapted for that one alone."""
    return f"{row['method']}, {row['task']}" if row.get("task") else str(row["method"])
