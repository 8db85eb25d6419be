"""The stage "Downstream Mask": from a fine-tuned classifier and a labelled task to annotated texts and an account."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from acclimate.files import write_text
from acclimate.selective.annotation import Annotated, Unit
from acclimate.selective.buffers import annotate_units
from acclimate.selective.options import AnnotationOptions
from acclimate.selective.scoring import ClassifierConfidence
from acclimate.selective.units import make_units, stop_word_ids
from acclimate.tasks.classifier import Classifier
from acclimate.tasks.data import Example

log = logging.getLogger(__name__)
FILE = "annotated.jsonl"
FEWEST, MOST = 0.002, 0.9
"""Shares of important tokens beyond which an annotation says next to nothing."""


@dataclass(frozen=True)
class Annotations:
    """Annotated units and what is to be said about them (plain values, for JSON)."""

    annotated: list[Annotated]
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
    stop_words = stop_word_ids(classifier.tokenizer, options.stop_words)
    annotated = annotate_units(made.units, confidence, options, stop_words=stop_words, progress=progress)
    account = {
        "options": asdict(options),
        "rows": len(examples),
        "units": len(made.units),
        "cut": made.cut,
        "empty": made.empty,
        **shares(annotated, options),
        "dropped": len(made.units) - len(annotated),
        "tokens_read": confidence.read,
        "minutes": (time.perf_counter() - begin) / 60,
    }
    warn(account)
    return Annotations(annotated, account)


def shares(annotated: Sequence[Annotated], options: AnnotationOptions) -> dict[str, Any]:
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


def warn(account: dict[str, Any]) -> None:
    """Say so if the annotation found next to nothing, or nearly everything."""
    if FEWEST <= account["share"] <= MOST:
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
        "few" if account["share"] < FEWEST else "many",
        account["misclassified"],
        account["units"] - account["dropped"],
    )


def training_texts(annotated: Sequence[Annotated], options: AnnotationOptions) -> list[tuple[list[int], list[bool]]]:
    """Return what the token classifier learns from: token ids and importance of each text, without second texts."""
    texts: dict[Any, tuple[list[int], np.ndarray]] = {}
    for number, item in enumerate(annotated):
        together = item.unit.second is not None and options.same_text == "union"
        key = item.unit.tokens if together else number
        tokens, important = texts.get(key, (list(item.unit.tokens), np.zeros(len(item.important), dtype=bool)))
        texts[key] = tokens, important | item.important
    return [(tokens, important.tolist()) for tokens, important in texts.values()]


def write_annotations(
    path: Path, annotated: Sequence[Annotated], tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
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


def read_annotations(path: Path, labels: Sequence[str]) -> list[Annotated]:
    """Read what :func:`write_annotations` wrote."""
    annotated = []
    with path.open(encoding="utf-8") as file:
        for line in map(json.loads, file):
            second = tuple(line["pair_ids"]) if "pair_ids" in line else None
            annotated.append(
                Annotated(
                    Unit(tuple(line["ids"]), labels.index(line["label"]), second, line["row"]),
                    np.array(line["importance"], dtype=bool),
                    np.array(line["score"]),
                    line["confidence"],
                    line["correct"],
                )
            )
    return annotated


def sample(item: Annotated, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a unit in one line, its important tokens in brackets."""
    tokens = tokenizer.convert_ids_to_tokens(list(item.unit.tokens))
    marks = zip(tokens, item.important, strict=True)
    return " ".join(f"[{token}]" if important else token for token, important in marks)
