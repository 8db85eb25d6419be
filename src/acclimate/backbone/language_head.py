"""The head that turns hidden states into vocabulary logits: finding it, and making one where it is absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.backbone.shapes import chosen_positions
from acclimate.errors import UserError


def language_head(model: Any) -> Callable[[Tensor], Tensor]:
    """Return the function from hidden states (..., width) to logits (..., vocabulary) of a masked language model.

    Projecting only the masked positions is exact and saves most of the cost of a small model.

    Raises:
        UserError: If the model has no masked-language-model head that is known here.
    """
    if hasattr(model, "cls"):  # bert
        return model.cls
    if hasattr(model, "generator_lm_head"):  # electra
        return lambda hidden: model.generator_lm_head(model.generator_predictions(hidden))
    if hasattr(model, "vocab_projector"):  # distilbert
        return lambda hidden: model.vocab_projector(
            model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
        )
    if hasattr(model, "predictions"):  # albert
        return model.predictions
    if hasattr(model, "head") and hasattr(model, "decoder"):  # modernbert
        return lambda hidden: model.decoder(model.head(hidden))
    if hasattr(model, "lm_head"):  # roberta, xlm-roberta, camembert
        return model.lm_head
    raise UserError(f"{type(model).__name__} has no masked-language-model head that acclimate knows.")


def score_chosen(head: Callable[[Tensor], Tensor], hidden: Tensor, chosen: Tensor) -> Tensor:
    """Return the logits (chosen, vocabulary) of a head at the chosen positions only, in row order.

    Args:
        head: From :func:`language_head`.
        hidden: (rows, tokens, width).
        chosen: Boolean (rows, tokens).
    """
    return head(hidden.flatten(0, 1)[chosen_positions(chosen)])[: int(chosen.sum())]


def head_parameters(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Return the parameters outside the encoder: the head, without the decoder weight if that is tied."""
    inside = {id(parameter) for parameter in model.base_model.parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in inside}


def start_head(model: PreTrainedModel, missing: set[str]) -> None:
    """Initialise an absent head: square layers near the identity, biases zero, the decoder tied to the embeddings.

    From the identity the warm-up has little to learn: the hidden states already point at their own word.

    Args:
        model: The model, whose parameters named in ``missing`` hold random values.
        missing: Names of the parameters that the checkpoint did not have.
    """
    model.config.tie_word_embeddings = True
    model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in head_parameters(model).items():
            if name not in missing:
                continue
            if parameter.dim() == 2 and parameter.shape[0] == parameter.shape[1]:
                noise = torch.randn(parameter.shape, generator=generator) * 0.01
                parameter.copy_(torch.eye(parameter.shape[0]) + noise)
            elif parameter.dim() == 1 and name.endswith("bias"):
                parameter.zero_()
