"""An emulated accelerator: tensors report that they are on ``cuda:0``, but are computed on the CPU.

Only the device of tensors is emulated: moving a tensor copies it, results are on the device of the inputs, and
operations on tensors of both devices are errors, as are ``numpy`` and generators of the wrong device. This finds code
that would fail with "Expected all tensors to be on the same device". Kernels, memory and speed are not emulated.
"""

from __future__ import annotations

import contextlib
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

from acclimate import device as choices

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
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

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, StorageWeakRef] = {}
        self.used = 0
        self.copied: Counter[tuple[str, bool]] = Counter()

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
        tensors = list(_tensors((args, kwargs)))
        held = [self.holds(tensor) for tensor in tensors]
        there = any(held)
        here = any(not on and tensor.dim() > 0 for on, tensor in zip(held, tensors, strict=True))
        if there and name in ("numpy", "__array__"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy: copy it to the CPU first")
        if there and here and name not in LENIENT and not (name in INDEXED and self.holds(args[0])):
            raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got cuda:0 and cpu")
        is_output_on_device = _uses_accelerator(kwargs, there)
        if is_output_on_device and kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        result = func(*args, **kwargs)
        if is_output_on_device and name not in LENIENT:
            self._register(result)
        return result

    def _where(self, func: Any, tensor: Tensor) -> Any:
        if not self.holds(tensor):
            return func(tensor)
        return {"device": CUDA, "is_cuda": True, "is_cpu": False}[func.__self__.__name__]

    def _move(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        before = self.holds(tensor)
        after = {Tensor.cpu: False, Tensor.cuda: True}.get(func, before)
        for place, value in enumerate(rest):
            if isinstance(value, Tensor):
                after = self.holds(value)
            elif isinstance(value, (torch.device, str)) and func is Tensor.to:
                after = torch.device(value).type == "cuda"
                rest[place] = CPU if after else value
        after = _uses_accelerator(kwargs, after)
        moved = tensor if func in (Tensor.cpu, Tensor.cuda) else func(tensor, *rest, **kwargs)
        if before != after:
            waits = before or not (_non_blocking(args, kwargs) and tensor.is_pinned())
            self.copied["to device" if after else "to host", waits] += 1
        if before != after and moved.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            moved = moved.clone()
        if after:
            self._register(moved)
        return moved

    def _register(self, result: Any) -> None:
        for tensor in _tensors(result):
            self.used += 1
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage)
        if len(self._storages) > 20_000:
            self._storages = {key: value for key, value in self._storages.items() if not value.expired()}


def _uses_accelerator(kwargs: dict[str, Any], otherwise: bool) -> bool:
    """Return whether ``kwargs`` name the accelerator (``otherwise`` if they name no device); replace it by the CPU."""
    if kwargs.get("device") is None:
        return otherwise
    there = torch.device(kwargs["device"]).type == "cuda"
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
def emulated(bf16: bool = False) -> Iterator[Accelerator]:
    """Emulate one accelerator for torch, ``accelerate`` and this package, until the end of the block.

    Args:
        bf16: Whether the accelerator reports support for bfloat16; autocast behaves as on the CPU.
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
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: "emulated",
        "get_device_properties": lambda *_: SimpleNamespace(total_memory=8 * 2**30, name="emulated", major=9, minor=0),
        "is_bf16_supported": lambda *_, **__: bf16,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        **dict.fromkeys(("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"), _nothing),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        for name in ("get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all"):
            patch.setattr(torch.cuda.random, name, fakes[name])
        patch.setattr(torch, "load", load_here)
        patch.setattr(torch, "autocast", autocast_here)
        _clear_caches()
        try:
            with Accelerator() as accelerator:
                yield accelerator
        finally:
            patch.undo()
            _clear_caches()


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _clear_caches() -> None:
    """Clear all caches that depend on the available devices."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    choices.has_fast_bf16.cache_clear()
    for name in ("is_torch_bf16_gpu_available", "is_torch_tf32_available"):
        clear = getattr(getattr(transformers.utils.import_utils, name, None), "cache_clear", _nothing)
        clear()
