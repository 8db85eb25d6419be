"""Documents that move what the model was trained on toward the task (GOT-D, Kang et al., ICLR 2024)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.special import logsumexp

from acclimate.api import (
    Budget,
    Documents,
    OperationContext,
    UserError,
    best_first,
    content_order,
    content_ranks,
    embed_chunks,
    load_embedding,
    register_selection,
    settle,
)

CHUNK = 1024
"""Documents whose potentials are computed at once."""
MAX_ITERATIONS, PRECISION = 2_000, 1e-6
"""Limits of the iterations with entropy: their number, and the deviation of the masses."""


def transport_costs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the squared Euclidean distances between vectors (n, dimensions) and (m, dimensions) of length one.

    They are settled (:func:`acclimate.base.ranking.settle`), since exact transport between equally distant points has
    several solutions.
    """
    return settle(np.maximum(2 - 2 * np.asarray(one, np.float64) @ np.asarray(other, np.float64).T, 0))


def solve_transport(costs: np.ndarray, regularization: float) -> tuple[np.ndarray, float]:
    """Solve optimal transport between two sets of points of equal masses.

    Args:
        costs: Cost of moving mass from each point of the first to each of the second (n, m).
        regularization: Strength of the entropy; 0 for exact transport.

    Returns:
        The dual potentials of the second points (m,), and the cost of the transport without the entropy.

    Raises:
        UserError: If ``POT`` is not installed, or the iterations do not converge.
    """
    try:
        import ot
    except ImportError as error:
        raise UserError("Selection 'transport' needs POT: pip install 'acclimate[transport]'.") from error
    masses = [np.full(size, 1 / size) for size in costs.shape]
    if not regularization:
        plan, log = ot.emd(*masses, costs, log=True, numItermax=10_000_000)
        return log["v"], float((plan * costs).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            plan, log = ot.sinkhorn(
                *masses, costs, regularization, "sinkhorn_log", MAX_ITERATIONS, stopThr=PRECISION, log=True
            )
        except UserWarning as error:
            raise UserError(
                f"Selection 'transport': a regularization of {regularization:g} does not converge; give a larger one, "
                "or 0 for exact transport."
            ) from error
    return regularization * log["log_v"], float((plan * costs).sum())


def extend_potential(costs: np.ndarray, potential: np.ndarray, regularization: float) -> np.ndarray:
    """Return the dual potentials of any points, from those of the points that mass moves to (the c-transform).

    Args:
        costs: Costs of moving mass from each point to the others (n, m).
        potential: Potentials of the others (m,), see :func:`solve_transport`.
        regularization: Strength of the entropy.

    Returns:
        ``min_y c(x, y) - g(y)``, or its smooth counterpart with the entropy, up to a constant (n,).
    """
    if not regularization:
        return (costs - potential).min(axis=1)
    return -regularization * logsumexp((potential - costs) / regularization, axis=1)


@register_selection(
    "transport",
    paper="GOT-D, Kang et al., ICLR 2024",
    summary="documents that move what the model was trained on toward the task",
)
@dataclass(frozen=True)
class Transport(Budget):
    """Keeps the documents whose mass most decreases the transport cost from the base distribution to the target.

    Light training turns the distribution of the training text from ``P`` into ``(1 - l) P + l D``. The change of its
    optimal-transport cost to the target is, to first order, the dual potential of the documents ``D``; those with the
    smallest are kept. Similarity instead also takes what the model already knows. The potentials are solved on
    samples, and extended to all documents.

    Attributes:
        base: What stands for the training text of the model: the ``pool`` itself, as in the paper, or the ``general``
            text.
        encoder: Model that embeds the texts, a folder or a name on the Hugging Face Hub; None for TF-IDF and SVD.
        regularization: Strength of the entropy, as in the paper; 0 for exact transport, which is faster for these
            samples.
        sample: Maximum number of documents of the base distribution, and of texts of the target.
    """

    models: ClassVar[tuple[str, ...]] = ("encoder",)
    base: Literal["pool", "general"] = "pool"
    encoder: str | None = None
    regularization: float = 0.0
    sample: int = 2_000

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range, or there is no budget.
        """
        super().__post_init__()
        if self.tokens is None and self.documents is None and self.share is None:
            raise UserError("Selection 'transport' ranks all documents: give tokens, documents or share.")
        if self.regularization < 0 or self.sample < 2:
            raise UserError("Selection 'transport': regularization is at least 0, and sample at least 2.")

    @property
    def reads(self) -> tuple[str, ...]:
        """The text of the task, and the general text if it is the base."""
        return ("target", "general") if self.base == "general" else ("target",)

    def apply(self, documents: Documents, context: OperationContext) -> Documents:
        """Solve the transport between samples, and rank all documents."""
        target = _sample(list(context.target or ()), self.sample)
        if self.base == "general":
            base = _sample(list(context.general or ()), self.sample)
        else:
            base = [documents[int(place)] for place in np.sort(content_order(documents, 0)[: self.sample])]
        embed = load_embedding(self.encoder, documents, [*target, *base], context)
        vectors = embed(target)
        costs = transport_costs(embed(base), vectors)
        potential, cost = solve_transport(costs, self.regularization)
        found = [
            extend_potential(transport_costs(chunk, vectors), potential, self.regularization)
            for chunk in embed_chunks(documents, embed, CHUNK, "Ranking documents", context.progress)
        ]
        gradients = calibrate(np.concatenate(found))
        kept = self.fill(best_first(-gradients, content_ranks(documents)), documents.tokens)
        chosen = embed(_sample([documents[int(place)] for place in kept[: self.sample]], self.sample))
        context.notes.update(
            base_documents=len(base),
            target_texts=len(target),
            cost_of_base=cost,
            cost_of_selection=solve_transport(transport_costs(chosen, vectors), self.regularization)[1],
            gradients={"kept": float(gradients[kept].mean()), "all": float(gradients.mean())},
        )
        return documents.take(np.sort(kept))


def calibrate(potential: np.ndarray) -> np.ndarray:
    """Return the gradients of the cost with respect to mass that moves to each point from all others (n,).

    ``f_i - sum_{j != i} f_j / (n - 1)``; they add up to zero.
    """
    if len(potential) < 2:
        return np.zeros(len(potential))
    return potential - (potential.sum() - potential) / (len(potential) - 1)


def _sample(texts: Sequence[str], count: int) -> list[str]:
    """Return at most ``count`` texts, spread evenly."""
    places: Any = np.unique(np.linspace(0, len(texts) - 1, min(count, len(texts))).astype(int))
    return [texts[place] for place in places]
