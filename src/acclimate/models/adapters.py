"""Adapters, which train instead of the weights of a model and are merged into them when the model is saved."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.errors import UserError, first_line
from acclimate.base.registry import Part, Registry
from acclimate.models.checkpoints import UNREADABLE, load_config
from acclimate.models.encoding import encode, reads_pairs
from acclimate.models.families import language_head, probe_of
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.models.saving import save_model, save_tokenizer

log = logging.getLogger(__name__)
ADAPTER_FOLDER = "adapter"
"""Folder of the adapter next to the merged model, as ``peft`` writes and reads it."""
TRAINED_NAMES = "acclimate_trained"
"""Attribute of a model with an adapter: parts of the names of what a checkpoint of its training holds."""
PROBE_TEXTS, PROBE_TOKENS = 4, 64
"""Size of the text on which an exported model is compared with the trained one."""
LARGEST_START = 1e-5
"""Relative difference of the logits of a model with a new adapter from those without it that rounding may cause."""
LARGE_DIFFERENCE, LARGE_SHARE = 1e-3, 0.5
"""Relative difference of the logits of the saved model above which a result has a warning, if it is also above this
share of what the adapter changes. Rounding to bf16 undoes changes of less than half a unit in the last place."""
NO_MASK = (
    "This method protects units of the model, which the adapter '{}' cannot: it trains only what it adds. Use lora or "
    "rslora, or the method lm."
)
NO_FACTORS = "The adapter '{}' has no low-rank factors; use lora, or remove the rule 'refactor'."


@dataclass(eq=False)
class Adapter(Part):
    """A registered adapter: added to a model, trained with it, merged into it, and saved as an ordinary model.

    Subclasses are dataclasses whose fields are the parameters.

    Attributes:
        model: The model; all weights that it had before are frozen.
        probe: Token ids of texts on which the exported model is compared with the trained one.
        stored_type: The type of the weights in the checkpoint, in which the merged model is saved.
    """

    rate: ClassVar[float]
    """Default learning rate as a multiple of the rate of all weights."""
    shards: ClassVar[bool] = False
    """Whether the weights of a model with it can be sharded among processes."""

    def insert(
        self,
        model: PreTrainedModel,
        *,
        seed: int = 0,
        probe: Sequence[np.ndarray] = (),
        source: str | Path | None = None,
        general: Any = None,
    ) -> Self:
        """Add the adapter to a model, whose outputs stay the same, freeze all other weights, and return the adapter.

        Args:
            model: A model that :func:`acclimate.models.probe.attach` has prepared.
            seed: Random seed of the initial weights.
            probe: Token ids of texts on which the exported model is compared with the trained one.
            source: Where the base model is loaded from once more, if ``model`` is quantized: the adapter is merged
                into its original weights.
            general: Measures the model on general text, if a parameter names one.

        Raises:
            UserError: If the adapter does not fit the model.
        """
        self.model, self.seed, self.source = model, seed, source
        self.probe = [torch.as_tensor(np.asarray(row)[:PROBE_TOKENS]).long() for row in probe[:PROBE_TEXTS]]
        self.stored_type, self.general_loss = _stored_type(model), general
        self.add()
        return self

    def add(self) -> None:
        """Add the adapter to the model, and freeze all other weights.

        Raises:
            UserError: If it does not fit the model.
        """
        raise NotImplementedError

    @property
    def quantization(self) -> str | None:
        """How the frozen weights are quantized; None if they are not."""
        return None

    @property
    def place(self) -> str:
        """Location in the model, for messages."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return one sentence on what trains."""
        trained, total = self.model.num_parameters(only_trainable=True), self.model.num_parameters()
        return f"Adapter: {self.name} {self.place}, {trained:,} parameters ({trained / total:.2%} of the model)."

    def mask(self, factors: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Scale the change of base weights.

        Args:
            factors: Base weights, each with a factor of its rows (rows, 1) or columns (1, columns).

        Raises:
            UserError: If this kind of adapter cannot do that.
        """
        raise UserError(NO_MASK.format(self.name))

    def factors(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return the factors A and B of each layer.

        Raises:
            UserError: If this kind of adapter has none.
        """
        raise UserError(NO_FACTORS.format(self.name))

    def update_rule(self) -> Any:
        """Return what this kind of adapter does around each optimizer step, an update rule; None for nothing."""
        return None

    def base(self) -> PreTrainedModel:
        """Return the model without its adapter; it shares the weights."""
        raise NotImplementedError

    def start_difference(self, plain: PreTrainedModel, merges: bool = True) -> float:
        """Return how far the model is from the base model, relative to the logits.

        Args:
            plain: The base model.
            merges: Whether the merged model is compared, too.
        """
        models: list[Any] = [self.model]
        if merges:
            models.append(self.merged())
            attach(models[1])
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        texts = self.probe or [torch.arange(vocabulary - 1, 0, -max(1, vocabulary // 20))]
        return max(compare_logits(other, plain, texts)["relative"] for other in models)

    def check_start(self, plain: PreTrainedModel, merges: bool = True) -> None:
        """Check that the model, and what it will be saved as, compute what the base model does.

        Args:
            plain: The base model.
            merges: Whether the merged model is compared, too.

        Raises:
            UserError: If not.
        """
        if (moved := self.start_difference(plain, merges)) > LARGEST_START:
            raise UserError(
                f"The adapter '{self.name}' would change what {type(self.model).__name__} computes before it is "
                f"trained, by {moved:.2g} of the logits; use lora."
            )

    def merged(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return a copy of the model whose weights contain the adapter, converted to a type; others are shared."""
        raise NotImplementedError

    def full_precision(self) -> Adapter:
        """Return the same adapter on the base model before quantization; itself if the base is not quantized."""
        return self

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter by itself into a new folder, if other programs can read it.

        Args:
            folder: The folder.
            base: Name of the base model.
        """

    def export(self, folder: Path, tokenizer: PreTrainedTokenizerBase, name: Path, base: str) -> dict[str, Any]:
        """Write the merged model in the type of its checkpoint, its tokenizer and the adapter, and compare it.

        Args:
            folder: An existing folder.
            tokenizer: The tokenizer.
            name: Final name of the folder.
            base: Name of the base model, for the configuration of the adapter.

        Returns:
            ``kind``, ``settings``, ``parameters``, ``place``, and ``difference``, between the logits of the saved
            model and of the model with its adapter, as :func:`compare_logits` returns it; ``change`` is the
            same for the model without its adapter. For a quantized base both models are those before quantization, and
            ``quantization`` compares the saved model with the one that was trained.
        """
        full = self.full_precision()
        save_tokenizer(tokenizer, folder)
        save_model(full.merged(self.stored_type), folder, name)
        self.save(folder / ADAPTER_FOLDER, base)
        saved: Any = load_language_model(folder).model
        attach(saved.to(full.model.device))
        trained = self.model.num_parameters(only_trainable=True)
        report = {"kind": self.name, "settings": self.settings(), "parameters": trained, "place": self.place}
        report["difference"] = compare_logits(saved, full.model, self.probe)
        report["change"] = compare_logits(full.base(), full.model, self.probe)
        if full is not self:
            report["quantization"] = compare_logits(saved, self.model, self.probe)
        return report


ADAPTERS: Registry[Adapter] = Registry("acclimate.adapters", "adapter", "adapters")
register = ADAPTERS.register


def share_weights(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model that shares its parameters and buffers."""
    return copy.deepcopy(model, {id(shared): shared for shared in (*model.parameters(), *model.buffers())})


def adapter_weights(model: nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor] | None:
    """Return the weights of the adapter in a model by name; None if it has none.

    Args:
        model: The model.
        state: Its weights by name; by default ``state_dict()``.
    """
    if (parts := getattr(model, TRAINED_NAMES, None)) is None:
        return None
    state = model.state_dict() if state is None else state
    return {name: value for name, value in state.items() if any(part in name for part in parts)}


def build_ordinary(model: PreTrainedModel, changes: Mapping[str, Any], state: Mapping[str, Tensor]) -> PreTrainedModel:
    """Build a model of the same class with another shape, as ``transformers`` does when it loads a folder.

    Args:
        model: The model whose class and configuration it has.
        changes: Entries of the configuration that differ.
        state: Its weights by name, which it shares.

    Raises:
        UserError: If the class cannot have these weights.
    """
    probe, what = probe_of(model), f"A {type(model).__name__} cannot be made larger in this way"
    try:
        config = type(model.config).from_dict({**model.config.to_dict(), **changes})
        if probe is not None:
            config._attn_implementation = probe.own_attention
        with torch.device("meta"):
            made: Any = type(model)(config)
    except UNREADABLE as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise UserError(f"{what}: {first_line(cause).removesuffix('.')}.") from error
    expected = {name: value.shape for name, value in made.state_dict().items()}
    found = {name: value.shape for name, value in state.items()}
    if wrong := [name for name in expected | found if expected.get(name) != found.get(name)]:
        raise UserError(f"{what}: transformers would not load '{wrong[0]}'.")
    made.load_state_dict(dict(state), assign=True)
    made.tie_weights()
    buffers = dict(model.named_buffers())
    for name, value in list(made.named_buffers()):
        if value.is_meta:
            place, _, last = name.rpartition(".")
            made.get_submodule(place)._buffers[last] = buffers[name]
    made.name_or_path, made._weight_conversions = model.name_or_path, None
    if model.can_generate():
        made.generation_config = model.generation_config
    return made.eval().requires_grad_(False)


def convert_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert the weights of a copy of a model to a type, on the CPU; tied weights stay tied."""
    converted: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None and value.dtype != dtype:
                like = nn.Parameter(value.detach().to("cpu", dtype), requires_grad=False)
                module._parameters[name] = converted.setdefault(id(value), like)


def warn_of_export(report: Mapping[str, Any]) -> str:
    """Return a warning if a saved model lost much of what an adapter learned, from :meth:`Adapter.export`."""
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
    """Return how far the logits of two models differ on the same texts, both without dropout.

    Args:
        model: The model; both are prepared by :func:`acclimate.models.probe.attach`.
        other: The model that it is compared with.
        texts: Token ids of each text.

    Returns:
        ``absolute``, the largest difference of two logits, and ``relative``, the norm of all differences divided by
        the norm of the logits of ``other``.
    """
    logits = []
    for reader in (model, other):
        training = reader.training
        reader.eval()
        head, rows = language_head(reader), [text[None].to(reader.device) for text in texts]
        if reads_pairs(reader):  # the text is source and target
            pairs = [torch.cat([ids, ~ids], 1) for ids in rows]
            states = [encode(reader, ids, torch.zeros_like(ids))[0, ids.shape[1] // 2 :] for ids in pairs]
        else:
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
