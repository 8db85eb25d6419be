"""Low-rank adapters inside a model of ``transformers``: LoRA and its variants, through ``peft``.

``peft`` wraps the linear layers of a model, which keeps its class. The base weights never change. Variants that start
from components of a weight (PiSSA, OLoRA, SoMA) usually subtract their initial product from it; here a second, frozen
adapter with the initial factors subtracts it instead. The model without its adapters is therefore always the base
model, checkpoints need only the adapters, and the base model of a reference or an export shares its weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from acclimate.base.errors import UserError, check_positive, warn_once
from acclimate.models.adapters import ADAPTERS, TRAINED_NAMES, Adapter, convert_weights, register, share_weights
from acclimate.models.gates import linear_sizes
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.models.reach import describe_reach, linear_layers, stacked_experts

TRAINED, INITIAL = "default", "initial"
"""Names of the adapter in training, and of the frozen one that subtracts its initial product."""
HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
"""Attributes of a module with its hooks."""


def _split_names(value: Any) -> Any:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def import_peft() -> Any:
    """Return ``peft``, which is an optional package and takes a second to import.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError("Adapters need peft: pip install 'acclimate[lora]'.") from error
    return peft


@dataclass(eq=False)
class LowRankAdapter(Adapter):
    """A low-rank adapter: added to a model, trained with it, merged, and saved next to the merged model.

    Attributes:
        r: Rank: columns of B and rows of A.
        alpha: The change of a weight is alpha / r x B A, or alpha / sqrt(r) x B A for ``rslora``. By default chosen
            for a factor of 2, or of 1 for ``pissa``, ``olora`` and ``soma``, which start from the weights themselves.
        dropout: Dropout probability of the input of A.
        targets: Names of the linear layers and stacked experts that get an adapter, such as ``q_proj,v_proj``; by
            default all of the encoder or decoder, without the head.
        partial: Whether more than half of the weights may stay out of reach of the adapter or of quantization.
        quantize: ``4bit`` quantizes the frozen weights, to save memory (QLoRA). The adapter is merged into the weights
            before quantization, which are loaded once more.
    """

    arguments: ClassVar[Mapping[str, Any]] = {}
    """Arguments of ``peft.LoraConfig``."""
    decomposes: ClassVar[bool] = False
    """Whether it starts from a decomposition of the base weights."""
    subtracts: ClassVar[bool] = False
    """Whether its initial product is not zero, and is therefore subtracted."""
    additive: ClassVar[bool] = True
    """Whether its change of a weight is the product of its two factors, so that masks can scale it."""
    scale: ClassVar[float] = 2.0
    """Default factor of that product."""
    stacks: ClassVar[bool] = True
    """Whether it can adapt the experts of a mixture, which are stacked in one parameter."""
    merged_names: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of parameters that are part of the saved factors, and that peft does not know."""
    rate = 10  # whatever the model and the rank: Schulman et al., "LoRA without regret", 2025

    r: int = 16
    alpha: float | None = None
    dropout: float = 0.0
    targets: Annotated[tuple[str, ...], BeforeValidator(_split_names)] = ()
    quantize: Literal["4bit"] | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        """Check the parameters and packages, and choose the factor that they leave open."""
        check_positive(r=self.r, **({} if self.alpha is None else {"alpha": self.alpha}))
        if not 0 <= self.dropout < 1:
            raise UserError(f"The dropout of an adapter must be from 0 to below 1, not {self.dropout:g}.")
        if self.quantize and self.decomposes:
            raise UserError(
                f"The adapter '{self.name}' decomposes weights, which must not be quantized; use lora or dora."
            )
        if self.alpha is None:
            self.alpha = self.scale * (self.r**0.5 if self.arguments.get("use_rslora") else self.r)
        import_peft()
        if self.quantize and find_spec("bitsandbytes") is None:
            raise UserError("Weights in four bits need bitsandbytes: pip install 'acclimate[qlora]'.")

    def add(self) -> None:
        """Add the factors.

        Raises:
            UserError: If no layer has a name of ``targets``, or none has the rank of the adapter.
        """
        model = self.model
        self._factors: dict[str, tuple[Tensor | None, Tensor | None]] = {}  # of rows and of columns, by layer
        linear, experts = self._find_targets()
        self.config, self.experts = self._make_config(linear, experts), tuple(experts)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model.requires_grad_(False)
            model.peft_config = {TRAINED: self.config}
            holder: Any = nn.Module()  # by the configuration of a mixture, peft would take dense layers for experts
            holder.model, holder.is_loaded_in_4bit = model, self.quantize is not None
            inner = copy.deepcopy(self.config)
            inner.target_modules = [f"model.{name}" for name in linear]
            if linear:
                import_peft().inject_adapter_in_model(inner, holder, TRAINED)
            for place, layer in self.layers.items():
                _swap_hooks(linear[place], layer)
                if self.subtracts:
                    self._decompose(layer)
            for name in experts:
                self._wrap_experts(name)
        setattr(model, TRAINED_NAMES, (".lora_",))
        for name, value in model.named_parameters():
            if ".lora_" in name:
                value.data = value.data.float()  # also where the frozen weights are bfloat16
        remedy = "" if self.partial or self.targets else "Use lora, name targets=, or accept it with partial=true."
        reached = map(_base_weight, self.layers.values())
        self.reach = describe_reach(model, reached, f"The adapter '{self.name}'", remedy)
        if self.quantize:
            packed = [weight for weight in model.parameters() if hasattr(weight, "quant_state")]
            remedy = "" if self.partial else "Remove quantize, or accept it with partial=true."
            self.reach += " " + describe_reach(model, packed, "Quantization", remedy)

    def describe(self) -> str:
        """Return what trains, and the share of the weights that does not."""
        return f"{super().describe()} {self.reach}"

    @property
    def shards(self) -> bool:  # type: ignore[override]
        """Whether the weights can be divided; peft replaces stacked experts while it runs them."""
        return not stacked_experts(self.model)

    @property
    def quantization(self) -> str | None:
        """How the frozen weights are quantized."""
        return self.quantize

    @property
    def layers(self) -> dict[str, Any]:
        """The layers with an adapter, by name."""
        return _layers(self.model)

    @property
    def place(self) -> str:
        """Location in the model, for messages."""
        experts = sum(hasattr(layer, "parameter_name") for layer in self.layers.values())
        return f"on {len(self.layers) - experts:,} layers{f' and {experts:,} stacks of experts' * bool(experts)}"

    def base(self) -> PreTrainedModel:
        """Return the model without its adapter; ``enable_adapters`` of peft would also train other factors."""
        base = share_weights(self.model)
        for layer in _layers(base).values():
            layer._disable_adapters = True
        return base

    def factors(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return the factors A and B of each layer, which both train.

        Raises:
            UserError: If one of them is frozen, or belongs to several experts.
        """
        if stacked_experts(self.model):
            raise UserError(f"The adapter '{self.name}' stacks factors of experts; remove the rule 'refactor'.")
        found = [(layer.lora_A[TRAINED].weight, layer.lora_B[TRAINED].weight) for layer in self.layers.values()]
        if not all(factor.requires_grad for pair in found for factor in pair):
            raise UserError(f"The adapter '{self.name}' freezes a factor; use lora, or remove the rule 'refactor'.")
        return found

    def mask(self, factors: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Scale the change of base weights: the layers compute (W + dW o f) x instead of (W + dW) x.

        Freezing rows or columns of the factors A and B would not do: all columns of dW = B A move with B.

        Args:
            factors: Base weights, each with a factor of its rows (rows, 1) or columns (1, columns); those without an
                adapter are ignored.

        Raises:
            UserError: If the change of a weight is not a product in this variant.
        """
        if not self.additive:
            raise UserError(
                f"This method protects units of the model, which the adapter '{self.name}' cannot: it rescales whole "
                "rows of a weight. Use lora or rslora."
            )
        places = {id(_base_weight(layer)): (name, layer) for name, layer in self.layers.items()}
        found: dict[str, tuple[Tensor | None, Tensor | None]] = {}
        for weight, factor in factors:
            if id(weight) not in places:
                continue
            name, layer = places[id(weight)]
            factor = factor.T if layer.fan_in_fan_out else factor
            rows, columns = found.get(name, (None, None))
            if factor.shape[1] == 1:
                rows = factor[:, 0] if rows is None else rows * factor[:, 0]
            else:
                columns = factor[0] if columns is None else columns * factor[0]
            found[name] = rows, columns
        self._register_factors(found)

    def merged(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return a copy of the model with the adapter merged into its weights, in fp32, and converted to a type."""
        made = share_weights(self.model)
        for name, layer in reversed(_layers(made).items()):  # wrappers of two stacks of the same experts are nested
            for part, (a, b) in self._masked_factors(name, layer).items():
                layer.lora_A[part].weight, layer.lora_B[part].weight = nn.Parameter(a), nn.Parameter(b)
            base, weight = layer.get_base_layer(), _base_weight(layer).detach().to(torch.float32, copy=True)
            setattr(base, getattr(layer, "parameter_name", "weight"), nn.Parameter(weight, requires_grad=False))
            layer.merge()
            merged = _base_weight(layer)
            merged.data = merged.data.to("cpu", dtype)  # an accelerator may not have room for two models
            made.set_submodule(name, layer.base_layer)
        convert_weights(made, dtype)
        del made.peft_config
        return made

    def full_precision(self) -> LowRankAdapter:
        """Return the same adapter on the base model before quantization; itself if the base is not quantized."""
        if self.source is None:
            return self
        base = load_language_model(self.source).model
        attach(base)
        made = replace(self).insert(base, seed=self.seed)
        state = base.state_dict()
        trained = {
            name: value
            for name, value in self.model.state_dict().items()
            if name in state and value.is_floating_point() and value.shape == state[name].shape
        }
        base.load_state_dict(trained, strict=False)
        made._register_factors(self._factors)
        return made

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter as ``peft`` does into a new folder, with masks and initial factors applied.

        ``peft`` takes dense layers next to experts for experts, in some architectures; then there is no folder.
        """
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

        config = copy.deepcopy(self.config)
        config.target_parameters = list(self.experts) or None
        convert_peft_config_for_transformers(read := copy.deepcopy(config), self.model, None)
        if set(read.target_modules) != set(config.target_modules):
            return warn_once(f"peft cannot read adapters of {type(self.model).__name__}; use the merged model.")
        known = {
            name: value for name, value in self.model.state_dict().items() if not name.endswith(self.merged_names)
        }
        weights = import_peft().get_peft_model_state_dict(
            self.model, known, adapter_name=TRAINED, save_embedding_layers=False
        )
        for name, layer in self.layers.items():
            parts = self._masked_factors(name, layer)
            experts = getattr(layer, "num_experts", 1)
            a_parts = [a.reshape(experts, -1, a.shape[1]) for a, _ in parts.values()]
            signed = [-b if part == INITIAL else b for part, (_, b) in parts.items()]
            b_parts = [b.reshape(len(b), -1, experts) for b in signed]
            weights[f"{name}.lora_A.weight"] = torch.cat(a_parts, 1).flatten(0, 1)
            weights[f"{name}.lora_B.weight"] = torch.cat(b_parts, 1).flatten(1)
        config.base_model_name_or_path, config.inference_mode, config.init_lora_weights = base, True, True
        kind = type(self.model)
        config.auto_mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
        if self.subtracts:  # the product of the initial factors is subtracted
            config.r, config.lora_alpha = 2 * config.r, 2 * config.lora_alpha
        folder.mkdir()
        config.save_pretrained(folder)
        named = {f"base_model.model.{name}": value.contiguous().cpu() for name, value in weights.items()}
        save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})

    def _find_targets(self) -> tuple[dict[str, nn.Module], dict[str, nn.Parameter]]:
        """Return the linear layers, and the stacks of experts, whose names end in one of ``targets``, or all.

        Raises:
            UserError: If there are none, or this kind of adapter cannot adapt experts.
        """
        model, ends = self.model, tuple(f".{end}" for end in self.targets)
        found: Any = linear_layers(model), stacked_experts(model)
        names = [f".{name}" for part in found for name in part]
        for end in (end for end in ends if not any(name.endswith(end) for name in names)):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in names}))
            raise UserError(f"No linear layer of {type(model).__name__} is named '{end[1:]}'; there are {known}.")
        linear, experts = (
            {name: one for name, one in part.items() if not ends or f".{name}".endswith(ends)} for part in found
        )
        if experts and (self.dropout if self.stacks else ends):
            raise UserError(
                f"The adapter '{self.name}'{' with dropout' * self.stacks} cannot adapt the stacked experts of "
                f"{type(model).__name__}; use lora without dropout, or name other layers with targets=."
            )
        return linear, experts if self.stacks else {}

    def _make_config(self, linear: Mapping[str, Any], experts: Mapping[str, Tensor]) -> Any:
        found = list(linear.values())
        sizes = [linear_sizes(one) for one in found] + [tuple(weight.shape[1:]) for weight in experts.values()]
        limit = (min if self.decomposes else max)(map(min, sizes), default=0)
        if self.r > limit:
            raise UserError(f"r={self.r} is more than {limit}, the rank of the weights; use a lower one.")
        return import_peft().LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=list(linear),
            fan_in_fan_out=any(isinstance(one, Conv1D) for one in found),
            **self.arguments,
        )

    def _wrap_experts(self, name: str) -> None:
        """Add factors to a stack of experts, each initialized as those of a linear layer with its weight."""
        lora = import_peft().tuners.lora
        (place, _, parameter), about = name.rpartition("."), {"r": self.r, "lora_alpha": self.alpha}
        plain = import_peft().LoraConfig(use_rslora=self.config.use_rslora, **about)
        layer = lora.layer.ParamWrapper(self.model.get_submodule(place), TRAINED, parameter, config=plain, **about)
        self.model.set_submodule(place, layer)
        if not self.subtracts and self.config.init_lora_weights is True:
            return
        if self.subtracts:
            layer.update_layer(INITIAL, config=plain, **about)
            layer.scaling[INITIAL] = -layer.scaling[TRAINED]
            layer.set_adapter([TRAINED, INITIAL])
        singles: list[Any] = []
        for weight in layer.get_param().detach():
            weight = weight.T if getattr(layer.get_base_layer(), "is_transposed", False) else weight
            one = nn.utils.skip_init(nn.Linear, layer.in_features, layer.out_features, bias=False)
            one.weight = nn.Parameter(weight.clone())  # some initializations change it
            singles.append(lora.Linear(one, TRAINED, config=self.config, **about))
            if self.subtracts:
                self._decompose(singles[-1])
        for part in layer.lora_A:
            a, b = ([getattr(one, side)[part].weight for one in singles] for side in ("lora_A", "lora_B"))
            stacks = (layer.lora_A, a, torch.cat(a)), (layer.lora_B, b, torch.stack(b, 2).flatten(1))
            for side, (first, *_), value in stacks:
                side[part].weight = nn.Parameter(value.detach(), requires_grad=first.requires_grad)

    def _decompose(self, layer: Any) -> None:
        """Initialize the factors from the weight, and keep the weight by subtracting their product in the forward."""
        weight = layer.get_base_layer().weight
        before = weight.detach().clone()
        if self.name == "soma":
            _take_minor_components(layer)
        else:
            arguments = (TRAINED, self.name) if self.name == "pissa" else (TRAINED,)
            getattr(layer, f"{self.name}_init")(*arguments)
        weight.data = before
        layer.update_layer(INITIAL, self.r, self.config.lora_alpha, config=self.config)
        layer.scaling[INITIAL] = -layer.scaling[TRAINED]
        layer.set_adapter([TRAINED, INITIAL])
        for factor in (layer.lora_A, layer.lora_B):
            factor[INITIAL].weight = nn.Parameter(factor[TRAINED].weight.detach().clone(), requires_grad=False)

    def _register_factors(self, factors: dict[str, tuple[Tensor | None, Tensor | None]]) -> None:
        """Let layers scale the output of B by factors of rows, and the input of A by factors of columns."""
        here, layers = self.model.device, self.layers
        for name, parts in factors.items():
            rows, columns = (part if part is None else part.to(here) for part in parts)
            self._factors[name] = rows, columns
            for part in layers[name].lora_A:
                if columns is not None:
                    layers[name].lora_A[part].register_forward_pre_hook(partial(_scale_input, columns))
                if rows is not None:
                    layers[name].lora_B[part].register_forward_hook(partial(_scale_output, rows))

    def _masked_factors(self, name: str, layer: Any) -> dict[str, tuple[Tensor, Tensor]]:
        """Return A and B of each adapter of a layer, by its name, with the factors of the mask."""
        rows, columns = self._factors.get(name, (None, None))
        found = {}
        for part in layer.lora_A:
            a, b = layer.lora_A[part].weight.detach(), layer.lora_B[part].weight.detach()
            found[part] = a if columns is None else a * columns, b if rows is None else b * rows[:, None]
        return found


@register("lora", paper="Hu et al., ICLR 2022", summary="low-rank changes of the weights of linear layers")
@dataclass(eq=False)
class LoRA(LowRankAdapter):
    """Plain LoRA."""


@register("rslora", paper="Kalajdzievski, 2023", summary="scaled by the root of the rank")
@dataclass(eq=False)
class RankStabilized(LowRankAdapter):
    """LoRA whose factor is alpha / sqrt(r)."""

    arguments = {"use_rslora": True}


@register("dora", paper="Liu et al., ICML 2024", summary="direction and length of the rows of a weight apart")
@dataclass(eq=False)
class DoRA(LowRankAdapter):
    """LoRA of the direction, and the length of each row."""

    arguments, additive, stacks = {"use_dora": True}, False, False


@dataclass(eq=False)
class Decomposed(LowRankAdapter):
    """A low-rank adapter that starts from components of the weights."""

    decomposes, subtracts, scale = True, True, 1.0


@register("pissa", paper="Meng et al., NeurIPS 2024", summary="starts from the largest components of the weights")
@dataclass(eq=False)
class PiSSA(Decomposed):
    """Principal singular values and vectors."""


@register("olora", paper="Büyükakyüz, 2024", summary="starts from an orthogonal decomposition of the weights")
@dataclass(eq=False)
class OLoRA(Decomposed):
    """The QR decomposition."""


@register("soma", paper="Yun et al., CVPR 2025", summary="starts from the smallest components of the weights")
@dataclass(eq=False)
class SoMA(Decomposed):
    """Minor singular values and vectors."""


@register("mica", paper="https://arxiv.org/abs/2604.01694", summary="starts in the directions of small components")
@dataclass(eq=False)
class MiCA(LowRankAdapter):
    """Minor components in B, and zeros in A."""

    arguments, decomposes = {"init_lora_weights": "mica"}, True


@register(
    "orthogonal",
    paper="https://datta0.github.io/posts/rethink-lora-init",
    summary="starts from orthogonal factors whose product is zero",
)
@dataclass(eq=False)
class Orthogonal(LowRankAdapter):
    """Orthogonal initialization; the rank is even."""

    arguments = {"init_lora_weights": "orthogonal"}

    def __post_init__(self) -> None:
        """Check the rank."""
        super().__post_init__()
        if self.r % 2:
            raise UserError(f"The adapter 'orthogonal' needs an even rank, not r={self.r}.")


def _take_minor_components(layer: Any) -> None:
    """Initialize the factors with the smallest singular values: B = U_r sqrt(S_r / f), A = sqrt(S_r / f) V_r^T."""
    weight, rank = layer.get_base_layer().weight.detach().float(), layer.r[TRAINED]
    left, values, right = torch.linalg.svd(weight.T if layer.fan_in_fan_out else weight, full_matrices=False)
    root = (values[-rank:] / layer.scaling[TRAINED]).sqrt()
    layer.lora_A[TRAINED].weight.data = root[:, None] * right[-rank:]
    layer.lora_B[TRAINED].weight.data = left[:, -rank:] * root


def _layers(model: nn.Module) -> dict[str, Any]:
    kind = import_peft().tuners.lora.LoraLayer
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def _base_weight(layer: Any) -> Any:
    """Return the frozen weight under an adapter."""
    return getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"))


def _swap_hooks(bare: nn.Module, layer: nn.Module) -> None:
    """Let the hooks of a linear layer, such as gates, see its output including the adapter's."""
    for name in HOOKS:
        bare.__dict__[name], layer.__dict__[name] = layer.__dict__[name], bare.__dict__[name]


def _scale_input(factor: Tensor, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] * factor.to(inputs[0].dtype), *inputs[1:])


def _scale_output(factor: Tensor, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output * factor.to(output.dtype)


def read_low_rank(given: Any) -> LowRankAdapter | None:
    """Return the low-rank adapter that a user gave; None for none.

    Raises:
        UserError: If it is another adapter, or a name or parameter is wrong.
    """
    made = None if given is None else ADAPTERS.read(given)
    if made is not None and not isinstance(made, LowRankAdapter):
        raise UserError(f"The adapter '{made.name}' has no low rank; use lora.")
    return made
