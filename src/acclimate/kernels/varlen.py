"""Attention over texts of different lengths without padding, in the fused kernels of an accelerator.

The kernels read all texts as one row and the index at which each text begins. They need neither padding nor a mask.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from acclimate.base.device import choose_precision, has_capability, preserve_rng_state
from acclimate.base.errors import first_line, warn_once
from acclimate.kernels.unpadding import Unpadded

HALF = (torch.float16, torch.bfloat16)
FLASH_CAPABILITY = (8, 0)
"""Compute capability from which a GPU has the flash kernel."""
MAX_FLASH_WIDTH, FLASH_MULTIPLE = 256, 8
"""The flash kernel has heads of at most this width, which is a multiple of this."""
TRIAL_LENGTHS, TRIAL_HEADS, TRIAL_WIDTH = (7, 1, 12), 4, 32
TRIAL_TOLERANCE = 0.05
"""Relative error of a trial in bfloat16 above which the kernel is not used."""


def find_kernel(dtype: torch.dtype, width: int, window: int | None) -> str | None:
    """Return the kernel for queries of a type and head width: ``flash``, ``efficient``, or None if there is none."""
    if dtype in HALF and width % FLASH_MULTIPLE == 0 and width <= MAX_FLASH_WIDTH and _has_flash():
        return "flash"
    return "efficient" if window is None and dtype in (*HALF, torch.float32) else None


@torch.compiler.assume_constant_result
def _has_flash() -> bool:
    return _device_has_flash()


@cache
def _device_has_flash() -> bool:
    return bool(torch.version.hip) or has_capability(FLASH_CAPABILITY)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    unpadded: Unpadded,
    scaling: float,
    dropout: float,
    causal: bool,
    window: int | None,
) -> Tensor | None:
    """Return the context vectors of all texts, (1, heads, kept, head width); None if no kernel can compute them.

    Args:
        query: (1, heads, kept, head width).
        key: (1, key heads, kept, head width).
        value: Same shape as ``key``.
        unpadded: Start of each text.
        scaling: Factor on the scores.
        dropout: Probability that an attention weight is dropped.
        causal: Whether a token attends to earlier ones only.
        window: A token attends to others that are less than this away; None for all of its text.
    """
    starts, longest = unpadded.starts, unpadded.longest
    if window is not None and window > longest:
        window = None
    kernel = find_kernel(query.dtype, query.shape[3], window)
    if kernel is None:
        return None
    if kernel == "flash":
        q, k, v = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
        left = -1 if window is None else window - 1
        found = torch.ops.aten._flash_attention_forward(
            q, k, v, starts, starts, longest, longest, dropout, causal, False,
            scale=scaling, window_size_left=left, window_size_right=0 if causal and window is not None else left,
        )  # fmt: skip
        return found[0].transpose(0, 1).unsqueeze(0)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    q, k, v = (part.transpose(1, 2) for part in (query, key, value))
    found = torch.ops.aten._efficient_attention_forward(
        q, k, v, None, starts, starts, longest, longest, dropout, int(causal), True, scale=scaling
    )
    return found[0].transpose(1, 2)


@cache
def varlen_works(device: torch.device) -> bool:
    """Return whether the kernels of a device compute attention and its gradient correctly; log a warning if not."""
    half = torch.float16 if choose_precision("auto", device) == "fp16" else torch.bfloat16
    for dtype in (half, torch.float32):
        try:
            with preserve_rng_state():
                error = _trial_error(device, dtype)
            reason = f"its results are off by {error:.2g}" if not error < TRIAL_TOLERANCE else ""
        except (RuntimeError, NotImplementedError, AttributeError, TypeError) as failure:
            reason = first_line(failure)
        if reason:
            name = str(dtype).removeprefix("torch.")
            warn_once(
                f"Attention without padding does not work on this device in {name}, so rows are padded: {reason}"
            )
            return False
    return True


def _trial_error(device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest relative error of attention over a few texts, and of its gradients."""
    generator = torch.Generator().manual_seed(0)
    text = torch.full((len(TRIAL_LENGTHS), max(TRIAL_LENGTHS)), -1)
    for row, length in enumerate(TRIAL_LENGTHS):
        text[row, :length] = row
    unpadded = Unpadded(text, device)
    shape, real = (1, TRIAL_HEADS, len(unpadded), TRIAL_WIDTH), sum(TRIAL_LENGTHS)
    parts = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for _ in range(3)]
    query, key, value = parts
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        found = varlen_attention(query, key, value, unpadded, TRIAL_WIDTH**-0.5, 0.0, False, None)
        if found is None:
            raise NotImplementedError("there is no kernel for this type")
        ours = found[:, :, :real]
        alone = [
            nn.functional.scaled_dot_product_attention(*(part.float() for part in texts))
            for texts in zip(*(part[:, :, :real].split(TRIAL_LENGTHS, 2) for part in parts), strict=True)
        ]
        expected = torch.cat(alone, 2)
        # Other arguments of training only have to run: fewer key heads, earlier tokens only, dropout.
        few, fewer = (part[:, : TRIAL_HEADS // 2] for part in (key, value))
        dropped = varlen_attention(query, few, fewer, unpadded, TRIAL_WIDTH**-0.5, 0.1, True, None)
        if dropped is None or not all(part.isfinite().all() for part in _gradients(dropped, parts)):
            raise RuntimeError("gradients with dropout are not finite")
        pairs = zip(_gradients(ours, parts), _gradients(expected, parts), strict=True)
        return max(_relative_error(ours, expected), *(_relative_error(mine, theirs) for mine, theirs in pairs))


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def _gradients(output: Tensor, parts: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(output.float().square().sum(), parts)
