"""Which shapes of batches a processor likes: the same few again and again.

oneDNN, which multiplies on a CPU, compiles a kernel for each new shape of a product. Batches that are padded to their
longest text have hundreds of shapes, and each costs a step more than the padding that makes them alike.

How many tokens are read at once, in training and otherwise, so that it is fast and fits into memory.

The sizes follow from the machine as it is, not from what is free at the moment: the same run on the same machine is
cut into the same pieces, also after a kill.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PretrainedConfig, PreTrainedModel

from acclimate.device import uses_eager_attention
from acclimate.errors import UserError
from acclimate.kernels.unpadding import can_unpad
from acclimate.models.encoding import longest_text

FEWEST_BATCHES = 2**40


class PaddingPolicy(NamedTuple):
    """What batches are rounded up to, and when one more is worth its price."""

    width: int = 1
    """Tokens of a row are a multiple of this, unless that is more than the model can read."""
    piece: int = FEWEST_BATCHES
    """Tokens that could have been read in the time that one more forward and backward takes by itself."""
    padding: float = 1.0
    """What a token of padding costs, a real one being one."""
    widest: int | None = None
    """Tokens that the model can read, at most."""

    def wide(self, width: int) -> int:
        """Return to how many tokens rows of ``width`` are padded."""
        padded = round_up(width, self.width)
        return padded if self.widest is None else max(width, min(padded, self.widest))

    def price(self, real: Any, read: Any) -> Any:
        """Return what so many real tokens cost in a rectangle of ``read`` tokens; numbers, or arrays of them."""
        return real + self.padding * (read - real)

    def batch_cost(self, text: torch.Tensor) -> float:
        """Return what a micro-batch costs, in real tokens; ``text`` is -1 at padding (rows, tokens)."""
        if self.padding == 1:
            return text.numel()  # an accelerator is not asked, which would wait for it
        return float(self.price(int((text >= 0).sum()), text.numel()))


MINIMAL_PADDING = PaddingPolicy()
"""No padding but to the longest row, and as few batches as can be."""
POLICIES = {"cpu": PaddingPolicy(8, 256), "cuda": PaddingPolicy(piece=512)}
ATTENTION_SHARE = 0.2
"""Share of the time of a token that goes into attention, where padding costs nothing else (MiniLM shape, bf16)."""
POSITION_MULTIPLE = {"cpu": 32}
"""What the number of positions is a multiple of at which the vocabulary is scored."""


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple that is not less than ``number``."""
    return -(-number // multiple) * multiple


def padding_policy(model: PreTrainedModel) -> PaddingPolicy:
    """Return the grain for a model where it is now."""
    grain = POLICIES.get(model.device.type, POLICIES["cuda"])._replace(widest=longest_text(model))
    return grain._replace(padding=ATTENTION_SHARE) if can_unpad(model) else grain


def padding_multiple(model: PreTrainedModel) -> int:
    """Return to multiples of what a tokenizer should pad rows for a model; one if it has no room for such padding."""
    grain = padding_policy(model)
    return grain.width if grain.widest is None or grain.widest % grain.width == 0 else 1


def chosen_positions(chosen: torch.Tensor) -> torch.Tensor:
    """Return the places of true entries, in order, and the first of them again until their number is right.

    Args:
        chosen: Boolean, of any shape; places count through it flattened.

    Returns:
        Places (at least as many as there are true entries); none if there are none.
    """
    places = chosen.flatten().nonzero()[:, 0]
    missing = round_up(len(places), POSITION_MULTIPLE.get(places.device.type, 1)) - len(places)
    return torch.cat([places, places[:1].expand(missing)]) if missing else places


BYTES, SCORE_BYTES = 72, 6
"""Of the graph of one token: for each layer and unit of width; for each layer, head and token of its text, where
attention is written out. In fp32; at 128 tokens 0.22 MB for MiniLM, 0.77 MB for a base model; half of it in bf16."""
DEFAULT_LENGTH = 128
FASTEST_TOKENS = {"cpu": 1_024, "cuda": 65_536}
"""Tokens (with padding) of one view that one forward reads: on a CPU small enough to stay in the cache."""
MULTI_VIEW_FACTOR = 2
"""With several views a forward reads this many times as many tokens over all of them: each would be too short."""
MAX_GRAPH_TOKENS = {"cpu": 16_384, "cuda": 131_072}
"""Tokens, over all views, whose graphs are kept together where they fit: on a CPU those of 64 texts in three views."""
INFERENCE_TOKENS = {"cpu": 2_048, "cuda": 65_536}
"""Tokens (with padding) that one forward without a graph reads: on a CPU small enough to stay in the cache."""
INFERENCE_BYTES, LOGIT_BYTES = 44, 16
"""Of one token: for each unit of width while it is read without a graph, and for each entry of the vocabulary while
two distributions over it are compared with a graph. Measured: 40 to 43 in fp32; 13 to 14 in fp32 and bf16."""
SHARE, GRAPH_SHARE, LOGIT_SHARE = 0.2, 0.3, 0.5
"""Of the memory of the machine: what one forward, the graphs of all that are kept, and distributions may take."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
MEMORY_VARIABLE = "ACCLIMATE_MEMORY_GB"
"""Environment variable: how many gigabytes (10^9 bytes) count as the memory of the machine, if it has as many."""


def micro_batch_tokens(model: PreTrainedModel, more: float = 0.0, times: int = 1) -> int:
    """Return how many tokens (with padding) one forward without a graph should read.

    Args:
        model: Whose width and device count.
        more: Bytes that are held for each token besides what the encoder needs.
        times: How many times what is usual is wanted, where memory has room for it.
    """
    wanted = times * INFERENCE_TOKENS.get(model.device.type, INFERENCE_TOKENS["cuda"])
    each = int(getattr(model.config, "hidden_size", 768)) * INFERENCE_BYTES + more
    return max(1, min(wanted, int(SHARE * machine_memory(model.device) / each)))


def training_tokens(model: PreTrainedModel, views: int = 1, length: int = DEFAULT_LENGTH, logits: bool = False) -> int:
    """Return how many tokens (with padding) of each text row one forward of a training step should read.

    Args:
        model: Whose size and device count.
        views: How many times it reads each text.
        length: Tokens of the longest rows.
        logits: Whether the vocabulary is scored at all tokens, not only at those that are masked.
    """
    device = model.device
    wanted = FASTEST_TOKENS.get(device.type, FASTEST_TOKENS["cuda"])
    if views > 1 and device.type == "cpu":
        wanted *= MULTI_VIEW_FACTOR
    wanted = min(wanted, _tokens_that_fit(model, SHARE, length))
    if logits:
        wanted = min(wanted, int(LOGIT_SHARE * machine_memory(device) / (LOGIT_BYTES * model.config.vocab_size)))
    return max(1, wanted // max(1, views))


def max_graph_tokens(model: PreTrainedModel, length: int = DEFAULT_LENGTH) -> int:
    """Return of how many tokens, over all views, the graphs may be alive at once."""
    return min(
        MAX_GRAPH_TOKENS.get(model.device.type, MAX_GRAPH_TOKENS["cuda"]), _tokens_that_fit(model, GRAPH_SHARE, length)
    )


def token_bytes(config: PretrainedConfig, length: int = DEFAULT_LENGTH, written_out: bool = True) -> int:
    """Estimate what the graph of one token of a row of ``length`` takes, attention written out or in one kernel."""
    layers, width = getattr(config, "num_hidden_layers", 12), getattr(config, "hidden_size", 768)
    heads = getattr(config, "num_attention_heads", 12)
    return int(layers) * (int(width) * BYTES + written_out * int(heads) * length * SCORE_BYTES)


def machine_memory(device: torch.device) -> float:
    """Return the memory of a device in bytes; of a CPU what this process may use of it, its neighbours left theirs.

    Raises:
        UserError: If :data:`MEMORY` is set to something else than a positive number.
    """
    return min(_configured_memory(), _physical_memory(device))


def _configured_memory() -> float:
    """Return the bytes that whoever started us wants to be taken for the memory of the machine."""
    text = os.environ.get(MEMORY_VARIABLE)
    if not text:
        return math.inf
    with suppress(ValueError):
        if 0 < (size := float(text)) < math.inf:
            return int(size * 10**9)
    raise UserError(
        f"{MEMORY_VARIABLE} is '{text}'; give the gigabytes that may be used as a positive number, such as 4."
    )


def _physical_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such limit
        memory = min(memory, int(CGROUP_LIMIT.read_text()))
    return memory // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def _tokens_that_fit(model: PreTrainedModel, share: float, length: int) -> int:
    each = token_bytes(model.config, length, uses_eager_attention(model.device))
    return int(share * machine_memory(model.device) / each)
