"""The two phases of a student: what it learns from the teacher, then the labels; and a look at it after each epoch.

What can be chosen of a distillation, and which choices have no sense.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, TrainerState

from acclimate.device import Precision, autocast
from acclimate.errors import UserError, unknown_name_error
from acclimate.files import read_json, write_json
from acclimate.modules.connectors import Connectors, check_connector
from acclimate.objectives.distillation import activation_boundary_loss, count_disagreements, soft_target_loss
from acclimate.tasks.classification.classifier import Classifier
from acclimate.tasks.distillation.teacher_targets import TeacherTargets, first_token_states
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.trainer import TrainingHooks, phase_schedule, supervised_loss
from acclimate.training.steps import ResumableCallback

CONNECTOR_FILE = "connector.safetensors"
MAX_TRACKED_EXAMPLES = 512
"""Train examples on which the disagreement is measured, at most: a look must be cheap beside an epoch."""


@dataclass
class DistillationLoss:
    """What the student learns from the teacher: the loss of the first phase.

    Attributes:
        signs: What the teacher said about the train examples.
        connectors: Its ``student`` is applied to the student.
        objective: ``"boundary"`` or ``"kl"``.
        margin, scale: See :func:`acclimate.objectives.distillation.activation_boundary_loss`.
        temperature, several: See :func:`acclimate.objectives.distillation.soft_target_loss`.
        precision: Of the forward.
    """

    signs: TeacherTargets
    connectors: Connectors
    objective: Literal["boundary", "kl"]
    margin: float
    scale: float
    temperature: float
    several: bool
    precision: Precision

    def loss(self, model: Any, inputs: dict[str, Tensor], places: Sequence[int]) -> Tensor:
        """Return the loss of a batch.

        Args:
            model: The student.
            inputs: Of the student, without labels.
            places: Which train examples they are (rows,).
        """
        device = inputs["input_ids"].device
        with autocast(self.precision, device):
            if self.objective == "kl":
                logits = model(**inputs).logits
                return soft_target_loss(
                    logits, self.signs.logits[list(places)].to(device), self.temperature, self.several
                )
            states = first_token_states(model, inputs)
        return activation_boundary_loss(
            self.connectors.student(states.float()), self.signs.active(places).to(device), self.margin, self.scale
        )


class DisagreementCallback(ResumableCallback):
    """Measures before the first step and after each epoch how many units are active in only one of the models."""

    def __init__(
        self, classifier: Classifier, rows: list[dict[str, Any]], distillation_loss: DistillationLoss, seed: int
    ) -> None:
        """Choose the examples.

        Args:
            classifier: The student.
            rows: Its ``features`` of the train examples.
            distillation_loss: What it learns.
            seed: Of the choice.
        """
        self.classifier, self.distillation_loss = classifier, distillation_loss
        self.places = sorted(
            random.Random(f"{seed}/watch").sample(range(len(rows)), min(MAX_TRACKED_EXAMPLES, len(rows)))
        )
        self.rows = [rows[place] for place in self.places]
        self.curve: list[float] = []
        """Units that differ, a mean over the examples (Eq. 4): before training, then after each epoch."""

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
        model, device = self.classifier.model.eval(), self.classifier.device
        total = 0
        for batch in self.classifier.batches([row["input_ids"] for row in self.rows]):
            inputs = self.classifier.collate([self.rows[place] for place in batch])
            for name in set(inputs) - {"input_ids", "attention_mask", "token_type_ids"}:
                inputs.pop(name)
            with autocast(self.distillation_loss.precision, device):
                states = first_token_states(model, {name: value.to(device) for name, value in inputs.items()})
            active = self.distillation_loss.signs.active([self.places[place] for place in batch]).to(device)
            total += int(count_disagreements(self.distillation_loss.connectors.student(states.float()), active).sum())
        return total / len(self.rows)


class ConnectorOptimizerCallback(ResumableCallback):
    """Trains the student's connector beside the student, at a rate of its own that falls as that of the student."""

    def __init__(self, connectors: Connectors, learning_rate: float) -> None:
        """Create its optimizer."""
        self.rate, self.connector = learning_rate, connectors.student
        self.optimizer = torch.optim.AdamW(connectors.student.parameters(), learning_rate, weight_decay=0.0)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Make a step; in the second phase there is no gradient, and nothing happens."""
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


def build_phase_hooks(
    distillation_loss: DistillationLoss,
    classifier: Classifier,
    rows: list[dict[str, Any]],
    options: FinetuneOptions,
    switch: int,
    schedule: Literal["shared", "each"],
    connector_learning_rate: float,
) -> tuple[TrainingHooks, DisagreementCallback]:
    """Plan the training of a student.

    Args:
        distillation_loss: What the first phase teaches.
        classifier: The student.
        rows: Its train examples, each with its ``place`` among those that the teacher read.
        options: Those of training.
        switch: Epochs of the first phase.
        schedule: One of the learning rate for both phases, or one for each.
        connector_learning_rate: Peak of the connector of the student, if there is one to learn.

    Returns:
        What the training loop takes, and what watches it.
    """
    epoch_steps = math.ceil(len(rows) / options.batch_size)

    labels_loss = supervised_loss(options.confidence_penalty)

    def loss(model: PreTrainedModel, inputs: dict[str, Tensor], step: int) -> Tensor:
        places = inputs.pop("place")
        if step >= switch * epoch_steps:
            return labels_loss(model, inputs, step)
        inputs.pop("labels")
        return distillation_loss.loss(model, inputs, places.tolist())

    watch = DisagreementCallback(classifier, rows, distillation_loss, options.seed)
    callbacks: list[ResumableCallback] = [watch]
    if distillation_loss.connectors.kind == "student":
        callbacks.append(ConnectorOptimizerCallback(distillation_loss.connectors, connector_learning_rate))
    own = (
        phase_schedule(switch * epoch_steps, options.epochs * epoch_steps, options.warmup)
        if schedule == "each"
        else None
    )
    return TrainingHooks(loss, own, [lambda _, each=each: each for each in callbacks]), watch


def count_distillation_epochs(epochs: int, share: float) -> int:
    """Return how many epochs distil: the whole part of ``share * epochs``, whatever floats make of the product."""
    return math.floor(share * epochs + 1e-9)


OBJECTIVES = ("boundary", "kl")
SCHEDULES = ("shared", "each")
CHECKED_OPTIONS = (
    *("objective", "connector", "schedule", "distill_share", "epochs"),
    *("margin", "scale", "temperature", "connector_learning_rate"),
)
"""Arguments of :func:`acclimate.tasks.distill` that :func:`check_choices` takes."""


def check_distill_options(
    objective: str, connector: str, schedule: str, distill_share: float, epochs: int, **numbers: float
) -> None:
    """Check what :func:`acclimate.tasks.distill`, which documents it, was asked for.

    Args:
        objective: One of :data:`OBJECTIVES`.
        connector: One of ``Connector``; whether it suits both widths is checked where these are known.
        schedule: One of :data:`SCHEDULES`.
        distill_share: Of the epochs.
        epochs: Of both phases.
        **numbers: Others, by name: all above zero, but a margin can be zero.

    Raises:
        UserError: If a choice has no sense.
    """
    for name, value, choices in (("objective", objective, OBJECTIVES), ("schedule", schedule, SCHEDULES)):
        if value not in choices:
            raise unknown_name_error(name, value, choices)
    check_connector(connector)
    if objective == "kl" and connector == "student":
        raise UserError("connector='student' has nothing to learn from with objective='kl'; leave it out.")
    if not 0 <= distill_share <= 1:
        raise UserError(f"distill_share={distill_share} must lie between 0 and 1.")
    if distill_share and not count_distillation_epochs(epochs, distill_share):
        raise UserError(
            f"distill_share={distill_share} of epochs={epochs} is not one whole epoch, so nothing would be distilled; "
            "give more epochs or a larger share, or 0 if that is what you want."
        )
    for name, number in numbers.items():
        if not (0 < number < math.inf or (name == "margin" and number == 0)):
            raise UserError(f"{name}={number} must be above 0.")
