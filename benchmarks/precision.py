"""Fine-tune one model with the same seeds in fp32 and in bf16, and compare the scores on the dev split.

    python benchmarks/precision.py --task asc_restaurant --few-shot 130 --epochs 6 --rate 2e-4 --seeds 10

Three arithmetics: fp32; bf16 as ``acclimate`` trains on a CPU, with bf16 copies of the weights (``lowered``); bf16
with autocast alone, which leaves in fp32 what lies between two products (``autocast``). Where no hardware multiplies
bf16 the products are emulated: their inputs are rounded to bf16, the sums are fp32, the result is rounded, which is
what the hardware does but for the order of the sums. Needs the model and the tasks of ``../shared``. What is done is
kept in the JSON after each training; the same command with the same ``--json`` goes on from there.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from acclimate.device import default_device, has_fast_bf16
from acclimate.errors import UserError
from acclimate.evaluation.statistics import paired_t_test
from acclimate.files import read_json, write_json
from acclimate.kernels import Kernels, choose
from acclimate.models import families
from acclimate.tasks import FinetuneResult, finetune
from acclimate.tasks.kinds import load_task
from acclimate.tasks.splits import limit_splits, replace_test_with_dev
from benchmarks.data import SHARED
from benchmarks.measure import keep, machine, say

ARITHMETICS = ("fp32", "lowered", "autocast")
METRICS = ("macro_f1", "micro_f1", "cross-entropy")
_ATEN = torch.ops.aten
PRODUCTS = {_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, _ATEN.baddbmm.default}


class RoundedProducts(TorchDispatchMode):
    """Computes products of bf16 in fp32 and rounds the result: as hardware does, and faster than without it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute one operation."""
        if func not in PRODUCTS or args[0].dtype != torch.bfloat16:
            return func(*args, **(kwargs or {}))
        return func(*(value.float() for value in args), **(kwargs or {})).bfloat16()


@contextmanager
def arithmetic(name: str) -> Iterator[str]:
    """Train in one of :data:`ARITHMETICS`; gives the precision to ask for."""
    if name == "fp32":
        yield "fp32"
        return

    def chosen(*args: Any, **options: Any) -> Kernels:
        return replace(choose(*args, **options), bf16_weights=name == "lowered")

    with patch.object(families, "choose", chosen):
        if has_fast_bf16(default_device().type):
            yield "bf16"
        else:
            with RoundedProducts():
                yield "bf16"


def measured(result: FinetuneResult) -> dict[str, float]:
    """Return what is compared, of the items that were judged; cross-entropy moves where no answer changes."""
    likely = [row[gold] for row, gold in zip(result.probabilities, result.gold, strict=True)]
    entropy = float(-np.log(np.maximum(likely, 1e-12)).mean())
    found = {name: float(result.metrics[name]) for name in METRICS if name in result.metrics}
    return {**found, "cross-entropy": entropy}


def compared(runs: dict[str, dict[str, dict[str, float]]], name: str, metric: str) -> str:
    """Say in a row of a table how an arithmetic differs from fp32 in a metric, paired by seed."""
    seeds = [seed for seed in runs[name] if seed in runs["fp32"]]
    ours, base = (np.array([runs[which][seed][metric] for seed in seeds]) for which in (name, "fp32"))
    row = f"| {metric} | {name} | {len(seeds)} |"
    if len(seeds) < 2:
        return f"{row} | | | |"
    row += f" {ours.mean():.3f} ± {ours.std(ddof=1):.3f} |"
    if name == "fp32":
        return f"{row} | | |"
    away = ours - base
    half = float(stats.t.ppf(0.975, len(away) - 1)) * away.std(ddof=1) / len(away) ** 0.5
    p = paired_t_test(ours.tolist(), base.tolist())
    return f"{row} {away.mean():+.3f} | {away.mean() - half:+.3f} to {away.mean() + half:+.3f} | {p:.3f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write after each training, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="minilm-mlm", help="a folder of ../shared/models, or any")
    add("--task", default="asc_restaurant", help="a folder of ../shared/data, or any; it needs a dev split")
    add("--seeds", type=int, default=10)
    add("--epochs", type=int, default=5)
    add("--rate", type=float, default=2e-4, help="learning rate")
    add("--few-shot", type=int)
    add("--limit", type=int, help="rows of train that are kept")
    add("--arithmetics", nargs="+", default=ARITHMETICS, choices=ARITHMETICS)
    add("--json", type=Path, help="where to write (default benchmarks/results/<date>-precision-<task>.json)")
    options = parser.parse_args(arguments)
    model, task = SHARED / "models" / options.model, SHARED / "data" / options.task
    try:
        data = replace_test_with_dev(load_task(task if task.is_dir() else options.task))
    except UserError as error:
        print(error)
        return 0
    if options.limit:
        data = limit_splits(data, train=options.limit)
    where = {name: value for name, value in vars(options).items() if name not in ("json", "seeds", "arithmetics")}
    result: dict[str, Any] = {"settings": where, "runs": {name: {} for name in ARITHMETICS}}
    if options.json and options.json.is_file():
        result = read_json(options.json)
        if result["settings"] != where:
            print(f"'{options.json}' has other settings: {result['settings']}.")
            return 2
    result |= {"date": datetime.now().astimezone().date().isoformat(), "machine": machine(torch.get_num_threads())}
    file = options.json or keep(result, None, f"precision-{task.name}")
    asked = {"epochs": options.epochs, "learning_rate": options.rate, "few_shot": options.few_shot, "progress": False}
    for seed in map(str, range(options.seeds)):
        for name in options.arithmetics:
            if seed in result["runs"][name]:
                continue
            with arithmetic(name) as precision:
                made = finetune(
                    model if model.is_dir() else options.model, data, seed=int(seed), precision=precision, **asked
                )
            result["runs"][name][seed] = found = measured(made)
            told = ", ".join(f"{metric} {value:.4f}" for metric, value in found.items())
            say(f"seed {seed}, {name}: {told}; {made.seconds:,.0f} s")
            write_json(file, result)
    print("| metric | arithmetic | seeds | mean ± sd | beside fp32 | 95 % interval | p |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for metric, name in itertools.product(METRICS, ARITHMETICS):
        print(compared(result["runs"], name, metric))
    print(f"\n{file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
