"""Tokenizers that mark words in three ways, and batches of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import Masking, Vocabulary
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.masking.words import Words
from acclimate.parts.objectives import Batch
from tests.tiny import TEXTS, tiny_tokenizer

SENTENCES = [
    *TEXTS,
    "slow, slow soup",
    "the naïve café (it's cold) is state-of-the-art!",
    "我喜欢吃汤。",
    "unseen wonders",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
KINDS = ("bert", "roberta", "xlm-roberta")


@cache
def tokenizer(kind: str) -> PreTrainedTokenizerBase:
    """A WordPiece (BERT), byte-level BPE (RoBERTa) or SentencePiece (XLM-R) tokenizer trained on a few lines."""
    if kind == "bert":
        return tiny_tokenizer()
    if kind == "roberta":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=330, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    else:
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")
    backend.train_from_iterator(SENTENCES * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<s>", sep_token="</s>", **names)


@cache
def encoded(kind: str, texts: tuple[str, ...]) -> list[list[int]]:
    """Token ids of texts."""
    return tokenizer(kind)(list(texts))["input_ids"]


@cache
def vocabulary(kind: str) -> Vocabulary:
    """Return the vocabulary of a tokenizer, shared by all tests."""
    return make_vocabulary(tokenizer(kind))


def batches(
    masking: Masking,
    kind: str = "bert",
    layout: str = "packed",
    *,
    texts: Sequence[str] = SENTENCES,
    copies: int = 1,
    tokens: int = 200,
    seed: int = 0,
) -> list[Batch]:
    """Return the masked micro-batches of some texts."""
    rows = [np.array(row) for row in encoded(kind, tuple(texts))] * copies
    collator = replace(Collator.of(tokenizer(kind), masking, MASKED, tokens, layout), vocabulary=vocabulary(kind))
    return collator(rows, np.random.default_rng(seed))


def word_tokens(kind: str, text: str) -> list[list[str]]:
    """Return the tokens of each word of a text."""
    ids = np.array([tokenizer(kind)(text)["input_ids"]])
    allowed = ~np.isin(ids, tokenizer(kind).all_special_ids)
    words = Words.of(ids, np.zeros_like(ids), allowed, vocabulary(kind).subwords)
    tokens = tokenizer(kind).convert_ids_to_tokens(ids[0, words.positions])
    return [tokens[start:stop] for start, stop in zip(words.starts, words.starts[1:], strict=False)]
