"""Train on real text in fp32 and bf16, with our training and with a plain loop: four loss curves on one page.

    python benchmarks/curves.py               # 500 steps of 16 texts each: under an hour on two cores
    python benchmarks/curves.py --no-dropout  # without chance in the forward the fp32 curves must coincide

All four read the same micro-batches with the same masks in the same order, and have the same optimiser and schedule;
only the draws of dropout differ. Needs the model and the corpora of ``../shared``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, logging

from acclimate.corpus import TokenDataset
from acclimate.device import Precision, autocast, default_device, enable_fast_fp32_matmul, has_fast_bf16, to_device
from acclimate.masking import RandomMasking
from acclimate.models import attach, load_masked_lm, load_tokenizer
from acclimate.objectives import Batch, MaskedLM
from acclimate.training.batches import Collator, StepDataset
from acclimate.training.engine import Engine, Terms
from acclimate.training.trainer import train
from benchmarks.data import SHARED, real_documents
from benchmarks.measure import keep, machine, say

MODEL = SHARED / "models" / "minilm-mlm"
RATE, WARM_UP = 1e-4, 0.1
TOKENS = 1_024
"""Of a micro-batch, on every device: all runs read the same batches."""


class Recorded(Engine):
    """The engine, keeping the masked-LM loss of every step."""

    losses: list[float]

    def step(self, batches: Sequence[Batch], *, backward: bool = True) -> Terms:
        terms = super().step(batches, backward=backward)
        self.losses.append(float(terms["mlm"]))
        return terms


def load(dropout: bool) -> PreTrainedModel:
    """Return the real model, in training mode, with or without dropout."""
    model = load_masked_lm(MODEL).model
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return model.train()


def ours(data: StepDataset, precision: Precision, dropout: bool) -> list[float]:
    """Train as ``adapt`` does."""
    enable_fast_fp32_matmul()
    model = load(dropout)
    attach(model)
    to_device(model)
    engine = Recorded(model, [MaskedLM()], precision)
    engine.losses = []
    with tempfile.TemporaryDirectory() as folder:
        train(
            engine, data, Path(folder), seed=0, learning_rate=RATE, warmup=WARM_UP, title="", progress=False
        )
    return engine.losses


def plain(data: StepDataset, precision: Precision, dropout: bool) -> list[float]:
    """Train the model of ``transformers`` in a plain loop, all texts of a step padded together."""
    model = torch.nn.Module.to(load(dropout), default_device())
    torch.set_float32_matmul_precision("highest")  # as torch has it: loading a model here has changed it
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-6, weight_decay=0.0, fused=True)

    def factor(step: int) -> float:
        done = step / len(data)
        return max(done, 1 / len(data)) / WARM_UP if done < WARM_UP else (1 - done) / (1 - WARM_UP)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    torch.manual_seed(0)
    losses = []
    for step in range(len(data)):
        inputs = {name: value.to(default_device()) for name, value in joined(data[step]).items()}
        with autocast(precision, default_device()):
            loss = model(**inputs).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


def joined(batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Pad the micro-batches of a step to one batch, as a model of ``transformers`` takes it."""
    width = max(batch.masked.shape[1] for batch in batches)

    def pad(value: Tensor, filling: int) -> Tensor:
        return nn.functional.pad(value, (0, width - value.shape[1]), value=filling)

    return {
        "input_ids": torch.cat([pad(batch.masked, 0) for batch in batches]),
        "attention_mask": torch.cat([pad((batch.text >= 0).long(), 0) for batch in batches]),
        "labels": torch.cat([pad(batch.labels, -100) for batch in batches]),
    }


def real_steps(corpus: str, steps: int, batch: int) -> StepDataset:
    """Return the steps on real text: one text a document, its first 128 tokens."""
    tokenizer = load_tokenizer(MODEL)
    documents = real_documents(corpus, steps * batch)
    encoded = tokenizer(documents, truncation=True, max_length=128)["input_ids"]
    rows = TokenDataset.of([ids for ids in encoded if len(ids) >= 10])
    collator = Collator.of(tokenizer, RandomMasking(), TOKENS)
    return StepDataset(rows, collator, batch_size=batch, steps=steps, seed=0)


def plot(result: dict[str, Any], file: Path) -> None:
    """Draw the curves as moving means, and below what they differ from the plain fp32 one by."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    width = max(1, min(20, len(result["curves"]["plain fp32"]["losses"]) // 10))
    smooth = {
        name: np.convolve(curve["losses"], np.ones(width) / width, "valid") for name, curve in result["curves"].items()
    }
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True, height_ratios=[2, 1])
    for name, values in smooth.items():
        steps = np.arange(len(values)) + width
        style = "--" if name.startswith("plain") else "-"
        above.plot(steps, values, style, label=f"{name}, last 50: {result['curves'][name]['last']:.3f}")
        below.plot(steps, values - smooth["plain fp32"], style)
    above.set(ylabel=f"masked-LM loss, nats, mean of {width} steps")
    above.legend()
    below.set(ylabel="less plain fp32", xlabel=f"steps of {result['batch']} texts")
    where, chance = result["machine"], "on" if result["dropout"] else "off"
    above.set_title(f"{result['corpus']}, dropout {chance}, {where['processor']}, {result['date']}")
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train four times, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--corpus", default="restaurant", help="a folder of ../shared/data/corpora")
    add("--steps", type=int, default=500)
    add("--batch", type=int, default=16, help="texts a step")
    add("--no-dropout", action="store_true", help="switch dropout off in all four")
    add("--threads", type=int)
    add("--json", type=Path, help="where to write (default benchmarks/results/<date>-curves.json)")
    options = parser.parse_args(arguments)
    if not MODEL.is_dir() or not real_documents(options.corpus, 1):
        print(f"No loss curves: '{MODEL}' or the corpus '{options.corpus}' beside it is not there.")
        return 0
    if options.threads:
        torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    where = machine(torch.get_num_threads())
    data = real_steps(options.corpus, options.steps, options.batch)
    precisions: list[Precision] = ["fp32", "bf16"] if has_fast_bf16(default_device().type) else ["fp32"]
    curves: dict[str, dict[str, Any]] = {}
    for side, run in (("plain", plain), ("ours", ours)):
        for precision in precisions:
            begin = time.perf_counter()
            losses = run(data, precision, not options.no_dropout)
            seconds = time.perf_counter() - begin
            curves[f"{side} {precision}"] = {
                "losses": losses,
                "last": float(np.mean(losses[-50:])),
                "seconds": seconds,
            }
            say(f"{side} {precision}: {np.mean(losses[-50:]):.4f} over the last 50 steps, {seconds:,.0f} s")
    result = {
        "date": datetime.now().astimezone().date().isoformat(),
        "machine": where,
        "corpus": options.corpus,
        "batch": options.batch,
        "dropout": not options.no_dropout,
        "curves": curves,
    }
    file = keep(result, options.json, "curves")
    plot(result, file.with_suffix(".png"))
    print(f"{file}\n{file.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
