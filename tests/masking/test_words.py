"""Which tokens make a word, for the three kinds of tokenizers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from acclimate.errors import UserError
from acclimate.masking import RandomMasking, Vocabulary, get
from acclimate.masking.words import Words, is_punctuation
from acclimate.training.batches import Collator
from tests.cases import each
from tests.masking.kinds import KINDS, SENTENCES, spoken, tokenizer
from tests.masking.kinds import vocabulary as of

WORD = re.compile(r"[a-z0-9]+|[^a-z0-9\s]")


def spelled(kind, text, fold=True):
    vocabulary = of(kind)
    ids = np.array([tokenizer(kind)(text)["input_ids"]])
    allowed = ~np.isin(ids, tokenizer(kind).all_special_ids)
    words = Words.of(ids, np.zeros_like(ids), allowed, vocabulary.pieces)
    return words.spelled(ids, vocabulary.pieces, fold=fold)


@each("kind", KINDS)
@each("text", [text for text in SENTENCES if text.isascii()])
def test_words_are_letters_together_and_signs_alone_whatever_marks_them(kind, text):
    assert spelled(kind, text) == WORD.findall(text)


def test_words_keep_their_parts_together():
    assert spoken("bert", "unseen soup.") == [["u", "##n", "##s", "##e", "##e", "##n"], ["soup"], ["."]]
    (first, *_), second, dot = spoken("roberta", "unseen soup.")
    assert not first.startswith("Ġ"), "the first word of a text has no space before it"
    assert second[0].startswith("Ġ")
    assert dot == ["."]
    assert [word[0][0] for word in spoken("xlm-roberta", "unseen soup")] == ["▁", "▁"]


def test_scripts_without_spaces_have_a_word_a_token():
    assert all(len(word) == 1 or word[0] == "▁" for word in spoken("xlm-roberta", "我喜欢吃汤。"))
    assert len(spoken("xlm-roberta", "我喜欢吃汤。")) > 1


def test_a_lone_space_belongs_to_what_follows_and_a_line_break_to_nothing():
    words = spoken("roberta", "soup\nsoup  soup")
    assert [word for word in words if word[0] == "Ċ"] == [["Ċ"]]
    assert spelled("roberta", "soup\nsoup") == ["soup", "", "soup"]
    pieces = of("xlm-roberta").pieces
    space = tokenizer("xlm-roberta").convert_tokens_to_ids("▁")
    assert pieces.starts_word[space] and not pieces.ends_word[space]


def test_bytes_that_are_no_text_differ_from_each_other():
    vocabulary = of("roberta")
    partial = [text for text in vocabulary.pieces.text if text.startswith("\0")]
    assert len(partial) == len(set(partial)) > 60


def test_bytes_that_are_no_text_are_characters_together_unless_a_cut_parts_them():
    pieces = of("roberta").pieces
    ids = np.array([tokenizer("roberta")(" ĥĥ")["input_ids"][1:-1]])
    assert pieces.partial[ids].any(), "nothing of that was in the training"
    for left, expected in ((0, "ĥĥ"), (1, None)):
        row = ids[:, : ids.shape[1] - left]
        words = Words.of(row, np.zeros_like(row), np.ones_like(row, dtype=bool), pieces)
        (word,) = words.spelled(row, pieces, fold=False)
        assert word == expected if expected else "\0" in word


@each("kind", KINDS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_words_end_with_their_text_and_at_special_tokens(kind, data):
    vocabulary = of(kind)
    size = len(tokenizer(kind))
    ids = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=12, max_size=12))).reshape(2, 6)
    text = np.array([[0, 0, 0, 1, 1, 1], [2, 2, 2, 2, -1, -1]])
    allowed = (text >= 0) & ~np.isin(ids, tokenizer(kind).all_special_ids)
    words = Words.of(ids, text, allowed, vocabulary.pieces)
    assert sorted(words.place) == np.flatnonzero(allowed).tolist()
    assert words.length.sum() == allowed.sum()
    for index, (start, stop) in enumerate(zip(words.first, words.first[1:], strict=False)):
        place = words.place[start:stop]
        assert (np.diff(place) == 1).all()
        assert set(text.ravel()[place]) == {words.text[index]}
        inner = ids.ravel()[place[1:]]
        assert not vocabulary.pieces.starts_word[inner].any()


def test_punctuation_is_what_bert_takes_for_it():
    assert all(map(is_punctuation, ".,!?$^`-_~«»—。"))
    assert not any(map(is_punctuation, "aZ9é我€ "))


def test_random_masking_asks_for_no_words_and_others_say_what_is_missing():
    backend = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1, "[MASK]": 2, "[PAD]": 3}, unk_token="[UNK]"))
    names = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    strange = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    rows = [np.zeros(9, dtype=int)]
    assert Collator.of(strange, RandomMasking(), 100)(rows, np.random.default_rng(0))
    with pytest.raises(UserError, match="beginnings of words"):
        Collator.of(strange, get("whole-word"), 100)(rows, np.random.default_rng(0))
    with pytest.raises(ValueError, match="without its tokenizer"):
        _ = Vocabulary(2, np.arange(1)).pieces
