"""The functions that a study calls, gathered so that each can be replaced: by a test, or by a user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from acclimate.errors import UserError, did_you_mean


def _adapt(*args: Any, **options: Any) -> Any:
    from acclimate.training import adapt

    return adapt(*args, **options)


def _finetune(*args: Any, **options: Any) -> Any:
    from acclimate.tasks import finetune

    return finetune(*args, **options)


def _distill(*args: Any, **options: Any) -> Any:
    from acclimate.tasks import distill

    return distill(*args, **options)


def _knows_task(path: str, task: Any) -> bool:
    from acclimate.tasks.loading import is_classifier_of

    return is_classifier_of(path, task)


def _load_task(path: str, name: str, ratio: float | None = None) -> Any:
    from acclimate.tasks import load_task, repartition

    task = load_task(path, name=name)
    return task if ratio is None else repartition(task, ratio)


def _limited(task: Any, **limits: int) -> Any:
    from acclimate.tasks.splits import limit_splits

    return limit_splits(task, **limits)


def _held_back(task: Any) -> Any:
    from acclimate.tasks.splits import replace_test_with_dev

    return replace_test_with_dev(task)


def _check_first(first: Any, task: Any) -> None:
    from acclimate.tasks.finetune import check_first_task

    check_first_task(first, task)


def _lm_loss(model: str, texts: list[str], *, max_length: int) -> dict[str, Any]:
    from acclimate.evaluation import language_model_loss

    return language_model_loss(model, texts, max_length=max_length)


def _moved(base: str, adapted: str, texts: list[str], *, max_length: int) -> dict[str, Any]:
    from acclimate.inspect.drift import measure_drift

    return measure_drift(base, adapted, texts, max_length=max_length)


def _judged_texts(task: Any) -> dict[str, list[str]]:
    from acclimate.tasks.text import evaluation_texts

    return evaluation_texts(task)


def _item_texts(task: Any) -> dict[str, list[str]]:
    from acclimate.tasks.text import item_texts

    return item_texts(task)


def _has_head(model: str, max_length: int) -> bool:
    from acclimate.models import load_language_model
    from acclimate.training.options import check_length

    loaded = load_language_model(model)
    check_length(loaded, max_length)
    return not loaded.absent_head


def _corpus(sources: list[str], text_column: str) -> Any:
    from acclimate.corpus import Corpus

    return Corpus(sources, text_column=text_column)


def _method(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a method with its defaults filled in, and what files among them hold.

    Raises:
        UserError: For a name or key that it lacks.
    """
    from acclimate import methods

    made = methods.get(name, **settings)
    contents = made.file_contents()
    return made.settings() | ({"files": contents} if contents else {})


def _reads(name: str) -> Reads:
    from acclimate import methods

    made = methods.get(name)
    return Reads(made.reads, made.needs_task, bool(made.stages()), made.learning_rate)


def _task_text(task: Any) -> Any:
    from acclimate.training.inputs import task_corpus

    return task_corpus(task)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }


def _adapt_defaults() -> dict[str, Any] | None:
    from acclimate.training import adapt

    return _defaults(adapt)


def _finetune_defaults() -> dict[str, Any] | None:
    from acclimate.tasks import finetune

    return _defaults(finetune)


class Reads(NamedTuple):
    """What a method reads, and how fast it is used to learning.

    Attributes:
        text: That of the ``"domain"`` or of the ``"task"``.
        needs_task: Whether it gets a task itself.
        both: Whether it reads both texts, in stages.
        learning_rate: The one it has if none is given; None if that is not known.
    """

    text: str = "domain"
    needs_task: bool = False
    both: bool = False
    learning_rate: float | None = None


def _distill_defaults() -> dict[str, Any] | None:
    from acclimate.tasks import distill

    return _defaults(distill)


def _check_lesson(settings: dict[str, Any]) -> None:
    from acclimate.tasks import distill
    from acclimate.tasks.distillation.student_training import CHECKED_OPTIONS, check_distill_options

    values = _defaults(distill) | settings
    check_distill_options(**{name: values[name] for name in CHECKED_OPTIONS})


@dataclass(frozen=True)
class Parts:
    """What a study is made of. Everything heavy is imported when it is first called.

    Attributes:
        adapt: As ``acclimate.adapt``.
        finetune: As ``acclimate.finetune``.
        distill: As ``acclimate.distill``.
        knows_task: From the path of a model and a task to whether it already is a classifier of its labels.
        load_task: From a folder and a name to a task with ``fingerprint()``, ``scoring(negative=...)`` and
            ``default_length``; a third argument, given only where the study asks for it, is the ratio of a
            re-partition.
        limited: From a task and the most rows by split to a task with a part of it.
        held_back: From a task to one with dev in the place of test, for a search.
        check_first: Raises UserError if the first task cannot be learnt before the second.
        lm_loss: From a model, texts and ``max_length`` to ``{"nats", "per_text", ...}``.
        moved: From a model, an adapted one, texts and ``max_length`` to how far the one is from the other.
        judged_texts: From a task to the texts of its dev and test splits, by split.
        item_texts: From a task to the texts of its items, by split, the pairs joined.
        corpus: From sources and a text column to an iterable of documents with ``fingerprint`` and ``split``.
        has_head: From a model, and how many tokens it will have to read at once, to whether it has a masked-LM head;
            one without is given one before anything else. Raises UserError if it cannot read as many.
        method: From a method's name and parameters to its parameters with defaults.
        reads: From a method's name to what it reads.
        task_text: From a task to the text of its train split, as ``corpus`` gives one.
        adapt_defaults: Keywords of ``adapt`` with their defaults; None if any keyword will do.
        finetune_defaults: The same of ``finetune``.
        distill_defaults: The same of ``distill``.
        check_lesson: Raises UserError if keywords of ``distill`` have no sense, before any model is trained.
    """

    adapt: Callable[..., Any] = _adapt
    finetune: Callable[..., Any] = _finetune
    distill: Callable[..., Any] = _distill
    knows_task: Callable[[str, Any], bool] = _knows_task
    load_task: Callable[..., Any] = _load_task
    limited: Callable[..., Any] = _limited
    held_back: Callable[[Any], Any] = _held_back
    check_first: Callable[[Any, Any], None] = _check_first
    lm_loss: Callable[..., dict[str, Any]] = _lm_loss
    moved: Callable[..., dict[str, Any]] = _moved
    judged_texts: Callable[[Any], dict[str, list[str]]] = _judged_texts
    item_texts: Callable[[Any], dict[str, list[str]]] = _item_texts
    corpus: Callable[[list[str], str], Any] = _corpus
    has_head: Callable[[str, int], bool] = _has_head
    method: Callable[[str, dict[str, Any]], dict[str, Any]] = _method
    reads: Callable[[str], Reads] = _reads
    task_text: Callable[[Any], Any] = _task_text
    adapt_defaults: Callable[[], dict[str, Any] | None] = _adapt_defaults
    finetune_defaults: Callable[[], dict[str, Any] | None] = _finetune_defaults
    distill_defaults: Callable[[], dict[str, Any] | None] = _distill_defaults
    check_lesson: Callable[[dict[str, Any]], None] = _check_lesson


# What a study gives to adapt() itself, and what cannot change the result.
RESERVED = ("model", "corpus", "task", "heldout", "method", "out", "settings", "progress")
HARMLESS = ("save_every", "overwrite", "progress", "report_to")
FIRST_ADAPT_OPTIONS = (
    *("steps", "epochs", "tokens", "max_minutes", "seed", "max_length", "batch_size", "learning_rate", "mask_rate"),
    *("weight_decay", "warmup", "precision", "layout", "text_column", "head_tokens"),
)
"""Keywords of ``adapt`` that are part of the identity of every cell; later ones where they differ from the default."""

FIRST_OPTIONS = (
    *("epochs", "learning_rate", "batch_size", "max_length", "few_shot", "select", "metric"),
    *("warmup", "weight_decay", "precision"),
)
"""Keywords of ``finetune`` that are part of the identity of every cell.

A keyword that came later is part of it only where it differs from its default, so that an older study keeps its cells.
"""

FIRST_STAGE = ("first_epochs", "first_learning_rate")
"""Settings of a task that are keywords of ``finetune`` and speak of the task that is learnt before it."""

OF_ALL = {"seed": "adapt.seed, or adapt_seeds", "text_column": "adapt.text_column", "head_tokens": "adapt.head_tokens"}
"""Keywords of ``adapt`` that a method cannot have of its own in a study, with what all methods have instead."""


def check_own(given: Iterable[str], where: str) -> None:
    """Raise UserError for a keyword that a study has for all of its methods.

    Raises:
        UserError: Naming the section of the study file and the key.
    """
    for name in given:
        if name in OF_ALL:
            raise UserError(
                f"study: '{where}.{name}' would be for one method alone, and it is the same for all methods of a "
                f"study. Remove it, or set {OF_ALL[name]}."
            )


def check_keywords(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise UserError for a keyword that is not known, proposing the closest.

    Raises:
        UserError: Naming the section of the study file and the key.
    """
    options = sorted(set(known) - set(RESERVED))
    for name in given:
        if name in RESERVED:
            raise UserError(f"study: the study itself sets '{where}.{name}'; remove it.")
        if name not in options:
            hint = did_you_mean(name, options)
            raise UserError(f"study: unknown key '{where}.{name}'.{hint} Known here: {', '.join(options)}.")
