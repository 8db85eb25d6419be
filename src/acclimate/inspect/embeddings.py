"""`acclimate inspect embeddings`: how far adaptation moved the static word embeddings (TAPTER, Appendix B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corpus import Corpus, tokenize
from acclimate.corpus.stop_words import read_stop_words
from acclimate.corpus.surface_forms import read_surface_forms
from acclimate.errors import UserError, check_positive
from acclimate.files import atomic_folder, check_replaceable, write_json
from acclimate.inspect.movement import log_odds, movement, principal_plane
from acclimate.locks import with_output_lock
from acclimate.models import LanguageModel, load_language_model
from acclimate.modules import virtual_ids
from acclimate.training.method import cache_folder
from acclimate.version import __version__

REPORT = "embeddings.json"
SHORTEST, RAREST = 3, 5
"""A word that is chosen to be labelled has so many letters, and occurs so often in the text."""
SHOWN = 4000
"""Tokens in the scatter at most, the most frequent of the text, or the first of the vocabulary."""
Text = str | Path | Sequence[str | Path] | Corpus


@dataclass(frozen=True)
class EmbeddingsResult:
    """What an inspection found.

    Attributes:
        report: Plain values, as in ``embeddings.json``.
        planes: For each model (tokens, 2): where the tokens of the scatter lie.
        shown: Their ids.
        labels: Id of each labelled word.
    """

    report: dict[str, Any]
    planes: dict[str, np.ndarray]
    shown: np.ndarray
    labels: dict[str, int]


@with_output_lock
def inspect_embeddings(
    before: str | Path,
    after: Mapping[str, str | Path] | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    text: Text | None = None,
    against: Text | None = None,
    words: Sequence[str] = (),
    count: int = 10,
    stop_words: str = "english",
    text_column: str = "text",
    progress: bool = True,
) -> EmbeddingsResult:
    """Measure how far the static embeddings of adapted models are from those of the model they came from.

    The static embeddings are the rows of the input embedding matrix: before positions and layer normalisation. The
    TAPTER paper reports a mean distance "among all words" of 0.0576 for TAPT and 0.172 for TAPTER, and does not say of
    which norm. Here ``distance`` is Euclidean, a mean over the rows of all tokens that are not special; ``coordinate``
    is that divided by the square root of the width. With a ``text`` both are also given over the tokens that occur in
    it, each once (``seen``), and each as often as it occurs (``read``).

    Args:
        before: A model folder or a name on the hub.
        after: Adapted models, by name or to be called as their folders are.
        out: Folder for ``embeddings.json`` and ``embeddings.png`` and ``.svg``; None writes nothing.
        text: Text of the domain.
        against: Other text, from which the domain's own words are told apart.
        words: Words to label in the scatter, each one token of the vocabulary. If none are given they are chosen among
            whole words of at least three letters that are no stop words: with ``text`` and ``against``, those that
            occur five times or more and have the highest log-odds; with ``text`` alone, the most frequent; without
            text, those that moved most.
        count: How many are chosen.
        stop_words: ``english``, ``none``, a file with one a line, or another language, as ``german``.
        text_column: Where the text is in tables and JSON lines.
        progress: Show bars.

    Raises:
        UserError: If a model cannot be read, the vocabularies differ, or a word is not a token.
    """
    check_positive(count=count)
    check_replaceable(out, REPORT, "an inspection of embeddings")
    named = {str(name): path for name, path in _named(after).items()}
    start = load_language_model(before)
    pieces = read_surface_forms(start.tokenizer)
    special = set(start.tokenizer.all_special_ids) | set(virtual_ids(start.tokenizer))
    matrices = {"before": static_table(start)}
    ordinary = np.array([index for index in range(len(matrices["before"])) if index not in special])
    for name, path in named.items():
        loaded = load_language_model(path)
        if vocabulary(loaded) != vocabulary(start):
            raise UserError(f"'{path}' has another vocabulary than '{before}', so their tokens cannot be compared.")
        matrices[name] = static_table(loaded)
    counts, others = (_counts(given, start, text_column, progress) for given in (text, against))
    moved = {name: np.linalg.norm(matrices[name] - matrices["before"], axis=1) for name in named}
    if words:
        chosen, rule = _given(words, start), "given"
    else:
        whole = {index: piece.text for index, piece in enumerate(pieces) if piece.starts and piece.text.isalpha()}
        stops = read_stop_words(stop_words, start.tokenizer)
        free = [i for i, word in whole.items() if len(word) >= SHORTEST and word.lower() not in stops]
        chosen, rule = _choose(np.array(free, dtype=int), counts, others, sum(moved.values()) / len(moved), count)
    labels = {pieces[index].text: index for index in chosen}
    shown = ordinary if counts is None else ordinary[np.argsort(-counts[ordinary], kind="stable")]
    if counts is not None:
        shown = shown[counts[shown] > 0]
    shown = np.union1d(shown[:SHOWN], np.array(chosen, dtype=int))
    planes, shares = principal_plane([matrix[shown] for matrix in matrices.values()])
    report = {
        "acclimate": __version__,
        "before": str(before),
        "after": {name: str(path) for name, path in named.items()},
        "width": matrices["before"].shape[1],
        "movement": {name: _moved(matrices["before"], matrices[name], ordinary, counts) for name in named},
        "words": {
            word: {
                "distance": {name: float(moved[name][index]) for name in named},
                **({} if counts is None else {"count": int(counts[index])}),
            }
            for word, index in labels.items()
        },
        "rule": rule,
        "scatter": {"tokens": len(shown), "variance": list(shares)},
    }
    result = EmbeddingsResult(report, dict(zip(matrices, planes, strict=True)), shown, labels)
    if out is not None:
        from acclimate.inspect.embedding_plot import draw

        with atomic_folder(out) as folder:
            write_json(folder / REPORT, report)
            draw(result, folder)
    return result


def _named(after: Mapping[str, str | Path] | Sequence[str | Path]) -> Mapping[str, str | Path]:
    """Give models the names of their folders."""
    if not after:
        raise UserError("Give at least one adapted model with --after.")
    if isinstance(after, Mapping):
        named = dict(after)
    else:
        named = {Path(path).name: path for path in after}
    if len(named) < len(after) or "before" in named:
        raise UserError("Two models have the same name, or one is called 'before'; give names as --after NAME=DIR.")
    return named


def vocabulary(loaded: LanguageModel) -> dict[str, int]:
    """Return the id of each token, virtual tokens aside."""
    virtual = set(virtual_ids(loaded.tokenizer))
    return {token: index for token, index in loaded.tokenizer.get_vocab().items() if index not in virtual}


def static_table(loaded: LanguageModel) -> np.ndarray:
    """Return the rows of ordinary vocabulary: (tokens, width)."""
    size = max(vocabulary(loaded).values()) + 1
    table: Any = loaded.model.get_input_embeddings().weight
    return table.detach().float().numpy()[:size]


def _counts(text: Text | None, loaded: LanguageModel, text_column: str, progress: bool) -> np.ndarray | None:
    """Return how often each token occurs in a text, (tokens,); None without a text."""
    if text is None:
        return None
    corpus = text if isinstance(text, Corpus) else Corpus(text, text_column=text_column)
    rows = tokenize(corpus, loaded.tokenizer, 512, cache=cache_folder() / "rows", progress=progress)
    size = max(vocabulary(loaded).values()) + 1
    counts = np.zeros(size, dtype=np.int64)
    for row in rows:
        counts += np.bincount(np.asarray(row), minlength=size)[:size]
    counts[[index for index in loaded.tokenizer.all_special_ids if index < size]] = 0  # virtual tokens lie beyond
    return counts


def _given(words: Sequence[str], loaded: LanguageModel) -> list[int]:
    """Return the token of each word."""
    found = []
    for word in words:
        ids = loaded.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] in loaded.tokenizer.all_special_ids:
            raise UserError(f"The word '{word}' is {len(ids)} tokens in this vocabulary; give words that are one.")
        found.append(int(ids[0]))
    return found


def _choose(
    free: np.ndarray, counts: np.ndarray | None, others: np.ndarray | None, moved: Any, count: int
) -> tuple[list[int], str]:
    """Choose words to label among the tokens ``free``, and say by what rule."""
    if counts is None:
        value, rule = moved, "moved most"
    elif others is None:
        value, rule = counts, "most frequent in the text"
    else:
        value, rule = log_odds(counts, others), "highest log-odds against the other text"
        free = free[counts[free] >= RAREST]
    free = free if counts is None else free[counts[free] > 0]
    order = free[np.argsort(-value[free], kind="stable")]
    return [int(index) for index in order[:count]], rule


def _moved(before: np.ndarray, after: np.ndarray, ordinary: np.ndarray, counts: np.ndarray | None) -> dict[str, Any]:
    one, other = before[ordinary], after[ordinary]
    found = {"all": asdict(movement(one, other))}
    if counts is not None and counts[ordinary].any():
        seen = counts[ordinary]
        found |= {"seen": asdict(movement(one, other, seen > 0)), "read": asdict(movement(one, other, seen))}
    return found
