"""Choices that depend on the processor; how much is read at once is in :mod:`acclimate.models.batching`.

The measurements behind the choices are in ``docs/dev/performance.md``; ``benchmarks/`` repeats them.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import nn

from acclimate.errors import UserError

if TYPE_CHECKING:
    from transformers import TrainingArguments

Precision = Literal["fp32", "bf16"]
ModuleT = TypeVar("ModuleT", bound=nn.Module)

ONEDNN_CACHE_SIZE, ONEDNN_CACHE_SIZE_AMX, TORCH_LRU_CACHE_SIZE = 512, 8_192, 16
"""Compiled products that are kept, 0.2 to 0.6 MB each: in all, so with AMX, and once more by each thread."""
TRUE_VALUES = ("y", "yes", "t", "true", "on", "1")
"""What ``accelerate`` takes for it in an environment variable."""


def default_device() -> torch.device:
    """Return the accelerator if there is one and ``accelerate`` was not told to leave it alone, else the CPU."""
    if not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in TRUE_VALUES:
        return torch.device("cpu")
    rank = int(os.environ.get("LOCAL_RANK", "0"))  # torchrun numbers the processes of a machine
    return torch.device("cuda", rank % torch.cuda.device_count())  # some launchers show each process its own one only


def to_device(model: ModuleT) -> ModuleT:
    """Move a model to the default device."""
    return nn.Module.to(model, default_device())


def preserve_rng_state() -> AbstractContextManager[None]:
    """Return a context after which the random generators are as before: of the CPU and of the device that is used.

    By itself ``fork_rng`` opens every accelerator that it sees, hundreds of megabytes on each.
    """
    device = default_device()
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


@cache
def has_fast_bf16(kind: str = "cpu") -> bool:
    """Say whether ``kind`` (``"cpu"`` or ``"cuda"``) multiplies bfloat16 in hardware: asked, not assumed."""
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return _cpu_supports("avx512_bf16") or has_amx()


def has_amx() -> bool:
    """Say whether the processor multiplies tiles of bfloat16 (AMX)."""
    return _cpu_supports("amx_tile")


def _cpu_supports(instructions: str) -> bool:
    return bool(getattr(torch.cpu, f"_is_{instructions}_supported", lambda: False)())


def choose_precision(precision: str = "auto", device: torch.device | None = None) -> Precision:
    """Resolve ``"auto"`` to bf16 where the hardware multiplies it, else fp32.

    Raises:
        UserError: If ``precision`` is not one of auto, fp32 and bf16.
    """
    if precision == "auto":
        return "bf16" if has_fast_bf16((device or default_device()).type) else "fp32"
    if precision == "fp32":
        return "fp32"
    if precision == "bf16":
        return "bf16"
    raise UserError(f"Unknown precision '{precision}'. Available: auto, bf16, fp32.")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager:
    """Return the context in which a forward of that precision runs; the weights stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def use_single_device(arguments: TrainingArguments) -> TrainingArguments:
    """Keep a ``Trainer`` that one process runs on one device, in the precision that was asked for.

    By itself it spreads every batch over all GPUs that it sees (``nn.DataParallel``): steps of several times the batch
    size, and a model in a wrapper. Who wants several devices starts several processes; and ``accelerate launch`` tells
    these a precision by the environment, which would be that of the forwards whatever the run says of itself.
    """
    arguments._n_gpu = min(1, arguments.n_gpu)
    arguments.mixed_precision = "bf16" if arguments.bf16 else "no"
    return arguments


def _set_onednn_cache_sizes() -> None:
    """Say how many of the kernels that oneDNN compiles are kept, one for each shape of each product.

    Texts make more than a thousand shapes. With AMX a kernel takes 5 to 10 ms to compile, longer than most of the
    products, so all are kept; elsewhere it takes about 1 ms, and those that come again soon are enough. Besides, torch
    keeps in each thread the last 1,024 that it used, which only holds on to what oneDNN gives up.

    Has no effect on a process that has multiplied already, nor on who has set the variables.
    """
    os.environ.setdefault(
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(ONEDNN_CACHE_SIZE_AMX if has_amx() else ONEDNN_CACHE_SIZE)
    )
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(TORCH_LRU_CACHE_SIZE))


def enable_fast_fp32_matmul() -> bool:
    """Let oneDNN multiply fp32 matrices on a CPU where that is still fp32, and say whether it does.

    The switch doubles the speed on some processors with AVX-512, changes nothing on others, and on some silently
    computes in bfloat16. Also says how many of the kernels that oneDNN compiles are kept, and on an accelerator that
    attention is not cuDNN's, which plans anew for each shape: texts make new ones at every step.
    """
    _set_onednn_cache_sizes()  # before the first product, which may be the one that judges the switch
    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(False)
        return False
    if not _medium_precision_is_exact():
        return False
    torch.set_float32_matmul_precision("medium")  # at each call: another library may have set it back
    return True


@cache
def _medium_precision_is_exact() -> bool:
    """Judge the switch by the error of one product against float64 (true fp32: below 2e-6 relative)."""
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(256, 384, generator=generator), torch.randn(384, 256, generator=generator)
    exact = a.double() @ b.double()
    torch.set_float32_matmul_precision("medium")
    error = ((a @ b).double() - exact).norm() / exact.norm()
    torch.set_float32_matmul_precision(before)
    return bool(error < 2e-6)


def uses_eager_attention(device: torch.device) -> bool:
    """Say whether attention is computed step by step instead of by the fused kernel.

    On a CPU the backward of the fused kernel in bfloat16 takes five times as long as the written-out one.
    """
    return device.type == "cpu"


def can_unpad_on(device: torch.device) -> bool:
    """Say whether leaving padding out and putting it back pays; on an accelerator it has not been measured."""
    return device.type == "cpu"


def uses_bf16_weights(precision: Precision, device: torch.device) -> bool:
    """Say whether a training step reads bfloat16 copies of the weights; the trained ones stay in fp32 either way.

    On a CPU it saves the casts of autocast; on an accelerator these cost little, and it has not been measured there.
    """
    return precision == "bf16" and device.type == "cpu"
