"""Learning rates of parts of a model: freezing by name, and layer-wise learning-rate decay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedModel

from acclimate.base.errors import UserError, did_you_mean
from acclimate.models.compiling import layers_of
from acclimate.models.encoding import reads_pairs
from acclimate.parts.updates.rules import UpdateRule


def freeze(model: nn.Module, patterns: Sequence[str]) -> str:
    """Freeze the weights whose names match a pattern.

    Args:
        model: The model.
        patterns: Parts of names between dots, such as ``embeddings``, ``layer.0`` or ``*.layer.[0-5]``.

    Returns:
        One sentence on what is frozen.

    Raises:
        UserError: If a pattern matches no weight that trains, or all of them match.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))  # tied weights have several names
    training = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    chosen = set()
    for pattern in patterns:
        found = {name for name in weights if fnmatchcase(f".{name}.", f"*.{pattern}.*")}
        if not any(weights[name].requires_grad for name in found):
            known = sorted({part for name in weights for part in name.split(".")})
            why = "trains anyway" if found else "has such a part in its name"
            raise UserError(
                f"freeze: no weight that matches '{pattern}' {why}.{did_you_mean(pattern, known)} Names are such as "
                f"'{next(iter(weights))}'."
            )
        chosen |= found
    for name in chosen:
        weights[name].requires_grad_(False)
    left = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    if not left:
        raise UserError(f"freeze: {', '.join(patterns)} match all weights, so nothing would train; name fewer.")
    return f"Frozen: {training - left:,} of {training:,} parameters."


class LayerwiseDecay(UpdateRule):
    """Lower the learning rate of each layer below the head by one more factor.

    Whatever comes after the layers has the whole rate, the last of n layers the factor, the first its n-th power, and
    the embeddings the power n + 1. Howard and Ruder (ACL 2018) divide by 2.6 per layer; ELECTRA (Clark et al., ICLR
    2020) uses 0.8 and 0.9 in fine-tuning, with one more factor for the last layer.
    """

    needs_whole_weights: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel, factor: float) -> None:
        """Find the layers.

        Args:
            model: The model.
            factor: Factor per layer, above 0 and at most 1.

        Raises:
            UserError: If the layers of the model share their weights.
        """
        pairs = reads_pairs(model)
        stacks: list[Any] = [model.get_encoder(), model.get_decoder()] if pairs else [model.base_model]
        layers = layers_of(stacks[0])
        wanted = getattr(model.config.get_text_config(), "num_hidden_layers", len(layers))
        if not layers or (len(layers) != wanted and not pairs):
            raise UserError(
                f"layer_decay: {type(model).__name__} has {wanted} layers and {len(layers)} sets of weights for them; "
                "remove layer_decay."
            )
        below: dict[int, int] = {}  # the number of layers from a weight to the end of its stack, and one
        for stack in stacks:
            layers = layers_of(stack)
            own = {
                id(weight): len(layers) - number
                for number, layer in enumerate(layers)
                for weight in layer.parameters()
            }
            for weight in stack.parameters():  # in reading order, unlike the whole model
                if id(weight) in own:
                    break
                own[id(weight)] = len(layers) + 1
            below |= own
        self._factors = {name: factor ** below.get(id(weight), 0) for name, weight in model.named_parameters()}

    def learning_rate_factors(self) -> Mapping[str, float]:
        """Return the factor of each weight."""
        return self._factors


def parameter_groups(
    model: nn.Module, rate: float, weight_decay: float, factors: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return the groups of an optimizer: weights with the same learning rate, matrices apart from vectors.

    Biases and normalization layers have no weight decay. The first group has the highest rate.

    Args:
        model: The model.
        rate: Learning rate.
        weight_decay: Weight decay of matrices.
        factors: Factors of the learning rate by name of the weight; 1 by default.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            groups.setdefault((-factors.get(name, 1.0), weight.dim() <= 1), []).append(weight)
    return [
        {"params": weights, "lr": -factor * rate, "weight_decay": 0.0 if vectors else weight_decay}
        for (factor, vectors), weights in sorted(groups.items(), key=lambda item: item[0])
    ]
