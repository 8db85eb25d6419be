"""Gated domain adapters next to the feed-forward blocks of a frozen model (MixDA; Diao et al., ACL 2023)."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator
from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    DomainAdapters,
    HeadLayer,
    Method,
    Objective,
    Published,
    UpdateRule,
    UserError,
    add_domain_adapters,
    check_not_negative,
    check_positive,
    domain_adapters,
    feed_forward_units,
    has_adapters,
    kind_of,
    linear_sizes,
    load_language_model,
    model_fingerprint,
    register_method,
    share_weights,
)
from acclimate.papers.mixda.objective import DomainLanguageModelling, StateRetention

DROPOUT = 0.2
"""Dropout of the gate, as in the released code."""


def split_list(given: Any) -> Any:
    """Return the parts of ``"a, b"``, or a single number as a list; other values unchanged."""
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    return [given] if isinstance(given, int) else given


@register_method(
    "mixda",
    paper="Diao et al., ACL 2023",
    summary="language modelling that trains an adapter for the domain and a gate, and keeps states of general text",
)
@dataclass
class MixDA(Method):
    """L = lm_weight L_LM(domain text) + retention x mean over tokens of general text of ||h - h_0||^2 / width.

    In some layers, the output of the feed-forward block becomes FFN(x) + sum_k g_k(x) A_k(x). A_k is the adapter of
    domain k, which reads the intermediate activations x, and g is the softmax of a gate over the block and all
    adapters. Adapters start at zero, so the model starts as the base model, whose weights are frozen. A model with
    adapters gets one more; its other adapters are frozen, and its gate trains on. h are last hidden states, and h_0
    those of the model before this adaptation, with the adapters that it had; general text is that of ``replay`` or of
    a mix.

    With ``adapters``, those of several results are put side by side, and only the gate trains, on text of all domains.
    An adapter that is chosen by a gate cannot be folded into linear layers, so plain ``transformers`` cannot run the
    result; its folder is written so that other loaders fail.

    Attributes:
        adapters: Results of this method, all from the base model that is given now; their adapters are used together.
        reduction: Intermediate units per unit of the bottleneck of an adapter.
        layers: The layers that get adapters, counted from 0. By default the last of the first third and the last of
            the first half, which are 7 and 11 of 24 in the paper.
        gate: What the gate reads: the first token of each ``text``, or each ``token`` by itself. By default ``text``,
            and ``token`` where no token reads the whole text (decoders) or layers share their weights.
        gate_size: Width of the hidden layers of the gate.
        gate_rate: Learning rate of the gate, in multiples of the adapters' learning rate.
        weighs: ``adapters``, or ``all`` (released code): the gate weighs the output of the feed-forward block as well,
            which changes the model before any training.
        retention: Weight of the distance of states of general text.
        lm_weight: Weight of the LM loss (released code: 0.5).
    """

    purpose: ClassVar[str] = "Forget less"
    cost: ClassVar[float] = 1.2
    loads_without_acclimate: ClassVar[bool] = False
    learning_rate: ClassVar[float] = 5e-4
    without_adapter: ClassVar[str] = "it trains its own adapters"
    files: ClassVar[tuple[str, ...]] = ("adapters",)

    adapters: Annotated[tuple[str, ...], BeforeValidator(split_list)] = ()
    reduction: int = 16
    layers: Annotated[tuple[int, ...], BeforeValidator(split_list)] = ()
    gate: Literal["text", "token"] | None = None
    gate_size: int = 768
    gate_rate: float = 2.0
    weighs: Annotated[
        Literal["adapters", "all"],
        Published(
            {"released-code": "all"},
            "The model starts as the base model, as in the paper.",
        ),
    ] = "adapters"
    retention: float = 1.0
    lm_weight: float = 0.5

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(reduction=self.reduction, gate_size=self.gate_size, gate_rate=self.gate_rate)
        check_positive(lm_weight=self.lm_weight)
        check_not_negative(retention=self.retention)
        # `prepare` adds the distance of general text.
        self._terms: list[Objective | BatchObjective] = [DomainLanguageModelling(self.lm_weight)]
        self._rule: GateRate | None = None

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that the adapters of this run fit those that the model has, and its blocks."""
        before = domain_adapters(model)
        if before is None and has_adapters(model):
            raise UserError("The model has bottleneck adapters, prompts or entity vectors; start from one without.")
        if before is not None and self.adapters:
            raise UserError("'adapters' are added to the base model, but this model has domain adapters already.")
        if not self.adapters:
            self._new(model, before)

    def prepare(self, run: AdaptContext) -> None:
        """Insert the adapter and the gates, and freeze all other weights."""
        before = domain_adapters(run.model)
        if self.retention and len(run.sources) > 1:
            # The gate of a model that has adapters trains, so it must not be shared with what is retained.
            copied = run.sharded or before is not None
            base = copy.deepcopy(run.model) if copied else share_weights(run.model)
            self._terms.append(StateRetention(base.eval().requires_grad_(False), self.retention))
        elif self.retention:
            run.say("There is no general text, so nothing is retained by it; add some with --replay.")
        if self.adapters:
            what = self._combine(run)
        else:
            what = self._new(run.model, before)
            add_domain_adapters(run.model, what, DROPOUT, run.seed)
        parts = ("gate.",) if self.adapters else ("gate.", f"adapters.{len(what.sizes) - 1}.")
        for name, value in run.model.named_parameters():
            value.requires_grad_(name.partition(".domains.")[2].startswith(parts))
        self._rule = GateRate(run.model, self.gate_rate)
        reader = "the first token of each text" if what.reads == "text" else "each token"
        run.say(
            f"Domain adapters: {len(what.sizes)}, of which {0 if self.adapters else 1} trains, in layers "
            f"{', '.join(map(str, what.layers))}; the gate reads {reader}."
        )

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss of the domain text and, if there is general text, the distance of its states."""
        return self._terms

    def update_rule(self) -> UpdateRule | None:
        """Return the rule with the learning rate of the gate."""
        return self._rule

    def file_contents(self) -> dict[str, str]:
        """Return a hash of each model whose adapters are used."""
        return {f"adapter {number}": model_fingerprint(path) for number, path in enumerate(self.adapters)}

    def _new(self, model: PreTrainedModel, before: DomainAdapters | None) -> DomainAdapters:
        """Return the adapters of a model with one more."""
        blocks: list[Any] = [units.linear for units in feed_forward_units(model, "O", 1)]
        size = max(1, linear_sizes(blocks[0])[0] // self.reduction)
        if before is not None:
            return replace(before, sizes=(*before.sizes, size))
        layers = self.layers or tuple(sorted({max(0, len(blocks) // part - 1) for part in (3, 2)}))
        masked, last = kind_of(model).uses_masking, len(blocks) - 1 in layers
        reads = self.gate or ("text" if masked and not last else "token")
        if reads == "text" and (last or not masked):
            why = "the last layer may run for some tokens only" if masked else "no token of a decoder reads its text"
            raise UserError(f"gate=text does not work here, since {why}; use gate=token, or other layers.")
        return DomainAdapters(layers, (size,), self.gate_size, reads, self.weighs)

    def _combine(self, run: AdaptContext) -> DomainAdapters:
        """Add the adapters of other models to a model; return what it has then."""
        state: dict[str, Any] = {}
        found: list[DomainAdapters] = []
        for path in self.adapters:
            model = load_language_model(path).model
            what = domain_adapters(model)
            if what is None or type(model) is not type(run.model):
                raise UserError(f"'{path}' is no result of mixda from a {type(run.model).__name__}.")
            _check_base(model, run.model, path)
            if found and replace(what, sizes=()) != replace(found[0], sizes=()):
                raise UserError(
                    f"The adapters of '{path}' and '{self.adapters[0]}' differ in layers or gate; give both the same."
                )
            first = sum(len(one.sizes) for one in found)
            found.append(what)
            for name, value in model.state_dict().items():
                place, mark, rest = name.partition(".domains.adapters.")
                if mark:
                    number, _, part = rest.partition(".")
                    state[f"{place}{mark}{first + int(number)}.{part}"] = value
        what = replace(found[0], sizes=tuple(size for one in found for size in one.sizes))
        add_domain_adapters(run.model, what, DROPOUT, run.seed)
        run.model.load_state_dict(state, strict=False)
        return what


def _check_base(model: PreTrainedModel, base: PreTrainedModel, path: str) -> None:
    """Check that a model with domain adapters has the encoder of the base model.

    Raises:
        UserError: If not.
    """
    own = base.base_model.state_dict()
    for name, value in model.base_model.state_dict().items():
        if ".domains." not in name and (name not in own or not torch.equal(own[name].to(value), value)):
            raise UserError(
                f"The adapters of '{path}' were trained with another base model: '{name}' differs. Give the model "
                "that they were trained from as --model."
            )


class GateRate(UpdateRule):
    """Multiply the learning rate of the gates."""

    needs_whole_weights: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel, factor: float) -> None:
        """Find the gates."""
        gates = [name for name, _ in model.named_parameters() if ".domains.gate." in name]
        self._factors = dict.fromkeys(gates, factor)

    def learning_rate_factors(self) -> Mapping[str, float]:
        """Return the factor of each weight."""
        return self._factors
