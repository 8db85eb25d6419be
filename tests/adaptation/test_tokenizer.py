"""A trained tokenizer is reproducible, covers its text, and loads without acclimate."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from acclimate.adaptation.tokenizer import (
    BERT_TOKENS,
    ROBERTA_TOKENS,
    TOKENIZER_KINDS,
    sample_documents,
    train_tokenizer,
)
from acclimate.base.errors import UserError
from tests.cases import each
from tests.tiny import TEXTS

DOCUMENTS = [
    *TEXTS,
    "Żółw, ÆON; naïve CAFÉ!",
    "a Größe of 42 µm",
    "数据 and 学",
    "ß ſ İ ı ﬁ x², Ⅳ",
    "tab\tand\u00a0space",
]
LETTERS = sorted(set("".join(DOCUMENTS)) - {" ", "\t", "\u00a0"})


@cache
def trained(kind: str, lowercase: bool | None = None):
    return train_tokenizer(DOCUMENTS, kind, lowercase=lowercase, progress=False)


words = st.lists(st.text(st.sampled_from(LETTERS), min_size=1, max_size=12), max_size=8).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(words, st.booleans())
def test_no_word_of_known_letters_is_unknown_to_wordpiece(text, lowercase):
    tokenizer = trained("wordpiece", lowercase)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    expected = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False).replace(" ", "") == expected.replace(" ", "")


@each("lowercase", [None, False])
def test_wordpiece_decodes_its_training_text(lowercase):
    tokenizer = trained("wordpiece", lowercase)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text.replace("  ", " ")


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_byte_bpe_decodes_every_text(text):
    tokenizer = trained("byte-bpe")
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert tokenizer.unk_token_id not in ids


@each("lowercase", [True, False])
@each("kind", TOKENIZER_KINDS)
def test_case(kind, lowercase):
    tokenizer = trained(kind, lowercase)
    assert (tokenizer("Pizza")["input_ids"] == tokenizer("pizza")["input_ids"]) == lowercase


def test_special_tokens_have_the_ids_that_models_expect():
    bert, roberta = trained("wordpiece"), trained("byte-bpe")
    assert bert.convert_tokens_to_ids(list(BERT_TOKENS)) == [0, 1, 2, 3, 4]
    assert roberta.convert_tokens_to_ids(list(ROBERTA_TOKENS)) == [0, 1, 2, 3, 4]
    assert bert.decode(bert("soup", "wine")["input_ids"]) == "[CLS] soup [SEP] wine [SEP]"
    first, both = bert("soup"), bert("soup", "wine")
    assert both["token_type_ids"] == [*[0] * len(first["input_ids"]), *[1] * (len(bert("wine")["input_ids"]) - 1)]
    assert roberta.decode(roberta("soup", "wine")["input_ids"]) == "<s>soup</s></s>wine</s>"
    assert roberta("the <mask>")["input_ids"] == roberta("the<mask>")["input_ids"]
    assert "token_type_ids" not in roberta("soup")
    assert len(bert.all_special_ids) == 5, "the pieces that were numbered first are ordinary ones"


@each("kind", TOKENIZER_KINDS)
@each("lowercase", [True, False])
def test_a_saved_tokenizer_loads_unchanged(kind, lowercase, tmp_path):
    tokenizer = trained(kind, lowercase)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in DOCUMENTS:
        assert dict(loaded(text, "b")) == dict(tokenizer(text, "b"))
    assert loaded.special_tokens_map == tokenizer.special_tokens_map


@each("kind", TOKENIZER_KINDS)
def test_the_same_text_gives_the_same_tokenizer_again(kind):
    """Hash tables of the library have another order each time, also within a process."""
    assert trained.__wrapped__(kind).get_vocab() == trained(kind).get_vocab()


@pytest.mark.slow
def test_another_process_trains_the_same_tokenizer():
    program = (
        "from tests.adaptation.test_tokenizer import trained\n"
        "for kind in ('wordpiece', 'byte-bpe'): print(sorted(trained(kind).get_vocab().items()))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    here = "".join(f"{sorted(trained(kind).get_vocab().items())}\n" for kind in TOKENIZER_KINDS)
    assert output == here.encode()


@each("kind", TOKENIZER_KINDS)
def test_an_impossible_vocabulary_size_is_explained(kind):
    most = len(trained(kind))
    assert len(train_tokenizer(DOCUMENTS, kind, most, progress=False)) == most
    with pytest.raises(UserError, match=f"of {most} tokens, not 5,000. Set vocab-size to {most} or less"):
        train_tokenizer(DOCUMENTS, kind, 5_000, progress=False)
    with pytest.raises(UserError, match="vocab-size must be larger than that, not 50"):
        train_tokenizer(DOCUMENTS, kind, 50, progress=False)


def test_the_sample_is_bounded_and_does_not_depend_on_the_order():
    documents = [f"{number} " + "x" * 990 for number in range(400)]
    kept, total = sample_documents(documents, 100_000, progress=False)
    assert total == sum(map(len, documents))
    assert 30_000 < sum(map(len, kept)) <= 100_000
    assert kept == [text for text in documents if text in kept], "in the order of the corpus"
    assert set(sample_documents(reversed(documents), 100_000, progress=False)[0]) == set(kept)
    assert sample_documents(documents, 10**6, progress=False)[0] == documents


def test_a_long_document_does_not_dominate_the_sample():
    kept, _ = sample_documents(["y" * 10**6, *(f"{number} short" for number in range(50))], 200_000, progress=False)
    assert len(kept) == 51
    assert max(map(len, kept)) == 2_000
