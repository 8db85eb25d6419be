"""``acclimate doctor``: what this machine has, for a bug report."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import cache_path
from acclimate.base.options import verb
from acclimate.base.shares import usable_cores
from acclimate.base.version import __version__
from acclimate.labs.bench.options import DoctorOptions

LIBRARIES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy")
"""Libraries whose versions matter most in a bug report."""
DEVELOPMENT = ("dev", "docs")
"""Extras that users do not need."""
VARIABLES = (
    "ACCLIMATE_",
    "CUDA_VISIBLE",
    "HF_HUB_OFFLINE",
    "OMP_NUM",
    "MKL_NUM",
    "PYTORCH_",
    "ACCELERATE_",
    "WORLD_SIZE",
)
"""Beginnings of the environment variables that change what acclimate does."""
BUSY = 1.5
"""Load per core above which other programs slow the training down."""
SMALL_MEMORY, SMALL_DISK = 8e9, 5e9
"""Bytes of memory and of free disk below which a base model may not fit."""


@verb(DoctorOptions)
def doctor(options: DoctorOptions) -> dict[str, Any]:
    """Return what this machine has, as plain values; nothing is downloaded, and only paths of caches are named.

    Returns:
        ``versions`` by library; ``extras`` by name, each with the missing packages; ``machine``; ``devices``;
        ``kernels``: whether each is used on the default device; ``caches``, with sizes in bytes; ``variables``; and
        ``advice``, each with ``do`` and ``why``.
    """
    import torch

    from acclimate.base.device import choose_precision, default_device, enable_fast_fp32_matmul

    device, problems = default_device(), list[str]()
    kernels: dict[str, bool] = {}
    memory = 0.0
    try:
        memory = _memory(torch.device("cpu"))
        kernels = _kernels(device)
    except UserError as error:  # an environment variable has an invalid value
        problems.append(str(error))
    found = {
        "versions": {"acclimate": __version__, "python": platform.python_version(), **_library_versions()},
        "extras": _missing_packages(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count() or 1,
            "usable_cores": usable_cores(),
            "threads": torch.get_num_threads(),
            "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
            "memory": memory,
            "memory_available": _available_memory(),
        },
        "devices": _devices(),
        "default_device": device.type,
        "precision": choose_precision("auto", device),
        "fast_fp32_products": enable_fast_fp32_matmul(),
        "kernels": kernels,
        "caches": _caches(),
        "disk_free": shutil.disk_usage(Path.cwd()).free,
        "variables": {
            name: _shorten_home(Path(value)) if value.startswith("/") else value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES)
        },
        "problems": problems,
    }
    return {**found, "advice": list(_advise(found))}


def _library_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _missing_packages() -> dict[str, list[str]]:
    """Return the packages that each extra lacks, by name of the extra; empty if the package is not installed."""
    from importlib.metadata import PackageNotFoundError, metadata, version

    from packaging.requirements import Requirement

    try:
        about = metadata("acclimate")
    except PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {name: [] for name in about.get_all("Provides-Extra") or ()}
    for requirement in map(Requirement, about.get_all("Requires-Dist") or ()):
        for extra, missing in found.items():
            if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
                continue
            try:
                fits = requirement.specifier.contains(version(requirement.name), prereleases=True)
            except PackageNotFoundError:
                fits = False
            missing += [] if fits or requirement.marker.evaluate({"extra": ""}) else [str(requirement).split(";")[0]]
    return {name: missing for name, missing in sorted(found.items()) if name not in DEVELOPMENT}


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _devices() -> list[dict[str, Any]]:
    """Return the accelerators that torch sees, with their memory in bytes."""
    import torch

    from acclimate.base.device import mps_works

    found: list[dict[str, Any]] = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(number)
        found.append({"kind": "cuda", "name": properties.name, "memory": properties.total_memory, "used": True})
    if torch.backends.mps.is_available():
        memory = torch.mps.recommended_max_memory()
        found.append({"kind": "mps", "name": "Apple GPU", "memory": memory, "used": mps_works()})
    return found


def _kernels(device: Any) -> dict[str, bool]:
    """Return which kernels a BERT model runs with."""
    from transformers import BertConfig, BertModel

    from acclimate.models.families import describe_computation

    sizes: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size"), 8)
    sizes |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1)
    found = describe_computation(BertModel(BertConfig(vocab_size=8, **sizes)).to(device))
    return {name: value for name, value in found.items() if name != "device"}


def _memory(device: Any) -> float:
    from acclimate.models.batching import machine_memory

    return float(machine_memory(device))


def _available_memory() -> int | None:
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return None


def _caches() -> dict[str, dict[str, Any]]:
    """Return where the caches of acclimate and of the Hugging Face Hub are, with their sizes and free space."""
    from huggingface_hub.constants import HF_HUB_CACHE

    places = {"acclimate": cache_path(), "models and datasets of the Hub": Path(HF_HUB_CACHE)}
    found = {}
    for name, path in places.items():
        existing = next((parent for parent in (path, *path.parents) if parent.exists()), Path("/"))
        found[name] = {
            "path": _shorten_home(path),
            "bytes": _size(path),
            "free": shutil.disk_usage(existing).free,
            "writable": os.access(existing, os.W_OK),
        }
    return found


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; links are not counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _shorten_home(path: Path) -> str:
    with suppress(RuntimeError, ValueError):
        return str(Path("~") / path.relative_to(Path.home()))
    return str(path)


def _advise(found: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield what to change on a machine, the most useful first: what to ``do``, and ``why``."""
    machine, on_cpu = found["machine"], found["default_device"] == "cpu"
    threads, cores, load, memory = (machine[name] for name in ("threads", "usable_cores", "load", "memory"))
    yield from _advise_device(found["devices"], on_cpu)
    better = "a CPU with AMX or AVX512-BF16, or a GPU" if on_cpu else "a newer GPU"
    rules = (
        (
            on_cpu and threads < cores,
            f"Set OMP_NUM_THREADS={cores}, or unset it.",
            f"torch uses {threads} of {cores} cores.",
        ),
        (
            on_cpu and (load or 0) > BUSY * cores,
            "Wait for other programs, or stop them.",
            f"The load is {load} on {cores} cores.",
        ),
        (
            found["variables"].get("ACCLIMATE_KERNELS") == "torch",
            "Unset ACCLIMATE_KERNELS.",
            "It turns the faster kernels off.",
        ),
        (
            found["precision"] == "fp32",
            f"Use {better}.",
            "This device does not multiply bfloat16, so training runs in fp32.",
        ),
        (
            on_cpu and 0 < memory < SMALL_MEMORY,
            "Adapt with --adapter lora or --gradient-checkpointing.",
            f"There are {_gigabytes(memory)} of memory; training a base model takes about 4.",
        ),
    )
    yield from ({"do": do, "why": why} for applies, do, why in rules if applies)
    for name, cache in found["caches"].items():
        if not cache["writable"]:
            yield {"do": f"Make {cache['path']} writable.", "why": f"The cache of {name} cannot be written."}
        elif cache["free"] < SMALL_DISK:
            yield {
                "do": f"Free some space on the disk of {cache['path']}.",
                "why": f"{_gigabytes(cache['free'])} are free, and a model with its checkpoints may need more.",
            }


def _advise_device(devices: list[dict[str, Any]], on_cpu: bool) -> Iterator[dict[str, str]]:
    used = [device["name"] for device in devices if device["used"]]
    if used and on_cpu:
        yield {"do": "Unset ACCELERATE_USE_CPU.", "why": f"It hides the GPU ({used[0]})."}
    elif on_cpu and shutil.which("nvidia-smi"):
        yield {
            "do": "Install a build of torch for your driver: https://pytorch.org/get-started/locally.",
            "why": "There is an NVIDIA driver, but torch sees no GPU.",
        }
    elif devices and not used:
        yield {
            "do": "Report this text to the developers of acclimate.",
            "why": "The Apple GPU does not give the results of the CPU, so it is not used.",
        }
    if not on_cpu and any(device["kind"] == "mps" for device in devices):
        yield {
            "do": "Report speed and faults with this text.",
            "why": "Nobody has run acclimate on an Apple GPU yet; ACCELERATE_USE_CPU=1 turns it off.",
        }


def show_machine(found: Mapping[str, Any], options: DoctorOptions) -> Iterator[str]:
    """Yield the lines of the text for a bug report.

    Args:
        found: From :func:`doctor`.
        options: The options of the command.
    """
    machine = found["machine"]
    yield from (f"{name} {version}" for name, version in found["versions"].items())
    yield ""
    yield f"system: {machine['system']}"
    yield f"processor: {machine['processor']}, {machine['usable_cores']} of {machine['cores']} cores usable"
    yield f"threads of torch: {machine['threads']}" + (f"; load {machine['load']}" if machine["load"] else "")
    available = machine["memory_available"]
    yield f"memory: {_gigabytes(machine['memory'])}" + (f", {_gigabytes(available)} available" if available else "")
    for device in found["devices"]:
        size = f", {_gigabytes(device['memory'])}" if device["memory"] else ""
        yield f"{device['kind']}: {device['name']}{size}{'' if device['used'] else ' (not used)'}"
    yield f"device: {found['default_device']}, precision auto is {found['precision']}"
    yield f"fast fp32 products: {'on' if found['fast_fp32_products'] else 'off'}"
    on = [name.replace("_", " ") for name, used in found["kernels"].items() if used]
    yield f"kernels of an encoder: {', '.join(on) or 'none'}"
    yield ""
    for name, cache in found["caches"].items():
        yield f"cache of {name}: {cache['path']}, {_gigabytes(cache['bytes'])}, {_gigabytes(cache['free'])} free"
    yield f"free in this folder: {_gigabytes(found['disk_free'])}"
    yield from (f"{name}={value}" for name, value in found["variables"].items())
    yield ""
    for name, missing in found["extras"].items():
        state = f"missing {', '.join(missing)}: pip install 'acclimate[{name}]'" if missing else "installed"
        yield f"extra {name}: {state}"
    if not found["extras"]:
        yield "extras: unknown, since acclimate is not installed as a package"
    yield ""
    yield from (f"Problem: {problem}" for problem in found["problems"])
    yield "Faster on this machine:" if found["advice"] else "Nothing obvious would make this machine faster."
    yield from (f"  {advice['do']} {advice['why']}" for advice in found["advice"])


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
