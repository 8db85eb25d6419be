"""Token rows and micro-batches over the tiny vocabulary."""

from __future__ import annotations

import numpy as np

from acclimate.corpus import TokenDataset
from acclimate.masking import RandomMasking
from acclimate.objectives import Batch
from acclimate.training.batches import Collator
from tests.tiny import TEXTS, tiny_tokenizer


def rows(copies: int = 1) -> TokenDataset:
    """The texts of the tiny vocabulary as token rows."""
    tokenizer = tiny_tokenizer()
    return TokenDataset.of([tokenizer(f"{text} {copy}")["input_ids"] for copy in range(copies) for text in TEXTS])


def micro_batches(tokens: int = 64, rate: float = 0.3, layout: str = "padded", seed: int = 0) -> list[Batch]:
    """All texts, split into micro-batches of so many tokens."""
    collator = Collator.of(tiny_tokenizer(), RandomMasking(rate), tokens, layout)
    return collator([np.asarray(row) for row in rows()], np.random.default_rng(seed))
