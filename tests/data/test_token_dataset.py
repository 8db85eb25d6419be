from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.data.token_dataset import TokenDataset, TokenDatasetWriter
from tests.cases import each

lists = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=8)


@given(rows=lists)
def test_lists_round_trip(rows):
    dataset = TokenDataset.of(rows)
    assert [row.tolist() for row in dataset] == rows
    assert dataset.lengths.tolist() == [len(row) for row in rows] and dataset.lengths.dtype == np.int32
    assert dataset.tokens == sum(map(len, rows)) and len(dataset) == len(rows)
    assert dataset.document.tolist() == list(range(len(rows))) and dataset.document.dtype == np.int64
    assert TokenDataset.of(rows).fingerprint == dataset.fingerprint
    assert [row.tolist() for row in pickle.loads(pickle.dumps(dataset))] == rows


def test_different_rows_have_different_fingerprints():
    assert len({TokenDataset.of(rows).fingerprint for rows in ([[1, 2]], [[1], [2]], [[2, 1]], [])}) == 4


def test_indexing():
    rows = TokenDataset.of([[1, 2], [3], [4, 5, 6]], document=[0, 0, 1], bytes=9)
    assert rows[-1].tolist() == [4, 5, 6] and rows[np.int64(1)].tolist() == [3]
    assert [row.tolist() for row in rows[1:]] == [[3], [4, 5, 6]]
    assert rows[0].dtype == np.int32 and rows.bytes == 9
    row = rows[0]
    row[0] = 99  # collators modify the rows that they get
    assert rows[0].tolist() == [1, 2]
    for index in (3, -4):
        with pytest.raises(IndexError):
            rows[index]


@each(("largest", "width"), [(65_535, 2), (65_536, 4)])
def test_files(tmp_path, largest, width):
    with TokenDatasetWriter(tmp_path, largest) as writer:
        writer.add([[1, largest], [2]], 0)
        writer.add([[3]], 4)
        writer.bytes = 7
        assert writer.finish("key", {"documents": 5}) is None
    assert (tmp_path / "tokens.bin").stat().st_size == 4 * width
    rows = TokenDataset.load(tmp_path)
    assert [row.tolist() for row in rows] == [[1, largest], [2], [3]]
    assert isinstance(rows._tokens, np.memmap)
    assert rows.document.tolist() == [0, 0, 4] and rows.bytes == 7
    assert rows.fingerprint == "key" and rows.report == {"documents": 5}
    assert len(pickle.dumps(rows)) < 500
    (tmp_path / "tokens.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match="size"):
        TokenDataset.load(tmp_path)
