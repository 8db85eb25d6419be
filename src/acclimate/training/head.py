"""A model that surely has a masked-LM head."""

from __future__ import annotations

from pathlib import Path

from acclimate.backbone import load_masked_lm
from acclimate.training.adapt import adapt
from acclimate.training.texts import Text
from acclimate.training.warm_up import HEAD_TOKENS


def ensure_head(
    model: str | Path,
    corpus: Text,
    out: str | Path,
    *,
    tokens: int = HEAD_TOKENS,
    max_length: int = 128,
    seed: int = 0,
    precision: str = "auto",
    progress: bool = True,
) -> Path:
    """Return a model folder with a usable masked-LM head: ``model`` itself if it has one, else ``out``.

    Args:
        model: A model folder or a name on the hub.
        corpus: Text to warm an absent head up on; general text is best, so that no adaptation hides in it.
        out: Folder to make if the head is absent.
        tokens: Budget of the warm-up.
        max_length: Tokens of a text at most.
        seed: Of the warm-up.
        precision: As in :func:`adapt`.
        progress: Show bars.
    """
    if not load_masked_lm(model).absent_head:
        return Path(model)
    return adapt(
        model,
        corpus,
        "none",
        out,
        head_tokens=tokens,
        max_length=max_length,
        seed=seed,
        precision=precision,
        progress=progress,
    ).out
