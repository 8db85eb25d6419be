"""The rule on many units at once: all buffers advance together.

The rule is sequential within a unit: what s' holds depends on every decision before. Between units nothing depends on
anything, so each round asks for the next token of all of them, and the classifier reads those buffers by length in
batches of a budget of tokens: hardly any padding, and batches that stay full until few units are left. No token is
decided differently than one buffer at a time would decide it, but for what rounding in another batch shape can flip.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acclimate.corpus.progress import Progress
from acclimate.selective.annotation import Annotated, Confidence, Unit, Walk
from acclimate.selective.options import AnnotationOptions


def annotate_units(
    units: Sequence[Unit],
    confidence: Confidence,
    options: AnnotationOptions,
    *,
    stop_words: np.ndarray | None = None,
    progress: bool = False,
) -> list[Annotated]:
    """Find the important tokens of units.

    Args:
        units: What to annotate.
        confidence: The fine-tuned classifier.
        options: The rule.
        stop_words: For each id of the vocabulary whether it is a stop word, as the first token of a unit and behind it
            (2, vocabulary): such a token is not marked at the end, but takes part in the buffer as any other. None for
            no stop words.
        progress: Show a bar.

    Returns:
        An annotation for each unit, in their order; those that ``misclassified="drop"`` leaves out are missing.
    """
    if not units:
        return []
    whole = confidence([(unit, unit.tokens) for unit in units])
    correct = whole.argmax(1) == np.array([unit.label for unit in units])
    walked = correct | (options.misclassified == "annotate")
    chosen = [place for place, walks in enumerate(walked) if walks]
    walks = _walk(
        [units[place] for place in chosen],
        [float(whole[place, units[place].label]) for place in chosen],
        confidence,
        options,
        progress,
    )
    by_place = dict(zip(chosen, walks, strict=True))
    result = []
    for place, unit in enumerate(units):
        if place not in by_place and options.misclassified == "drop":
            continue
        walk = by_place.get(place)
        important = np.array(walk.important if walk else [False] * len(unit.tokens), dtype=bool)
        if stop_words is not None:
            behind = np.minimum(np.arange(len(unit.tokens)), 1)
            important &= ~stop_words[behind, np.array(unit.tokens, dtype=np.int64)]
        scores = np.array(walk.scores if walk else [], dtype=np.float64)
        result.append(Annotated(unit, important, scores, float(whole[place, unit.label]), bool(correct[place])))
    return result


def _walk(
    units: Sequence[Unit], full: Sequence[float], confidence: Confidence, options: AnnotationOptions, progress: bool
) -> list[Walk]:
    """Take every unit from its first token to its last, a token of each a round."""
    empty = np.zeros(len(units))
    if options.criterion == "marginal" and units:
        before = confidence([(unit, ()) for unit in units])
        empty = before[np.arange(len(units)), [unit.label for unit in units]]
    walks = [Walk(unit, whole, float(none), options) for unit, whole, none in zip(units, full, empty, strict=True)]
    alive = [walk for walk in walks if not walk.ended]
    total, decided = sum(len(unit.tokens) for unit in units), 0
    with Progress("Annotating", total, unit="tokens", enabled=progress) as bar:
        while alive:
            found = confidence([(walk.unit, walk.proposal) for walk in alive])
            for walk, probabilities in zip(alive, found, strict=True):
                walk.decide(float(probabilities[walk.unit.label]))
            decided += len(alive)
            bar.at(decided)
            alive = [walk for walk in alive if not walk.ended]
    return walks
