"""DGA: adapting a language model while preserving its general knowledge (Ke et al., EMNLP 2022)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    GatePart,
    GeneralKnowledgeContrast,
    HeadLayer,
    ImportanceReads,
    LanguageModelling,
    Method,
    Objective,
    Published,
    SoftMask,
    UnitGroup,
    UserError,
    check_dropout_masks,
    check_not_negative,
    check_positive,
    gate_units,
    measure_importance,
    normalize_importance,
    parse_parts,
    register_method,
    summarize_importance,
    with_presets,
)


@register_method(
    "dga",
    paper="Ke et al., EMNLP 2022",
    summary="language modelling that protects important heads, plus a contrast of general and full knowledge",
)
@with_presets
@dataclass
class DGA(Method):
    """L = L_LM + contrast_weight x L_contrast (Eq. 16); heads are updated in proportion to 1 - importance (Eq. 9).

    The ablations of the paper's Table 3 are ``contrast_weight=0``, ``importance="random"``, ``knowledge="domain"`` and
    other values of ``parts``.

    Attributes:
        preset: ``"paper"`` or ``"released-code"`` for their values of the parameters that are not given; both have the
            same. None for the defaults.
        contrast_weight: The paper's lambda. 0 omits the contrastive loss and two of the three forward passes.
        temperature: Temperature of the contrastive loss (Eq. 15).
        parts: Units that are measured, gated and protected, as letters separated by commas: H attention heads,
            I intermediate and O output units of the feed-forward block, E embedding features.
        importance: ``"dropout"`` measures importance (Eq. 5 to 8); ``"random"`` draws it uniformly before
            normalization.
        importance_tokens: Maximum tokens of domain text that importance is measured on (paper: 1.64 million).
        importance_error: Measuring stops once the standard error of the normalized importance is below this value; 0
            reads all of ``importance_tokens``. Importance ranges from 0 to 1.
        importance_reads: Outputs that the divergence of Eq. 8 compares: ``"hidden"`` states or vocabulary
            ``"logits"``.
        protect: ``"unusual"`` is Eq. 10, which protects the least important units of a layer as strongly as the most
            important ones; ``"important"`` protects only the most important ones.
        mask_on: ``"update"`` scales the optimizer's change of a weight, ``"gradient"`` scales the gradient (Eq. 9).
        contrast_tokens: ``"masked"`` contrasts representations of the masked text, one of which the LM loss needs
            anyway: three forward passes in total. ``"original"`` adds three passes over the original text.
        knowledge: Representations that are contrasted with general knowledge: ``"full"`` (no gates), or ``"domain"``
            (gates of 1 - importance).
    """

    purpose: ClassVar[str] = "Forget less"
    cost: ClassVar[float] = 2.7
    preparation: ClassVar[str] = "importance of heads is measured"
    paper_options: ClassVar[Mapping[str, Any]] = {
        "steps": 2500,
        "batch_size": 256,
        "max_length": 164,
        "learning_rate": 1e-4,
        "max_gradient_norm": 0,  # the released code does not clip, and the paper does not mention it
    }

    preset: Literal["paper", "released-code"] | None = None
    contrast_weight: float = 1.0
    temperature: float = 0.05
    parts: Annotated[tuple[GatePart, ...], BeforeValidator(parse_parts)] = ("H",)
    importance: Literal["dropout", "random"] = "dropout"
    importance_tokens: int = 1_640_000
    importance_error: Annotated[
        float,
        Published(
            {"paper": 0.0, "released-code": 0.0},
            "Reads a fifth to an eighth of the text, with an error that is small compared with the range of 0 to 1.",
        ),
    ] = 0.03
    importance_reads: Literal["hidden", "logits"] = "hidden"
    protect: Literal["unusual", "important"] = "unusual"
    mask_on: Annotated[
        Literal["update", "gradient"],
        Published(
            {"paper": "gradient", "released-code": "gradient"},
            "Adam divides by the size of the gradient, so scaling it changes almost nothing.",
        ),
    ] = "update"
    contrast_tokens: Annotated[
        Literal["masked", "original"],
        Published(
            {"paper": "original", "released-code": "original"},
            "Three forward passes per step instead of six. Which adapts better has not been measured.",
        ),
    ] = "masked"
    knowledge: Literal["full", "domain"] = "full"

    def __post_init__(self) -> None:
        """Validate the numbers and their combination."""
        check_positive(temperature=self.temperature, importance_tokens=self.importance_tokens)
        check_not_negative(contrast_weight=self.contrast_weight, importance_error=self.importance_error)
        if not self.parts:
            raise UserError("parts is empty; give one or more of H, I, O and E.")
        if not self.contrast_weight and self.knowledge == "domain":
            raise UserError("knowledge=domain has no effect with contrast_weight=0, which omits the contrastive loss.")
        self._mask: SoftMask | None = None  # this and the importance are set by `prepare`
        self._importance: dict[str, Tensor] | None = None

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that the parts of the model can be gated, and that it has dropout if texts are contrasted."""
        gate_units(model, layers, self.parts)
        if self.contrast_weight:
            check_dropout_masks(model)

    def prepare(self, run: AdaptContext) -> None:
        """Measure the importance of each unit on a sample of the domain text, or read it from the cache."""
        units = run.units(self.parts)
        raw, about = self.measure(run, units, self.importance_reads)
        self.protect_units(run, units, raw, self.normalize(raw), about)

    def measure(
        self, run: AdaptContext, units: Mapping[str, Sequence[UnitGroup]], reads: ImportanceReads, number: int = 0
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the importance (layers, units) of each part on the device of the run, and how it was measured.

        Args:
            run: The adaptation.
            units: The units.
            reads: As for :func:`acclimate.adaptation.importance_measures.measure_importance`.
            number: Which of several random draws of the same seed is returned, with ``importance="random"``.
        """
        about: dict[str, Any] = {"measured": "loss" if reads == "loss" else "dropout"}
        if self.importance == "random":
            about["measured"] = "random"
            generator = torch.Generator().manual_seed(run.seed + number)
            raw = {
                part: torch.rand(len(layers), layers[0].units, generator=generator) for part, layers in units.items()
            }
        else:
            measured = measure_importance(run, units, self.importance_tokens, reads, self.importance_error)
            raw = measured.raw
            about |= {"tokens": measured.read, "standard_error": measured.error}
        return {part: values.to(run.device) for part, values in raw.items()}, about

    def normalize(self, raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what importance protects, from 0 to 1 (Eq. 10)."""
        return {part: normalize_importance(values, self.protect) for part, values in raw.items()}

    def protect_units(
        self,
        run: AdaptContext,
        units: Mapping[str, Sequence[UnitGroup]],
        raw: Mapping[str, Tensor],
        importance: dict[str, Tensor],
        about: Mapping[str, Any],
    ) -> None:
        """Protect units by their importance, and record it next to the model.

        Args:
            run: The adaptation.
            units: The units.
            raw: Their importance as measured.
            importance: The same, from 0 to 1.
            about: How it was measured.
        """
        self._importance = importance
        run.preparation["importance.json"] = summarize_importance(raw, importance, **about)
        self._mask = SoftMask(units, importance, on=self.mask_on)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and, unless its weight is zero, the contrastive loss."""
        assert self._importance is not None, "prepare first"
        if not self.contrast_weight:
            return [LanguageModelling()]
        contrast = GeneralKnowledgeContrast(
            self._importance, self.temperature, self.contrast_weight, self.contrast_tokens, self.knowledge
        )
        return [LanguageModelling(), contrast]

    @property
    def protects_by(self) -> Literal["update", "gradient"] | None:
        """What the soft mask scales."""
        return self.mask_on

    def update_rule(self) -> SoftMask | None:
        """Return the soft mask."""
        return self._mask
