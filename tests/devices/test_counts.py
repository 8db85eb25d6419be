"""What a step of every verb costs an accelerator, in operators and waits of the host, next to the ``Trainer``.

The numbers are those of models of four layers on the emulated accelerator, as in ``docs/dev/accelerators.md``. They do
not depend on the size of a tensor.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from acclimate.adaptation.adapt import adapt
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.finetune import finetune
from tests.counting import counted
from tests.devices.test_budgets import PLAIN, steps_of
from tests.tasks.test_contract import SAMPLES, splits_of
from tests.tiny import save_tiny

OPERATORS = {
    "lm, full": 619,
    "lm, joined": 619,
    "lm, LoRA": 974,
    "classification": 415,
    "joint": 430,
    "regression": 413,
    "entities": 398,
    "qa": 390,
    "choice": 411,
    "generation": 670,
    "retrieval": 456,
    "entities, penalty": 422,
    "distill, boundary": 408,
    "distill, kl": 430,
    "distill, entities": 416,
}
"""Most operators of a step: forward, backward and optimizer."""
WAITS = {"generation": 3}
"""Waits of a step where it has more than one: there the model's own attention looks into the mask twice."""
QUICK = {"lm, full", "retrieval"}


def texts(count):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(PLAIN, int(length))) for length in rng.integers(6, 30, count)]


def decoder_steps(folder, **options):
    """Steps of ``lm`` on a decoder of four layers."""
    model = save_tiny("llama", folder / "model", num_hidden_layers=4)
    given = {"steps": 4, "batch_size": 6, "max_length": 40, "progress": False, **options}
    with counted() as ledger, steps_of(ledger) as found:
        adapt(model, Corpus.of(texts(40)), "lm", folder / "out", **given)
    return found


def task_steps(kind, folder, **options):
    """Steps of fine-tuning, where a step is one micro-batch."""
    model = save_tiny(SAMPLES[kind].model, folder / "model", num_hidden_layers=4)
    given = {"epochs": 2, "batch_size": 8, "max_length": 64, "progress": False, **options}
    with counted() as ledger, steps_of(ledger) as found:
        finetune(model, load_task(splits_of(kind)), **given)
    return found


def distill_steps(folder, kind, objective):
    teacher, student = (save_tiny("bert", folder / name, num_hidden_layers=4) for name in ("teacher", "student"))
    given = {"teacher_epochs": 1, "student_epochs": 1, "epochs": 2, "batch_size": 8, "objective": objective}
    with counted() as ledger, steps_of(ledger) as found:
        distill(teacher, student, load_task(splits_of(kind)), progress=False, distill_share=1.0, **given)
    return found[-3:]


CASES = {
    "lm, full": lambda folder: decoder_steps(folder),
    "lm, joined": lambda folder: decoder_steps(folder, documents="joined"),
    "lm, LoRA": lambda folder: decoder_steps(folder, adapter="lora r=8 alpha=16"),
    **{kind: lambda folder, kind=kind: task_steps(kind, folder) for kind in SAMPLES},
    "entities, penalty": lambda folder: task_steps("entities", folder, confidence_penalty=0.3),
    "distill, boundary": lambda folder: distill_steps(folder, "classification", "boundary"),
    "distill, kl": lambda folder: distill_steps(folder, "classification", "kl"),
    "distill, entities": lambda folder: distill_steps(folder, "entities", "kl"),
}


@pytest.mark.parametrize("case", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES])
def test_a_step_waits_once_and_has_no_more_operators(case, tmp_path):
    if importlib.util.find_spec(getattr(SAMPLES.get(case), "needs", "torch")) is None:
        pytest.skip("it is not installed")
    found = CASES[case](tmp_path)
    usual = sorted(found, key=lambda step: step.launches)[len(found) // 2]
    assert usual.micro_batches == 1
    assert usual.launches <= OPERATORS[case], usual
    assert usual.waits <= WAITS.get(case, 1), usual


def trainer_operators(folder, adapter):
    """Operators of a step of the ``Trainer`` on padded rows, perhaps with an adapter of peft."""
    model = AutoModelForCausalLM.from_pretrained(save_tiny("llama", folder / "model", num_hidden_layers=4))
    if adapter:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    rng, seen = np.random.default_rng(0), []
    rows = [{"input_ids": torch.tensor(ids), "labels": torch.tensor(ids)} for ids in rng.integers(5, 100, (24, 30))]
    step = Trainer.training_step

    def spied(self, *args, **options):
        seen.append(ledger.launched)
        return step(self, *args, **options)

    with counted() as ledger, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", spied)
        args = TrainingArguments(
            str(folder / "t"),
            max_steps=4,
            per_device_train_batch_size=6,
            bf16=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=100,
        )
        Trainer(model, args, train_dataset=rows, data_collator=transformers.default_data_collator).train()
    return seen[-1] - seen[-2]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lm, full", "lm, LoRA"])
def test_a_decoder_has_at_most_the_operators_of_the_trainer(case, tmp_path):
    if "LoRA" in case:
        pytest.importorskip("peft")
    theirs = trainer_operators(tmp_path, "LoRA" in case)
    assert OPERATORS[case] <= theirs
