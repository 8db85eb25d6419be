"""Number of tokens per forward pass, and padding of batches.

The numbers depend on the device and its total memory, never on what is free at the moment, so that a resumed run on
the same machine cuts the same micro-batches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from acclimate.base.errors import UserError, environment_integer
from acclimate.models.families import kernels_of, longest_text

TRAINED_BYTES, FROZEN_BYTES = 16, 4
"""Bytes per weight in training: fp32 value, gradient and two moments, or only the value."""
FEWEST_BATCHES = 2**40
"""Overhead of a batch, in tokens, that outweighs any amount of padding."""


class PaddingPolicy(NamedTuple):
    """Padding of rows, and the cost of padding and batches.

    On a CPU, oneDNN compiles a kernel for each new shape of a matrix product. Batches that are padded to their longest
    text have hundreds of shapes, which costs more than padding to a few common widths.
    """

    multiple: int = 1
    """Rows are padded to a multiple of this, or to ``max_width`` if that is less."""
    batch_overhead: int = FEWEST_BATCHES
    """Fixed cost of one more forward and backward pass, in tokens."""
    padding_cost: float = 1.0
    """Cost of a padding token relative to a real one."""
    max_width: int | None = None
    """Maximum tokens that the model can read."""

    def padded_width(self, width: int) -> int:
        """Return the width that rows of ``width`` tokens are padded to."""
        padded = round_up(width, self.multiple)
        return padded if self.max_width is None else max(width, min(padded, self.max_width))

    def cost(self, real: Any, padded: Any) -> Any:
        """Return the cost, in tokens, of ``real`` tokens in a batch of ``padded`` with padding; numbers or arrays."""
        return real + self.padding_cost * (padded - real)

    def batch_cost(self, text: torch.Tensor) -> float:
        """Return the cost of a micro-batch in tokens; ``text`` is -1 at padding (rows, tokens)."""
        return float(self.cost(int((text >= 0).sum()), text.numel()))


MINIMAL_PADDING = PaddingPolicy()
"""Pad to the longest row, and make as few batches as possible."""
POLICIES = {"cpu": PaddingPolicy(8, 256), "cuda": PaddingPolicy(batch_overhead=8_192)}
ATTENTION_SHARE = 0.2
"""Share of attention in the time per token (MiniLM shape, bf16): the relative cost of padding in unpadded models."""
POSITION_MULTIPLE = {"cpu": 32}
"""The vocabulary projection runs at a number of positions that is a multiple of this."""


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not less than ``number``."""
    return -(-number // multiple) * multiple


def padding_policy(model: PreTrainedModel) -> PaddingPolicy:
    """Return the padding policy of a model on its device."""
    policy = POLICIES.get(model.device.type, POLICIES["cuda"])._replace(max_width=longest_text(model))
    kernels = kernels_of(model)
    if kernels.varlen_attention:  # padding is never read, so the fewest micro-batches are the fastest
        return policy._replace(padding_cost=0.0, batch_overhead=FEWEST_BATCHES)
    return policy._replace(padding_cost=ATTENTION_SHARE) if kernels.unpadding else policy


def padding_multiple(model: PreTrainedModel) -> int:
    """Return the multiple that a tokenizer should pad rows to; 1 if the model cannot read the widest such row."""
    policy = padding_policy(model)
    return policy.multiple if policy.max_width is None or policy.max_width % policy.multiple == 0 else 1


def chosen_positions(chosen: torch.Tensor, device: str | None = None) -> torch.Tensor:
    """Return the indices of true entries in order, then copies of the first until their number suits the device.

    Args:
        chosen: Boolean, of any shape. Indices refer to its flattened form.
        device: Type of the device that uses them; by default the device type of ``chosen``.

    Returns:
        Indices, at least as many as there are true entries; none if there are none.
    """
    places = chosen.flatten().nonzero()[:, 0]
    missing = round_up(len(places), POSITION_MULTIPLE.get(device or places.device.type, 1)) - len(places)
    return torch.cat([places, places[:1].expand(missing)]) if missing else places


BYTES, SCORE_BYTES, INPUT_BYTES = 72, 6, 4
"""Bytes of the autograd graph per token in fp32: per layer and unit of width; with eager attention, per layer, head
and token of its text; and per layer and unit of width for the input of a layer alone. At 128 tokens that is 0.22 MB
for MiniLM and 0.77 MB for BERT-base; in bf16 it is half as much."""
DEFAULT_LENGTH = 128
FASTEST_TOKENS = {"cpu": 1_024, "cuda": 65_536}
"""Tokens (with padding) of one view per forward pass in training. On a CPU they fit into the cache."""
MULTI_VIEW_FACTOR = 2
"""With several views, a forward pass on a CPU reads this many times as many tokens in total."""
MAX_GRAPH_TOKENS = {"cpu": 16_384, "cuda": 131_072}
"""Maximum tokens, over all views, whose graphs are kept at once: on a CPU, 64 texts of 85 tokens in three views."""
INFERENCE_TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens (with padding) per forward pass without a graph. On a CPU they fit into the cache."""
GRAPH_BYTES = "acclimate_graph_bytes"
"""Attribute of a model: bytes of a token's graph; :func:`acclimate.engine.micro_batches.measure_graph` sets it."""
INFERENCE_BYTES, LOGIT_BYTES = 44, 16
"""Bytes of one token: per unit of width in a forward pass without a graph (measured: 40 to 43 in fp32), and per entry
of the vocabulary when two distributions over it are compared with a graph (measured: 13 to 14)."""
LOGITS_AT_ONCE = {"cpu": 2**25, "cuda": 2**29}
"""Most logits that a loss over the vocabulary holds at a time; 2^27 are 1,024 positions times 128,000 words.
With the copies that its gradient needs, a logit takes :data:`LOGIT_BYTES`, and all take at most :data:`SHARE` of the
memory. What is not held is computed again in the backward pass."""
SHARE, GRAPH_SHARE = 0.2, 0.3
"""Shares of the machine's memory: for one forward pass and again for its logits, and for all graphs that are kept."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
MEMORY_VARIABLE = "ACCLIMATE_MEMORY_GB"
"""Environment variable: maximum memory in gigabytes (10^9 bytes). Values above the machine's memory have no effect."""
SHARING_VARIABLE = "ACCLIMATE_PROCESSES_PER_DEVICE"
"""Environment variable: number of processes that share the memory of a device, set for the workers of a study."""
_limit: ContextVar[float | None] = ContextVar("limit", default=None)


@contextmanager
def limit_memory(gigabytes: float | None) -> Iterator[None]:
    """Return a context that replaces the value of :data:`MEMORY_VARIABLE`, unless it is None."""
    token = _limit.set(gigabytes if gigabytes is not None else _limit.get())
    try:
        yield
    finally:
        _limit.reset(token)


def micro_batch_tokens(model: PreTrainedModel, extra_bytes: float = 0.0, times: int = 1) -> int:
    """Return how many tokens (with padding) one forward pass without a graph should read.

    Args:
        model: The model; only its width and device matter.
        extra_bytes: Bytes per token needed in addition to the encoder's.
        times: Factor on the usual number, as far as memory allows.
    """
    wanted = times * INFERENCE_TOKENS.get(model.device.type, INFERENCE_TOKENS["cuda"])
    token_size = int(getattr(model.config, "hidden_size", 768)) * INFERENCE_BYTES + extra_bytes
    return max(1, min(wanted, int(SHARE * machine_memory(model.device) / token_size)))


def token_budget_batches(
    rows: Sequence[Sequence[int]], tokens: int, multiple: int = 1, added: int = 0
) -> list[list[int]]:
    """Cut rows into batches of at most ``tokens`` tokens, padding included; a longer row is a batch by itself.

    Rows are sorted by length and then by content, so that the same rows share a batch whatever their order: a
    prediction does not depend on that order, not even in the last bit.

    Args:
        rows: The token ids of each row.
        tokens: Maximum tokens per batch.
        multiple: Rows are padded to multiples of this many tokens.
        added: Tokens that are added to each row.

    Returns:
        The indices of the rows of each batch; each row occurs once. The longest rows come first, so that a batch that
        does not fit into memory fails at once.
    """
    order = sorted(range(len(rows)), key=lambda place: (len(rows[place]), list(rows[place])), reverse=True)
    batches: list[list[int]] = []
    free = 0
    for place in order:
        if free < 1:
            batches.append([])
            free = max(1, tokens // max(1, round_up(len(rows[place]) + added, multiple)))
        batches[-1].append(place)
        free -= 1
    return batches


def training_tokens(model: PreTrainedModel, views: int = 1, length: int = DEFAULT_LENGTH) -> int:
    """Return how many tokens (with padding) of one view a forward pass of a training step should read.

    Args:
        model: The model; only its size and device matter.
        views: How many times the model reads each text.
        length: Tokens of the longest rows.
    """
    device = model.device
    wanted = FASTEST_TOKENS.get(device.type, FASTEST_TOKENS["cuda"])
    if views > 1 and device.type == "cpu":
        wanted *= MULTI_VIEW_FACTOR
    return max(1, min(wanted, _tokens_that_fit(model, SHARE, length)) // max(1, views))


def logit_rows(model: PreTrainedModel) -> int:
    """Return at how many positions a loss over the vocabulary computes logits at a time."""
    device, multiple = model.device, POSITION_MULTIPLE["cpu"]
    most = min(LOGITS_AT_ONCE.get(device.type, LOGITS_AT_ONCE["cuda"]), SHARE * machine_memory(device) / LOGIT_BYTES)
    return max(multiple, int(most / model.config.vocab_size) // multiple * multiple)


def max_graph_tokens(model: PreTrainedModel, length: int = DEFAULT_LENGTH) -> int:
    """Return how many tokens, over all views, may have their graphs kept at once."""
    wanted = MAX_GRAPH_TOKENS.get(model.device.type, MAX_GRAPH_TOKENS["cuda"])
    return min(wanted, _tokens_that_fit(model, GRAPH_SHARE, length))


def fits_in_one_pass(model: PreTrainedModel, views: int, length: int) -> bool:
    """Return whether the graphs of all views of a row of ``length`` tokens fit into the share of one forward pass."""
    return _tokens_that_fit(model, SHARE, length) >= views * length


def token_bytes(
    config: PretrainedConfig,
    length: int = DEFAULT_LENGTH,
    eager_attention: bool = True,
    checkpointing: bool = False,
) -> int:
    """Estimate the bytes of the graph of one token in a row of ``length`` tokens.

    Args:
        config: Configuration of the model.
        length: Tokens of the row.
        eager_attention: Whether attention is eager, not fused.
        checkpointing: Whether gradient checkpointing keeps only the inputs of layers, and the graph of one layer.
    """
    layers, width = int(getattr(config, "num_hidden_layers", 12)), int(getattr(config, "hidden_size", 768))
    heads = int(getattr(config, "num_attention_heads", 12))
    layer = width * BYTES + eager_attention * heads * length * SCORE_BYTES
    return layers * width * INPUT_BYTES + layer if checkpointing else layers * layer


def recomputes_layers(model: nn.Module) -> bool:
    """Return whether gradient checkpointing is on; the property of ``transformers`` has another name since 5.23."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def training_bytes(model: nn.Module) -> int:
    """Return the bytes of weights, gradients and optimizer state in training, without what a step needs."""
    return sum((TRAINED_BYTES if one.requires_grad else FROZEN_BYTES) * one.numel() for one in model.parameters())


def machine_memory(device: torch.device) -> float:
    """Return the memory of a device in bytes, or this process's share of it if several use the device.

    Raises:
        UserError: If :data:`MEMORY_VARIABLE` is not a positive number.
    """
    return min(_configured_memory(), _physical_memory(device))


def _configured_memory() -> float:
    """Return the bytes that :func:`limit_memory` or the environment allows; infinity if neither says."""
    if (limit := _limit.get()) is not None:
        return limit * 10**9
    text = os.environ.get(MEMORY_VARIABLE)
    if not text:
        return math.inf
    with suppress(ValueError):
        if 0 < (size := float(text)) < math.inf:
            return int(size * 10**9)
    raise UserError(f"{MEMORY_VARIABLE} is '{text}'; set it to a positive number of gigabytes, such as 4.")


def _physical_memory(device: torch.device) -> int:
    if device.type == "mps":  # what Metal recommends of the memory that GPU and CPU share
        return int(torch.mps.recommended_max_memory()) // max(1, environment_integer(SHARING_VARIABLE, 1))
    if device.type == "cuda":
        total = int(torch.cuda.get_device_properties(device).total_memory)
        return total // max(1, environment_integer(SHARING_VARIABLE, 1))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # there is no such limit
        memory = min(memory, int(CGROUP_LIMIT.read_text()))
    return memory // max(1, environment_integer("LOCAL_WORLD_SIZE", 1), environment_integer(SHARING_VARIABLE, 1))


def _tokens_that_fit(model: PreTrainedModel, share: float, length: int) -> int:
    size: float | None = None if recomputes_layers(model) else getattr(model, GRAPH_BYTES, None)
    if size is None:
        size = token_bytes(model.config, length, kernels_of(model).eager_attention, recomputes_layers(model))
    return int(share * machine_memory(model.device) / size)
