"""The mixture of denoisers: each text is masked by one of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.models.kinds import CAUSAL, IGNORE_INDEX
from acclimate.parts.masking import get
from acclimate.parts.masking.denoisers import MODES
from tests.cases import each
from tests.parts.masking.kinds import batches, tokenizer
from tests.tiny import TEXTS, decoder_tokenizer

TEXT = (
    "the waiter was kind and the soup is cold but a menu with good pasta had not this price for they are slow or bad"
)
COPIES = 400


def masks(**settings):
    """Return which tokens of each copy of a text of one token per word are chosen: (copies, words)."""
    assert len(tokenizer("bert")(TEXT)["input_ids"]) == len(TEXT.split()) + 2
    made = batches(get("denoisers", 0.15, **settings), layout="padded", texts=[TEXT], copies=COPIES)
    return np.concatenate([(batch.labels >= 0).numpy()[:, 1:-1] for batch in made])


def test_sequential_denoising_masks_the_end():
    found = masks(regular=0, extreme=0, suffix=0.3)
    counts = found.sum(1)
    words = found.shape[1]
    assert set(counts) == {int(0.3 * words), int(0.3 * words) + 1}
    assert abs(counts.mean() - 0.3 * words) < 0.1
    for row, count in zip(found, counts, strict=True):
        assert row[words - count :].all() and not row[: words - count].any()


@each(
    ("settings", "rates"),
    [({"sequential": 0, "extreme": 0}, [0.15]), ({"sequential": 0, "regular": 0, "most": 0.6}, [0.15, 0.6])],
)
def test_the_other_denoisers_mask_their_share(settings, rates):
    words = len(TEXT.split())
    for share in masks(**settings).sum(1) / words:
        assert min(abs(share - rate) for rate in rates) <= 1 / words


def test_a_uniform_draw_from_seven_denoisers():
    """Texts with half of the tokens masked are those of three denoisers, and one of seven masks only the end."""
    found = masks(suffix=0.3)
    words = found.shape[1]
    half = np.abs(found.sum(1) - 0.5 * words) <= 1
    end = [row[-count:].all() and abs(count - 0.3 * words) < 1 for row, count in zip(found, found.sum(1), strict=True)]
    assert abs(half.mean() - 3 / 7) < 0.08
    assert abs(np.mean(end) - 1 / 7) < 0.06


def test_long_spans_are_longer_than_short_ones():
    long, short = masks(regular=0, sequential=0), masks(sequential=0, extreme=0)

    def mean_run(found):
        starts = np.diff(found.astype(int), axis=1, prepend=0) == 1
        return found.sum() / starts.sum()

    assert mean_run(long) > 1.5 * mean_run(short)


@each(
    "settings",
    [{"suffix": 0}, {"most": 1}, {"regular": -1}, {"regular": 0, "sequential": 0, "extreme": 0}, {"plain": 2}],
)
def test_wrong_shares_are_refused(settings):
    with pytest.raises(UserError, match="denoisers: '"):
        get("denoisers", 0.15, **settings)


ROWS = [" ".join(TEXTS[start:] + TEXTS[:start]) for start in range(6)]


def rows_of(seed, **settings):
    """Return the texts as rows of a decoder, and what it reads in their place."""
    encoder = decoder_tokenizer("llama")
    texts = [np.array(encoder(text)["input_ids"]) for text in (*ROWS, TEXTS[0])]
    collator = Collator.of(encoder, get("denoisers", 0.15, **settings), CAUSAL, 10**6)
    (batch,) = collator(texts, np.random.default_rng(seed))
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    return encoder, [texts[index] for index in order], batch


def restore(mode, read, predicted):
    """Return the text from what a decoder reads and predicts."""
    if mode == "[S2S]":
        return read + predicted
    number = 0
    while (sentinel := f"<{number}>") in read:
        assert predicted.startswith(sentinel)
        span = predicted[len(sentinel) :].split(f"<{number + 1}>")[0]
        predicted = predicted[len(sentinel) + len(span) :]
        read = read.replace(sentinel, span, 1)
        number += 1
    assert number and not predicted
    return read


@each("seed", range(6))
def test_a_decoder_can_restore_the_text_from_what_it_reads_and_predicts(seed):
    encoder, texts, batch = rows_of(seed, plain=0.0)
    changed, modes = 0, set()
    for text, ids, labels, number in zip(texts, batch.original, batch.labels, batch.text, strict=True):
        row, wanted = ids[number >= 0].tolist(), labels[number >= 0].tolist()
        assert len(row) <= len(text)
        first = next(place for place, label in enumerate(wanted) if label != IGNORE_INDEX) + 1
        if row == text.tolist():  # too short for this denoiser
            assert first == 1
            continue
        assert wanted[first - 1 :] == [*row[first:], IGNORE_INDEX]  # all that follows is predicted, in order
        special = encoder.all_special_ids
        read, predicted = (
            encoder.decode([one for one in part if one not in special]) for part in (row[:first], row[first:])
        )
        mode = next(one for one in MODES if read.startswith(one))
        whole = encoder.decode([one for one in text.tolist() if one not in special])
        restored = restore(mode, read.removeprefix(mode), predicted)
        assert whole.endswith(restored) if mode == "[S2S]" else whole.startswith(restored)
        assert len(restored) > 0.4 * len(whole)
        changed += 1
        modes.add(mode)
    assert changed > len(texts) / 3
    assert len(modes) > 1


def test_plain_texts_and_answers_of_conversations_stay_as_they_are():
    for plain in (1.0, 0.0):
        encoder, texts, batch = rows_of(0, plain=plain)
        pairs = zip(texts, batch.original, batch.text, strict=True)
        same = [ids[number >= 0].tolist() == text.tolist() for text, ids, number in pairs]
        assert all(same) if plain else not all(same)
    chat = np.array([1, ~20, ~21, 22, 23, 24, 25, 26, 27, 28, 29, 30])
    collator = Collator.of(encoder, get("denoisers", 0.15, plain=0.0), CAUSAL, 10**6)
    (batch,) = collator([chat] * 20, np.random.default_rng(0))
    assert (batch.original.numpy() == np.where(chat < 0, ~chat, chat)).all()


def test_a_decoder_adapts_with_denoisers_and_its_held_out_loss_stays_plain(tiny_llama, tmp_path):
    options = {"steps": 1, "batch_size": 4, "max_length": 96, "precision": "fp32", "progress": False}
    lines = {}
    for name, masking in (("plain", None), ("denoised", get("denoisers", plain=0.0))):
        out = tmp_path / name
        adapt(tiny_llama, Corpus.of(ROWS), "lm", out, masking=masking, heldout=Corpus.of(TEXTS[:3]), **options)
        lines[name] = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    before = [next(line["heldout"]["loss"] for line in lines[name] if "heldout" in line) for name in lines]
    assert before[0] == before[1]
    losses = [[line["loss"] for line in lines[name] if "loss" in line] for name in lines]
    assert losses[0] != losses[1] and np.isfinite(losses[1]).all()
