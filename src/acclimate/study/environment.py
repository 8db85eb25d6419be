"""What a result was computed with: versions and the processor."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("acclimate", "torch", "transformers", "tokenizers", "datasets", "accelerate", "scikit-learn", "numpy")


def environment() -> dict[str, str]:
    """Return versions of Python and the packages that matter, the processor and, if there is one, the accelerator."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["processor"] = f"{_processor()}, {os.cpu_count()} logical cores"
    if kernels := os.environ.get("ACCLIMATE_KERNELS"):
        found["kernels"] = kernels
    accelerator = _accelerator()
    return {**found, "accelerator": accelerator} if accelerator else found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
