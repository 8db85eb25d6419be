"""Target vectors of a vocabulary: from fastText and from a matrix."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tokenizers import decoders

from acclimate.base.errors import UserError
from acclimate.data.fasttext import train_fasttext
from acclimate.data.stop_words import read_stop_words
from acclimate.data.surface_forms import SurfaceForm, read_surface_forms
from acclimate.papers.tapter.target_vectors import make_targets, read_targets
from tests.data.test_fasttext import TEXTS, average, grams
from tests.data.test_surface import trained
from tests.tiny import tiny_tokenizer


@pytest.fixture(scope="module")
def model():
    return train_fasttext(TEXTS, dimension=12, buckets=5_000, min_count=2, epochs=3)


def test_read_targets_from_a_matrix(tmp_path):
    pieces = [
        SurfaceForm("", False),
        SurfaceForm("the", True),
        SurfaceForm("a", False),
        SurfaceForm("soup", True),
        SurfaceForm("x", True),
    ]
    matrix = np.arange(15, dtype=np.float64).reshape(5, 3)
    matrix[4] = 0
    np.save(tmp_path / "f.npy", matrix)
    targets = read_targets(tmp_path / "f.npy", pieces, stop_words={"the"})
    assert targets.regularized.tolist() == [False, False, True, True, False]
    np.testing.assert_array_equal(targets.vectors.numpy(), matrix.astype(np.float32))
    scaled = read_targets(tmp_path / "f.npy", pieces, normalize=True)
    np.testing.assert_allclose(scaled.vectors[1:4].norm(dim=1).numpy(), 3**0.5, rtol=1e-6)
    with pytest.raises(UserError, match="5 rows and the vocabulary 4 tokens"):
        read_targets(tmp_path / "f.npy", pieces[:4])
    for broken, message in (
        (matrix[0], "a matrix"),
        (matrix * np.nan, "NaN or infinite"),
        (np.zeros((5, 3)), "No token"),
    ):
        np.save(tmp_path / "broken.npy", broken)
        with pytest.raises(UserError, match=message):
            read_targets(tmp_path / "broken.npy", pieces)
    (tmp_path / "text.npy").write_text("1 2 3")
    with pytest.raises(UserError, match="cannot be read"):
        read_targets(tmp_path / "text.npy", pieces)


def test_which_tokens_have_targets(model):
    pieces = [
        SurfaceForm("", False),
        SurfaceForm("the", True),
        SurfaceForm("so", True),
        SurfaceForm("soup", True),
        SurfaceForm("erly", False),
        SurfaceForm("all", False),  # as in "vertic-all-y"
    ]
    targets = make_targets(model, pieces, stop_words=read_stop_words("english"))
    assert targets.regularized.tolist() == [False, False, False, True, True, True]
    np.testing.assert_allclose(targets.vectors[3].numpy(), model.wv["soup"])
    assert targets.mean_norm == pytest.approx(targets.vectors[3:].norm(dim=1).mean().item())
    scaled = make_targets(model, pieces, normalize=True)
    np.testing.assert_allclose(scaled.vectors[3:].norm(dim=1).numpy(), 12**0.5, rtol=1e-5)
    with pytest.raises(UserError, match="No token"):
        make_targets(model, pieces[:1])


@pytest.mark.parametrize("kind", ["wordpiece", "bytes"])
def test_which_tokens_of_a_vocabulary_have_targets(model, kind):
    """R(X), derived token by token from the vocabulary's strings."""
    tokenizer = tiny_tokenizer() if kind == "wordpiece" else trained("bytes")
    tokenizer.add_tokens(["erlotinib", "café"])
    tokenizer.add_tokens(["[DOMAIN]"], special_tokens=True)
    targets = make_targets(model, read_surface_forms(tokenizer), stop_words=read_stop_words("english"))
    seen = set()
    for token, index in tokenizer.get_vocab().items():
        if token in ("erlotinib", "café"):
            text, starts = token, True  # added tokens are stored as text, not as bytes
        elif kind == "wordpiece":
            text, starts = token.removeprefix("##"), not token.startswith("##")
        else:
            text = decoders.ByteLevel().decode([token]).strip()  # incomplete characters become U+FFFD
            starts = token.startswith("Ġ")
        special = token in (*tokenizer.all_special_tokens, "</s>", "[DOMAIN]")
        stop = starts and text.lower() in ENGLISH_STOP_WORDS
        part = not special and "\ufffd" not in text and len(text) >= 3 and not stop
        assert bool(targets.regularized[index]) == part, token
        if part:
            expected = model.wv[text] if text in model.wv.key_to_index else average(model, grams(f"<{text}>"))
            np.testing.assert_allclose(targets.vectors[index].numpy(), expected, rtol=1e-4, atol=1e-7)
        seen.add((part, special))
    assert seen == {(True, False), (False, False), (False, True)}
