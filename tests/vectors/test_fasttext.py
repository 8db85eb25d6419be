"""fastText: training, going on, and the vectors of pieces."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.errors import UserError
from acclimate.vectors import Surface, make_targets
from acclimate.vectors.fasttext import load_fasttext, train_fasttext, vector, words
from acclimate.vectors.targets import read_stop_words

pytest.importorskip("gensim")
TEXTS = [f"the waiter brought cold soup to table {number} and warm soup to the other" for number in range(30)]
NEW = [f"the erlotinib binds the receptor {number} and gefitinib binds it too" for number in range(30)]


@pytest.fixture(scope="module")
def model():
    return train_fasttext(TEXTS, dimension=12, buckets=5_000, min_count=2, epochs=3)


def average(model, grams):
    """The definition: the mean of the rows of n-grams, found by the hash of fastText, written out."""

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


def test_a_piece_is_the_mean_of_its_n_grams(model):
    for text in ("ition", "süpp", "aq"):
        np.testing.assert_allclose(vector(model, text, True), average(model, grams(f"<{text}>")), rtol=1e-4, atol=1e-7)


def test_aware_of_boundaries_a_piece_has_only_those_it_has(model):
    inside = [gram for gram in grams("<ition>") if "<" not in gram and ">" not in gram]
    np.testing.assert_allclose(vector(model, "ition", False, "aware"), average(model, inside), rtol=1e-4, atol=1e-7)
    opening = [gram for gram in grams("<ition>") if ">" not in gram]
    np.testing.assert_allclose(vector(model, "ition", True, "aware"), average(model, opening), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(vector(model, "soup", True, "aware"), model.wv["soup"])
    assert (vector(model, "it", False, "aware") == 0).all(), "no n-gram of three characters"
    assert (vector(model, "", True) == 0).all()


def test_the_same_seed_gives_the_same_vectors():
    one, two, other = (
        train_fasttext(TEXTS, dimension=8, buckets=5_000, min_count=2, epochs=2, seed=seed).wv["soup"]
        for seed in (0, 0, 1)
    )
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_going_on_learns_new_words_and_moves_old_ones(tmp_path):
    from gensim.models.fasttext import save_facebook_model

    save_facebook_model(
        train_fasttext(TEXTS, dimension=8, buckets=5_000, min_count=2, epochs=2), str(tmp_path / "v.bin")
    )
    start = load_fasttext(tmp_path / "v.bin")
    before = start.wv["the"].copy()
    assert "erlotinib" not in start.wv.key_to_index
    going = train_fasttext(NEW, start=start, min_count=2, epochs=100)  # frequent words are mostly skipped
    assert "erlotinib" in going.wv.key_to_index
    assert "soup" in going.wv.key_to_index
    assert not np.allclose(before, going.wv["the"])


def test_bad_input_is_one_line(tmp_path):
    with pytest.raises(UserError, match="lower min_count"):
        train_fasttext(["one two three"], min_count=5, dimension=8, buckets=5_000)
    with pytest.raises(UserError, match="no fastText vectors"):
        load_fasttext(tmp_path / "absent.bin")
    (tmp_path / "v.vec").write_text("2 3\nsoup 1 2 3\ncold 3 2 1\n")
    with pytest.raises(UserError, match=r"\.vec file will not do"):
        load_fasttext(tmp_path / "v.vec")
    with pytest.raises(UserError, match="stop_words"):
        read_stop_words("klingon")


def test_who_takes_part(model):
    pieces = [
        Surface("", False),
        Surface("the", True),
        Surface("so", True),
        Surface("soup", True),
        Surface("erly", False),
    ]
    targets = make_targets(model, pieces, stop_words=read_stop_words("english"))
    assert targets.regularised.tolist() == [False, False, False, True, True]
    np.testing.assert_allclose(targets.vectors[3].numpy(), model.wv["soup"])
    assert targets.mean_norm == pytest.approx(targets.vectors[3:].norm(dim=1).mean().item())
    scaled = make_targets(model, pieces, normalise=True)
    np.testing.assert_allclose(scaled.vectors[3:].norm(dim=1).numpy(), 12**0.5, rtol=1e-5)
    with pytest.raises(UserError, match="No token"):
        make_targets(model, pieces[:1])


def test_words_and_marks():
    assert words("It's 3.5 µg/ml, naïve!") == ["It", "'", "s", "3", ".", "5", "µg", "/", "ml", ",", "naïve", "!"]
