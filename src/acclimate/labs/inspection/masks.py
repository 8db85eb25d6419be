"""`acclimate inspect masks`: preview of what masking strategies hide in a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate.adaptation.method import REGISTRY, AdaptContext, Method
from acclimate.base.device import choose_precision, default_device, preserve_rng_state, to_device
from acclimate.base.errors import UserError
from acclimate.base.files import atomic_folder, check_replaceable, check_writable, record_files, write_json, write_text
from acclimate.base.locks import with_output_lock
from acclimate.base.options import verb
from acclimate.base.verbs import Next, show_place
from acclimate.base.version import __version__
from acclimate.data.documents import as_corpus
from acclimate.data.reading import reading_words, text_words
from acclimate.data.stop_words import read_stop_words
from acclimate.data.task_kinds import open_task
from acclimate.data.token_dataset import TokenDataset
from acclimate.data.tokenizing import tokenize
from acclimate.engine.batches import Collator
from acclimate.labs.inspection.mask_summary import count_masks, mask_tables, render_page
from acclimate.labs.inspection.options import InspectMasksOptions
from acclimate.models.kinds import MASKED
from acclimate.models.loading import load_language_model, load_tokenizer
from acclimate.models.probe import attach
from acclimate.parts.masking import MASK_RATE, Masking, RandomMasking, Strategy, resolve
from acclimate.parts.masking.preview import find_importance_store, preview_tokens
from acclimate.parts.masking.token_importance_store import TokenImportanceStore

REPORT, PAGE = "masks.json", "masks.html"
DEFAULT_MASKINGS = ("random", "whole-word", "span", "span-merge")
SELECTIVE = "selective"
BATCH_TOKENS = 8192
MIN_SAMPLE_TOKENS = 12
"""Texts with fewer tokens are shown only if there are not enough longer ones."""


@verb(InspectMasksOptions)
@with_output_lock
def inspect_masks(options: InspectMasksOptions) -> dict[str, Any]:
    """Mask a text with several strategies; show samples and compute statistics.

    The output directory gets ``masks.json`` and ``masks.html``.

    Returns:
        JSON values, as in ``masks.json``: ``counts`` of each masking (:func:`count_masks`); ``samples``
        (:func:`preview_tokens`); and, with a task, ``selective``, the summary of its stages.

    Raises:
        UserError: If an argument is invalid.
    """
    model, out, task, seed = options.model, options.out, options.task, options.seed
    strategies = _by_label(DEFAULT_MASKINGS if options.maskings is None else options.maskings, options.mask_rate)
    if not strategies:
        raise UserError("Give at least one masking.")
    if options.method != SELECTIVE and task is None:
        raise UserError("Selective masking needs a labelled task; give one with --task.")
    if task is not None and SELECTIVE in strategies:
        raise UserError(f"The label '{SELECTIVE}' is reserved when a task is given; choose another label.")
    check_replaceable(out, REPORT, "previews of masks")
    check_writable(out)
    tokenizer = load_tokenizer(model)
    stops = read_stop_words(options.stop_words, tokenizer)
    if tokenizer.mask_token_id is None:
        raise UserError(f"The tokenizer of '{model}' has no mask token; choose a masked language model.")
    text = as_corpus(options.corpus, options)
    dataset = tokenize(text, tokenizer, options.max_length, max_tokens=options.tokens, progress=options.progress)
    rows = [np.asarray(row) for row in dataset]
    shown = _choose_samples(rows, options.texts, seed)
    about = {label: _describe(masking) for label, masking in strategies.items()}
    important_tokens, stages = None, None
    if task is not None:
        method, strategies[SELECTIVE], important_tokens, stages = _selective_masking(
            *(model, dataset, open_task(task, options, text_column=None), options.method),
            seed=seed,
            precision=options.precision,
            progress=options.progress,
        )
        about[SELECTIVE] = {"summary": method.summary, "paper": method.paper, "settings": method.settings()}
    collator = Collator.of(tokenizer, next(iter(strategies.values())), MASKED, BATCH_TOKENS)
    found = []
    samples: list[dict[str, Any]] = [{"tokens": len(rows[index]), "maskings": {}} for index in shown]
    for label, masking in strategies.items():
        collator = replace(collator, masking=masking)
        counts = count_masks(collator(rows, _rng(seed)), collator.vocabulary, collator.special, stops)
        found.append({"label": label, **about[label], "counts": counts})
        for index, sample in zip(shown, samples, strict=True):
            (batch,) = collator([rows[index]], _rng(seed, index))
            original, masked, labels = (value[0].numpy() for value in (batch.original, batch.masked, batch.labels))
            important = None if important_tokens is None else important_tokens.lookup(original) > 0
            sample["maskings"][label] = preview_tokens(
                original, masked, labels, collator.special, collator.vocabulary, important
            )
    report = {
        "acclimate": __version__,
        "model": str(model),
        "sources": text.report.sources,
        "settings": {name: getattr(options, name) for name in ("mask_rate", "max_length", "seed", "stop_words")},
        "texts": len(rows),
        "maskings": found,
        "samples": samples,
        **({"selective": stages} if stages else {}),
    }
    if out is not None:
        with atomic_folder(out) as folder:
            write_json(folder / REPORT, report)
            write_text(folder / PAGE, render_page(report))
            record_files(folder, REPORT)
    return report


def show_masks(report: Any, options: InspectMasksOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect masks`` prints."""
    yield from mask_tables(report)
    yield from show_place("All texts, as a page", options.out and Path(options.out) / PAGE)
    words = ["--model", options.model, *text_words("--corpus", options.corpus, column=options.text_column)]
    words += [*reading_words(options), "--masking", report["maskings"][0]["label"]]
    yield Next(["adapt", *words, "--out", "adapted"], "to train with one of them")


def _by_label(maskings: Sequence[str] | Mapping[str, Masking], rate: float) -> dict[str, Masking]:
    """Create the strategies, labelled by name, or by name and parameters if several have the same name."""
    if isinstance(maskings, Mapping):
        return dict(maskings)
    given = [maskings] if isinstance(maskings, str) else maskings
    made = {text: resolve(text, rate) for text in given}
    names = [masking.name for masking in made.values()]
    return {masking.name if names.count(masking.name) == 1 else text: masking for text, masking in made.items()}


def _describe(masking: Masking) -> dict[str, Any]:
    if isinstance(masking, Strategy):
        return {"summary": masking.summary, "paper": masking.paper, "settings": masking.identity()}
    return {"summary": "", "paper": "", "settings": {}}


def _rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(list(seed))


def _choose_samples(rows: Sequence[np.ndarray], texts: int, seed: int) -> list[int]:
    """Return the indices of randomly chosen sample texts; short texts are used only if others do not suffice."""
    order = np.random.default_rng([seed, 1]).permutation(len(rows)).tolist()
    return sorted(order, key=lambda index: len(rows[index]) < MIN_SAMPLE_TOKENS)[:texts]


def _selective_masking(
    model: str | Path,
    rows: TokenDataset,
    task: Any,
    given: Any,
    *,
    seed: int,
    precision: str,
    progress: bool,
) -> tuple[Method, Masking, TokenImportanceStore, dict[str, Any]]:
    """Run the stages of selective masking, or load them from the cache shared with ``adapt``.

    Returns:
        The method, its masking strategy, the important tokens, and the summary of the stages.
    """
    method = REGISTRY.read(given)
    resolved_precision = choose_precision(precision, default_device())
    with preserve_rng_state():
        torch.manual_seed(seed)  # a missing head is initialized at random
        loaded = load_language_model(model)
    layers = attach(to_device(loaded.model))
    context = AdaptContext(
        loaded.model,
        layers,
        loaded.tokenizer,
        rows,
        RandomMasking(),
        seed,
        resolved_precision,
        progress,
        task=task,
    )
    method.prepare(context)
    masking = method.masking(MASK_RATE)
    store = find_importance_store(masking)
    if masking is None or store is None:
        raise UserError(f"The method '{SELECTIVE}' returned no masking strategy.")
    (summary,) = context.preparation.values()
    return method, masking, store, summary
