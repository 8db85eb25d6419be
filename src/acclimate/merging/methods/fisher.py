"""Means of models, each parameter weighted by its Fisher information: how much predictions depend on it.

The expectation over labels is that of the model itself, so no labels are read. It is exact where a row has few answers
and classes, as in text classification; otherwise labels are drawn from the model, one per answer. Answers are
independent given the input, and the expectation of a score is zero, so the squared gradient of the sum of their scores
has the sum of their Fisher informations as its expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from acclimate.base.bounds import SeedNumber
from acclimate.base.device import in_full
from acclimate.base.errors import UserError, check_stop
from acclimate.base.progress import Progress
from acclimate.merging.base import Context, Measured, WeightedMerge, register
from acclimate.merging.rules import Rule, precise
from acclimate.models.families import step_context

MAX_EXACT = 64
"""Maximum answers x classes of a row for which the expectation is exact: each takes a backward pass."""
FISHER_FLOOR = 1e-6
"""Least Fisher information of a parameter, as a share of the root mean square over the model."""
Terms = list[tuple[float, Tensor]]
"""Weights and scalars with a graph: the Fisher information is the sum of weight * squared gradient of the scalar."""


@register("fisher", paper="Matena and Raffel, NeurIPS 2022", summary="mean of models, weighted by Fisher information")
@dataclass(frozen=True)
class FisherMerge(WeightedMerge):
    """Averages models, each parameter weighted by its Fisher information on a task or text without labels.

    Attributes:
        weights: Weight of each model (equal ones); they are divided by their sum.
        seed: Random seed of the labels that are drawn.
    """

    formula: ClassVar[str] = "mean of the models, each parameter weighted by its Fisher information"
    joins_tasks: ClassVar[bool] = True
    data: ClassVar[Literal["one", "each"] | None] = "each"
    usual: ClassVar[float | None] = None
    normalized: ClassVar[bool] = True
    seed: SeedNumber = 0

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Measure the models one after the other, and return the rule."""
        merger, reads = context.merger, []
        for number, model in enumerate(merger.models):
            data = context.data[context.models.index(model) if len(context.data) > 1 else 0]
            information = measure_fisher(data, model, self.seed, context.progress)
            file = context.work / f"{number}.safetensors"
            save_fisher(information, file)
            reads.append(read_fisher(file, merger.find_names(number, information)))
        return fisher_weighted(self.weights or (), reads), []


def expected_terms(answers: Tensor, several: bool = False) -> Terms:
    """Return the terms of the exact expectation over all labels.

    Args:
        answers: Logits (answers, classes); a single class is a number with a normal distribution of unit variance.
        several: Whether an answer may have several labels, each a Bernoulli variable.
    """
    if several:
        chance = answers.detach().sigmoid()
        return list(zip((chance * (1 - chance)).flatten().tolist(), answers.flatten(), strict=True))
    if answers.shape[-1] == 1:
        return [(1.0, value) for value in answers.flatten()]
    logs = answers.log_softmax(-1)
    return list(zip(logs.detach().exp().flatten().tolist(), logs.flatten(), strict=True))


def sampled_terms(answers: Tensor, generator: torch.Generator, several: bool = False) -> Terms:
    """Return the term of labels that are drawn from the model; see :func:`expected_terms`."""
    logits = answers.detach().cpu()
    if several:
        drawn = torch.bernoulli(logits.sigmoid(), generator=generator).to(answers)
        return [(1.0, -nn.functional.binary_cross_entropy_with_logits(answers, drawn, reduction="sum"))]
    if answers.shape[-1] == 1:
        noise = torch.randn(logits.shape, generator=generator).to(answers)
        return [(1.0, (answers * noise).sum())]
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).to(answers.device)
    return [(1.0, answers.log_softmax(-1).gather(1, labels).sum())]


def fisher_information(
    model: nn.Module,
    rows: Iterable[Callable[[], Terms]],
    bar: Progress | None = None,
    context: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, Tensor]:
    """Return the mean Fisher information over rows, by the name of the parameter, fp32 on the CPU.

    Args:
        model: The model, in evaluation mode.
        rows: For each row, a function that runs the model and returns its terms.
        bar: Progress bar to update.
        context: Returns a context at the end of which ``grad`` of the parameters is complete; see
            :func:`acclimate.models.families.step_context`.
    """
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    total = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in parameters.items()}
    count = 0
    for count, terms_of in enumerate(rows, 1):
        check_stop()
        terms = [(weight, scalar) for weight, scalar in terms_of() if weight]
        for place, (weight, scalar) in enumerate(terms, 1):
            with context():
                scalar.backward(retain_graph=place < len(terms))
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    total[name].addcmul_(parameter.grad, parameter.grad, value=weight)
                    parameter.grad = None
        if bar:
            bar.update(count)
    return {name: (value / max(1, count)).cpu() for name, value in total.items()}


def measure_fisher(data: Measured, model: str | Path, seed: int, progress: bool) -> dict[str, Tensor]:
    """Return the Fisher information of a model on text or on the train examples of a task.

    Raises:
        UserError: If the model cannot be measured on the data.
    """
    answering, generator = data.open(model), torch.Generator().manual_seed(seed)
    answering.model.eval()

    def terms(read: Callable[[], Tensor]) -> Terms:
        answers = read()
        if answers.numel() <= MAX_EXACT:
            return expected_terms(answers, answering.several)
        return sampled_terms(answers, generator, answering.several)

    rows = [partial(terms, read) for read in answering.rows]
    with Progress("Fisher information", len(rows), unit="rows", enabled=progress) as bar:
        return fisher_information(answering.model, rows, bar, step_context(answering.model, "fp32"))


def save_fisher(information: dict[str, Tensor], file: Path) -> None:
    """Write Fisher information to a file, relative to its root mean square over all parameters.

    Raises:
        UserError: If it is zero or not finite.
    """
    squares = sum(float(in_full(value).square().sum()) for value in information.values())
    scale = (squares / max(1, sum(value.numel() for value in information.values()))) ** 0.5
    if not 0 < scale < float("inf"):
        raise UserError("The Fisher information of a model is zero or not finite; check the model and its data.")
    save_file({name: (value / scale).contiguous() for name, value in information.items()}, file)


def read_fisher(file: Path, names: dict[str, str]) -> Callable[[str], Tensor | None]:
    """Return a function that reads one tensor of :func:`save_fisher` at a time.

    Args:
        file: The file.
        names: Name in the file for each name of a tensor of the merged model.
    """

    def find(name: str) -> Tensor | None:
        if name not in names:
            return None
        with safe_open(file, "pt") as tensors:
            return tensors.get_tensor(names[name])

    return find


def fisher_weighted(weights: Sequence[float], information: Sequence[Callable[[str], Tensor | None]]) -> Rule:
    """Return the rule sum of weight F model / sum of weight F (Matena and Raffel, NeurIPS 2022, Eq. 3).

    F is the diagonal of a Fisher information matrix, relative to its root mean square over the model. That is the norm
    by which the authors divide it, up to a factor that depends on the number of parameters: with their norm of one and
    their floor of 1e-6, nearly all parameters of a large model are below the floor and get the plain mean.

    Args:
        weights: Weight of each model.
        information: For each model, a function that returns F by name, relative to its root mean square; None for a
            tensor that was not measured, whose values are averaged.
    """

    def rule(name: str, reads: Sequence[Callable[[], Tensor]]) -> Tensor:
        total = norm = torch.zeros(())
        for weight, find, read in zip(weights, information, reads, strict=True):
            if not weight:
                continue
            value, found = precise(read()), find(name)
            found = torch.ones_like(value) if found is None else found.to(value).clamp_min(FISHER_FLOOR)
            share = found[: len(value)] if value.dim() else found  # rows of tokens that not all models have
            total, norm = total + weight * share * value, norm + weight * share
        return total / norm

    return rule
