"""How many tokens are read at once, in training and otherwise, so that it is fast and fits into memory.

The sizes follow from the machine as it is, not from what is free at the moment: the same run on the same machine is
cut into the same pieces, also after a kill.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel

from acclimate.backbone.device import writes_attention_out
from acclimate.errors import UserError

BYTES, SCORE_BYTES = 72, 6
"""Of the graph of one token: for each layer and unit of width; for each layer, head and token of its text, where
attention is written out. In fp32; at 128 tokens 0.22 MB for MiniLM, 0.77 MB for a base model; half of it in bf16."""
USUAL_LENGTH = 128
FASTEST = {"cpu": 1_024, "cuda": 65_536}
"""Tokens (with padding) of one view that one forward reads: on a CPU small enough to stay in the cache."""
SEVERAL = 2
"""With several views a forward reads this many times as many tokens over all of them: each would be too short."""
KEPT = {"cpu": 16_384, "cuda": 131_072}
"""Tokens, over all views, whose graphs are kept together where they fit: on a CPU those of 64 texts in three views."""
READ_AT_ONCE = {"cpu": 2_048, "cuda": 65_536}
"""Tokens (with padding) that one forward without a graph reads: on a CPU small enough to stay in the cache."""
READ_BYTES, LOGIT_BYTES = 44, 16
"""Of one token: for each unit of width while it is read without a graph, and for each entry of the vocabulary while
two distributions over it are compared with a graph. Measured: 40 to 43 in fp32; 13 to 14 in fp32 and bf16."""
SHARE, KEPT_SHARE, LOGIT_SHARE = 0.2, 0.3, 0.5
"""Of the memory of the machine: what one forward, the graphs of all that are kept, and distributions may take."""
LIMIT = Path("/sys/fs/cgroup/memory.max")
MEMORY = "ACCLIMATE_MEMORY_GB"
"""Environment variable: how many gigabytes (10^9 bytes) count as the memory of the machine, if it has as many."""


def micro_batch_tokens(model: PreTrainedModel, more: float = 0.0, times: int = 1) -> int:
    """Return how many tokens (with padding) one forward without a graph should read.

    Args:
        model: Whose width and device count.
        more: Bytes that are held for each token besides what the encoder needs.
        times: How many times what is usual is wanted, where memory has room for it.
    """
    wanted = times * READ_AT_ONCE.get(model.device.type, READ_AT_ONCE["cuda"])
    each = int(getattr(model.config, "hidden_size", 768)) * READ_BYTES + more
    return max(1, min(wanted, int(SHARE * machine_memory(model.device) / each)))


def training_tokens(model: PreTrainedModel, views: int = 1, length: int = USUAL_LENGTH, logits: bool = False) -> int:
    """Return how many tokens (with padding) of each text row one forward of a training step should read.

    Args:
        model: Whose size and device count.
        views: How many times it reads each text.
        length: Tokens of the longest rows.
        logits: Whether the vocabulary is scored at all tokens, not only at those that are masked.
    """
    device = model.device
    wanted = FASTEST.get(device.type, FASTEST["cuda"])
    if views > 1 and device.type == "cpu":
        wanted *= SEVERAL
    wanted = min(wanted, _fitting(model, SHARE, length))
    if logits:
        wanted = min(wanted, int(LOGIT_SHARE * machine_memory(device) / (LOGIT_BYTES * model.config.vocab_size)))
    return max(1, wanted // max(1, views))


def kept_graph_tokens(model: PreTrainedModel, length: int = USUAL_LENGTH) -> int:
    """Return of how many tokens, over all views, the graphs may be alive at once."""
    return min(KEPT.get(model.device.type, KEPT["cuda"]), _fitting(model, KEPT_SHARE, length))


def token_bytes(config: PretrainedConfig, length: int = USUAL_LENGTH, written_out: bool = True) -> int:
    """Estimate what the graph of one token of a row of ``length`` takes, attention written out or in one kernel."""
    layers, width = getattr(config, "num_hidden_layers", 12), getattr(config, "hidden_size", 768)
    heads = getattr(config, "num_attention_heads", 12)
    return int(layers) * (int(width) * BYTES + written_out * int(heads) * length * SCORE_BYTES)


def machine_memory(device: torch.device) -> float:
    """Return the memory of a device in bytes; of a CPU what this process may use of it, its neighbours left theirs.

    Raises:
        UserError: If :data:`MEMORY` is set to something else than a positive number.
    """
    return min(_wished(), _memory(device))


def _wished() -> float:
    """Return the bytes that whoever started us wants to be taken for the memory of the machine."""
    text = os.environ.get(MEMORY)
    if not text:
        return math.inf
    with suppress(ValueError):
        if 0 < (size := float(text)) < math.inf:
            return int(size * 10**9)
    raise UserError(f"{MEMORY} is '{text}'; give the gigabytes that may be used as a positive number, such as 4.")


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no such limit
        memory = min(memory, int(LIMIT.read_text()))
    return memory // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def _fitting(model: PreTrainedModel, share: float, length: int) -> int:
    each = token_bytes(model.config, length, writes_attention_out(model.device))
    return int(share * machine_memory(model.device) / each)
