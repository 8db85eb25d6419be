"""Stop words: by language, from a file, and as a vocabulary spells them."""

from __future__ import annotations

import sys

import pytest
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from acclimate.corpus.stop_words import read_stop_words
from acclimate.errors import UserError
from acclimate.methods.selective.annotation import make_stop_word_mask
from acclimate.methods.tapter.method import TAPTER
from tests.tiny import tiny_tokenizer


def german(lowercase):
    """A WordPiece of a few words, which drops accents where it drops case, as BERT's uncased ones do."""
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "fur": 1, "für": 2, "suppe": 3, "##fur": 4}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_english_and_none_need_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "stop_words", None)
    assert read_stop_words("none") == frozenset()
    for tokenizer in (None, tiny_tokenizer(), german(True)):
        assert read_stop_words("english", tokenizer) == ENGLISH_STOP_WORDS


def test_a_file_is_read_before_a_language_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "german").write_text("Für\n\n und \n", encoding="utf-8")
    assert read_stop_words("german") == {"für", "und"}


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    (tmp_path / "words.txt").write_text("für\nund\n", encoding="utf-8-sig")
    assert read_stop_words(str(tmp_path / "words.txt")) == {"für", "und"}


def test_what_is_no_file_of_words_is_one_line(tmp_path):
    (tmp_path / "latin.txt").write_text("für\nund\n", encoding="latin-1")
    with pytest.raises(UserError, match=r"latin\.txt' are not UTF-8; save the file as UTF-8"):
        read_stop_words(str(tmp_path / "latin.txt"))
    with pytest.raises(UserError, match="a file with a word a line"):
        read_stop_words(",".join(["the"] * 300))
    assert TAPTER(stop_words=",".join(["the"] * 300)).file_contents() == {}


def test_words_are_looked_for_as_the_vocabulary_spells_them(tmp_path):
    (tmp_path / "words.txt").write_text("für\n", encoding="utf-8")
    source = str(tmp_path / "words.txt")
    assert read_stop_words(source, german(True)) == {"für", "fur"}
    assert read_stop_words(source, german(False)) == {"für"}
    first, later = make_stop_word_mask(german(True), source)
    assert first.tolist() == [False, True, True, False, True]
    assert later.tolist() == [False, True, True, False, False]
    assert make_stop_word_mask(german(False), source)[1].tolist() == [False, False, True, False, False]


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "stop_words", None)
    with pytest.raises(UserError, match=r"stop_words is 'german'.*pip install 'acclimate\[stopwords\]'"):
        read_stop_words("german")


def test_languages_of_the_package():
    package = pytest.importorskip("stop_words")
    found = read_stop_words("german")
    assert {"und", "für", "nicht"} <= found and "suppe" not in found
    for language in set(package.AVAILABLE_LANGUAGES) - {"english"}:
        assert len(words := read_stop_words(language)) > 20 and all(word == word.lower() for word in words)
    assert "fur" in read_stop_words("german", german(True))
    with pytest.raises(UserError, match=r"Did you mean 'german'\? Languages: arabic, "):
        read_stop_words("germn")
