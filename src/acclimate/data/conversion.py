"""Text of documents: Markdown, and HTML, PDF, Word, EPUB and PowerPoint through ``markitdown``.

A file is one document. What the converters write is Markdown without links, images and marks of emphasis.

The converters run in a process of their own (``python -m acclimate.data.conversion``), with limits of memory and
time: a small file can be made to unpack into gigabytes, or to nest so deeply that reading it never ends.
"""

from __future__ import annotations

import io
import json
import logging
import lzma
import math
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from acclimate.base.errors import UserError, first_line
from acclimate.base.files import cache_folder, read_json_object, warn_on_write_error, write_json
from acclimate.base.limits import limit_process, memory_in_use
from acclimate.base.waiting import Wait
from acclimate.data.opening import HEAD_BYTES, choose_encoding, detect_format, open_bytes

CONVERTERS = {
    ".html": "HtmlConverter",
    ".pdf": "PdfConverter",
    ".docx": "DocxConverter",
    ".pptx": "PptxConverter",
    ".epub": "EpubConverter",
}
"""The class of ``markitdown.converters`` for each format."""
OPTIONS = {
    "strip": ["a", "img", "b", "strong", "i", "em", "u"],
    "escape_asterisks": False,
    "escape_underscores": False,
    "escape_misc": False,
}
"""Options of ``markdownify``, through which all of them but PDF go: only the text of these elements is kept."""
LIBRARIES = ("markitdown", "markdownify", "mammoth", "pdfminer.six", "pdfplumber", "python-pptx")
"""The packages on which the text of a document depends."""
MAX_MEMORY, MAX_MARKUP = 2 * 2**30, 64 * 2**20
"""Bytes of memory that a conversion may take, and of markup that a file may unpack into."""
MARKUP = (".xml", ".rels", ".html", ".htm", ".xhtml", ".opf", ".ncx")
"""Names of the files in Office and EPUB files that are parsed."""
SECONDS, SECONDS_PER_MB = 30, {".pdf": 60}
"""Seconds of CPU that a conversion may take, and more for each megabyte of some formats; 10 for the others."""
TOO_MUCH_MEMORY = "its conversion takes too much memory"
_VERSION = 3  # increment when the same file gives another text
LIGATURES = str.maketrans({"\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl"})
FRONT_MATTER = re.compile(
    r"\A---[ \t]*\r?\n(?=\s*(#[^\n]*\n\s*)*(['\"]?[\w.-]+['\"]?[ \t]*:([ \t]|\r?\n)|---))"
    r"(.*?\n)?---[ \t]*(\r?\n|\Z)",
    re.DOTALL,
)
"""Lines between two rules at the top of a document, of which the first is a comment or has a key, as in YAML."""
HYPHENATED = re.compile(r"(?<!\w)(\w++)-\n(\w++)([^\w\s]*)[ ]?")


def strip_markdown(text: str) -> str:
    """Return a Markdown document without the metadata at its top and without comments; all else is text."""
    kept, end, text = [], 0, FRONT_MATTER.sub("", text, count=1)
    while (start := text.find("<!--", end)) >= 0 and (close := text.find("-->", start + 4)) >= 0:
        kept.append(text[end:start])
        end = close + 3
    return "".join([*kept, text[end:]]).strip()


@cache
def conversion_version() -> str:
    """Return the versions on which the text of a converted document depends."""
    return " ".join([str(_VERSION), *(f"{name}={_installed(name)}" for name in LIBRARIES)])


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def convert_document(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """Return the text of a document, and the problem if it has none.

    Conversion can take seconds for a PDF, so texts are kept in the cache, by the content of their files.

    Args:
        path: A file of one of the formats in ``CONVERTERS``.
        encoding: Encoding of an HTML file, if it does not name its own and is not UTF-8.

    Raises:
        UserError: If the file cannot be opened.
        DamagedFileError: If it is HTML in UTF-16 or UTF-32, and does not say so.
    """
    form = detect_format(path) or ""
    try:
        with open_bytes(path) as file:
            data = file.read()
    except (OSError, EOFError, lzma.LZMAError) as error:
        return "", f"the file is damaged or cut off ({first_line(error)})"
    if not data:
        return "", "the file is empty"
    encoding = choose_encoding(data[:HEAD_BYTES], encoding, path) if form == ".html" else None
    key = blake2b(f"{form} {encoding} {conversion_version()}\n".encode() + data, digest_size=16).hexdigest()
    stored = cache_folder() / "documents" / key[:2] / f"{key}.json"
    found = read_json_object(stored)
    if found is not None and found.keys() >= {"text", "problem"}:
        return found["text"], found["problem"]
    text, problem = _worker().convert(path, data, form, encoding)
    with warn_on_write_error("The texts of documents", stored.parent):
        write_json(stored, {"text": text, "problem": problem})
    return text, problem


class _Worker:
    """A process that converts one document after the other, and is replaced when one ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def convert(self, path: Path, data: bytes, form: str, encoding: str | None) -> tuple[str, str]:
        """Return the text of a document, and the problem if it has none."""
        seconds = math.ceil(SECONDS + SECONDS_PER_MB.get(form, 10) * len(data) / 2**20)
        limits = {"seconds": seconds, "memory": MAX_MEMORY}
        request = {"form": form, "encoding": encoding, "bytes": len(data), **limits}
        with self._lock:
            process = self._process or self._start()
            self._process = None  # until it has answered
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n" + data)
                process.stdin.flush()
                wait = Wait(f"the text of '{path}'", "it is long", 60.0 + 20 * seconds, say_after=30.0)
                while not select.select([process.stdout], [], [], 1.0)[0]:
                    wait.pause(0)
                answer = process.stdout.readline()
            except (BrokenPipeError, UserError):
                answer = b""
            except BaseException:
                process.kill()
                raise
            found = json.loads(answer) if answer else None
            if found is not None and found["problem"] != TOO_MUCH_MEMORY:
                self._process = process
            else:
                process.kill()
            if found is not None:
                return found["text"], found["problem"]
            if process.wait() == -signal.SIGXCPU:
                return "", f"its conversion takes more than {seconds} s"
            return "", "it ends the converter, as a document that is nested too deeply does"

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "acclimate.data.conversion"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C ends this process, which ends it
        )


@cache
def _worker_of(process: int) -> _Worker:
    return _Worker()


def _worker() -> _Worker:
    return _worker_of(os.getpid())  # a forked process must not read the answers of its parent


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Convert the documents of a stream until it ends, each within its limits."""
    import markitdown  # its memory does not count

    del markitdown
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    own = memory_in_use()
    while line := requests.readline():
        request = json.loads(line)
        data = requests.read(request["bytes"])
        limit_process(request["seconds"], own and own + request["memory"])
        text, problem = _convert(data, request["form"], request["encoding"])
        answers.write(json.dumps({"text": text, "problem": problem}).encode() + b"\n")
        answers.flush()


def _convert(data: bytes, form: str, encoding: str | None) -> tuple[str, str]:
    from markitdown import StreamInfo, converters

    converter: Any = getattr(converters, CONVERTERS[form])()
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):
            parts = zipfile.ZipFile(io.BytesIO(data)).infolist()
            markup = sum(part.file_size for part in parts if part.filename.lower().endswith(MARKUP))
            if markup > MAX_MARKUP:
                return "", f"it unpacks into {markup / 2**20:,.0f} MB of markup; the limit is {MAX_MARKUP // 2**20}"
        with _silence():
            info = StreamInfo(extension=form, charset=encoding)
            text = converter.convert(io.BytesIO(data), info, **OPTIONS).markdown
    except MemoryError:
        return "", TOO_MUCH_MEMORY
    except Exception as error:  # each library has its own exceptions, and a damaged file can raise any other
        return "", _explain(error, data, form)
    text = _clean(text, form)
    if text:
        return text, ""
    return "", "no text; scanned pages have to be read by OCR first" if form == ".pdf" else "no text"


def _explain(error: Exception, data: bytes, form: str) -> str:
    if isinstance(error, RecursionError):
        return "the document is nested too deeply"
    names = {type(one).__name__ for one in (error, error.__cause__, error.__context__)}
    if any("Password" in name or "Encrypt" in name for name in names):
        return "the document is encrypted; save it without a password"
    if form != ".pdf" and data.startswith(b"\xd0\xcf\x11\xe0"):  # Office files with a password, and older formats
        return f"the document is encrypted or of an older format; save it as {form} without a password"
    return f"the document is damaged or not {form[1:]} ({type(error).__name__}: {first_line(error)})"


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the remarks of the converters about details of a file."""
    loggers = [logging.getLogger(name) for name in ("pdfminer", "pdfplumber", "mammoth")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _clean(text: str, form: str) -> str:
    """Return a converted text without ligatures, marks of pages, hyphenation (PDF), and trailing and extra blanks."""
    text = text.encode("utf-8", "replace").decode("utf-8")  # half of a surrogate pair is no character
    text = text.translate(LIGATURES).replace("\f", "\n\n").replace("\r\n", "\n").replace("\xa0", " ")
    if form == ".pdf":
        text = _join_hyphenated(text)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _join_hyphenated(text: str) -> str:
    """Join words that are hyphenated at line ends.

    The hyphen stays where the document has the word with it elsewhere, and never without it.
    """
    words = set(re.findall(r"\w++(?:-\w++)*+", text.casefold()))

    def join(match: re.Match[str]) -> str:
        first, second, after = match.groups()
        whole, compound = f"{first}{second}", f"{first}-{second}"
        keeps = compound.casefold() in words and whole.casefold() not in words
        return f"{compound if keeps or not second[0].islower() else whole}{after}\n"

    return HYPHENATED.sub(join, text)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
