"""Bytes of a file as numbered lines, through gzip or zstandard, with damage told apart from the end of the file."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import zstandard

from acclimate.errors import UserError

BOM = b"\xef\xbb\xbf"
WIDE_ENCODING_BOMS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Encodings by the byte order mark that a file of them begins with."""
MAX_LINE_BYTES = 1 << 28
"""Bytes. A longer line is hardly a document; it would only fill the memory."""


class DamagedFileError(Exception):
    """A file cannot be read any further.

    Attributes:
        line: The line (or row) at which reading stopped, counted from 1.
        reason: What went wrong.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


class _ZstdReader(io.RawIOBase):
    """The decompressed bytes of a zstandard file, one frame after the other.

    The package's own reader takes a file that stops in mid-frame for a complete one; this one raises ``EOFError``.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._plain = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._plain:
            if not self._packed:
                self._packed = self._file.read(1 << 16)
                if not self._packed:
                    if self._frame is not None:
                        raise EOFError("compressed file ends in the middle")
                    return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._plain = self._frame.decompress(self._packed)
            self._packed = b""
            if self._frame.eof:
                self._packed = self._frame.unused_data
                self._frame = None
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def open_bytes(path: Path) -> IO[bytes]:
    """Open ``path`` for reading, decompressed if its name ends in ``.gz`` or ``.zst``.

    Raises:
        UserError: If the file cannot be opened.
    """
    try:
        if path.name.lower().endswith(".gz"):
            return cast("IO[bytes]", gzip.open(path, "rb"))
        file = path.open("rb")
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.") from error
    if path.name.lower().endswith(".zst"):
        return io.BufferedReader(_ZstdReader(file), buffer_size=1 << 16)
    return file


def read_numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Give each line with its number from 1 and with its line end, but without a byte order mark.

    Only a newline ends a line: the other characters at which ``str.splitlines`` cuts occur inside documents.

    Raises:
        UserError: If the file cannot be opened.
        Damaged: If it is cut off, is not what its name says, has a line that is too long, cannot be read to the end,
            or begins as one in UTF-16 or UTF-32 does.
    """
    number = 0
    with open_bytes(path) as file:
        try:
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    raise DamagedFileError(
                        number, f"a line of more than {MAX_LINE_BYTES:,} bytes; nothing is read from here on"
                    )
                if number == 1:
                    line = line.removeprefix(BOM)
                    if wide := next((name for mark, name in WIDE_ENCODING_BOMS.items() if line.startswith(mark)), ""):
                        raise DamagedFileError(
                            1, f"{wide}, not UTF-8; save it so, for instance by 'iconv -f {wide} -t UTF-8'"
                        )
                yield number, line
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise DamagedFileError(number + 1, f"the file is damaged or cut off from here on ({error})") from error
