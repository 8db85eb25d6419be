"""Stop words of a language or a file, and in the spelling of a tokenizer."""

from __future__ import annotations

import sys

import pytest
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from acclimate.base.errors import UserError
from acclimate.data.stop_words import read_stop_words
from tests.tiny import tiny_tokenizer


def german(lowercase):
    """A small WordPiece tokenizer that removes accents if it lowercases, like uncased BERT."""
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "fur": 1, "für": 2, "suppe": 3, "##fur": 4}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_english_and_none_need_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "stop_words", None)
    assert read_stop_words("none") == frozenset()
    for tokenizer in (None, tiny_tokenizer(), german(True)):
        assert read_stop_words("english", tokenizer) == ENGLISH_STOP_WORDS


def test_a_file_takes_precedence_over_a_language(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "german").write_text("Für\n\n und \n", encoding="utf-8")
    assert read_stop_words("german") == {"für", "und"}


def test_a_byte_order_mark_is_removed(tmp_path):
    (tmp_path / "words.txt").write_text("für\nund\n", encoding="utf-8-sig")
    assert read_stop_words(str(tmp_path / "words.txt")) == {"für", "und"}


def test_an_unreadable_source_gives_a_one_line_error(tmp_path):
    (tmp_path / "latin.txt").write_text("für\nund\n", encoding="latin-1")
    with pytest.raises(UserError, match=r"latin\.txt' is not UTF-8; save it as UTF-8"):
        read_stop_words(str(tmp_path / "latin.txt"))
    with pytest.raises(UserError, match="a file with one word per line"):
        read_stop_words(",".join(["the"] * 300))


def test_words_are_added_in_the_spelling_of_the_tokenizer(tmp_path):
    (tmp_path / "words.txt").write_text("für\n", encoding="utf-8")
    source = str(tmp_path / "words.txt")
    assert read_stop_words(source, german(True)) == {"für", "fur"}
    assert read_stop_words(source, german(False)) == {"für"}


def test_a_missing_package_error_says_what_to_install(monkeypatch):
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
