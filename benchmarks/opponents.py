"""The other side: what people run today, with nothing of ours in the forward, the backward or the step."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DataCollatorForLanguageModeling, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from acclimate.device import autocast, default_device
from acclimate.objectives import contrastive_loss
from benchmarks.data import make_texts, make_tokenizer
from benchmarks.gate import Gate, Job, endless

BLOCK = 128
"""Tokens of a block of grouped texts."""


def trainer_lines(job: Job, gate: Gate) -> None:
    """``Trainer``, each text a row, padded to the longest of its batch (``run_mlm.py --line_by_line``)."""
    _trainer(job, gate, [_item(text.tolist()) for text in make_texts(job.shape, job.count, job.seed, job.lengths)])


def trainer_grouped(job: Job, gate: Gate) -> None:
    """``Trainer`` on texts joined and cut into full blocks (``run_mlm.py``): no padding, texts see each other."""
    texts = make_texts(job.shape, job.count, job.seed, job.lengths)
    stream = list(itertools.chain.from_iterable(text.tolist() for text in texts))
    _trainer(job, gate, [_item(stream[at : at + BLOCK]) for at in range(0, len(stream) - BLOCK + 1, BLOCK)])


def loop(job: Job, gate: Gate) -> None:
    """Run a plain loop: padded batches, autocast for bf16, clipping, fused AdamW."""
    model = job.model()
    optimiser = _optimiser(model)
    for tokens, batch in _batches(job):
        with autocast(job.precision, default_device()):
            loss = model(**batch).loss
        _step(model, optimiser, loss)
        gate.step(tokens)


def three_forwards(job: Job, gate: Gate) -> None:
    """DGA from the model as it is: three forwards a micro-batch, gates by hooks, a step for each micro-batch.

    In its favour: only one of the three projects to the vocabulary, and there is no soft mask.
    """
    model = job.model()
    heads = model.config.num_attention_heads
    gates = _HeadGates(model)
    importance = torch.rand(model.config.num_hidden_layers, heads, device=default_device())
    optimiser = _optimiser(model)
    for tokens, batch in _batches(job):
        mask = batch["attention_mask"]
        with autocast(job.precision, default_device()):
            out = model(**batch, output_hidden_states=True)
            anchor = _pool(out.hidden_states[-1], mask)
            encode = model.base_model
            positive = _pool(encode(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state, mask)
            gates.values = importance
            general = _pool(encode(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state, mask)
            gates.values = None
            loss = out.loss + contrastive_loss(anchor, positive, general, 0.05)
        _step(model, optimiser, loss)
        gate.step(tokens)


def sample_loop(job: Job, gate: Gate) -> None:
    """Exact importance, one text after the other; the two dropout draws of a text share a forward."""
    model = job.model()
    model.requires_grad_(False)
    gates = _HeadGates(model)
    shape = model.config.num_hidden_layers, model.config.num_attention_heads
    total = torch.zeros(shape, device=default_device())
    texts = make_texts(job.shape, job.count, job.seed, job.lengths)
    for (index,) in endless(len(texts), 1, job.seed):
        ids = torch.from_numpy(texts[index]).to(default_device()).repeat(2, 1)
        gates.values = torch.ones(shape, device=default_device(), requires_grad=True)
        with autocast(job.precision, default_device()):
            hidden = model.base_model(input_ids=ids).last_hidden_state
        first, second = nn.functional.log_softmax(hidden.float(), dim=-1)
        divergence = (first.exp() * (first - second)).sum(-1).mean()
        (gradient,) = torch.autograd.grad(divergence, gates.values)
        total += gradient.abs()
        gate.step(len(texts[index]))


def _item(ids: list[int]) -> dict[str, list[int]]:
    return {"input_ids": ids, "attention_mask": [1] * len(ids)}


class _Counted:
    """The collator of ``transformers``, remembering the real tokens of each batch: the loader reads ahead."""

    def __init__(self, job: Job) -> None:
        self.tokenizer = make_tokenizer(job.shape)
        self.collate = DataCollatorForLanguageModeling(self.tokenizer, mlm=True, mlm_probability=0.15)
        self.special = set(self.tokenizer.all_special_ids)
        self.read: deque[int] = deque()

    def prepared(self, item: dict[str, list[int]]) -> dict[str, list[int]]:
        """Add what ``run_mlm.py`` asks the tokenizer for, once for all passes."""
        return {**item, "special_tokens_mask": [int(token in self.special) for token in item["input_ids"]]}

    def __call__(self, items: list[dict[str, list[int]]]) -> Any:
        batch = self.collate(items)
        self.read.append(int(batch["attention_mask"].sum()))
        return batch


class _StepEnds(TrainerCallback):
    def __init__(self, gate: Gate, read: deque[int]) -> None:
        self.gate, self.read = gate, read

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.gate.step(self.read.popleft())


def _trainer(job: Job, gate: Gate, items: list[dict[str, list[int]]]) -> None:
    collator = _Counted(job)
    args = TrainingArguments(
        output_dir=str(job.folder),
        max_steps=10_000_000,
        per_device_train_batch_size=job.batch,
        bf16=job.precision == "bf16",
        use_cpu=default_device().type == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=job.seed,
    )
    Trainer(
        model=job.model(),
        args=args,
        train_dataset=[collator.prepared(item) for item in items],
        data_collator=collator,
        callbacks=[_StepEnds(gate, collator.read)],
    ).train()


def _batches(job: Job) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield how many real tokens a batch has, counted where no accelerator has to be waited for, and the batch."""
    collator = _Counted(job)
    texts = make_texts(job.shape, job.count, job.seed, job.lengths)
    items = [collator.prepared(_item(text.tolist())) for text in texts]
    for chosen in endless(len(items), job.batch, job.seed):
        batch = collator.collate([items[index] for index in chosen])
        tokens = int(batch["attention_mask"].sum())
        yield tokens, {name: value.to(default_device()) for name, value in batch.items()}


def _optimiser(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()


def _pool(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


class _HeadGates:
    """Multiplies each head's context vector by a gate, from hooks before the output projections.

    Attributes:
        values: (layers, heads), or None for no gates.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.values: Tensor | None = None
        encoder: Any = model.base_model.encoder
        for number, layer in enumerate(encoder.layer):
            layer.attention.output.dense.register_forward_pre_hook(self._hook(number))

    def _hook(self, number: int) -> Any:
        def gated(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            if self.values is None:
                return None
            gates = self.values[number]
            context = inputs[0].unflatten(-1, (len(gates), -1)) * gates[:, None].to(inputs[0].dtype)
            return (context.flatten(-2), *inputs[1:])

        return gated
