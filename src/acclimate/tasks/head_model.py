"""A model with the head of an end task: padding its rows, predicting batch by batch, and saving it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.device import Precision, autocast, copy_to, host_copy, to_device
from acclimate.base.errors import UserError
from acclimate.engine.cutting import split_micro_batches
from acclimate.models.batching import (
    logit_rows,
    micro_batch_tokens,
    padding_multiple,
    padding_policy,
    token_budget_batches,
    training_tokens,
)
from acclimate.models.encoding import skip_unread_tokens
from acclimate.models.families import language_head, reads_segments
from acclimate.models.saving import save_model, save_tokenizer
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.parts.objectives.distillation import soft_target_loss
from acclimate.parts.objectives.vocabulary import cross_entropy, map_logits


@dataclass
class HeadModel:
    """A model with the head of an end task, and its tokenizer; the base of classifiers, QA models and taggers.

    A row is a dictionary of unpadded model inputs, ``input_ids`` among them, and targets.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    """Maximum tokens per row."""

    targets: ClassVar[tuple[str, ...]] = ("labels",)
    """Entries of a row that are not read for a prediction."""
    token_targets: ClassVar[tuple[str, ...]] = ()
    """Targets with one entry per token, which are padded like the tokens."""
    pads_right: ClassVar[bool] = False
    """Whether rows are padded on the right whatever the tokenizer prefers, so that positions count from the start."""

    def __post_init__(self) -> None:
        """Copy the tokenizer for padding, with the padding side of the class."""
        padder = copy(self.tokenizer)
        if self.pads_right:
            padder.padding_side = "right"
        self._padder = padder

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def reads_segments(self) -> bool:
        """Whether the model distinguishes two segments."""
        return reads_segments(self.model)

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to the longest of them, rounded up to the model's padding multiple, and make tensors.

        Returns:
            Tensors (rows, tokens) on the CPU by name; targets of a whole row are (rows, ...).
        """
        collator = DataCollatorWithPadding(self._padder, pad_to_multiple_of=padding_multiple(self.model))
        inputs = dict(collator([{k: v for k, v in row.items() if k not in self.token_targets} for row in rows]))
        width = inputs["input_ids"].shape[1]
        for name in self.token_targets:
            if name in rows[0]:
                padded = [[*row[name], *[IGNORE_INDEX] * (width - len(row[name]))] for row in rows]
                inputs[name] = torch.tensor(padded)
        return inputs

    def batches(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the indices of the rows of each batch for inference."""
        return token_budget_batches(rows, micro_batch_tokens(self.model), padding_multiple(self.model))

    def prepare(self) -> None:
        """Move the model to the default device."""
        to_device(self.model)

    def run(self, model: PreTrainedModel, inputs: dict[str, Tensor]) -> Any:
        """Return the output of the model: its ``logits`` and, if the inputs have targets, their mean ``loss``."""
        return model(**inputs)

    def micro_batches(self, rows: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
        """Cut the rows of a training step into parts of similar length, whose graphs fit into memory."""
        ordered = sorted(rows, key=lambda row: len(row["input_ids"]))
        lengths = [len(row["input_ids"]) for row in ordered]
        limit = training_tokens(self.model, length=lengths[-1])
        return [ordered[part] for part in split_micro_batches(lengths, limit, padding_policy(self.model))]

    def loss_items(self, inputs: dict[str, Tensor]) -> float:
        """Return the number of items over which the loss of a batch, on the CPU, is a mean: here its rows."""
        return len(inputs["input_ids"])

    def read_output(self, output: Any) -> Tensor:
        """Return the part of the model's output that a prediction needs: (rows, ...)."""
        logits: Tensor = output.logits
        return logits

    @property
    def multi_label(self) -> bool:
        """Whether an answer can have any number of classes."""
        return False

    @property
    def unit(self) -> tuple[float, float]:
        """Scale and shift of :meth:`answer_logits`, where they are numbers in the unit of a task."""
        return 1.0, 0.0

    def answer_keys(self, examples: Sequence[Any]) -> list[list[Hashable]]:
        """Return what each answer of each row is about; models with other tokenizers give the same keys.

        Args:
            examples: Examples, whose rows each have one answer here.
        """
        return [[place] for place in range(len(examples))]

    def answer_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the answers of all rows in a batch, one row after the other: (answers, classes).

        Args:
            logits: Outputs of the model.
            labels: Targets of the rows, which show where answers are.
        """
        return logits

    def soft_target_loss(self, answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Return the loss of answers (answers, classes) that should be those of a teacher."""
        return soft_target_loss(answers, teacher, temperature, self.multi_label)

    @torch.inference_mode()
    def predict(self, rows: Sequence[dict[str, Any]], precision: Precision) -> list[Tensor]:
        """Return the result of :meth:`read_output` for each row, in fp32 on the CPU.

        Rows of similar length share a batch. Which other rows are predicted in the same call affects the last bits of
        a result, through padding; their order does not.

        Args:
            rows: Rows with or without targets.
            precision: Precision of the forward pass, except for the last layer, which is always computed in fp32.
        """
        result: list[Tensor] = [torch.empty(0)] * len(rows)
        self.model.eval()
        with fp32_last_layer(self.model), skip_unread_tokens(self.model):
            for batch in self.batches([rows[place]["input_ids"] for place in range(len(rows))]):
                given = self.collate([rows[place] for place in batch])
                inputs = {
                    name: copy_to(value, self.device) for name, value in given.items() if name not in self.targets
                }
                with autocast(precision, self.device):
                    output = self.run(self.model, inputs)
                for place, values in zip(batch, self.read_output(output).float().cpu(), strict=True):
                    result[place] = values
        return result

    def save(self, folder: Path, name: Path | None = None) -> None:
        """Write model and tokenizer as a Hugging Face folder, whose final name is ``name``."""
        save_model(self.model, folder, name)
        kept = copy(self.tokenizer)
        kept.model_max_length = self.max_length  # so that pipelines cut texts as the training did
        save_tokenizer(kept, folder)


def check_finite(outputs: Iterable[Tensor]) -> None:
    """Check the outputs of a model.

    Raises:
        UserError: If one is NaN or infinite.
    """
    if not all(bool(values.isfinite().all()) for values in outputs):
        raise UserError("The fine-tuned model returns NaN or infinite values; lower the learning rate.")


def continuation_losses(model: PreTrainedModel, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss of the tokens that a causal model has to predict in each row, and their number: (rows,).

    Args:
        model: A causal language model.
        hidden: Its last hidden states (rows, tokens, width).
        wanted: The token after each one that is to be predicted, or :data:`IGNORE_INDEX`: (rows, tokens).
    """
    count, width = wanted.shape
    places = copy_to((host_copy(wanted).flatten() != IGNORE_INDEX).nonzero()[:, 0], wanted.device)
    states, targets = hidden.flatten(0, 1).index_select(0, places), wanted.flatten()[places]
    losses = map_logits(cross_entropy, [language_head(model)], [states], targets, rows=logit_rows(model))
    totals = losses.new_zeros(2, count).index_add(1, places // width, torch.stack([losses, torch.ones_like(losses)]))
    return totals[0], totals[1]


@contextmanager
def fp32_last_layer(model: PreTrainedModel) -> Iterator[None]:
    """Compute in fp32, also under autocast, the linear layers that may return the logits.

    In bfloat16 two logits of similar size are often equal, and the first class would win every tie.
    """

    def recompute(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not isinstance(module, nn.Linear) or output.dtype == torch.float32:
            return output
        with torch.autocast(output.device.type, enabled=False):
            return nn.functional.linear(inputs[0].float(), module.weight, module.bias)

    width = model.config.num_labels
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == width]
    hooks = [layer.register_forward_hook(recompute) for layer in last]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
