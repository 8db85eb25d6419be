"""The rows of a task become units: token ids that are annotated as one.

The stage "Downstream Mask": from a fine-tuned classifier and a labelled task to annotated texts and an account.

A model and a task become a folder of annotations: what ``acclimate annotate`` does.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.corpus.stop_words import read_stop_words
from acclimate.corpus.surface_forms import read_surface_forms
from acclimate.corpus.tokenizing import encode
from acclimate.device import choose_precision, default_device
from acclimate.errors import UserError, check_not_negative
from acclimate.files import atomic_folder, check_replaceable, write_json, write_text
from acclimate.methods.selective.annotator import (
    ClassifierConfidence,
    FineTuningOptions,
    SpecialTokenFrame,
    check_task,
    compare_with_chance,
    fine_tune_annotator,
    load_annotator,
    warn_if_at_chance,
)
from acclimate.methods.selective.importance_rule import AnnotatedUnit, Unit, annotate_units
from acclimate.methods.selective.options import AnnotationOptions
from acclimate.tasks import Task, load_task
from acclimate.tasks.classification.classifier import Classifier
from acclimate.tasks.classification.data import Example
from acclimate.tasks.loading import is_classifier_of
from acclimate.training.options import check_seed

# Where there are spaces one stands behind a sentence; Chinese and Japanese have none, and marks of their own.
_SENTENCE_END = re.compile(r"""(?:[.!?…]+["'”’)\]]*\s+|[。！？｡][.!?…。！？｡]*["'”’)\]」』）】》]*\s*)+|\n\s*""")
_ABBREVIATION = re.compile(r"""(?:^|[\s("'“‘\[])(?:mrs?|ms|dr|prof|sr|jr|st|vs|e\.g|i\.e)\.\s+$""", re.IGNORECASE)


@dataclass(frozen=True)
class TaskUnits:
    """What is annotated of a task.

    Attributes:
        units: In the order of the rows; those without a token are left out.
        cut: How many were longer than the model reads. What is cut off is not annotated; the released code goes on
            to the end and gives every token there the score of the last one that was read.
        empty: How many had no token.
    """

    units: list[Unit]
    cut: int
    empty: int


def split_sentences(text: str) -> list[str]:
    """Split a text behind full stops, question and exclamation marks and at ends of lines, by rule."""
    parts, start = [], 0
    for found in _SENTENCE_END.finditer(text):
        if _ABBREVIATION.search(text[start : found.end()]):
            continue
        parts.append(text[start : found.end()])
        start = found.end()
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def make_units(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, max_length: int, options: AnnotationOptions
) -> TaskUnits:
    """Tokenise what is to be annotated.

    Args:
        examples: Rows of the task. Of a pair the first text is annotated; the second stays whole beside every buffer,
            as the aspect does in the paper. A pair is never cut into sentences, whatever ``unit`` says (nor does the
            released code): the second text, and with it the label, may belong to one of them only.
        tokenizer: Of the classifier.
        max_length: Tokens that it reads, special ones included; of a pair the longer text is cut first.
        options: Of them, ``unit``.

    Raises:
        UserError: If no row has a token.
    """
    pair = bool(examples) and examples[0].text_pair is not None
    room = max_length - SpecialTokenFrame.of(tokenizer, pair).specials
    cutting = options.unit == "sentence" and not pair
    rows = [
        (number, part, example)
        for number, example in enumerate(examples)
        for part in (split_sentences(example.text) if cutting else [example.text])
    ]
    firsts = encode(tokenizer, [part for _, part, _ in rows]) if rows else []
    seconds = encode(tokenizer, [example.text_pair or "" for _, _, example in rows]) if pair else [[]] * len(rows)
    units, cut = [], 0
    for (number, _, example), first, second in zip(rows, firsts, seconds, strict=True):
        kept, beside = _truncated_lengths(first, second, room)
        cut += (kept, beside) != (len(first), len(second))
        assert isinstance(example.label, int), "important tokens belong to one label"
        if kept:
            units.append(Unit(tuple(first[:kept]), example.label, tuple(second[:beside]) if pair else None, number))
    if not units:
        raise UserError("No row of the task has a token that could be important.")
    return TaskUnits(units, cut, len(rows) - len(units))


def _truncated_lengths(first: Sequence[int], second: Sequence[int], room: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept: the longer one is cut first."""
    one, two = len(first), len(second)
    if one + two <= room:
        return one, two
    shorter = min(one, two, room // 2)
    return (room - shorter, shorter) if one >= two else (shorter, room - shorter)


def make_stop_word_mask(tokenizer: PreTrainedTokenizerBase, source: str) -> np.ndarray | None:
    """Return for each id whether it is a stop word, as first token of a unit and behind it; None for no stop words.

    A token is one if it begins a word and spells a stop word in whatever case, as in the released code; what follows
    it does not count. The first token begins a word, although byte-level BPE marks only what stands behind a space.

    Returns:
        (2, vocabulary).
    """
    words = read_stop_words(source, tokenizer)
    if not words:
        return None
    pieces = read_surface_forms(tokenizer)
    named = np.array([piece.text.lower() in words for piece in pieces])
    return np.stack([named, named & np.array([piece.starts for piece in pieces])])


log = logging.getLogger(__name__)
ANNOTATIONS_FILE = "annotated.jsonl"
MIN_IMPORTANT_SHARE, MAX_IMPORTANT_SHARE = 0.002, 0.9
"""Shares of important tokens beyond which an annotation says next to nothing."""


@dataclass(frozen=True)
class Annotations:
    """Annotated units and what is to be said about them (plain values, for JSON)."""

    annotated: list[AnnotatedUnit]
    account: dict[str, Any]


def annotate(
    classifier: Classifier, examples: Sequence[Example], options: AnnotationOptions, *, progress: bool = False
) -> Annotations:
    """Find the important tokens of the rows of a task.

    Args:
        classifier: Fine-tuned on the task, on its device. It is read in fp32.
        examples: The rows.
        options: The rule.
        progress: Show a bar.

    Raises:
        UserError: If no row has a token, or the classifier gives something that is not a number.
    """
    begin = time.perf_counter()
    confidence = ClassifierConfidence(classifier, pair=bool(examples) and examples[0].text_pair is not None)
    made = make_units(examples, classifier.tokenizer, classifier.max_length, options)
    stop_words = make_stop_word_mask(classifier.tokenizer, options.stop_words)
    annotated = annotate_units(made.units, confidence, options, stop_words=stop_words, progress=progress)
    account = {
        "options": asdict(options),
        "rows": len(examples),
        "units": len(made.units),
        "cut": made.cut,
        "empty": made.empty,
        **summarize_annotations(annotated, options),
        "dropped": len(made.units) - len(annotated),
        "tokens_read": confidence.read,
        "minutes": (time.perf_counter() - begin) / 60,
    }
    warn_if_share_is_extreme(account)
    return Annotations(annotated, account)


def summarize_annotations(annotated: Sequence[AnnotatedUnit], options: AnnotationOptions) -> dict[str, Any]:
    """Count what was found.

    The shares of the first and second halves of the texts tell how strongly the place of a token decides: the paper's
    criterion marks what comes before the classifier is sure, or everything after.
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
        "near_threshold": sum(item.near(options) for item in annotated),
    }


def warn_if_share_is_extreme(account: dict[str, Any]) -> None:
    """Say so if the annotation found next to nothing, or nearly everything."""
    if MIN_IMPORTANT_SHARE <= account["share"] <= MAX_IMPORTANT_SHARE:
        return
    options = account["options"]
    threshold = options["delta"] if options["criterion"] == "paper" else options["epsilon"]
    log.warning(
        "The annotator found %d of %d tokens important (%.2f %%) at the threshold %s: too %s to learn from. %d of %d "
        "units are misclassified. See whether the classifier is any good, or change the threshold.",
        account["important"],
        account["tokens"],
        100 * account["share"],
        threshold,
        "few" if account["share"] < MIN_IMPORTANT_SHARE else "many",
        account["misclassified"],
        account["units"] - account["dropped"],
    )


def make_training_texts(
    annotated: Sequence[AnnotatedUnit], options: AnnotationOptions
) -> list[tuple[list[int], list[bool]]]:
    """Return what the token classifier learns from: token ids and importance of each text, without second texts."""
    texts: dict[Any, tuple[list[int], np.ndarray]] = {}
    for number, item in enumerate(annotated):
        together = item.unit.second is not None and options.same_text == "union"
        key = item.unit.tokens if together else number
        tokens, important = texts.get(key, (list(item.unit.tokens), np.zeros(len(item.important), dtype=bool)))
        texts[key] = tokens, important | item.important
    return [(tokens, important.tolist()) for tokens, important in texts.values()]


def write_annotations(
    path: Path, annotated: Sequence[AnnotatedUnit], tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
) -> None:
    """Write a line of JSON for each unit: tokens with importance and score."""
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
    """Read what :func:`write_annotations` wrote."""
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
    """Return a unit in one line, its important tokens in brackets."""
    tokens = tokenizer.convert_ids_to_tokens(list(item.unit.tokens))
    marks = zip(tokens, item.important, strict=True)
    return " ".join(f"[{token}]" if important else token for token, important in marks)


ACCOUNT_FILE = "account.json"


@dataclass(frozen=True)
class AnnotatedTask:
    """What was found.

    Attributes:
        account: Of fine-tuning (or of the classifier that was given) and of the annotation, plain values.
        samples: Some texts with their important tokens in brackets.
    """

    account: dict[str, Any]
    samples: list[str]


def annotate_task(
    model: str | Path,
    task: Task | str | Path,
    out: str | Path,
    options: AnnotationOptions,
    tuning: FineTuningOptions | None = None,
    *,
    seed: int = 42,
    samples: int = 5,
    precision: str = "auto",
    progress: bool = True,
) -> AnnotatedTask:
    """Find the important tokens of the train split of a task, and write them to a folder.

    Args:
        model: A classifier of the task, used as it is; anything else is fine-tuned first, and kept in the folder.
        task: The task or its folder.
        out: Folder to make: ``annotated.jsonl`` with a line for each text, ``account.json``.
        options: The rule.
        tuning: How to fine-tune.
        seed: Of fine-tuning and of the samples.
        samples: How many texts to return.
        precision: Of fine-tuning; the annotation is always in fp32.
        progress: Show bars.

    Raises:
        UserError: If the model or the task cannot be used, a number has no sense, or the folder holds something else.
    """
    check_seed(seed)
    check_not_negative(samples=samples)
    data = check_task(load_task(task) if isinstance(task, str | Path) else task)
    tuning = tuning or FineTuningOptions()
    check_replaceable(out, ACCOUNT_FILE, "annotations")
    chosen = choose_precision(precision, default_device())
    with atomic_folder(out) as folder:
        account: dict[str, Any] = {"model": str(model), "task": data.name, "fingerprint": data.fingerprint()}
        place: str | Path = model
        if not is_classifier_of(model, data):
            place = folder / "classifier"
            account["finetune"] = fine_tune_annotator(
                model, data, Path(place), tuning, seed=seed, precision=chosen, progress=progress
            )
        classifier = load_annotator(place, data, tuning.max_length)
        if "finetune" not in account:
            split, items = ("dev", data.dev) if data.dev else ("test", data.test)
            gold = np.array([example.label for example in items])
            right = classifier.probabilities(items, "fp32").argmax(1).numpy() == gold
            account["finetune"] = compare_with_chance(split, gold.tolist(), float(right.mean()))
            warn_if_at_chance(account["finetune"])
        found = annotate(classifier, data.train, options, progress=progress)
        account["annotate"] = found.account
        write_annotations(folder / ANNOTATIONS_FILE, found.annotated, classifier.tokenizer, data.labels)
        write_json(folder / ACCOUNT_FILE, account)
    drawn = np.random.default_rng(seed).permutation(len(found.annotated))[:samples]
    names = [data.labels[int(found.annotated[place].unit.label)] for place in drawn]
    texts = [format_annotated_unit(found.annotated[place], classifier.tokenizer) for place in drawn]
    return AnnotatedTask(account, [f"{name}: {text}" for name, text in zip(names, texts, strict=True)])
