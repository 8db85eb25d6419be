"""An emulated accelerator: tensors report that they are on ``cuda:0``, or ``mps:0``, but are computed on the CPU.

Only the device of tensors is emulated: moving a tensor copies it, results are on the device of the inputs, and
operations on tensors of both devices are errors, as are ``numpy`` and generators of the wrong device. This finds code
that would fail with "Expected all tensors to be on the same device". Kernels, memory and speed are not emulated.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import torch
import transformers
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from acclimate.base import device as choices
from acclimate.engine.trainer import LOADER_WORKERS
from acclimate.kernels.varlen import _device_has_flash, varlen_works
from acclimate.models.attention import _causal_mask

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps", 0)
MOVES = (Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.type_as)
LENIENT = ("copy_", "__set__", "set_", "_has_compatible_shallow_copy_type")
"""Operations that may read from one device and write to the other."""
INDEXED = ("__getitem__", "__setitem__", "index_put_", "index_put")
"""Operations that may use an index on the CPU with a tensor on any device."""


class Accelerator(TorchFunctionMode):
    """Keeps track of the tensors on the emulated accelerator while it is entered.

    Attributes:
        used: Number of tensors that were created on the accelerator.
        copied: Number of copies by direction, and whether the host waits for them.
    """

    def __init__(self, device: torch.device = CUDA) -> None:
        super().__init__()
        self.device = device
        self._storages: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self.used = 0
        self.uncounted = False
        self.copied: Counter[tuple[str, bool]] = Counter()

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """Return a context whose operators are not counted, since a real accelerator would run others."""
        before, self.uncounted = self.uncounted, True
        try:
            yield
        finally:
            self.uncounted = before

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor is on the accelerator."""
        with torch._C.DisableTorchFunction():
            reference = self._storages.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func in (Tensor.device.__get__, Tensor.is_cuda.__get__, Tensor.is_cpu.__get__):  # type: ignore[attr-defined]
            return self._where(func, args[0])
        if func in MOVES:
            return self._move(func, args, kwargs)
        if func is Tensor.tolist and self.holds(args[0]):
            self.copied["to host", True] += 1
            with self.not_counted():
                return args[0].tolist()
        if func is Tensor.pin_memory:
            pinned = args[0].clone()
            self._pinned[pinned.untyped_storage()._cdata] = StorageWeakRef(pinned.untyped_storage())
            return pinned
        tensors = list(_tensors((args, kwargs)))
        held = [self.holds(tensor) for tensor in tensors]
        there = any(held)
        here = any(not on and tensor.dim() > 0 for on, tensor in zip(held, tensors, strict=True))
        if there and name in ("numpy", "__array__"):
            raise TypeError(f"can't convert {self.device} device type tensor to numpy: copy it to the CPU first")
        if there and here and name not in LENIENT and not (name in INDEXED and self.holds(args[0])):
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {self.device} and cpu")
        is_output_on_device = self._is_used(kwargs, there)
        if is_output_on_device and kwargs.get("generator") is not None:
            raise RuntimeError(f"Expected a '{self.device.type}' device type for generator but found 'cpu'")
        result = func(*args, **kwargs)
        if is_output_on_device and name not in LENIENT:
            self._register(result)
        return result

    def _where(self, func: Any, tensor: Tensor) -> Any:
        if not self.holds(tensor):
            return func(tensor)
        is_cuda = self.device.type == "cuda"
        return {"device": self.device, "is_cuda": is_cuda, "is_cpu": False}[func.__self__.__name__]

    def _move(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        before = self.holds(tensor)
        after = {Tensor.cpu: False, Tensor.cuda: True}.get(func, before)
        for place, value in enumerate(rest):
            if isinstance(value, Tensor):
                after = self.holds(value)
            elif isinstance(value, (torch.device, str)) and func is Tensor.to:
                after = torch.device(value).type == self.device.type
                rest[place] = CPU if after else value
        after = self._is_used(kwargs, after)
        moved = tensor if func in (Tensor.cpu, Tensor.cuda) else func(tensor, *rest, **kwargs)
        if before != after:
            pinned = self._pinned.get(tensor.untyped_storage()._cdata)
            is_pinned = pinned is not None and not pinned.expired()
            waits = before or not (_non_blocking(args, kwargs) and is_pinned)
            self.copied["to device" if after else "to host", waits] += 1
        if before != after and moved.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            moved = moved.clone()
        if after:
            self._register(moved)
        elif before:
            self._storages.pop(moved.untyped_storage()._cdata, None)
        return moved

    def _register(self, result: Any) -> None:
        for tensor in _tensors(result):
            if self.device.type == "mps" and tensor.dtype == torch.float64:
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support it")
            self.used += 1
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage)
        if len(self._storages) > 20_000:
            self._storages = {key: value for key, value in self._storages.items() if not value.expired()}

    def _is_used(self, kwargs: dict[str, Any], otherwise: bool) -> bool:
        """Return whether arguments name the accelerator, else ``otherwise``; replace its name by the CPU."""
        if kwargs.get("device") is None:
            return otherwise
        there = torch.device(kwargs["device"]).type == self.device.type
        kwargs["device"] = CPU if there else kwargs["device"]
        return there


def _non_blocking(args: Any, kwargs: Any) -> bool:
    """Return whether ``Tensor.to`` was asked not to wait for the copy."""
    return bool(kwargs.get("non_blocking", any(value is True for value in args[1:])))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


@contextlib.contextmanager
def emulated(
    bf16: bool = False, capability: tuple[int, int] | None = None, device: torch.device = CUDA
) -> Iterator[Accelerator]:
    """Emulate one accelerator for torch, ``accelerate`` and this package, until the end of the block.

    Args:
        bf16: Whether the accelerator reports support for bfloat16; autocast behaves as on the CPU.
        capability: Its compute capability; by default that of a new GPU, or of one before tensor cores without
            ``bf16``.
        device: Its name: ``cuda:0``, or ``mps:0`` for an Apple GPU.
    """
    load, autocast = torch.load, torch.autocast

    def load_here(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{**kwargs, "map_location": "cpu"})

    def autocast_here(device_type: str, *args: Any, **kwargs: Any) -> torch.autocast:
        return autocast("cpu", *args, **kwargs)

    fakes = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: capability or ((9, 0) if bf16 else (6, 1)),
        "get_device_name": lambda *_: "emulated",
        "get_device_properties": lambda *_: SimpleNamespace(total_memory=8 * 2**30, name="emulated", major=9, minor=0),
        "is_bf16_supported": lambda *_, **__: bf16,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        **dict.fromkeys(("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"), _nothing),
    }
    states = ("get_rng_state", "set_rng_state")
    with pytest.MonkeyPatch.context() as patch:
        if device.type == "mps":
            patch.setattr(torch.backends.mps, "is_available", lambda: True)
            patch.setattr(torch.mps, "recommended_max_memory", lambda: 8 * 2**30, raising=False)
            for name in (*states, "device_count", "manual_seed", "synchronize", "empty_cache"):
                patch.setattr(torch.mps, name, fakes[name])
            for name in fakes.keys() - {"is_available", "device_count", "manual_seed", "manual_seed_all"}:
                patch.setattr(torch.cuda, name, _refuse)  # seeding a GPU that is not there is without effect
        else:
            for name, fake in fakes.items():
                patch.setattr(torch.cuda, name, fake)
            for name in (*states, "get_rng_state_all", "set_rng_state_all"):
                patch.setattr(torch.cuda.random, name, fakes[name])
        patch.setattr(torch, "load", load_here)
        patch.setitem(LOADER_WORKERS, "cuda", 0)  # the emulation does not reach other processes
        patch.setattr(torch, "autocast", autocast_here)
        _clear_caches()
        try:
            kernels = attention_kernels() if device.type == "cuda" else contextlib.nullcontext()
            with kernels, Accelerator(device) as accelerator:
                yield accelerator
        finally:
            patch.undo()
            _clear_caches()


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a function of CUDA was called for an Apple GPU")


def _clear_caches() -> None:
    """Clear all caches that depend on the available devices."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    choices.has_fast_bf16.cache_clear()
    choices.mps_works.cache_clear()
    for cached in (varlen_works, _device_has_flash, _causal_mask):
        cached.cache_clear()
    for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
        clear = getattr(getattr(transformers.utils.import_utils, name, None), "cache_clear", _nothing)
        clear()


def _attention_reference(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, dropout: float, seed: int, scale: float | None,
    causal: bool, left: int = -1, right: int = -1, gradient: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute attention text by text, (tokens, heads, head width), or its gradients; dropout comes from a seed."""
    generator, results = torch.Generator().manual_seed(seed), []
    bounds, heads, groups = starts.tolist(), key.shape[1], query.shape[1] // key.shape[1]
    scale = query.shape[2] ** -0.5 if scale is None else scale
    for begin, end in itertools.pairwise(bounds):
        q, k, v = (part[begin:end].transpose(0, 1).float() for part in (query, key, value))
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        ahead = torch.arange(end - begin)[None, :] - torch.arange(end - begin)[:, None]
        most, least = (0 if causal else right if right >= 0 else end), (-left if left >= 0 else -end)
        allowed = (ahead <= most) & (ahead >= least)
        weights = (q @ k.mT * scale).masked_fill(~allowed, -torch.inf).softmax(-1)
        kept = torch.ones_like(weights)
        if dropout:
            kept = (torch.rand(weights.shape, generator=generator) >= dropout) / (1 - dropout)
        if gradient is None:
            found: tuple[Tensor, ...] = ((weights * kept) @ v,)
        else:
            above = gradient[begin:end].transpose(0, 1).float()
            slopes = above @ v.mT * kept
            scores = weights * (slopes - (slopes * weights).sum(-1, keepdim=True)) * scale
            found = scores @ k, *((part.mT @ by).unflatten(0, (heads, groups)).sum(1)
                                  for part, by in ((scores, q), (weights * kept, above)))  # fmt: skip
        results.append([part.transpose(0, 1) for part in found])
    return tuple(torch.cat(parts).to(query.dtype) for parts in zip(*results, strict=True))


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, starts_k: Tensor, longest: int, longest_k: int,
    dropout: float, causal: bool, debug: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None, **_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert query.dtype in (torch.float16, torch.bfloat16) and query.shape[2] % 8 == 0, "what the real kernel refuses"
    assert int(starts[-1]) == len(query) and int(starts.diff().max()) == longest and starts.dtype == torch.int32
    seed = torch.randint(2**31, (2,)) if dropout else torch.zeros(2, dtype=torch.int64)
    left, right = (-1 if size is None else size for size in (window_size_left, window_size_right))
    (found,) = _attention_reference(query, key, value, starts, dropout, int(seed[0]), scale, causal, left, right)
    return found, query.new_zeros(query.shape[1], len(query)).float(), seed, seed[1:], query.new_zeros(0)


def _flash_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, starts: Tensor,
    starts_k: Tensor, longest: int, longest_k: int, dropout: float, causal: bool, seed: Tensor, unused: Tensor, *,
    scale: float | None = None, window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    left, right = (-1 if size is None else size for size in (window_size_left, window_size_right))
    return _attention_reference(
        query, key, value, starts, dropout, int(seed[0]), scale, causal, left, right, gradient
    )  # fmt: skip


def _efficient_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, starts: Tensor, starts_k: Tensor, longest: int,
    longest_k: int, dropout: float, mask: int, logsumexp: bool = False, *, scale: float | None = None, **_: Any,
) -> tuple[Any, ...]:  # fmt: skip
    assert bias is None and query.shape[2] == key.shape[2], "grouped queries are not known to this kernel"
    seed = torch.randint(2**31, ()) if dropout else torch.zeros((), dtype=torch.int64)
    parts = (part[0] for part in (query, key, value))
    (found,) = _attention_reference(*parts, starts, dropout, int(seed), scale, mask > 0)
    return found[None], query.new_zeros(1).float(), seed, seed.clone(), longest, longest_k


def _efficient_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, output: Tensor, starts: Tensor,
    starts_k: Tensor, longest: int, longest_k: int, logsumexp: Tensor, dropout: float, seed: Tensor, offset: Tensor,
    mask: int, bias_gradient: bool, *, scale: float | None = None, **_: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    parts = (part[0] for part in (query, key, value))
    gradients = _attention_reference(*parts, starts, dropout, int(seed), scale, mask > 0, gradient=gradient[0])
    return *(part[None] for part in gradients), query.new_zeros(0)


ATTENTION_KERNELS = {
    "_flash_attention_forward": _flash_forward,
    "_flash_attention_backward": _flash_backward,
    "_efficient_attention_forward": _efficient_forward,
    "_efficient_attention_backward": _efficient_backward,
}
"""References on the CPU for kernels that torch has on accelerators only."""


@contextlib.contextmanager
def attention_kernels() -> Iterator[None]:
    """Give torch the references until the end of the block."""
    library = torch.library.Library("aten", "IMPL", "CPU")
    try:
        for name, kernel in ATTENTION_KERNELS.items():
            library.impl(name, kernel)
        yield
    finally:
        library._destroy()
