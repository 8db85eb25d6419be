"""Frozen models, other than the original of the model in training, that views read the texts with."""

from __future__ import annotations

from typing import Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.models.kinds import kind_of
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach

Uses = Literal["predictions", "states", "similarities"]


def load_teacher(
    path: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, uses: Uses, sharded: bool
) -> PreTrainedModel:
    """Load a language model that reads the same rows of tokens as ``model``; return it frozen, on its device.

    Args:
        path: The folder of the teacher, or its name on the Hub.
        model: The model in training.
        tokenizer: The tokenizer of the rows.
        uses: What is needed: its predictions; its hidden states, which must be as wide as those of ``model``; or
            similarities of its hidden states, whatever their width.
        sharded: Whether its weights will be sharded among processes.

    Raises:
        UserError: If it cannot be loaded, is of another kind, has other tokens, or lacks what is needed.
    """
    teacher = load_language_model(path)
    own, other = (one.config.get_text_config().hidden_size for one in (model, teacher.model))
    if teacher.kind != kind_of(model):
        reason = f"it is a {teacher.kind.name} language model, and the one in training is {kind_of(model).name}"
    elif teacher.tokenizer.get_vocab() != tokenizer.get_vocab():
        reason = "its tokens differ from those of the model in training; use models with the same tokenizer"
    elif uses == "states" and own != other:
        reason = f"its hidden states have {other} features, and those of the model in training have {own}"
    elif teacher.absent_head and uses == "predictions":
        reason = "it has no language-model head"
    else:
        attach(to_device(teacher.model), sharded)
        return teacher.model.eval().requires_grad_(False)
    raise UserError(f"'{path}' cannot be the teacher: {reason}.")
