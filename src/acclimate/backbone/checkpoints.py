"""Reading and writing model folders, those of models with adapters among them.

A model without adapters is an ordinary folder. Adapters are no part of any architecture of ``transformers``, and a
loader that does not know them would leave them out with no more than a warning. So the weights of a model with
adapters have a name that such a loader does not look for: it stops, and the README in the folder says what is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.utils import logging

from acclimate.backbone.adapters import ADAPTER_SIZE, add_adapters
from acclimate.backbone.heads import attach
from acclimate.errors import UserError
from acclimate.files import write_text

WEIGHTS = "adapted.safetensors"
MARK = ".adapter."

README = """# A model with adapters

The weights in `{weights}` are those of a {kind} with bottleneck adapters of size {size} (Houlsby et al., 2019). They
are no part of that architecture, so `from_pretrained` of transformers does not load them. Load this folder with

    from acclimate.backbone import load_masked_lm
    model = load_masked_lm("{folder}").model

or give it to `acclimate finetune --model` as it is.
"""


def from_pretrained(auto: Any, path: str | Path, config: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load a model with one of the auto classes of ``transformers``, and its adapters if it has any.

    Args:
        auto: Such as ``AutoModelForMaskedLM``.
        path: A model folder, or a name on the hub.
        config: Its configuration.
        options: Of ``from_pretrained``.

    Returns:
        The model, and what ``transformers`` says about missing and mismatched weights.

    Raises:
        UserError: If the adapters are incomplete.
    """
    size = getattr(config, ADAPTER_SIZE, 0)
    if not size:
        return auto.from_pretrained(str(path), config=config, output_loading_info=True, **options)
    try:
        state = load_file(Path(path) / WEIGHTS)
    except OSError as error:
        raise UserError(f"The folder '{path}' should hold a model with adapters, but {WEIGHTS} is missing.") from error
    plain = {name: value for name, value in state.items() if MARK not in name}
    kind = type(auto.from_config(config))  # the auto classes themselves want a path
    model, info = kind.from_pretrained(None, config=config, state_dict=plain, output_loading_info=True, **options)
    add_adapters(model, attach(model), size)
    adapters = {name: value for name, value in state.items() if MARK in name}
    expected = {name for name in model.state_dict() if MARK in name}
    if expected != set(adapters):
        raise UserError(f"The adapters in '{path}' are not those of a {type(model).__name__} with size {size}.")
    model.load_state_dict(adapters, strict=False)
    return model, info


def save_model(model: PreTrainedModel, folder: str | Path, name: str | Path | None = None) -> None:
    """Write a model into a folder that exists; see the head of this module for those with adapters.

    Args:
        model: The model.
        folder: Where to write.
        name: How the folder is going to be called, for its README.
    """
    folder = Path(folder)
    size = getattr(model.config, ADAPTER_SIZE, 0)
    if not size:
        model.save_pretrained(folder)
        return
    model.save_pretrained(folder, max_shard_size="1000GB")
    os.replace(folder / "model.safetensors", folder / WEIGHTS)
    kind = type(model).__name__
    write_text(folder / "README.md", README.format(weights=WEIGHTS, kind=kind, size=size, folder=name or folder))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from listing the new weights and drawing bars: what is new is known and documented."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
