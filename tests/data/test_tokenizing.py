from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data import tokenizing
from acclimate.data.documents import Corpus
from acclimate.data.token_dataset import TokenDataset
from acclimate.data.tokenizing import tokenize

texts = st.lists(st.text("ab c[SEP]", max_size=60).filter(str.strip), min_size=1, max_size=8)


@given(texts=texts, max_length=st.integers(3, 24))
def test_rows_partition_documents(tokenizer, texts, max_length):
    rows = tokenize(Corpus.of(texts, dedup=False), tokenizer, max_length)
    whole = [tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] for text in texts]
    joined: dict[int, list[int]] = {}
    for row, document in zip(rows, rows.document, strict=True):
        assert row[0] == 2 and row[-1] == 3 and 3 <= len(row) <= max_length
        joined.setdefault(int(document), []).extend(row[1:-1].tolist())
    assert joined == dict(enumerate(whole))
    assert (np.diff(rows.document) >= 0).all()
    assert rows.bytes == rows.characters == sum(map(len, texts))


@given(size=st.integers(1, 200), max_length=st.integers(20, 40))
def test_the_last_row_is_never_very_short(tokenizer, size, max_length):
    rows = tokenize(Corpus.of(["a" * size]), _long_words(tokenizer), max_length)
    lengths = rows.lengths.tolist()
    assert sum(lengths) == size + 2 * len(lengths)
    assert len(lengths) == -(-size // (max_length - 2))
    if len(lengths) > 1:
        assert min(lengths) >= 8 and set(lengths[:-2]) <= {max_length}


def _long_words(tokenizer):
    wide = copy.deepcopy(tokenizer)
    wide.backend_tokenizer.model.max_input_chars_per_word = 1000
    return wide


def test_agrees_with_the_overflow_of_the_tokenizer(tokenizer):
    text = "the quick brown fox jumps over the lazy dog " * 4
    expected = tokenizer(text, truncation=True, max_length=16, return_overflowing_tokens=True)["input_ids"]
    rows = tokenize(Corpus.of([text]), tokenizer, 16)
    whole = len(expected[-1]) >= 8
    assert [row.tolist() for row in rows][: len(expected) - 2 * (not whole)] == expected[
        : len(expected) - 2 * (not whole)
    ]


def test_special_tokens_in_a_text_are_ordinary_text_and_the_tokenizer_is_not_modified(tokenizer):
    before = tokenizer.backend_tokenizer.to_str()
    (row,) = tokenize(Corpus.of(["a [SEP] b [MASK]"]), tokenizer, 32)
    assert (row[1:-1] > 4).all()
    assert tokenizer.backend_tokenizer.to_str() == before
    assert tokenizer.backend_tokenizer.encode_special_tokens is False


def test_truncation_side_and_padding_state_do_not_matter(tokenizer):
    other = copy.deepcopy(tokenizer)
    other.truncation_side = "left"
    other(["a b c", "a"], truncation=True, max_length=4, padding=True)
    corpus = Corpus.of(["a b c d e f g h i j k l m", "a"])
    one, two = (tokenize(corpus, each, 10) for each in (tokenizer, other))
    assert [row.tolist() for row in one] == [row.tolist() for row in two]
    assert one.fingerprint == two.fingerprint


def test_bytes_are_utf8(tokenizer):
    rows = tokenize(Corpus.of(["日本 é"]), tokenizer, 16)
    assert rows.bytes == 9 and rows.characters == 4


def test_cache(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\none\nthree four\n")
    memory = tokenize(Corpus(path), tokenizer, 8)
    first = tokenize(Corpus(path), tokenizer, 8, cache=tmp_path / "cache")
    assert memory.folder is None and first.folder is not None
    assert [row.tolist() for row in memory] == [row.tolist() for row in first]
    assert memory.fingerprint == first.fingerprint and memory.bytes == first.bytes

    def refuse(*_):
        raise AssertionError("tokenized again")

    with monkeypatch.context() as patch:
        patch.setattr(tokenizing, "_write", refuse)
        corpus = Corpus(path)
        again = tokenize(corpus, tokenizer, 8, cache=tmp_path / "cache")
        assert isinstance(again._tokens, np.memmap)
        assert [row.tolist() for row in again] == [row.tolist() for row in first]
        assert corpus.report.duplicates == 1 and corpus.report.complete
        for corpus, length, most in (
            (Corpus(path, dedup=False), 8, None),
            (Corpus(path), 9, None),
            (Corpus(path), 8, 5),
        ):
            with pytest.raises(AssertionError):
                tokenize(corpus, tokenizer, length, cache=tmp_path / "cache", max_tokens=most)
        changed = copy.deepcopy(tokenizer)
        changed.add_tokens(["one"])
        with pytest.raises(AssertionError):
            tokenize(Corpus(path), changed, 8, cache=tmp_path / "cache")

    (again.folder / "tokens.bin").unlink()  # delete it before rewriting, since the old file is still mapped
    (again.folder / "tokens.bin").write_bytes(b"")
    repaired = tokenize(Corpus(path), tokenizer, 8, cache=tmp_path / "cache")
    assert [row.tolist() for row in repaired] == [row.tolist() for row in first]


def test_a_failed_run_leaves_no_cache(tokenizer, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 3 + '{"text": "b"}\n')
    cache = tmp_path / "cache"

    class Breaks(Corpus):
        def __iter__(self):
            yield "a"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize(Breaks(path), tokenizer, 8, cache=cache)
    assert list(cache.iterdir()) == []


def test_max_tokens(tokenizer):
    corpus = Corpus.of([f"{'a ' * 50}{i}" for i in range(1000, 3000)])
    rows = tokenize(corpus, tokenizer, 12, max_tokens=100)
    assert 100 <= rows.tokens < 112
    assert corpus.report.documents <= tokenizing.BATCH_DOCUMENTS and not corpus.report.complete
    assert 0 < rows.bytes < 2 * 104
    with pytest.raises(UserError, match="max_tokens"):
        tokenize(corpus, tokenizer, 12, max_tokens=0)


def test_documents_are_read_in_bounded_batches(monkeypatch):
    taken = 0

    def source():
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield "x" * 10

    stream = tokenizing.batch_documents(source())
    assert len(next(stream)) == taken == tokenizing.BATCH_DOCUMENTS
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 45)
    assert len(next(stream)) == 5
    assert [len(batch) for batch in tokenizing.batch_documents(["x" * 100, "y", "z"])] == [1, 2]


def test_a_row_without_room_and_a_corpus_without_tokens(tokenizer):
    with pytest.raises(UserError, match="greater than the 2 special tokens"):
        tokenize(Corpus.of(["a"]), tokenizer, 2)
    with pytest.raises(UserError, match="finds no token in any document"):
        tokenize(Corpus.of(["\u200b\x01"]), tokenizer, 8)
    rows = tokenize(Corpus.of(["\x01", "a"]), tokenizer, 8)
    assert rows.document.tolist() == [1]


def test_a_tokenizer_without_special_tokens(tokenizer):
    bare = copy.deepcopy(tokenizer)
    from tokenizers import processors

    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    rows = tokenize(Corpus.of(["a b c"]), bare, 3)
    assert rows.lengths.tolist() == [3]


def test_a_slow_tokenizer(tmp_path):
    from transformers import BertJapaneseTokenizer

    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *"abcdefgh"]))
    slow = BertJapaneseTokenizer(str(vocabulary), word_tokenizer_type="basic", subword_tokenizer_type="character")
    assert not slow.is_fast
    rows = tokenize(Corpus.of(["abcdefgh abcdefgh abc"]), slow, 12, cache=tmp_path / "cache")
    assert sum(rows.lengths) == 19 + 2 * len(rows) and rows.lengths.max() <= 12
    assert all(row[0] == 2 and row[-1] == 3 for row in rows)
    again = tokenize(Corpus.of(["abcdefgh abcdefgh abc"]), slow, 12, cache=tmp_path / "cache")
    assert isinstance(again, TokenDataset) and again.folder == rows.folder
