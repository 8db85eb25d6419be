"""The words of a text, for three kinds of tokenizers."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_python import _is_punctuation

from acclimate.base.errors import UserError
from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import RandomMasking, Vocabulary, get
from acclimate.parts.masking.words import Words, _is_single_character_word, is_punctuation
from tests.cases import each
from tests.parts.masking.kinds import KINDS, SENTENCES, tokenizer, word_tokens
from tests.parts.masking.kinds import vocabulary as of

WORD = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")


def words_of(kind, text):
    vocabulary = of(kind)
    ids = np.array([tokenizer(kind)(text)["input_ids"]])
    allowed = ~np.isin(ids, tokenizer(kind).all_special_ids)
    words = Words.of(ids, np.zeros_like(ids), allowed, vocabulary.subwords)
    return words.surface_forms(ids, vocabulary.subwords, lowercase=True)


@each("kind", KINDS)
@each("text", [text for text in SENTENCES if text.isascii()])
def test_letters_form_words_and_each_punctuation_character_is_one(kind, text):
    assert words_of(kind, text) == WORD.findall(text)


def test_the_tokens_of_words():
    assert word_tokens("bert", "unseen soup.") == [["u", "##n", "##s", "##e", "##e", "##n"], ["soup"], ["."]]
    (first, *_), second, dot = word_tokens("roberta", "unseen soup.")
    assert not first.startswith("Ġ"), "the first word of a text has no space before it"
    assert second[0].startswith("Ġ")
    assert dot == ["."]
    assert [word[0][0] for word in word_tokens("xlm-roberta", "unseen soup")] == ["▁", "▁"]


def test_in_scripts_without_spaces_each_token_is_a_word():
    assert all(len(word) == 1 or word[0] == "▁" for word in word_tokens("xlm-roberta", "我喜欢吃汤。"))
    assert len(word_tokens("xlm-roberta", "我喜欢吃汤。")) > 1


def test_a_single_space_belongs_to_the_next_word_and_a_line_break_is_a_word():
    words = word_tokens("roberta", "soup\nsoup  soup")
    assert [word for word in words if word[0] == "Ċ"] == [["Ċ"]]
    assert words_of("roberta", "soup\nsoup") == ["soup", "", "soup"]
    subwords = of("xlm-roberta").subwords
    space = tokenizer("xlm-roberta").convert_tokens_to_ids("▁")
    assert subwords.starts_word[space] and not subwords.ends_word[space]


def test_placeholders_of_bytes_are_unique():
    vocabulary = of("roberta")
    partial = [text for text in vocabulary.subwords.text if text.startswith("\0")]
    assert len(partial) == len(set(partial)) > 60


def test_bytes_are_joined_to_characters_unless_some_are_missing():
    subwords = of("roberta").subwords
    ids = np.array([tokenizer("roberta")(" ĥĥ")["input_ids"][1:-1]])
    assert subwords.is_part[ids].any(), "the tokenizer was not trained on this character"
    for left, expected in ((0, "ĥĥ"), (1, None)):
        row = ids[:, : ids.shape[1] - left]
        words = Words.of(row, np.zeros_like(row), np.ones_like(row, dtype=bool), subwords)
        (word,) = words.surface_forms(row, subwords, lowercase=False)
        assert word == expected if expected else "\0" in word


@each("kind", KINDS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_words_do_not_span_texts_or_special_tokens(kind, data):
    vocabulary = of(kind)
    size = len(tokenizer(kind))
    ids = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=12, max_size=12))).reshape(2, 6)
    text = np.array([[0, 0, 0, 1, 1, 1], [2, 2, 2, 2, -1, -1]])
    allowed = (text >= 0) & ~np.isin(ids, tokenizer(kind).all_special_ids)
    words = Words.of(ids, text, allowed, vocabulary.subwords)
    assert sorted(words.positions) == np.flatnonzero(allowed).tolist()
    assert words.lengths.sum() == allowed.sum()
    for index, (start, stop) in enumerate(zip(words.starts, words.starts[1:], strict=False)):
        positions = words.positions[start:stop]
        assert (np.diff(positions) == 1).all()
        assert set(text.ravel()[positions]) == {words.text[index]}
        inner = ids.ravel()[positions[1:]]
        assert not vocabulary.subwords.starts_word[inner].any()


def test_punctuation_is_that_of_bert():
    assert all(map(is_punctuation, ".,!?$^`-_~«»—。"))
    for character in map(chr, range(0x3100)):
        # Python may have an older version of Unicode than regex.
        if unicodedata.category(character) != "Cn":
            assert is_punctuation(character) == _is_punctuation(character), hex(ord(character))


def test_scripts_without_spaces():
    assert all(map(_is_single_character_word, "我々喜かなカナーｶไลខမ"))
    assert not any(map(_is_single_character_word, ["", "a", "é", "한", "अ", "ა"]))


def test_only_strategies_that_use_words_need_a_supported_tokenizer():
    backend = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1, "[MASK]": 2, "[PAD]": 3}, unk_token="[UNK]"))
    names = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    strange = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    rows = [np.zeros(9, dtype=int)]
    assert Collator.of(strange, RandomMasking(), MASKED, 100)(rows, np.random.default_rng(0))
    with pytest.raises(UserError, match="beginnings of words"):
        Collator.of(strange, get("whole-word"), MASKED, 100)(rows, np.random.default_rng(0))
    with pytest.raises(ValueError, match="without its tokenizer"):
        _ = Vocabulary(2, np.arange(1)).subwords
