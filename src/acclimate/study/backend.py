"""The expensive functions that jobs call, in one object so that tests can replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


def _adapt(*args: Any, **options: Any) -> Any:
    from acclimate.adaptation.adapt import adapt

    return adapt(*args, **options)


def _finetune(*args: Any, **options: Any) -> Any:
    from acclimate.tasks.finetune import finetune

    return finetune(*args, **options)


def _distill(*args: Any, **options: Any) -> Any:
    from acclimate.tasks.distillation.distill import distill

    return distill(*args, **options)


def _merge(*args: Any, **options: Any) -> Any:
    from acclimate.merging.merge import merge

    return merge(*args, **options)


def _lm_loss(model: str, texts: list[str], *, max_length: int) -> dict[str, Any]:
    from acclimate.evaluation.lm_loss import language_model_loss

    return language_model_loss(model, texts, max_length=max_length)


def _likelihood(model: str) -> Callable[..., Any]:
    from acclimate.evaluation.likelihood import open_classifier

    return open_classifier(model)


def _similarity(model: str, pairs: Any) -> list[float]:
    from acclimate.evaluation.embeddings import load_encoder

    measured: list[float] = pairs.measure(load_encoder(model))
    return measured


def _probe(*args: Any, **options: Any) -> Any:
    from acclimate.tasks.probing import measure_probe

    return measure_probe(*args, **options)


def _has_head(model: str, max_length: int, methods: Iterable[str] = (), setting: str = "max_length") -> bool:
    from acclimate.adaptation.inputs import check_length
    from acclimate.adaptation.method import lookup
    from acclimate.models.loading import load_language_model

    loaded = load_language_model(model)
    for method in methods:
        lookup(method).check_kind(loaded.kind, model)
    check_length(loaded, max_length, setting)
    return not loaded.absent_head


@dataclass(frozen=True)
class Backend:
    """The functions that load models; the defaults import their modules at the first call.

    Attributes:
        adapt: Same signature as :func:`acclimate.adapt`.
        finetune: Same signature as :func:`acclimate.finetune`.
        distill: Same signature as :func:`acclimate.distill`.
        merge: Same signature as :func:`acclimate.merge`.
        lm_loss: Same signature as :func:`acclimate.evaluation.lm_loss.language_model_loss`.
        likelihood: Same signature as :func:`acclimate.evaluation.likelihood.open_classifier`.
        similarity: Takes a model and :class:`acclimate.evaluation.embeddings.SentencePairs`; returns what their
            ``measure`` returns.
        probe: Same signature as :func:`acclimate.tasks.probing.measure_probe`.
        has_head: Takes a model, a sequence length in tokens, names of methods, and the setting that the length is in;
            returns whether the model has a language-model head. Raises UserError if the model cannot read sequences
            of that length, or a method does not support it.
        others: Functions for further kinds of jobs, by name of the kind, instead of those that they import.
    """

    adapt: Callable[..., Any] = _adapt
    finetune: Callable[..., Any] = _finetune
    distill: Callable[..., Any] = _distill
    merge: Callable[..., Any] = _merge
    lm_loss: Callable[..., dict[str, Any]] = _lm_loss
    likelihood: Callable[..., Any] = _likelihood
    similarity: Callable[..., list[float]] = _similarity
    probe: Callable[..., Any] = _probe
    has_head: Callable[..., bool] = _has_head
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
