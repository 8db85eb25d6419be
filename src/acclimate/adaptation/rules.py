"""Update rules, their registry, and their feature of a run: they are added to that of the method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from acclimate.adaptation.method import AdaptContext
from acclimate.adaptation.run import Feature, Run
from acclimate.adaptation.step_options import list_parts, split_names
from acclimate.base.bounds import Count, Fraction, Positive
from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder
from acclimate.base.progress import Progress, print_message
from acclimate.base.registry import Part, Registry
from acclimate.data.documents import as_corpus
from acclimate.data.reading import TextOptions
from acclimate.data.tokenizing import tokenize
from acclimate.models.adapters import NO_FACTORS, Adapter
from acclimate.models.batching import training_tokens
from acclimate.parts.masking import Strategy
from acclimate.parts.updates import (
    CombinedRules,
    LayerwiseDecay,
    PullToStart,
    Refactorization,
    StaticSparsity,
    UpdateRule,
    freeze,
    summed_fisher,
)

FISHER_TOKENS = 200_000
"""Maximum tokens of general text from which the Fisher information is estimated."""
FISHER_BATCH = 2_000
"""Maximum tokens per backward pass of this estimate, whose error falls with the number of passes."""


@dataclass(frozen=True)
class Rule(Part, ABC):
    """A registered update rule, as a user names it; subclasses are frozen dataclasses whose fields are the parameters.

    Attributes:
        place: Its place among others, whatever the order in which they are given.
        why_not: Why it cannot be used with an adapter, for messages; empty if it can.
        reads_general: Whether it reads general text, its parameter ``text``, which a study provides.
    """

    place: ClassVar[int]
    why_not: ClassVar[str] = ""
    reads_general: ClassVar[bool] = False

    def open(self, reading: TextOptions) -> Self:
        """Return the rule with the texts that it reads, given the column of tables and the encoding of files."""
        return self

    def check(self, run: Run) -> None:
        """Check that the rule fits a run, before a model is loaded.

        Raises:
            UserError: If it does not.
        """
        if self.why_not and run.adapter is not None:
            raise UserError(f"The rule '{self.name}' {self.why_not}.")

    @abstractmethod
    def make(self, run: Run) -> UpdateRule | None:
        """Return what happens around each optimizer step; None if the rule acts only once, now."""


RULES: Registry[Rule] = Registry("acclimate.rules", "update rule", "update rules")
register = RULES.register


@register("freeze", summary="weights whose names match do not train")
@dataclass(frozen=True)
class Freeze(Rule):
    """Freezes weights by name.

    Attributes:
        names: Parts of names of weights, such as ``embeddings`` or ``layer.[0-5]``, with commas between them. A
            pattern (``*``, ``?``, ``[0-5]``) matches whole parts of a name between dots. Tied weights are one weight.
    """

    place, main = 0, "names"

    names: Annotated[tuple[str, ...], BeforeValidator(split_names)]

    def make(self, run: Run) -> None:
        """Freeze the weights."""
        print_message(freeze(run.loaded.model, self.names), enabled=run.progress)


@register(
    "sparsity",
    paper="SPDF: Thangarasa et al., UAI 2023",
    summary="a share of the weights of each linear layer is zero and stays zero",
)
@dataclass(frozen=True)
class Sparsity(Rule):
    """Keeps a share of the weights of each linear layer at zero.

    Embeddings, head, biases and normalizations stay dense. The result is an ordinary model, of which ``finetune``
    trains all weights. It computes as fast as a dense one.

    Attributes:
        share: The share.
        choice: Which weights: ``"magnitude"``, the smallest of each layer, or ``"random"``. SPDF chooses random ones
            of a model without training; of a trained model these cost far more.
    """

    place, main = 1, "share"  # before rules that copy the weights
    why_not = "is for weights that train, which an adapter freezes; remove one of them"

    share: Annotated[float, Field(gt=0, lt=1)]
    choice: Literal["magnitude", "random"] = "magnitude"

    def make(self, run: Run) -> UpdateRule:
        """Set the weights to zero."""
        made = StaticSparsity(run.loaded.model, self.share, self.choice, run.options.seed)
        print_message(made.describe(), enabled=run.progress)
        return made


@register(
    "layer-decay",
    paper="Howard and Ruder, ACL 2018; Clark et al., ICLR 2020",
    summary="a lower learning rate for each layer below the head",
)
@dataclass(frozen=True)
class LayerDecay(Rule):
    """Lowers the learning rate of each layer by a factor, from the head down to the embeddings.

    Head and final normalization have the whole rate, the last of n layers the factor, the embeddings its power n + 1.
    An output matrix that is tied to the embeddings has their rate.

    Attributes:
        factor: The factor, such as 0.9.
    """

    place, main = 2, "factor"

    factor: Fraction

    def make(self, run: Run) -> UpdateRule:
        """Find the layers."""
        return LayerwiseDecay(run.loaded.model, self.factor)


@dataclass(frozen=True)
class Pull(Rule):
    """A rule that pulls weights to the base model.

    Attributes:
        strength: Factor of the term; the logged loss does not include it.
    """

    main = "strength"
    why_not = (
        "pulls the weights of the model to the base, which an adapter leaves unchanged; pull the adapter to zero with "
        "'weight_decay', or remove 'adapter'"
    )

    strength: Positive


@register("l2-sp", paper="Li et al., ICML 2018", summary="all weights are pulled to the base model")
@dataclass(frozen=True)
class L2SP(Pull):
    """Adds strength / 2 times the squared distance from the base weights to the loss."""

    place = 3

    def make(self, run: Run) -> UpdateRule:
        """Copy the weights."""
        return PullToStart(run.loaded.model, self.strength)


@register("ewc", paper="Kirkpatrick et al., PNAS 2017", summary="weights are pulled to the base model by importance")
@dataclass(frozen=True)
class EWC(Pull):
    """As ``l2-sp``, with each squared distance multiplied by the Fisher information of the weight.

    It is in nats per token of general text; 1 counts a token of general text as much as one of domain text.

    Attributes:
        text: General text: file, folder, glob or hf:NAME. In a study by default its general text, without the
            documents that the study measures on.
    """

    place, files, reads_general = 4, ("text",), True

    text: Any = None

    def open(self, reading: TextOptions) -> EWC:
        """Return the rule with its text.

        Raises:
            UserError: If there is none.
        """
        if self.text is None:
            raise UserError("The rule 'ewc' needs general text to measure importance on: 'ewc strength=1 text=FILE'.")
        return replace(self, text=as_corpus(self.text, reading))

    def identity(self) -> dict[str, Any]:
        """Return the parameters, with the hash of the text."""
        return {"name": self.name, "strength": self.strength, "text": self.text and self.text.fingerprint}

    def make(self, run: Run) -> UpdateRule:
        """Measure the importance, and copy the weights."""
        cut = partial(tokenize, self.text, run.loaded.tokenizer, run.length, framing=run.framing)
        with run.group.main_process_first():
            rows = cut(cache=cache_folder() / "rows", progress=run.progress)
        return PullToStart(run.loaded.model, self.strength, measure_fisher(replace(run.context, rows=rows)))


@register(
    "refactor",
    paper="Glentis et al., 2025",
    summary="a low-rank adapter gets balanced factors every so many steps",
)
@dataclass(frozen=True)
class Refactor(Rule):
    """Replaces the factors of a low-rank adapter by those of the singular value decomposition of their product.

    The product B A of each layer stays the same; each factor gets the root of the singular values, and the moments in
    the optimizer start anew.

    Attributes:
        every: Optimizer steps between two factorizations.
    """

    place, main = 5, "every"

    every: Count

    def check(self, run: Run) -> None:
        """Check that the adapter has factors."""
        if run.adapter is None:
            raise UserError(f"The rule '{self.name}' is for adapters; add one, such as lora, or remove the rule.")
        if type(run.adapter).factors is Adapter.factors:
            raise UserError(NO_FACTORS.format(run.adapter.name))

    def make(self, run: Run) -> UpdateRule:
        """Find the factors."""
        assert run.loaded.adapter is not None
        return Refactorization(run.loaded.adapter.factors(), self.every)


def open_rules(given: Any, reading: TextOptions) -> list[Rule]:
    """Return the update rules that a user gave, with their texts, in the order in which they act.

    Raises:
        UserError: If a name or a parameter is wrong, a rule is named twice, or a text is missing.
    """
    found = [RULES.read(one).open(reading) for one in list_parts(given)]
    for one in found:
        if sum(one.name == other.name for other in found) > 1:
            raise UserError(f"The update rule '{one.name}' is given twice; give it once.")
    return sorted(found, key=lambda rule: rule.place)


class UpdateRules(Feature):
    """The update rules that options add to that of the method."""

    def __init__(self, run: Run) -> None:
        """Check the rules, and open their texts."""
        self.rules = open_rules(run.options.rules, run.options)
        for rule in self.rules:
            rule.check(run)

    def identity(self) -> dict[str, Any]:
        """Return the rules, with the content of their texts."""
        return {"rules": [rule.identity() for rule in self.rules]}

    def rule(self, run: Run, rule: UpdateRule | None) -> UpdateRule | None:
        """Add the rules; that of the method is applied last."""
        made = [found for one in self.rules if (found := one.make(run)) is not None]
        rules = made if rule is None else [*made, rule]
        return CombinedRules(rules) if len(rules) > 1 else next(iter(rules), None)


def measure_fisher(context: AdaptContext, tokens: int = FISHER_TOKENS, cached: bool = True) -> dict[str, Tensor]:
    """Return the diagonal of the Fisher information per predicted token of a text, by weight.

    Args:
        context: The adaptation, with the text as its rows.
        tokens: Maximum tokens of the text to read.
        cached: Whether it is stored in the cache; it is as large as the model.

    Raises:
        UserError: As :func:`acclimate.parts.updates.summed_fisher`.
    """
    if not cached:
        return context.seeded(partial(_measure_fisher, context, tokens))
    masking = context.masking.identity() if isinstance(context.masking, Strategy) else repr(context.masking)
    names = [name for name, weight in context.model.named_parameters() if weight.requires_grad]
    options = {"tokens": tokens, "masking": masking, "weights": names}
    return context.cached("fisher", options, partial(_measure_fisher, context, tokens))


def _measure_fisher(context: AdaptContext, tokens: int) -> dict[str, Tensor]:
    size, read = context.group.size, 0
    most = min(tokens, int(getattr(context.rows, "tokens", tokens)))
    with Progress("Fisher information", most, unit="tokens", enabled=context.progress) as bar:

        def batches() -> Any:
            nonlocal read
            for batch in context.sample(tokens, readings=max(1, training_tokens(context.model) // FISHER_BATCH)):
                yield batch
                read += batch.tokens * size
                bar.update(read)

        predicted, sums = summed_fisher(context.model, batches(), precision=context.precision)
    count, *totals = context.group.add([torch.tensor(float(predicted), device=context.device), *sums.values()])
    return {name: total / count for name, total in zip(sums, totals, strict=True)}
