"""A labelled task from documentation: which branch of scientific computing does a text describe?

The label follows from where the text was found (``scipy.signal`` is signal processing), and the text is shown
without what would give that away: names of libraries and paths of modules are replaced by one neutral word. Most
topics gather several libraries and most libraries hold several topics, so the style of a library does not decide.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from acclimate.demo.docstrings import Document
from acclimate.errors import UserError

TOPICS: dict[str, tuple[str, ...]] = {
    "calculus": ("scipy.differentiate", "scipy.integrate", "sympy.calculus", "sympy.integrals", "sympy.series"),
    "combinatorics": ("sympy.combinatorics",),
    "geometry": ("scipy.spatial", "sympy.geometry"),
    "graphs": ("networkx.algorithms", "scipy.sparse.csgraph"),
    "linear algebra": ("numpy.linalg", "scipy.linalg", "scipy.sparse.linalg", "sympy.matrices"),
    "machine learning": (
        "sklearn.cluster",
        "sklearn.ensemble",
        "sklearn.linear_model",
        "sklearn.neighbors",
        "sklearn.svm",
        "sklearn.tree",
    ),
    "optimisation": ("scipy.optimize",),
    "plotting": ("matplotlib", "pandas.plotting"),
    "polynomials": ("numpy.polynomial", "sympy.polys"),
    "signal processing": ("numpy.fft", "scipy.fft", "scipy.fftpack", "scipy.signal"),
    "special functions": ("scipy.special", "sympy.functions"),
    "statistics": ("scipy.stats", "sympy.stats"),
}
"""The modules whose documentation is about each topic."""

PACKAGES = ("matplotlib", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy")
"""The packages whose documentation is the domain."""

MAX_WORDS = 32
"""A text of the task is this many words at most: few-shot classification of short texts, quick on two cores."""

OVERLAP_WORDS = 13
"""Texts that share this many words in a row count as overlapping (as in the decontamination of GPT-3)."""

NEUTRAL_WORD = "library"
"""What a name that gives the label away is replaced by."""

_LIBRARY_NAMES = (
    *PACKAGES,
    *(
        "scikit-learn",
        "scikit learn",
        "scikits",
        "scikit",
        "pyplot",
        "pylab",
        "mpl_toolkits",
        "mpl",
        "np",
        "pd",
        "plt",
    ),
    *("nx", "sp", "sm", "mpmath", "torch", "pytorch", "matlab", "statsmodels", "skimage", "nxviz", "axes3d"),
)
_LIBRARY_PATTERN = re.compile(
    rf"(?<![\w.])(?:{'|'.join(map(re.escape, _LIBRARY_NAMES))})(?:\.\w+)*(?!\w)", re.IGNORECASE
)
# Parts of two characters at least: "e.g." is no path.
_PATH_PATTERN = re.compile(r"https?://\S+|(?<![\w.])[A-Za-z_]\w+(?:\.[A-Za-z_]\w+)+")
_WORD_PATTERN = re.compile(r"\w+")


@dataclass(frozen=True)
class LabelledDocument:
    """One item of the task: the text that is shown, its label, and the document it was made from."""

    text: str
    label: str
    document: Document

    def row(self) -> dict[str, str]:
        """Return the line of the task's file."""
        return {"text": self.text, "label": self.label, "source": self.document.source}


@dataclass(frozen=True)
class DerivedTask:
    """A task and the documents that may be read before it is taken.

    Attributes:
        train: Labelled items; few-shot fine-tuning draws from them.
        dev: Labelled items for choosing, when asked.
        test: Labelled items for measuring.
        corpus: The documents that share nothing with dev and test.
        removed: How many documents were kept out of the corpus, dev and test themselves included.
    """

    train: list[LabelledDocument]
    dev: list[LabelledDocument]
    test: list[LabelledDocument]
    corpus: list[Document]
    removed: int


def mask_names(text: str) -> str:
    """Replace what names a library (``SciPy``, ``np.linalg.norm``) or a module path by a neutral word.

    Upper and lower case are alike. Dotted paths go whole, also without the name of a library, because their parts
    are names of modules.
    """
    return _PATH_PATTERN.sub(NEUTRAL_WORD, _LIBRARY_PATTERN.sub(NEUTRAL_WORD, text))


def find_topic(document: Document) -> str | None:
    """Return the topic of a document, or None if its module is about none, or about several."""
    found = [
        (len(prefix), label)
        for label, prefixes in TOPICS.items()
        for prefix in prefixes
        if document.module == prefix or document.module.startswith(prefix + ".")
    ]
    return max(found)[1] if found else None


def make_task_text(document: Document, words: int = MAX_WORDS) -> str:
    """Return the start of a document as the task shows it: names masked, one line, at most ``words`` words."""
    return " ".join(mask_names(document.text).split()[:words])


def derive_task(
    documents: Sequence[Document],
    *,
    train: int = 48,
    dev: int = 10,
    test: int = 50,
    words: int = MAX_WORDS,
    seed: int = 0,
) -> DerivedTask:
    """Divide documents into a labelled task and a corpus that does not leak into it.

    Test is filled first, then dev, then train, in an order that a hash of seed and text gives: it depends neither on
    the order of the documents nor on the process. Every topic has the same number of items in each part. An item is
    not taken if it has the summary of one that was, or overlaps with one of another part. From the corpus go all
    documents that are an item of dev or test, carry the same name in the same package (an override, a copy for
    another class of arrays), have the same summary, or overlap with one.

    Args:
        documents: The documents, distinct.
        train: Items of each topic for training.
        dev: Items of each topic for choosing.
        test: Items of each topic for measuring.
        words: Length of the texts that are shown.
        seed: Other seeds give other divisions.

    Returns:
        The task and the corpus, the latter in the order of the hash as well, so that any beginning of it is a fair
        sample of all packages.

    Raises:
        UserError: If a topic has too few documents, as when a package is missing.
    """
    ordered = sorted(documents, key=lambda document: _hash_order(document, seed))
    wanted = {"test": test, "dev": dev, "train": train}
    taken: dict[str, list[LabelledDocument]] = {part: [] for part in wanted}
    known = {part: _TextKeyIndex() for part in wanted}
    summaries: set[str] = set()
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for document in ordered:
        label = find_topic(document)
        part = next((part for part, size in wanted.items() if counts[part, label or ""] < size), None)
        if label is None or part is None:
            continue
        item = LabelledDocument(make_task_text(document, words), label, document)
        traits = _TextKeys.of(document, item.text)
        if traits.summary in summaries or any(known[other].overlaps(traits) for other in wanted if other != part):
            continue
        summaries.add(traits.summary)
        counts[part, label] += 1
        taken[part].append(item)
        known[part].add(traits)
    _check_counts(counts, wanted)
    held = _TextKeyIndex(known["dev"], known["test"])
    corpus = [document for document in ordered if not held.overlaps(_TextKeys.of(document, mask_names(document.text)))]
    return DerivedTask(taken["train"], taken["dev"], taken["test"], corpus, len(ordered) - len(corpus))


@dataclass(frozen=True)
class _TextKeys:
    """What tells that two documents say the same: package and name, summary, runs of words."""

    name: tuple[str, str]
    summary: str
    runs: frozenset[int]

    @classmethod
    def of(cls, document: Document, masked: str) -> _TextKeys:
        words = _WORD_PATTERN.findall(masked.lower())
        starts = range(max(len(words) - OVERLAP_WORDS + 1, 0))
        runs = frozenset(hash(tuple(words[start : start + OVERLAP_WORDS])) for start in starts)
        summary = " ".join(_WORD_PATTERN.findall(mask_names(document.summary).lower()))
        return cls((document.package, document.name or document.module), summary, runs)


class _TextKeyIndex:
    """The traits of all items of one part of the task, or of several parts."""

    def __init__(self, *parts: _TextKeyIndex) -> None:
        self._names: set[tuple[str, str]] = set().union(*(part._names for part in parts))
        self._summaries: set[str] = set().union(*(part._summaries for part in parts))
        self._runs: set[int] = set().union(*(part._runs for part in parts))

    def add(self, traits: _TextKeys) -> None:
        self._names.add(traits.name)
        self._summaries.add(traits.summary)
        self._runs.update(traits.runs)

    def overlaps(self, traits: _TextKeys) -> bool:
        alike = traits.name in self._names or traits.summary in self._summaries
        return alike or not self._runs.isdisjoint(traits.runs)


def _hash_order(document: Document, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\n{document.source}\n{document.text}".encode(), digest_size=12).digest()


def _check_counts(counts: dict[tuple[str, str], int], wanted: dict[str, int]) -> None:
    for label in TOPICS:
        missing = sum(size - counts[part, label] for part, size in wanted.items())
        if missing:
            places = ", ".join(TOPICS[label])
            raise UserError(
                f"The documentation of {places} gives {missing} texts too few for the topic '{label}': "
                "install the packages that pyproject.toml names, or give a task of your own with --task."
            )


def count_labels(items: Iterable[LabelledDocument]) -> dict[str, int]:
    """Count the items of each label, labels in alphabetical order."""
    counts: dict[str, int] = defaultdict(int)
    for item in items:
        counts[item.label] += 1
    return dict(sorted(counts.items()))
