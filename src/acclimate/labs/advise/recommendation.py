"""The end of `acclimate advise`: one recommendation from all measurements and plans, with its uncertainty."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from acclimate.labs.advise.advice_text import LITTLE_TEXT

SMALL_REPLAY = 0.05
"""Share of general text against forgetting without a plan: a few percent prevented most of it in EvoLM (2025)."""
LARGE_MODEL = 1e9
"""Weights from which on the memory of the optimizer is mentioned."""
MANY_LABELS = 10_000
"""Labelled examples from which on adaptation is expected to add little: its gains are largest with few labels."""
LABEL, LOWER, MEASURE, TASK_TEXT, ADAPT = "label more", "lower the learning rate", "run a pilot", "task text", "adapt"


@dataclass
class Recommendation:
    """Recommended action, with reasons.

    Attributes:
        action: One of the constants of this module.
        says: The recommendation in a sentence.
        reasons: What it rests on.
        options: Options of ``adapt`` that it sets.
        expected_gain: Fall of the loss in the pilot on the ``text`` of the task, or of the domain without one, in
            nats, with its interval; None without a pilot. Pairs of a domain and a task can be ranked by it.
    """

    action: str
    says: str
    reasons: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    expected_gain: dict[str, Any] | None = None


def recommend(report: Mapping[str, Any]) -> Recommendation:
    """Return the recommendation that the measurements of :func:`acclimate.advise` and given plans lead to.

    The rules, in this order: a pilot that harms asks for a lower learning rate; a plan of a budget that decides for
    labels is followed; a pilot that changes nothing ends in labels; one that helps domain text, but not the text of
    the task, in text of the task; else the model should be adapted.

    Args:
        report: The measurements; ``plans`` as :func:`acclimate.labs.plan.plans.read_plan` returns them.
    """
    plans = {plan["plan"]: plan for plan in report.get("plans", ())}
    pilot = report.get("pilot")
    gain = None if pilot is None else _expected_gain(pilot["change"])
    made = _choose(pilot, plans)
    made.expected_gain = gain
    if gain is not None:
        made.reasons.append(
            f"In the pilot, the loss on {gain['text']} fell by {gain['value']:.3f} nats (95 % interval "
            f"{gain['low']:.3f} to {gain['high']:.3f})."
        )
    made.reasons += list(_plan_reasons(plans))
    if made.action == ADAPT:
        _add_replay(made, pilot, plans.get("ratio"))
        _add_schedule(made, plans.get("schedule"))
        made.reasons += list(_size_rules(report, planned="tokens" in made.options or "steps" in made.options))
    return made


def _expected_gain(change: Mapping[str, Any]) -> dict[str, Any]:
    text = "task" if "task" in change else "domain"
    found = change[text]
    name = "text of the task" if text == "task" else "held-out domain text"
    return {"text": name, "value": -found["difference"], "low": -found["high"], "high": -found["low"]}


def _choose(pilot: Mapping[str, Any] | None, plans: Mapping[str, Any]) -> Recommendation:
    """Return the action, without what plans and sizes add to it."""
    budget = plans.get("budget", {})
    decisions = set() if budget.get("refused") else {made["decision"] for made in budget.get("budgets", ())}
    if pilot is not None and pilot["change"]["domain"]["low"] > 0:
        return Recommendation(
            LOWER, "Lower the learning rate: the pilot made held-out domain text harder for the model."
        )
    if decisions == {"annotate"}:
        return Recommendation(LABEL, "Spend the budget on labels: by the plan, adapting costs more than it gains.")
    if pilot is None:
        return Recommendation(MEASURE, "Run a pilot before you decide: without one, nothing is known about the gain.")
    change = pilot["change"]
    if change["domain"]["high"] >= 0:
        return Recommendation(
            LABEL, "Do not adapt yet: the pilot shows no gain on held-out domain text. More labels are the better use."
        )
    if "task" in change and change["task"]["high"] >= 0:
        return Recommendation(
            TASK_TEXT,
            "Adapt to text that is nearer to the task: the pilot improves domain text, but shows no gain on text of "
            "the task. Select its nearest neighbors (acclimate select), or adapt to its own texts (--method tapt).",
        )
    made = Recommendation(ADAPT, "Adapt the model.")
    found = pilot.get("specificity")
    if found and found["high"] < 0:
        made.reasons.append(
            "General text gains more from the pilot than text of the task: the domain is not what helps."
        )
    elif found and found["low"] > 0:
        made.reasons.append(
            f"Text of the task gains {found['difference']:.3f} {found['unit']} more than general text (95 % interval "
            f"{found['low']:.3f} to {found['high']:.3f}): the domain is what helps."
        )
    return made


def _plan_reasons(plans: Mapping[str, Any]) -> Iterator[str]:
    for kind, plan in plans.items():
        yield f"Plan of the {kind}: {plan['lines'][0]}"


def _add_replay(made: Recommendation, pilot: Mapping[str, Any] | None, ratio: Mapping[str, Any] | None) -> None:
    """Add the share of general text to replay: from a plan, or a small one if the pilot forgets."""
    if ratio is not None and not ratio["refused"] and ratio["share"]["value"] is not None:
        made.options["tokens"] = ratio["target_tokens"]
        if (share := round(1 - ratio["share"]["value"], 3)) > 0:
            made.options["replay"] = share
            made.says = f"Adapt the model with {share:.0%} of general text."
    elif pilot is not None and pilot["change"]["general"]["low"] > 0:
        made.options["replay"] = SMALL_REPLAY
        made.says = f"Adapt the model with {SMALL_REPLAY:.0%} of general text."
        made.reasons.append(
            "The pilot forgets: replay a few percent of general text (EvoLM, Qi et al., 2025), or find the share with "
            "acclimate plan ratio."
        )


def _add_schedule(made: Recommendation, schedule: Mapping[str, Any] | None) -> None:
    """Add the schedule of a plan that shows it to be better for the domain than the others."""
    if schedule is None or schedule["refused"] or schedule["loss"] == "general":
        return
    if not (schedule["difference"] or {"low": 1})["low"] > 0:
        return
    shape, *settings = schedule["best"].split()
    given = dict(setting.split("=") for setting in settings)
    made.options |= {"steps": int(given["steps"]), "learning_rate": float(given["peak"])}
    made.options.pop("tokens", None)
    if shape != "linear":
        made.options["schedule"] = f"{shape} decay={given['decay']}" if shape == "wsd" else shape


def _size_rules(report: Mapping[str, Any], planned: bool) -> Iterator[str]:
    """Yield what guides say about these amounts of text, labels and weights."""
    tokens, labels, weights = (report.get(name) for name in ("tokens", "labels", "parameters"))
    if tokens is not None and not planned:
        yield (
            f"One pass over the {tokens:,.2g} tokens is the place to start: longer trainings gain less and less and "
            "forget more (EvoLM)."
        )
    if tokens is not None and tokens < LITTLE_TEXT:
        yield "There is little domain text: add the texts of the task (Szép et al., 2024; --method dapt+tapt)."
    if labels is not None and labels >= MANY_LABELS:
        yield f"With {labels:,} labels, expect a small gain: adaptation helps most with few (Szép et al., 2024)."
    if weights is not None and weights >= LARGE_MODEL:
        yield (
            f"With {weights / 1e9:.1f} billion weights, the optimizer needs most of the memory: low-rank adapters "
            "with --rule 'refactor every=200' need less (Glentis et al., 2025); acclimate inspect model compares."
        )
