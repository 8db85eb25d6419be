"""What a fine-tuned classifier thinks of buffers: token ids in, probabilities out, always in fp32."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from acclimate.backbone.memory import micro_batch_tokens
from acclimate.corpus.tokenizing import encode
from acclimate.errors import UserError
from acclimate.selective.annotation import Unit
from acclimate.tasks.batching import token_budget_batches
from acclimate.tasks.classifier import Classifier, diverged


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer puts around a text, or around and between two.

    Attributes:
        before: Ids before the (first) text.
        between: Ids between two texts; none for a single text.
        after: Ids after the last text.
        segments: Segment numbers of the five stretches before, first text, between, second text, after.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segments: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, pair: bool) -> Frame:
        """Find the frame by what encoding with special tokens adds to two probes.

        Raises:
            UserError: If the tokenizer does something else with a text.
        """
        for first, second in (("a", "b"), ("1", "2"), ("the", "of")):
            one, two = encode(tokenizer, [first, second])
            texts = (first, second) if pair else (first,)
            full = copy.deepcopy(tokenizer)(*texts, truncation=False, padding=False, return_token_type_ids=True)
            ids, kinds = list(full["input_ids"]), list(full.get("token_type_ids") or [0] * len(full["input_ids"]))
            start = _find(ids, one, 0)
            behind = -1 if start < 0 else start + len(one)
            later = _find(ids, two, behind) if pair and start >= 0 else behind
            if not one or later < 0:
                continue
            end = later + (len(two) if pair else 0)
            cuts = [(0, start), (start, behind), (behind, later), (later, end), (end, len(ids))]
            numbers = [tuple(kinds[a:b]) for a, b in cuts]
            parts = [tuple(ids[a:b]) for a, b in cuts]
            middle = (numbers[0], numbers[1][0], numbers[2], (numbers[3] or (0,))[0], numbers[4])
            return cls(parts[0], parts[2], parts[4], middle)
        raise UserError(
            f"The tokenizer {type(tokenizer).__name__} does not put its special tokens around the text: "
            "important tokens cannot be found with it."
        )

    @property
    def specials(self) -> int:
        """How many tokens the frame adds."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return ids and segment numbers of a row."""
        head, one, middle, two, tail = self.segments
        ids = [*self.before, *first, *self.between, *second, *self.after]
        return ids, [*head, *[one] * len(first), *middle, *[two] * len(second), *tail]


class ClassifierConfidence:
    """The probabilities of a fine-tuned classifier, in fp32: a token must not be decided by a rounding."""

    def __init__(self, classifier: Classifier, pair: bool, tokens: int | None = None) -> None:
        """Prepare.

        Args:
            classifier: On its device.
            pair: Whether its rows have a second text.
            tokens: Tokens that one forward reads, padding included; by default what suits the device.
        """
        self.classifier, self.frame = classifier, Frame.of(classifier.tokenizer, pair)
        self.tokens = tokens or micro_batch_tokens(classifier.model)
        self._segments = getattr(classifier.model.config, "type_vocab_size", 0) > 1
        self.read = 0
        """Real tokens that were read so far."""

    @torch.inference_mode()
    def __call__(self, requests: Sequence[tuple[Unit, Sequence[int]]]) -> np.ndarray:
        """Return the softmax over the classes (requests, classes)."""
        rows = [self.frame.around(buffer, unit.second or ()) for unit, buffer in requests]
        batches = token_budget_batches([ids for ids, _ in rows], self.tokens)
        self.classifier.model.eval()
        # One transfer for all batches: an accelerator is not waited for in between.
        found = torch.cat([self._read([rows[place] for place in batch]) for batch in batches]).cpu().numpy()
        if not np.isfinite(found).all():
            raise diverged()
        result = np.empty_like(found)
        result[np.concatenate([np.array(batch) for batch in batches])] = found
        return result

    def _read(self, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
        width = max(len(ids) for ids, _ in rows)
        pad = int(self.classifier.tokenizer.pad_token_id or 0)
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row, _ in rows])
        lengths = torch.tensor([len(row) for row, _ in rows])
        self.read += int(lengths.sum())
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": (torch.arange(width)[None, :] < lengths[:, None]).long(),
        }
        if self._segments:
            inputs["token_type_ids"] = torch.tensor([[*kinds, *[0] * (width - len(kinds))] for _, kinds in rows])
        device = self.classifier.device
        logits = self.classifier.model(**{name: value.to(device) for name, value in inputs.items()}).logits
        return logits.double().softmax(-1)


def _find(ids: Sequence[int], part: Sequence[int], start: int) -> int:
    """Return where ``part`` begins in ``ids``, from ``start`` on; -1 if nowhere."""
    places = range(start, len(ids) - len(part) + 1)
    return next((place for place in places if list(ids[place : place + len(part)]) == list(part)), -1)
