"""Annotation of the important tokens of a labelled task (stage "Downstream Mask"), and ``acclimate annotate``."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.api import (
    Classifier,
    Example,
    Next,
    UserError,
    atomic_folder,
    check_replaceable,
    check_writable,
    choose_precision,
    default_device,
    encode_texts,
    is_classifier_of,
    open_task,
    read_stop_words,
    read_surface_forms,
    record_files,
    split_sentences,
    verb,
    with_output_lock,
    write_json,
    write_text,
)
from acclimate.papers.selective.annotator import (
    ClassifierConfidence,
    SpecialTokenFrame,
    check_task,
    compare_with_chance,
    fine_tune_annotator,
    load_annotator,
    warn_if_at_chance,
)
from acclimate.papers.selective.command_options import AnnotateOptions
from acclimate.papers.selective.importance_rule import AnnotatedUnit, Unit, annotate_units
from acclimate.papers.selective.options import AnnotationOptions, annotation_options


@dataclass(frozen=True)
class TaskUnits:
    """Units of a task.

    Attributes:
        units: Units in the order of the rows, without empty ones.
        truncated: Number of units that were longer than the model's maximum length. Tokens beyond it are not annotated
            (the released code gives all of them the score of the last token that fits).
        empty: Number of units without a token.
    """

    units: list[Unit]
    truncated: int
    empty: int


def make_units(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int, options: AnnotationOptions
) -> TaskUnits:
    """Tokenize the texts of a task into units.

    Args:
        examples: Rows of the task. For pairs, the first text is annotated and the second accompanies every buffer
            unchanged, like the aspect in the paper. Pairs are never split into sentences (nor does the released code
            split them), since the second text and the label may refer to only one of the sentences.
        tokenizer: Tokenizer of the classifier.
        max_length: Maximum tokens of the classifier, special tokens included; the longer text of a pair is truncated
            first.
        options: Options of the rule, of which ``unit`` is used.

    Raises:
        UserError: If no row has a token.
    """
    pair = bool(examples) and examples[0].text_pair is not None
    room = max_length - SpecialTokenFrame.of(tokenizer, pair).specials
    split = options.unit == "sentence" and not pair
    rows = [
        (number, part, example)
        for number, example in enumerate(examples)
        for part in (split_sentences(example.text) if split else [example.text])
    ]
    firsts = encode_texts(tokenizer, [part for _, part, _ in rows]) if rows else []
    seconds = (
        encode_texts(tokenizer, [example.text_pair or "" for _, _, example in rows]) if pair else [[]] * len(rows)
    )
    units, truncated = [], 0
    for (number, _, example), first, second in zip(rows, firsts, seconds, strict=True):
        length, second_length = _truncated_lengths(first, second, room)
        truncated += (length, second_length) != (len(first), len(second))
        assert isinstance(example.label, int), "the task has a single label per text"
        if length:
            second_ids = tuple(second[:second_length]) if pair else None
            units.append(Unit(tuple(first[:length]), example.label, second_ids, number))
    if not units:
        raise UserError("No row of the task has any tokens; check its texts.")
    return TaskUnits(units, truncated, len(rows) - len(units))


def _truncated_lengths(first: Sequence[int], second: Sequence[int], room: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept; the longer text is truncated first."""
    one, two = len(first), len(second)
    if one + two <= room:
        return one, two
    shorter = min(one, two, room // 2)
    return (room - shorter, shorter) if one >= two else (shorter, room - shorter)


def make_stop_word_mask(tokenizer: PreTrainedTokenizerBase, source: str) -> np.ndarray | None:
    """Return whether each vocabulary id is a stop word, as the first token of a unit and as a later one.

    As in the released code, a token is a stop word if it begins a word and spells a stop word, regardless of case and
    of the token after it. The first token of a unit always begins a word; byte-level BPE marks only words after a
    space.

    Returns:
        (2, vocabulary), or None if ``source`` names no stop words.
    """
    words = read_stop_words(source, tokenizer)
    if not words:
        return None
    pieces = read_surface_forms(tokenizer)
    spells_stop_word = np.array([piece.text.lower() in words for piece in pieces])
    return np.stack([spells_stop_word, spells_stop_word & np.array([piece.starts for piece in pieces])])


log = logging.getLogger(__name__)
ANNOTATIONS_FILE = "annotated.jsonl"
MIN_IMPORTANT_SHARE, MAX_IMPORTANT_SHARE = 0.002, 0.9
"""A share of important tokens outside this range triggers a warning."""


@dataclass(frozen=True)
class Annotations:
    """Annotated units, and a summary of them as JSON values."""

    annotated: list[AnnotatedUnit]
    summary: dict[str, Any]


def annotate(
    classifier: Classifier, examples: Sequence[Example], options: AnnotationOptions, *, progress: bool = False
) -> Annotations:
    """Find the important tokens of the rows of a task.

    Args:
        classifier: A classifier that was fine-tuned on the task; it runs in fp32 on its device.
        examples: Rows of the task.
        options: Options of the rule.
        progress: Show a progress bar.

    Raises:
        UserError: If no row has a token, or the classifier returns NaN.
    """
    start = time.perf_counter()
    confidence = ClassifierConfidence(classifier, pair=bool(examples) and examples[0].text_pair is not None)
    made = make_units(examples, classifier.tokenizer, classifier.max_length, options)
    stop_words = make_stop_word_mask(classifier.tokenizer, options.stop_words)
    annotated = annotate_units(made.units, confidence, options, stop_words=stop_words, progress=progress)
    summary = {
        "options": asdict(options),
        "rows": len(examples),
        "units": len(made.units),
        "cut": made.truncated,
        "empty": made.empty,
        **summarize_annotations(annotated, options),
        "dropped": len(made.units) - len(annotated),
        "tokens_read": confidence.read,
        "minutes": (time.perf_counter() - start) / 60,
    }
    warn_if_share_is_extreme(summary)
    return Annotations(annotated, summary)


def summarize_annotations(annotated: Sequence[AnnotatedUnit], options: AnnotationOptions) -> dict[str, Any]:
    """Count the important tokens.

    The shares in the first and second halves of the texts show how much the position of a token matters: the paper's
    criterion tends to mark the tokens before the classifier becomes confident, or all tokens after that.
    """
    halves = [np.array_split(item.important, 2) for item in annotated]

    def share(parts: Sequence[np.ndarray]) -> float:
        return float(np.concatenate(parts).mean()) if sum(map(len, parts)) else 0.0

    return {
        "tokens": sum(len(item.important) for item in annotated),
        "important": int(sum(item.important.sum() for item in annotated)),
        "share": share([item.important for item in annotated]),
        "share_first_half": share([half[0] for half in halves]),
        "share_second_half": share([half[1] for half in halves]),
        "units_without": sum(not item.important.any() for item in annotated),
        "misclassified": sum(not item.correct for item in annotated),
        "near_threshold": sum(item.near_threshold(options) for item in annotated),
    }


def warn_if_share_is_extreme(summary: dict[str, Any]) -> None:
    """Log a warning if hardly any or nearly all tokens are important."""
    if MIN_IMPORTANT_SHARE <= summary["share"] <= MAX_IMPORTANT_SHARE:
        return
    options = summary["options"]
    threshold = options["delta"] if options["criterion"] == "paper" else options["epsilon"]
    log.warning(
        "The annotator found %d of %d tokens important (%.2f %%) at threshold %s: too %s to learn from. %d of %d "
        "units are misclassified. Check the accuracy of the classifier, or change the threshold.",
        summary["important"],
        summary["tokens"],
        100 * summary["share"],
        threshold,
        "few" if summary["share"] < MIN_IMPORTANT_SHARE else "many",
        summary["misclassified"],
        summary["units"] - summary["dropped"],
    )


def make_training_texts(
    annotated: Sequence[AnnotatedUnit], options: AnnotationOptions
) -> list[tuple[list[int], list[bool]]]:
    """Return the training data of the token classifier: token ids and importance of each text, no second texts."""
    texts: dict[Any, tuple[list[int], np.ndarray]] = {}
    for number, item in enumerate(annotated):
        merge = item.unit.second is not None and options.same_text == "union"
        key = item.unit.tokens if merge else number
        tokens, important = texts.get(key, (list(item.unit.tokens), np.zeros(len(item.important), dtype=bool)))
        texts[key] = tokens, important | item.important
    return [(tokens, important.tolist()) for tokens, important in texts.values()]


def write_annotations(
    path: Path, annotated: Sequence[AnnotatedUnit], tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> None:
    """Write one JSON line per unit: its tokens with their importance and score."""
    lines = []
    for item in annotated:
        line: dict[str, Any] = {"row": item.unit.row, "label": labels[item.unit.label]}
        if item.unit.second is not None:
            line["text_pair"] = tokenizer.decode(list(item.unit.second))
            line["pair_ids"] = item.unit.second
        line |= {
            "confidence": round(item.full, 6),
            "correct": item.correct,
            "tokens": tokenizer.convert_ids_to_tokens(list(item.unit.tokens)),
            "importance": item.important.astype(int).tolist(),
            "score": [round(float(score), 6) for score in item.scores],
            "ids": item.unit.tokens,
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_text(path, "".join(lines))


def read_annotations(path: Path, labels: Sequence[str]) -> list[AnnotatedUnit]:
    """Read a file written by :func:`write_annotations`."""
    annotated = []
    with path.open(encoding="utf-8") as file:
        for line in map(json.loads, file):
            second = tuple(line["pair_ids"]) if "pair_ids" in line else None
            annotated.append(
                AnnotatedUnit(
                    Unit(tuple(line["ids"]), labels.index(line["label"]), second, line["row"]),
                    np.array(line["importance"], dtype=bool),
                    np.array(line["score"]),
                    line["confidence"],
                    line["correct"],
                )
            )
    return annotated


def format_annotated_unit(item: AnnotatedUnit, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the tokens of a unit as one line, with the important ones in brackets."""
    tokens = tokenizer.convert_ids_to_tokens(list(item.unit.tokens))
    marks = zip(tokens, item.important, strict=True)
    return " ".join(f"[{token}]" if important else token for token, important in marks)


SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class AnnotatedTask:
    """Result of :func:`annotate_task`.

    Attributes:
        summary: Summary of the fine-tuning (or of the given classifier) and of the annotation, as JSON values.
        samples: Some texts with their important tokens in brackets.
    """

    summary: dict[str, Any]
    samples: list[str]


@verb(AnnotateOptions)
@with_output_lock
def annotate_task(options: AnnotateOptions) -> AnnotatedTask:
    """Find the important tokens of the train split of a task, and write them to a folder.

    A model that is a classifier of the task is used unchanged; any other one is fine-tuned first, and the classifier
    is saved in ``out``, next to ``annotated.jsonl`` with one line per text, and ``summary.json``. The annotation
    always runs in fp32.

    Raises:
        UserError: If an option is wrong, the model or the task cannot be used, or ``out`` holds other files.
    """
    model, task, out = options.model, options.task, options.out
    rule = annotation_options(options.preset, **(options.settings or {}))
    data = check_task(open_task(task, options))
    check_replaceable(out, SUMMARY_FILE, "annotations")
    check_writable(out)
    chosen = choose_precision(options.precision, default_device())
    with atomic_folder(out) as folder:
        summary: dict[str, Any] = {"model": str(model), "task": data.name, "fingerprint": data.fingerprint()}
        classifier_path: str | Path = model
        if not is_classifier_of(model, data):
            classifier_path = folder / "classifier"
            summary["finetune"] = fine_tune_annotator(
                model,
                data,
                Path(classifier_path),
                options,
                seed=options.seed,
                precision=chosen,
                progress=options.progress,
            )
        classifier = load_annotator(classifier_path, data, options.max_length)
        if "finetune" not in summary:
            split, items = ("dev", data.dev) if data.dev else ("test", data.test)
            gold = np.array([example.label for example in items])
            right = classifier.probabilities(items, "fp32").argmax(1).numpy() == gold
            summary["finetune"] = compare_with_chance(split, gold.tolist(), float(right.mean()))
            warn_if_at_chance(summary["finetune"])
        found = annotate(classifier, data.train, rule, progress=options.progress)
        summary["annotate"] = found.summary
        write_annotations(folder / ANNOTATIONS_FILE, found.annotated, classifier.tokenizer, data.labels)
        write_json(folder / SUMMARY_FILE, summary)
        record_files(folder, SUMMARY_FILE)
    order = np.random.default_rng(options.seed).permutation(len(found.annotated))
    drawn = [found.annotated[index] for index in order[: options.samples]]
    lines = [f"{data.labels[item.unit.label]}: {format_annotated_unit(item, classifier.tokenizer)}" for item in drawn]
    return AnnotatedTask(summary, lines)


def show_annotation(result: AnnotatedTask, options: AnnotateOptions) -> Iterator[Any]:
    """Yield what ``acclimate annotate`` prints."""
    found = result.summary["annotate"]
    yield (
        f"{found['important']:,} of {found['tokens']:,} tokens are important ({found['share']:.1%}); "
        f"{found['share_first_half']:.1%} in the first halves of the texts, "
        f"{found['share_second_half']:.1%} in the second halves."
    )
    yield (
        f"{found['misclassified']:,} of {found['units']:,} texts are misclassified, {found['units_without']:,} have "
        f"no important token; {found['near_threshold']:,} tokens lie within 0.001 of the threshold."
    )
    yield from (f"  {line}" for line in result.samples)
    yield f"{options.out}: annotated.jsonl, summary.json"
    words = ["--model", options.model, "--task", options.task, "--corpus", "TEXT", "--method", "selective"]
    yield Next(["adapt", *words, "--out", "adapted"], "to mask such tokens")
