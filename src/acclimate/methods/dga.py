"""DGA: adapting a language model while preserving its general knowledge (Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, GeneralContrast, MaskedLM, Objective
from acclimate.training.run import Run
from acclimate.updates import SoftMask, dropout_importance, normalise


@register(
    "dga",
    paper="Ke et al., EMNLP 2022",
    summary="soft-masks attention heads by importance, and contrasts general with full knowledge",
)
@dataclass
class DGA(Method):
    """L = L_MLM + contrast_weight x L_contrast (Eq. 16), heads learning in proportion to 1 - importance (Eq. 9).

    Attributes:
        contrast_weight: The paper's lambda; 0 leaves the contrast out, and with it two of the three readings.
        temperature: Of the contrast (Eq. 15).
        importance_tokens: Tokens of domain text on which importance is measured (paper: 1.64 M).
        importance_reads: Whether the divergence of Eq. 8 is taken between hidden states or vocabulary distributions.
        protect: ``"unusual"`` is Eq. 10, which protects the least important heads of a layer as strongly as the most
            important; ``"important"`` keeps only the upper side.
        mask_on: ``"update"`` scales what the optimiser does; ``"gradient"`` is the letter of Eq. 9 and of the
            released code, and does almost nothing under Adam.
        contrast_tokens: ``"masked"`` contrasts readings of the corrupted text, one of which the MLM loss reads
            anyway: three readings. ``"original"`` (released code) reads the uncorrupted text three times more.
    """

    contrast_weight: float = 1.0
    temperature: float = 0.05
    importance_tokens: int = 1_640_000
    importance_reads: Literal["hidden", "logits"] = "hidden"
    protect: Literal["unusual", "important"] = "unusual"
    mask_on: Literal["update", "gradient"] = "update"
    contrast_tokens: Literal["masked", "original"] = "masked"

    def __post_init__(self) -> None:
        """Start without an importance: :meth:`prepare` measures it."""
        self._mask: SoftMask | None = None
        self._importance: Tensor | None = None

    def prepare(self, run: Run) -> None:
        """Measure the importance of the heads on a part of the domain text, or take it from the cache."""
        raw = run.cached(
            "importance",
            {"tokens": self.importance_tokens, "reads": self.importance_reads},
            lambda: dropout_importance(
                run.model,
                run.layers,
                run.sample(self.importance_tokens, readings=2),
                representation=self.importance_reads,
                precision=run.precision,
            ),
        )
        self._importance = normalise(raw, self.protect)
        self._mask = SoftMask(run.layers, self._importance, on=self.mask_on)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and, unless its weight is zero, the contrast."""
        assert self._importance is not None, "prepare first"
        if not self.contrast_weight:
            return [MaskedLM()]
        return [
            MaskedLM(),
            GeneralContrast(self._importance, self.temperature, self.contrast_weight, self.contrast_tokens),
        ]

    def update_rule(self) -> SoftMask | None:
        """Return the soft mask."""
        return self._mask
