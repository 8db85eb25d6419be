"""fastText: training, continued training and subword vectors."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.data.fasttext import (
    BIN_HEADER,
    load_fasttext,
    lookup_vector,
    save_fasttext,
    split_words,
    train_fasttext,
)
from acclimate.data.stop_words import read_stop_words
from tests.cases import each

pytest.importorskip("gensim")
TEXTS = [f"the waiter brought cold soup to table {number} and warm soup to the other" for number in range(30)]
NEW = [f"the erlotinib binds the receptor {number} and gefitinib binds it too" for number in range(30)]


@pytest.fixture(scope="module")
def model():
    return train_fasttext(TEXTS, dimension=12, buckets=5_000, min_count=2, epochs=3)


def average(model, grams):
    """Return the mean of the n-gram rows by definition, with a naive implementation of fastText's hash."""

    def fnv(gram):
        value = 2166136261
        for byte in gram.encode():
            signed = byte - 256 if byte > 127 else byte
            value = ((value ^ (signed & 0xFFFFFFFF)) * 16777619) & 0xFFFFFFFF
        return value

    rows = [model.wv.vectors_ngrams[fnv(gram) % model.wv.bucket] for gram in grams]
    return np.mean(rows, axis=0) if rows else np.zeros(model.wv.vector_size)


def grams(word, shortest=3, longest=6):
    return [
        word[a:b]
        for a in range(len(word))
        for b in range(a + shortest, min(len(word), a + longest) + 1)
        if not (b - a == 1 and (a == 0 or b == len(word)))
    ]


def test_the_vector_of_a_subword_is_the_mean_of_its_n_grams(model):
    for text in ("ition", "süpp", "aq"):
        np.testing.assert_allclose(
            lookup_vector(model, text, True), average(model, grams(f"<{text}>")), rtol=1e-4, atol=1e-7
        )


def test_boundary_aware_vectors_drop_n_grams_with_false_boundaries(model):
    inside = [gram for gram in grams("<ition>") if "<" not in gram and ">" not in gram]
    np.testing.assert_allclose(
        lookup_vector(model, "ition", False, "aware"), average(model, inside), rtol=1e-4, atol=1e-7
    )
    opening = [gram for gram in grams("<ition>") if ">" not in gram]
    np.testing.assert_allclose(
        lookup_vector(model, "ition", True, "aware"), average(model, opening), rtol=1e-4, atol=1e-7
    )
    np.testing.assert_allclose(lookup_vector(model, "soup", True, "aware"), model.wv["soup"])
    assert (lookup_vector(model, "it", False, "aware") == 0).all(), "no n-gram of three characters"
    assert (lookup_vector(model, "", True) == 0).all()


def test_the_same_seed_gives_the_same_vectors():
    one, two, other = (
        train_fasttext(TEXTS, dimension=8, buckets=5_000, min_count=2, epochs=2, seed=seed).wv["soup"]
        for seed in (0, 0, 1)
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_continued_training_adds_new_words_and_changes_old_ones(tmp_path):
    from gensim.models.fasttext import save_facebook_model

    save_facebook_model(
        train_fasttext(TEXTS, dimension=8, buckets=5_000, min_count=2, epochs=2), str(tmp_path / "v.bin")
    )
    start = load_fasttext(tmp_path / "v.bin")
    before = start.wv["the"].copy()
    assert "erlotinib" not in start.wv.key_to_index
    after = train_fasttext(NEW, start=start, min_count=2, epochs=100)  # subsampling skips most frequent words
    assert "erlotinib" in after.wv.key_to_index
    assert "soup" in after.wv.key_to_index
    assert not np.allclose(before, after.wv["the"])


def test_continued_training_depends_on_the_seed(model, tmp_path):
    save_fasttext(model, tmp_path / "v.bin")
    one, two, other = (
        train_fasttext(NEW, start=load_fasttext(tmp_path / "v.bin"), min_count=2, epochs=2, seed=seed).wv
        for seed in (0, 0, 7)
    )
    assert np.array_equal(one["binds"], two["binds"]) and np.array_equal(one["erlotinib"], two["erlotinib"])
    assert not np.array_equal(one["erlotinib"], other["erlotinib"])
    assert not np.array_equal(one["the"], other["the"])


class ReiterableTexts:
    """Texts that are generated at every iteration; the iteration number ``failing`` raises an error."""

    def __init__(self, make, failing=0):
        self.make, self.failing, self.times = make, failing, 0

    def __iter__(self):
        self.times += 1
        for number, text in enumerate(self.make()):
            if number and self.times == self.failing:
                raise RuntimeError("the disk is gone")
            yield text


def test_texts_are_iterated_once_per_epoch():
    options = {"dimension": 8, "buckets": 5_000, "min_count": 2, "epochs": 3}
    read = ReiterableTexts(lambda: iter(TEXTS))
    listed, passed, made = (train_fasttext(texts, **options) for texts in (TEXTS, iter(TEXTS), read))
    assert read.times == 1 + 3
    for other in (passed, made):
        assert np.array_equal(listed.wv.vectors_ngrams, other.wv.vectors_ngrams)
        assert np.array_equal(listed.wv.vectors_vocab, other.wv.vectors_vocab)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text_size():
    read = ReiterableTexts(lambda: (" ".join(f"word{number % 500}" for number in range(1_000)) for _ in range(300)))
    tracemalloc.start()
    try:
        train_fasttext(read, dimension=4, buckets=1_000, min_count=1, epochs=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8e6, "a list of 300,000 words takes 18 MB"


@each("failing", [1, 2, 3])
def test_an_error_while_reading_texts_is_raised(failing):
    """gensim iterates in a thread and would wait forever for it."""
    shares = []
    with pytest.raises(RuntimeError, match="the disk is gone"):
        train_fasttext(
            ReiterableTexts(lambda: iter(TEXTS), failing),
            dimension=4,
            buckets=100,
            min_count=1,
            epochs=2,
            report=shares.append,
        )


def test_training_of_cbow_vectors_continues_as_skip_gram(tmp_path, caplog):
    from gensim.models import FastText
    from gensim.models.fasttext import save_facebook_model

    made = FastText([split_words(text) for text in TEXTS], sg=0, vector_size=8, bucket=5_000, min_count=2, epochs=1)
    save_facebook_model(made, str(tmp_path / "cbow.bin"))
    start = load_fasttext(tmp_path / "cbow.bin")
    assert start.sg == 0
    after = train_fasttext(NEW, start=train_fasttext(TEXTS, start=start, min_count=2, epochs=1), min_count=2, epochs=1)
    assert (after.sg, after.ns_exponent) == (1, 0.5)
    assert not caplog.records  # no gensim warning about a rising learning rate


def test_long_texts_are_read_completely():
    """By itself, gensim silently drops the words of a text beyond the first 10,000."""
    filler = [f"w{number % 5000}" for number in range(10_000)]
    long = " ".join([*filler, *["late", "later"] * 300])
    shares = []
    once, often = (
        train_fasttext([long], dimension=4, buckets=1_000, min_count=1, epochs=epochs, report=shares.append)
        for epochs in (1, 2)
    )
    rows = [model.wv.vectors_vocab[model.wv.key_to_index["late"]] for model in (once, often)]
    assert not np.array_equal(*rows), "the vector of a word changes only if the word is read"
    assert shares[-1] == 1 and shares == sorted(shares[:2]) + sorted(shares[2:]) and len(shares) == 2 + 4


def test_invalid_input_is_an_error(tmp_path):
    with pytest.raises(UserError, match="lower min_count"):
        train_fasttext(["one two three"], min_count=5, dimension=8, buckets=5_000)
    with pytest.raises(UserError, match="does not exist"):
        load_fasttext(tmp_path / "absent.bin")
    (tmp_path / "v.vec").write_text("2 3\nsoup 1 2 3\ncold 3 2 1\n")
    with pytest.raises(UserError, match=r"\.vec file lacks the n-grams"):
        load_fasttext(tmp_path / "v.vec")
    with pytest.raises(UserError, match="stop_words"):
        read_stop_words("klingon")


@each("share", [0.0, 0.3, 0.6, 0.9])
def test_a_truncated_model_is_an_error(model, tmp_path, share):
    """gensim would wait forever for the rest."""
    save_fasttext(model, tmp_path / "v.bin")
    data = (tmp_path / "v.bin").read_bytes()
    last = list(model.wv.key_to_index)[-1].encode() + b"\0"
    (tmp_path / "v.bin").write_bytes(
        data[: BIN_HEADER.size + 16 + int(share * (data.index(last) - BIN_HEADER.size - 16))]
    )
    with pytest.raises(UserError, match=r"v\.bin' is truncated: .* words"):
        load_fasttext(tmp_path / "v.bin")


@each("size", [2**40, 2**62, 2**63 - 1, -1])
def test_a_damaged_size_is_an_error(model, tmp_path, size):
    save_fasttext(model, tmp_path / "v.bin")
    data = (tmp_path / "v.bin").read_bytes()
    rows, dimension = len(model.wv) + model.wv.bucket, model.wv.vector_size
    place = data.index(struct.pack("@2q", rows, dimension))
    (tmp_path / "v.bin").write_bytes(data[:place] + struct.pack("@q", size) + data[place + 8 :])
    with pytest.raises(UserError, match=r"v\.bin' is not a fastText model") as error:
        load_fasttext(tmp_path / "v.bin")
    assert "\n" not in str(error.value)


def test_split_words():
    assert split_words("It's 3.5 µg/ml, naïve!") == ["It", "'", "s", "3", ".", "5", "µg", "/", "ml", ",", "naïve", "!"]
