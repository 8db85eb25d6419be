"""What the adaptations of a study read: the text of a domain once, or that of each of its tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acclimate.corpus import Corpus
from acclimate.errors import UserError
from acclimate.study.config import DomainSpec, MethodSpec, StudyConfig
from acclimate.study.parts import Parts, check_keywords, check_own
from acclimate.study.settings import UNADAPTED

if TYPE_CHECKING:
    from acclimate.study.plan import Plan

log = logging.getLogger(__name__)
FAR = 30
"""A learning rate so many times as high or low as the one a method is used to is probably not meant for it."""


@dataclass(frozen=True)
class Reading:
    """What a method of a study reads.

    Attributes:
        text: The text of the ``"domain"`` or that of the ``"task"``.
        task: Whether it gets the task itself.
        alone: Whether it is adapted for each task alone, whatever it reads.
    """

    text: str = "domain"
    task: bool = False
    alone: bool = False

    def scopes(self, domain: DomainSpec) -> Iterator[tuple[DomainSpec, dict[str, str]]]:
        """Yield what one adaptation serves, and its labels: the whole domain, or the domain with one of its tasks."""
        if self.text == "domain" and not self.task and not self.alone:
            yield domain, {}
            return
        for task in domain.tasks:
            yield domain.model_copy(update={"tasks": [task]}), {"task": task.name}

    def sources(
        self, plan: Plan, here: dict[str, Any], given: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the keywords of ``adapt`` that hold what is read, and what they add to the identity of the cell.

        Args:
            plan: Holds texts and tasks.
            here: Labels of the cell.
            given: Other keywords of ``adapt``.
        """
        domain, place = here["domain"], (here["domain"], here.get("task", ""))
        corpus = plan.task_texts[place] if self.text == "task" else plan.corpora[domain]
        read: dict[str, Any] = {"corpus": corpus}
        told = {"corpus": str(corpus.fingerprint)}
        if self.task:
            read["task"] = plan.tasks[place]
            told["task"] = str(plan.tasks[place].fingerprint())
        if given.get("heldout_every"):
            read["heldout"] = Corpus.of(plan.texts[f"domain {domain}"].texts)
            told["heldout"] = plan.texts[f"domain {domain}"].identity
        return read, told


def reading_of(method: MethodSpec, parts: Parts) -> Reading:
    """Return what a method reads: as the study says, else as the method does.

    Raises:
        UserError: If the study asks for one text, and the method reads both.
    """
    reads = parts.reads(method.name)
    if reads.both and method.on:
        raise UserError(f"study: '{method.name}' reads the text of the domain and of the task; leave out 'on'.")
    return Reading(method.on or reads.text, reads.needs_task)


def read_methods(plan: Plan, config: StudyConfig, parts: Parts, defaults: dict[str, Any] | None) -> None:
    """Check the methods of a study and the settings of their adaptation; note in the plan what they are and read.

    Raises:
        UserError: If a method, a parameter or a keyword is not known.
    """
    for method in config.methods:
        if method.name != UNADAPTED or method.parameters:
            plan.settings[method.label] = parts.method(method.name, method.parameters)
        if method.name != UNADAPTED:
            plan.readings[method.label] = reading_of(method, parts)
        if defaults is not None:
            check_keywords(config.adapt.given(), defaults, "adapt")
            check_keywords(method.adapt, defaults, f"methods.{method.label}.adapt")
        check_own(method.adapt, f"methods.{method.label}.adapt")
        _warn_of_rate(method, config, parts)


def check_readings(plan: Plan, config: StudyConfig) -> None:
    """Check that a method that reads tasks finds one in every domain: it would have no row there, without a word.

    Raises:
        UserError: If a domain has none.
    """
    for domain in config.domains:
        for label, reading in plan.readings.items():
            if not any(True for _ in reading.scopes(domain)):
                raise UserError(
                    f"study: '{label}' adapts to each task of a domain, and '{domain.name}' has none; give it a task, "
                    "or leave the method or the domain out."
                )


def _warn_of_rate(method: MethodSpec, config: StudyConfig, parts: Parts) -> None:
    """Say so if the learning rate of the whole study cannot be meant for a method, such as that of a prompt."""
    if method.name == UNADAPTED or "learning_rate" in method.adapt:
        return
    rate, usual = config.adapt.learning_rate, parts.reads(method.name).learning_rate
    if rate is not None and usual is not None and not usual / FAR <= rate <= usual * FAR:
        log.warning(
            "study: '%s' learns at %g by itself, and at %g here, as all methods; give it its own rate: "
            "{name: %s, adapt: {learning_rate: %g}}.",
            method.label,
            usual,
            rate,
            method.name,
            usual,
        )
