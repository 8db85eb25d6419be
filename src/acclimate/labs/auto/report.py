"""The result of a tournament in words, as tables and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.base.records import Record, internal, optional
from acclimate.data.documents import format_count
from acclimate.labs.auto.claim import Bound, ClaimResult
from acclimate.labs.auto.plan import CLAIM_SEEDS, RACE_SEEDS, Plan
from acclimate.report.score_figures import RACE
from acclimate.results.display import Reported, data_frame
from acclimate.results.requirements import Bounds, Decision
from acclimate.results.study import ReportTable, StudyResults
from acclimate.study.keeping import KeptRow

if TYPE_CHECKING:
    import pandas

RACE_NOTE = (
    "Scores in percent on the half of the dev split that the race reads, means over seeds; gain over the base model "
    "in percentage points; p-value of the test that drops entrants, adjusted for their number; change of the loss on "
    "held-out domain text and on general text in nats per token. Half-way: averaged with the base model. The gains of "
    "the race are flattered by the choice."
)
GENERAL = "general text"
"""Name of what was lost on general text in a requirement."""
ENTRANTS_NOTE = "Expected seconds of one model in the last rung, from short adaptations on this machine."


class RaceRow(Record):
    """An entrant in a rung.

    Attributes:
        stage: Name of the rung.
        tokens: Tokens per adaptation.
        label: The entrant.
        decision: Whether it goes on, and why.
        score: Mean of the metrics over seeds and tasks; None if it failed.
        gain: The same minus the base model's.
        p: Adjusted one-sided p-value of "not worse than the leader".
        domain: Change of the loss on held-out domain text, in nats per token.
        general: Change of the loss on general text.
    """

    stage: str
    tokens: int
    label: str
    decision: str
    score: float | None = None
    gain: float | None = None
    p: float | None = None
    domain: float | None = None
    general: float | None = None


class AutoResult(Reported, Record, repr=False):
    """The result of :func:`acclimate.auto`.

    Attributes:
        base: The base model.
        minutes: The time that was given.
        plan: The plan.
        rows: The race.
        winner: Label of the winner of the race; None if no entrant was ahead of the base model within the limit.
        dev_gain: Gain of the best entrant on the items of the race.
        shrunken_gain: The same, shrunken for having been chosen as the highest.
        entrants: Number of entrants with scores, besides the base model.
        claim: The claim about the winner; None without one.
        claim_seeds: The fresh seeds.
        limit: Largest accepted increase of the loss on general text.
        metrics: Primary metric by task.
        seconds: Duration, without interruptions.
        unlearned: Why the base model has not learned its tasks, so that nothing can be claimed; empty if it has.
        notes: What happened, in sentences.
        kept: Fine-tuned models of the claim that are kept.
        folder: The output directory.
        model: Folder of the model that is returned.
        decision: Whether the requirements are met; None without any.
    """

    base: str
    minutes: float
    plan: Plan
    rows: list[RaceRow] = field(default_factory=list)
    winner: str | None = None
    dev_gain: float | None = None
    shrunken_gain: float | None = None
    entrants: int = 0
    claim: ClaimResult | None = None
    claim_seeds: list[int] = field(default_factory=list)
    limit: float | None = optional()
    metrics: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    unlearned: str = ""
    notes: list[str] = field(default_factory=list)
    kept: list[KeptRow] = field(default_factory=list)
    folder: Path | None = internal()
    model: Path | None = internal()
    decision: Decision | None = internal()

    @property
    def holds(self) -> bool:
        """Whether an adapted model is returned."""
        return self.claim is not None and self.claim.holds and not self.unlearned

    def bounds(self, names: Sequence[str]) -> dict[str, list[Bounds]]:
        """Return the claim for requirements; without a claim, why there is none.

        Each one-sided bound has another one of the same confidence on the other side of the estimate. A requirement
        that the first one meets is met with the confidence of the claim, and not met if the second one violates it.

        Args:
            names: Names of the gain and, if it was measured, of what was lost on general text.
        """
        if self.claim is None or self.unlearned:
            return {name: [Bounds.missing(self.verdict().removesuffix("."))] for name in names}
        found: dict[str, list[Bounds]] = {}
        loss: dict[str, Any] = {"scale": 1.0, "unit": "nats per token", "is_error": True}
        for name, part in zip(names, ("gain", "forgotten"), strict=False):
            claimed: Bound | None = getattr(self.claim, part)
            if claimed is None:
                found[name] = [Bounds.missing("it could not be measured")]
                continue
            low, high = sorted([claimed.bound, 2 * claimed.estimate - claimed.bound])
            more = loss if part == "forgotten" else {}
            found[name] = [Bounds(of=self.claim.winner, estimate=claimed.estimate, low=low, high=high, **more)]
        return found

    def verdict(self) -> str:
        """Return one sentence on what is returned, and why."""
        if self.unlearned:
            return f"The base model is returned, which has not learned its tasks: {self.unlearned}"
        if self.claim is None:
            within = "" if self.limit is None else " within the limit of forgetting"
            return f"The base model is returned: no entrant was ahead of it in the race{within}."
        claim, gain = self.claim, self.claim.gain
        what = (
            f"{100 * gain.estimate:+.1f} points ({_metric(self.metrics)}), at least {100 * gain.bound:+.1f} with "
            f"{100 * claim.confidence:.4g} % confidence"
        )
        if claim.holds:
            return f"{claim.winner} is returned: {what}."
        if not claim.helps:
            return f"The base model is returned: {claim.winner} gains {what}, so there may be no gain."
        if claim.forgotten is None:
            return f"The base model is returned: what {claim.winner} loses on general text could not be measured."
        return (
            f"The base model is returned: {claim.winner} gains {what}, but its loss on general text may rise by "
            f"{claim.forgotten.bound:.3f} nats per token, and the limit is {claim.limit:g}."
        )

    def describe(self) -> list[str]:
        """Return the verdict, the three gains, what was lost, what was read, the cost and the folders, in lines."""
        if not self.seconds:
            return describe_plan(self.plan)
        lines = [self.verdict()]
        if self.dev_gain is not None:
            lines.append(
                f"Gain of the best of {self.entrants} entrants in the race: {100 * self.dev_gain:+.1f} points; "
                f"shrunken for the choice {100 * (self.shrunken_gain or 0.0):+.1f}"
            )
        if self.claim is not None:
            claim = self.claim
            lines.append(
                f"Claim: {claim.seeds} fresh seeds ({', '.join(map(str, self.claim_seeds))}) of both models, "
                f"{claim.evidence}"
            )
            if claim.collapsed:
                lines.append(
                    f"{format_count(claim.collapsed, 'training')} of {claim.winner} collapsed in the race; the "
                    "claimed gain counts them"
                )
            if claim.reads > 1:
                lines.append(
                    f"The confirming items have been read {claim.reads} times, so the level is "
                    f"{100 * (1 - claim.confidence):.2g} %"
                )
            if claim.forgotten is not None:
                limit = "no limit" if claim.limit is None else f"limit {claim.limit:g}"
                lines.append(
                    f"General text: loss {claim.forgotten.estimate:+.3f} nats per token, at most "
                    f"{claim.forgotten.bound:+.3f} ({limit})"
                )
        lines += self.notes
        lines.append(f"Time: {self.seconds / 60:.1f} of {self.minutes:g} minutes")
        if self.folder is not None:
            lines += [f"model: {self.model}", f"report: {self.folder / 'report.html'}"]
        return lines

    def as_results(self) -> StudyResults:
        """Return the race, the entrants and the claim as tables, as the results of a study."""
        race = ReportTable(
            title=RACE,
            note=RACE_NOTE,
            columns=["rung", "tokens", "entrant", "score", "gain", "p", "domain loss", "general loss", "decision"],
            rows=[
                [
                    *(row.stage, row.tokens, row.label, _percent(row.score), _percent(row.gain)),
                    *(row.p, row.domain, row.general, row.decision),
                ]
                for row in self.rows
            ],
        )
        tokens, prices = self.plan.tokens, self.plan.prices
        entrants = ReportTable(
            title="Entrants",
            note=ENTRANTS_NOTE,
            columns=["entrant", "takes part", "seconds", "why"],
            rows=[
                [
                    one.label,
                    "yes",
                    prices.model(one.label, tokens) if one.label in prices.adapting else None,
                    one.reason,
                ]
                for one in self.plan.entrants
            ]
            + [[one.label, "no", None, one.reason] for one in self.plan.skipped],
            digits=0,
        )
        tables = [race] if self.rows else []
        if self.claim is not None:
            tables.insert(0, self._claim_table(self.claim))
        return StudyResults(
            name="auto",
            title=f"Tournament: {Path(self.base).name}",
            notes=self.describe(),
            tables=[*tables, entrants],
            config={"plan": self.plan.to_dict()},
        )

    def _claim_table(self, claim: ClaimResult) -> ReportTable:
        rows: list[list[Any]] = [
            ["gain in the race, points", _percent(self.dev_gain), None],
            ["shrunken for the choice", _percent(self.shrunken_gain), None],
            ["claimed gain, points", 100 * claim.gain.estimate, 100 * claim.gain.bound],
        ]
        if claim.forgotten is not None:
            rows.append(["loss on general text, nats per token", claim.forgotten.estimate, claim.forgotten.bound])
        if claim.limit is not None:
            rows.append(["limit of that loss", claim.limit, None])
        note = (
            f"{claim.winner} against the base model, both trained with {claim.seeds} fresh seeds and compared once on "
            f"{claim.evidence}. Bounds have {100 * claim.confidence:.4g} % confidence, each on one "
            f"side. The confirming items have been read {claim.reads} times, this one included."
        )
        return ReportTable(title="The claim", note=note, columns=["", "estimate", "bound"], rows=rows)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows of the race as a data frame."""
        return data_frame([row.to_dict() for row in self.rows])


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _metric(metrics: dict[str, str]) -> str:
    names = list(dict.fromkeys(metrics.values()))
    name = " and ".join(names).replace("_", " ")
    return name if len(metrics) == 1 else f"mean {name} of {len(metrics)} tasks"


def describe_plan(plan: Plan) -> list[str]:
    """Return the plan in lines: entrants with reasons, rungs, the claim, and what takes no part."""
    lines = [f"{len(plan.entrants)} entrants:"]
    lines += [f"  {one.label}: {one.reason}" for one in plan.entrants]
    if plan.skipped:
        lines += ["Left out:", *(f"  {one.label}: {one.reason}" for one in plan.skipped)]
    if plan.races:
        rungs = ", ".join(
            f"{rung.tokens:,} tokens (the base model and at most {rung.width} others)" for rung in plan.rungs
        )
        lines.append(f"Race, at most {plan.race_seconds / 60:.0f} minutes of work, {RACE_SEEDS} seeds each: {rungs}")
    if plan.searching:
        lines.append(
            f"Learning rate of fine-tuning: chosen with the base model on the items that the race reads, about "
            f"{plan.searching / 60:.0f} minutes"
        )
    lines.append(
        f"Claim, at least {plan.claim_seconds / 60:.0f} minutes of work: {plan.tokens:,} tokens, {CLAIM_SEEDS} fresh "
        "seeds or more"
    )
    return [*lines, *plan.notes]
