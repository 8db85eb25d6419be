"""What the report shows of masked texts."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from acclimate.report.masked_text import FATES, IMPORTANT, as_html


def masked_samples(results: dict[str, Any]) -> dict[str, Any] | None:
    """Return samples of text, each as every masking of the study would hide it, ready for the template.

    Returns:
        ``texts``, for each its ``name`` and ``maskings``, pairs of a label and HTML; and ``legend``, pairs of a class
        and what it means, of those that occur. None if the study kept no samples.
    """
    samples = results.get("masked") or []
    pieces = [piece for sample in samples for hidden in sample["maskings"].values() for piece in hidden]
    if not pieces:
        return None
    occurring = {piece["fate"] for piece in pieces}
    legend: list[tuple[str, str]] = [(fate, note) for fate, note in FATES.items() if fate in occurring]
    if any(piece.get("important") for piece in pieces):
        legend.append(("important", IMPORTANT))
    several = len({sample["place"] for sample in samples}) > 1
    texts: list[dict[str, Any]] = []
    for number, sample in enumerate(samples, 1):
        shown: list[tuple[str, Markup]] = [(label, as_html(hidden)) for label, hidden in sample["maskings"].items()]
        texts.append({"name": f"Text {number}" + (f", {sample['place']}" if several else ""), "maskings": shown})
    return {"texts": texts, "legend": legend}
