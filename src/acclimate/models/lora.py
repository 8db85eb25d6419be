"""Low-rank adapters inside a model of ``transformers``: LoRA and its variants, through ``peft``.

``peft`` wraps the linear layers of a model, which keeps its class. The base weights never change. Variants that start
from a decomposition of a weight (PiSSA, OLoRA) usually subtract their initial product from it; here a second, frozen
adapter with the initial factors subtracts it instead. The model without its adapters is therefore always the base
model, checkpoints need only the adapters, and the base model of a reference or an export shares its weights.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from acclimate.errors import UserError, check_positive
from acclimate.models.checkpoints import load_config
from acclimate.models.encoding import encode
from acclimate.models.families import language_head
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.models.saving import save_model

log = logging.getLogger(__name__)
ADAPTER_FOLDER = "adapter"
"""Folder of the adapter beside the merged model, as ``peft`` writes and reads it."""
TRAINED, INITIAL = "default", "initial"
"""Names of the adapter in training, and of the frozen one that subtracts its initial product."""
HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")
"""Attributes of a module with its hooks."""
PROBE_TEXTS, PROBE_TOKENS = 4, 64
"""Size of the text on which an exported model is compared with the trained one."""
LARGE_DIFFERENCE, LARGE_SHARE = 1e-3, 0.5
"""Relative difference of the logits of the saved model above which a result has a warning, if it is also above this
share of what the adapter changes. Rounding to bf16 undoes changes of less than half a unit in the last place."""


@dataclass(frozen=True)
class AdapterKind:
    """A variant of LoRA.

    Attributes:
        paper: Its source.
        config: Arguments of ``peft.LoraConfig``.
        decomposes: Whether it starts from a decomposition of the base weights, with the initialization of its name.
        additive: Whether its change of a weight is the product of its two factors, so that masks can scale it.
        scale: Default factor of that product.
    """

    paper: str
    config: Mapping[str, Any] = field(default_factory=dict)
    decomposes: bool = False
    additive: bool = True
    scale: float = 2.0


ADAPTERS = {
    "lora": AdapterKind("Hu et al., ICLR 2022"),
    "rslora": AdapterKind("Kalajdzievski, 2023", {"use_rslora": True}),
    "dora": AdapterKind("Liu et al., ICML 2024", {"use_dora": True}, additive=False),
    "pissa": AdapterKind("Meng et al., NeurIPS 2024", decomposes=True, scale=1.0),
    "olora": AdapterKind("Büyükakyüz, 2024", decomposes=True, scale=1.0),
    "orthogonal": AdapterKind("https://datta0.github.io/posts/rethink-lora-init", {"init_lora_weights": "orthogonal"}),
}
"""The variants by name. Those of ``peft`` that need a pass over data first (EVA, CorDA, LoRA-GA) are not offered."""


def _split_names(value: Any) -> Any:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


@dataclass
class AdapterSettings:
    """Size and place of an adapter.

    Attributes:
        r: Rank: columns of B and rows of A.
        alpha: The change of a weight is alpha / r x B A, or alpha / sqrt(r) x B A for ``rslora``. By default chosen
            for a factor of 2, or of 1 for ``pissa`` and ``olora``, which start from the weights themselves.
        dropout: Dropout probability of the input of A.
        targets: Names of the linear layers that get an adapter, such as ``q_proj,v_proj``; by default all of the
            encoder or decoder, without the head.
    """

    r: int = 16
    alpha: float | None = None
    dropout: float = 0.0
    targets: Annotated[tuple[str, ...], BeforeValidator(_split_names)] = ()

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(r=self.r, **({} if self.alpha is None else {"alpha": self.alpha}))
        if not 0 <= self.dropout < 1:
            raise UserError(f"The dropout of an adapter must be from 0 to below 1, not {self.dropout:g}.")


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


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model whose parameters and buffers are those of the model itself."""
    return copy.deepcopy(model, {id(shared): shared for shared in (*model.parameters(), *model.buffers())})


def adapter_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """Return the weights of the adapter in a model by name; None if it has none."""
    if not hasattr(model, "peft_config"):
        return None
    return {name: value for name, value in model.state_dict().items() if ".lora_" in name}


class LowRankAdapter:
    """The adapter of a model: added to it, trained with it, merged, and saved beside the merged model."""

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        settings: AdapterSettings,
        *,
        seed: int = 0,
        probe: Sequence[np.ndarray] = (),
        source: str | Path | None = None,
    ) -> None:
        """Add an adapter that leaves the outputs of a model unchanged, and freeze all other weights.

        Args:
            model: A model that :func:`acclimate.models.attach` has prepared.
            name: A name of :data:`ADAPTERS`.
            settings: Its settings, from :func:`acclimate.training.adapters.check_adapter`.
            seed: Random seed of the initial weights.
            probe: Token ids of texts on which the exported model is compared with the trained one.
            source: Where the base model is loaded from once more, if ``model`` is quantized: the adapter is merged
                into its original weights.

        Raises:
            UserError: If no layer has a name of ``settings.targets``, or none has the rank of the adapter.
        """
        self.model, self.name, self.kind, self.settings, self.seed = model, name, ADAPTERS[name], settings, seed
        self.probe = [torch.as_tensor(np.asarray(row)[:PROBE_TOKENS]).long() for row in probe[:PROBE_TEXTS]]
        self.source, self.stored_type = source, _stored_type(model)
        self._factors: dict[str, tuple[Tensor | None, Tensor | None]] = {}  # of rows and of columns, by layer
        targets = _find_targets(model, settings.targets)
        self.config = self._make_config(targets)
        bare = {name: model.get_submodule(name) for name in targets}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            import_peft().inject_adapter_in_model(copy.deepcopy(self.config), model, TRAINED)
            for place, layer in self.layers.items():
                _swap_hooks(bare[place], layer)
                if self.kind.decomposes:
                    self._decompose(layer)
        for name, value in model.named_parameters():
            if ".lora_" in name:
                value.data = value.data.float()  # also where the frozen weights are bfloat16

    @property
    def layers(self) -> dict[str, Any]:
        """The layers with an adapter, by name."""
        return _layers(self.model)

    def describe(self) -> str:
        """Return one sentence on what trains."""
        trained, total = self.model.num_parameters(only_trainable=True), self.model.num_parameters()
        size = f"{trained:,} parameters ({trained / total:.2%} of the model)"
        return f"Adapter: {self.name} on {len(self.layers):,} layers, {size}."

    def mask(self, factors: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Scale the change of base weights: the layers compute (W + dW o f) x in place of (W + dW) x.

        Freezing rows or columns of the factors A and B would not do: all columns of dW = B A move with B.

        Args:
            factors: Base weights, each with a factor of its rows (rows, 1) or columns (1, columns); those without an
                adapter are ignored.

        Raises:
            UserError: If the change of a weight is not a product in this variant.
        """
        if not self.kind.additive:
            raise UserError(
                f"This method protects units of the model, which the adapter '{self.name}' cannot: it rescales whole "
                "rows of a weight. Use lora or rslora."
            )
        places = {id(layer.get_base_layer().weight): (name, layer) for name, layer in self.layers.items()}
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
        for name, layer in _layers(made).items():
            for part, (a, b) in self._masked_factors(name, layer).items():
                layer.lora_A[part].weight, layer.lora_B[part].weight = nn.Parameter(a), nn.Parameter(b)
            base = layer.get_base_layer()
            base.weight = nn.Parameter(base.weight.detach().to(torch.float32, copy=True), requires_grad=False)
            layer.merge()
            base.weight.data = base.weight.data.to("cpu", dtype)  # an accelerator may not have room for two models
            made.set_submodule(name, base)
        converted: dict[int, nn.Parameter] = {}  # tied weights stay tied
        for module in made.modules():
            for name, value in module._parameters.items():
                if value is not None and value.dtype != dtype:
                    like = nn.Parameter(value.detach().to("cpu", dtype), requires_grad=False)
                    module._parameters[name] = converted.setdefault(id(value), like)
        del made.peft_config
        return made

    def full_precision(self) -> LowRankAdapter:
        """Return the same adapter on the base model before quantization; itself if the base is not quantized."""
        if self.source is None:
            return self
        base = load_language_model(self.source).model
        attach(base)
        made = LowRankAdapter(base, self.name, self.settings, seed=self.seed)
        state = base.state_dict()
        trained = {
            name: value
            for name, value in self.model.state_dict().items()
            if name in state and value.is_floating_point() and value.shape == state[name].shape
        }
        base.load_state_dict(trained, strict=False)
        made._register_factors(self._factors)
        return made

    def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase, name: Path, base: str) -> dict[str, Any]:
        """Write the merged model in the type of its checkpoint, its tokenizer and the adapter, and compare it.

        Args:
            folder: An existing folder.
            tokenizer: The tokenizer.
            name: Final name of the folder.
            base: Name of the base model, for the configuration of the adapter.

        Returns:
            ``kind``, ``settings``, ``parameters``, and ``difference``, how far the logits of the saved model are from
            those of the model with its adapter, as :func:`compare_logits` returns it; ``change`` is the same for the
            model without its adapter. For a quantized base both models are those before quantization, and
            ``quantization`` compares the saved model with the one that was trained.
        """
        full = self.full_precision()
        save_model(full.merged(self.stored_type), folder, name)
        tokenizer.save_pretrained(folder)
        self.save(folder / ADAPTER_FOLDER, base)
        saved: Any = load_language_model(folder).model
        attach(saved.to(full.model.device))
        trained = self.model.num_parameters(only_trainable=True)
        report = {"kind": self.name, "settings": asdict(self.settings), "parameters": trained}
        report["difference"] = compare_logits(saved, full.model, self.probe)
        report["change"] = full._change(self.probe)
        if full is not self:
            report["quantization"] = compare_logits(saved, self.model, self.probe)
        return report

    def _change(self, texts: Sequence[Tensor]) -> dict[str, float]:
        """Return how far the adapter moves the logits; ``enable_adapters`` of peft would also train other factors."""
        base = share_weights(self.model)
        for layer in _layers(base).values():
            layer._disable_adapters = True
        return compare_logits(base, self.model, texts)

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter as ``peft`` does into a new folder, with masks and initial factors applied."""
        weights = import_peft().get_peft_model_state_dict(
            self.model, adapter_name=TRAINED, save_embedding_layers=False
        )
        for name, layer in self.layers.items():
            parts = self._masked_factors(name, layer)
            weights[f"{name}.lora_A.weight"] = torch.cat([a for a, _ in parts.values()])
            signed = [-b if part == INITIAL else b for part, (_, b) in parts.items()]
            weights[f"{name}.lora_B.weight"] = torch.cat(signed, 1)
        config = copy.deepcopy(self.config)
        config.base_model_name_or_path, config.inference_mode, config.init_lora_weights = base, True, True
        kind = type(self.model)
        config.auto_mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
        if self.kind.decomposes:  # the product of the initial factors is subtracted
            config.r, config.lora_alpha = 2 * config.r, 2 * config.lora_alpha
        folder.mkdir()
        config.save_pretrained(folder)
        named = {f"base_model.model.{name}": value.contiguous().cpu() for name, value in weights.items()}
        save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})

    def _make_config(self, targets: Sequence[str]) -> Any:
        found: list[Any] = [self.model.get_submodule(name) for name in targets]
        sizes = [one.weight.shape if isinstance(one, Conv1D) else (one.in_features, one.out_features) for one in found]
        limit = (min if self.kind.decomposes else max)(map(min, sizes), default=0)
        if self.settings.r > limit:
            raise UserError(f"r={self.settings.r} is more than {limit}, the rank of the weights; use a lower one.")
        return import_peft().LoraConfig(
            r=self.settings.r,
            lora_alpha=self.settings.alpha,
            lora_dropout=self.settings.dropout,
            target_modules=list(targets),
            fan_in_fan_out=any(isinstance(one, Conv1D) for one in found),
            **self.kind.config,
        )

    def _decompose(self, layer: Any) -> None:
        """Initialize the factors from the weight, and keep the weight by subtracting their product in the forward."""
        weight = layer.get_base_layer().weight
        before = weight.detach().clone()
        arguments = (TRAINED, self.name) if self.name == "pissa" else (TRAINED,)
        getattr(layer, f"{self.name}_init")(*arguments)
        weight.data = before
        layer.update_layer(INITIAL, self.settings.r, self.config.lora_alpha, config=self.config)
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


def warn_of_export(report: Mapping[str, Any]) -> str:
    """Return a warning if a saved model lost much of what an adapter learned, from :meth:`LowRankAdapter.export`."""
    lost, moved = report["difference"]["relative"], report["change"]["relative"]
    if lost <= max(LARGE_DIFFERENCE, LARGE_SHARE * moved):
        return ""
    warning = (
        f"Rounding to the type of the checkpoint moved the logits of the merged model by {lost:.2g} of their norm, "
        f"the adapter by {moved:.2g}: use the base model with the adapter in '{ADAPTER_FOLDER}', or train for longer."
    )
    log.warning("%s", warning)
    return warning


@torch.no_grad()
def compare_logits(model: PreTrainedModel, other: PreTrainedModel, texts: Sequence[Tensor]) -> dict[str, float]:
    """Return how far the logits of a model are from those of another on the same texts, both without dropout.

    Args:
        model: The model; both are prepared by :func:`acclimate.models.attach`.
        other: The model that it is compared with.
        texts: Token ids of each text.

    Returns:
        ``absolute``, the largest difference of two logits, and ``relative``, the norm of all differences divided by
        that of the logits of ``other``.
    """
    logits = []
    for reader in (model, other):
        training = reader.training
        reader.eval()
        head, rows = language_head(reader), [text[None].to(reader.device) for text in texts]
        states = [encode(reader, ids, torch.zeros_like(ids))[0] for ids in rows]
        logits.append(torch.cat([head(hidden).float().cpu() for hidden in states]))
        reader.train(training)
    found, expected = logits
    return {
        "absolute": float((found - expected).abs().max()),
        "relative": float((found - expected).norm() / expected.norm()),
    }


def _stored_type(model: PreTrainedModel) -> torch.dtype:
    """Return the type of the weights in the checkpoint of a model, which is loaded in fp32."""
    found = load_config(model.name_or_path).dtype if model.name_or_path else None
    return found if found in (torch.bfloat16, torch.float16) else torch.float32


def _layers(model: nn.Module) -> dict[str, Any]:
    kind = import_peft().tuners.lora.LoraLayer
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


def _find_targets(model: PreTrainedModel, names: Sequence[str]) -> list[str]:
    """Return the names of the linear layers of the encoder that end in one of ``names``, or of all.

    Poolers are left out: no loss on tokens reads them.

    Raises:
        UserError: If there are none.
    """
    inside = {id(module) for module in model.base_model.modules()} - {id(model.get_output_embeddings())}
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and id(module) in inside and "pooler" not in name.split(".")
    ]
    found = [name for name in linear if not names or f".{name}".endswith(tuple(f".{end}" for end in names))]
    for end in names:
        if not any(f".{name}".endswith(f".{end}") for name in found):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise UserError(f"No linear layer of {type(model).__name__} is named '{end}'; there are {known}.")
    return found


def _swap_hooks(bare: nn.Module, layer: nn.Module) -> None:
    """Let the hooks of a linear layer, such as gates, see its output together with that of the adapter."""
    for name in HOOKS:
        bare.__dict__[name], layer.__dict__[name] = layer.__dict__[name], bare.__dict__[name]


def _scale_input(factor: Tensor, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] * factor.to(inputs[0].dtype), *inputs[1:])


def _scale_output(factor: Tensor, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output * factor.to(output.dtype)
