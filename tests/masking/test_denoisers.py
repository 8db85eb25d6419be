"""The mixture of denoisers: each text is masked by one of them."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.errors import UserError
from acclimate.masking import get
from tests.cases import each
from tests.masking.kinds import batches, tokenizer

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


@each("settings", [{"suffix": 0}, {"most": 1}, {"regular": -1}, {"regular": 0, "sequential": 0, "extreme": 0}])
def test_wrong_shares_are_refused(settings):
    with pytest.raises(UserError, match="denoisers: '"):
        get("denoisers", 0.15, **settings)
