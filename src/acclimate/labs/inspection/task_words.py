"""`acclimate inspect task-words`: does an adaptation teach a model the words that the labels of a task depend on?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import regex

from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.progress import Progress
from acclimate.base.ranking import best_first
from acclimate.base.verbs import Next, show_report
from acclimate.base.version import __version__
from acclimate.data.reading import reading_words, text_words
from acclimate.data.stop_words import read_stop_words
from acclimate.data.task_kinds import find_task_kind, open_task
from acclimate.data.tokenizing import read_as_text
from acclimate.evaluation.lm_loss import TargetRow, open_language_model, summed_losses
from acclimate.evaluation.scoring import label_indicators
from acclimate.evaluation.significance import paired_difference
from acclimate.labs.inspection.effect_options import InspectTaskWordsOptions
from acclimate.models.families import longest_text
from acclimate.models.probe import attach
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.results.study import Measurements
from acclimate.tasks.interfaces import evaluation_texts

WORD = regex.compile(r"[\p{L}\p{N}_]\p{M}*[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*")
"""Two or more letters, digits or underscores; a combining mark belongs to the letter before it."""
FEWEST = 5
"""Minimum pairs of words; with fewer the interval says little."""
VERDICTS = {
    1: "the adaptation taught them less than other words of the same frequency",
    -1: "the adaptation taught them more than other words of the same frequency",
    0: "no difference to other words of the same frequency is shown",
}


@dataclass
class WordPair:
    """A word that matters to a task, and another word that is about as frequent.

    Attributes:
        words: The two words, in lower case.
        weights: The largest absolute weight of each in linear classifiers of the labels.
        documents: Number of train texts that contain each.
        places: Occurrences of each on which its loss is measured: number of the text, start and end.
        before: Mean loss of each under the base model, in nats per occurrence.
        after: The same under the adapted model.
    """

    words: tuple[str, str]
    weights: tuple[float, float]
    documents: tuple[int, int]
    places: list[list[tuple[int, int, int]]] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)


@verb(InspectTaskWordsOptions)
def inspect_task_words(options: InspectTaskWordsOptions) -> Measurements:
    """Measure the loss on words that matter to a task and on words of equal frequency, before and after adaptation.

    Uppaal et al. (2024) explain why continued pre-training helps a task: predicting masked words that are informative
    for the task trains the task implicitly. Here the words are those with the largest weights in linear classifiers
    that are fitted to the words of the train texts; no label of dev or test is read. Each is paired with a word of the
    half with the smaller weights that is about as frequent in the train texts. Losses are measured on the dev and test
    texts: the whole word is masked and predicted, one occurrence at a time; a causal model predicts it from the words
    before it.

    Returns:
        ``rows``: for ``task words``, ``other words`` and their difference, the mean loss ``before`` and ``after`` in
        nats per word, and ``change`` with its 95 % interval over words; ``pairs``: the words with their weights,
        frequencies and losses.

    Raises:
        UserError: If the task is no classification, a model cannot be read, or too few words occur in dev and test.
    """
    check_report_file(options.out)
    task = open_task(options.task, options)
    texts, indicators = _labelled_texts(task)
    pairs = choose_words(texts, indicators, options.words, options.fewest, read_stop_words(options.stop_words))
    measured = [text for some in evaluation_texts(task).values() for text in some]
    for name, path in (("before", options.before), ("after", options.after)):
        loaded = open_language_model(path)
        if name == "before":
            vocabulary, kind = loaded.tokenizer.get_vocab(), loaded.kind
            pairs = _find_places(pairs, loaded, measured, options)
        elif kind.name != loaded.kind.name or (kind.uses_masking and loaded.tokenizer.get_vocab() != vocabulary):
            raise UserError(
                f"'{options.before}' and '{options.after}' predict different tokens, so their losses cannot be "
                "compared; give a model and its adapted version, with the same tokenizer."
            )
        with Progress("Measuring words", None, unit="rows", enabled=options.progress):
            _measure(pairs, loaded, measured, options.max_length, name)
    return _report(pairs, options)


def show_task_words(report: Any, options: InspectTaskWordsOptions) -> Iterator[Any]:
    """Yield what ``acclimate inspect task-words`` prints."""
    yield from show_report(report, options)
    task = [*text_words("--task", options.task, "TASK"), *reading_words(options)]
    yield Next(["finetune", "--model", options.after, *task, "--out", "finetuned"], "to score the task")


def _labelled_texts(task: Any) -> tuple[list[str], np.ndarray]:
    """Return the train texts of a classification, and the indicators of their labels (texts, labels)."""
    if task.scoring().name not in ("single_label", "multi_label"):
        raise UserError(
            f"Words that matter to '{task.name}' need labels of texts; give a classification, with one label per text "
            "or several."
        )
    kind = find_task_kind(task)
    texts = [" ".join(text for text in kind.texts(example) if text) for example in task.train]
    labels = [example.label if isinstance(example.label, tuple) else (example.label,) for example in task.train]
    return texts, label_indicators(labels, len(task.labels))


def choose_words(
    texts: Sequence[str], indicators: np.ndarray, count: int, fewest: int, stop_words: Collection[str]
) -> list[WordPair]:
    """Choose the words that matter to the labels of texts, and pair each with a word of about the same frequency.

    A word matters by its largest absolute weight in logistic regressions, one per label, on the words of each text.
    Partners are words with a weight below the median; the pairs have the smallest sum of differences of the logarithm
    of the frequency, in number of texts.

    Args:
        texts: Train texts.
        indicators: Their labels (texts, labels).
        count: Number of words to choose.
        fewest: Minimum number of texts that contain a word.
        stop_words: Words that are neither chosen nor partners, in lower case.

    Returns:
        The pairs, those with the largest weights first.

    Raises:
        UserError: If all texts have the same labels, or there are too few words.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    counter = CountVectorizer(
        binary=True, min_df=min(fewest, max(1, len(texts))), stop_words=sorted(stop_words) or None,
        tokenizer=lambda text: WORD.findall(text), token_pattern=None,
    )  # fmt: skip
    try:
        table = counter.fit_transform(texts)
    except ValueError as error:
        raise UserError(
            f"No word occurs in {fewest} train texts; give a task with more train texts, or lower --fewest."
        ) from error
    columns = [column for column in indicators.T if 0 < column.sum() < len(column)]
    if not columns:
        raise UserError("All train texts of the task have the same labels, so that no word matters to them.")
    fitted = [LogisticRegression(max_iter=1_000).fit(table, column).coef_[0] for column in columns]
    weights = np.abs(fitted).max(0)
    documents = np.asarray(table.sum(0)).ravel()
    words = counter.get_feature_names_out()
    order = best_first(weights, np.arange(len(words)))
    half = len(order) // 2
    chosen, partners = order[: min(count, half)], order[half:]
    if len(chosen) < FEWEST:
        raise UserError(
            f"Only {len(order)} words occur in {fewest} train texts, which is too few to compare; give a task with "
            "more train texts, or lower --fewest."
        )
    costs = np.abs(np.log(documents[chosen])[:, None] - np.log(documents[partners])[None])
    ours, theirs = linear_sum_assignment(costs)
    return [
        WordPair(
            (str(words[one]), str(words[other])),
            (float(weights[one]), float(weights[other])),
            (int(documents[one]), int(documents[other])),
        )
        for one, other in zip(chosen[ours], partners[theirs], strict=True)
    ]


def _find_places(
    pairs: Sequence[WordPair], loaded: Any, texts: Sequence[str], options: InspectTaskWordsOptions
) -> list[WordPair]:
    """Return the pairs of which both words occur in the texts, with a sample of their occurrences."""
    if not loaded.tokenizer.is_fast:
        raise UserError(
            f"The tokenizer of '{options.before}' is a slow one, which does not say where a token is in a text; "
            "convert it to a fast one."
        )
    available = longest_text(loaded.model)
    if available is not None and options.max_length > available:
        raise UserError(f"max_length={options.max_length} is more than the {available} positions of this model.")
    wanted = {word for pair in pairs for word in pair.words}
    found: dict[str, list[tuple[int, int, int]]] = {word: [] for word in wanted}
    reader = read_as_text(loaded.tokenizer)
    for number, text in enumerate(texts):
        offsets = reader(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        read = max((end for _, end in offsets[: options.max_length - 1]), default=0)
        for match in WORD.finditer(text):
            if match.end() <= read and (word := match[0].lower()) in found:
                found[word].append((number, *match.span()))
    rng = np.random.default_rng(options.seed)
    for word in sorted(found):
        if len(found[word]) > options.occurrences:
            kept = rng.choice(len(found[word]), options.occurrences, replace=False)
            found[word] = [found[word][place] for place in sorted(kept)]
    complete = [pair for pair in pairs if all(found[word] for word in pair.words)]
    if len(complete) < FEWEST:
        raise UserError(
            f"Only {len(complete)} of {len(pairs)} pairs of words occur in dev and test texts, which is too few to "
            "compare; give a task with more of them, or choose more --words."
        )
    for pair in complete:
        pair.places = [found[word] for word in pair.words]
    return complete


def _measure(pairs: Sequence[WordPair], loaded: Any, texts: Sequence[str], max_length: int, side: str) -> None:
    """Set the mean loss of both words of each pair under a model."""
    attach(loaded.model)
    reader = read_as_text(loaded.tokenizer)
    rows = [
        word_row(loaded, reader, texts[number], (start, end), max_length)
        for pair in pairs
        for places in pair.places
        for number, start, end in places
    ]
    losses = iter(summed_losses(loaded.model, loaded.tokenizer, rows))
    for pair in pairs:
        means = [float(np.mean([next(losses)[0] for _ in places])) for places in pair.places]
        setattr(pair, side, means)


def word_row(loaded: Any, reader: Any, text: str, span: tuple[int, int], max_length: int) -> TargetRow:
    """Return the row on which the loss of a word in a text is measured.

    Args:
        loaded: The model and its tokenizer (:class:`acclimate.models.loading.LanguageModel`).
        reader: The tokenizer, reading special tokens in a text as text.
        text: The text.
        span: Start and end of the word in the text.
        max_length: Maximum tokens of the row. A masked model reads the start of the text, a causal one what comes
            before the word.
    """
    encoded = reader(text, return_offsets_mapping=True, verbose=False)
    ids = np.array(encoded["input_ids"], dtype=np.int64)
    offsets = np.array(encoded["offset_mapping"])
    inside = (offsets[:, 0] < span[1]) & (offsets[:, 1] > span[0])
    if loaded.kind.targets is None:
        if len(ids) > max_length:  # the last token stays, since it may be a special one
            kept = [*range(max_length - 1), len(ids) - 1]
            ids, inside = ids[kept], inside[kept]
        masked, labels = ids.copy(), np.full_like(ids, IGNORE_INDEX)
        masked[inside], labels[inside] = loaded.tokenizer.mask_token_id, ids[inside]
        return TargetRow(masked, labels)
    tokenizer = loaded.tokenizer
    begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if inside[0] and begin is not None:  # the first token is predicted as well
        ids, inside = np.array([begin, *ids]), np.array([False, *inside])
    last = int(np.flatnonzero(inside)[-1]) + 1
    ids, inside = ids[max(0, last - max_length) : last], inside[max(0, last - max_length) : last]
    labels = np.full_like(ids, IGNORE_INDEX)
    labels[:-1][inside[1:]] = ids[1:][inside[1:]]
    return TargetRow(ids, labels)


def _report(pairs: Sequence[WordPair], options: InspectTaskWordsOptions) -> Measurements:
    before, after = (np.array([getattr(pair, side) for pair in pairs]) for side in ("before", "after"))
    changes = after - before  # (pairs, 2)
    rows = list(_rows(before, after))
    difference = paired_difference(changes[:, 0], changes[:, 1])
    rows.append(
        {"words": "difference", "count": len(pairs), "before": None, "after": None, "change": difference.difference}
        | {"low": difference.low, "high": difference.high}
    )
    report: dict[str, Any] = {"acclimate": __version__, "unit": "nats per word", "rows": rows}
    report["verdict"] = VERDICTS[difference.sign]
    report["pairs"] = [
        {
            name: {"word": pair.words[at], "weight": pair.weights[at], "documents": pair.documents[at],
                   "occurrences": len(pair.places[at]), "before": pair.before[at], "after": pair.after[at]}
            for at, name in enumerate(("task", "other"))
        }
        for pair in pairs
    ]  # fmt: skip
    if options.out is not None:
        write_json(options.out, report)
    lines = [f"task words: {', '.join(pair.words[0] for pair in pairs[:8])}, ..."]
    for row in rows:
        losses = "" if row["before"] is None else f"{row['before']:.3f} to {row['after']:.3f} nats per word, "
        lines.append(f"{row['words']}: {losses}{row['change']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]")
    if len(pairs) < options.words:
        lines.append(f"{len(pairs)} pairs of words are compared; the others do not occur in dev and test texts")
    lines.append(report["verdict"])
    return Measurements(report, lines, "Loss on words that matter to the task", rows)


def _rows(before: np.ndarray, after: np.ndarray) -> Iterator[Mapping[str, Any]]:
    for at, name in enumerate(("task words", "other words")):
        change = paired_difference(after[:, at], before[:, at]).as_dict()
        means = {"before": float(before[:, at].mean()), "after": float(after[:, at].mean())}
        row = {"words": name, "count": len(before), **means, "change": change["difference"]}
        yield row | {end: change[end] for end in ("low", "high")}
