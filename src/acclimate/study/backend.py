# ruff: noqa: RUF009 (the calls only describe defaults)
"""The expensive functions that jobs call, in one object so that tests can replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any


def _call(module: str, name: str, /, *args: Any, **options: Any) -> Any:
    """Call a function of a module that is imported first."""
    return getattr(import_module(module), name)(*args, **options)


def _benchmark(model: str, *, task: str, **settings: Any) -> dict[str, Any]:
    from acclimate.base.options import build
    from acclimate.evaluation.benchmarks import measure_items
    from acclimate.evaluation.options import InspectBenchmarksOptions

    found = measure_items(model, build(InspectBenchmarksOptions, model, task, **settings))
    return {metric if name == task else f"{metric}, {name}": items for (name, metric), items in found.items()}


def _similarity(model: str, pairs: Any) -> list[float]:
    from acclimate.evaluation.embeddings import load_encoder

    measured: list[float] = pairs.measure(load_encoder(model))
    return measured


def _has_head(model: str, max_length: int, methods: Iterable[str] = ()) -> bool:
    from acclimate.adaptation.inputs import check_length
    from acclimate.adaptation.method import lookup
    from acclimate.models.loading import load_language_model

    loaded = load_language_model(model)
    for method in methods:
        lookup(method).check_kind(loaded.kind, model)
    check_length(loaded, max_length)
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
        likelihood: Same signature as :func:`acclimate.evaluation.likelihood.classify_by_likelihood`.
        instructions: Same signature as :func:`acclimate.evaluation.instructions.measure_instructions`.
        benchmark: Takes a model, a task of lm-eval, and options of :func:`acclimate.inspect_benchmarks`; returns the
            :class:`acclimate.evaluation.benchmarks.ItemValues` by metric.
        similarity: Takes a model and :class:`acclimate.evaluation.embeddings.SentencePairs`; returns what their
            ``measure`` returns.
        probe: Same signature as :func:`acclimate.tasks.probing.measure_probe`.
        has_head: Takes a model, a sequence length in tokens and names of methods; returns whether the model has a
            language-model head. Raises UserError if the model cannot read sequences of that length, or a method does
            not support it.
        others: Functions for further kinds of jobs, by name of the kind, instead of those that they import.
    """

    adapt: Callable[..., Any] = partial(_call, "acclimate.adaptation.adapt", "adapt")
    finetune: Callable[..., Any] = partial(_call, "acclimate.tasks.finetune", "finetune")
    distill: Callable[..., Any] = partial(_call, "acclimate.tasks.distillation.distill", "distill")
    merge: Callable[..., Any] = partial(_call, "acclimate.merging.merge", "merge")
    lm_loss: Callable[..., dict[str, Any]] = partial(_call, "acclimate.evaluation.lm_loss", "language_model_loss")
    likelihood: Callable[..., Any] = partial(_call, "acclimate.evaluation.likelihood", "classify_by_likelihood")
    instructions: Callable[..., Any] = partial(_call, "acclimate.evaluation.instructions", "measure_instructions")
    benchmark: Callable[..., dict[str, Any]] = _benchmark
    similarity: Callable[..., list[float]] = _similarity
    probe: Callable[..., Any] = partial(_call, "acclimate.tasks.probing", "measure_probe")
    has_head: Callable[..., bool] = _has_head
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
