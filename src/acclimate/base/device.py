"""Device, precision, random state and process-wide settings of the math libraries.

The measurements behind the constants are in ``docs/dev/performance.md``; ``benchmarks/`` repeats them.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import torch
from torch import nn

from acclimate.base.errors import UserError, environment_integer, first_line, warn_once

if TYPE_CHECKING:
    from transformers import TrainingArguments

Precision = Literal["fp32", "bf16", "fp16"]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FP16_CAPABILITY, TF32_CAPABILITY = (7, 0), (8, 0)
"""Compute capabilities from which a GPU multiplies float16, and float32 rounded to TF32, in its tensor cores."""
ModuleT = TypeVar("ModuleT", bound=nn.Module)

ONEDNN_CACHE_SIZE, ONEDNN_CACHE_SIZE_AMX, TORCH_LRU_CACHE_SIZE = 512, 8_192, 16
"""Maximum compiled matrix products (0.2 to 0.6 MB each) that oneDNN caches without AMX and with AMX, and that torch
caches per thread."""
HOST_COPY = "acclimate_host_copy"
"""Attribute of a tensor on an accelerator: a tensor on the CPU with the same values."""
KERNELS_VARIABLE = "ACCLIMATE_KERNELS"
"""Environment variable: ``auto`` (the default) picks the kernels that suit the device, ``torch`` turns all off."""
TRUE_VALUES = ("y", "yes", "t", "true", "on", "1")
"""Values of an environment variable that ``accelerate`` reads as true."""
MAX_FP32_ERROR = 2e-6
"""Relative error of a matrix product above which it was not computed in float32."""


def default_device() -> torch.device:
    """Return the accelerator of this process, or the CPU if there is none or ``ACCELERATE_USE_CPU`` is set.

    An Apple GPU is used if it computes what the CPU does, by one process: they cannot exchange its tensors.
    """
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in TRUE_VALUES:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        alone = torch.backends.mps.is_available() and environment_integer("WORLD_SIZE", 1) <= 1
        return torch.device("mps", 0) if alone and mps_works() else torch.device("cpu")
    rank = environment_integer("LOCAL_RANK")  # torchrun numbers the processes of a machine
    return torch.device("cuda", rank % torch.cuda.device_count())  # some launchers show each process only its own


@cache
def mps_works() -> bool:
    """Return whether the Apple GPU gives the loss and the gradients of the CPU for a small layer; warn if not."""
    found: list[list[torch.Tensor]] = []
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        values = torch.randn(2, 5, 16)
    try:
        for device in ("cpu", "mps"):
            moved = nn.Module.to(copy.deepcopy(layer), device)
            loss = moved(values.to(device)).sin().sum()
            found.append(
                [part.cpu() for part in (loss.detach(), *torch.autograd.grad(loss, list(moved.parameters())))]
            )
        if all(map(partial(torch.allclose, rtol=1e-3, atol=1e-4), *found)):
            return True
        reason = "its results differ from those of the CPU"
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reason = first_line(error)
    warn_once(f"The Apple GPU is not used: {reason}. Please report this with the output of 'acclimate doctor'.")
    return False


def in_full(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64, or in float32 on an Apple GPU, which has no float64."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def to_device(model: ModuleT) -> ModuleT:
    """Move a model to the default device."""
    return nn.Module.to(model, default_device())


def copy_to(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on ``device``; the host does not wait for a copy from pinned memory to an accelerator.

    A copy of a tensor on the CPU remembers that tensor (:func:`host_copy`).
    """
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    on_cuda = device.type == "cuda"
    return with_host_copy(tensor.pin_memory().to(device, non_blocking=True) if on_cuda else tensor.to(device), tensor)


def with_host_copy(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Store with a tensor on an accelerator its values on the CPU, for :func:`host_copy`."""
    setattr(tensor, HOST_COPY, source)
    return tensor


def host_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU: the one that it was copied from if it is known, else a copy, for which it waits."""
    source: torch.Tensor | None = getattr(tensor, HOST_COPY, None)
    if source is not None:
        return source
    whole = None if tensor.is_inference() else tensor._base
    source = getattr(whole, HOST_COPY, None)
    if source is not None and source.numel() == tensor.numel() and tensor.is_contiguous():
        return source.view(tensor.shape)  # a reshaped view, as some models make of their inputs
    return tensor.cpu()


def concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the tensors joined along the first dimension; the result has a host copy if it is on an accelerator."""
    joined = torch.cat(list(tensors))
    return joined if joined.device.type == "cpu" else with_host_copy(joined, torch.cat(list(map(host_copy, tensors))))


@contextmanager
def preserve_rng_state(device: torch.device | None = None) -> Iterator[None]:
    """Return a context that restores the random generators of the CPU and of a device, by default the default one.

    Without a list of devices, ``fork_rng`` initializes every accelerator, which takes hundreds of megabytes on each.
    """
    state = RandomState(device or default_device())
    try:
        yield
    finally:
        state.restore()


class RandomState:
    """The state of the random generators of the CPU and of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._cpu = device, torch.get_rng_state()
        self._own: torch.Tensor | None = None
        if device.type in ("cuda", "mps"):
            self._own = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.mps.get_rng_state()

    def restore(self) -> None:
        """Set the generators to it."""
        torch.set_rng_state(self._cpu)
        if self._own is not None and self._device.type == "cuda":
            torch.cuda.set_rng_state(self._own, self._device)
        elif self._own is not None:
            torch.mps.set_rng_state(self._own)


@cache
def has_fast_bf16(kind: str = "cpu") -> bool:
    """Return whether ``kind`` (``"cpu"``, ``"cuda"`` or ``"mps"``) is known to multiply bfloat16 in hardware."""
    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return kind == "cpu" and (_cpu_supports("avx512_bf16") or has_amx())


def has_amx() -> bool:
    """Return whether the CPU multiplies tiles of bfloat16 (AMX)."""
    return _cpu_supports("amx_tile")


def _cpu_supports(instructions: str) -> bool:
    return bool(getattr(torch.cpu, f"_is_{instructions}_supported", lambda: False)())


def has_capability(least: tuple[int, int]) -> bool:
    """Return whether the default device is an NVIDIA GPU of at least this compute capability."""
    if default_device().type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability() >= least


def choose_precision(precision: str = "auto", device: torch.device | None = None) -> Precision:
    """Resolve ``"auto"``: bf16 where the hardware multiplies it, fp16 on older GPUs with tensor cores, else fp32.

    Raises:
        UserError: If ``precision`` is not one of auto, fp32, bf16 and fp16, or fp16 without CUDA or ROCm.
    """
    kind = (device or default_device()).type
    if precision == "auto":
        if has_fast_bf16(kind):
            return "bf16"
        return "fp16" if kind == "cuda" and has_capability(FP16_CAPABILITY) else "fp32"
    if precision == "fp16" and kind != "cuda":
        raise UserError("Precision fp16 is for GPUs with CUDA or ROCm; use auto, bf16 or fp32.")
    if precision == "bf16" and kind == "cpu" and not has_fast_bf16(kind):
        warn_once(
            "This CPU has no bf16 instructions, so that precision bf16 is up to 50 times slower than fp32. "
            "The default, auto, chooses fp32 here."
        )
    for known in get_args(Precision):
        if precision == known:
            return known
    raise UserError(f"Unknown precision '{precision}'. Available: auto, bf16, fp16, fp32.")


def tf32_products(enabled: bool) -> AbstractContextManager[None]:
    """Return a context in which a newer GPU rounds the inputs of float32 products to TF32, which is much faster."""
    return fp32_products("high") if enabled and has_capability(TF32_CAPABILITY) else nullcontext()


@contextmanager
def fp32_products(precision: Literal["highest", "high"]) -> Iterator[None]:
    """Return a context with another internal precision of float32 products; "highest" is float32's own."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager:
    """Return the context in which a forward pass of that precision runs; the weights stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=TYPES[precision])


def use_single_device(arguments: TrainingArguments) -> TrainingArguments:
    """Keep a ``Trainer`` on the device of its process and in the requested precision.

    By default a ``Trainer`` spreads each batch over all visible GPUs (``nn.DataParallel``), which multiplies the batch
    size and wraps the model; here each device has its own process. ``accelerate launch`` also sets a precision
    through the environment, which would override the requested one.
    """
    arguments._n_gpu = min(1, arguments.n_gpu)
    arguments.mixed_precision = "bf16" if arguments.bf16 else "no"
    return arguments


def _set_onednn_cache_sizes() -> None:
    """Set how many compiled matrix products oneDNN and torch keep, unless the environment sets it.

    oneDNN compiles a kernel for each shape of a product, and texts of different lengths need more than a thousand.
    With AMX, compiling takes 5 to 10 ms, longer than most products, so all kernels are kept. Without AMX, it takes
    about 1 ms, and keeping the recent ones is enough. By default torch also keeps the last 1,024 per thread, which
    only delays freeing them.

    This has no effect after the first matrix product of a process.
    """
    os.environ.setdefault(
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(ONEDNN_CACHE_SIZE_AMX if has_amx() else ONEDNN_CACHE_SIZE)
    )
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(TORCH_LRU_CACHE_SIZE))


def enable_fast_fp32_matmul() -> bool:
    """Set up the math libraries for texts of many lengths; return whether fast fp32 products are on.

    On some CPUs with AVX-512, "medium" precision doubles the speed of fp32 products; on others it silently computes
    in bfloat16, so it is used only where a test product is exact. On an accelerator, cuDNN's attention is turned off,
    because it builds a new execution plan for each shape.
    """
    _set_onednn_cache_sizes()  # before the first product, which may be the test product
    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(False)
        return False
    if not _medium_precision_is_exact():
        return False
    torch.set_float32_matmul_precision("medium")  # on each call: another library may have reset it
    return True


@cache
def _medium_precision_is_exact() -> bool:
    """Return whether a test product in medium precision is as close to float64 as float32 is."""
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(256, 384, generator=generator), torch.randn(384, 256, generator=generator)
    exact = a.double() @ b.double()
    torch.set_float32_matmul_precision("medium")
    error = ((a @ b).double() - exact).norm() / exact.norm()
    torch.set_float32_matmul_precision(before)
    return bool(error < MAX_FP32_ERROR)


@contextmanager
def imports_frozen() -> Iterator[None]:
    """Exclude the objects that exist now, most of them of imported modules, from garbage collection.

    ``accelerate`` collects after every training. Visiting half a million objects of imported modules takes ten times
    as long as the rest, and longer than training a small model.
    """
    if gc.get_freeze_count():  # by the caller, who may want to keep it so
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def malloc_trim() -> None:
    """Return to the system the memory that was freed, where the C library can (glibc).

    Otherwise small blocks that are still in use keep the free pages around them from being returned, and a process
    that fine-tunes ten times holds three times the memory that it needs.
    """
    call_libc("malloc_trim", 0)


def call_libc(function: str, *arguments: int) -> None:
    """Call a function of the C library; do nothing where it does not exist."""
    with suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)
