"""The section ``sequence`` of a study: which methods learn the domains one after the other, and in which orders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from acclimate.base.bounds import Count, SeedNumber
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.base.ranking import best_first, content_ranks
from acclimate.study.config import MethodSpec, StudyConfig
from acclimate.study.inputs import StudyInputs
from acclimate.study.sections import SectionEntry
from acclimate.study.settings import UNADAPTED, as_list

Labels = Annotated[list[str], BeforeValidator(as_list)]


class SequenceSpec(SectionEntry):
    """The section ``sequence``: ``true``, or ``{methods?, orders?, seed?, separate?, joint?, scores?}``.

    Attributes:
        methods: Labels of the methods; None for all but ``none``. The others are compared with the first.
        orders: ``"given"`` is the order of the study file. ``"similarity"`` begins with the first domain, and goes on
            with the one whose held-out text is the most similar to the last one's. A number draws as many different
            orders at random. Or lists of names of domains.
        seed: Random seed of the orders.
        separate: Labels of methods with one model per domain as well; None for all.
        joint: Labels of methods with one model of the text of all domains as well, and all budgets together.
        scores: The stages at which models are fine-tuned on the tasks of a domain: ``"seen"``, all since it was
            learned; ``"ends"``, the one that learned it and the last; ``"all"``, those before as well; ``"none"``.
    """

    methods: Annotated[Labels | None, Field(min_length=1)] = None
    orders: Literal["given", "similarity"] | Count | list[list[str]] = "given"
    seed: SeedNumber = 0
    separate: Labels | None = None
    joint: Labels = Field(default_factory=list)
    scores: Literal["seen", "ends", "all", "none"] = "seen"

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {} if value is True else value

    def replaces_domains(self, method: str) -> bool:
        """Return whether there is no model per domain of a method of the sequence."""
        mine = self.methods is None or method in self.methods
        return mine and method != UNADAPTED and self.separate is not None and method not in self.separate

    def is_scored(self, stage: int, learned: int, count: int) -> bool:
        """Return whether a domain that was learned at one stage is scored at another; stages count from 1."""
        after = {"seen": stage >= learned, "ends": stage in (learned, count), "all": True, "none": False}
        return after[self.scores] and (self.scores == "all" or stage >= learned)


def sequence_section(config: StudyConfig) -> SequenceSpec | None:
    """Return the section of the study, if it has one."""
    return next(iter(config.sections.get("sequence", [])), None)


def sequence_labels(config: StudyConfig, spec: SequenceSpec) -> list[str]:
    """Return the labels of the methods of the sequence."""
    return spec.methods or [method.label for method in config.methods if method.name != UNADAPTED]


def sequence_methods(config: StudyConfig, labels: Sequence[str]) -> list[MethodSpec]:
    """Return methods of a study by their labels."""
    found = {method.label: method for method in config.methods}
    return [found[label] for label in labels]


def check_names(config: StudyConfig) -> None:
    """Check that the methods and domains that the section names exist, and that each stage has one starting point.

    Raises:
        UserError: If not.
    """
    spec, names = sequence_section(config), [domain.name for domain in config.domains]
    if spec is None:
        return
    if len(config.sections["sequence"]) > 1:
        raise UserError("study: 'sequence' is a single section; give one, with all methods.")
    found = {method.label: method for method in config.methods if method.name != UNADAPTED}
    for name in (*(spec.methods or ()), *(spec.separate or ()), *spec.joint):
        if name not in found:
            raise unknown_name_error("method under 'sequence':", name, found)
    _check_orders(spec.orders if isinstance(spec.orders, list) else [], names)
    for label in {*sequence_labels(config, spec), *spec.joint}:
        lists = [config.search_lists(task, [found[label]]) for _, task in config.searched_tasks]
        if any(section != "finetune" for keys in lists for section, _ in keys):
            raise UserError(
                f"study: sequence: the settings of '{label}' are searched for each domain, so a stage has no single "
                "starting point; search first, and set what was found."
            )


def _check_orders(orders: Sequence[Sequence[str]], names: Sequence[str]) -> None:
    for order in orders:
        for name in order:
            if name not in names:
                raise unknown_name_error("domain in an order under 'sequence':", name, names)
        if len(set(order)) < len(order) or {*order} != {*orders[0]} or not order:
            raise UserError("study: sequence: each order must name the same domains, and each once.")


def domain_orders(inputs: StudyInputs) -> list[tuple[str, ...]]:
    """Return the orders of the domains that the section asks for.

    Raises:
        UserError: If there are fewer different orders than asked for.
    """
    spec, names = sequence_section(inputs.config), [domain.name for domain in inputs.config.domains]
    assert spec is not None
    if isinstance(spec.orders, list):
        return list(dict.fromkeys(map(tuple, spec.orders)))
    if spec.orders == "given":
        return [tuple(names)]
    if spec.orders == "similarity":
        return [similar_order({name: inputs.heldout[name].texts for name in names})]
    if spec.orders > (most := math.factorial(len(names))):
        raise UserError(f"study: sequence: {spec.orders} different orders are asked for, and the domains have {most}.")
    rng, found = np.random.default_rng([spec.seed, 13]), dict[tuple[str, ...], None]()
    while len(found) < spec.orders:
        found[tuple(names[index] for index in rng.permutation(len(names)))] = None
    return list(found)


def similar_order(texts: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return names of texts in an order in which neighbours are similar.

    It begins with the first one, and goes on with the one that is the most similar to the last: by the cosine of the
    mean tf-idf vectors of their documents.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    names = list(texts)
    reader = TfidfVectorizer(sublinear_tf=True).fit([one for name in names for one in texts[name]])
    means = np.stack([np.asarray(reader.transform(texts[name]).mean(0))[0] for name in names])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    order, ranks = [0], content_ranks(names)
    while len(order) < len(names):
        order.append(next(index for index in best_first(means @ means[order[-1]], ranks) if index not in order))
    return tuple(names[index] for index in order)


def sequence_role(domains: Sequence[str]) -> str:
    """Return the role of the jobs of a stage."""
    return f"sequence {' > '.join(domains)}"
