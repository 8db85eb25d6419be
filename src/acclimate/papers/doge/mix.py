"""Weights from the alignment of the sources' gradients (DoGE, Fan et al., ICML 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from acclimate.api import (
    History,
    Measure,
    MultiplicativeMix,
    UserError,
    expected_steps,
    register_mix,
    unknown_name_error,
)


@register_mix(
    "doge",
    paper="Fan et al., ICML 2024 (DoGE)",
    summary="more of the sources whose gradients also lower the loss on the target sources",
)
@dataclass(frozen=True)
class DoGE(MultiplicativeMix):
    """Reads more of the sources whose gradient aligns with the gradients of the targets (Fan et al., ICML 2024).

    The score of a source is the inner product of its gradient with the sum of the gradients of the targets, and its
    weight is multiplied by ``exp(strength * share * score)``, where ``share`` is that of the training until the next
    proposal. The paper multiplies by ``exp(rate / mu * score)`` at each step, so its strength is the sum of the
    learning rates divided by ``mu``: about 60 for the 10,000 steps of the released settings. With that, a short
    training reads one source after a few proposals, hence the smaller default.

    The paper takes the mean of the weights over the training for a second one with fixed weights; the result of
    ``adapt`` records it.

    Attributes:
        target: Names of the sources whose loss counts, separated by commas; all by default.
        strength: Factor of the scores, summed over the training.
        own: The product of the gradient of a target with itself. ``halves`` takes the gradients of two halves of its
            sample. ``squared`` is the paper's formula, in which the sampling noise of a source counts in its favour.
            ``omitted`` leaves it out, as the released code does, so that a source that only teaches itself gets
            nothing, even if it is the target.
        clip: Norm to which larger gradients are scaled, as in the released code; 0 for none, as in the paper.
        normalize: Whether scores are divided by the mean norm of the gradients, as in the released code, so that they
            do not depend on the scale of the loss.
        lower: Scores below count as this. The released code has 0, which turns the noise of a useless source into a
            positive mean; negative scores cancel it.
        upper: Scores above count as this; 5 in the released code.
        texts: Texts of each source that a proposal reads, forward and backward.
    """

    strength: float = 10.0
    target: str = ""
    own: Literal["halves", "squared", "omitted"] = "halves"
    clip: float = 1.0
    normalize: bool = True
    lower: float = -5.0
    upper: float = 5.0
    texts: int = 32

    main: ClassVar[str] = "target"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range.
        """
        super().__post_init__()
        if self.strength <= 0 or self.clip < 0 or self.lower >= self.upper or self.texts < 2:
            raise UserError(
                "Mix 'doge': 'strength' must be positive, 'clip' at least 0, 'lower' less than 'upper' and 'texts' at "
                f"least 2, not {self.strength}, {self.clip}, {self.lower}, {self.upper} and {self.texts}."
            )

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the sources whose loss counts; empty for all."""
        return tuple(name.strip() for name in self.target.split(",") if name.strip())

    @property
    def reads(self) -> tuple[Measure, ...]:
        """The inner products of gradients."""
        return ("gradients",)

    def check(self, names: Sequence[str]) -> None:
        """Check that the targets are sources."""
        for name in self.targets:
            if name not in names:
                raise unknown_name_error("source that the mix 'doge' has as target", name, names)

    def exponents(self, history: History) -> np.ndarray:
        """Return the scores times the share of the strength until the next proposal."""
        now, targets = history.now, [history.index(name) for name in self.targets]
        assert now.gradients is not None and now.gradient_norms is not None
        scores = self.scores(now.gradients, now.gradient_norms, targets or range(len(history.names)))
        return self.strength * min(1.0, self.every / expected_steps(history)) * scores

    def scores(self, products: np.ndarray, norms: np.ndarray, targets: Sequence[int]) -> np.ndarray:
        """Return the score of each source (sources,).

        Args:
            products: Inner products of gradients (sources, sources), on the diagonal those of two halves of a sample.
            norms: Norms of the gradients (sources,).
            targets: Indices of the target sources.
        """
        factors = np.minimum(1.0, self.clip / np.maximum(norms, 1e-12)) if self.clip else np.ones(len(norms))
        products = products.copy()
        if self.own != "halves":
            np.fill_diagonal(products, norms**2 if self.own == "squared" else 0.0)
        aligned = (factors[:, None] * products * factors)[:, list(targets)].sum(axis=1)
        scale = (factors * norms).mean() if self.normalize else 1.0
        return np.clip(aligned / scale if scale > 0 else 0 * aligned, self.lower, self.upper)
