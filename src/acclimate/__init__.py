"""Adapt a language model to unlabelled domain text, keep what it already knows, and measure whether it helped."""

from __future__ import annotations

import warnings
from typing import Any

from acclimate.base.version import __version__ as __version__

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm, imported in a notebook without ipywidgets


def __getattr__(name: str) -> Any:
    """Import the function of a verb on first access, so that ``import acclimate`` stays fast."""
    if name == "__all__":
        return __dir__()
    if not name.startswith("_"):
        from acclimate.base.verbs import find_verbs

        for verb in find_verbs():
            if verb.function_name == name:
                return verb.load()
    raise AttributeError(f"module 'acclimate' has no attribute '{name}'")


def __dir__() -> list[str]:
    """List the public functions, for completion in notebooks and for ``help``."""
    from acclimate.base.verbs import find_verbs

    return sorted(["__version__", *(verb.function_name for verb in find_verbs())])
