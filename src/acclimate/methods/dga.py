"""DGA: adapting a language model while preserving its general knowledge (Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor

from acclimate.errors import UserError, check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.models import Part
from acclimate.models.gates import parse_parts
from acclimate.objectives import BatchObjective, GeneralKnowledgeContrast, LanguageModelling, Objective
from acclimate.training.importance import measure_importance, summarise_importance
from acclimate.training.method import AdaptContext
from acclimate.updates import SoftMask, normalise_importance


@register(
    "dga",
    paper="Ke et al., EMNLP 2022",
    summary="soft-masks attention heads by importance, and contrasts general with full knowledge",
)
@dataclass
class DGA(Method):
    """L = L_MLM + contrast_weight x L_contrast (Eq. 16), heads learning in proportion to 1 - importance (Eq. 9).

    The ablations of the paper's Table 3 are ``contrast_weight=0``, ``importance="random"``, ``knowledge="domain"``
    and other ``parts``.

    Attributes:
        contrast_weight: The paper's lambda; 0 leaves the contrast out, and with it two of the three readings.
        temperature: Of the contrast (Eq. 15).
        parts: What is measured, gated and protected, as letters with commas: H attention heads, I intermediate and
            O output units of the feed-forward, E features of the embedding.
        importance: Measured by ``"dropout"`` (Eq. 5 to 8), or drawn at ``"random"`` before normalisation.
        importance_tokens: Tokens of domain text on which importance is measured, at most (paper: 1.64 M).
        importance_error: Measuring stops when the standard error of the normalised importances is this small; 0 reads
            all, as the paper does. The default is not the paper's: it reads a fifth to an eighth of the text, and the
            scores range from 0 to 1 (docs/analyses.md).
        importance_reads: Whether the divergence of Eq. 8 is taken between hidden states or vocabulary distributions.
        protect: ``"unusual"`` is Eq. 10, which protects the least important units of a layer as strongly as the most
            important; ``"important"`` keeps only the upper side.
        mask_on: ``"update"`` scales what the optimiser does; ``"gradient"`` is the letter of Eq. 9 and of the
            released code, and does almost nothing under Adam.
        contrast_tokens: ``"masked"`` contrasts readings of the corrupted text, one of which the MLM loss reads
            anyway: three readings. ``"original"`` (released code) reads the uncorrupted text three times more.
        knowledge: What general knowledge is contrasted with: ``"full"``, or ``"domain"`` (gates 1 - importance).
    """

    contrast_weight: float = 1.0
    temperature: float = 0.05
    parts: Annotated[tuple[Part, ...], BeforeValidator(parse_parts)] = ("H",)
    importance: Literal["dropout", "random"] = "dropout"
    importance_tokens: int = 1_640_000
    importance_error: float = 0.03
    importance_reads: Literal["hidden", "logits"] = "hidden"
    protect: Literal["unusual", "important"] = "unusual"
    mask_on: Literal["update", "gradient"] = "update"
    contrast_tokens: Literal["masked", "original"] = "masked"
    knowledge: Literal["full", "domain"] = "full"

    def __post_init__(self) -> None:
        """Check the numbers, and start without importances: :meth:`prepare` measures them."""
        check_positive(temperature=self.temperature, importance_tokens=self.importance_tokens)
        check_not_negative(contrast_weight=self.contrast_weight, importance_error=self.importance_error)
        if not self.parts:
            raise UserError("parts is empty, so there is nothing to protect; name some of H, I, O and E.")
        if not self.contrast_weight and self.knowledge == "domain":
            raise UserError("knowledge=domain is about the contrast, and contrast_weight=0 leaves that out.")
        self._mask: SoftMask | None = None
        self._importance: dict[str, Tensor] | None = None

    def prepare(self, run: AdaptContext) -> None:
        """Measure the importances on a part of the domain text, or take them from the cache."""
        units = run.units(self.parts)
        how: dict[str, Any] = {"measured": self.importance}
        if self.importance == "random":
            chance = torch.Generator().manual_seed(run.seed)
            raw = {part: torch.rand(len(of), of[0].units, generator=chance) for part, of in units.items()}
        else:
            limits = self.importance_tokens, self.importance_reads, self.importance_error
            found = measure_importance(run, units, *limits)
            raw = found.raw
            how |= {"tokens": found.read, "standard_error": found.error}
        self._importance = {
            part: normalise_importance(values.to(run.device), self.protect) for part, values in raw.items()
        }
        run.accounts["importance.json"] = summarise_importance(raw, self._importance, **how)
        self._mask = SoftMask(units, self._importance, on=self.mask_on)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and, unless its weight is zero, the contrast."""
        assert self._importance is not None, "prepare first"
        if not self.contrast_weight:
            return [LanguageModelling()]
        contrast = GeneralKnowledgeContrast(
            self._importance, self.temperature, self.contrast_weight, self.contrast_tokens, self.knowledge
        )
        return [LanguageModelling(), contrast]

    def update_rule(self) -> SoftMask | None:
        """Return the soft mask."""
        return self._mask
