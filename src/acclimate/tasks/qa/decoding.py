"""From the logits of the windows of a question to its best answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from acclimate.evaluation.qa import RANKS, fold


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``first`` to ``last`` (inclusive) of a window, and the sum of their start and end logit."""

    window: int
    first: int
    last: int
    score: float


def best_answers(
    starts: Sequence[Tensor],
    ends: Sequence[Tensor],
    longest: int,
    text: Callable[[Span], str],
    count: int = RANKS,
) -> list[tuple[str, float]]:
    """Find the answers with the highest start logit + end logit over all windows of a question.

    Every span is looked at, not only those of the twenty best starts and ends, so the result is exact. Spans whose
    texts BioASQ takes for equal (a passage is read twice where windows overlap, or says a name several times) are one
    answer with the score of the best. Of spans with equal scores the one in the earlier window, then the earlier and
    shorter one, comes first.

    Args:
        starts: For each window the start logits of its passage tokens, (tokens,); other tokens are left out.
        ends: The same of the end logits.
        longest: Tokens that an answer may have.
        text: The text of a span; an empty one is no answer.
        count: How many answers to find.

    Returns:
        Text and score of each answer, best first; fewer if there are no more.
    """
    scores = _scores(starts, ends, longest)  # (windows, first tokens, lengths)
    _, width, lengths = scores.shape
    flat = scores.flatten()
    possible = int(flat.isfinite().sum())
    answers: dict[str, tuple[str, float]] = {}
    seen, size = 0, 8 * count
    while seen < possible and len(answers) < count:
        size = min(4 * size, possible)
        least = flat.topk(size).values[-1]
        places = (flat >= least).nonzero()[:, 0]  # ties at the end are all in, in the order of place
        order = flat[places].argsort(descending=True, stable=True)
        for place in places[order][seen:].tolist():
            window, rest = divmod(place, width * lengths)
            first, extra = divmod(rest, lengths)
            span = Span(window, first, first + extra, float(flat[place]))
            found = text(span)
            if found and fold(found) not in answers:
                answers[fold(found)] = (found, span.score)
                if len(answers) == count:
                    break
        seen = len(places)
    return list(answers.values())


def _scores(starts: Sequence[Tensor], ends: Sequence[Tensor], longest: int) -> Tensor:
    """Return start[i] + end[i + l] at (window, i, l), minus infinity where there is no such token."""
    floor = float("-inf")
    start = nn.utils.rnn.pad_sequence(list(starts), batch_first=True, padding_value=floor)
    end = nn.utils.rnn.pad_sequence(list(ends), batch_first=True, padding_value=floor)
    if not start.shape[1]:
        return start[:, :, None]
    longest = min(longest, start.shape[1])
    later = nn.functional.pad(end, (0, longest - 1), value=floor).unfold(1, longest, 1)
    return torch.as_tensor(start[:, :, None] + later)
