"""Surface forms of the tokens of WordPiece, byte-level BPE and SentencePiece tokenizers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from acclimate.base.errors import UserError
from acclimate.data.surface_forms import (
    _BYTE_OF_CHARACTER,
    SurfaceForm,
    TextNormalizer,
    _read_byte_level,
    read_surface_forms,
)
from tests.cases import each
from tests.tiny import tiny_tokenizer

TEXTS = ["the café is good, the naïve soup is cold", "a crème brûlée 🍮 and a soup", "cold soup again and again"] * 3


def trained(kind):
    if kind == "bytes":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    else:
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=["<s>", "<unk>"], unk_token="<unk>")
    backend.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


@each("kind", ["bytes", "metaspace"])
def test_surface_forms_join_to_the_words_of_the_text(kind):
    tokenizer = trained(kind)
    found = read_surface_forms(tokenizer)
    assert len(found) == max(tokenizer.get_vocab().values()) + 1
    for text in TEXTS[:3]:
        spelled = ""
        for index in tokenizer(text, add_special_tokens=False)["input_ids"]:
            piece = found[index]
            spelled += (" " if piece.starts else "") + piece.text
        if kind == "metaspace" or text.isascii():
            assert spelled.split() == text.split()
    assert found[tokenizer.bos_token_id] == SurfaceForm("", False)


@each(
    ("normalizer", "expected"),
    [
        (None, "Crème  Brûlée"),
        (normalizers.BertNormalizer(lowercase=True), "creme  brulee"),
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), "Crème  Brûlée"),
    ],
)
def test_text_normalizer(normalizer, expected):
    tokenizer = trained("metaspace")
    if normalizer is not None:
        tokenizer.backend_tokenizer.normalizer = normalizer
    normalize = TextNormalizer(tokenizer)
    assert normalize("Crème  Brûlée") == expected
    assert (normalize.rule == "null") == (normalizer is None)


def test_bytes_that_are_not_valid_utf8_have_no_text():
    tokenizer = trained("bytes")
    found = read_surface_forms(tokenizer)
    first_byte_of_e_acute = tokenizer.convert_tokens_to_ids("Ã")
    assert found[first_byte_of_e_acute] == SurfaceForm("", False, b"\xc3")
    assert _read_byte_level("ĠÃ") == SurfaceForm("", True, b"\xc3"), "the token begins a word all the same"
    assert found[tokenizer.convert_tokens_to_ids("Ġsoup")] == SurfaceForm("soup", True)
    assert any("é" in piece.text for piece in found)


def test_wordpiece():
    tokenizer = tiny_tokenizer()
    found = read_surface_forms(tokenizer)
    assert found[tokenizer.convert_tokens_to_ids("food")] == SurfaceForm("food", True)
    assert found[tokenizer.convert_tokens_to_ids("##a")] == SurfaceForm("a", False)
    assert all(found[index] == SurfaceForm("", False) for index in tokenizer.all_special_ids)


@each("kind", ["wordpiece", "bytes", "metaspace"])
def test_added_tokens_have_their_own_text_and_special_ones_none(kind):
    tokenizer = tiny_tokenizer() if kind == "wordpiece" else trained(kind)
    tokenizer.add_tokens(["erlotinib", "naïve Bayes", AddedToken("   ", normalized=False)])
    tokenizer.add_tokens(["[DOMAIN]"], special_tokens=True)
    found = read_surface_forms(tokenizer)
    for word, text in {"erlotinib": "erlotinib", "naïve Bayes": "naïve Bayes"}.items():
        assert found[tokenizer.convert_tokens_to_ids(word)] == SurfaceForm(text, True)
    assert found[tokenizer.convert_tokens_to_ids("   ")].text == ""
    assert found[tokenizer.convert_tokens_to_ids("[DOMAIN]")] == SurfaceForm("", False)
    assert all(found[index] == SurfaceForm("", False) for index in tokenizer.all_special_ids)


def test_other_tokenizers_are_refused():
    backend = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(UserError, match="beginnings of words"):
        read_surface_forms(PreTrainedTokenizerFast(tokenizer_object=backend))


@given(st.text(min_size=1, max_size=8))
def test_reading_byte_level_tokens_inverts_the_byte_alphabet(text):
    character_of = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}
    token = "".join(character_of[byte] for byte in text.encode("utf-8", "surrogatepass"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        assert _read_byte_level(token).text == ""
    else:
        assert _read_byte_level(token) == SurfaceForm(text.strip(), text[:1].isspace())
