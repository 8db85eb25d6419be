"""`acclimate inspect masks`: what each way to mask would hide in a text."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corpus import Corpus, tokenize
from acclimate.corpus.stop_words import read_stop_words
from acclimate.errors import UserError, check_positive
from acclimate.files import atomic_folder, check_replaceable, write_json, write_text
from acclimate.inspect.important import NAME as SELECTIVE
from acclimate.inspect.important import selective_masking
from acclimate.inspect.mask_counts import count_masks
from acclimate.locks import with_output_lock
from acclimate.masking import MASK_RATE, Masking, Strategy, get
from acclimate.masking.preview import preview_tokens
from acclimate.models.loading import load_tokenizer
from acclimate.training.batches import Collator
from acclimate.training.options import check_seed
from acclimate.version import __version__

REPORT, PAGE = "masks.json", "masks.html"
SHOWN_BY_DEFAULT = ("random", "whole-word", "span", "span-merge")
TOKENS_AT_ONCE = 8192
GOOD_SAMPLE = 12
"""Tokens that a text should have to be shown."""


def parse_masking(text: str, rate: float) -> Strategy:
    """Make a strategy from ``NAME`` or ``"NAME parameter=value ..."``.

    Raises:
        UserError: If it is not that, or there is no such strategy or parameter.
    """
    try:
        name, *parts = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--masking wants NAME, or 'NAME parameter=value', not '{text}'.") from error
    settings = {}
    for part in parts:
        key, sign, value = part.partition("=")
        if not sign or not key:
            raise UserError(f"--masking wants NAME, or 'NAME parameter=value', not '{text}'.")
        settings[key] = value
    return get(name, rate, **settings)


@with_output_lock
def inspect_masks(
    model: str | Path,
    corpus: str | Path | Sequence[str | Path] | Corpus,
    out: str | Path | None = None,
    *,
    maskings: Sequence[str] | Mapping[str, Masking] = SHOWN_BY_DEFAULT,
    task: Any = None,
    settings: Mapping[str, Any] | None = None,
    mask_rate: float = MASK_RATE,
    texts: int = 6,
    tokens: int = 200_000,
    max_length: int = 128,
    seed: int = 0,
    stop_words: str = "english",
    text_column: str = "text",
    precision: str = "auto",
    progress: bool = True,
) -> dict[str, Any]:
    """Mask a text in several ways, show some of it, and count over more of it.

    Args:
        model: A model folder or a name on the hub; without a task only its tokenizer is read.
        corpus: Text files, folders or globs, or a :class:`acclimate.corpus.Corpus`.
        out: Folder for ``masks.json`` and ``masks.html``; None writes nothing.
        maskings: Names, each perhaps with parameters as ``"lexicon-first lexicon=words.txt"``; or maskings by label.
        task: A labelled task or its folder. With it selective masking is shown, too, and what is important to the
            task is marked in every text. Its classifiers are trained as in an adaptation, and kept in the same cache.
        settings: Parameters of the method ``selective``.
        mask_rate: Share of tokens that are chosen, where a masking is given by name.
        texts: How many texts to show.
        tokens: Tokens of the beginning of the corpus to count on; the texts that are shown are from them, too.
        max_length: Tokens of a text at most.
        seed: Chooses texts and masks; all maskings get the same chance.
        stop_words: ``english``, ``none``, a file with a word a line, or another language, as ``german``.
        text_column: Where the text is in tables and JSON lines.
        precision: Of the classifiers of selective masking.
        progress: Show bars.

    Returns:
        Plain values, as in ``masks.json``: ``counts`` of each masking as :func:`count_masks` gives them, and
        ``samples``, the texts as :func:`preview_tokens` gives them; with a task also ``selective``, the
        account of its stages.

    Raises:
        UserError: If something that was given cannot be used.
    """
    check_positive(texts=texts, tokens=tokens, max_length=max_length)
    check_seed(seed)
    made = _labelled(maskings, mask_rate)
    if not made:
        raise UserError("Give at least one masking.")
    if settings and task is None:
        raise UserError("The settings are those of selective masking, which needs a labelled task; give one.")
    if task is not None and SELECTIVE in made:
        raise UserError(f"A masking has the label '{SELECTIVE}', which is that of selective masking; give another.")
    check_replaceable(out, REPORT, "previews of masks")
    tokenizer = load_tokenizer(model)
    stops = read_stop_words(stop_words, tokenizer)
    if tokenizer.mask_token_id is None:
        raise UserError(f"The tokenizer of '{model}' has no mask token, so there is nothing to mask with.")
    text = corpus if isinstance(corpus, Corpus) else Corpus(corpus, text_column=text_column)
    rows = tokenize(text, tokenizer, max_length, max_tokens=tokens, progress=progress)
    every = [np.asarray(row) for row in rows]
    shown = _choose(every, texts, seed)
    about = {label: _about(masking) for label, masking in made.items()}
    marks, account = None, None
    if task is not None:
        method, made[SELECTIVE], marks, account = selective_masking(
            model, rows, task, settings or {}, seed=seed, precision=precision, progress=progress
        )
        about[SELECTIVE] = {"summary": method.summary, "paper": method.paper, "settings": method.settings()}
    collator = Collator.of(tokenizer, next(iter(made.values())), TOKENS_AT_ONCE)
    found = []
    samples: list[dict[str, Any]] = [{"tokens": len(every[index]), "maskings": {}} for index in shown]
    for label, masking in made.items():
        collator = replace(collator, masking=masking)
        counts = count_masks(collator(every, _rng(seed)), collator.vocabulary, collator.special, stops)
        found.append({"label": label, **about[label], "counts": counts})
        for index, sample in zip(shown, samples, strict=True):
            (batch,) = collator([every[index]], _rng(seed, index))
            original, masked, labels = (value[0].numpy() for value in (batch.original, batch.masked, batch.labels))
            important = None if marks is None else marks.lookup(original) > 0
            sample["maskings"][label] = preview_tokens(
                original, masked, labels, collator.special, collator.vocabulary, important
            )
    report = {
        "acclimate": __version__,
        "model": str(model),
        "sources": text.report.sources,
        "settings": {"mask_rate": mask_rate, "max_length": max_length, "seed": seed, "stop_words": stop_words},
        "texts": len(every),
        "maskings": found,
        "samples": samples,
        **({"selective": account} if account else {}),
    }
    if out is not None:
        from acclimate.inspect.masks_page import render

        with atomic_folder(out) as folder:
            write_json(folder / REPORT, report)
            write_text(folder / PAGE, render(report))
    return report


def _labelled(maskings: Sequence[str] | Mapping[str, Masking], rate: float) -> dict[str, Masking]:
    """Make the maskings that were named; a label is as short as tells them apart."""
    if isinstance(maskings, Mapping):
        return dict(maskings)
    made = {text: parse_masking(text, rate) for text in maskings}
    names = [masking.name for masking in made.values()]
    return {masking.name if names.count(masking.name) == 1 else text: masking for text, masking in made.items()}


def _about(masking: Masking) -> dict[str, Any]:
    if isinstance(masking, Strategy):
        return {"summary": masking.summary, "paper": masking.paper, "settings": masking.identity()}
    return {"summary": "", "paper": "", "settings": {}}


def _rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(list(seed))


def _choose(rows: Sequence[np.ndarray], texts: int, seed: int) -> list[int]:
    """Return which texts are shown: random ones, short ones only if there are not enough others."""
    order = np.random.default_rng([seed, 1]).permutation(len(rows)).tolist()
    return sorted(order, key=lambda index: len(rows[index]) < GOOD_SAMPLE)[:texts]
