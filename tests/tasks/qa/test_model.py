"""Finding the best answers, compared with an exhaustive search."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.evaluation.qa import normalize_bioasq
from acclimate.tasks.kinds.qa.model import best_answers


def slow(starts, ends, longest, text, count):
    """All spans of every window, sorted; the first of each text is kept."""
    spans = [
        (float(start[i] + end[j]), window, i, j)
        for window, (start, end) in enumerate(zip(starts, ends, strict=True))
        for i in range(len(start))
        for j in range(i, min(i + longest, len(start)))
    ]
    spans.sort(key=lambda span: (-span[0], span[1:]))
    answers = {}
    for score, window, i, j in spans:
        found = text(window, i, j)
        if found:
            answers.setdefault(normalize_bioasq(found), (found, score))
    return list(answers.values())[:count]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_the_best_answers_are_those_of_an_exhaustive_search(widths, longest, count, seed, few_words):
    generator, chance = torch.Generator().manual_seed(seed), random.Random(seed)
    # Few levels give many ties; few words give many spans with the same text.
    starts = [torch.randint(-3, 4, (width,), generator=generator).float() for width in widths]
    ends = [torch.randint(-3, 4, (width,), generator=generator).float() for width in widths]
    words = ["a", "A", "b", " "] if few_words else ["a", "B", "c", "d", "e", "f", "g"]
    texts = [chance.choices(words, k=width) for width in widths]

    def text(window, first, last):
        return " ".join(texts[window][first : last + 1]).strip()

    found = best_answers(starts, ends, longest, lambda span: text(span.window, span.first, span.last), count)
    assert found == slow(starts, ends, longest, text, count)


def test_a_text_with_all_top_spans_does_not_hide_the_others():
    starts, ends = [torch.arange(400, 0, -1.0)], [torch.arange(400, 0, -1.0)]
    found = best_answers(starts, ends, 2, lambda span: "same" if span.first < 399 else "last", 3)
    assert [text for text, _ in found] == ["same", "last"]


def test_no_tokens_no_answers():
    assert best_answers([torch.zeros(0)], [torch.zeros(0)], 5, lambda span: "x") == []
