"""Stop words in the spelling of a tokenizer, as the annotation reads them."""

from __future__ import annotations

from acclimate.papers.selective.annotation import make_stop_word_mask
from tests.data.test_stop_words import german


def test_words_are_masked_in_the_spelling_of_the_tokenizer(tmp_path):
    (tmp_path / "words.txt").write_text("für\n", encoding="utf-8")
    source = str(tmp_path / "words.txt")
    first, later = make_stop_word_mask(german(True), source)
    assert first.tolist() == [False, True, True, False, True]
    assert later.tolist() == [False, True, True, False, False]
    assert make_stop_word_mask(german(False), source)[1].tolist() == [False, False, True, False, False]
