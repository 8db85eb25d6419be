"""The fastText stage of an adaptation: from the token rows of a run to targets for its vocabulary, cached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from acclimate.corpus import Corpus
from acclimate.training.run import Run
from acclimate.vectors.fasttext import load_fasttext, train_fasttext
from acclimate.vectors.surface import surfaces
from acclimate.vectors.targets import Targets, make_targets, read_stop_words


def fasttext_targets(run: Run, settings: Mapping[str, Any]) -> Targets:
    """Train fastText on the text of a run and look its vocabulary up; both come from the cache if they are there.

    The text is what the model reads, decoded from its rows: words then have the case that the vocabulary has.

    Args:
        run: The adaptation.
        settings: ``vectors``, ``general``, ``dimension``, ``min_count``, ``epochs``, ``buckets``, ``stop_words``,
            ``boundary`` and ``normalise``, as :class:`acclimate.methods.tapter.TAPTER` has them.
    """
    stop_words = read_stop_words(settings["stop_words"])
    general = Corpus([settings["general"]]) if settings["general"] and not settings["vectors"] else None

    def make() -> dict[str, Any]:
        model = load_fasttext(settings["vectors"]) if settings["vectors"] else None
        options = {name: settings[name] for name in ("dimension", "min_count", "epochs", "buckets")}
        if general is not None:
            run.say("Training fastText on general text.")
            model = train_fasttext(general, seed=run.seed, **options)
        run.say("Training fastText on the text of the domain.")
        model = train_fasttext(_texts(run), start=model, seed=run.seed, **options)
        targets = make_targets(
            model,
            surfaces(run.tokenizer),
            stop_words=stop_words,
            boundary=settings["boundary"],
            normalise=settings["normalise"],
        )
        return {"vectors": targets.vectors, "regularised": targets.regularised}

    keys = ("vectors", "dimension", "min_count", "epochs", "buckets", "boundary", "normalise")
    identity = {name: settings[name] for name in keys}
    if settings["vectors"] and Path(settings["vectors"]).is_file():
        identity["bytes"] = Path(settings["vectors"]).stat().st_size
    identity |= {"general": general.fingerprint if general else "", "stop_words": sorted(stop_words)}
    made = run.cached("fasttext", identity, make)
    return Targets(made["vectors"], made["regularised"])


def _texts(run: Run) -> Iterator[str]:
    for row in run.rows:
        yield run.tokenizer.decode(row.tolist(), skip_special_tokens=True)  # type: ignore[misc]
