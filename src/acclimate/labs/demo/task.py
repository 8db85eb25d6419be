"""A labelled task from documentation: classify a text by its branch of scientific computing.

The module of a text determines its label (``scipy.signal`` is signal processing). Names of libraries and modules,
which would reveal the label, are replaced by one neutral word. Most topics cover several libraries and most libraries
several topics, so the style of a library does not determine the label either.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from acclimate.base.errors import UserError
from acclimate.labs.demo.docstrings import Document

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
    "optimization": ("scipy.optimize",),
    "plotting": ("matplotlib", "pandas.plotting"),
    "polynomials": ("numpy.polynomial", "sympy.polys"),
    "signal processing": ("numpy.fft", "scipy.fft", "scipy.fftpack", "scipy.signal"),
    "special functions": ("scipy.special", "sympy.functions"),
    "statistics": ("scipy.stats", "sympy.stats"),
}
"""Modules of each topic."""

PACKAGES = ("matplotlib", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy")
"""Packages whose documentation is the domain text."""

MAX_WORDS = 32
"""Maximum words of a text of the task; short texts keep fine-tuning fast on two cores."""

OVERLAP_WORDS = 13
"""Texts that share this many consecutive words overlap (as in the decontamination of GPT-3)."""

NEUTRAL_WORD = "library"
"""Replacement of names that would reveal the label."""

_LIBRARY_NAMES = [*PACKAGES, "scikit-learn", "scikit learn", "scikits", "scikit", "pyplot", "pylab", "mpl_toolkits"]
_LIBRARY_NAMES += ["mpl", "np", "pd", "plt", "nx", "sp", "sm", "mpmath", "torch", "pytorch", "matlab", "statsmodels"]
_LIBRARY_NAMES += ["skimage", "nxviz", "axes3d"]
_LIBRARY_PATTERN = re.compile(
    rf"(?<![\w.])(?:{'|'.join(map(re.escape, _LIBRARY_NAMES))})(?:\.\w+)*(?!\w)", re.IGNORECASE
)
# The parts have at least two characters, so that "e.g." does not match.
_PATH_PATTERN = re.compile(r"https?://\S+|(?<![\w.])[A-Za-z_]\w+(?:\.[A-Za-z_]\w+)+")
_WORD_PATTERN = re.compile(r"\w+")


@dataclass(frozen=True)
class LabelledDocument:
    """An example of the task: its text and label, and the document that it comes from."""

    text: str
    label: str
    document: Document

    def row(self) -> dict[str, str]:
        """Return the row of the task's file."""
        return {"text": self.text, "label": self.label, "source": self.document.source}


@dataclass(frozen=True)
class DerivedTask:
    """A task, and the documents that a model may be adapted to before the task.

    Attributes:
        train: Training examples; few-shot fine-tuning samples from them.
        dev: Dev examples.
        test: Test examples.
        corpus: Documents without overlap with dev and test.
        removed: Number of documents kept out of the corpus, including documents of dev and test.
    """

    train: list[LabelledDocument]
    dev: list[LabelledDocument]
    test: list[LabelledDocument]
    corpus: list[Document]
    removed: int


def mask_names(text: str) -> str:
    """Replace names of libraries (``SciPy``, ``np.linalg.norm``) and module paths with a neutral word, ignoring case.

    Whole dotted paths are replaced, even without the name of a library, since their parts name modules.
    """
    return _PATH_PATTERN.sub(NEUTRAL_WORD, _LIBRARY_PATTERN.sub(NEUTRAL_WORD, text))


def find_topic(document: Document) -> str | None:
    """Return the topic of a document, or None if its module belongs to none."""
    found = [
        (len(prefix), label)
        for label, prefixes in TOPICS.items()
        for prefix in prefixes
        if document.module == prefix or document.module.startswith(prefix + ".")
    ]
    return max(found)[1] if found else None


def make_task_text(document: Document, words: int = MAX_WORDS) -> str:
    """Return the first ``words`` words of a document in one line, with names masked."""
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
    """Split documents into a labelled task and a corpus that does not contain its dev and test texts.

    Test is filled first, then dev, then train, in the order of a hash of seed and text, which does not depend on the
    order of the documents. Every topic has the same number of examples in each split. A document is skipped if an
    earlier example has the same summary, or if it overlaps with another split. The corpus excludes the documents of
    dev and test, and all documents with the same name in the same package (such as an override), the same summary, or
    overlapping text.

    Args:
        documents: Distinct documents.
        train: Training examples per topic.
        dev: Dev examples per topic.
        test: Test examples per topic.
        words: Maximum words per text.
        seed: Random seed of the split.

    Returns:
        The task and the corpus. The corpus is in hash order too, so any prefix is a random sample of all packages.

    Raises:
        UserError: If a topic has too few documents, for example because a package is missing.
    """
    ordered = sorted(documents, key=lambda document: _hash_order(document, seed))
    sizes = {"test": test, "dev": dev, "train": train}
    splits: dict[str, list[LabelledDocument]] = {split: [] for split in sizes}
    known: dict[str, set[Hashable]] = {split: set() for split in sizes}
    counts: Counter[tuple[str, str]] = Counter()
    for document in ordered:
        label = find_topic(document)
        split = next((split for split, size in sizes.items() if counts[split, label or ""] < size), None)
        if label is None or split is None:
            continue
        item = LabelledDocument(make_task_text(document, words), label, document)
        summary, keys = _find_keys(document, item.text)
        if summary in known[split] or any(not keys.isdisjoint(known[other]) for other in sizes if other != split):
            continue
        counts[split, label] += 1
        splits[split].append(item)
        known[split] |= keys
    _check_counts(counts, sizes)
    tested = known["dev"] | known["test"]
    corpus = [one for one in ordered if tested.isdisjoint(_find_keys(one, mask_names(one.text))[1])]
    return DerivedTask(splits["train"], splits["dev"], splits["test"], corpus, len(ordered) - len(corpus))


def _find_keys(document: Document, masked: str) -> tuple[str, set[Hashable]]:
    """Return the summary, and the keys that overlapping texts share: name, summary, and hashed word n-grams."""
    words = _WORD_PATTERN.findall(masked.lower())
    starts = range(max(len(words) - OVERLAP_WORDS + 1, 0))
    ngrams = {hash(tuple(words[start : start + OVERLAP_WORDS])) for start in starts}
    summary = " ".join(_WORD_PATTERN.findall(mask_names(document.summary).lower()))
    return summary, {(document.package, document.name or document.module), summary, *ngrams}


def _hash_order(document: Document, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\n{document.source}\n{document.text}".encode(), digest_size=12).digest()


def _check_counts(counts: Counter[tuple[str, str]], sizes: dict[str, int]) -> None:
    for label in TOPICS:
        missing = sum(size - counts[split, label] for split, size in sizes.items())
        if missing:
            modules = ", ".join(TOPICS[label])
            raise UserError(
                f"The documentation of {modules} has {missing} texts too few for the topic '{label}': "
                "reinstall these packages."
            )


def count_labels(items: Iterable[LabelledDocument]) -> dict[str, int]:
    """Count the examples of each label, in alphabetical order."""
    return dict(sorted(Counter(item.label for item in items).items()))
