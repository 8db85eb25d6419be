"""Copies of layers that first do nothing and train alone (ADEPT), with learning rates from general importance.

A copy follows its layer. Its output projections are zero, so that it passes its input on where layers add to a
residual stream. An encoder that normalizes after the residual connection, such as BERT, would normalize once more.
There the output of a copy is h + g (layer(h) - h), with a gate g that opens from 0 to 1 in the first half of the
training: no class of ``transformers`` has such a gate, and an open one is none, so that any program loads the result.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.base.errors import UserError, check_positive
from acclimate.base.ranking import best_first
from acclimate.data.documents import Corpus
from acclimate.models.adapters import (
    LARGEST_START,
    TRAINED_NAMES,
    Adapter,
    build_ordinary,
    convert_weights,
    register,
    share_weights,
)
from acclimate.models.compiling import layers_of
from acclimate.models.gates import UNITS_ATTRIBUTE
from acclimate.parts.updates import CombinedRules, UpdateRule

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers")
"""Entries of configurations for the number of layers."""
OUTPUTS = (
    *("o_proj", "down_proj", "c_proj", "Wo", "out_proj", "dense_4h_to_h", "fc2", "w2"),
    *(r"output\.dense", "out_lin", "lin2", r"attn\.o"),
)
"""Names of the layers that write into the residual stream, as patterns."""
OUTPUT = re.compile(rf"\b({'|'.join(OUTPUTS)})(_bias|\.weight|\.bias)?$")
RATES = "added_rates"
"""Buffer of a model with the learning rates of its tensors, for checkpoints."""
GATE, OPENED = "added_gate", 0.5
"""Buffer of a copy with its gate, and the share of the training after which it is open."""


class GeneralText(Protocol):
    """Measures a language model on general text."""

    def loss(self) -> float:
        """Return the loss of the model."""

    def gradients(self) -> Iterable[None]:
        """Yield after each part of the text, when the parameters have its gradients."""


@register("deeper", paper="LLaMA Pro: Wu et al., ACL 2024", summary="copies of layers that train")
@dataclass(eq=False)
class DeeperAdapter(Adapter):
    """Copies of layers that train, in a model whose other weights are frozen.

    Attributes:
        layers: Number of layers that are copied.
        general: A file or folder of general text. The layers without which its loss rises least are copied, and the
            tensors that matter most to it learn slowest. Without it, the copied layers are spread evenly, and all
            tensors learn alike.
        tokens: Tokens of general text that are read.
        every: Steps after which the learning rates of the tensors are measured again (released code: 100).
    """

    rate = 1  # the copies are ordinary layers
    files = ("general",)

    layers: int = 2
    general: str = ""
    tokens: int = 20_000
    every: int = 100

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(layers=self.layers, tokens=self.tokens, every=self.every)

    def identity(self) -> dict[str, Any]:
        """Return the parameters, with the content of general text."""
        return super().identity() | ({"general": Corpus([self.general]).fingerprint} if self.general else {})

    def add(self) -> None:
        """Insert the copies. With general text, it chooses them.

        Raises:
            UserError: If there are fewer layers, or a copy would change what the model computes.
        """
        model = self.model
        if getattr(model, UNITS_ATTRIBUTE, None):
            self.mask([])  # gates of a method have the former number of layers
        self._plain = share_weights(model)
        model.requires_grad_(False)
        layers, counts = layers_of(model), [name for name in LAYER_COUNTS if hasattr(model.config, name)]
        held = [one for one in model.modules() if isinstance(one, nn.ModuleList) and len(one) and one[0] in layers[:1]]
        if len(held) != 1 or not counts or getattr(model.config, counts[0]) != len(layers):
            raise UserError(f"The layers of {type(model).__name__} cannot be copied: they are not one list; use lora.")
        if self.layers > len(layers):
            raise UserError(f"{self.layers} layers are to be copied, but the model has {len(layers)}.")
        self.chosen = self._choose(layers)
        order = sorted([*range(len(layers)), *self.chosen])
        self.changes: dict[str, Any] = {counts[0]: len(order)}
        for key, value in vars(model.config).items():  # entries for each layer
            if (
                isinstance(value, list)
                and len(value) == len(layers)
                and not key.endswith(("token_id", "architectures"))
            ):
                self.changes[key] = [value[place] for place in order]
        for key, value in self.changes.items():
            setattr(model.config, key, value)
        made = list(_insert(held[0], self.chosen))
        names = {id(module): place for place, module in model.named_modules()}
        setattr(model, TRAINED_NAMES, (*(f"{names[id(layer)]}." for layer in made), RATES))
        self._gates: list[Tensor] = []
        if self.start_difference(self._plain) > LARGEST_START:
            for layer in made:
                _keep_scale(layer)
                layer.register_buffer(GATE, torch.zeros((), device=model.device))
                layer.register_forward_hook(_skip, with_kwargs=True)
            self._gates = [getattr(layer, GATE) for layer in made]
            self.check_start(self._plain, merges=False)
        for layer in made:
            layer.requires_grad_(True)

    @property
    def place(self) -> str:
        """Location in the model, for messages."""
        chosen = ", ".join(str(place + 1) for place in self.chosen)
        how = "which matter least to the general text" if self.general_loss else "spread evenly"
        gates = ", whose gates open in the first half of the training" if self._gates else ""
        return f"as copies of {len(self.chosen)} layers ({chosen}), {how}{gates}"

    def base(self) -> PreTrainedModel:
        """Return the model without its adapter; it shares the weights."""
        return self._plain

    def merged(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return an ordinary deeper model, as ``transformers`` would load it.

        Raises:
            UserError: If a gate is not open.
        """
        if (least := min(map(float, self._gates), default=1.0)) < 1:
            raise UserError(
                f"The copied layers count by {least:.0%}, which transformers cannot load; train for more steps, "
                "average fewer checkpoints, or keep later steps."
            )
        state = {name: value for name, value in self.model.state_dict().items() if not name.endswith((RATES, GATE))}
        made = build_ordinary(self.model, self.changes, state)
        convert_weights(made, dtype)
        return made

    def update_rule(self) -> UpdateRule | None:
        """Return the rule that scales what each tensor learns, if there is general text, and opens gates."""
        rules: list[UpdateRule] = [OpenGates(self._gates)] if self._gates else []
        if self.general_loss is not None:
            rules.append(TensorRates(self.model, self.general_loss, self.every))
        return CombinedRules(rules) if len(rules) > 1 else next(iter(rules), None)

    def _choose(self, layers: Sequence[nn.Module]) -> list[int]:
        """Return the layers that are copied, in order."""
        number = self.layers
        if self.general_loss is None:
            return [int((place + 1) * len(layers) / number) - 1 for place in range(number)]
        losses = []
        for layer in layers:
            handle = layer.register_forward_hook(_skip, with_kwargs=True)
            losses.append(self.general_loss.loss())
            handle.remove()
        return sorted(best_first([-loss for loss in losses], range(len(layers)))[:number].tolist())


def _skip(module: nn.Module, inputs: Any, options: dict[str, Any], output: Any) -> Any:
    """Return the input of a layer instead of its output, or with a gate, a point between the two."""
    found = inputs[0] if inputs else options["hidden_states"]
    for part in module.modules():
        for select in getattr(part, "selections", ()):  # see cut_last_layer of acclimate.kernels.unpadding
            found = select(found)
    if (gate := getattr(module, GATE, None)) is not None:
        made = output[0] if isinstance(output, tuple) else output
        found = found + gate.to(made.dtype) * (made - found)
    return (found, *output[1:]) if isinstance(output, tuple) else found


def _insert(layers: nn.ModuleList, chosen: Sequence[int]) -> Iterable[nn.Module]:
    """Insert a copy after each chosen layer that adds nothing to its input; return the copies."""
    copies = []
    for place in reversed(chosen):
        made = copy.deepcopy(layers[place])
        for name, weight in made.named_parameters():  # of experts, a projection is a parameter and not a module
            if OUTPUT.search(name):
                nn.init.zeros_(weight)
        layers.insert(place + 1, made)
        copies.append(made)
    for number, layer in enumerate(layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, "layer_idx", number)  # noqa: B010
    return reversed(copies)


@torch.no_grad()
def _keep_scale(layer: nn.Module) -> None:
    """Let the normalizations of a copy return what the last one of its layer returned, but for the scale of a token.

    That is weight z + bias with normalized z, whose mean and variance over features are about those of the bias, plus
    the mean square of the weight. So an open gate hardly changes the model before the copy has learned.
    """
    norms = [module for module in layer.modules() if isinstance(module, nn.LayerNorm)]
    if norms and norms[-1].weight is not None and norms[-1].bias is not None:
        weight, bias = norms[-1].weight, norms[-1].bias
        scale, shift = (weight.square().mean() + bias.var(correction=0)).sqrt(), bias.mean()
        for norm in norms:
            norm.weight.fill_(scale)
            norm.bias.fill_(shift)


class OpenGates(UpdateRule):
    """Open gates linearly over the first :data:`OPENED` of the training."""

    def __init__(self, gates: Sequence[Tensor]) -> None:
        """Store the gates, which are closed."""
        self.gates = gates

    @property
    def is_complete(self) -> bool:
        """Whether all gates are open."""
        return min(map(float, self.gates)) >= 1

    def after_step(self) -> None:
        """Set the gates for the next step."""
        for gate in self.gates:
            gate.fill_(min(1.0, self.progress / OPENED))


class TensorRates(UpdateRule):
    """Scale what each trained tensor learns by its importance for general text (ADEPT, released code).

    I_j is the mean of |w| |g| over the entries of tensor j, with the mean of |g| over parts of the text, and its rate
    2 (I_max - I_j) / (I_max - I_min): the most important tensor stands still, and the least important one learns twice
    as fast. Tensors of normalizations are compared with all tensors, others with each other. The update is scaled,
    since AdamW would undo a scaling of gradients. Before the first step all rates are one: copies that write nothing
    matter to no text.
    """

    def __init__(self, model: PreTrainedModel, general: GeneralText, every: int) -> None:
        """Store the arguments; the rates are measured before the first step, and again after each ``every`` steps."""
        named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
        self.weights = [value for _, value in named]
        self.norms = torch.tensor([value.dim() == 1 and name.endswith(".weight") for name, value in named])
        self._model, self._general, self._every = model, general, every
        model.register_buffer(RATES, torch.ones(len(named), device=model.device))

    @property
    def rates(self) -> Tensor:
        """The factor of what each tensor learns (tensors,)."""
        found: Tensor = getattr(self._model, RATES)
        return found

    def importance(self) -> Tensor:
        """Return the importance of each tensor for the general text (tensors,)."""
        sums = [torch.zeros_like(weight) for weight in self.weights]
        parts = 0
        for _ in self._general.gradients():
            parts += 1
            for total, weight in zip(sums, self.weights, strict=True):
                if weight.grad is not None:
                    total += weight.grad.abs()
        pairs = zip(sums, self.weights, strict=True)
        return torch.stack([(total * weight.detach().abs()).mean() / max(1, parts) for total, weight in pairs])

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, take: Callable[[], Any]) -> None:
        """Let the optimizer update the weights, and scale the update of each."""
        if self.steps_taken % self._every == 0:
            gradients = [weight.grad for weight in self.weights]
            with torch.enable_grad():
                values = self.importance()
            for weight, gradient in zip(self.weights, gradients, strict=True):
                weight.grad = gradient
            self.rates.copy_(relative_rates(values, self.norms.to(values.device)))
        before = [weight.detach().clone() for weight in self.weights]
        take()
        for weight, old, rate in zip(self.weights, before, self.rates, strict=True):
            weight.copy_(old + rate * (weight - old))


def relative_rates(importance: Tensor, norms: Tensor) -> Tensor:
    """Return the factor of what each tensor learns; see :class:`TensorRates`.

    Args:
        importance: (tensors,).
        norms: Whether each tensor belongs to a normalization (tensors,).
    """
    rates = torch.ones_like(importance)
    for mine, others in ((norms, torch.ones_like(norms)), (~norms, ~norms)):
        if mine.any():
            low, high = importance[others].min(), importance[others].max()
            if high > low:
                rates[mine] = 2 * (high - importance[mine]) / (high - low)
    return rates
