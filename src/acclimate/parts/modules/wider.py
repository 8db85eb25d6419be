"""More units in every feed-forward block, and more heads, of a model whose other weights are frozen (AF Adapter).

The outputs of new units start at zero, so that the model first computes what it did (the released code draws them at
random). When the model is saved, they are rows and columns of larger linear layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from acclimate.base.errors import UserError, check_not_negative
from acclimate.models.adapters import TRAINED_NAMES, Adapter, build_ordinary, convert_weights, register, share_weights
from acclimate.models.gates import UNITS_ATTRIBUTE, feed_forward_units, linear_sizes

WIDTHS = ("intermediate_size", "hidden_dim", "n_inner")
"""Entries of configurations for the units of a feed-forward block."""
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


@register("wider", paper="Yan et al., 2023", summary="more units and heads in every layer")
@dataclass(eq=False)
class WiderAdapter(Adapter):
    """New units and heads that train, in a model whose other weights are frozen.

    Attributes:
        units: Units to add to each feed-forward block (paper: 1,024).
        heads: Attention heads to add (paper: 1); with grouped keys, groups of them. Llama and similar decoders can
            have more. In BERT their width is the model's divided by their number, which leaves no room for more.
    """

    rate = 4  # the paper's learning rate is 4e-4

    units: int = 1024
    heads: int = 0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_not_negative(units=self.units, heads=self.heads)
        if not self.units + self.heads:
            raise UserError("The adapter 'wider' adds nothing with units=0 and heads=0.")

    def add(self) -> None:
        """Add the units.

        Raises:
            UserError: If the units cannot be found, the method reads gates on them, or ``transformers`` could not load
                the wider model.
        """
        model = self.model
        if getattr(model, UNITS_ATTRIBUTE, None):
            self.mask([])  # gates of a method have the former number of units
        self._plain = share_weights(model)
        self.changes: dict[str, int] = {}
        model.requires_grad_(False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.blocks = self._add_units() if self.units else 0
            if self.heads:
                self._add_heads()
        setattr(model, TRAINED_NAMES, (".added",))
        self.check_start(self._plain)

    @property
    def place(self) -> str:
        """Location in the model, for messages."""
        heads = [f"{self.heads} more heads per layer"] if self.heads else []
        units = [f"{self.units:,} more units in {self.blocks} feed-forward blocks"] if self.blocks else []
        return f"with {' and '.join(units + heads)}"

    def base(self) -> PreTrainedModel:
        """Return the model without its adapter; it shares the weights."""
        return self._plain

    def merged(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return an ordinary wider model, as ``transformers`` would load it."""
        state = {name: value for name, value in self.model.state_dict().items() if ".parametrizations." not in name}
        for name, module in self.model.named_modules():
            if parametrize.is_parametrized(module):
                wider: Any = module.parametrizations
                state |= {f"{name}.{weight}": getattr(module, weight).detach() for weight in wider}
        made = build_ordinary(self.model, self.changes, state)
        convert_weights(made, dtype)
        return made

    def _add_units(self) -> int:
        """Widen all feed-forward blocks; return their number."""
        inner, outer = (feed_forward_units(self.model, part, 1) for part in ("I", "O"))
        sizes = {units.units for units in inner}
        names = [name for name in WIDTHS if hasattr(self.model.config, name)]
        if len(sizes) != 1 or not names:
            raise UserError(f"The feed-forward blocks of {type(self.model).__name__} differ in width; use lora.")
        more = self.units
        for first, last in zip(inner, outer, strict=True):
            for linear in filter(None, (first.linear, first.factor)):
                _widen(linear, more, outputs=True, blocks=linear_sizes(linear)[1] // first.units)
            _widen(last.linear, more, outputs=False)
        self.changes[names[0]] = sizes.pop() + more
        return len(inner)

    def _add_heads(self) -> None:
        """Add heads to all attention layers, with the same number of queries per key as the others have."""
        config, heads = self.model.config, self.heads
        found = [module for module in self.model.base_model.modules() if _projections(module)]
        groups = getattr(config, "num_key_value_heads", None)
        width: Any = getattr(found[0], "head_dim", None) if found else None
        if not groups or not width or len(found) != config.num_hidden_layers:
            raise UserError(
                f"{type(self.model).__name__} cannot have more heads: their width follows from their number, or its "
                "attention is not made of q_proj, k_proj, v_proj and o_proj. Remove heads; units can be added."
            )
        queries = config.num_attention_heads // groups
        for module in found:
            query, key, value, output = _projections(module)
            for linear, more in ((query, queries * heads), (key, heads), (value, heads)):
                _widen(linear, more * width, outputs=True)
            _widen(output, queries * heads * width, outputs=False)
        more_heads = {"num_attention_heads": config.num_attention_heads + queries * heads, "head_dim": width}
        self.changes |= more_heads | {"num_key_value_heads": groups + heads}


def _projections(module: nn.Module) -> list[Any]:
    found = [getattr(module, name, None) for name in PROJECTIONS]
    return found if all(isinstance(one, nn.Linear) for one in found) else []


class _Added(nn.Module):
    """A weight with more rows or columns, added at the end of each of its blocks."""

    def __init__(self, added: Tensor, dim: int, blocks: int) -> None:
        super().__init__()
        self.added, self.dim, self.blocks = nn.Parameter(added), dim, blocks

    def forward(self, weight: Tensor) -> Tensor:
        """Return the wider weight."""
        parts = zip(weight.chunk(self.blocks, self.dim), self.added.chunk(self.blocks, self.dim), strict=True)
        return torch.cat([part for pair in parts for part in pair], self.dim)


def _widen(linear: Any, more: int, *, outputs: bool, blocks: int = 1) -> None:
    """Give a linear layer more outputs, drawn like its weights, or more inputs, whose weights are zero.

    Args:
        linear: The layer, or GPT-2's ``Conv1D``.
        more: Number of new outputs or inputs.
        outputs: Whether outputs are added.
        blocks: Number of equal parts of the outputs, each of which gets ``more``: two in a fused gated linear unit.
    """
    weight, transposed = linear.weight, isinstance(linear, Conv1D)
    rows, columns = linear_sizes(linear)[::-1]
    shape = (more * blocks, columns) if outputs else (rows, more)
    added = torch.zeros(shape, device=weight.device, dtype=weight.dtype)
    if outputs:
        added = torch.randn(shape).to(added) * weight.detach().std()
    dim = int(not outputs) if not transposed else int(outputs)
    added = added.T.contiguous() if transposed else added
    parametrize.register_parametrization(linear, "weight", _Added(added, dim, blocks), unsafe=True)
    if outputs and linear.bias is not None:
        zeros = torch.zeros(more * blocks, device=weight.device, dtype=weight.dtype)
        parametrize.register_parametrization(linear, "bias", _Added(zeros, 0, blocks), unsafe=True)
    names = ("nx", "nf") if transposed else ("in_features", "out_features")
    setattr(linear, names[outputs], linear_sizes(linear)[outputs] + more * blocks)
