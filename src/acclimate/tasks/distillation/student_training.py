"""The two phases of a student's training: distillation from the teacher, then training on the labels."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, TrainerState

from acclimate.base.device import Precision, autocast, copy_to, host_copy
from acclimate.base.files import read_json, write_json
from acclimate.engine.callbacks import ResumableCallback
from acclimate.engine.trainer import StepTrainer
from acclimate.parts.modules.connectors import Connectors
from acclimate.parts.objectives.distillation import activation_boundary_loss, count_disagreements
from acclimate.tasks.distillation.teacher_targets import TeacherTargets, first_token_states
from acclimate.tasks.head_model import HeadModel
from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.trainer import TrainingHooks, phase_schedule, supervised_loss

CONNECTOR_FILE = "connector.safetensors"
MAX_TRACKED_EXAMPLES = 512
"""Maximum train examples on which the disagreement is measured, so that it takes little time."""


@dataclass
class DistillationLoss:
    """The loss of the first phase, in which the student learns from the teacher.

    Attributes:
        head: The student.
        targets: The teacher's targets for its rows.
        connectors: The projections, of which ``student`` is applied to the student's representations; None if no
            units are compared.
        objective: ``"boundary"`` or ``"kl"``.
        margin, scale: See :func:`acclimate.parts.objectives.distillation.activation_boundary_loss`.
        temperature: See :meth:`HeadModel.soft_target_loss`.
        precision: Precision of the forward pass.
    """

    head: HeadModel
    targets: TeacherTargets
    connectors: Connectors | None
    objective: str
    margin: float
    scale: float
    temperature: float
    precision: Precision

    def loss(self, model: Any, inputs: dict[str, Tensor], labels: Tensor, indices: Sequence[int]) -> Tensor:
        """Return the loss of a batch.

        Args:
            model: The student.
            inputs: Inputs of the student by name (rows, tokens), without labels.
            labels: The labels, which only show where the answers of the student are.
            indices: Indices of its rows (rows,).
        """
        device = inputs["input_ids"].device
        with autocast(self.precision, device):
            if self.objective == "kl":
                logits = self.head.run(model, inputs).logits
                answers, wanted = self.head.answer_logits(logits, labels), self.targets.answers(indices)
                known = wanted.isfinite().all(-1)
                answers = answers.index_select(0, copy_to(known.nonzero()[:, 0], device))
                return self.head.soft_target_loss(answers, copy_to(wanted[known], device), self.temperature)
            states = first_token_states(model, inputs)
        assert self.connectors is not None
        return activation_boundary_loss(
            self.connectors.student(states.float()),
            copy_to(self.targets.active(indices), device),
            self.margin,
            self.scale,
        )

    def items(self, indices: Sequence[int]) -> int:
        """Return the number of rows, or of answers that the teacher has, over which the loss is a mean."""
        known = self.targets.answers(indices).isfinite().all(-1) if self.objective == "kl" else indices
        return int(known.sum()) if isinstance(known, Tensor) else len(known)


class DisagreementCallback(ResumableCallback):
    """Measures before the first step and after each epoch how many units are active in only one of the models."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        distillation_loss: DistillationLoss,
        connectors: Connectors,
        seed: int,
    ) -> None:
        """Choose the examples.

        Args:
            rows: The train examples as model inputs of the student.
            distillation_loss: The loss of the first phase.
            connectors: Its projections.
            seed: Random seed of the choice.
        """
        self.head, self.distillation_loss, self.connectors = distillation_loss.head, distillation_loss, connectors
        self.indices = sorted(
            random.Random(f"{seed}/watch").sample(range(len(rows)), min(MAX_TRACKED_EXAMPLES, len(rows)))
        )
        self.rows = [rows[index] for index in self.indices]
        self.curve: list[float] = []
        """Mean number of units that differ (Eq. 4): before training, then after each epoch."""

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Measure the student before training."""
        if state.global_step == 0:
            self.curve.append(self.measure())

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Measure the student after an epoch."""
        self.curve.append(self.measure())

    def save(self, checkpoint: Path) -> None:
        """Write the curve so far."""
        write_json(checkpoint / "disagreement.json", self.curve)

    def load(self, checkpoint: Path) -> None:
        """Read the curve."""
        self.curve[:] = read_json(checkpoint / "disagreement.json")

    @torch.inference_mode()
    def measure(self) -> float:
        """Return the mean number of units that differ, without dropout."""
        model, device = self.head.model.eval(), self.head.device
        total = 0
        for batch in self.head.batches([row["input_ids"] for row in self.rows]):
            inputs = self.head.collate([self.rows[index] for index in batch])
            for name in set(inputs) - {"input_ids", "attention_mask", "token_type_ids"}:
                inputs.pop(name)
            with autocast(self.distillation_loss.precision, device):
                states = first_token_states(model, {name: value.to(device) for name, value in inputs.items()})
            active = self.distillation_loss.targets.active([self.indices[index] for index in batch]).to(device)
            total += int(count_disagreements(self.connectors.student(states.float()), active).sum())
        return total / len(self.rows)


class ConnectorOptimizerCallback(ResumableCallback):
    """Trains the student's connector with its own learning rate, on the schedule of the student."""

    def __init__(self, connectors: Connectors, learning_rate: float) -> None:
        self.rate, self.connector = learning_rate, connectors.student
        self.optimizer = torch.optim.AdamW(connectors.student.parameters(), learning_rate, weight_decay=0.0)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Take a step; in the second phase there is no gradient, so nothing changes."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * trainer["lr_scheduler"].get_last_lr()[0] / args.learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, checkpoint: Path) -> None:
        """Write the weights of the connector and the state of its optimizer."""
        tensors = {f"weights.{name}": value for name, value in self.connector.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
        save_file({name: value.contiguous() for name, value in tensors.items()}, checkpoint / CONNECTOR_FILE)

    def load(self, checkpoint: Path) -> None:
        """Read what :meth:`save` wrote."""
        tensors = load_file(checkpoint / CONNECTOR_FILE)
        weights = {name[len("weights.") :]: value for name, value in tensors.items() if name.startswith("weights.")}
        self.connector.load_state_dict(weights)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                number, _, entry = rest.partition(".")
                state.setdefault(int(number), {})[entry] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})


def _constant(callback: ResumableCallback, trainer: StepTrainer) -> ResumableCallback:
    return callback


def build_phase_hooks(
    distillation_loss: DistillationLoss,
    rows: list[dict[str, Any]],
    options: ResolvedOptions,
    switch: int,
    schedule: Literal["shared", "each"],
    connector_learning_rate: float,
) -> tuple[TrainingHooks, list[float]]:
    """Set up the two phases of a student's training.

    Args:
        distillation_loss: The loss of the first phase.
        rows: The student's train examples, each with its index (``index``).
        options: Options of training.
        switch: Number of epochs of the first phase.
        schedule: One learning-rate schedule for both phases, or one for each.
        connector_learning_rate: Peak learning rate of the student's connector, if it is learned.

    Returns:
        The hooks of the training; and the curve of the disagreement, which the training fills if units are compared.
    """
    epoch_steps = math.ceil(len(rows) / options.batch_size)

    labels_loss = supervised_loss(distillation_loss.head, options.confidence_penalty)

    def loss(model: PreTrainedModel, inputs: dict[str, Tensor], step: int) -> Tensor:
        indices = host_copy(inputs.pop("index")).tolist()
        if step >= switch * epoch_steps:
            return labels_loss(model, inputs, step)
        return distillation_loss.loss(model, inputs, inputs.pop("labels"), indices)

    def items(inputs: dict[str, Tensor], step: int) -> float:
        if step >= switch * epoch_steps:
            return distillation_loss.head.loss_items(inputs)
        return distillation_loss.items(inputs["index"].tolist())

    curve: list[float] = []
    callbacks: list[ResumableCallback] = []
    if (connectors := distillation_loss.connectors) is not None:
        watch = DisagreementCallback(rows, distillation_loss, connectors, options.seed)
        callbacks, curve = [watch], watch.curve
        if connectors.kind == "student":
            callbacks.append(ConnectorOptimizerCallback(connectors, connector_learning_rate))
    own = (
        phase_schedule(switch * epoch_steps, options.epochs * epoch_steps, options.warmup)
        if schedule == "each"
        else None
    )
    return TrainingHooks(loss, own, items, [partial(_constant, callback) for callback in callbacks]), curve
