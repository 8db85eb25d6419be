"""Rows of decoders: special tokens once per document, an end token after each, and nothing lost where rows end."""

from __future__ import annotations

import copy
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import AutoTokenizer

from acclimate.data import tokenizing
from acclimate.data.documents import Corpus
from acclimate.data.tokenizing import Framing, encode, tokenize
from tests.cases import each
from tests.fixtures import SHARED
from tests.tiny import tiny_tokenizer

START, END = 2, 3
TEMPLATES = {"$A": ([], []), "[CLS] $A": ([START], []), "$A [SEP]": ([], [END]), "[CLS] $A [SEP]": ([START], [END])}
texts = st.lists(st.text("ab c[SEP]", max_size=60).filter(str.strip), min_size=1, max_size=8)


def with_template(template):
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("[CLS]", START), ("[SEP]", END)]
    )
    return tokenizer


TOKENIZERS = {template: with_template(template) for template in TEMPLATES}


@settings(deadline=None, max_examples=100)
@given(
    texts=texts,
    max_length=st.integers(1, 24),
    template=st.sampled_from(sorted(TEMPLATES)),
    end=st.sampled_from([None, END, 4]),
    mode=st.sampled_from(["apart", "joined"]),
)
def test_rows_are_the_documents_with_their_special_tokens(texts, max_length, template, end, mode):
    """Concatenated, the rows give each document as start + tokens + end: none is lost, doubled or overwritten."""
    tokenizer, (before, after) = TOKENIZERS[template], TEMPLATES[template]
    after = after if end is None or end in after else [*after, end]
    documents = [[*before, *ids, *after] for ids in encode(tokenizer, texts)]
    rows = tokenize(Corpus.of(texts, dedup=False), tokenizer, max_length, framing=Framing(mode, end))
    assert all(1 <= len(row) <= max_length for row in rows)
    assert np.concatenate(list(rows)).tolist() == list(chain(*documents))
    assert rows.dropped == 0 and rows.bytes == sum(map(len, texts))
    owners = list(chain(*([index] * len(ids) for index, ids in enumerate(documents))))
    starts = np.cumsum([0, *rows.lengths[:-1]])
    assert rows.document.tolist() == [owners[start] for start in starts]
    if mode == "apart":
        assert [len(ids) for ids in documents] == np.bincount(rows.document, rows.lengths).tolist()
    else:
        assert len(rows) == -(-len(owners) // max_length)


@given(texts=texts)
def test_documents_without_tokens_give_no_row(texts):
    tokenizer = copy.deepcopy(TOKENIZERS["[CLS] $A"])
    corpus = Corpus.of(["\u200b", *texts, "\u200b"], dedup=False)
    assert encode(tokenizer, ["\u200b"]) == [[]]
    for mode in ("apart", "joined"):
        rows = tokenize(corpus, tokenizer, 8, framing=Framing(mode, END))
        assert (np.concatenate(list(rows)) == START).sum() == len(texts)
        assert rows.document[0] == 1


def test_the_framing_is_part_of_the_cache_key_and_that_of_encoders_is_not(tmp_path):
    tokenizer, corpus = TOKENIZERS["[CLS] $A [SEP]"], Corpus.of(["a b c", "d"])
    framings = [Framing(), Framing("apart"), Framing("apart", 4), Framing("joined", 4)]
    found = [tokenize(corpus, tokenizer, 8, framing=framing, cache=tmp_path) for framing in framings]
    assert len({rows.fingerprint for rows in found}) == 4
    assert found[0].fingerprint == tokenize(corpus, tokenizer, 8).fingerprint
    again = tokenize(corpus, tokenizer, 8, framing=framings[3], cache=tmp_path)
    assert [row.tolist() for row in again] == [row.tolist() for row in found[3]] and again.dropped == 0


@each("mode", ["apart", "joined"])
def test_max_tokens_stops_after_the_row_that_reaches_them(mode):
    tokenizer = TOKENIZERS["[CLS] $A"]
    rows = tokenize(Corpus.of(["a b c d e f", "g h i"]), tokenizer, 3, framing=Framing(mode, END), max_tokens=4)
    assert [row.tolist() for row in rows] == [[START, *encode(tokenizer, ["a b"])[0]], encode(tokenizer, ["c d e"])[0]]
    assert 0 < rows.bytes < 11 and rows.dropped == 0, "what was not read was not dropped"


@pytest.mark.parametrize("limit", [17, 41])
def test_a_sentencepiece_document_in_pieces_is_that_of_the_whole(monkeypatch, limit):
    """A tokenizer that puts a space before every text must not add one at each piece of a very long document."""
    if not SHARED.is_dir():
        pytest.skip("there is no shared folder")
    tokenizer = AutoTokenizer.from_pretrained(SHARED / "models" / "stories260k")
    text = "Once upon a time there was  a girl </s> who loved <s> to play in the park. " * 3
    whole = [tokenizer.bos_token_id, *encode(tokenizer, [text])[0], tokenizer.eos_token_id]
    monkeypatch.setattr(tokenizing, "MAX_PIECE_CHARACTERS", limit)
    rows = tokenize(Corpus.of([text]), tokenizer, 16, framing=Framing("apart", tokenizer.eos_token_id))
    assert np.concatenate(list(rows)).tolist() == whole
    assert whole.count(tokenizer.eos_token_id) == whole.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(whole, skip_special_tokens=True) == text
