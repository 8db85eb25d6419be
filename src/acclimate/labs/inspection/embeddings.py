"""`acclimate inspect embeddings`: how far adaptation moved the static word embeddings (TAPTER, Appendix B)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import (
    atomic_folder,
    cache_folder,
    check_replaceable,
    check_writable,
    record_files,
    write_json,
)
from acclimate.base.locks import with_output_lock
from acclimate.base.options import verb
from acclimate.base.verbs import show_place
from acclimate.base.version import __version__
from acclimate.data.documents import Corpus, as_corpus
from acclimate.data.stop_words import read_stop_words
from acclimate.data.surface_forms import read_surface_forms
from acclimate.data.tokenizing import tokenize
from acclimate.labs.inspection.drift import embedding_drift, regular_vocabulary, static_embeddings
from acclimate.labs.inspection.options import InspectEmbeddingsOptions
from acclimate.models.loading import LanguageModel, load_language_model, virtual_ids
from acclimate.results.display import Displayed, data_frame, figure_style, save_figure, titled_table
from acclimate.results.study import StudyResults, table_results

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from rich.table import Table

REPORT = "embeddings.json"
MIN_LETTERS, MIN_COUNT = 3, 5
"""Minimum length and frequency of a word that is selected for labelling."""
MAX_SHOWN = 4000
"""Maximum tokens in the scatter plot: the most frequent in the text or, without one, the first of the vocabulary."""
PRIOR = 0.5
"""Pseudo-count that keeps the log-odds finite for words that occur in one text only."""
SCOPES = {"all": "all tokens", "seen": "tokens of the text", "read": "by occurrence"}


@dataclass(frozen=True, repr=False)
class EmbeddingsResult(Displayed):
    """Result of an inspection of embeddings.

    Attributes:
        report: JSON values, as in ``embeddings.json``.
        planes: Coordinates of the tokens in the scatter plot, (tokens, 2) for each model.
        shown: Ids of these tokens, (tokens,).
        labels: Token id of each labelled word.
    """

    report: dict[str, Any]
    planes: dict[str, np.ndarray]
    shown: np.ndarray
    labels: dict[str, int]

    def describe(self) -> list[str]:
        """Return the mean distance of each model, in a few lines."""
        return [
            f"{row['model']}, {row['over']}: distance {row['distance']:.4f}, cosine {row['cosine']:.4f}"
            for row in self._rows()
        ]

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints: the report."""
        return self.report

    def as_results(self) -> StudyResults:
        """Return the drift of the embeddings and of the labelled words as tables."""
        words = [{"word": word, **found["distance"]} for word, found in self.report["words"].items()]
        return table_results("Drift of static embeddings", {"Drift": self._rows(), "Distance of words": words})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the drift of each model over each set of tokens."""
        return data_frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"model": name, "over": SCOPES[scope], **values}
            for name, found in self.report["movement"].items()
            for scope, values in found.items()
        ]


@verb(InspectEmbeddingsOptions)
@with_output_lock
def inspect_embeddings(options: InspectEmbeddingsOptions) -> EmbeddingsResult:
    """Measure how far the static embeddings of adapted models are from their base model's.

    The static embeddings are the rows of the input embedding matrix, before positions and layer normalization. The
    TAPTER paper reports a mean distance "among all words" of 0.0576 for TAPT and 0.172 for TAPTER without naming the
    norm. Here ``distance`` is Euclidean, averaged over all tokens that are not special; ``coordinate`` is the distance
    divided by the square root of the width. With ``text``, both are also reported over the tokens that occur in it,
    unweighted (``seen``) and weighted by frequency (``read``). The output directory gets ``embeddings.json`` and
    ``embeddings.png`` and ``.svg``.

    Raises:
        UserError: If a model cannot be read, the vocabularies differ, or a word is not a single token.
    """
    before, out, text = options.before, options.out, options.text
    named = {str(name): folder for name, folder in dict(options.after).items()}  # type: ignore[arg-type]
    if not named or "before" in named:
        raise UserError("Give at least one adapted model with --after, with a name other than 'before'.")
    check_replaceable(out, REPORT, "an inspection of embeddings")
    check_writable(out)
    start = load_language_model(before)
    pieces = read_surface_forms(start.tokenizer)
    special = set(start.tokenizer.all_special_ids) | set(virtual_ids(start.tokenizer))
    matrices = {"before": static_embeddings(start)}
    ordinary = np.array([index for index in range(len(matrices["before"])) if index not in special])
    for name, path in named.items():
        loaded = load_language_model(path)
        if regular_vocabulary(loaded) != regular_vocabulary(start):
            raise UserError(f"'{path}' and '{before}' have different vocabularies; compare models that share one.")
        matrices[name] = static_embeddings(loaded)
    texts = [None if one is None else as_corpus(one, options) for one in (text, options.against)]
    counts, other_counts = (_token_counts(one, start, options.progress) for one in texts)
    distances = {name: np.linalg.norm(matrices[name] - matrices["before"], axis=1) for name in named}
    if options.words:
        chosen, rule = _token_ids(options.words, start), "given"
    else:
        whole = {index: piece.text for index, piece in enumerate(pieces) if piece.starts and piece.text.isalpha()}
        stops = read_stop_words(options.stop_words, start.tokenizer)
        candidates = [i for i, word in whole.items() if len(word) >= MIN_LETTERS and word.lower() not in stops]
        mean_distance = sum(distances.values()) / len(distances)
        chosen, rule = _select_words(
            np.array(candidates, dtype=int), counts, other_counts, mean_distance, options.count
        )
    labels = {pieces[index].text: index for index in chosen}
    shown = ordinary if counts is None else ordinary[np.argsort(-counts[ordinary], kind="stable")]
    if counts is not None:
        shown = shown[counts[shown] > 0]
    shown = np.union1d(shown[:MAX_SHOWN], np.array(chosen, dtype=int))
    planes, variance = principal_plane([matrix[shown] for matrix in matrices.values()])
    report = {
        "acclimate": __version__,
        "before": str(before),
        "after": {name: str(path) for name, path in named.items()},
        "width": matrices["before"].shape[1],
        "movement": {name: _drift_by_scope(matrices["before"], matrices[name], ordinary, counts) for name in named},
        "words": {
            word: {
                "distance": {name: float(distances[name][index]) for name in named},
                **({} if counts is None else {"count": int(counts[index])}),
            }
            for word, index in labels.items()
        },
        "rule": rule,
        "scatter": {"tokens": len(shown), "variance": list(variance)},
    }
    result = EmbeddingsResult(report, dict(zip(matrices, planes, strict=True)), shown, labels)
    if out is not None:
        with atomic_folder(out) as folder:
            write_json(folder / REPORT, report)
            _draw(result, folder)
            record_files(folder, REPORT)
    return result


def show_embeddings(result: EmbeddingsResult, options: InspectEmbeddingsOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect embeddings`` prints."""
    yield from embedding_tables(result.report)
    yield from show_place("Figure and numbers", options.out)


def _token_counts(text: Corpus | None, loaded: LanguageModel, progress: bool) -> np.ndarray | None:
    """Count each token of the regular vocabulary in a text: (tokens,), or None without a text."""
    if text is None:
        return None
    rows = tokenize(text, loaded.tokenizer, 512, cache=cache_folder() / "rows", progress=progress)
    size = max(regular_vocabulary(loaded).values()) + 1
    counts = np.zeros(size, dtype=np.int64)
    for row in rows:
        counts += np.bincount(np.asarray(row), minlength=size)[:size]
    counts[[index for index in loaded.tokenizer.all_special_ids if index < size]] = 0  # virtual tokens have larger ids
    return counts


def _token_ids(words: Sequence[str], loaded: LanguageModel) -> list[int]:
    found = []
    for word in words:
        ids = loaded.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] in loaded.tokenizer.all_special_ids:
            raise UserError(f"The word '{word}' is {len(ids)} tokens in this vocabulary; give words of one token.")
        found.append(int(ids[0]))
    return found


def _select_words(
    candidates: np.ndarray, counts: np.ndarray | None, other_counts: np.ndarray | None, distances: Any, count: int
) -> tuple[list[int], str]:
    """Select token ids to label; return them with a description of the rule."""
    if counts is None:
        value, rule = distances, "moved most"
    elif other_counts is None:
        value, rule = counts, "most frequent in the text"
    else:
        value, rule = log_odds(counts, other_counts), "highest log-odds against the other text"
        candidates = candidates[counts[candidates] >= MIN_COUNT]
    candidates = candidates if counts is None else candidates[counts[candidates] > 0]
    order = candidates[np.argsort(-value[candidates], kind="stable")]
    return [int(index) for index in order[:count]], rule


def _drift_by_scope(
    before: np.ndarray, after: np.ndarray, ordinary: np.ndarray, counts: np.ndarray | None
) -> dict[str, Any]:
    old, new = before[ordinary], after[ordinary]
    found = {"all": asdict(embedding_drift(old, new))}
    if counts is not None and counts[ordinary].any():
        seen = counts[ordinary]
        found |= {"seen": asdict(embedding_drift(old, new, seen > 0)), "read": asdict(embedding_drift(old, new, seen))}
    return found


def principal_plane(matrices: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[float, float]]:
    """Project matrices onto the first two principal components of all their rows together.

    One common plane makes the scatter plots comparable. The sign of each axis is chosen so that its largest loading
    is positive.

    Args:
        matrices: (tokens, width) each.

    Returns:
        (tokens, 2) for each matrix, and the fraction of the variance along each axis.
    """
    joined = np.concatenate([matrix.astype(float) for matrix in matrices])
    centre = joined.mean(0)
    values, vectors = np.linalg.eigh((joined - centre).T @ (joined - centre))
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(axes.shape[1])])
    total = max(float(values.sum()), 1e-30)
    variance = (float(values[-1]) / total, float(values[-2]) / total)
    return [(matrix.astype(float) - centre) @ axes for matrix in matrices], variance


def log_odds(counts: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the log-odds ratio of each token between two texts, in standard errors.

    z = (log odds in one text - log odds in the other) / sqrt(1 / (y + 0.5) + 1 / (y' + 0.5)), with 0.5 added to each
    count (Monroe, Colaresi and Quinn, 2008, with a flat prior). A rare word needs a larger difference than a frequent
    one.

    Args:
        counts: Frequency of each token in one text, (tokens,).
        other: Frequency of each token in the other text, (tokens,).
    """
    odds, errors = [], []
    for values in (counts, other):
        smoothed = np.asarray(values, dtype=float) + PRIOR
        odds.append(np.log(smoothed) - np.log(smoothed.sum() - smoothed))
        errors.append(1 / smoothed)
    return (odds[0] - odds[1]) / np.sqrt(errors[0] + errors[1])


def _draw(result: EmbeddingsResult, folder: Path) -> None:
    with figure_style():
        save_figure(_scatter_plot(result), folder, "embeddings")


def _scatter_plot(result: EmbeddingsResult) -> Figure:
    """Draw a panel per model in the common plane, with the labelled words and lines to where they were before."""
    from matplotlib.figure import Figure

    count = len(result.planes)
    figure = Figure(figsize=(4.2 * count, 4.4), layout="constrained")
    panels = figure.subplots(1, count, sharex=True, sharey=True, squeeze=False)[0]
    row_of = {int(index): row for row, index in enumerate(result.shown)}
    start = result.planes["before"]
    for axes, (name, plane) in zip(panels, result.planes.items(), strict=True):
        axes.scatter(plane[:, 0], plane[:, 1], s=3, color="0.7", linewidths=0, rasterized=True)
        for word, index in result.labels.items():
            was, now = start[row_of[index]], plane[row_of[index]]
            if name != "before":
                axes.plot([was[0], now[0]], [was[1], now[1]], color="C3", linewidth=0.8, alpha=0.6)
            axes.plot([now[0]], [now[1]], "o", color="C0", markersize=4)
            axes.annotate(word, (now[0], now[1]), xytext=(3, 3), textcoords="offset points", fontsize=8)
        drift = result.report["movement"].get(name)
        axes.set_title(f"{name}: mean distance {drift['all']['distance']:.3f}" if drift else name)
        axes.grid(alpha=0.25)
        axes.margins(x=0.16)
        axes.locator_params(axis="x", nbins=5)
    first, second = result.report["scatter"]["variance"]
    panels[0].set_xlabel(f"first principal component ({first:.0%} of the variance)")
    panels[0].set_ylabel(f"second ({second:.0%})")
    return figure


def embedding_tables(report: dict[str, Any]) -> list[Table | str]:
    """Return tables for a terminal of 80 columns: drift per model, and per labelled word.

    Args:
        report: As in ``embeddings.json``.
    """
    table = _table("Drift of static embeddings", ["model", "over", "distance", "of norm", "cosine", "per dim"])
    for name, found in report["movement"].items():
        for scope, values in found.items():
            cells = [f"{values['distance']:.4f}", f"{values['share']:.1%}", f"{values['cosine']:.4f}"]
            table.add_row(name if scope == "all" else "", SCOPES[scope], *cells, f"{values['coordinate']:.5f}")
    models = list(report["after"])
    words = _table("Distance of labelled words", ["word", *models])
    for word, found in report["words"].items():
        words.add_row(word, *(f"{found['distance'][name]:.4f}" for name in models))
    note = (
        "Distance: mean Euclidean distance over rows of the embedding matrix, special tokens excluded; per dim: "
        f"divided by the square root of the width ({report['width']}). The TAPTER paper reports 0.0576 for TAPT "
        f"and 0.172 for TAPTER without naming the norm. Labelled words: {report['rule']}."
    )
    return [table, *([words] if report["words"] else []), note]


def _table(title: str, columns: list[str]) -> Table:
    table = titled_table(title)
    for number, column in enumerate(columns):
        is_text = number == 0 or column == "over"
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return table
