"""What the stages start from: all of a run, besides the task and the recipe, that decides their outcome."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, PreTrainedModel

from acclimate.corpus.tokenizing import fingerprint_tokenizer
from acclimate.tasks.cached import what_computes
from acclimate.training.run import Run, fingerprint_tensors


def starts_from(run: Run) -> dict[str, Any]:
    """Return what decides the numbers of models that are trained from that of a run, as plain values.

    Of the masked-LM head only what classifiers go on with counts: one that was absent is made anew by each run.

    Raises:
        UserError: If the tokenizer does not put its special tokens around a text.
    """
    encoder: Any = run.model.base_model
    return {
        **what_computes(encoder, run.tokenizer, run.precision),
        "tokenizer": fingerprint_tokenizer(run.tokenizer),
        "head": fingerprint_tensors(shared_head(run.model)),
    }


def shared_head(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the tensors of a masked-LM head that classifiers of texts or tokens have too (ModernBERT), by name."""
    shapes: dict[str, set[torch.Size]] = {}
    for auto in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
        with torch.device("meta"):
            classifier = auto.from_config(model.config)
        for name, value in classifier.state_dict().items():
            shapes.setdefault(name, set()).add(value.shape)
    encoder = f"{model.base_model_prefix}."
    return {
        name: value
        for name, value in model.state_dict().items()
        if not name.startswith(encoder) and value.shape in shapes.get(name, ())
    }
