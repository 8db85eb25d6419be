"""Measure the annotator against the order of the released code, in turns; see that no label differs.

acclimate annotate --model ../shared/models/minilm-mlm --task ../shared/data/mr --out annotated
python benchmarks/annotator.py --model annotated/classifier --task ../shared/data/mr  # 600 real texts, three rounds
python benchmarks/annotator.py          # as many made-up ones: some minutes on two cores
python benchmarks/annotator.py --quick  # 100 texts, two rounds: under a minute

The released order (thunlp/SelectiveMasking) reads every buffer padded to 128 tokens, in batches of 32, all texts one
token further at a time. Both sides have the same weights and the same texts: those of a task drawn by the seed, with
their labels, and its classifier; or, with no file at all, texts as long as the sentences of MR (25 tokens in the
mean), weights that are random but steep, and the labels that these give the whole texts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel

from acclimate.device import default_device, enable_fast_fp32_matmul, to_device
from acclimate.errors import UserError
from acclimate.methods.selective import AnnotationOptions, Unit, annotate_units
from acclimate.methods.selective.annotation import make_units as units_of
from acclimate.methods.selective.annotator import ClassifierConfidence
from acclimate.models import use_kernels
from acclimate.models.attention import use_attention
from acclimate.tasks import load_task
from acclimate.tasks.classification.classifier import Classifier, load_classifier
from acclimate.tasks.loading import is_classifier_of
from benchmarks.data import make_tokenizer
from benchmarks.measure import keep, machine, say

SHAPES = {
    "small": (2, 128, 2, 512),
    "minilm": (6, 384, 12, 1_536),
    "base": (12, 768, 12, 3_072),
    "tiny": (2, 32, 4, 64),
}
"""Layers, width, heads and inner width; the vocabulary is that of BERT."""
PADDED, AT_ONCE = 128, 32
"""How the released code reads."""


def make_classifier(shape: str, seed: int, attention: str | None) -> PreTrainedModel:
    """Return a classifier of two classes whose answers differ from text to text."""
    layers, width, heads, inner = SHAPES[shape]
    config = BertConfig(  # type: ignore[call-arg]
        vocab_size=30_522,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        num_labels=2,
        attn_implementation=attention,
    )
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embeddings" not in name:
                weight.copy_(torch.randn_like(weight) * (1.2 if name.startswith("classifier") else 1) / width**0.5)
    return model.to(default_device())


def make_units(count: int, seed: int) -> list[Unit]:
    """Return texts of random tokens; their labels are still missing."""
    chance = np.random.default_rng(seed)
    lengths = np.clip(np.rint(chance.lognormal(np.log(22), 0.5, count)), 3, 100).astype(int)
    return [
        Unit(tuple(chance.integers(1_000, 30_000, length).tolist()), 0, None, n) for n, length in enumerate(lengths)
    ]


@dataclass(frozen=True)
class Work:
    """What both sides do: the same weights twice, and what is annotated."""

    theirs: PreTrainedModel
    ours: Classifier
    units: list[Unit]
    name: str


def made_up(options: argparse.Namespace) -> Work:
    """Return work that needs no file."""
    theirs = make_classifier(options.shape, options.seed, "sdpa")
    ours = make_classifier(options.shape, options.seed, None)
    kernels = use_kernels(ours, default_device())
    if kernels.eager_attention:
        use_attention(ours, kernels)
    classifier = Classifier(ours, make_tokenizer("minilm"), 512)
    units = make_units(options.texts, options.seed)
    guessed = ClassifierConfidence(classifier, pair=False)([(unit, unit.tokens) for unit in units]).argmax(1)
    units = [Unit(unit.tokens, int(label), None, unit.row) for unit, label in zip(units, guessed, strict=True)]
    return Work(theirs, classifier, units, f"{options.shape}, random weights and texts")


def of_task(options: argparse.Namespace) -> Work:
    """Return the texts of a task, with the classifier that was trained on it.

    Raises:
        UserError: If it is a task of pairs, which the released code does in another way, or has too few texts, or the
            model is no classifier of it.
    """
    task, device = load_task(options.task), default_device()
    if not is_classifier_of(options.model, task):  # two fresh heads would not be the same
        raise UserError(f"'{options.model}' is no classifier of '{task.name}'; `acclimate annotate` makes one.")
    if task.train[0].text_pair is not None or len(task.train) < options.texts:
        raise UserError(f"Give a task of {options.texts} single texts or more.")
    drawn = np.random.default_rng(options.seed).permutation(len(task.train))[: options.texts]
    ours = load_classifier(options.model, task.labels, PADDED, device)
    to_device(ours.model).eval()
    theirs = AutoModelForSequenceClassification.from_pretrained(options.model, attn_implementation="sdpa").eval()
    made = units_of([task.train[place] for place in drawn], ours.tokenizer, PADDED, AnnotationOptions())
    return Work(to_device(theirs), ours, made.units, f"{options.model} on {task.name}")


@torch.inference_mode()
def released_order(work: Work, delta: float) -> list[list[bool]]:
    """Find important tokens in the order of the released code."""
    model, units, names = work.theirs, work.units, work.ours.tokenizer
    width = min(PADDED, work.ours.max_length)  # of a model that reads less
    first, last, empty = (int(name) for name in (names.cls_token_id, names.sep_token_id, names.pad_token_id))

    def read(buffers: Sequence[Sequence[int]]) -> torch.Tensor:
        found = []
        for start in range(0, len(buffers), AT_ONCE):
            rows = [[first, *buffer[: width - 2], last] for buffer in buffers[start : start + AT_ONCE]]
            ids = torch.tensor([[*row, *[empty] * (width - len(row))] for row in rows], device=model.device)
            seen = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=model.device)
            found.append(model(input_ids=ids, attention_mask=seen).logits.softmax(-1).cpu())
        return torch.cat(found)

    whole = read([unit.tokens for unit in units])
    full = [float(row[unit.label]) for row, unit in zip(whole, units, strict=True)]
    buffers = [[unit.tokens[0]] for unit in units]
    flags: list[list[bool]] = [[] for _ in units]
    alive, place = list(range(len(units))), 0
    while alive:
        found = read([buffers[number] for number in alive])
        still = []
        for row, number in zip(found, alive, strict=True):
            important = full[number] - float(row[units[number].label]) < delta
            flags[number].append(important)
            if important:
                buffers[number].pop()
            if place + 1 < len(units[number].tokens):
                buffers[number].append(units[number].tokens[place + 1])
                still.append(number)
        alive, place = still, place + 1
    return flags


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Take turns, and return seconds, ratios and what differs."""
    enable_fast_fp32_matmul()
    work = of_task(options) if options.task else made_up(options)
    rule = AnnotationOptions(delta=options.delta)
    confidence = ClassifierConfidence(work.ours, pair=False)

    def our_order() -> list[list[bool]]:
        return [item.important.tolist() for item in annotate_units(work.units, confidence, rule)]

    turns: dict[str, Callable[[], list[list[bool]]]] = {
        "released": lambda: released_order(work, options.delta),
        "ours": our_order,
    }
    short = work.units[:AT_ONCE]
    for read in (
        lambda: released_order(replace(work, units=short), 0.05),
        lambda: annotate_units(short, confidence, rule),
    ):
        read()  # the first forwards of a process cost more
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    labels: dict[str, list[bool]] = {}
    for number in range(options.rounds):
        for name in turns if number % 2 == 0 else reversed(turns):
            begin = time.perf_counter()
            labels[name] = [flag for flags in turns[name]() for flag in flags]
            seconds[name].append(time.perf_counter() - begin)
            say(f"round {number + 1}, {name}: {seconds[name][-1]:.2f} s")
    ratios = [them / us for them, us in zip(seconds["released"], seconds["ours"], strict=True)]
    tokens = len(labels["ours"])
    return {
        "date": f"{datetime.now():%Y-%m-%d}",
        "machine": machine(torch.get_num_threads()),
        "work": work.name,
        "delta": options.delta,
        "texts": len(work.units),
        "tokens": tokens,
        "share": sum(labels["ours"]) / tokens,
        "seconds": seconds,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "differing": sum(one != other for one, other in zip(labels["ours"], labels["released"], strict=True)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; fail if a label differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="100 texts, two rounds")
    add("--model", help="classifier of the task, such as the one that `acclimate annotate` leaves")
    add("--task", help="folder of a task of single texts; its train split is annotated")
    add("--shape", choices=sorted(SHAPES), default="small", help="of the random weights, without a task")
    add("--texts", type=int, help="how many (default 600, quick 100)")
    add("--rounds", type=int, help="default 3, quick 2")
    add("--delta", type=float, default=0.05)
    add("--seed", type=int, default=0)
    add("--threads", type=int, help="default: what torch chooses")
    add("--json", type=Path, help="where to write (default benchmarks/results/<date>-annotator.json)")
    options = parser.parse_args(arguments)
    if bool(options.model) != bool(options.task):
        parser.error("give --model and --task, or neither")
    options.texts = options.texts or (100 if options.quick else 600)
    options.rounds = options.rounds or (2 if options.quick else 3)
    if options.threads:
        torch.set_num_threads(options.threads)
    result = measure(options)
    file = keep(result, options.json, "annotator")
    us, them = (statistics.median(result["seconds"][name]) for name in ("ours", "released"))
    print(
        f"{result['work']}, {result['texts']} texts, {result['tokens']} tokens, {result['share']:.1%} important: "
        f"{us:.2f} s against {them:.2f} s, {result['ratio']:.1f} x "
        f"({min(result['ratios']):.1f} to {max(result['ratios']):.1f}); {result['differing']} labels differ"
    )
    say(f"Written to {file}.")
    return int(result["differing"] > 0)


if __name__ == "__main__":
    sys.exit(main())
