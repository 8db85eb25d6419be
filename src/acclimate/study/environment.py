"""What a result was computed with: versions, the processor, and whether its passes were compiled."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("acclimate", "torch", "transformers", "tokenizers", "datasets", "accelerate", "scikit-learn", "numpy")


def environment() -> dict[str, str]:
    """Return versions of Python and the packages that matter, the processor and, if there is one, the accelerator.

    On a CPU ``passes`` says who drops values and computes the softmax of attention: ``compiled`` or ``torch``.
    """
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["system"] = f"{platform.system()} {platform.machine()}"
    found["processor"] = f"{_processor()}, {os.cpu_count()} logical cores"
    accelerator = _accelerator()
    return {**found, "accelerator": accelerator} if accelerator else {**found, "passes": _passes()}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _passes() -> str:
    from acclimate.backbone import compiled

    return "torch" if compiled.library() is None else "compiled"


def _accelerator() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
