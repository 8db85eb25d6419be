"""Writes documents in every format that the corpus reads, with libraries other than those of the readers."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import zstandard

TEXT_FORMATS = (".txt", ".jsonl", ".csv", ".tsv")
SUFFIXES = (
    *(form + compression for form in TEXT_FORMATS for compression in ("", ".gz", ".zst")),
    *(".jsonl.bz2", ".txt.xz", ".json", ".json.gz", ".parquet", ".arrow"),
)
COMPRESS = {
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def compress(data: bytes, name: str) -> bytes:
    return COMPRESS.get(Path(name).suffix, bytes)(data)


def write(folder: Path, suffix: str, texts: list[str], *, column: str = "text", end: str = "\n", bom=False) -> Path:
    path = folder / f"documents{suffix}"
    if suffix in (".parquet", ".arrow"):
        table = pyarrow.table({"id": list(range(len(texts))), column: pyarrow.array(texts, pyarrow.string())})
        if suffix == ".parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=2)
        else:
            with pyarrow.ipc.new_stream(path, table.schema) as stream:
                stream.write_table(table, max_chunksize=2)
        return path
    buffer = io.StringIO(newline="")
    if suffix.startswith(".txt"):
        buffer.writelines(text + end for text in texts)
    elif suffix.startswith(".jsonl"):
        buffer.writelines(json.dumps({"id": 1, column: t}, ensure_ascii=len(t) % 2 == 0) + end for t in texts)
    elif suffix.startswith(".json"):
        buffer.write(json.dumps([{"id": 1, column: t} for t in texts], indent=len(texts) % 2 or None) + end)
    else:
        # Before Python 3.13 csv.writer does not quote a carriage return.
        quoting = csv.QUOTE_ALL if "\r" in "".join(texts) else csv.QUOTE_MINIMAL
        delimiter = "\t" if suffix.startswith(".tsv") else ","
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator=end, quoting=quoting)
        writer.writerow(["id", column])
        writer.writerows([i, text] for i, text in enumerate(texts))
    data = buffer.getvalue().encode("utf-8")
    path.write_bytes(compress(b"\xef\xbb\xbf" * bom + data, path.name))
    return path
