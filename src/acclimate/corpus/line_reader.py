"""Numbered lines of plain, gzip or zstandard files, with damage distinguished from the end of the file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from acclimate.errors import UserError

BOM = b"\xef\xbb\xbf"
WIDE_ENCODING_BOMS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Byte order marks of encodings other than UTF-8."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
DAMAGE_BYTES = 1 << 12
"""How much of the text before the damage is lost at most, since pyarrow fails on a whole block."""
MAX_LINE_BYTES = 1 << 28
"""A longer line is hardly a document and would only fill the memory."""


class DamagedFileError(Exception):
    """The rest of a file cannot be read.

    Attributes:
        line: The line (or row) at which reading stopped, from 1.
        reason: What is wrong.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed if its name ends in ``.gz`` or ``.zst``.

    Reading raises ``OSError`` if the compressed data are damaged or end too early. The readers of ``zstandard`` and
    ``fsspec`` take a file that ends too early for a complete one, hence pyarrow's.

    Raises:
        UserError: If the file cannot be opened.
    """
    import pyarrow  # slow to import, and not needed for texts in memory

    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.") from error
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        return file
    stream = pyarrow.CompressedInputStream(file, compression)
    return cast("IO[bytes]", io.BufferedReader(stream, buffer_size=DAMAGE_BYTES))


def read_numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yield each line with its number, from 1, and its line end; a byte order mark is removed.

    Lines end at ``\n`` only: the other line boundaries of ``str.splitlines`` occur inside documents.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If the file is damaged, truncated or not compressed as its name says, has a line that is too
            long, or is encoded in UTF-16 or UTF-32.
    """
    number = 0
    with open_bytes(path) as file:
        try:
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    raise DamagedFileError(
                        number, f"the line has more than {MAX_LINE_BYTES:,} bytes; the rest of the file is not read"
                    )
                if number == 1:
                    line = line.removeprefix(BOM)
                    if wide := next((name for mark, name in WIDE_ENCODING_BOMS.items() if line.startswith(mark)), ""):
                        raise DamagedFileError(
                            1, f"{wide}, not UTF-8; convert the file, for example with 'iconv -f {wide} -t UTF-8'"
                        )
                yield number, line
        except OSError as error:
            raise DamagedFileError(number + 1, f"the file is damaged or cut off from here on ({error})") from error
