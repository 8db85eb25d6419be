"""Measure the training speed of `lm` on a decoder against the `Trainer` of transformers, on the device at hand.

    python benchmarks/decoders.py MODEL CORPUS [--steps 40] [--rows 8] [--length 1024] [--rounds 2] [--out FILE]

Both train the same model with fp32 weights, bf16 autocast on an accelerator, fused AdamW and full rows of the same
text (documents joined), so that a step is the same work. A third run is `lm` as it is by default, with documents kept
apart. The runs alternate; the first tenth of the steps of each does not count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import transformers
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

import acclimate
from acclimate.corpus import Corpus


class Rows(Dataset):
    def __init__(self, ids: torch.Tensor, length: int, count: int) -> None:
        self.rows = ids[: count * length].view(count, length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Times(TrainerCallback):
    def __init__(self) -> None:
        self.at: list[float] = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.at.append(time.monotonic())


def per_second(at: list[float], tokens: float) -> float:
    """Return tokens per second from the times at the end of each step."""
    first = max(1, len(at) // 10)
    return tokens * (len(at) - 1 - first) / (at[-1] - at[first])


def run_trainer(model: str, ids: torch.Tensor, options: argparse.Namespace) -> float:
    """Train with the `Trainer`; return tokens per second."""
    times = Times()
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=options.rows,
            max_steps=options.steps,
            bf16=torch.cuda.is_available(),
            optim="adamw_torch_fused",
            report_to="none",
            save_strategy="no",
            logging_steps=10_000,
            disable_tqdm=True,
        )
        data = Rows(ids, options.length, options.steps * options.rows)
        Trainer(loaded, arguments, train_dataset=data, callbacks=[times]).train()
    return per_second(times.at, options.rows * options.length)


def run_lm(model: str, corpus: Corpus, documents: str, options: argparse.Namespace) -> float:
    """Adapt with `lm`; return tokens per second."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        texts = options.rows if documents == "joined" else max(1, round(options.rows * options.length / options.mean))
        acclimate.adapt(
            model, corpus, "lm", out, steps=options.steps, batch_size=texts, max_length=options.length,
            documents=documents, progress=False, learning_rate=1e-5,
        )  # fmt: skip
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    at, tokens = [line["seconds"] for line in lines], [line["tokens"] for line in lines]
    first = max(1, len(at) // 10)
    return (tokens[-1] - tokens[first]) / (at[-1] - at[first])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("--out", type=Path)
    for name, value in (("steps", 40), ("rows", 8), ("length", 1024), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    corpus = Corpus(options.corpus)
    encoded = tokenizer(list(corpus), add_special_tokens=False)["input_ids"]
    options.mean = sum(map(len, encoded)) / len(encoded) + 1
    ids = torch.tensor([token for row in encoded for token in (*row, tokenizer.eos_token_id)])
    runs = {
        "Trainer": lambda: run_trainer(options.model, ids, options),
        "lm, documents joined": lambda: run_lm(options.model, corpus, "joined", options),
        "lm": lambda: run_lm(options.model, corpus, "apart", options),
    }
    found: dict[str, dict[str, list[float]]] = {name: {"tokens_per_second": [], "peak_gb": []} for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            found[name]["tokens_per_second"].append(round(run()))
            if torch.cuda.is_available():
                found[name]["peak_gb"].append(round(torch.cuda.max_memory_allocated() / 1e9, 2))
                torch.cuda.empty_cache()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result = {
        "date": time.strftime("%Y-%m-%d"), "device": device, "torch": torch.__version__,
        "transformers": transformers.__version__, "rows": options.rows, "length": options.length,
        "steps": options.steps, "runs": found,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
