"""The fastText stage of an adaptation: from the token rows of a run to targets for its vocabulary, cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corpus import Corpus
from acclimate.corpus.progress import Progress
from acclimate.files import found_file, hash_file, new_folder
from acclimate.training.run import Run, cache_folder, cache_key
from acclimate.vectors.fasttext import NEGATIVES, load_fasttext, save_fasttext, train_fasttext
from acclimate.vectors.stop_words import read_stop_words
from acclimate.vectors.surface import Spelling, surfaces
from acclimate.vectors.targets import Targets, make_targets, read_targets

VERSION = 3
"""Raise when the same text comes to give other vectors."""
GENERAL_SEED = 0
"""Of what is learnt of a general text: gigabytes and hours that all runs share."""


def fasttext_targets(run: Run, settings: Mapping[str, Any]) -> Targets:
    """Train fastText on the text of a run and look its vocabulary up; both come from the cache if they are there.

    Where ``vectors`` is a ``.npy`` it is F itself, and nothing is trained. Otherwise the text is what the model reads,
    decoded from its rows, and a general text is read as the tokenizer writes it: words then have the case that the
    vocabulary has.

    Args:
        run: The adaptation.
        settings: ``vectors``, ``general``, ``general_epochs``, ``dimension``, ``min_count``, ``epochs``,
            ``buckets``, ``stop_words``, ``boundary`` and ``normalise``, as :class:`acclimate.methods.tapter.TAPTER`
            has them.
    """
    stop_words = read_stop_words(settings["stop_words"], run.tokenizer)
    if settings["vectors"].endswith(".npy"):
        return read_targets(
            settings["vectors"],
            surfaces(run.tokenizer),
            stop_words=stop_words,
            normalise=settings["normalise"],
        )
    general = Corpus([settings["general"]]) if settings["general"] and not settings["vectors"] else None

    def make() -> dict[str, Any]:
        model = load_fasttext(settings["vectors"]) if settings["vectors"] else None
        options = {name: settings[name] for name in ("dimension", "min_count", "epochs", "buckets")}
        if general is not None:
            model = load_fasttext(_general(run, general, {**options, "epochs": settings["general_epochs"]}))
        model = _trained(run, "the text of the run", _RowTexts(run), model, options, run.seed)
        targets = make_targets(
            model,
            surfaces(run.tokenizer),
            stop_words=stop_words,
            boundary=settings["boundary"],
            normalise=settings["normalise"],
        )
        return {"vectors": targets.vectors, "regularised": targets.regularised}

    keys = ("vectors", "dimension", "min_count", "epochs", "buckets", "boundary", "normalise")
    identity = {**{name: settings[name] for name in keys}, "negatives": NEGATIVES, "version": VERSION}
    if settings["vectors"] and (file := found_file(settings["vectors"])) is not None:
        identity["vectors"] = hash_file(file)
    if general is not None:
        identity |= {"general": general.fingerprint, "general_epochs": settings["general_epochs"]}
    identity["stop_words"] = sorted(stop_words)
    made = run.cached("fasttext", identity, make)
    return Targets(made["vectors"], made["regularised"])


def _general(run: Run, text: Corpus, options: Mapping[str, Any]) -> Path:
    """Return a ``.bin`` of the cache: what was learnt of a general text serves every run, whatever its seed.

    Models whose tokenizers write text in the same way share it: cased ones, or uncased ones.
    """
    spelling = Spelling(run.tokenizer)
    decides = {**options, "text": text.fingerprint, "spelling": spelling.rule}
    decides |= {"negatives": NEGATIVES, "version": VERSION}
    file = cache_folder() / "fasttext-general" / cache_key(decides) / "general.bin"
    if not file.is_file():
        made = _trained(run, "general text", _Spelled(text, spelling), None, options, GENERAL_SEED)
        with new_folder(file.parent) as folder:
            save_fasttext(made, folder / file.name)
    return file


def _trained(run: Run, what: str, texts: Iterable[str], start: Any, options: Mapping[str, Any], seed: int) -> Any:
    run.say(f"Training fastText on {what}.")
    with Progress("fastText", 100, unit="%", enabled=run.progress) as bar:
        return train_fasttext(texts, start=start, seed=seed, tell=lambda share: bar.at(int(100 * share)), **options)


class _Spelled:
    """Texts as a tokenizer writes them, anew at every reading."""

    def __init__(self, texts: Iterable[str], spelling: Callable[[str], str]) -> None:
        self._texts, self._spelling = texts, spelling

    def __iter__(self) -> Iterator[str]:
        return map(self._spelling, self._texts)


class _RowTexts:
    """The documents of a run as texts, decoded at every reading.

    Their rows are put together first: a long document is cut anywhere, also within words.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def __iter__(self) -> Iterator[str]:
        rows = self._run.rows
        documents = getattr(rows, "document", range(len(rows)))
        for _, of_one in groupby(range(len(rows)), key=documents.__getitem__):
            ids = np.concatenate([rows[index] for index in of_one]).tolist()
            yield self._run.tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[misc]
