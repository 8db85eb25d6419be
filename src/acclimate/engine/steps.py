"""The engine of all methods, which reads views and computes gradients, and the engine of end tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.base.device import Precision, RandomState, autocast, concatenate, copy_to, host_copy
from acclimate.base.errors import UserError
from acclimate.engine.distributed import LastPass, ProcessGroup
from acclimate.engine.ledger import SourceLedger
from acclimate.engine.micro_batches import set_gradient_checkpointing
from acclimate.models.adapters import share_weights
from acclimate.models.batching import logit_rows, max_graph_tokens, padding_policy
from acclimate.models.encoding import encode, encode_positions, encode_with_embeddings
from acclimate.models.families import language_head, reads_positions, step_context
from acclimate.models.kinds import kind_of
from acclimate.models.loading import check_dropout_masks
from acclimate.parts.masking import Rewriting
from acclimate.parts.objectives import Batch, BatchObjective, Objective, Outputs, View

Terms = dict[str, Tensor]


class Engine:
    """Runs the objectives of a method on the micro-batches of a step.

    Every mean is taken over the whole step, however it is split: sums over tokens or texts are divided by their number
    in all micro-batches. For terms that need all texts at once, as many micro-batches as memory allows keep their
    graphs, and the others are read twice (see :class:`BatchObjective`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        objectives: Sequence[Objective | BatchObjective],
        precision: Precision = "fp32",
        reference: PreTrainedModel | None = None,
        readers: Mapping[str, PreTrainedModel] | None = None,
        graph_tokens: int | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """Collect the views of the objectives.

        Args:
            model: The student, with attached attention.
            objectives: The loss terms.
            precision: Precision of the forward pass.
            reference: A frozen model in evaluation mode, for views with this reader.
            readers: Other frozen models, by the name that views give to their reader.
            graph_tokens: Maximum tokens, over all views and with the cost of padding, whose graphs are kept at once
                for terms that need all texts; further micro-batches are read twice. By default chosen for the device.
            group: The processes that share each step; by default this process alone.

        Raises:
            ValueError: If a view needs a reader, and there is none of that name.
        """
        kind = kind_of(model)
        objectives = [term.for_kind(kind) for term in objectives]
        self.group = group or ProcessGroup()
        self.graph_tokens = max_graph_tokens(model) if graph_tokens is None else graph_tokens
        self.logit_rows = logit_rows(model)
        self.policy = padding_policy(model)
        self.readers = {"student": model, **({} if reference is None else {"reference": reference}), **(readers or {})}
        self.heads = {name: language_head(reader) for name, reader in self.readers.items()}
        self.additive = [term for term in objectives if isinstance(term, Objective)]
        self.over_batch = [term for term in objectives if isinstance(term, BatchObjective)]
        self.step_context = step_context(model, precision, reuse_grad_buffer=not self.over_batch)
        self.precision = precision
        self.loss_scale, self.progress, self.tokens, self.texts = 1.0, 0.0, 0, 0
        # Without masking, the masked tokens are the original ones, and both views are one; so are views of pairs.
        alone = kind.uses_masking and not kind.pairs
        views = {view: view if alone else view.unmasked for term in objectives for view in term.views}
        self.views = tuple(dict.fromkeys(views.values()))
        self.duplicates = {view: same for view, same in views.items() if view != same}
        self._terms_of = {
            view: [term for term in objectives if view in {views[own] for own in term.views}] for view in self.views
        }
        self.embeddings = any(term.embeddings for term in objectives)
        self.ledger: SourceLedger | None = None
        """Records the language-model loss of each source in steps with gradients; None if there is one source."""
        self._recorded: SourceLedger | None = None
        for view in self.views:
            if view.reader not in self.readers:
                raise ValueError(f"a view asks for the reader '{view.reader}', which was not given to this engine")
        all_tokens = {views[view] for term in objectives if not term.chosen_only for view in term.views}
        self.chosen_only = {
            view
            for view in self.views
            if view not in all_tokens and view.gates is None and reads_positions(self.readers[view.reader])
        }

    @property
    def model(self) -> PreTrainedModel:
        """The model in training."""
        return self.readers["student"]

    @property
    def student_views(self) -> int:
        """Number of times that the student reads each text, not counting views of a few tokens."""
        views = sum(view.reader == "student" and view.full for view in self.views)
        return views + sum(term.readings for term in (*self.additive, *self.over_batch))

    def set_gradient_checkpointing(self, wanted: bool | None, length: int, progress: bool = False) -> None:
        """Turn gradient checkpointing on or off; see the function of this name."""
        parts = {part for view in self.views if view.gates is not None for part in view.gates.values}
        # Gates on heads are arguments of the layers, others are set for the forward pass only.
        obstacle = "the method gates parts of layers other than attention heads" if parts - {"H"} else None
        views = self.student_views
        if set_gradient_checkpointing(
            self.model, self.precision, wanted, length, progress, views=views, obstacle=obstacle
        ):
            self.chosen_only = set()  # a recomputed last layer would run at all positions

    @property
    def rewritings(self) -> tuple[Rewriting, ...]:
        """The ways of rewriting texts that the collator must apply for the views."""
        return tuple(dict.fromkeys(view.tokens for view in self.views if isinstance(view.tokens, Rewriting)))

    def read(self, batch: Batch, views: Sequence[View], all_tokens: bool = False) -> Outputs:
        """Run one forward pass per reader, over the rows of all its views; views of another shape need their own pass.

        Args:
            batch: The micro-batch.
            views: The views to compute.
            all_tokens: Whether to compute also the hidden states that no term reads.
        """
        hidden: dict[View, Tensor] = {}
        embedded: dict[View, Tensor] = {}
        chosen: dict[View, Tensor] = {}
        groups: dict[tuple[str, bool, torch.Size], list[View]] = {}
        for view in views:  # shortened texts by themselves, so that the number of passes does not depend on the texts
            groups.setdefault((view.reader, view.full, batch.view_input(view.tokens).ids.shape), []).append(view)
        for (name, _, (rows, _)), mine in groups.items():
            inputs = [batch.view_input(view.tokens) for view in mine]
            ids, text, _, segments = inputs[0]
            if len(inputs) > 1:
                ids, text = torch.cat([part.ids for part in inputs]), concatenate([part.text for part in inputs])
                kinds = [part.segments for part in inputs]
                if any(kind is not None for kind in kinds):
                    filled = zip(inputs, kinds, strict=True)
                    segments = torch.cat([torch.zeros_like(one.ids) if kind is None else kind for one, kind in filled])
            with nullcontext() if name == "student" else torch.no_grad():
                if len(mine) == 1 and mine[0] in self.chosen_only and not all_tokens:
                    chosen[mine[0]] = encode_positions(self.readers[name], ids, text, batch.chosen)
                    continue
                gates = _stack_gates(mine, rows)
                if self.embeddings:
                    states, first = encode_with_embeddings(self.readers[name], ids, text, gates, segments)
                    embedded.update(zip(mine, first.chunk(len(mine)), strict=True))
                else:
                    states = encode(self.readers[name], ids, text, gates, segments)
            hidden.update(zip(mine, states.chunk(len(mine)), strict=True))
        for found in (hidden, embedded, chosen):
            found.update({view: found[same] for view, same in self.duplicates.items() if same in found})
        return Outputs(hidden, batch, self.heads, embedded, chosen, self.logit_rows)

    def step(self, batches: Sequence[Batch], *, backward: bool = True) -> Terms:
        """Compute all terms over the step and add their gradients to the parameters.

        Args:
            batches: The micro-batches of the step that this process reads, on the device of the model.
            backward: Whether to compute gradients. With several processes, no parameter may have a gradient before.

        Returns:
            Each term by name (unweighted means over the whole step, detached), and their weighted sum as ``"loss"``;
            the same in all processes.
        """
        for term in (*self.additive, *self.over_batch):
            term.progress = self.progress if backward else 1.0
        counts = self._counts(batches)
        terms: Terms = {}
        self._recorded = ledger = self.ledger if backward else None
        if ledger:
            ledger.open_step(batches[0].masked.device)
        with self.group.sum_gradients(self.model.parameters() if backward else ()) as last_pass, self.step_context():
            self._run(batches, counts, terms, backward, last_pass)
        names = [term.name for term in self.additive]
        sums = self.group.add([terms[name] for name in names] + ([ledger.step] if ledger else []))
        if ledger:
            ledger.close_step(sums.pop())
        summed = dict(zip(names, sums, strict=True))
        terms = summed | {term.name: terms[term.name] for term in self.over_batch}
        weights = self.weights
        terms["loss"] = torch.stack([weights[name] * value for name, value in terms.items()]).sum()
        return terms

    @torch.no_grad()
    def is_finite(self, batches: Sequence[Batch]) -> bool:
        """Return whether hidden states and additive terms of these micro-batches are finite, read without dropout."""
        training, device = self.model.training, self.model.device
        self.model.eval()
        try:
            for batch in (batch.to(device) for batch in batches):
                with self.step_context(), autocast(self.precision, device):
                    outputs = self.read(batch, self.views, all_tokens=True)
                    values = [outputs.hidden(view)[batch.view_input(view.tokens).text >= 0] for view in self.views]
                    values += [term.total(outputs) for term in self.additive]
                if not all(bool(value.isfinite().all()) for value in values):
                    return False
            return True
        finally:
            self.model.train(training)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each term in the loss, by name."""
        return {term.name: term.weight for term in (*self.additive, *self.over_batch)}

    def _run(
        self, batches: Sequence[Batch], counts: dict[str, int], terms: Terms, backward: bool, last_pass: LastPass
    ) -> None:
        """Read the micro-batches, fill ``terms`` and, with ``backward``, add gradients."""
        device, own = batches[0].masked.device, len(batches)
        batches = self.group.align(batches)
        with autocast(self.precision, device):  # one context for all, so that their graphs share the cast weights
            kept = [self._read(batch, backward) for batch in batches[: self._kept(batches, backward)]]
        represented = [mine for _, mine in kept]
        seeds: list[RandomState] = []
        for batch in batches[len(kept) :] if self.over_batch else []:
            seeds.append(RandomState(device))
            represented.append(self._read(batch, grad=False)[1])
        gradients = self._batch_term_gradients(represented[:own], terms)
        after = RandomState(device) if seeds else None
        del represented  # frees its graphs
        for number, batch in enumerate(batches):
            if not kept and seeds:
                seeds.pop(0).restore()
            read = kept.pop(0) if kept else self._read(batch, backward)
            self.group.before_loss()
            with torch.set_grad_enabled(backward), autocast(self.precision, device):
                mine = {name: parts[number] for name, parts in gradients.items()} if number < own else {}
                loss = self._loss(read, counts, mine, terms) if number < own else self._no_loss(read)
            del read  # frees what the graph does not need, above all the logits
            if backward:  # per micro-batch: bf16 weights would accumulate gradients in bf16
                with last_pass() if number == len(batches) - 1 else nullcontext():
                    (loss if self.loss_scale == 1 else loss * self.loss_scale).backward()
        if after:
            after.restore()  # otherwise the next step would repeat the random numbers of the terms over all texts

    def _counts(self, batches: Sequence[Batch]) -> dict[str, int]:
        """Return the number of items in the step over which each additive term is a mean; store what it reads."""
        mine = [sum(term.count(batch) for batch in batches) for term in self.additive]
        read = [sum(batch.tokens for batch in batches), sum(batch.texts for batch in batches)]
        self.tokens, self.texts, *every = self.group.add_numbers([*read, *mine])
        return {term.name: max(1, count) for term, count in zip(self.additive, every, strict=True)}

    def _kept(self, batches: Sequence[Batch], backward: bool) -> int:
        """Return how many micro-batches keep their graphs while the terms over all texts are computed."""
        if not self.over_batch:
            return 0
        if not backward or len(batches) == 1:
            return len(batches)
        read = accumulate(self.policy.batch_cost(batch.host.text) * self.student_views for batch in batches)
        return self.group.least(sum(tokens <= self.graph_tokens for tokens in read))

    def _read(self, batch: Batch, grad: bool) -> tuple[Outputs, dict[str, Tensor]]:
        """Read the views of a micro-batch; also return what the terms over all texts need of it, by name.

        All views of the step are read, not only theirs, so that a second pass draws the same dropout masks.
        """
        with torch.set_grad_enabled(grad), autocast(self.precision, batch.masked.device):
            views = [view for view, terms in self._terms_of.items() if any(term.reads_views for term in terms)]
            outputs = self.read(batch, views)
            return outputs, {term.name: term.represent(outputs) for term in self.over_batch}

    def _batch_term_gradients(
        self, represented: Sequence[dict[str, Tensor]], terms: Terms
    ) -> dict[str, tuple[Tensor, ...]]:
        """Add the terms over all texts to ``terms``; return their gradients for each micro-batch."""
        gradients = {}
        for term in self.over_batch:
            parts = [mine[term.name] for mine in represented]
            terms[term.name], gradient = self._over_batch(term, torch.cat(parts))
            gradients[term.name] = gradient.split([len(part) for part in parts])
        return gradients

    def _loss(
        self,
        read: tuple[Outputs, dict[str, Tensor]],
        counts: dict[str, int],
        gradients: dict[str, Tensor],
        terms: Terms,
    ) -> Tensor:
        """Return the part of the loss that a micro-batch contributes, and add its additive terms to ``terms``."""
        outputs, represented = read
        parts, ledger = [], self._recorded
        for term in self.additive:
            losses = term.token_losses(outputs) if ledger else None
            if ledger and losses is not None:
                ledger.add(outputs.batch, losses, term.loss_places(outputs.batch))
                ledger = None  # a second language-model loss belongs to another view
            value = (term.total(outputs) if losses is None else losses.sum()) / counts[term.name]
            terms[term.name] = terms.get(term.name, 0) + value.detach()
            # A term of weight 0 is reported only. It still has a graph, since later terms share what it computed.
            if term.weight:
                parts.append(term.weight * value)
        # By the chain rule this product has the gradient of the loss, though not its value.
        parts += [(represented[name] * gradient).sum() for name, gradient in gradients.items()]
        return torch.stack(parts).sum()

    def _no_loss(self, read: tuple[Outputs, dict[str, Tensor]]) -> Tensor:
        """Return zero, computed from all that a micro-batch gives to the loss."""
        outputs, represented = read
        parts = [*(term.total(outputs) for term in self.additive), *map(torch.sum, represented.values())]
        return 0 * torch.stack(parts).sum()

    def _over_batch(self, term: BatchObjective, representations: Tensor) -> tuple[Tensor, Tensor]:
        """Return a term over the representations of all processes, and its gradient for this process's part."""
        everything, mine = self.group.gather(representations.detach())
        device = everything.device
        # Similarities divided by a small temperature need full precision.
        exact = torch.autocast(device.type, enabled=False)
        with torch.enable_grad(), exact, self.group.shared_random_state():
            value = term.loss(everything.requires_grad_())
            (gradient,) = torch.autograd.grad(term.weight * value, everything)
        return value.detach(), gradient[mine]


TaskLoss = Callable[[PreTrainedModel, dict[str, Tensor], int], Tensor]
"""Mean loss over the items of a batch, such as its rows.

It is computed from the model, the inputs of the batch (which it may change) and the steps taken before."""


@dataclass(frozen=True)
class TaskBatch:
    """Some rows of an end task, padded.

    Attributes:
        inputs: Arguments of the model's forward pass, ``input_ids`` (rows, tokens) among them.
        step: Number of optimizer steps taken before.
        items: Number of items over which its loss is a mean, such as rows; above 0.
    """

    inputs: dict[str, Tensor]
    step: int
    items: float

    def to(self, device: torch.device) -> TaskBatch:
        """Return the batch on ``device``."""
        return replace(self, inputs={name: copy_to(value, device) for name, value in self.inputs.items()})

    @property
    def texts(self) -> int:
        """Number of rows."""
        return len(self.inputs["input_ids"])

    @property
    def tokens(self) -> int:
        """Number of real tokens."""
        return int(host_copy(self.inputs["attention_mask"]).sum())


class TaskEngine:
    """Computes the loss of an end task, a mean over the items of a step, with the model's own forward pass."""

    def __init__(
        self, model: PreTrainedModel, loss: TaskLoss, precision: Precision, group: ProcessGroup | None = None
    ) -> None:
        """Set up the engine.

        Args:
            model: A model with the head of the task.
            loss: The loss of a batch.
            precision: Precision of the forward pass.
            group: The processes that share each step.
        """
        self.model, self.loss, self.precision, self.group = model, loss, precision, group or ProcessGroup()
        self.loss_scale, self.progress, self.tokens, self.texts = 1.0, 0.0, 0, 0
        self.step_context = step_context(model, precision)

    def step(self, batches: Sequence[TaskBatch]) -> Terms:
        """Add the gradients of a step; return its loss in nats, as the term ``"task"`` and as the sum ``"loss"``."""
        device = self.model.device
        mine = [sum(batch.tokens for batch in batches), sum(batch.texts for batch in batches)]
        tokens, texts, items = self.group.add_numbers([*mine, float(sum(batch.items for batch in batches))])
        self.tokens, self.texts = int(tokens), int(texts)
        loss = torch.zeros((), device=device)
        with self.group.sum_gradients(self.model.parameters()) as last_pass, self.step_context():
            for number, batch in enumerate(batches):
                with autocast(self.precision, device):
                    value = self.loss(self.model, dict(batch.inputs), batch.step)
                part = value if batch.items == items else value * (batch.items / items)
                with last_pass() if number == len(batches) - 1 else nullcontext():
                    (part if self.loss_scale == 1 else part * self.loss_scale).backward()
                loss = loss + part.detach()
        (loss,) = self.group.add([loss])
        return {"task": loss, "loss": loss}

    def _losses(self, batches: Sequence[TaskBatch]) -> Iterator[Tensor]:
        return (self.loss(self.model, dict(batch.inputs), batch.step) for batch in batches)

    @torch.no_grad()
    def is_finite(self, batches: Sequence[TaskBatch]) -> bool:
        """Return whether the loss of each batch is finite, read without dropout."""
        training, device = self.model.training, self.model.device
        self.model.eval()
        try:
            with self.step_context(), autocast(self.precision, device):
                return all(bool(loss.isfinite()) for loss in self._losses([batch.to(device) for batch in batches]))
        finally:
            self.model.train(training)


def check_objectives(objectives: Sequence[Objective | BatchObjective], model: PreTrainedModel) -> None:
    """Check that something is learned, and that the model has dropout if some views differ only in their dropout mask.

    Raises:
        UserError: If all weights are 0, or it has none.
    """
    if not any(term.weight for term in objectives):
        raise UserError("All weights of the objectives are 0, so nothing would be learned; set one.")
    views = {view for term in objectives for view in term.views if view.reader == "student"}
    if len({replace(view, draw=0) for view in views}) < len(views):
        check_dropout_masks(model)


def make_reference(
    objectives: Sequence[Objective | BatchObjective], model: PreTrainedModel, shared: bool = False
) -> PreTrainedModel | None:
    """Return a frozen copy of ``model`` without dropout if a view of an objective reads it, else None.

    Args:
        objectives: The loss terms.
        model: The student, before its training.
        shared: Whether the copy shares the weights of the student, because an adapter trains and they never change.
    """
    if all(view.reader != "reference" for term in objectives for view in term.views):
        return None
    reference = share_weights(model) if shared else copy.deepcopy(model)
    reference.zero_grad(set_to_none=True)
    return reference.eval().requires_grad_(False)


def _stack_gates(views: Sequence[View], rows: int) -> dict[str, Tensor] | None:
    """Return gates (layers, views x rows, units) for stacked views, by part; None if no view has gates."""
    gated = [view.gates.values for view in views if view.gates is not None]
    if not gated:
        return None
    stacked = {}
    for part, like in {part: values for gates in gated for part, values in gates.items()}.items():
        ones = torch.ones_like(like)
        each = [ones if view.gates is None else view.gates.values.get(part, ones) for view in views]
        stacked[part] = torch.stack(each, dim=1).repeat_interleave(rows, dim=1)
    return stacked
