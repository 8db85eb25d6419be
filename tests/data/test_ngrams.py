"""Words and n-grams of many texts at once are those of each text by itself."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acclimate.data.ngrams import HashIndex, NormalizedTexts, fold_text, normalize_words

# Letters, marks, marks of Japanese, full-width and composed characters, half of a surrogate pair.
TEXTS = st.lists(
    st.text(st.sampled_from("aB1é\u0301\u3099\u0e31漢カﾞＡİßſ½ \n_.\ud800\U0001f600") | st.characters()), max_size=4
)


@given(TEXTS)
def test_words(texts):
    read = NormalizedTexts([fold_text(text) for text in texts])
    expected = [" ".join(normalize_words(text)) for text in texts]
    assert list(read.strings()) == expected == [read.string(text) for text in range(len(texts))]
    assert read.words.tolist() == [len(normalize_words(text)) for text in texts]


@given(TEXTS)
def test_equal_ngrams_have_equal_hashes(texts):
    read = NormalizedTexts([fold_text(text) for text in texts])
    words = [normalize_words(text) for text in texts]
    expected = [(own[i : i + 2], text) for text, own in enumerate(words) for i in range(len(own) - 1)]
    hashes, owners = read.word_ngrams(2)
    assert owners.tolist() == [text for _, text in expected]
    ngrams = [" ".join(ngram) for ngram, _ in expected]
    assert len(set(zip(ngrams, hashes.tolist(), strict=True))) == len(set(ngrams)) == len(set(hashes.tolist()))
    joined = [" ".join(own) for own in words]
    assert len(set(zip(joined, read.whole_hashes().tolist(), strict=True))) == len(set(joined))
    longer = np.flatnonzero([len(text) >= 5 for text in joined])
    hashes, starts = read.character_ngrams(longer)
    ngrams = [joined[text][i : i + 5] for text in longer for i in range(len(joined[text]) - 4)]
    assert starts.tolist() == np.cumsum([0, *(len(joined[text]) - 4 for text in longer)])[:-1].tolist()
    assert len(set(zip(ngrams, hashes.tolist(), strict=True))) == len(set(ngrams))


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3)), st.lists(st.integers(0, 3), min_size=1))
def test_an_index_finds_all_numbers_of_a_hash(hashes, asked):
    index = HashIndex(np.array(hashes, dtype=np.uint64), np.arange(len(hashes)))
    found = zip(*(part.tolist() for part in index.find(np.array(asked, dtype=np.uint64))), strict=True)
    assert list(found) == [(place, n) for place, one in enumerate(asked) for n, own in enumerate(hashes) if own == one]
