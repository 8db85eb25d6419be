"""The queue of measurements on an accelerator: what has no result yet is measured, the most valuable first.

    python -m benchmarks.gpu --minutes 8 --out results/     # as many as fit; call it again to go on
    python -m benchmarks.gpu --out results/ --only encoder-base-32
    python -m benchmarks.gpu --out results/ --table         # only print what is there
    python -m benchmarks.gpu --out /tmp/quick --quick       # tiny models on a CPU, to test the queue itself

Each measurement is a process of its own with a time limit, and writes ``NAME.json``; one that fails writes
``NAME.failed.json`` and is tried again after all others. Contenders of a measurement alternate in one process, each
``--rounds`` times. Models have common shapes and random weights, and texts are drawn at random, so that nothing but
the repository is needed; with ``--models DIR`` the decoder of 135 million weights is ``DIR/smollm2-135m``. A study
reads the data that its file names, and starts from the sentence encoder ``DIR/all-mpnet-base-v2``. It
resumes from ``--out``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    LlamaConfig,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import acclimate
from acclimate.base.device import default_device
from acclimate.base.files import write_json
from acclimate.engine.trainer import LOADER_WORKERS
from acclimate.evaluation.likelihood import classify_by_likelihood
from acclimate.labs.bench.contenders import StepWatch
from acclimate.labs.bench.shapes import TEXTS_FILE, make_tokenizer, read_texts, write_inputs

ROOT = Path(__file__).resolve().parents[1]
LENGTH, QUICK_LENGTH = 1_024, 32
"""Tokens per row of a decoder."""
LOW_RANK = 16
HELD_OUT = 20
"""Rows of dev and of test of a task that is timed."""
TESTS = ("tests/devices", "tests/kernels", "tests/models", "tests/adaptation")
"""Folders whose quick tests run on the device."""


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder of the Llama family, with tied embeddings."""

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int = 49_152
    rows: int = 8


DECODERS = {
    "135m": Decoder(30, 576, 9, 3, 1_536),
    "1.7b": Decoder(24, 2_048, 32, 32, 8_192, rows=4),
    "tiny": Decoder(2, 32, 4, 2, 64, 300, rows=4),
}


@dataclass(frozen=True)
class Setting:
    """How a measurement is made."""

    folder: Path
    models: Path | None = None
    out: Path | None = None
    rounds: int = 2
    steps: int = 24
    quick: bool = False

    def shape(self, name: str) -> str:
        """Return the name of a shape, or the tiny one."""
        return "tiny" if self.quick else name

    @property
    def length(self) -> int:
        """Tokens per row of a decoder."""
        return QUICK_LENGTH if self.quick else LENGTH


# --- inputs


def write_decoder(folder: Path, name: str, documents: int, length: int, models_folder: Path | None = None) -> None:
    """Write ``model/`` and ``texts.jsonl``: documents of a lognormal length, a third of a row on average.

    Args:
        folder: Output directory.
        name: Key of :data:`DECODERS`.
        documents: Number of documents.
        length: Tokens per row.
        models_folder: Folder with a real model of this name; None for random weights.
    """
    shape, rng = DECODERS[name], np.random.default_rng(7)
    model = folder / "model"
    real = models_folder / f"smollm2-{name}" if models_folder else None
    if real is not None and real.is_dir():
        model.symlink_to(real.resolve())
    else:
        special = ["<s>", "</s>", "<unk>"]
        words = {
            word: number for number, word in enumerate([*special, *(f"w{n}" for n in range(3, shape.vocabulary))])
        }
        backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=8 * length
        ).save_pretrained(model)
        config = LlamaConfig(
            vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads, intermediate_size=shape.inner,
            max_position_embeddings=8 * length, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
        )  # fmt: skip
        torch.manual_seed(0)
        with default_device():
            random = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        random.save_pretrained(model)
        del random
    sizes = np.clip(np.exp(rng.normal(np.log(length / 4), 0.7, documents)), 8, 2 * length).astype(int)
    with (folder / TEXTS_FILE).open("w", encoding="utf-8") as file:
        for size in sizes:
            numbers = rng.integers(3, shape.vocabulary, size)
            file.write(json.dumps({"text": " ".join(f"w{number}" for number in numbers)}) + "\n")


def write_task(folder: Path, texts: list[str], classes: int = 4) -> Path:
    """Write a task folder with random labels, and return it."""
    task, rng = folder / "task", np.random.default_rng(3)
    task.mkdir()
    rows = [{"text": text, "label": f"class {rng.integers(classes)}"} for text in texts]
    parts = {"train": rows[: -2 * HELD_OUT], "dev": rows[-2 * HELD_OUT : -HELD_OUT], "test": rows[-HELD_OUT:]}
    for split, part in parts.items():
        (task / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return task


# --- contenders


@contextmanager
def watched() -> Iterator[StepWatch]:
    """Watch the steps of every ``Trainer`` that is made inside, which those of acclimate are, too."""
    watch = StepWatch()

    class Watching(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.step()

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    transformers.trainer.DEFAULT_CALLBACKS.append(Watching)
    try:
        yield watch
    finally:
        transformers.trainer.DEFAULT_CALLBACKS.remove(Watching)


def adapt(folder: Path, setting: Setting, method: Any = "lm", **options: Any) -> dict[str, Any]:
    """Time ``acclimate.adapt``."""
    used = {"steps": setting.steps, "precision": "bf16", "progress": False, "save_every": 10**6, "seed": 0, **options}
    with watched() as watch, tempfile.TemporaryDirectory() as out:
        result = acclimate.adapt(
            folder / "model", str(folder / TEXTS_FILE), method, Path(out) / "adapted", **used
        )  # fmt: skip
    return asdict(watch.cost(result.tokens / used["steps"]))


def trainer(
    folder: Path, setting: Setting, rows: list[dict[str, Any]], batch: int, model: Callable[[], Any], collator: Any,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Time the ``Trainer`` of transformers, which reads ``batch`` rows at once, or as many as memory allows."""
    micro = batch
    while True:
        try:
            with watched() as watch, tempfile.TemporaryDirectory() as out:
                arguments = TrainingArguments(
                    output_dir=out, max_steps=setting.steps, per_device_train_batch_size=micro,
                    gradient_accumulation_steps=batch // micro, train_sampling_strategy="group_by_length",
                    bf16=True, use_cpu=default_device().type == "cpu", save_strategy="no", report_to="none",
                    dataloader_num_workers=LOADER_WORKERS.get(default_device().type, 0), disable_tqdm=True,
                    logging_strategy="no", seed=0, **options,
                )  # fmt: skip
                used = rows[: setting.steps * batch]
                made = Trainer(model=model(), args=arguments, train_dataset=used, data_collator=collator)
                made.remove_callback(PrinterCallback)
                made.train()
            tokens = sum(len(row["input_ids"]) for row in used) / len(used) * batch
            return {**asdict(watch.cost(tokens)), "rows_at_once": micro}
        except torch.OutOfMemoryError:
            if micro == 1:
                raise
            micro //= 2


def rounds(setting: Setting, contenders: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, Any]:
    """Measure contenders in turn, each several times; one that fails has an error instead of figures."""
    found: dict[str, Any] = {name: [] for name in contenders}
    for _ in range(setting.rounds):
        for name, run in contenders.items():
            try:
                found[name].append(run())
            except Exception as error:  # an option may need a library that is not here
                found[name].append({"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"})
    return {"contenders": found}


# --- measurements


def measure_tests(setting: Setting) -> dict[str, Any]:
    """Run the tests of devices, kernels and engine on this device."""
    folders = TESTS[:1] if setting.quick else TESTS
    command = [sys.executable, "-m", "pytest", "-q", "-x" if setting.quick else "--maxfail=60", "--tb=line", "-p",
               "no:cacheprovider", *folders, *(["-k", "budgets and not every"] if setting.quick else [])]  # fmt: skip
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = ran.stdout.splitlines()
    return {"summary": lines[-1] if lines else "", "failed": [line for line in lines if line.startswith("FAILED")]}


def measure_decoder(setting: Setting, name: str = "135m", low_rank: bool = False) -> dict[str, Any]:
    """Time decoders: documents apart and joined, against the ``Trainer`` on joined rows (with ``peft``)."""
    shape, length = DECODERS[setting.shape(name)], setting.length
    folder = setting.folder
    write_decoder(folder, setting.shape(name), 4 * shape.rows * setting.steps, length, setting.models)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    stream = [
        token
        for ids in tokenizer(read_texts(folder), add_special_tokens=False)["input_ids"]
        for token in (*ids, tokenizer.eos_token_id)
    ]
    mean = len(stream) / (4 * shape.rows * setting.steps)
    rows = [{"input_ids": stream[start : start + length]} for start in range(0, len(stream) - length + 1, length)]
    tokenizer.pad_token = tokenizer.eos_token
    options: dict[str, Any] = {"max_length": length, "learning_rate": 1e-5}
    if low_rank:
        options |= {"adapter": f"lora r={LOW_RANK}"}

    def load() -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
        if low_rank:
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=LOW_RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
        return model.train()

    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    apart = max(1, round(shape.rows * length / mean))  # documents with as many tokens as the rows
    return rounds(
        setting,
        {
            "lm, documents apart": partial(adapt, folder, setting, documents="apart", batch_size=apart, **options),
            "lm, documents joined": partial(
                adapt, folder, setting, documents="joined", batch_size=shape.rows, **options
            ),
            f"Trainer{' + peft' * low_rank}, joined": partial(
                trainer, folder, setting, rows, shape.rows, load, collator
            ),
        },
    )


def _encoder_inputs(setting: Setting, name: str, texts: int, more: int = 0) -> tuple[Path, list[dict[str, Any]]]:
    write_inputs(setting.folder, setting.shape(name), setting.steps * texts + more, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(setting.folder / "model")
    ids = tokenizer(read_texts(setting.folder), truncation=True, max_length=164)["input_ids"]
    return setting.folder, [{"input_ids": row} for row in ids]


def measure_encoder(setting: Setting, name: str = "base", texts: int = 32) -> dict[str, Any]:
    """Time masked language modelling against the ``Trainer``, which groups texts by length."""
    texts = 8 if setting.quick else texts
    folder, rows = _encoder_inputs(setting, name, texts)
    collator = DataCollatorForLanguageModeling(make_tokenizer(setting.shape(name)), mlm_probability=0.15)
    load = partial(AutoModelForMaskedLM.from_pretrained, folder / "model")
    return rounds(
        setting,
        {
            "lm": partial(adapt, folder, setting, batch_size=texts, max_length=164),
            "Trainer": partial(trainer, folder, setting, rows, texts, load, collator),
        },
    )


def measure_methods(setting: Setting) -> dict[str, Any]:
    """Time methods next to ``lm`` on an encoder of base size."""
    texts = 8 if setting.quick else 128
    folder, _ = _encoder_inputs(setting, "base", texts)
    cheap: dict[str, Any] = {"dga": {"importance_tokens": 2_000}}
    return rounds(
        setting,
        {
            name: partial(
                adapt, folder, setting, {name: cheap.get(name)}, batch_size=texts, max_length=164,
            )
            for name in ("lm", "dga", "kd", "lssd", "simcse", "detour")
        },
    )  # fmt: skip


def measure_options(setting: Setting, name: str = "base") -> dict[str, Any]:
    """Time the options of a training that change its memory or speed."""
    texts = 8 if setting.quick else 128
    if name == "base":
        folder, _ = _encoder_inputs(setting, name, texts)
        usual: dict[str, Any] = {"batch_size": texts, "max_length": 164}
    else:
        shape = DECODERS[setting.shape(name)]
        folder = setting.folder
        write_decoder(folder, setting.shape(name), 4 * shape.rows * setting.steps, setting.length, setting.models)
        usual = {"batch_size": 4 * shape.rows, "max_length": setting.length}
    changes: dict[str, dict[str, Any]] = {
        "default": {}, "compile": {"compile": True}, "fp16": {"precision": "fp16"}, "fp32": {"precision": "fp32"},
        "adamw-8bit": {"optimizer": "adamw-8bit"}, "bf16 weights": {"weights": "bf16"},
        "checkpointing": {"gradient_checkpointing": True},
    }  # fmt: skip
    if name != "base":
        changes["4-bit + lora"] = {"adapter": "lora quantize=4bit"}
    if setting.quick:
        changes = {key: value for key, value in changes.items() if key in ("default", "checkpointing")}
    return rounds(setting, {key: partial(adapt, folder, setting, **usual, **value) for key, value in changes.items()})


def measure_finetuning(setting: Setting) -> dict[str, Any]:
    """Time fine-tuning of a classifier against the ``Trainer`` with texts grouped by length."""
    texts = 8 if setting.quick else 32
    folder, _ = _encoder_inputs(setting, "base", texts, more=2 * HELD_OUT)
    task = write_task(folder, read_texts(folder))
    train = [json.loads(line) for line in (task / "train.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = [
        {
            "input_ids": tokenizer(row["text"], truncation=True, max_length=164)["input_ids"],
            "label": int(row["label"][-1]),
        }
        for row in train
    ]
    tokens = sum(len(row["input_ids"]) for row in rows) / len(rows) * texts

    def ours() -> dict[str, Any]:
        with watched() as watch:
            acclimate.finetune(
                folder / "model", task, epochs=1, batch_size=texts, max_length=164, precision="bf16", progress=False,
                learning_rate=1e-5,
            )  # fmt: skip
        return asdict(watch.cost(tokens))

    load = partial(AutoModelForSequenceClassification.from_pretrained, folder / "model", num_labels=4)
    within = Setting(folder, steps=len(rows) // texts, rounds=setting.rounds, quick=setting.quick)
    theirs = partial(trainer, folder, within, rows, texts, load, DataCollatorWithPadding(tokenizer))
    return rounds(setting, {"finetune": ours, "Trainer": theirs})


def measure_evaluation(setting: Setting) -> dict[str, Any]:
    """Time probing and the likelihood of labels against obvious loops, in texts per second."""
    count = 60 if setting.quick else 2_000
    write_decoder(setting.folder, setting.shape("135m"), count, setting.length // 2, setting.models)
    folder = setting.folder
    texts, labels = [f"{text[:400]}" for text in read_texts(folder)], ["w5", "w6", "w7", "w8"]
    task = write_task(folder, read_texts(folder))

    def probe() -> dict[str, Any]:
        return timed(lambda: acclimate.probe(folder / "model", task, draws=1, progress=False), count)

    def likelihood() -> dict[str, Any]:
        pairs = [(text, None) for text in texts]
        return timed(lambda: classify_by_likelihood(folder / "model", pairs, labels, template="{text} is"), count)

    def loop() -> dict[str, Any]:
        model = (
            AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16).to(default_device()).eval()
        )
        tokenizer = AutoTokenizer.from_pretrained(folder / "model", padding_side="right")
        tokenizer.pad_token = tokenizer.eos_token
        ids = [tokenizer.convert_tokens_to_ids(label) for label in labels]

        @torch.inference_mode()
        def read() -> None:
            ordered = sorted(texts, key=len)
            for start in range(0, len(ordered), 32):
                batch = tokenizer(
                    [f"{text} is" for text in ordered[start : start + 32]], padding=True, return_tensors="pt"
                )
                batch = batch.to(default_device())
                last = batch["attention_mask"].sum(1) - 1
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                logits[torch.arange(len(last), device=last.device), last][:, ids].float().cpu()

        return timed(read, count)

    return rounds(setting, {"probe": probe, "likelihood": likelihood, "loop, one-token labels": loop})


def timed(run: Callable[[], Any], texts: int) -> dict[str, Any]:
    """Return texts per second of a call."""
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "texts_per_second": texts / seconds}


def measure_memory(setting: Setting) -> dict[str, Any]:
    """Measure the peak memory under several limits of the plan for micro-batches."""
    texts = 8 if setting.quick else 512
    folder, _ = _encoder_inputs(setting, "base", texts)
    limits = (4,) if setting.quick else (4, 8, 16)
    return rounds(
        setting,
        {
            f"limit of {limit} GB": partial(
                adapt, folder, setting, batch_size=texts, max_length=164, max_memory=float(limit)
            )
            for limit in limits
        },
    )


def measure_profile(setting: Setting) -> dict[str, Any]:
    """Profile three steps of ``lm`` on a decoder with documents apart: the longest kernels and host operations."""
    from torch.profiler import ProfilerActivity, profile

    shape = DECODERS[setting.shape("135m")]
    write_decoder(setting.folder, setting.shape("135m"), 60 * shape.rows, setting.length, setting.models)
    few = Setting(setting.folder, steps=6, rounds=1, quick=setting.quick)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler:
        cost = adapt(setting.folder, few, batch_size=4 * shape.rows, max_length=setting.length)
    events = profiler.key_averages()

    def longest(attribute: str) -> list[dict[str, Any]]:
        ordered = sorted(events, key=lambda event: -getattr(event, attribute, 0))
        return [
            {"name": event.key[:90], "calls": event.count, "ms": round(getattr(event, attribute) / 1e3, 2)}
            for event in ordered[:25]
        ]

    device = longest("self_device_time_total") if torch.cuda.is_available() else []
    return {"cost": cost, "host": longest("self_cpu_time_total"), "device": device}


DETOUR = [
    "none",
    "lm",
    {"name": "lm", "label": "lm, as many predictions", "adapt": {"tokens": 6_100_000}},
    "detour",
    {"name": "detour", "label": "detour, low layers frozen", "frozen": "0-3"},
]
"""The causal detour with a million tokens, and its controls."""


def measure_study(
    setting: Setting, name: str, run: str = "run", methods: list[Any] | None = None, **adapt: Any
) -> dict[str, Any]:
    """Run a study of ``docs/results`` with fine-tuning and fifty times its text; its encoder learns masked words.

    ``methods`` and options of ``adapt`` replace those of the study; ``run`` is the folder of what they give.
    """
    out = (setting.out or setting.folder) / name
    base, sizes = out / "base", {"batch_size": 64, "max_length": 128, "precision": "bf16"}
    model, tokens = (setting.models or ROOT) / "all-mpnet-base-v2", 10_000_000
    data = ROOT.parent / "shared" / "data"
    text = str(data / "corpora" / "general_wikipedia" / "train.jsonl.gz")
    study: Any = ROOT / "docs" / "results" / name / "study.yaml"
    tuning = {"learning_rate": 1e-4, "batch_size": 16, "max_length": 128, "epochs": 10, "precision": "bf16"}
    tasks = [{"path": str(data / "bc5cdr"), "limit_train": 200, "limit_dev": 100, "limit_test": 1500}]
    tasks += [{"path": str(data / "nicta_piboso"), "limit_train": 2000, "limit_dev": 100, "few_shot": 8}]
    changes: dict[str, Any] = {"models.mpnet-mlm.path": str(base), "evaluate.quick": False, "finetune": tuning}
    changes |= {"domains.biomed.tasks": tasks, "probe.tasks": ["nicta_piboso"]}
    changes["adapt"] = {**sizes, "tokens": tokens // 2, "learning_rate": 4e-4, **adapt}
    changes |= {"methods": methods} if methods else {}
    if setting.quick:
        write_inputs(setting.folder, "tiny", 200, seed=0)
        model, text, tokens = setting.folder / "model", str(setting.folder / TEXTS_FILE), 500
        task = str(write_task(setting.folder, read_texts(setting.folder)))
        study = {"models": [str(base)], "methods": ["none", "lm"], "seeds": 1, "probe": False}
        study |= {"domains": [{"name": "words", "corpus": [text], "tasks": [task]}], "finetune": {"epochs": 1}}
        changes = {"adapt.tokens": tokens}
    if not base.exists():
        options: dict[str, Any] = {**sizes, "tokens": tokens, "head_tokens": tokens // 10, "progress": False}
        acclimate.adapt(model, text, "lm", base, learning_rate=4e-4, **options)
    return {"study": acclimate.compare(study, out / run, settings=changes, progress=False).to_dict()}


@dataclass(frozen=True)
class Measurement:
    """An entry of the queue; ``minutes`` is its limit."""

    name: str
    minutes: float
    run: Callable[[Setting], dict[str, Any]]


QUEUE = (
    Measurement("tests", 2.0, measure_tests),
    Measurement("decoder-135m", 1.5, measure_decoder),
    Measurement("decoder-135m-lora", 1.5, partial(measure_decoder, low_rank=True)),
    Measurement("encoder-base-32", 1.0, measure_encoder),
    Measurement("study-well-trained", 9.0, partial(measure_study, name="well-trained")),
    Measurement("encoder-base-256", 1.0, partial(measure_encoder, texts=256)),
    Measurement("encoder-minilm-32", 1.0, partial(measure_encoder, name="minilm")),
    Measurement("encoder-minilm-256", 1.0, partial(measure_encoder, name="minilm", texts=256)),
    Measurement("decoder-1.7b", 2.5, partial(measure_decoder, name="1.7b")),
    Measurement("decoder-1.7b-lora", 2.5, partial(measure_decoder, name="1.7b", low_rank=True)),
    Measurement("finetuning", 1.0, measure_finetuning),
    Measurement("evaluation", 1.5, measure_evaluation),
    Measurement("options-base", 3.0, measure_options),
    Measurement("options-135m", 3.0, partial(measure_options, name="135m")),
    Measurement("methods", 1.5, measure_methods),
    Measurement("memory", 1.0, measure_memory),
    Measurement(
        "study-detour",
        9.0,
        partial(
            measure_study,
            name="well-trained",
            run="detour",
            methods=DETOUR,
            tokens=1_000_000,
            schedule="wsd decay=0.1",
        ),
    ),
    Measurement("profile", 1.0, measure_profile),
)
"""Most valuable first."""


# --- the queue


def describe_machine() -> dict[str, Any]:
    """Return device, driver and versions."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"), "device": platform.processor() or platform.machine(), "driver": None,
        "python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__,
    }  # fmt: skip
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        ran = subprocess.run(query, capture_output=True, text=True, check=False)
        found["driver"] = ran.stdout.strip().splitlines()[0] if ran.returncode == 0 and ran.stdout.strip() else None
    return found


def pending(out: Path, only: str | None) -> list[Measurement]:
    """Return the measurements without a result, those that have failed before at the end.

    Raises:
        SystemExit: If there is none with the name ``only``.
    """
    chosen = [one for one in QUEUE if only in (None, one.name)]
    if not chosen:
        raise SystemExit(f"There is no measurement '{only}'. Available: {', '.join(one.name for one in QUEUE)}.")
    left = [one for one in chosen if only or not (out / f"{one.name}.json").exists()]
    return sorted(left, key=lambda one: (out / f"{one.name}.failed.json").exists())  # stable


def run_within(limit: float, command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run a command, and return its exit code and what it wrote to stderr.

    Raises:
        TimeoutExpired: If it takes longer; it is killed with all processes that it started, which would slow the next.
    """
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _, errors = process.communicate(timeout=limit)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, errors


def run_queue(options: argparse.Namespace) -> None:
    """Run what has no result until the time is over."""
    end = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    for one in pending(options.out, options.only):
        limit = min(60 * one.minutes, end - time.monotonic())
        if limit < 20:
            break
        command = [sys.executable, "-m", "benchmarks.gpu", "--measure", one.name, "--out", str(options.out.resolve()),
                   "--rounds", str(options.rounds), *(["--quick"] if options.quick else []),
                   *(["--models", str(options.models.resolve())] if options.models else [])]  # fmt: skip
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        started = time.monotonic()
        try:
            code, errors = run_within(limit, command, {**os.environ, "PYTHONPATH": path})
            problem = None if code == 0 else "\n".join(errors.splitlines()[-20:])
        except subprocess.TimeoutExpired:
            problem = f"stopped after {limit:.0f} s"
        failed = options.out / f"{one.name}.failed.json"
        if problem is None:
            failed.unlink(missing_ok=True)
        else:
            write_json(failed, {**describe_machine(), "error": problem})
        state = "done" if problem is None else f"failed: {problem.splitlines()[-1] if problem else ''}"
        print(f"{one.name}: {state} ({time.monotonic() - started:.0f} s)", flush=True)
    print(table(options.out))


def measure_one(options: argparse.Namespace) -> None:
    """Make one measurement in this process."""
    transformers.logging.set_verbosity_error()
    one = next(one for one in QUEUE if one.name == options.measure)
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            Path(folder),
            options.models,
            options.out,
            1 if options.quick else options.rounds,
            5 if options.quick else 24,
            options.quick,
        )
        found = one.run(setting)
    write_json(options.out / f"{one.name}.json", {**describe_machine(), "quick": options.quick, **found})


def table(out: Path) -> str:
    """Return the results of a folder as a Markdown table, each round of a contender separated by a comma."""
    lines = ["| measurement | contender | tokens/s (texts/s) | operators | waits | busy | peak GB | device, date |",
             "|---|---|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for one in QUEUE:
        file = out / f"{one.name}.json"
        if not file.exists():
            continue
        found = json.loads(file.read_text())
        where = f"{found['device']}, {found['date']}"
        if "summary" in found:
            lines.append(f"| {one.name} | {found['summary'].strip('= ')} | | | | | | {where} |")
        for name, runs in found.get("contenders", {}).items():
            lines.append(f"| {one.name} | {name} | {' | '.join(_cells(runs))} | {where} |")
    return "\n".join(lines)


def _cells(runs: list[dict[str, Any]]) -> list[str]:
    """Return the figures of the rounds of a contender."""
    good = [run for run in runs if "error" not in run]
    if not good:
        return [f"failed: {runs[0]['error'][:80]}" if runs else "", *[""] * 4]

    def show(key: str, form: Callable[[Any], str]) -> str:
        return ", ".join(form(run[key]) for run in good if run.get(key) is not None)

    rate = "tokens_per_second" if "tokens_per_second" in good[0] else "texts_per_second"
    return [
        show(rate, "{:,.0f}".format),
        show("operators", "{:,}".format),
        show("stops", str),
        show("busy", "{:.0%}".format),
        show("peak_bytes", lambda value: f"{value / 1e9:.1f}"),
    ]


def main() -> None:
    """Parse the command line, and run the queue or one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="Time for all measurements of this call.")
    parser.add_argument("--out", type=Path, required=True, help="Folder of the results.")
    parser.add_argument("--only", help="Name of a measurement, which is made even if it has a result.")
    parser.add_argument("--models", type=Path, help="Folder with real models, such as smollm2-135m.")
    parser.add_argument("--rounds", type=int, default=2, help="Measurements of each contender.")
    parser.add_argument("--quick", action="store_true", help="Tiny models and few steps.")
    parser.add_argument("--table", action="store_true", help="Print the results, and measure nothing.")
    parser.add_argument("--measure", choices=[one.name for one in QUEUE], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(options.out))
    elif options.measure:
        try:
            measure_one(options)
        except Exception:
            traceback.print_exc()
            sys.exit(1)
    else:
        run_queue(options)


if __name__ == "__main__":
    main()
