"""Views -> one forward -> objectives -> backward, once for all methods."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.backbone import language_head
from acclimate.backbone.device import Precision, autocast
from acclimate.backbone.dropout import dropout_rates
from acclimate.backbone.encoding import encode, encode_with_embeddings
from acclimate.backbone.lowered import weights_for_a_step
from acclimate.backbone.memory import kept_graph_tokens
from acclimate.errors import UserError
from acclimate.masking import Rewriting
from acclimate.objectives import Batch, BatchObjective, Objective, Outputs, View
from acclimate.training.processes import Processes

Terms = dict[str, Tensor]


class Engine:
    """Runs the objectives of a method on the micro-batches of a step.

    Every mean goes over the whole step, however it is cut: token terms are summed and divided by the count of all
    micro-batches; terms that need all texts at once keep the graphs of all micro-batches, or take two passes where
    that would be too much memory (see :class:`BatchObjective`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        objectives: Sequence[Objective | BatchObjective],
        precision: Precision = "fp32",
        reference: PreTrainedModel | None = None,
        graph_tokens: int | None = None,
        group: Processes | None = None,
    ) -> None:
        """Collect the views that the objectives ask for.

        Args:
            model: The student, with attached attention.
            objectives: The loss terms.
            precision: Of the forward.
            reference: A frozen model in evaluation mode for views that ask for it.
            graph_tokens: Up to how many tokens, over all views, the graphs of several micro-batches are kept at once
                for terms that need all texts; beyond it they take two passes. By default what suits the device.
            group: The processes that read the step together, each its own micro-batches; by default this one alone.
        """
        self.group = group or Processes()
        device = next(model.parameters()).device
        self.graph_tokens = kept_graph_tokens(model) if graph_tokens is None else graph_tokens
        self.readers = {"student": model} if reference is None else {"student": model, "reference": reference}
        self.lowered = weights_for_a_step(model, precision, device)
        self.heads = {name: language_head(reader) for name, reader in self.readers.items()}
        self.plain = [term for term in objectives if isinstance(term, Objective)]
        self.whole = [term for term in objectives if isinstance(term, BatchObjective)]
        self.precision = precision
        self.views = tuple(dict.fromkeys(view for term in objectives for view in term.views))
        self.embeddings = any(term.embeddings for term in objectives)
        for view in self.views:
            if view.reader not in self.readers:
                raise ValueError(f"a view asks for the reader '{view.reader}', which this engine does not have")

    @property
    def student_views(self) -> int:
        """How many times the student reads each text; readings of a few tokens do not count."""
        return sum(view.reader == "student" and view.full for view in self.views)

    @property
    def rewritings(self) -> tuple[Rewriting, ...]:
        """The other ways to write the texts that the collator must make for the views."""
        return tuple(dict.fromkeys(view.tokens for view in self.views if isinstance(view.tokens, Rewriting)))

    def read(self, batch: Batch, views: Sequence[View]) -> Outputs:
        """Run one forward for each reader over the rows of all its views; rows of another width get one more."""
        hidden: dict[View, Tensor] = {}
        embedded: dict[View, Tensor] = {}
        groups: dict[tuple[str, torch.Size], list[View]] = {}
        for view in views:
            groups.setdefault((view.reader, batch.reading(view.tokens).ids.shape), []).append(view)
        for (name, (rows, _)), mine in groups.items():
            readings = [batch.reading(view.tokens) for view in mine]
            ids, text = torch.cat([part.ids for part in readings]), torch.cat([part.text for part in readings])
            with torch.no_grad() if name == "reference" else nullcontext():
                gates = _stack_gates(mine, rows)
                if self.embeddings:
                    states, first = encode_with_embeddings(self.readers[name], ids, text, gates)
                    embedded.update(zip(mine, first.chunk(len(mine)), strict=True))
                else:
                    states = encode(self.readers[name], ids, text, gates)
            hidden.update(zip(mine, states.chunk(len(mine)), strict=True))
        return Outputs(hidden, batch, self.heads, embedded)

    def step(self, batches: Sequence[Batch], *, backward: bool = True) -> Terms:
        """Compute all terms over the step and, unless told otherwise, add their gradients to the parameters.

        Args:
            batches: The micro-batches of the step that this process reads, on the device of the model.
            backward: Whether gradients are wanted. With several processes there must be none before.

        Returns:
            Each term by name (unweighted means, detached), and their weighted sum as ``"loss"``; over the whole step,
            so the same in all processes.
        """
        counts = self._counts(batches)
        terms: Terms = {}
        with self.lowered():
            self._run(batches, counts, terms, backward)
        if backward:
            self.group.add_gradients(self.readers["student"].parameters())
        plain = [term.name for term in self.plain]
        terms.update(zip(plain, self.group.add([terms[name] for name in plain]), strict=True))
        weights = self.weights
        terms["loss"] = torch.stack([weights[name] * value for name, value in terms.items()]).sum()
        return terms

    @property
    def weights(self) -> dict[str, float]:
        """What each term counts in the loss, by name."""
        return {term.name: term.weight for term in self.plain} | {term.name: term.weight for term in self.whole}

    def _run(self, batches: Sequence[Batch], counts: dict[str, int], terms: Terms, backward: bool) -> None:
        """Read the micro-batches, fill ``terms`` and, if told so, add gradients."""
        groups = [batches] if self.whole and self._fits(batches) else [[batch] for batch in batches]
        pending: dict[str, tuple[Tensor, ...]] = {}
        seeds: list[_RandomState] = []
        if self.whole and len(groups) > 1:
            pending, seeds = self._first_pass(batches, terms)
        for number, group in enumerate(groups):
            if seeds:
                seeds[number].restore()
            gradients = {name: parts[number] for name, parts in pending.items()}
            with torch.set_grad_enabled(backward):
                losses = self._losses(group, counts, gradients, terms)
            if backward:
                for loss in losses:  # each by itself: lowered weights would add up gradients of several in bf16
                    loss.backward()

    def _counts(self, batches: Sequence[Batch]) -> dict[str, int]:
        """Return over how many items of the step each plain term is a mean."""
        device = batches[0].masked.device
        mine = [torch.tensor(sum(term.count(batch) for batch in batches), device=device) for term in self.plain]
        every = self.group.add(mine)
        return {term.name: max(1, int(count)) for term, count in zip(self.plain, every, strict=True)}

    def _fits(self, batches: Sequence[Batch]) -> bool:
        """Say whether the graphs of all micro-batches can be kept, which saves the first pass."""
        read = sum(batch.text.numel() for batch in batches) * self.student_views
        return len(batches) == 1 or read <= self.graph_tokens

    def _losses(
        self, group: Sequence[Batch], counts: dict[str, int], gradients: dict[str, Tensor], terms: Terms
    ) -> list[Tensor]:
        """Return the part of the loss that each micro-batch of a group makes, and add its terms to ``terms``.

        Args:
            group: Micro-batches whose graphs are alive together.
            counts: Over how many items each plain term is a mean.
            gradients: Gradients of the whole-batch terms with respect to the representations of this group, where a
                first pass computed them; else the group is all that this process reads.
            terms: The terms so far.
        """
        parts: list[list[Tensor]] = [[] for _ in group]
        with autocast(self.precision, group[0].masked.device):
            outputs = [self.read(batch, self.views) for batch in group]
            for term in self.plain:
                for mine, output in zip(parts, outputs, strict=True):
                    value = term.total(output) / counts[term.name]
                    terms[term.name] = terms.get(term.name, 0) + value.detach()
                    mine.append(term.weight * value)
            for whole in self.whole:
                represented = [whole.represent(output) for output in outputs]
                if whole.name not in gradients:
                    terms[whole.name], gradients[whole.name] = self._whole(whole, torch.cat(represented))
                slopes = gradients[whole.name].split([len(one) for one in represented])
                # Their product is not the loss, but its gradient is: the chain rule through the representations.
                for mine, one, slope in zip(parts, represented, slopes, strict=True):
                    mine.append((one * slope).sum())
        return [torch.stack(mine).sum() for mine in parts]

    def _whole(self, term: BatchObjective, representations: Tensor) -> tuple[Tensor, Tensor]:
        """Return a term over the representations of all processes, and its gradient for those of this one."""
        everything, mine = self.group.gather(representations.detach())
        device = everything.device
        # Similarities divided by a small temperature want all their digits, so never in half precision.
        exact = torch.autocast(device.type, enabled=False)
        with torch.enable_grad(), exact, self.group.same_chance(device):
            value = term.loss(everything.requires_grad_())
            (gradient,) = torch.autograd.grad(term.weight * value, everything)
        return value.detach(), gradient[mine]

    def _first_pass(
        self, batches: Sequence[Batch], terms: Terms
    ) -> tuple[dict[str, tuple[Tensor, ...]], list[_RandomState]]:
        """Collect the representations of all texts; return their gradients, and the dropout draws to repeat.

        All views are read, not only those needed here: the draws must fall the same way in the second pass.
        """
        collected: dict[str, list[Tensor]] = {term.name: [] for term in self.whole}
        seeds: list[_RandomState] = []
        device = batches[0].masked.device
        with torch.no_grad(), autocast(self.precision, device):
            for batch in batches:
                seeds.append(_RandomState(device))
                outputs = self.read(batch, self.views)
                for term in self.whole:
                    collected[term.name].append(term.represent(outputs))
        pending = {}
        for term in self.whole:
            parts = collected[term.name]
            terms[term.name], gradient = self._whole(term, torch.cat(parts))
            pending[term.name] = gradient.split([len(part) for part in parts])
        return pending, seeds


def check_draws(objectives: Sequence[Objective | BatchObjective], model: PreTrainedModel) -> None:
    """Check that views that differ in their dropout draw only will differ.

    Raises:
        UserError: If the model has no dropout; a contrast of two readings would then learn nothing.
    """
    views = {view for term in objectives for view in term.views if view.reader == "student"}
    alike = {replace(view, draw=0) for view in views}
    if len(alike) < len(views) and not any(dropout_rates(model)):
        raise UserError(
            "This method reads each text under two draws of dropout, but the model has no dropout, so both readings "
            "would be the same. Give it some for the adaptation: --dropout 0.1 (in Python dropout=0.1)."
        )


def reference_for(objectives: Sequence[Objective | BatchObjective], model: PreTrainedModel) -> PreTrainedModel | None:
    """Return a frozen copy of ``model`` as it is now, without dropout, if a view of an objective asks for one."""
    if all(view.reader == "student" for term in objectives for view in term.views):
        return None
    reference = copy.deepcopy(model)
    reference.zero_grad(set_to_none=True)
    return reference.eval().requires_grad_(False)


def _stack_gates(views: Sequence[View], rows: int) -> dict[str, Tensor] | None:
    """Make gates (layers, views x rows, units) for stacked views, part by part; None if no view has any."""
    gated = [view.gates.values for view in views if view.gates is not None]
    if not gated:
        return None
    stacked = {}
    for part, like in {part: values for gates in gated for part, values in gates.items()}.items():
        ones = torch.ones_like(like)
        each = [ones if view.gates is None else view.gates.values.get(part, ones) for view in views]
        stacked[part] = torch.stack(each, dim=1).repeat_interleave(rows, dim=1)
    return stacked


class _RandomState:
    """The state of the generators that dropout draws from."""

    def __init__(self, device: torch.device) -> None:
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self.device = device

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)
