"""Importance of units and weights to general knowledge or to a domain, and the error of a sampled importance.

Units, such as heads, are measured by dropout noise (DGA, Eq. 5 to 8 and 10) or by the loss of a domain (DAS), single
weights by the diagonal of the Fisher information. The standard error of an importance that was measured on a sample of
the text is a jackknife over groups of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.base.device import Precision, autocast
from acclimate.base.errors import UserError
from acclimate.models.batching import logit_rows
from acclimate.models.encoding import encode
from acclimate.models.families import language_head, step_context
from acclimate.models.gates import UnitGroup
from acclimate.parts.objectives import Batch, mean_pool
from acclimate.parts.objectives.vocabulary import cross_entropy, map_logits

Representation = Literal["hidden", "logits"]
Reads = Literal["hidden", "logits", "loss"]


def dropout_divergence(
    model: PreTrainedModel, batch: Batch, gates: Mapping[str, Tensor], representation: Representation = "hidden"
) -> Tensor:
    """Encode each text under two dropout masks and return the divergence of the two outputs (Eq. 8).

    Both copies of a text go through one forward pass and share its gates.

    Args:
        model: A model in training mode, with attached attention.
        batch: A batch with one text per row.
        gates: (layers, rows, units) of each part.
        representation: Distribution of each token that the Kullback-Leibler divergence compares: the softmax of the
            last hidden state over its features, or the language model's distribution over the vocabulary.

    Returns:
        KL(first || second) in nats, averaged over the real tokens of each text: (texts,).
    """
    ids, text = batch.original.repeat(2, 1), batch.text.repeat(2, 1)
    values = encode(model, ids, text, {part: values.repeat(1, 2, 1) for part, values in gates.items()})
    first, second = values.chunk(2)
    if representation == "logits":
        states, heads = [half.flatten(0, 1) for half in (first, second)], [language_head(model)] * 2
        token_kl = map_logits(_divergence, heads, states, rows=logit_rows(model)).view_as(batch.text)
    else:
        token_kl = _divergence(first, second)
    return mean_pool(token_kl[..., None], batch.host.text, batch.texts).squeeze(-1)


def _divergence(first: Tensor, second: Tensor) -> Tensor:
    """Return KL(first || second) of distributions that are given by their logits (..., entries): (...)."""
    first, second = (nn.functional.log_softmax(values.float(), dim=-1) for values in (first, second))
    return (first.exp() * (first - second)).sum(-1)


def text_losses(model: PreTrainedModel, batch: Batch, gates: Mapping[str, Tensor]) -> Tensor:
    """Return the language-model loss of each text, in nats per predicted token; 0 if none is predicted.

    The importance of units for a domain is that for this loss (DAS, Ke et al., ICLR 2023). The model reads the masked
    text; the released code gives it the original text with the labels of the masked one, which it can copy.

    Args:
        model: A model with attached attention.
        batch: A batch with one text per row.
        gates: (layers, rows, units) of each part.

    Returns:
        (texts,) in float32.
    """
    places = batch.chosen[: batch.labelled]
    states = encode(model, batch.masked, batch.text, gates).flatten(0, 1)[places]
    losses = map_logits(cross_entropy, [language_head(model)], [states], batch.targets, rows=logit_rows(model))
    text = batch.text.flatten()[places]
    sums = losses.new_zeros(batch.texts).index_add(0, text, losses)
    return sums / torch.zeros_like(sums).index_add(0, text, torch.ones_like(losses)).clamp(min=1)


def summed_importance(
    model: PreTrainedModel,
    units: Mapping[str, Sequence[UnitGroup]],
    batches: Iterable[Batch],
    *,
    representation: Reads = "hidden",
    precision: Precision = "fp32",
) -> tuple[int, dict[str, Tensor]]:
    """Sum the absolute gate gradients over a group of texts: the sum of Eq. 6.

    Every text has its own gates, so one backward pass gives the exact gradient of each text. The parameters are frozen
    during the measurement; the mode and the gates of the model are restored. A divergence is measured with dropout, a
    loss without.

    Args:
        model: A language model with attached attention.
        units: Layers of each measured part (see :func:`acclimate.models.gates.gate_units`).
        batches: Micro-batches with one text per row.
        representation: See :func:`dropout_divergence`. The paper says "the resulting representations". The hidden
            state is the default: it is the literal meaning and avoids a vocabulary projection at every token.
            ``"loss"`` measures importance for the loss of the texts instead of general knowledge:
            :func:`text_losses`.
        precision: Precision of the forward pass.

    Returns:
        The number of texts, and the sum over them for each part: (layers, units), float32.

    Raises:
        UserError: If ``representation`` is unknown, or the model has no dropout: the divergence would be zero and its
            gradient rounding noise.
    """
    if representation not in get_args(Reads):
        raise UserError(f"Importance is measured on 'hidden', 'logits' or 'loss', not on '{representation}'.")
    if precision == "fp16":  # gradients of gates are small, and nothing scales them
        precision = "fp32"
    device = next(model.parameters()).device
    shapes = {part: (len(layers), layers[0].units) for part, layers in units.items()}
    total = {part: torch.zeros(shape, device=device) for part, shape in shapes.items()}
    texts, largest = 0, torch.zeros((), device=device)
    with _without_gradients(model, training=representation != "loss"), step_context(model, precision)():
        for batch in batches:
            batch = batch.to(device)
            if batch.texts != len(batch.text):
                raise ValueError("per-text gradients need one text per row")
            gates = {
                part: torch.ones(layers, batch.texts, width, device=device, requires_grad=True)
                for part, (layers, width) in shapes.items()
            }
            with autocast(precision, device):
                if representation == "loss":
                    values = text_losses(model, batch, gates)
                else:
                    values = dropout_divergence(model, batch, gates, representation)
            largest = torch.maximum(largest, values.detach().max())
            gradients = torch.autograd.grad(values.sum(), list(gates.values()))
            for part, gradient in zip(gates, gradients, strict=True):
                total[part] += gradient.abs().sum(1)
            texts += batch.texts
    if (
        texts and representation != "loss" and bool(largest < 1e-9)
    ):  # of all texts, since dropout may change nothing in a text of two tokens
        raise UserError(
            "The dropout of this model is zero, so two forward passes over a text do not differ and the importance "
            "cannot be measured. Set a dropout rate: --dropout 0.1 (in Python dropout=0.1)."
        )
    return texts, total


def summed_fisher(
    model: PreTrainedModel, batches: Iterable[Batch], *, precision: Precision = "fp32"
) -> tuple[int, dict[str, Tensor]]:
    """Sum the diagonal of the Fisher information of a language model over the predicted tokens of some texts.

    F_i = sum_t E_y [(d log p(y | context of t) / d w_i)^2], where y is drawn from the model itself, not read from the
    text, which would give the empirical Fisher. The scores of the tokens are independent and have mean zero. So the
    square of the gradient of a whole micro-batch is an unbiased estimate of the sum of their squares, from one
    backward pass (Gauss-Newton-Bartlett estimator; Liu et al., "Sophia", ICLR 2024); its relative variance is about 2
    divided by the number of micro-batches. There is no dropout.

    Args:
        model: A language model with attached attention.
        batches: Micro-batches.
        precision: Precision of the forward pass.

    Returns:
        The number of predicted tokens, and the sum over them for each weight that trains, by name, in float32.

    Raises:
        UserError: If no token is predicted, or a gradient is not finite.
    """
    if precision == "fp16":  # nothing scales the loss
        precision = "fp32"
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    total = {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in weights.items()}
    head, rows, training = language_head(model), logit_rows(model), model.training
    in_step, tokens = step_context(model, precision), 0
    model.eval()
    try:
        for batch in batches:
            batch = batch.to(model.device)
            if not batch.labelled:
                continue
            model.zero_grad(set_to_none=True)
            with in_step(), autocast(precision, model.device):
                states = encode(model, batch.masked, batch.text).flatten(0, 1)[batch.chosen[: batch.labelled]]
                with torch.no_grad():
                    drawn = map_logits(_draw_labels, [head], [states], rows=rows)
                map_logits(cross_entropy, [head], [states], drawn, rows=rows).sum().backward()
            for name, weight in weights.items():
                if weight.grad is not None:
                    total[name].addcmul_(weight.grad.float(), weight.grad.float())
            tokens += batch.labelled
    finally:
        model.zero_grad(set_to_none=True)
        model.train(training)
    if not tokens:
        raise UserError("No token is predicted in the text to measure importance on; give more text.")
    if not all(bool(values.isfinite().all()) for values in total.values()):
        raise UserError("The measured importance is not finite; try --precision fp32.")
    return tokens, total


def _draw_labels(logits: Tensor) -> Tensor:
    """Sample tokens, one for each position, from the distribution of the model: (positions,)."""
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


def mean_importance(groups: Sequence[tuple[int, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Average importance over the texts of all groups (Eq. 6).

    Args:
        groups: Number of texts and sums of each group, as :func:`summed_importance` returns them.

    Returns:
        (layers, units) of each part, float32, not normalized.

    Raises:
        UserError: If there is no text, or a gradient is not finite.
    """
    texts = sum(number for number, _ in groups)
    if texts == 0:
        raise UserError("There is no text to measure importance on; give a corpus that is not empty.")
    means = {part: torch.stack([sums[part] for _, sums in groups]).sum(0) / texts for part in groups[0][1]}
    if not all(bool(values.isfinite().all()) for values in means.values()):
        raise UserError("The measured importance is not finite; try --precision fp32.")
    return means


@contextmanager
def _without_gradients(model: nn.Module, training: bool) -> Iterator[None]:
    """Put a model into training or evaluation mode with frozen parameters; restore both on exit."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    before = model.training
    model.train(training)
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        model.train(before)


def normalize_importance(importance: Tensor, protect: Literal["unusual", "important"] = "unusual") -> Tensor:
    """Normalize the importance of each layer's units to [0, 1] (Eq. 10).

    Args:
        importance: (layers, units) of one part.
        protect: ``"unusual"`` is the paper's |tanh(z)|, where z is the importance standardized over the units of a
            layer. It protects the least important units as strongly as the most important ones. ``"important"`` is
            max(0, tanh(z)). The paper's form is the default, since the paper's results use it.

    Returns:
        (layers, units). A layer whose units are all equally important (or that has only one) gets zeros.

    Raises:
        UserError: If ``protect`` has another value.
    """
    if protect not in ("unusual", "important"):
        raise UserError(f"protect must be 'unusual' or 'important', not '{protect}'.")
    score = standardize_importance(importance)
    return score.abs() if protect == "unusual" else score.clamp(min=0)


def standardize_importance(importance: Tensor) -> Tensor:
    """Return tanh(z), where z is the importance standardized over the units of a layer (Eq. 10).

    Args:
        importance: (layers, units) of one part.

    Returns:
        (layers, units), from -1 to 1; zeros in a layer whose units are all equally important.
    """
    centred = importance - importance.mean(1, keepdim=True)
    spread = importance.std(1, keepdim=True, correction=min(1, importance.shape[1] - 1))
    # The spread of equal values is rounding noise, which must not be amplified; so compare it with their size.
    flat = spread <= 1e-6 * importance.abs().amax(1, keepdim=True)
    return torch.tanh(torch.where(flat, 0.0, centred / spread.masked_fill(flat, 1.0)))


MIN_GROUPS = 4
"""Minimum number of groups for a standard error; with fewer, the estimate itself is too noisy."""


def estimate_sampling_error(groups: Sequence[tuple[int, Mapping[str, Tensor]]]) -> float | None:
    """Return the standard error of normalized importance due to the sampling of texts and dropout masks.

    The jackknife (Tukey, 1958): each of the g groups is left out once, and the variance of a value is (g - 1)/g times
    the sum of its squared deviations. It is computed for the signed tanh(z), before Eq. 10 of DGA takes the absolute
    value, so it applies to both settings of ``protect``.

    Args:
        groups: Number of texts and summed importance (layers, units) of random groups of texts, as
            :func:`acclimate.parts.updates.summed_importance` returns them.

    Returns:
        The root mean square of the standard errors over the units of a part, maximized over parts; in practice between
        0 and 1. None with fewer than :data:`MIN_GROUPS` groups.
    """
    count = len(groups)
    if count < MIN_GROUPS:
        return None
    texts = torch.tensor([float(number) for number, _ in groups], dtype=torch.float64)
    errors = []
    for part in groups[0][1]:
        sums = torch.stack([values[part].detach().cpu().double() for _, values in groups])
        without = (sums.sum(0) - sums) / (texts.sum() - texts)[:, None, None]
        scores = torch.stack([standardize_importance(values) for values in without])
        variance = (count - 1) / count * (scores - scores.mean(0)).square().sum(0)
        errors.append(float(variance.mean().sqrt()))
    return max(errors)
