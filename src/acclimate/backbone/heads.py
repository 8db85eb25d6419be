"""Where the attention heads of a model are, and which weights belong to each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.backbone.attention import LAYER, NAME
from acclimate.backbone.thrift import make_thrifty
from acclimate.errors import UserError

QUERY, KEY, VALUE = ("query", "q_lin", "q_proj"), ("key", "k_lin", "k_proj"), ("value", "v_lin", "v_proj")
FUSED = ("Wqkv",)
OUTPUT = ("out_lin", "o_proj", "Wo", "dense")


@dataclass(frozen=True)
class Projection:
    """A linear layer, or the part of a fused one, whose output rows are split among heads."""

    linear: nn.Linear
    first_row: int
    heads: int


@dataclass(frozen=True)
class HeadLayer:
    """One attention module: its number of heads, their width, and its four projections.

    ALBERT calls the same module in every layer; it is then one ``HeadLayer``, since its heads share their weights.
    """

    name: str
    heads: int
    width: int
    inputs: tuple[Projection, Projection, Projection]
    output: nn.Linear

    @property
    def units(self) -> int:
        """The heads are the units that gates and soft masks speak of."""
        return self.heads

    def owned(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Spread one value a head over the weights that the head owns.

        A head owns the rows of W_q, W_k and W_v (and of their biases) that compute its part, and the columns of W_o
        that read it. The bias of W_o belongs to no head.

        Args:
            values: (heads,).

        Returns:
            Parameters, each with values that broadcast over it; zero where a weight belongs to no head.
        """
        rows: dict[int, tuple[nn.Linear, Tensor]] = {}
        for projection in self.inputs:  # the three parts of a fused layer share one parameter
            linear, before = rows.get(id(projection.linear), (projection.linear, 0))
            rows[id(linear)] = (linear, before + head_rows(values, projection, self.width))
        result: list[tuple[Tensor, Tensor]] = []
        for linear, shares in rows.values():
            result.append((linear.weight, shares[:, None]))
            if linear.bias is not None:
                result.append((linear.bias, shares))
        return [*result, (self.output.weight, values.repeat_interleave(self.width)[None, :])]


def attach(model: PreTrainedModel) -> list[HeadLayer]:
    """Make ``model`` run the gated attention function and return its attention layers in the order of their calls.

    A probe of four tokens finds the modules that really call the function, so that nothing relies on names there.

    Raises:
        UserError: If the model does not call the attention function, or does not pass keyword arguments on to it,
            so that gates would silently do nothing; or if its projections cannot be found.
    """
    kind = type(model).__name__
    refusal = UserError(
        f"The attention of {kind} cannot be gated: it does not run the attention function of transformers. "
        "Use an encoder such as bert, roberta, xlm-roberta, camembert, electra, distilbert, albert or modernbert."
    )
    try:
        model.set_attn_implementation(NAME)
    except (ValueError, AttributeError) as error:
        raise refusal from error
    calls: list[tuple[nn.Module, int, int]] = []
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        try:
            model.base_model(input_ids=torch.full((1, 4), 5, device=device), attention_probe=calls)
        except TypeError as error:
            raise refusal from error
        finally:
            model.train(training)
    names = {id(module): name for name, module in model.named_modules()}
    layers: list[HeadLayer] = []
    seen: set[int] = set()
    for module, heads, width in calls:
        if id(module) not in seen:
            seen.add(id(module))
            setattr(module, LAYER, len(layers))
            layers.append(_layer(model, module, names[id(module)], heads, width))
    if not layers:
        raise refusal
    make_thrifty(model)
    return layers


def _first(module: nn.Module, names: tuple[str, ...]) -> nn.Linear | None:
    return next((found for name in names if isinstance(found := getattr(module, name, None), nn.Linear)), None)


def _layer(model: PreTrainedModel, module: nn.Module, name: str, heads: int, width: int) -> HeadLayer:
    fused = _first(module, FUSED)
    if fused is not None:
        inputs = [Projection(fused, part * heads * width, heads) for part in range(3)]
    else:
        linears = [_first(module, names) for names in (QUERY, KEY, VALUE)]
        inputs = [Projection(linear, 0, linear.out_features // width) for linear in linears if linear is not None]
    output = _first(module, OUTPUT)
    if output is None:  # BERT and its kin keep the output projection beside the attention, not in it
        parent = model.get_submodule(name.rpartition(".")[0])
        output = _first(getattr(parent, "output", nn.Module()), OUTPUT)
    if len(inputs) != 3 or output is None or output.in_features != heads * width:
        raise UserError(f"The projections of {type(model).__name__}.{name} cannot be told apart by head.")
    return HeadLayer(name, heads, width, (inputs[0], inputs[1], inputs[2]), output)


def head_rows(values: Tensor, projection: Projection, width: int) -> Tensor:
    """Spread one value a head over the rows of a projection; rows of other parts of a fused layer get zero.

    Args:
        values: (heads,).
        projection: The projection; with fewer heads than values (grouped queries) the largest of a group counts.
        width: Rows a head.

    Returns:
        (rows of the linear layer,).
    """
    grouped = values.view(projection.heads, -1).amax(1)
    rows = torch.zeros(projection.linear.out_features, device=values.device, dtype=values.dtype)
    rows[projection.first_row : projection.first_row + projection.heads * width] = grouped.repeat_interleave(width)
    return rows
