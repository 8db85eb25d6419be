"""Combining marks stay in the word of the preceding letter, wherever texts are split into words."""

from __future__ import annotations

import unicodedata

from acclimate.data.fasttext import split_words
from acclimate.data.ngrams import normalize_words
from acclimate.labs.advise.vocabulary import count_words
from tests.cases import each

EXAMPLES = {
    "Hindi": "हिन्दी विद्यार्थी परीक्षण",
    "Tamil": "தமிழ் மொழியில் எழுதப்பட்டது",
    "Thai": "ที่ไหน น้ำเย็น ผู้ป่วย",
    "vowelled Arabic": "كَتَبَ الطَّالِبُ رِسَالَةً",
    "pointed Hebrew": "בְּרֵאשִׁית בָּרָא אֱלֹהִים",
    "decomposed French": unicodedata.normalize("NFD", "été crème naïve"),
    "decomposed Vietnamese": unicodedata.normalize("NFD", "người bệnh được"),
}


@each("text", EXAMPLES.values())
def test_words_are_not_split_at_combining_marks(text):
    words = text.split()
    assert split_words(f"({text})!") == ["(", *words, ")", "!"]
    assert normalize_words(f"({text})!") == [unicodedata.normalize("NFKC", word).casefold() for word in words]
    counts = count_words([f"({text})!"])
    assert set(counts.written) == set(words)
    assert set(counts.frequency) == {word.lower() for word in words}


def test_a_mark_without_a_letter_is_no_word():
    assert split_words("♥\ufe0f soup") == ["♥", "\ufe0f", "soup"]
    assert normalize_words("♥\ufe0f soup_1\u0301 \u0301") == ["soup", "1\u0301"]
    assert not count_words(["♥\ufe0f a e\u0301"]).frequency, "a word has two letters, not counting marks"
