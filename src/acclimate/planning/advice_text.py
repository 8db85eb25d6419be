"""The figures of `acclimate advise` in words: what they say, and what they cannot say."""

from __future__ import annotations

from typing import Any

LAST = (
    "Whether an end task gains. A lower loss on the text of the domain did not always help tasks, and helped most "
    "where there are few labels. Only a comparison on the task with several seeds shows it: acclimate compare."
)

SHOWN = 0.00005
"""Shares below it round to nothing."""
FAR = 10
"""Times the pilot beyond which a projection is called a guess."""


def in_words(report: dict[str, Any]) -> list[dict[str, str]]:
    """Return, for each figure, what it is ``about``, what it ``says`` and what it ``does_not_say``."""
    said = [_vocabulary(report["vocabulary"]), _fragmentation(report["fragmentation"]), _loss(report["loss"])]
    if "pilot" in report:
        said += [_pilot(report["pilot"]), _forgetting(report["pilot"])]
    else:
        said.append(
            {
                "about": "pilot",
                "says": "There was none, so nothing is known of how fast this model learns this text, or forgets.",
                "does_not_say": LAST,
            }
        )
    return said


def _vocabulary(found: dict[str, Any]) -> dict[str, str]:
    lines = []
    for pair, names in (("domain, general", "Domain and general text"), ("task, domain", "Task and domain")):
        if pair in found:
            one = found[pair]
            lines.append(
                f"{names}: {one['top']:.1%} of the {one['top_words']:,} most frequent words are shared; Jaccard of "
                f"the words in three documents or more {one['jaccard']:.1%}; on {one['words']:,} words of each."
            )
    return {
        "about": "vocabulary overlap",
        "says": " ".join(lines),
        "does_not_say": "What the words mean there, and whether the model knows them already. Both shares grow with "
        "the amount of text: compare them only with others of as many words. Gururangan et al. (2020) saw larger "
        "gains in domains with less overlap, on four domains and one model; that is no law.",
    }


def _fragmentation(found: dict[str, Any]) -> dict[str, str]:
    domain, general = found["domain"], found["general"]
    ratio = domain["pieces"] / general["pieces"] if general["pieces"] else 1.0
    examples = f" Cut most often: {', '.join(domain['examples'])}." if domain["examples"] else ""
    unknown = ""
    if domain["unknown"] >= SHOWN:
        unknown = f" {domain['unknown']:.2%} hold a part that it does not know at all."
    return {
        "about": "fragmentation",
        "says": f"The tokenizer cuts a word of the domain into {domain['pieces']:.2f} pieces, of general text into "
        f"{general['pieces']:.2f} ({ratio:.2f} times as many); {domain['split']:.1%} of the words of the domain are "
        f"cut, {general['split']:.1%} of general text.{examples}{unknown}",
        "does_not_say": "That the model cannot learn those words: adaptation teaches it their pieces in context. The "
        "vocabulary itself stays as it is.",
    }


def _loss(found: dict[str, Any]) -> dict[str, str]:
    lines = []
    for name in ("domain", "task"):
        if name in found:
            above = found[name]["above_general"]
            span = f"{_signed(above['difference'])} nats against general text, 95 % {_span(above)}"
            word = _by_side(
                above,
                "reads it worse than general text",
                "reads it better than general text already",
                "reads it about as well as general text, as far as these documents can show",
            )
            text = "Held-out text of the domain" if name == "domain" else "Train text of the task"
            loss = f"{found[name]['nats']:.3f} nats, {found[name]['bits_per_byte']:.3f} bits per byte"
            lines.append(f"{text}: {loss} ({span}): the model {word}.")
    general = found["general"]
    lines.append(f"General text: {general['nats']:.3f} nats, {general['bits_per_byte']:.3f} bits per byte.")
    return {
        "about": "masked-LM loss of the model as it is",
        "says": " ".join(lines),
        "does_not_say": "How much of the gap adaptation can close: some text is harder for every model. Nats count by "
        "token and so fall where words are cut into more pieces; bits per byte do not.",
    }


def _pilot(pilot: dict[str, Any]) -> dict[str, str]:
    change = pilot["change"]["domain"]
    minutes = pilot["seconds"] / 60
    said = (
        f"{pilot['steps']:,} steps of {pilot['batch_size']} texts ({pilot['tokens']:,} tokens, {minutes:.1f} minutes) "
        f"changed the loss on held-out text of the domain by {_signed(change['difference'])} nats, 95 % "
        f"{_span(change)}, from {change['before']:.3f} to {change['after']:.3f}."
    )
    if change["low"] <= 0 <= change["high"]:
        said += " These documents cannot tell that from no change."
    elif change["low"] > 0:
        said += " It got worse: lower the learning rate before you do more."
    projection = pilot.get("projection")
    unsaid = ""
    if projection:
        unsaid = (
            "That the curve goes on: the intervals know the scatter of ten points around a curve and nothing of a "
            "bend. "
        )
        fits = [name for name in ("log-linear", "power law") if name in projection]
        ranges = "; ".join(
            f"{name} {_signed(projection[name]['value'])} nats, 95 % {_span(projection[name])}" for name in fits
        )
        low, high = (pick(projection[name][end] for name in fits) for pick, end in ((min, "low"), (max, "high")))
        said += (
            f" If the curve goes on, one pass over the corpus ({projection['steps']:,} such steps, "
            f"{projection['beyond']:.0f} times the pilot) changes it from the start by: {ranges}. Taken together: "
            f"{_span({'low': low, 'high': high})}."
        )
        if projection["beyond"] > FAR:
            said += f" More than {FAR} times the pilot is far: take it for a guess, or make the pilot longer."
    return {
        "about": "pilot",
        "says": said,
        "does_not_say": unsaid
        + "The learning rate of the pilot falls to zero at its end, which flatters its last points. "
        + LAST,
    }


def _forgetting(pilot: dict[str, Any]) -> dict[str, str]:
    change = pilot["change"]["general"]
    better, neither = "It got better at general text, too", "No change that these documents can show"
    word = _by_side(change, "It forgot", better, neither)
    return {
        "about": "forgetting after the pilot",
        "says": f"{word}: the loss on general text changed by {_signed(change['difference'])} nats, 95 % "
        f"{_span(change)}, from {change['before']:.3f} to {change['after']:.3f}.",
        "does_not_say": "What a whole run forgets, which is mostly more, and what tasks of other domains lose: "
        "'other_tasks' in a study measures that.",
    }


def _by_side(entry: dict[str, float], above: str, below: str, neither: str) -> str:
    """Choose words by where an interval lies: above zero, below it, or on both sides."""
    return above if entry["low"] > 0 else below if entry["high"] < 0 else neither


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _span(entry: dict[str, float]) -> str:
    return f"{_signed(entry['low'])} to {_signed(entry['high'])}"
