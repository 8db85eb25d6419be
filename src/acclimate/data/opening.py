"""Opening a file of text: its format by its name, its compression, its encoding, and its lines."""

from __future__ import annotations

import codecs
import io
import lzma
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

from acclimate.base.errors import DamagedFileError, UserError, warn_once
from acclimate.base.files import check_regular_file

BOM = b"\xef\xbb\xbf"
WIDE_ENCODING_BOMS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Byte order marks of encodings other than UTF-8."""

EXCEL = ".xlsx"
COLUMNAR = (".parquet", ".arrow")
TABLES = (".jsonl", ".json", ".csv", ".tsv", *COLUMNAR, EXCEL)
"""Formats with columns."""
CONVERTED = (".html", ".pdf", ".docx", ".pptx", ".epub")
"""Formats of whole documents that are converted to text."""
FORMATS = (".txt", ".md", *TABLES, *CONVERTED)
OTHER_NAMES = {".markdown": ".md", ".htm": ".html"}
"""Other endings of formats."""
ENCODED = (".txt", ".md", ".jsonl", ".json", ".csv", ".tsv", ".html")
"""Formats of text, which has an encoding and can be compressed."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": ""}
"""Endings of compressed files, with the codecs of pyarrow."""
EXTRAS = {
    EXCEL: ("acclimate[excel]", "openpyxl"),
    ".html": ("acclimate[documents]", "markitdown"),
    ".pdf": ("acclimate[documents]", "pdfminer"),
    ".docx": ("acclimate[documents]", "mammoth"),
    ".epub": ("acclimate[documents]", "markitdown"),
    ".pptx": ("markitdown[pptx]", "pptx"),
}
"""Package to install for a format, and a module that comes with it."""
FORMATS_DESCRIPTION = f"{', '.join(FORMATS)} (the text formats also compressed as {', '.join(COMPRESSIONS)})"

MIN_DETECTION_BYTES = 16
"""Files that are shorter and have no byte order mark are read as UTF-8."""
HEAD_BYTES = 1 << 16
"""Bytes at the start of a file that say whether it is UTF-8."""
DAMAGE_BYTES = 1 << 12
"""Maximum bytes of text before the damage that are lost, since pyarrow fails on a whole block."""
MAX_WINDOW_BYTES = 1 << 31
"""Largest window of a zstd file, as of ``--long=31``, the most that zstd writes."""
LIMIT = "it needs"
"""Start of the reason where a file is not damaged but beyond a limit of its decoder."""
MAX_LINE_BYTES = 1 << 28
"""A longer line is unlikely to be a document and would only fill memory. Also the limit of a JSON array."""
NOT_UTF8 = "not UTF-8"
ESCAPED_BYTE = re.compile(rb"\xed[\xb2\xb3][\x80-\xbf]")
"""A byte that could not be decoded, as the lone surrogate of ``surrogateescape``."""
MIN_GUESS_BYTES = 32
CLEAR_ENCODINGS = ("cp1251", "cp1253", "gb18030", "big5", "cp932", "cp949", "euc_jp", "koi8_r")
"""Encodings of scripts other than Latin, which ``charset_normalizer`` recognizes in a few words."""


def suffixes_of(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return the endings of the names of files of some formats, plain ones first."""
    plain = (*formats, *(name for name, form in OTHER_NAMES.items() if form in formats))
    encoded = [name for name in plain if OTHER_NAMES.get(name, name) in ENCODED]
    return (*plain, *(name + ending for name in encoded for ending in COMPRESSIONS))


SUFFIXES = suffixes_of(FORMATS)


def detect_format(path: Path) -> str | None:
    """Return the format (``".txt"``, ``".jsonl"``, ...) by the name of a file; None if it is unknown."""
    name = path.name.lower()
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
    if suffix is None:
        return None
    form = f".{suffix.split('.')[1]}"
    return OTHER_NAMES.get(form, form)


@cache
def missing_extra(form: str | None) -> str:
    """Return what has to be installed for a format, such as ``"acclimate[excel]"``; empty if nothing is missing."""
    extra, module = EXTRAS.get(form or "", ("", ""))
    return "" if not module or find_spec(module) else extra


def check_extra(path: Path) -> None:
    """Check that what the format of a file needs is installed.

    Raises:
        UserError: If it is not.
    """
    if missing := missing_extra(detect_format(path)):
        raise UserError(f"'{path}' cannot be read without a further package: pip install '{missing}'.")


def check_file(path: Path) -> None:
    """Check that a path is a file whose reading ends.

    Raises:
        UserError: If there is no such file, or it is a pipe, a device, or a link without a target.
    """
    check_regular_file(path)
    if not path.exists():
        raise _missing_file_error(path)


def _missing_file_error(path: Path) -> UserError:
    if path.is_symlink():
        return UserError(f"'{path}' is a link to a file that does not exist, or to itself.")
    parent = path.parent
    if " " in path.name and (not path.suffix or path.name.endswith(".")):
        return UserError(f"There is no file '{path}'. Give a text itself in a list of texts, in Python.")
    if not parent.is_dir():
        hint = f" For a Hugging Face dataset, write 'hf:{path}'." if len(path.parts) == 2 and not path.suffix else ""
        return UserError(f"There is no file '{path}': its folder '{parent}' does not exist.{hint}")
    close = get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=1, cutoff=0.6)
    if close:
        return UserError(f"There is no file '{path}'. Did you mean '{parent / close[0]}'?")
    hint = "" if path.suffix or path.is_absolute() else f" For a Hugging Face dataset, write 'hf:{path}'."
    return UserError(f"There is no file '{path}'.{hint}")


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed if its name ends in one of ``COMPRESSIONS``.

    Reading raises ``OSError``, ``EOFError`` or ``LZMAError`` if the compressed data are damaged or end too early. The
    readers of ``gzip`` and ``fsspec`` accept some truncated files as complete, so pyarrow's is used.

    Raises:
        UserError: If the file cannot be opened, or is a pipe or a device.
    """
    check_regular_file(path)
    try:
        file = path.open("rb", buffering=HEAD_BYTES)
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.") from error
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        return file
    if not compression:
        return io.BufferedReader(_FramedFile(file, lzma.LZMADecompressor), buffer_size=HEAD_BYTES)
    if compression == "zstd":
        return io.BufferedReader(_FramedFile(file, _ZstdDecoder), buffer_size=HEAD_BYTES)
    import pyarrow

    stream = pyarrow.CompressedInputStream(file, compression)
    return cast("IO[bytes]", io.BufferedReader(stream, buffer_size=DAMAGE_BYTES))


class _ZstdDecoder:
    """Decoder of a zstd frame with the interface of ``lzma.LZMADecompressor``."""

    def __init__(self) -> None:
        import zstandard

        self._frame: Any = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()
        self._error = zstandard.ZstdError

    def decompress(self, data: bytes) -> bytes:
        """Decode data.

        Raises:
            OSError: If they are damaged, or need what the decoder does not have.
        """
        try:
            return bytes(self._frame.decompress(data))
        except self._error as error:
            raise OSError(_explain_zstd(str(error))) from error

    @property
    def eof(self) -> bool:
        """Whether the frame is complete."""
        return bool(self._frame.eof)

    @property
    def unused_data(self) -> bytes:
        """The data after the frame."""
        return bytes(self._frame.unused_data)


class _FramedFile(io.RawIOBase):
    """The content of a zstd file, with windows of up to 2 GiB (``zstd --long=31``), or of an xz file.

    Several frames are joined, and zeros between and after them, the padding of xz, are skipped. The readers of
    ``zstandard`` accept a truncated file as complete, pyarrow's refuses windows above 128 MiB, and ``lzma.open`` takes
    padding for a frame that is cut off.
    """

    def __init__(self, file: IO[bytes], decoder: Callable[[], Any]) -> None:
        self._decoder = decoder
        self._file, self._ready, self._rest = file, memoryview(b""), b""
        self._frame: Any = None
        self._begun = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer.

        Raises:
            OSError, LZMAError: If the data are damaged, or need what the decoder does not have.
            EOFError: If the last frame is truncated.
        """
        while not self._ready:
            data = self._rest or self._file.read(1 << 10)  # of zeros, this can be 32 MiB
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("its last part is truncated")
                return 0
            if self._frame is None and not (data := data.lstrip(b"\0") if self._begun else data):
                continue
            self._frame, self._begun = self._frame or self._decoder(), True
            self._ready = memoryview(self._frame.decompress(data))
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _explain_zstd(problem: str) -> str:
    """Return why zstd data cannot be decoded; a limit of the decoder is no damage."""
    if "too much memory" in problem:
        return f"{LIMIT} a window of more than {MAX_WINDOW_BYTES >> 30} GiB; compress it again without --long"
    if "dictionary" in problem.lower():
        return f"{LIMIT} a dictionary that is not in the file; compress it again without one"
    return problem


def detect_wide_encoding(head: bytes) -> str:
    """Return the name of the encoding if the start of a file is UTF-16 or UTF-32; else an empty string.

    Without a byte order mark, every second byte is below 0x20 in the UTF-16 of most scripts, and 0 for spaces
    and line ends. As UTF-8 such a file would often be valid, with a control character after every letter.
    """
    if marked := next((name for mark, name in WIDE_ENCODING_BOMS.items() if head.startswith(mark)), ""):
        return marked
    if len(head) < MIN_DETECTION_BYTES or 0 not in head:
        return ""
    highest = [max(head[place::4]) for place in range(4)]
    if highest[3] == 0 and highest[2] <= 0x10 < highest[0]:
        return "UTF-32LE"
    if highest[0] == 0 and highest[1] <= 0x10 < highest[3]:
        return "UTF-32BE"
    low = [sum(byte < 0x20 for byte in head[place::2]) / len(head[place::2]) for place in (0, 1)]
    if max(low) < 0.7 or max(low) - min(low) < 0.2 or 0 not in head[low.index(max(low)) :: 2]:
        return ""
    return "UTF-16LE" if low[1] > low[0] else "UTF-16BE"


def choose_encoding(head: bytes, given: str | None, path: Path) -> str | None:
    """Return the encoding of a file; None for UTF-8.

    A byte order mark is decisive. A file that starts as UTF-8 with characters other than ASCII is UTF-8, whatever was
    given, since no text of another encoding looks like that.

    Args:
        head: The start of the file.
        given: The encoding that the user named.
        path: The file, for messages.

    Raises:
        DamagedFileError: If the file is UTF-16 or UTF-32 without a byte order mark, and no encoding is given.
    """
    wide = detect_wide_encoding(head[:DAMAGE_BYTES]) if 0 in head or not head.isascii() else ""
    if head.startswith((BOM, *WIDE_ENCODING_BOMS)):
        return wide or None
    name = codecs.lookup(given or "utf-8").name
    if given is None or name == "utf-8":
        if wide:
            raise DamagedFileError(1, f"{wide}, {NOT_UTF8}; give --encoding {wide} (encoding= in Python)")
        return None
    if name in ("utf-16", "utf-32"):  # the codecs refuse text without a byte order mark
        return wide if wide.lower().startswith(name) else f"{name}-le"
    if not head.isascii() and not decode_line(_whole_characters(head))[1]:
        warn_once(f"'{path}' is UTF-8, so it is read as that, not as {given}.")
        return None
    return given


def _whole_characters(head: bytes) -> bytes:
    """Return the start of a file without a character of UTF-8 that is cut off at the end."""
    for place in range(1, min(4, len(head)) + 1):
        if head[-place] >= 0xC0:
            return head[:-place]
        if head[-place] < 0x80:
            break
    return head


def _line_reader(file: IO[bytes], encoding: str | None) -> Callable[[], bytes]:
    """Return a function that reads the next line in UTF-8; undecodable bytes become lone surrogates."""
    if encoding is None:
        return partial(file.readline, MAX_LINE_BYTES)
    text = io.TextIOWrapper(file, encoding=encoding, errors="surrogateescape", newline="\n")
    return lambda: text.readline(MAX_LINE_BYTES).encode("utf-8", "surrogatepass")


def read_numbered_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, bytes]]:
    r"""Yield each line with its number, from 1, and its line end, in UTF-8; a byte order mark is removed.

    Lines end at ``\n`` only: the other line boundaries of ``str.splitlines`` occur inside documents. In a file without
    any ``\n`` they end at ``\r``.

    Args:
        path: The file, also compressed.
        encoding: Its encoding if that is not UTF-8; see :func:`choose_encoding`.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If the file is damaged, truncated or not compressed as its name says, has a line that is too
            long, or is in another encoding whose rest cannot be decoded.
    """
    number = 0
    with open_bytes(path) as file:
        try:
            encoding = choose_encoding(file.peek(), encoding, path)  # type: ignore[attr-defined]
            read = _line_reader(file, encoding)
            while line := read():
                number += 1
                if len(line) >= MAX_LINE_BYTES and not line.endswith(b"\n"):
                    raise DamagedFileError(
                        number, f"the line has more than {MAX_LINE_BYTES:,} bytes; the rest of the file is not read"
                    )
                if number == 1:
                    line = line.removeprefix(BOM)
                    if b"\r" in line.removesuffix(b"\r") and not line.endswith(b"\n"):
                        yield from enumerate(line.replace(b"\r", b"\n").splitlines(keepends=True), start=1)
                        return
                yield number, line
        except UnicodeError as error:
            raise DamagedFileError(number + 1, f"not {encoding}; name the right encoding ({error})") from error
        except (OSError, EOFError, lzma.LZMAError, MemoryError) as error:
            limit = str(error).startswith(LIMIT) or isinstance(error, MemoryError)
            what = "cannot be decoded from here on" if limit else "is damaged or cut off from here on"
            raise DamagedFileError(number + 1, f"the file {what} ({error or 'too little memory'})") from error


def decode_line(line: bytes) -> tuple[str, str]:
    r"""Decode a line of UTF-8 without its ``\n`` or ``\r\n``; return the text, and the problem if there is one."""
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"), ""
    except UnicodeDecodeError as error:
        if escaped := ESCAPED_BYTE.match(line, error.start):
            byte = ord(escaped[0].decode("utf-8", "surrogatepass")) - 0xDC00
            return "", f"byte 0x{byte:02x} does not exist in the encoding that is given"
        return "", f"{NOT_UTF8} (byte 0x{line[error.start]:02x} at position {error.start + 1})"


def explain_surrogates(text: str) -> str:
    """Return why a text with lone surrogates cannot be used: undecodable bytes, or half of a pair."""
    with suppress(UnicodeEncodeError):
        return decode_line(text.encode("utf-8", "surrogateescape"))[1] or NOT_UTF8
    return "half of a surrogate pair, which is not a character"


def check_encoding(name: str) -> None:
    """Check the name of an encoding.

    Raises:
        UserError: If Python does not know it as one of text.
    """
    try:
        "".encode(name)
    except LookupError as error:
        raise UserError(f"There is no encoding '{name}'; write one such as cp1252, latin-1, gbk or utf-16.") from error


def advise_encoding(path: Path) -> str:
    """Return advice, for a message, on the encoding of a file that is not UTF-8."""
    guess = guess_encoding(path)
    probably = f"it is probably {guess}: " if guess else ""
    return f"{probably}give --encoding {guess or 'NAME, such as cp1252'} (encoding= in Python)"


@cache
def guess_encoding(path: Path) -> str:
    """Return the likely encoding of a file that is not UTF-8; an empty string if it is not clear.

    Single bytes among letters of ASCII are the accents of Western European text, for which that is cp1252; the
    encodings of other scripts are recognized by ``charset_normalizer`` in the lines that are not UTF-8.
    """
    lines = bytearray()
    with suppress(DamagedFileError):
        for _, line in read_numbered_lines(path):
            if decode_line(line)[1]:
                lines += line
                if len(lines) >= DAMAGE_BYTES:
                    break
    data = bytes(lines[: 2 * DAMAGE_BYTES])
    high = [place for place, byte in enumerate(data) if byte >= 0x80]
    alone = [place for place in high if max(data[max(0, place - 1) : place + 2 : 2], default=0) < 0x80]
    if high and 2 * len(alone) >= len(high):
        return "cp1252"
    with suppress(ImportError):
        from charset_normalizer import from_bytes

        best = from_bytes(data).best() if len(data) >= MIN_GUESS_BYTES else None
        return best.encoding if best and best.encoding in CLEAR_ENCODINGS else ""
    return ""
