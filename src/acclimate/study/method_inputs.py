"""Reading and validating the methods of a study."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from acclimate.base.errors import Problems, UserError
from acclimate.study.config import DomainSpec, MethodSpec, StudyConfig
from acclimate.study.settings import UNADAPTED

log = logging.getLogger(__name__)

FAR = 30
"""A learning rate this many times above or below the default of the method is probably a mistake."""
SHARED = {
    "seed": "adapt.seed, or adapt_seeds",
    **{name: f"adapt.{name}" for name in ("text_column", "clean", "mask_personal", "head_tokens")},
}
"""Options of ``adapt`` that all methods of a study share, and the keys of the study file that set them."""


@dataclass(frozen=True)
class MethodInput:
    """A method of adaptation.

    Attributes:
        parameters: Its parameters, defaults included, with hashes of the files that they name.
        reads: The text it adapts to: ``"domain"`` or ``"task"``.
        needs_task: Whether it needs the labelled task itself.
        learns_labels: Whether it learns the labels of that task, all of its train split.
        per_task: Whether it adapts once per task even if it reads the text of the domain.
        embeds: Whether it makes a sentence encoder of any model.
    """

    parameters: dict[str, Any]
    reads: str = "domain"
    needs_task: bool = False
    learns_labels: bool = False
    per_task: bool = False
    embeds: bool = False

    def scopes(self, domain: DomainSpec) -> Iterator[tuple[DomainSpec, str | None]]:
        """Yield the scope of each adaptation: (domain, None), or per task (domain with that task only, its name)."""
        if self.reads == "domain" and not self.needs_task and not self.per_task:
            yield domain, None
            return
        for task in domain.tasks:
            yield domain.model_copy(update={"tasks": [task]}), task.name


def read_method(method: MethodSpec) -> MethodInput:
    """Return a method with its parameters, defaults included.

    Raises:
        UserError: If the method or a parameter does not exist, or a value is wrong.
    """
    from acclimate.adaptation import method as methods

    made = methods.get(method.name, **method.parameters)
    if method.on and any(stage.reads for stage in made.stages()):
        raise UserError(f"study: '{method.name}' reads the text of the domain and of the task; remove 'on'.")
    contents = made.file_contents()
    parameters = made.settings() | ({"files": contents} if contents else {})
    embeds = made.sentence_pooling is not None
    return MethodInput(parameters, method.on or made.reads, made.learns_task, made.learns_labels, embeds=embeds)


def read_methods(config: StudyConfig) -> dict[str, MethodInput]:
    """Return the methods of a study that adapt, by label.

    Raises:
        UserError: If methods, parameters or options are wrong; the message lists all of them.
    """
    from acclimate.adaptation import method as methods
    from acclimate.adaptation.adapters import read_adapter

    found, problems = dict[str, MethodInput](), Problems()
    for method in config.methods:
        with problems.collect():
            if method.name != UNADAPTED or method.parameters:
                found[method.label] = read_method(method)
            check_not_shared(method.adapt, f"methods.{method.label}.adapt")
            if method.name != UNADAPTED:
                given = {**config.adapt.given(), **method.adapt}
                read_adapter(methods.get(method.name, **method.parameters), given.get("adapter"))
            _warn_of_learning_rate(method, config)
    problems.check()
    return found


def _warn_of_learning_rate(method: MethodSpec, config: StudyConfig) -> None:
    """Warn if the learning rate of the study is far from the default of the method, for example of a soft prompt."""
    from acclimate.adaptation import method as methods

    if method.name == UNADAPTED or "learning_rate" in method.adapt:
        return
    rate = config.adapt.given().get("learning_rate")
    usual = methods.get(method.name, **method.parameters).learning_rate
    if rate is not None and usual is not None and not usual / FAR <= rate <= usual * FAR:
        log.warning(
            "study: the default learning rate of '%s' is %g, and the study sets %g for all methods; set one for this "
            "method: {name: %s, adapt: {learning_rate: %g}}.",
            method.label,
            usual,
            rate,
            method.name,
            usual,
        )


def check_scopes(config: StudyConfig, methods: Mapping[str, MethodInput]) -> None:
    """Check that each method has a task to adapt to, if it needs one, and learns no more labels than fine-tuning.

    Raises:
        UserError: If a method adapts per task and a domain has no task, so that it would silently have no row; or if
            it learns the labels of a task of which fine-tuning gets a few.
    """
    for domain in config.domains:
        for label, method in methods.items():
            if not any(True for _ in method.scopes(domain)):
                raise UserError(
                    f"study: '{label}' adapts to each task of a domain, and '{domain.name}' has none; add a task, or "
                    "remove the method or the domain."
                )
            for task in domain.tasks if method.learns_labels else ():
                if (shots := config.finetune_settings(task).get("few_shot")) is not None:
                    raise UserError(
                        f"study: '{label}' learns the labels of all train texts of '{task.name}', and fine-tuning "
                        f"would get {shots} per class (few_shot). Set its 'limit_train' instead: both keep to it."
                    )


def check_not_shared(given: Iterable[str], where: str) -> None:
    """Raise UserError if options of one method are among those that all methods of a study share.

    Args:
        given: Names of options.
        where: Section of the study file, for the message.
    """
    for name in given:
        if name in SHARED:
            raise UserError(
                f"study: '{where}.{name}' cannot be set for one method, as all methods of a study share it. Remove "
                f"it, or set {SHARED[name]}."
            )
