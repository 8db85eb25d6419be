"""One n-gram per text: its position, the text without it, and the n-gram alone."""

from __future__ import annotations

import numpy as np

from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import ExtractNGram, MaskNGram, NGramSampler, RandomMasking
from tests.adaptation.helpers import rows
from tests.cases import each
from tests.tiny import tiny_tokenizer

MASK = 4


def collate(layout, rewritings, seed=0, tokens=100):
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, tokens, layout, rewritings)
    return collator([np.asarray(row) for row in rows(4)], np.random.default_rng(seed))


@each("layout", ["padded", "packed"])
def test_the_masked_text_and_the_extracted_ngram_are_complementary(layout):
    """The n-gram is contiguous, lies between special tokens, and fits into the gap of the masked text."""
    without, alone = MaskNGram(), ExtractNGram()
    for batch in collate(layout, (without, alone)):
        gap, pieces = batch.view_input(without), batch.view_input(alone)
        assert gap.text.equal(batch.text)
        for number in range(batch.texts):
            here = batch.text == number
            text, masked = batch.original[here].tolist(), gap.ids[here].tolist()
            ngram = pieces.ids[pieces.text == number].tolist()
            assert [text[0], text[-1]] == [ngram[0], ngram[-1]] == [2, 3]
            inside = [position for position, (a, b) in enumerate(zip(text, masked, strict=True)) if a != b]
            if len(text) < 4:
                assert not inside
                continue
            assert inside == list(range(inside[0], inside[-1] + 1))
            assert 1 <= len(inside) <= min(10, len(text) - 3)
            assert {masked[position] for position in inside} == {MASK}
            assert [text[position] for position in inside] == ngram[1:-1]


def test_ngrams_do_not_depend_on_the_micro_batches():
    """For the same seed, the n-grams do not depend on the method's views or the number of processes."""
    without, alone = MaskNGram(), ExtractNGram()

    def found(tokens):
        batches = collate("padded", (without, alone), tokens=tokens)
        gaps, ngrams = set(), set()
        for batch in batches:
            for how, into in ((without, gaps), (alone, ngrams)):
                read = batch.view_input(how)
                for number in range(batch.texts):
                    here = tuple(batch.original[batch.text == number].tolist())
                    into.add((here, tuple(read.ids[read.text == number].tolist())))
        return len(batches), gaps, ngrams

    whole, pieces = found(10_000), found(30)
    assert whole[0] == 1 < pieces[0]
    assert whole[1:] == pieces[1:]


def test_lengths_and_positions_follow_their_distributions():
    text = np.repeat(np.arange(3000), 20).reshape(3000, 20)
    allowed = np.ones_like(text, dtype=bool)
    allowed[:, [0, -1]] = False
    inside = NGramSampler(5, 1, 10).draw(text, allowed, range(3000))
    lengths = inside.sum(1)
    assert abs(lengths.mean() - 5) < 0.1
    assert abs(lengths.std() - np.sqrt(1 + 1 / 12)) < 0.05
    assert not inside[:, [0, -1]].any()
    five = inside[lengths == 5]
    starts = np.bincount(five.argmax(1), minlength=15)[1:15]
    assert starts.min() > 0.7 * len(five) / 14
    assert starts.max() < 1.3 * len(five) / 14
    assert (NGramSampler(8, 1, 2).draw(text, allowed, range(3000)).sum(1) == 2).all()


@each("layout", ["padded", "packed"])
def test_rewritings_do_not_change_the_masks_and_are_reproducible(layout):
    how = MaskNGram()
    plain = collate(layout, ())
    asked, again, other = (collate(layout, (how,), seed) for seed in (0, 0, 1))
    for a, b, c in zip(plain, asked, again, strict=True):
        assert a.masked.equal(b.masked)
        assert a.labels.equal(b.labels)
        assert b.view_input(how).ids.equal(c.view_input(how).ids)
    assert any(not b.view_input(how).ids.equal(d.view_input(how).ids) for b, d in zip(asked, other, strict=True))
