"""Marks continue words, in every place where words are found."""

from __future__ import annotations

import re
import sys
import unicodedata

from acclimate.corpus.contamination import normalize_words
from acclimate.methods.tapter.fasttext import split_words
from acclimate.planning.vocabulary import count_words
from acclimate.unicode import COMBINING_MARKS
from tests.cases import each

WRITTEN = {
    "Hindi": "हिन्दी विद्यार्थी परीक्षण",
    "Tamil": "தமிழ் மொழியில் எழுதப்பட்டது",
    "Thai": "ที่ไหน น้ำเย็น ผู้ป่วย",
    "vowelled Arabic": "كَتَبَ الطَّالِبُ رِسَالَةً",
    "pointed Hebrew": "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "decomposed French": unicodedata.normalize("NFD", "été crème naïve"),
    "decomposed Vietnamese": unicodedata.normalize("NFD", "người bệnh được"),
}


def test_every_mark_of_unicode_is_there_and_nothing_else():
    is_mark = re.compile(f"[{COMBINING_MARKS}]")
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        assert bool(is_mark.match(character)) == unicodedata.category(character).startswith("M"), hex(code)


@each("text", WRITTEN.values())
def test_words_are_not_torn_at_their_marks(text):
    apart = text.split()
    assert split_words(f"({text})!") == ["(", *apart, ")", "!"]
    assert normalize_words(f"({text})!") == [unicodedata.normalize("NFKC", word).casefold() for word in apart]
    counts = count_words([f"({text})!"])
    assert set(counts.written) == set(apart)
    assert set(counts.frequency) == {word.lower() for word in apart}


def test_a_mark_that_no_letter_bears_is_a_sign():
    assert split_words("♥\ufe0f soup") == ["♥", "\ufe0f", "soup"]
    assert normalize_words("♥\ufe0f soup_1\u0301 \u0301") == ["soup", "1\u0301"]
    assert not count_words(["♥\ufe0f a e\u0301"]).frequency, "two letters make a word, however many marks they bear"
