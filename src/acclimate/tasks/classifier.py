"""A classifier made of a checkpoint: loading it, feeding it examples, and asking it for probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from acclimate.backbone import longest_text
from acclimate.backbone.attention import NAME as ATTENTION
from acclimate.backbone.checkpoints import from_pretrained, quiet
from acclimate.backbone.device import Precision, autocast, micro_batch_tokens, writes_attention_out
from acclimate.backbone.dropout import cheapen_dropout
from acclimate.backbone.loading import load_tokenizer
from acclimate.errors import UserError, first_line
from acclimate.modules import virtual_ids
from acclimate.tasks.batching import token_budget_batches
from acclimate.tasks.data import Example
from acclimate.tasks.loop import diverged


@dataclass
class Classifier:
    """A sequence classification model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_length: int
    """Tokens that are read of an example; of a pair the longer text is cut first."""

    def __post_init__(self) -> None:
        """Find out what inputs the model takes."""
        # The model decides, not the tokenizer: that may give segment numbers to a model with one segment or none, or,
        # saved without its class, keep them from a model that was trained with them.
        self._segments = getattr(self.model.config, "type_vocab_size", 0) > 1
        self._collate = DataCollatorWithPadding(self.tokenizer)

    @property
    def multi_label(self) -> bool:
        """Whether the classes do not exclude each other."""
        return self.model.config.problem_type == "multi_label_classification"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def features(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the model inputs of each example, not padded, with its label.

        In a multi-label task the label is a list of floats, one for each class: one where it holds, else zero.
        """
        texts = [example.text for example in examples]
        seconds = [example.text_pair for example in examples if example.text_pair is not None]
        read = self.tokenizer(
            texts,
            seconds or None,
            truncation="longest_first",
            max_length=self.max_length,
            return_token_type_ids=self._segments,
        )
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * self._segments
        return [
            {**{name: read[name][place] for name in names}, "labels": self._target(example)}
            for place, example in enumerate(examples)
        ]

    def _target(self, example: Example) -> int | list[float]:
        if not self.multi_label:
            return example.places[0]
        return [float(number in example.places) for number in range(self.model.config.num_labels or 0)]

    def collate(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Pad rows to the longest of them and make tensors of them."""
        return self._collate(rows)

    @torch.inference_mode()
    def probabilities(self, examples: Sequence[Example], precision: Precision) -> Tensor:
        """Return the softmax over the classes: (examples, classes), fp32 on the CPU, in the order of ``examples``.

        In a multi-label task it is the sigmoid of each.

        The texts are read by length in batches of similar length. What comes out for an example depends on which
        others are asked for with it (in the last bits, through padding), but not on their order.

        Raises:
            UserError: If the model gives something that is not a number.
        """
        rows = self.features(examples)
        result = torch.empty(len(rows), int(self.model.config.num_labels or 0))
        self.model.eval()
        with _exact_last_layer(self.model):
            for batch in token_budget_batches([row["input_ids"] for row in rows], micro_batch_tokens(self.device)):
                inputs = self.collate([rows[place] for place in batch])
                inputs.pop("labels")
                with autocast(precision, self.device):
                    logits = self.model(**{name: value.to(self.device) for name, value in inputs.items()}).logits
                exact = logits.float()
                result[batch] = (exact.sigmoid() if self.multi_label else exact.softmax(-1)).cpu()
        if not bool(result.isfinite().all()):
            raise diverged()
        return result


def load_classifier(
    path: str | Path, labels: Sequence[str], max_length: int, device: torch.device, multi_label: bool = False
) -> Classifier:
    """Load a checkpoint of any kind as a classifier in fp32, on the CPU.

    What the checkpoint lacks is drawn from torch's global generator: seed it before. That is the classification head
    and, in a checkpoint of a masked language model whose architecture has one (BERT), the pooler in front of it, which
    starts near the identity. A checkpoint that already is a classifier with as many classes goes on from its head.

    Args:
        path: A model folder, or a name on the hub.
        labels: The classes.
        max_length: Tokens that are read of an example, at most; never more than the model can read.
        device: Where it is going to run, which decides how attention is computed.
        multi_label: Whether an example may have any number of labels: each class then has a sigmoid of its own.

    Raises:
        UserError: If there is no model, or its encoder is incomplete.
    """
    local = str(path).startswith((".", "/", "~")) or Path(path).exists()
    if local and not (Path(path) / "config.json").is_file():
        raise UserError(f"'{path}' is no Hugging Face model folder: there is no config.json in it.")
    tokenizer = load_tokenizer(path)
    names = dict(enumerate(labels))
    try:
        config = AutoConfig.from_pretrained(
            str(path), num_labels=len(names), id2label=names, label2id={label: place for place, label in names.items()}
        )
        config.problem_type = f"{'multi' if multi_label else 'single'}_label_classification"
        with quiet():
            model, info = from_pretrained(
                AutoModelForSequenceClassification,
                path,
                config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # of the head of another task; the encoder is checked below
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"No classifier could be made of '{path}': {first_line(error)}") from error
    cheapen_dropout(model)
    if writes_attention_out(device):
        _write_attention_out(model)
    fresh = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
    lost = sorted(name for name in fresh if name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in name)
    if lost:
        raise UserError(f"The encoder weights in '{path}' are incomplete: {len(lost)} missing, such as {lost[0]}.")
    _start_pooler(model, fresh)
    rows = model.get_input_embeddings().weight.shape[0]
    if tokenizer.pad_token_id is None:  # decoders
        tokenizer.pad_token = tokenizer.eos_token
    if len(tokenizer) > rows:
        raise UserError(f"The tokenizer of '{path}' has {len(tokenizer)} tokens, its model only {rows}.")
    model.config.pad_token_id = tokenizer.pad_token_id
    wanted = max_length + len(virtual_ids(tokenizer))
    length = min(wanted, longest_text(model) or tokenizer.model_max_length, tokenizer.model_max_length)
    if length < 4:
        raise UserError(f"max_length={max_length} leaves no room for text; ask for at least 4 tokens.")
    return Classifier(model, tokenizer, length)


def _start_pooler(model: PreTrainedModel, fresh: list[str]) -> None:
    """Let a new pooler start near the identity: its random matrix is added to it.

    A random matrix in front of a random classifier forgets what the first token says, and learning it anew costs a
    small model its first epochs.
    """
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in fresh:
            weight = parameters.get(name)
            if ".pooler." in name and weight is not None and weight.dim() == 2 and weight.shape[0] == weight.shape[1]:
                weight.add_(torch.eye(len(weight)))


def _write_attention_out(model: PreTrainedModel) -> None:
    try:
        model.set_attn_implementation(ATTENTION)
    except (ValueError, AttributeError):  # an architecture of its own kind keeps its own attention
        return


@contextmanager
def _exact_last_layer(model: PreTrainedModel) -> Iterator[None]:
    """Compute the layers that may give the logits in fp32 also under autocast.

    In bfloat16 two logits of nearly the same size are often equal; the first class would win all of these.
    """

    def exact(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not isinstance(module, nn.Linear) or output.dtype == torch.float32:
            return output
        with torch.autocast(output.device.type, enabled=False):
            return nn.functional.linear(inputs[0].float(), module.weight, module.bias)

    width = model.config.num_labels
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.out_features == width]
    hooks = [layer.register_forward_hook(exact) for layer in last]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
