"""Compare the speed of our token annotator with that of the released algorithm, and check that the labels agree.

    acclimate annotate --model ../shared/models/minilm-mlm --task ../shared/data/mr --out annotated
    python benchmarks/annotator.py --model annotated/classifier --task ../shared/data/mr

The released code (thunlp/SelectiveMasking) pads every buffer to 128 tokens and reads 32 of them at a time, advancing
all texts by one token per pass. Both sides use the same weights and texts, in alternating turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from acclimate.base.device import default_device, enable_fast_fp32_matmul, to_device
from acclimate.base.errors import UserError
from acclimate.base.files import write_json
from acclimate.data.task_kinds import load_task
from acclimate.papers.selective.annotation import make_units
from acclimate.papers.selective.annotator import ClassifierConfidence
from acclimate.papers.selective.importance_rule import Unit, annotate_units
from acclimate.papers.selective.options import AnnotationOptions
from acclimate.study.summary import environment
from acclimate.tasks.kinds.classification.classifier import Classifier, load_classifier
from acclimate.tasks.loading import is_classifier_of
from benchmarks.speed import ROOT, say

PADDED_LENGTH, BATCH = 128, 32
"""Settings of the released code: padded length in tokens and buffers per forward pass."""


def load_work(options: argparse.Namespace) -> tuple[PreTrainedModel, Classifier, list[Unit]]:
    """Return the classifier of a task twice (plain, and as our annotator loads it), and random training texts.

    Raises:
        UserError: If the task has text pairs, which the released code reads differently, or too few texts, or the
            model is not a classifier for it.
    """
    task, device = load_task(options.task), default_device()
    if not is_classifier_of(options.model, task):  # otherwise each copy would get a different random head
        raise UserError(f"'{options.model}' is not a classifier of '{task.name}'; `acclimate annotate` makes one.")
    if task.train[0].text_pair is not None or len(task.train) < options.texts:
        raise UserError(f"The benchmark needs a task of at least {options.texts} single texts.")
    chosen = np.random.default_rng(options.seed).permutation(len(task.train))[: options.texts]
    ours = load_classifier(options.model, task.labels, PADDED_LENGTH, device)
    to_device(ours.model).eval()
    theirs = AutoModelForSequenceClassification.from_pretrained(options.model, attn_implementation="sdpa").eval()
    texts = [task.train[place] for place in chosen]
    return to_device(theirs), ours, make_units(texts, ours.tokenizer, PADDED_LENGTH, AnnotationOptions()).units


@torch.inference_mode()
def annotate_in_released_order(
    model: PreTrainedModel, classifier: Classifier, units: Sequence[Unit], delta: float
) -> list[list[bool]]:
    """Find the important tokens of each text, reading the buffers in the order of the released code."""
    tokenizer = classifier.tokenizer
    width = min(PADDED_LENGTH, classifier.max_length)
    first, last, padding = (int(token) for token in (tokenizer.cls_token_id, tokenizer.sep_token_id,
                                                     tokenizer.pad_token_id))  # fmt: skip

    def predict(buffers: Sequence[Sequence[int]]) -> torch.Tensor:
        found = []
        for start in range(0, len(buffers), BATCH):
            rows = [[first, *buffer[: width - 2], last] for buffer in buffers[start : start + BATCH]]
            ids = torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows], device=model.device)
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=model.device)
            found.append(model(input_ids=ids, attention_mask=mask).logits.softmax(-1).cpu())
        return torch.cat(found)

    whole = predict([unit.tokens for unit in units])
    confidence = [float(row[unit.label]) for row, unit in zip(whole, units, strict=True)]
    buffers = [[unit.tokens[0]] for unit in units]
    flags: list[list[bool]] = [[] for _ in units]
    active, place = list(range(len(units))), 0
    while active:
        found = predict([buffers[number] for number in active])
        remaining = []
        for row, number in zip(found, active, strict=True):
            important = confidence[number] - float(row[units[number].label]) < delta
            flags[number].append(important)
            if important:
                buffers[number].pop()
            if place + 1 < len(units[number].tokens):
                buffers[number].append(units[number].tokens[place + 1])
                remaining.append(number)
        active, place = remaining, place + 1
    return flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure both orders in turn; return seconds, ratios and the number of labels that differ."""
    enable_fast_fp32_matmul()
    model, classifier, units = load_work(options)
    rule, confidence = AnnotationOptions(delta=options.delta), ClassifierConfidence(classifier, pair=False)

    def ours(units: list[Unit]) -> list[list[bool]]:
        return [item.important.tolist() for item in annotate_units(units, confidence, rule)]

    def released(units: list[Unit]) -> list[list[bool]]:
        return annotate_in_released_order(model, classifier, units, options.delta)

    orders: dict[str, Callable[[list[Unit]], list[list[bool]]]] = {"released": released, "ours": ours}
    seconds: dict[str, list[float]] = {name: [] for name in orders}
    labels: dict[str, list[bool]] = {}
    for annotate in orders.values():
        annotate(units[:BATCH])  # warm-up
    for number in range(options.rounds):
        for name in orders if number % 2 == 0 else reversed(orders):
            begin = time.perf_counter()
            labels[name] = [flag for flags in orders[name](units) for flag in flags]
            seconds[name].append(time.perf_counter() - begin)
            say(f"round {number + 1}, {name}: {seconds[name][-1]:.2f} s")
    ratios = [theirs / ours for theirs, ours in zip(seconds["released"], seconds["ours"], strict=True)]
    tokens = len(labels["ours"])
    return {
        "date": f"{datetime.now():%Y-%m-%d}",
        "machine": {**environment(), "threads": torch.get_num_threads()},
        "model": str(options.model),
        "task": str(options.task),
        "delta": options.delta,
        "texts": len(units),
        "tokens": tokens,
        "important": sum(labels["ours"]) / tokens,
        "seconds": seconds,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "differing": sum(one != other for one, other in zip(labels["ours"], labels["released"], strict=True)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the result and write it as JSON; return 1 if a label differs, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="classifier of the task, such as OUT/classifier of `acclimate annotate`")
    add("--task", required=True, help="folder of a task of single texts; its train split is annotated")
    add("--texts", type=int, default=600, help="number of texts (default 600)")
    add("--rounds", type=int, default=3, help="number of rounds (default 3)")
    add("--delta", type=float, default=0.05, help="threshold of the annotation rule (default 0.05)")
    add("--seed", type=int, default=0, help="random seed of the choice of texts (default 0)")
    add("--threads", type=int, help="threads (default: as torch chooses)")
    add("--json", type=Path, help="output file (default benchmarks/results/DATE-annotator.json)")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    result = measure(options)
    default = ROOT / "benchmarks" / "results" / f"{datetime.now():%Y-%m-%d-%H%M}-annotator.json"
    file = write_json(options.json or default, result)
    ours, theirs = (statistics.median(result["seconds"][name]) for name in ("ours", "released"))
    print(
        f"{result['texts']} texts, {result['tokens']} tokens, {result['important']:.1%} important: {ours:.2f} s "
        f"instead of {theirs:.2f} s, {result['ratio']:.1f} x ({min(result['ratios']):.1f} to "
        f"{max(result['ratios']):.1f}); {result['differing']} labels differ"
    )
    say(f"Written to {file}.")
    return int(result["differing"] > 0)


if __name__ == "__main__":
    sys.exit(main())
