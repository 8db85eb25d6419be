"""Importance of heads and other units to general knowledge: how dropout disturbs them (DGA, Eq. 5 to 8 and 10).

How sure an importance is that was measured on a part of a text: the jackknife over groups of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.device import Precision, autocast
from acclimate.errors import UserError
from acclimate.models import UnitGroup, encode, kernels_of, language_head
from acclimate.objectives import Batch, mean_pool

Representation = Literal["hidden", "logits"]


def dropout_divergence(
    model: PreTrainedModel, batch: Batch, gates: Mapping[str, Tensor], representation: Representation = "hidden"
) -> Tensor:
    """Read each text under two dropout draws and return how far the two readings are apart (Eq. 8).

    Both readings go through one forward and share the gates of their text.

    Args:
        model: In training mode, with attached attention.
        batch: One text a row.
        gates: (layers, rows, units) for each part.
        representation: Over what the distributions of the Kullback-Leibler divergence range at each token: softmax of
            the last hidden state over its features, or the language model's distribution over the vocabulary.

    Returns:
        KL(first || second), averaged over the real tokens of each text: (texts,), nats.
    """
    ids, text = batch.original.repeat(2, 1), batch.text.repeat(2, 1)
    values = encode(model, ids, text, {part: values.repeat(1, 2, 1) for part, values in gates.items()})
    if representation == "logits":
        values = language_head(model)(values)
    first, second = nn.functional.log_softmax(values.float(), dim=-1).chunk(2)
    token_kl = (first.exp() * (first - second)).sum(-1, keepdim=True)
    return mean_pool(token_kl, batch.text, batch.texts).squeeze(-1)


def summed_importance(
    model: PreTrainedModel,
    units: Mapping[str, Sequence[UnitGroup]],
    batches: Iterable[Batch],
    *,
    representation: Representation = "hidden",
    precision: Precision = "fp32",
) -> tuple[int, dict[str, Tensor]]:
    """Add up the absolute gradients of gates over texts: the sum of Eq. 6, for one group of texts.

    The gates have a row for each text, so that one backward gives the exact gradient of every text by itself.
    The parameters are frozen meanwhile and keep no gradient; the mode and the gates of the model are restored.

    Args:
        model: A masked language model with attached attention.
        units: The layers of each part that is measured (see :func:`acclimate.models.gate_units`).
        batches: Micro-batches of one text a row.
        representation: See :func:`dropout_divergence`. The paper says "the resulting representations"; the hidden
            state is the default, since it is what those words name and needs no vocabulary projection at every token.
        precision: Of the forward.

    Returns:
        The number of texts, and for each part the sum over them: (layers, units), float32.

    Raises:
        UserError: If the model has no dropout: the divergence would be zero and its gradient rounding noise.
    """
    if representation not in ("hidden", "logits"):
        raise UserError(f"Importance reads 'hidden' or 'logits', not '{representation}'.")
    device = next(model.parameters()).device
    shapes = {part: (len(layers), layers[0].units) for part, layers in units.items()}
    total = {part: torch.zeros(shape, device=device) for part, shape in shapes.items()}
    texts = 0
    with _train_mode_without_gradients(model), kernels_of(model).step_context(model, precision)():
        for batch in batches:
            batch = batch.to(device)
            if batch.texts != len(batch.text):
                raise ValueError("per-text gradients need one text a row")
            gates = {
                part: torch.ones(layers, batch.texts, width, device=device, requires_grad=True)
                for part, (layers, width) in shapes.items()
            }
            with autocast(precision, device):
                divergence = dropout_divergence(model, batch, gates, representation)
            if texts == 0 and bool((divergence.detach() < 1e-9).all()):
                raise UserError(
                    "Two readings of the same text do not differ: the dropout of this model is zero, so head "
                    "importance cannot be measured. Give it some: --dropout 0.1 (in Python dropout=0.1)."
                )
            gradients = torch.autograd.grad(divergence.sum(), list(gates.values()))
            for part, gradient in zip(gates, gradients, strict=True):
                total[part] += gradient.abs().sum(1)
            texts += batch.texts
    return texts, total


def mean_importance(groups: Sequence[tuple[int, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Average importances over the texts of all groups (Eq. 6).

    Args:
        groups: Of each the number of texts and the sums, as :func:`summed_importance` returns them.

    Returns:
        (layers, units) for each part, float32, not normalised.

    Raises:
        UserError: If there is no text, or a gradient was not finite.
    """
    texts = sum(number for number, _ in groups)
    if texts == 0:
        raise UserError("There is no text to measure head importance on.")
    means = {part: torch.stack([sums[part] for _, sums in groups]).sum(0) / texts for part in groups[0][1]}
    if not all(bool(values.isfinite().all()) for values in means.values()):
        raise UserError("Head importance is not finite; try precision fp32.")
    return means


@contextmanager
def _train_mode_without_gradients(model: nn.Module) -> Iterator[None]:
    """Put a model into training mode and keep gradients from its parameters; both as before afterwards."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = model.training
    model.train()
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        model.train(training)


def normalise_importance(importance: Tensor, protect: Literal["unusual", "important"] = "unusual") -> Tensor:
    """Normalise importances layer by layer to [0, 1] (Eq. 10).

    Args:
        importance: (layers, units) of one part.
        protect: ``"unusual"`` is the paper's absolute value of tanh(z), z the score standardised over the units of
            its layer; note that it protects the least important ones as strongly as the most important ones.
            ``"important"`` keeps only the upper side, max(0, tanh(z)). The paper's form is the default, because its
            results are for it.

    Returns:
        (layers, units). A layer whose units are all equally important gets zeros, also if there is only one.
    """
    if protect not in ("unusual", "important"):
        raise UserError(f"Importances protect 'unusual' or 'important' heads, not '{protect}'.")
    score = standardise_importance(importance)
    return score.abs() if protect == "unusual" else score.clamp(min=0)


def standardise_importance(importance: Tensor) -> Tensor:
    """Return tanh of the standardised importances of a layer: where a unit stands among its own (Eq. 10).

    Args:
        importance: (layers, units) of one part.

    Returns:
        (layers, units), from -1 to 1, zeros in a layer whose units are all equally important.
    """
    centred = importance - importance.mean(1, keepdim=True)
    spread = importance.std(1, keepdim=True, correction=min(1, importance.shape[1] - 1))
    # Relative to the scores' size: the spread of equal scores is rounding noise, which must not be blown up.
    flat = spread <= 1e-6 * importance.abs().amax(1, keepdim=True)
    return torch.tanh(torch.where(flat, 0.0, centred / spread.masked_fill(flat, 1.0)))


MIN_GROUPS = 4
"""Groups from which on the error is told: with fewer it is itself too much by chance."""


def estimate_sampling_error(groups: Sequence[tuple[int, Mapping[str, Tensor]]]) -> float | None:
    """Return the standard error of normalised importances, as far as it comes from texts and dropout draws.

    The jackknife (Tukey, 1958): each of the g groups is left out once, and the variance of a value is (g - 1)/g times
    the sum of the squares of what this changes. It is taken of tanh(z) with its sign, before Eq. 10 of DGA makes it
    positive, so it holds for either way to protect.

    Args:
        groups: Random parts of the text: the number of texts, and the sum of their importances, (layers, units) for
            each part, as :func:`acclimate.updates.summed_importance` returns them.

    Returns:
        The root mean square over the units of a part, of the part where it is largest; between 0 and 1 in practice,
        as the importances are. None with fewer than :data:`MIN_GROUPS` groups.
    """
    count = len(groups)
    if count < MIN_GROUPS:
        return None
    texts = torch.tensor([float(number) for number, _ in groups], dtype=torch.float64)
    errors = []
    for part in groups[0][1]:
        sums = torch.stack([values[part].detach().cpu().double() for _, values in groups])
        without = (sums.sum(0) - sums) / (texts.sum() - texts)[:, None, None]
        scores = torch.stack([standardise_importance(values) for values in without])
        variance = (count - 1) / count * (scores - scores.mean(0)).square().sum(0)
        errors.append(float(variance.mean().sqrt()))
    return max(errors)
