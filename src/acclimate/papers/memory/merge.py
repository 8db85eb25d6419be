"""A model whose predictions are mixed with those of a memory (Memory Decoder, Cao et al., 2025)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedModel

from acclimate.api import (
    Merge,
    MergeLoss,
    Merger,
    MixedMemory,
    ModelName,
    UserError,
    language_model_loss,
    load_language_model,
    mix_logits,
    register_merge,
    to_device,
)


@register_merge("memory", paper="Cao et al., 2025", summary="losses with the predictions of a small model mixed in")
@dataclass(frozen=True)
class MemoryMix(Merge):
    """Merges no weights: it measures a model whose predictions are mixed with those of a memory.

    :class:`MemoryProcessor` generates with one of the shares.

    Attributes:
        memory: Smaller model of the same tokens; the method ``memory`` of ``adapt`` trains one.
    """

    formula: ClassVar[str] = "(1 - alpha) p + alpha p of the memory, for every token"
    several: ClassVar[bool | None] = False
    models: ClassVar[tuple[str, ...]] = ("memory",)
    path: ClassVar[tuple[str, str] | None] = ("model", "memory")
    merges_weights: ClassVar[bool] = False
    in_studies: ClassVar[bool] = False
    main: ClassVar[str] = "memory"
    memory: ModelName

    @property
    def writes_model(self) -> bool:
        """Never."""
        return False

    def measure(
        self, model: str, merger: Merger | None, point: Path, max_length: int
    ) -> Callable[[float], AbstractContextManager[MergeLoss]]:
        """Return the function of the share of the memory that measures the mixture."""
        return measure_memory(model, self.memory, max_length)


def measure_memory(
    model: str | Path, memory: str | Path, max_length: int
) -> Callable[[float], AbstractContextManager[MergeLoss]]:
    """Load a model and a memory, to be measured by :func:`acclimate.merging.path.measure_path`.

    Returns:
        A function of the share of the memory that returns the function that measures the loss of the mixture.

    Raises:
        UserError: If one cannot be loaded or has no language-model head, or they differ in their kind or tokens.
    """
    own, other = load_language_model(model), load_language_model(memory)
    for name, loaded in ((model, own), (memory, other)):
        if loaded.absent_head:
            raise UserError(f"'{name}' has no language-model head, so it has no predictions to mix.")
        to_device(loaded.model)
    if own.kind != other.kind:
        raise UserError(f"'{memory}' is a {other.kind.name} language model, and '{model}' is {own.kind.name}.")
    if own.tokenizer.get_vocab() != other.tokenizer.get_vocab():
        raise UserError(f"'{memory}' has other tokens than '{model}'; train a memory with the same tokenizer.")
    loss = partial(language_model_loss, own.model, tokenizer=own.tokenizer, max_length=max_length)
    return lambda share: nullcontext(partial(loss, memory=MixedMemory(other.model, share)))


class MemoryProcessor(LogitsProcessor):
    """Mixes the next-token probabilities of a memory into those of the model that generates.

    Example:
        ``model.generate(ids, logits_processor=LogitsProcessorList([MemoryProcessor(memory, 0.25)]))``

    It keeps the keys and values of the tokens that it has read, and reads all of them again where they changed, as
    with beams.
    """

    def __init__(self, memory: PreTrainedModel, share: float = 0.25) -> None:
        """Set the memory.

        Args:
            memory: A causal model with the tokens of the model that generates.
            share: Share of its probabilities (paper: 0.25), between 0 and 1.

        Raises:
            ValueError: If the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"the share of a memory is between 0 and 1, not {share:g}")
        self._memory, self._share = memory.eval(), share
        self._read: Tensor | None = None
        self._cache: object = None

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the logarithms of the mixed probabilities (rows, vocabulary).

        Args:
            input_ids: The tokens so far, without padding (rows, tokens).
            scores: Logits of the model (rows, vocabulary).
        """
        before = 0 if self._read is None else self._read.shape[1]
        if not (before and before < input_ids.shape[1] and torch.equal(input_ids[:, :before], self._read)):  # type: ignore[arg-type]
            before, self._cache = 0, None
        output = self._memory(
            input_ids=input_ids[:, before:].to(self._memory.device), past_key_values=self._cache, use_cache=True
        )
        self._read, self._cache = input_ids.clone(), output.past_key_values
        mixed = mix_logits(scores.float(), output.logits[:, -1].float().to(scores.device), self._share)
        return mixed.masked_fill(scores == -torch.inf, -torch.inf)  # what earlier processors forbid
