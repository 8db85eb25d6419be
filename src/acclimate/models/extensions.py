"""Modules that an architecture of ``transformers`` does not have: adapters, entity vectors, and the original encoder.

Bottleneck adapters follow Houlsby et al. (ICML 2019), domain adapters with a gate follow Diao et al. (ACL 2023). A
model with its original encoder is the ensemble of Ke et al. (2022). Entity vectors follow Sengupta et al. (2024).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.base.errors import UserError
from acclimate.models.attention import HeadLayer
from acclimate.models.compiling import layers_of
from acclimate.models.gates import feed_forward_units, gate_units, linear_sizes
from acclimate.models.prompts import PROMPTS_KEY, Prompts, add_prompts, prompts_of

ADAPTER_SIZE_KEY = "acclimate_adapter_size"
"""Configuration entry of a model with adapters: the width of their bottleneck."""


class Bottleneck(nn.Module):
    """h + W_up gelu(W_down h + b_down) + b_up, initialized near the identity."""

    def __init__(self, width: int, size: int) -> None:
        """Make an adapter for vectors of ``width`` with a bottleneck of ``size``."""
        super().__init__()
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        for layer in (self.down, self.up):
            nn.init.trunc_normal_(layer.weight, std=1e-2, a=-2e-2, b=2e-2)
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., width) to (..., width)."""
        return hidden + self.up(nn.functional.gelu(self.down(hidden)))


def adapter_size(model: PreTrainedModel) -> int:
    """Return the bottleneck width of the adapters in a model; 0 if it has none."""
    return int(getattr(model.config, ADAPTER_SIZE_KEY, 0) or 0)


def add_adapters(model: PreTrainedModel, layers: Sequence[HeadLayer], size: int, seed: int = 0) -> list[nn.Parameter]:
    """Add an adapter after the output projection of each attention block and each feed-forward block.

    Adapters come before dropout, the residual connection and normalization. Houlsby et al. apply dropout before the
    adapter.

    Args:
        model: A model that :func:`acclimate.models.probe.attach` has prepared.
        layers: The result of ``attach``.
        size: Width of the bottleneck.
        seed: Random seed of the initial weights.

    Returns:
        The parameters of the adapters.

    Raises:
        UserError: If the feed-forward of the model cannot be found, or the model already has adapters.
    """
    has_own = adapter_size(model) and any(hasattr(layer.output, "adapter") for layer in layers)
    if has_own or domain_adapters(model) is not None:
        raise UserError(
            "The model already has adapters. Use another method, which trains all of its weights, or start from the "
            "model without adapters."
        )
    feed_forward: list[Any] = gate_units(model, layers, ["O"])["O"]
    linears = [layer.output for layer in layers] + [units.linear for units in feed_forward]
    parameters: list[nn.Parameter] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for linear in linears:
            adapter = Bottleneck(linear_sizes(linear)[1], size).to(linear.weight)
            linear.add_module("adapter", adapter)
            linear.register_forward_hook(_apply_adapter)
            parameters += list(adapter.parameters())
    setattr(model.config, ADAPTER_SIZE_KEY, size)
    return parameters


def _apply_adapter(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return module.adapter(output)  # type: ignore[operator]


DOMAINS_KEY = "acclimate_domain_adapters"
"""Configuration entry of a model with domain adapters: a :class:`DomainAdapters` as a mapping."""
GATE_LAYERS = 3


@dataclass(frozen=True)
class DomainAdapters:
    """The domain adapters of a model and their gate (MixDA; Diao et al., ACL 2023).

    Attributes:
        layers: The feed-forward blocks that have them, counted from 0.
        sizes: Width of the bottleneck of each domain's adapter.
        gate: Width of the three hidden layers of the gate.
        reads: What the gate reads: the first token of each ``"text"``, or every ``"token"`` by itself.
        weighs: What the gate weighs: the ``"adapters"``, or ``"all"``, the feed-forward block as well.
    """

    layers: tuple[int, ...]
    sizes: tuple[int, ...]
    gate: int
    reads: Literal["text", "token"]
    weighs: Literal["adapters", "all"]

    @classmethod
    def of(cls, entry: Any) -> DomainAdapters:
        """Return what an entry of a configuration says."""
        return cls(tuple(entry["layers"]), tuple(entry["sizes"]), entry["gate"], entry["reads"], entry["weighs"])

    def entry(self) -> dict[str, Any]:
        """Return the entry of a configuration."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def domain_adapters(model: PreTrainedModel) -> DomainAdapters | None:
    """Return what domain adapters a model has; None for none."""
    entry = getattr(model.config, DOMAINS_KEY, None)
    return None if entry is None else DomainAdapters.of(entry)


def has_adapters(model: PreTrainedModel) -> bool:
    """Return whether a model has one of :data:`EXTENSIONS`."""
    return bool(extensions_of(model.config))


class DomainMixture(nn.Module):
    """Domain adapters in parallel to the last layer of a feed-forward block: y + sum_k g_k(x) A_k(x).

    x are the intermediate activations of the block and y is its output. A_k(x) = W_up gelu(W_down x + b_down) + b_up
    starts at zero. g is the softmax of a perceptron over y and all A_k. With ``weighs="all"``, y too is multiplied by
    its share, as in the released code, which changes what the model computes before any training.

    The gate of a text is computed from its first token, and shared by all of its tokens. (The released code takes the
    last position of the row, which is padding in all but the longest texts.)
    """

    def __init__(self, inputs: int, width: int, what: DomainAdapters, dropout: float) -> None:
        """Make the gate of a block with ``inputs`` intermediate units and ``width`` outputs, without adapters."""
        super().__init__()
        self.inputs, self.width, self.reads, self.weighs = inputs, width, what.reads, what.weighs
        sizes = [inputs, *GATE_LAYERS * [what.gate]]
        hidden = [
            part
            for before, after in pairwise(sizes)
            for part in (nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout))
        ]
        self.gate = nn.Sequential(*hidden, _zeros(nn.Linear(what.gate, 1)))
        self.adapters = nn.ModuleList()
        self.first: Tensor | None = None
        """Index of the first token of the text of each token, in flattened rows, for the forward pass in progress."""

    def add(self, size: int) -> None:
        """Add the adapter of one more domain, with a bottleneck of ``size``; the shares of the others shrink alike."""
        adapter = nn.Sequential(nn.Linear(self.inputs, size), nn.GELU(), _zeros(nn.Linear(size, self.width)))
        last: Any = self.gate[-1]
        longer = _zeros(nn.Linear(last.in_features, last.out_features + 1)).to(last.weight)
        with torch.no_grad():
            longer.weight[:-1], longer.bias[:-1] = last.weight, last.bias
        self.gate[-1] = longer
        self.adapters.append(adapter.to(last.weight))

    def locate(self, layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Find the texts in the input of a layer, before it runs."""
        if self.reads == "text":
            hidden = inputs[0] if inputs else options["hidden_states"]
            mask = options.get("attention_mask", inputs[1] if len(inputs) > 1 else None)
            self.first = _first_tokens(hidden, mask, options.get("block_mask"), options.get("unpadded"))

    def shares(self, inner: Tensor) -> Tensor:
        """Return the shares of the feed-forward block and each adapter: (rows, tokens, 1 + adapters)."""
        if self.first is None:
            return self.gate(inner).softmax(-1)
        starts, text = self.first.unique(return_inverse=True)
        found: Tensor = self.gate(inner.flatten(0, 1)[starts]).softmax(-1)[text]
        return found.view(*inner.shape[:2], -1)

    def forward(self, inner: Tensor, output: Tensor) -> Tensor:
        """Return the output of the block with its adapters (rows, tokens, width)."""
        shares = self.shares(inner).to(output.dtype)
        mixed = output * shares[..., :1] if self.weighs == "all" else output
        for number, adapter in enumerate(self.adapters, 1):
            mixed = mixed + shares[..., number : number + 1] * adapter(inner)
        return mixed


def _first_tokens(hidden: Tensor, mask: Any, block_mask: Tensor | None, unpadded: Any) -> Tensor:
    """Return the index of the first token of the text of each token, in flattened rows (rows x tokens,).

    Args:
        hidden: States (rows, tokens, width).
        mask: Where tokens attend (rows or 1, 1, tokens, tokens), boolean or numbers that are added; or None.
        block_mask: Which tokens are of the same text (rows, 1, tokens, tokens), for packed rows.
        unpadded: The maps that remove padding, an :class:`acclimate.kernels.Unpadded`, if it is removed.
    """
    if unpadded is not None:
        return unpadded.first_tokens
    rows, tokens = hidden.shape[:2]
    first = torch.zeros(rows, 1, dtype=torch.long, device=hidden.device)
    if block_mask is not None:
        first = block_mask[:, 0].byte().argmax(-1)
    elif isinstance(mask, Tensor) and mask.dim() == 4:
        seen = mask if mask.dtype == torch.bool else mask == 0
        first = seen.any((1, 2)).byte().argmax(-1)[:, None].expand(rows, 1)
    return (first + tokens * torch.arange(rows, device=hidden.device)[:, None]).expand(rows, tokens).flatten()


def add_domain_adapters(model: PreTrainedModel, what: DomainAdapters, dropout: float = 0.0, seed: int = 0) -> None:
    """Add domain adapters and gates in parallel to feed-forward blocks of a model.

    Args:
        model: The model. The adapters that it has are the first of ``what``, and keep their weights.
        what: The adapters that the model has afterwards.
        dropout: Dropout in the gate during training.
        seed: Random seed of the initial weights.

    Raises:
        UserError: If the feed-forward blocks cannot be found, or there are fewer.
    """
    blocks: list[Any] = [units.linear for units in feed_forward_units(model, "O", 1)]
    if wrong := [place for place in what.layers if not 0 <= place < len(blocks)]:
        raise UserError(
            f"There is no layer {wrong[0]}: the feed-forward blocks of {type(model).__name__} are 0 to "
            f"{len(blocks) - 1}."
        )
    layers = layers_of(model.base_model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for linear in (blocks[place] for place in what.layers):
            if not hasattr(linear, "domains"):
                made = DomainMixture(*linear_sizes(linear), what, dropout).to(linear.weight)
                linear.add_module("domains", made)
                linear.register_forward_hook(_apply_domains)
                holder = next(layer for layer in layers if linear in layer.modules())
                holder.register_forward_pre_hook(made.locate, with_kwargs=True)
            for size in what.sizes[len(linear.domains.adapters) :]:
                linear.domains.add(size)
    setattr(model.config, DOMAINS_KEY, what.entry())


def _apply_domains(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return module.domains(inputs[0], output)  # type: ignore[operator]


def _zeros(linear: nn.Linear) -> nn.Linear:
    for value in linear.parameters():
        nn.init.zeros_(value)
    return linear


ENTITIES_KEY = "acclimate_entities"
"""Configuration entry of a model with entity vectors: the arguments of :class:`EntityVectors` but the width."""


class EntityVectors(nn.Module):
    """Adds the mapped vector of an entity to the embedding of each token of its mentions: e + W v + b.

    A mention is a spelling of whole words, as token ids; of several that start at one word, the longest. Buffers are
    the ``vectors`` (entities, dimension), the ``spellings`` (spellings, tokens), -1 after the end, the ``owner`` of
    each (spellings,), and whether a word begins at a token or after it (vocabulary, 2).
    """

    vectors: Tensor
    spellings: Tensor
    owner: Tensor
    bounds: Tensor

    def __init__(
        self, entities: int, dimension: int, spellings: int, longest: int, vocabulary: int, width: int
    ) -> None:
        """Make empty buffers and the map of vectors to ``width``."""
        super().__init__()
        self.map = nn.Linear(dimension, width)
        self.register_buffer("vectors", torch.zeros(entities, dimension))
        self.register_buffer("spellings", torch.full((spellings, longest), -1))
        self.register_buffer("owner", torch.zeros(spellings, dtype=torch.long))
        self.register_buffer("bounds", torch.zeros(vocabulary, 2, dtype=torch.bool))
        self._known: dict[int, list[tuple[list[int], int]]] = {}

    def find(self, ids: Tensor) -> Tensor:
        """Return the number of the entity that each token mentions, -1 for none: as ``ids``, but on the CPU."""
        if not self._known:
            for row, owner in zip(self.spellings.tolist(), self.owner.tolist(), strict=True):
                spelling = [token for token in row if token >= 0]
                self._known.setdefault(spelling[0], []).append((spelling, owner))
            for known in self._known.values():
                known.sort(key=lambda one: -len(one[0]))
            self._starts, self._ends = self.bounds.T.tolist()
        found = []
        for row in ids.reshape(-1, ids.shape[-1]).tolist():
            begins = [True, *(self._starts[b] or self._ends[a] for a, b in pairwise(row)), True]
            place, owners = 0, [-1] * len(row)
            while place < len(row):
                stop = place + 1
                for spelling, owner in self._known.get(row[place], ()) if begins[place] else ():
                    end = place + len(spelling)
                    if row[place:end] == spelling and begins[end]:
                        stop, owners[place:end] = end, [owner] * len(spelling)
                        break
                place = stop
            found.append(owners)
        return torch.tensor(found).view(ids.shape)

    def forward(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """Return the embeddings (..., width) of ids (...) with the vectors of entities."""
        owner = self.find(ids).to(embedded.device)
        added = self.map(self.vectors[owner.clamp(min=0)]).to(embedded.dtype)
        return embedded + torch.where(owner[..., None] >= 0, added, 0)


def add_entities(model: PreTrainedModel, **sizes: int) -> EntityVectors:
    """Add entity vectors to the embeddings of a model; ``sizes`` are the arguments but the width.

    Raises:
        UserError: If it has some.
    """
    if getattr(model.config, ENTITIES_KEY, None) and hasattr(model.get_input_embeddings(), "entities"):
        raise UserError("The model already has entity vectors; start from a model without them.")
    table: Any = model.get_input_embeddings()
    made = EntityVectors(**sizes, width=table.weight.shape[1])
    made.map.to(table.weight)
    table.add_module("entities", made.to(table.weight.device))
    table.register_forward_hook(_apply_entities)
    setattr(model.config, ENTITIES_KEY, sizes)
    return made


def check_can_grow(model: PreTrainedModel) -> None:
    """Check that the embedding layer of a model can get more rows.

    Raises:
        UserError: If it has prompts or entity vectors, which know the number of its rows.
    """
    entities = getattr(model.config, ENTITIES_KEY, None)
    if entities or prompts_of(model.config):
        what = "entity vectors" if entities else "prompts"
        raise UserError(f"The model has {what} of its own, whose embedding layer cannot grow; start from one without.")


def _apply_entities(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return module.entities(inputs[0], output)  # type: ignore[operator]


ENSEMBLE_KEY = "acclimate_ensemble"
"""Configuration entry of a model that contains its original encoder."""
ORIGINAL = "original"
"""Name of the submodule with the original encoder, and prefix of its weights."""


def keep_original(model: PreTrainedModel) -> nn.Module:
    """Add a frozen copy of the current encoder to a model, as a submodule that its forward pass does not use.

    Returns:
        The copy.

    Raises:
        UserError: If the model has adapters.
    """
    if has_adapters(model):
        raise UserError(
            "An ensemble of models with adapters, prompts or entity vectors cannot be saved; start from a model "
            "without them."
        )
    original = copy.deepcopy(model.base_model)
    original.requires_grad_(False)
    model.add_module(ORIGINAL, original)
    setattr(model.config, ENSEMBLE_KEY, True)
    return original


def average_with_original(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    """Make an encoder return the mean of its last hidden states and its original's; both encoders are trained.

    Args:
        model: A model whose head reads the last hidden states of ``base_model``, or its pooler.
        state: Weights of the original, named without the prefix.

    Raises:
        ValueError: If weights are missing.
    """
    original: Any = keep_original(model)
    if getattr(original, "pooler", None) is not None:
        original.pooler = None  # the pooler of the model reads the mean
    missing = original.load_state_dict(state, strict=False).missing_keys
    if missing:
        raise ValueError(f"weights of the original are missing, such as {missing[0]}")
    original.requires_grad_(True)
    model.base_model.register_forward_hook(_Average(original), with_kwargs=True)


class _Average:
    def __init__(self, original: nn.Module) -> None:
        self.original = original

    def __call__(self, module: nn.Module, inputs: Any, options: dict[str, Any], output: Any) -> Any:
        other = self.original(*inputs, **options)
        output.last_hidden_state = (output.last_hidden_state + other.last_hidden_state) / 2
        pooler: Any = getattr(module, "pooler", None)
        if isinstance(pooler, nn.Linear):  # ALBERT applies it and its activation in the model
            first = pooler(output.last_hidden_state[:, 0])
            output.pooler_output = module.pooler_activation(first)  # type: ignore[operator]
        elif pooler is not None:
            output.pooler_output = pooler(output.last_hidden_state)
        return output


@dataclass(frozen=True)
class Extension:
    """Modules that an architecture does not have, as a model folder stores them.

    Attributes:
        entry: Entry of the configuration for them.
        weights: Part of the names of their weights, and of no others.
        describe: Describes them, given the configuration; empty for none.
        add: Adds them to a model whose configuration has the entry, given how its layers are found
            (:func:`acclimate.models.probe.attach`).
    """

    entry: str
    weights: str
    describe: Callable[[Any], str]
    add: Callable[[Any, Callable[[Any], Sequence[HeadLayer]]], Any]


def _describe_domains(config: Any) -> str:
    number = len(DomainAdapters.of(getattr(config, DOMAINS_KEY)).sizes)
    return f"{number} domain adapter{'s' * (number > 1)} and a gate (Diao et al., 2023)" if number else ""


EXTENSIONS = (
    Extension(
        ADAPTER_SIZE_KEY,
        ".adapter.",
        lambda config: f"bottleneck adapters of size {getattr(config, ADAPTER_SIZE_KEY)} (Houlsby et al., 2019)",
        lambda model, attach: add_adapters(model, attach(model), adapter_size(model)),
    ),
    Extension(
        DOMAINS_KEY,
        ".domains.",
        _describe_domains,
        lambda model, attach: add_domain_adapters(model, DomainAdapters.of(getattr(model.config, DOMAINS_KEY))),
    ),
    Extension(
        PROMPTS_KEY,
        ".prompts.",
        lambda config: (
            f"a network for prompts of {getattr(config, PROMPTS_KEY)['length']} tokens (Jiang et al., 2023)"
        ),
        lambda model, attach: add_prompts(model, Prompts.of(getattr(model.config, PROMPTS_KEY))),
    ),
    Extension(
        ENTITIES_KEY,
        ".entities.",
        lambda config: f"vectors of {getattr(config, ENTITIES_KEY)['entities']:,} entities (Sengupta et al., 2024)",
        lambda model, attach: add_entities(model, **getattr(model.config, ENTITIES_KEY)),
    ),
)
"""All kinds of such modules but the original encoder, which :func:`keep_original` adds."""


def extensions_of(config: Any) -> list[Extension]:
    """Return the extensions that a configuration has entries for."""
    return [extension for extension in EXTENSIONS if getattr(config, extension.entry, None)]
