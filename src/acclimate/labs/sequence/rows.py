"""Rows of the results of sequences: methods that learn one domain after the other."""

from __future__ import annotations

from dataclasses import field

from acclimate.base.records import Record

MEASURES = {
    "average": "mean over domains after the last one",
    "gain": "improvement of the average over the base model",
    "forgetting": "mean decline on earlier domains from the best measured stage since they were learned",
    "backward": "mean change on earlier domains since they were learned; negative where they were forgotten",
    "forward": "mean change on domains not learned yet, just before they are",
    "learning": "mean difference to a separate model for each domain, just after learning it",
}
"""The measures of a sequence. Changes are positive where the model improves; forgetting is positive where it loses."""


class SequenceSpread(Record):
    """A measure over several runs of a sequence.

    Attributes:
        mean: Mean over seeds and orders.
        seeds: 95 % interval of Student's t over seeds, for these orders; None for a single seed.
        orders: The same over orders, for these seeds; None for a single order.
    """

    mean: float
    seeds: list[float] | None
    orders: list[float] | None


class SequenceOrder(Record):
    """Measurements of one order of the domains, as means over seeds.

    Attributes:
        domains: The domains, in the order of training.
        matrix: R (domains + 1, domains), see the module; None where nothing was measured.
        general: The loss on general text (domains + 1); empty if there is none, or for scores.
        folders: The folder of the last model for each seed, relative to the study's folder.
        seconds: Duration of all adaptations of one seed.
    """

    domains: list[str]
    matrix: list[list[float | None]]
    general: list[float | None] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    seconds: float | None = None


class SequenceRow(Record):
    """A method on the sequences of a study, measured by loss or by score.

    Attributes:
        model: Name of the base model.
        method: Label of the method, or of what it is compared with: separate models, or one model of all domains.
        measure: ``"loss"`` in nats per predicted token of held-out text, or ``"score"``, the mean primary metric of
            the tasks of a domain.
        seeds: Seeds of adaptation.
        orders: The orders; empty for what has none.
        measures: :data:`MEASURES` by name, as far as they are known.
        differences: The same minus the measures of ``reference``, paired by order and seed.
        reference: Label of the method that it is compared with; empty for none.
    """

    model: str
    method: str
    measure: str
    seeds: list[int]
    orders: list[SequenceOrder]
    measures: dict[str, SequenceSpread]
    differences: dict[str, SequenceSpread] = field(default_factory=dict)
    reference: str = ""
