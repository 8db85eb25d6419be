"""Text of `acclimate advise`: what each measurement says, and what it does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acclimate.models.kinds import get_kind
from acclimate.results.cells import signed

NOT_ABOUT_TASKS = (
    "Whether an end task improves. A lower loss on domain text does not always help, and helps most with few labels. "
    "Only a comparison on the task with several seeds shows it: acclimate compare."
)
NEGLIGIBLE = 0.00005
"""Shares below this round to zero and are not mentioned."""
LITTLE_TEXT, MUCH_TEXT = 1e6, 1e8
"""Tokens of a corpus below which it is called little text, and from which on it is called much."""
MAX_EXTRAPOLATION = 10
"""Multiple of the pilot beyond which a projection is called unreliable."""


def advice_text(report: dict[str, Any]) -> list[dict[str, str]]:
    """Return for each measurement a title (``about``), what it ``says``, and what it ``does_not_say``."""
    parts = [_vocabulary(report["vocabulary"]), _fragmentation(report["fragmentation"]), _loss(report["loss"])]
    if "pilot" in report:
        parts += [_pilot(report["pilot"]), _forgetting(report["pilot"])]
    else:
        parts.append(
            {
                "about": "pilot",
                "says": "No pilot was run, so it is unknown how fast this model learns this text, or forgets.",
                "does_not_say": NOT_ABOUT_TASKS,
            }
        )
    found = report["recommendation"]
    says = " ".join([found["says"], *found["reasons"]])
    return [*parts, {"about": "recommendation", "says": says, "does_not_say": NOT_ABOUT_TASKS}]


def verdict(found: dict[str, Any]) -> str:
    """Return a few sentences on what a quick measurement says.

    Args:
        found: From :func:`acclimate.labs.advise.advice.measure_distance`.
    """
    sizes = (("little text", LITTLE_TEXT), ("a moderate amount of text", MUCH_TEXT), ("much text", float("inf")))
    size = next(words for words, most in sizes if found["tokens"] < most)
    parts = [f"{found['documents']:,} documents with about {_two_digits(found['tokens']):,} tokens, {size}."]
    above = found.get("loss", {}).get("domain", {}).get("above_general")
    if above:
        difference = f"{signed(above['difference'], 3)} {above['unit']}, 95 % interval {interval(above)}"
        parts.append(
            _by_sign(
                above,
                f"The base model predicts the domain worse than general text ({difference}), so it has something to "
                "learn.",
                f"The base model predicts the domain better than general text ({difference}): the loss is no sign of "
                "an unfamiliar domain.",
                f"The base model predicts the domain about as well as general text ({difference}): the loss of these "
                "texts is no sign of an unfamiliar domain.",
            )
        )
    elif "loss" not in found:
        parts.append("The base model has no language-model head, so its loss is not measured.")
    pair, split = found["vocabulary"].get("domain, general"), found["fragmentation"]
    if pair:
        domain, general = (f"{split[name]['pieces']:.2f}" for name in ("domain", "general"))
        parts.append(
            f"In {pair['words']:,} words of each, the two share {pair['top']:.0%} of the most frequent ones; a word "
            f"takes {domain} tokens in the domain and {general} in general text."
        )
    else:
        parts.append("No general text is given, so the distance to it is not measured.")
    return " ".join(parts)


def _two_digits(number: float) -> int:
    return int(float(f"{number:.1e}"))


def _vocabulary(found: dict[str, Any]) -> dict[str, str]:
    lines = []
    for pair, names in (("domain, general", "Domain and general text"), ("task, domain", "Task and domain")):
        if pair in found:
            one = found[pair]
            lines.append(
                f"{names}: {one['top']:.1%} of the {one['top_words']:,} most frequent words are shared; the Jaccard "
                f"similarity of words in at least three documents is {one['jaccard']:.1%}; on {one['words']:,} words "
                "of each."
            )
    return {
        "about": "vocabulary overlap",
        "says": " ".join(lines),
        "does_not_say": "What the words mean in this domain, or whether the model already knows them. Both shares "
        "grow with the amount of text: compare them only for equal amounts. Gururangan et al. (2020) found larger "
        "gains in domains with less overlap, on four domains and one model; this does not hold in general.",
    }


def _fragmentation(found: dict[str, Any]) -> dict[str, str]:
    domain, general = found["domain"], found["general"]
    ratio = domain["pieces"] / general["pieces"] if general["pieces"] else 1.0
    examples = f" Most frequent fragmented words: {', '.join(domain['examples'])}." if domain["examples"] else ""
    unknown = ""
    if domain["unknown"] >= NEGLIGIBLE:
        unknown = f" {domain['unknown']:.2%} contain an unknown token."
    return {
        "about": "fragmentation",
        "says": f"The tokenizer needs {domain['pieces']:.2f} tokens per word in the domain and "
        f"{general['pieces']:.2f} in general text (ratio {ratio:.2f}); it splits {domain['split']:.1%} of the words "
        f"in the domain and {general['split']:.1%} in general text.{examples}{unknown}",
        "does_not_say": "That the model cannot learn those words: adaptation teaches it their pieces in context. The "
        "vocabulary itself does not change.",
    }


def _loss(found: dict[str, Any]) -> dict[str, str]:
    lines = []
    for name in ("domain", "task"):
        if name in found:
            above = found[name]["above_general"]
            change = f"{signed(above['difference'], 3)} {above.get('unit', 'nats')}"
            difference = f"{change} against general text, 95 % interval {interval(above)}"
            verdict = _by_sign(
                above,
                "worse than on general text",
                "already better than on general text",
                "not measurably different from general text with these documents",
            )
            text = "Held-out domain text" if name == "domain" else "Train text of the task"
            loss = f"{found[name]['nats']:.3f} nats, {found[name]['bits_per_byte']:.3f} bits per byte"
            lines.append(f"{text}: {loss} ({difference}): {verdict}.")
    general = found["general"]
    lines.append(f"General text: {general['nats']:.3f} nats, {general['bits_per_byte']:.3f} bits per byte.")
    return {
        "about": f"{get_kind(general['kind']).loss_name} of the base model",
        "says": " ".join(lines),
        "does_not_say": "How much of the gap adaptation can close: some text is harder for every model. Nats are per "
        "token and therefore lower where words are split into more tokens; bits per byte are not.",
    }


def _pilot(pilot: dict[str, Any]) -> dict[str, str]:
    change = pilot["change"]["domain"]
    minutes = pilot["seconds"] / 60
    says = (
        f"{pilot['steps']:,} steps of {pilot['batch_size']} texts ({pilot['tokens']:,} tokens, {minutes:.1f} minutes) "
        f"changed the loss on held-out domain text by {signed(change['difference'], 3)} nats, 95 % interval "
        f"{interval(change)}, from {change['before']:.3f} to {change['after']:.3f}."
    )
    if change["low"] <= 0 <= change["high"]:
        says += " The interval includes no change."
    elif change["low"] > 0:
        says += " The loss increased: lower the learning rate before you train longer."
    projection = pilot.get("projection")
    limits = ""
    if projection:
        limits = (
            "That the learning curve continues as it began: the intervals cover the scatter of ten points around a "
            "curve, not a change in its shape. "
        )
        fits = [name for name in ("log-linear", "power law") if name in projection]
        ranges = "; ".join(
            f"{name} {signed(projection[name]['value'], 3)} nats, 95 % interval {interval(projection[name])}"
            for name in fits
        )
        low, high = (pick(projection[name][end] for name in fits) for pick, end in ((min, "low"), (max, "high")))
        says += (
            f" If the learning curve continues, one pass over the corpus ({projection['steps']:,} steps, "
            f"{projection['beyond']:.0f} times the pilot) changes the loss in total by: {ranges}; both combined: "
            f"{interval({'low': low, 'high': high})}."
        )
        if projection["beyond"] > MAX_EXTRAPOLATION:
            says += (
                f" Extrapolating beyond {MAX_EXTRAPOLATION} times the pilot is unreliable; run a longer pilot for a "
                "better estimate."
            )
    return {
        "about": "pilot",
        "says": says,
        "does_not_say": limits
        + "The learning rate of the pilot decays to zero, which makes its last points look better. "
        + NOT_ABOUT_TASKS,
    }


def _forgetting(pilot: dict[str, Any]) -> dict[str, str]:
    change = pilot["change"]["general"]
    verdict = _by_sign(change, "Forgetting", "Improvement on general text as well", "No measurable change")
    return {
        "about": "forgetting after the pilot",
        "says": f"{verdict}: the loss on general text changed by {signed(change['difference'], 3)} nats, 95 % "
        f"interval {interval(change)}, from {change['before']:.3f} to {change['after']:.3f}.",
        "does_not_say": "How much a full run forgets, which is usually more, or how much tasks of other domains lose: "
        "'other_tasks' in a study measures that.",
    }


def _by_sign(entry: dict[str, float], above: str, below: str, neither: str) -> str:
    """Choose a text by whether an interval lies above zero, below it, or includes it."""
    return above if entry["low"] > 0 else below if entry["high"] < 0 else neither


def interval(entry: Mapping[str, float]) -> str:
    """Return the ends of an interval."""
    return f"{signed(entry['low'], 3)} to {signed(entry['high'], 3)}"
