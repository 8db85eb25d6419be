"""Views, batches, the interface of objectives, and the language-model loss.

A view says how a model reads a batch. The engine takes the union of the views of all objectives, runs one forward pass
for all views of the same reader, and gives each objective its views. Objectives share equal views.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor

from acclimate.base.device import copy_to, host_copy
from acclimate.models.batching import chosen_positions
from acclimate.models.kinds import ModelKind
from acclimate.parts.masking import Rewriting
from acclimate.parts.objectives.vocabulary import cross_entropy, map_logits


@dataclass(frozen=True, eq=False)
class Gates:
    """Gates that a view applies to every text: (layers, units) by part. An instance equals only itself."""

    values: Mapping[str, Tensor]


@dataclass(frozen=True)
class View:
    """Settings with which a model reads a batch.

    Attributes:
        tokens: The masked tokens, the original ones, or the texts rewritten in another way.
        draw: Index of the dropout mask. Views that differ only in it get independent dropout.
        gates: Gates on heads or other units; None means ones.
        reader: ``"student"``, the model in training; ``"reference"``, its frozen original; or the name of another
            frozen model. Frozen models have neither gradient nor dropout.
    """

    tokens: Literal["masked", "original"] | Rewriting = "masked"
    draw: int = 0
    gates: Gates | None = None
    reader: str = "student"

    @property
    def unmasked(self) -> View:
        """The view that equals this one where nothing is masked."""
        return replace(self, tokens="original") if self.tokens == "masked" else self

    @property
    def full(self) -> bool:
        """Whether it has about as many tokens as the texts."""
        return not isinstance(self.tokens, Rewriting) or self.tokens.full


class ViewInput(NamedTuple):
    """The input of a view.

    Attributes:
        ids: Token ids (rows, tokens).
        text: Index of the text of each token, -1 at padding (rows, tokens).
        known: What a :class:`acclimate.parts.masking.Drawing` knows of each text, such as its label (texts, numbers).
        segments: 0 or 1 for each token (rows, tokens), for pairs of texts that the model distinguishes; else None.
    """

    ids: Tensor
    text: Tensor
    known: Tensor | None = None
    segments: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """The rows that one forward pass reads: a micro-batch.

    Attributes:
        original: Token ids (rows, tokens).
        masked: Token ids after masking (rows, tokens).
        labels: The token that the logits at a position should predict, or -100 (rows, tokens).
        text: Index of the text of each token, from 0; -1 at padding (rows, tokens).
        texts: Number of texts.
        rewritten: The texts rewritten in the other ways that views ask for.
        source: Index of the source of each text (texts,), if the texts are of several sources; else None.
        seeds: A random number of each text, int64 (texts,), for terms that draw; None for zeros. Like masks, they
            depend on the seed of the run and the number of the step alone.
    """

    original: Tensor
    masked: Tensor
    labels: Tensor
    text: Tensor
    texts: int
    rewritten: dict[Rewriting, ViewInput] = field(default_factory=dict)
    source: Tensor | None = None
    seeds: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """Return the batch on ``device``."""
        return self._map(lambda tensor: copy_to(tensor, device))

    def __getstate__(self) -> dict[str, Any]:
        """Return arrays, which another process receives in one message; each tensor would take a connection."""
        arrays = self._map(Tensor.numpy)  # type: ignore[arg-type]
        return {item.name: getattr(arrays, item.name) for item in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        tensors = self._map(torch.from_numpy)
        vars(self).update({item.name: getattr(tensors, item.name) for item in fields(self)})

    @property
    def host(self) -> Batch:
        """The same batch on the CPU.

        Value-dependent quantities, such as the number of labels, are read from it to avoid a device synchronization.
        """
        return self if self.text.device.type == "cpu" else self._host

    @cached_property
    def _host(self) -> Batch:
        return self._map(host_copy)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch of the results of a function of each tensor."""
        tensors: dict[str, Any] = {
            name: function(getattr(self, name)) for name in ("original", "masked", "labels", "text")
        }
        rewritten = {
            how: ViewInput(*(None if part is None else function(part) for part in found))  # type: ignore[arg-type]
            for how, found in self.rewritten.items()
        }
        each = {"source": self.source, "seeds": self.seeds}
        tensors |= {name: None if part is None else function(part) for name, part in each.items()}
        return replace(self, **tensors, rewritten=rewritten)

    def on_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor that was computed on the CPU on the device of the batch."""
        return copy_to(tensor, self.text.device)

    def view_input(self, tokens: Literal["masked", "original"] | Rewriting) -> ViewInput:
        """Return the input of a view with those ``tokens``.

        Raises:
            ValueError: If the collator has not made that rewriting.
        """
        if isinstance(tokens, Rewriting):
            if tokens not in self.rewritten:
                raise ValueError(f"the collator of this batch does not make {tokens}; give it Engine.rewritings")
            return self.rewritten[tokens]
        return ViewInput(self.masked if tokens == "masked" else self.original, self.text)

    @cached_property
    def chosen(self) -> Tensor:
        """Indices of labelled positions in the flattened rows, from :func:`chosen_positions`."""
        return self.on_device(chosen_positions(self.host.labels >= 0, self.text.device.type))

    @cached_property
    def labelled(self) -> int:
        """Number of labelled positions."""
        return int((self.host.labels >= 0).sum())

    @property
    def targets(self) -> Tensor:
        """The labels of labelled positions, in row order (positions,)."""
        return self.labels.flatten()[self.chosen[: self.labelled]]

    @cached_property
    def tokens(self) -> int:
        """Number of real tokens."""
        return int((self.host.text >= 0).sum())

    def positions(self, tokens: Literal["masked", "original"] | Rewriting = "original") -> Tensor:
        """Indices of the real tokens of a view's input in its flattened rows (real tokens,)."""
        return self.on_device((self.host.view_input(tokens).text.flatten() >= 0).nonzero()[:, 0])


def mean_pool(hidden: Tensor, text: Tensor, texts: int) -> Tensor:
    """Average the hidden states of each text over its real tokens (DGA, Eq. 12).

    Args:
        hidden: (rows, tokens, width).
        text: Index of the text of each token, -1 at padding (rows, tokens); on any device.
        texts: Number of texts.

    Returns:
        (texts, width) in float32.
    """
    flat = text.flatten()
    real = (flat >= 0).nonzero()[:, 0]
    index = flat[real]
    sizes = torch.bincount(index, minlength=texts).clamp(min=1)[:, None]
    real, index, sizes = (copy_to(part, hidden.device) for part in (real, index, sizes))
    total = hidden.new_zeros(texts, hidden.shape[-1], dtype=torch.float32)
    total = total.index_add(0, index, hidden.flatten(0, 1).index_select(0, real).float())
    return total / sizes


PoolingHead = Callable[[Tensor, Tensor], Tensor]
"""Function of the states of texts (texts, tokens, width) and of which tokens are real, boolean (texts, tokens), to
their vectors (texts, dimensions)."""


def split_texts(hidden: Tensor, text: Tensor, texts: int) -> tuple[Tensor, Tensor]:
    """Put every text into a row of its own.

    Args:
        hidden: (rows, tokens, width).
        text: Index of the text of each token, -1 at padding (rows, tokens); on the CPU. It increases in reading order.
        texts: Number of texts.

    Returns:
        The states (texts, longest text, width), undefined at padding, and which are real, boolean (texts, longest
        text); both on the device of ``hidden``.
    """
    places = (text.flatten() >= 0).nonzero()[:, 0]
    sizes = torch.bincount(text.flatten()[places], minlength=texts)
    number = torch.arange(int(sizes.max()))[None]
    real = number < sizes[:, None]
    index = places[torch.where(real, (sizes.cumsum(0) - sizes)[:, None] + number, 0)]
    states = hidden.flatten(0, 1).index_select(0, copy_to(index.flatten(), hidden.device))
    return states.view(*real.shape, -1), copy_to(real, hidden.device)


def mark_text_starts(text: Tensor) -> Tensor:
    """Return where texts begin (rows, tokens), from the index of the text of each token, -1 at padding."""
    first = torch.ones_like(text, dtype=torch.bool)
    first[:, 1:] = text[:, 1:] != text[:, :-1]
    return first & (text >= 0)


class Outputs:
    """Results of the forward pass for each view. Derived values are computed once and shared."""

    def __init__(
        self,
        hidden: dict[View, Tensor],
        batch: Batch,
        heads: dict[str, Callable[[Tensor], Tensor]],
        embedded: dict[View, Tensor] | None = None,
        chosen: dict[View, Tensor] | None = None,
        logit_rows: int | None = None,
    ) -> None:
        """Store the outputs.

        Args:
            hidden: Hidden states by view, (rows, tokens, width).
            batch: The batch.
            heads: The function from hidden states to logits of each reader.
            embedded: Input of the first layer by view, (rows, tokens, width).
            chosen: For views that are not in ``hidden``: the states at :attr:`Batch.chosen` only, (positions, width).
            logit_rows: Positions whose logits :meth:`map_logits` holds at a time; None for all.
        """
        self._hidden, self.batch, self._heads, self._embedded = hidden, batch, heads, embedded or {}
        self._chosen, self._logit_rows = chosen or {}, logit_rows
        # What a term computes without gradients, as a target, must not be read by others as their own.
        self._pooled: dict[tuple[View, PoolingHead | None, bool], Tensor] = {}
        self._logits: dict[tuple[View, bool], Tensor] = {}

    def hidden(self, view: View) -> Tensor:
        """Return the last hidden states (rows, tokens, width), undefined at padding.

        Raises:
            ValueError: If all terms that read the view are ``chosen_only``.
        """
        if view in self._chosen:
            raise ValueError("a term with chosen_only=True asks for all hidden states; set it to False")
        return self._hidden[view]

    def embedded(self, view: View) -> Tensor:
        """Return the input of the first layer (rows, tokens, width), for terms whose ``embeddings`` is true."""
        return self._embedded[view]

    def real(self, view: View) -> Tensor:
        """Return the hidden states of the real tokens, in row order: (real tokens, width)."""
        return self.hidden(view).flatten(0, 1).index_select(0, self.batch.positions(view.tokens))

    def pooled(self, view: View, head: PoolingHead | None = None) -> Tensor:
        """Return the vector of each text, float32: the mean over real tokens (texts, width), or a head's output."""
        key = view, head, torch.is_grad_enabled()
        if key not in self._pooled:
            text, states = self.batch.host.view_input(view.tokens).text, self._hidden[view]
            if head is None:
                found = mean_pool(states, text, self.batch.texts)
            else:
                found = head(*split_texts(states.float(), text, self.batch.texts)).float()
            self._pooled[key] = found
        return self._pooled[key]

    def masked_logits(self, view: View) -> Tensor:
        """Return vocabulary logits at the labelled positions only, in row order: (positions, vocabulary).

        With a causal model these are nearly all positions. :meth:`map_logits` needs memory for some of them only.
        """
        key = view, torch.is_grad_enabled()
        if key not in self._logits:
            self._logits[key] = self._head(view)(self.labelled_states(view))
        return self._logits[key][: self.batch.labelled]

    def map_logits(self, function: Callable[..., Tensor], views: Sequence[View], *values: Tensor) -> Tensor:
        """Apply a function of vocabulary logits at the labelled positions, some positions at a time.

        Args:
            function: See :func:`acclimate.parts.objectives.vocabulary.map_logits`.
            views: The views whose logits it gets; the reference's have no gradient.
            values: Further tensors with one row per labelled position, in row order.

        Returns:
            The results, in row order: (positions, ...).
        """
        labelled = self.batch.labelled
        if self._logit_rows is None or labelled <= self._logit_rows:
            return function(*(self.masked_logits(view).float() for view in views), *values)
        states = [self.labelled_states(view)[:labelled] for view in views]
        return map_logits(function, [self._head(view) for view in views], states, *values, rows=self._logit_rows)

    def map_states(self, function: Callable[..., Tensor], states: Tensor, *values: Tensor) -> Tensor:
        """Apply a function of the logits of the student at given states, some at a time; as :meth:`map_logits`.

        Args:
            function: As for :meth:`map_logits`.
            states: Hidden states (positions, width) that a term computed itself.
            values: As for :meth:`map_logits`.
        """
        return map_logits(function, [self._heads["student"]], [states], *values, rows=self._logit_rows)

    def map_beside(
        self,
        function: Callable[..., Tensor],
        view: View,
        places: Tensor,
        head: Callable[[Tensor], Tensor],
        states: Tensor,
    ) -> Tensor:
        """Apply a function of the logits of a view and of a frozen model, some at a time; as :meth:`map_logits`.

        Args:
            function: As for :meth:`map_logits`, with the logits of the view and of the frozen model.
            view: The view.
            places: Which of the labelled positions, in row order (positions,).
            head: The head of the frozen model.
            states: The states of the frozen model at these positions (positions, its width).
        """
        heads = [self._head(view), torch.no_grad()(head)]
        own = self.labelled_states(view).index_select(0, places)
        return map_logits(function, heads, [own, states], rows=self._logit_rows)

    def labelled_states(self, view: View) -> Tensor:
        """Return the states at :attr:`Batch.chosen`: (positions, width)."""
        return self._chosen[view] if view in self._chosen else self._hidden[view].flatten(0, 1)[self.batch.chosen]

    def _head(self, view: View) -> Callable[[Tensor], Tensor]:
        head = self._heads[view.reader]
        return head if view.reader == "student" else torch.no_grad()(head)


class LossTerm(ABC):
    """Interface of any loss term for the engine.

    Attributes:
        name: Name of the term in logs.
        weight: Factor of the term in the total loss.
        views: The views that the term reads.
        embeddings: Whether it needs the input of the first layer, :meth:`Outputs.embedded`.
        readings: How many times the term itself runs the student on the texts, besides its views.
        chosen_only: Whether it needs no more of its views than :meth:`Outputs.map_logits` or
            :meth:`Outputs.masked_logits`. Then a part of the last layer is skipped, unless another term needs it.
        progress: Share of the training that came before the step, from 0 to 1, and 1 where text is only measured, for
            terms with a schedule; the engine sets it.
        reads_views: Whether it reads its views in this step; a view that no term reads is not computed.
    """

    name: str
    weight: float
    views: tuple[View, ...]
    embeddings: bool = False
    readings: int = 0
    chosen_only: bool = False
    progress: float = 0.0

    @property
    def reads_views(self) -> bool:
        """See above; by default always."""
        return True

    def for_kind(self, kind: ModelKind) -> Self:
        """Return the term for a kind of language model; by default the same for all kinds."""
        return self


class Objective(LossTerm):
    """A loss term that is a mean over items (tokens, texts), so that micro-batches add up exactly."""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """Return the number of items in this micro-batch; may be 0."""

    @abstractmethod
    def total(self, outputs: Outputs) -> Tensor:
        """Return the sum over those items, a scalar; 0 with a graph if there are none."""

    def token_losses(self, outputs: Outputs) -> Tensor | None:
        """Return the loss of each predicted token, in row order, if the total is their sum; by default None."""
        return None

    def loss_places(self, batch: Batch) -> Tensor:
        """Return the indices in the flattened rows of :meth:`token_losses`; by default the labelled positions."""
        return batch.chosen[: batch.labelled]


class LanguageModelling(Objective):
    """Mean cross-entropy of the labels, in nats.

    The kind of the model decides the labels of a batch: the original tokens at masked positions (Devlin et al., 2019),
    or the next token at every position. The vocabulary projection runs at labelled positions only, which changes
    neither value nor gradient.
    """

    chosen_only = True

    def __init__(self, weight: float = 1.0, view: View | None = None) -> None:
        self.weight = weight
        self.view = view or View()
        self.views = (self.view,)

    def for_kind(self, kind: ModelKind) -> Self:
        """Return the loss with the name that it has for a kind of language model."""
        found = copy(self)
        found.name = kind.term
        return found

    def count(self, batch: Batch) -> int:
        """Return the number of labelled positions."""
        return batch.labelled

    def token_losses(self, outputs: Outputs) -> Tensor:
        """Return the cross-entropy at each labelled position (positions,)."""
        return outputs.map_logits(cross_entropy, (self.view,), outputs.batch.targets)

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed cross-entropy."""
        return self.token_losses(outputs).sum()


class BatchObjective(LossTerm):
    """A loss term that needs all texts of the effective batch at once, for example for their negatives.

    The engine collects the representations of all micro-batches, takes the gradient of the loss with respect to them,
    and propagates it through the graph of each micro-batch. If memory does not hold all graphs at once, the
    micro-batches that do not fit run without a graph first, and again, with the same dropout masks, when their
    gradients are computed. Values and gradients are the same as for one large batch.
    """

    @abstractmethod
    def represent(self, outputs: Outputs) -> Tensor:
        """Return what the loss needs of each text (or token) of a micro-batch, in order: (texts, ...).

        The engine concatenates the results of all micro-batches along the first dimension.
        """

    @abstractmethod
    def loss(self, representations: Tensor) -> Tensor:
        """Return the loss of the whole batch from (all texts, ...), a scalar mean with a graph."""
