"""DAS: adapting to one domain after the other without forgetting the earlier ones (Ke et al., ICLR 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor

from acclimate.api import (
    GATE_PARTS,
    AdaptContext,
    BatchObjective,
    GatePart,
    LanguageModelling,
    Objective,
    TextContrast,
    UserError,
    format_count,
    parse_parts,
    register_method,
    with_presets,
)
from acclimate.papers.dga.method import DGA

PREFIX = "das/"
"""Beginning of the names of the carried importance of each part."""


@register_method(
    "das",
    paper="Ke et al., ICLR 2023",
    summary="dga for one domain after the other: earlier domains are protected and contrasted like general knowledge",
)
@with_presets
@dataclass
class DAS(DGA):
    """L = L_LM + contrast_weight x L_contrast; units are updated in proportion to 1 - importance.

    The importance of a unit is the largest of its importance for general knowledge and for each earlier domain. That
    for general knowledge is measured before the first domain, by dropout as in ``dga``; that for a domain at the end
    of its adaptation, by the gradient of the language-model loss. Each is normalized before the maximum is taken. The
    maximum is stored next to the model, and the next adaptation of the model with ``das`` continues from it. The
    contrast is the same as in ``dga``, with all earlier knowledge instead of general knowledge. Importance limits the
    update alone; every unit computes. ``parts`` must be the same for all domains.

    The ablations of the paper are ``contrast_weight=0``, ``softmask=no``, ``general=no``, ``importance=random`` and
    ``knowledge=domain``.

    Attributes:
        softmask: Whether the update is limited. Without it, importance acts through the contrast alone.
        general: Whether importance for general knowledge is measured before the first domain. Without it, nothing is
            protected in the first domain, and its texts are contrasted with each other only.
    """

    preparation: ClassVar[str] = "importance of heads and units is measured, and once more after the last step"

    parts: Annotated[tuple[GatePart, ...], BeforeValidator(parse_parts)] = ("H", "I", "O")
    softmask: bool = True
    general: bool = True

    def __post_init__(self) -> None:
        """Validate the parameters and their combination."""
        super().__post_init__()
        self._past: list[dict[str, Any]] = []  # set by `prepare`
        if not self.softmask and not self.contrast_weight:
            raise UserError("softmask=no with contrast_weight=0 leaves plain language modelling; use the method lm.")

    @property
    def protects_by(self) -> Literal["update", "gradient"] | None:
        """What the soft mask scales from the first domain on."""
        return self.mask_on if self.softmask and self.general else None

    def check(self, run: AdaptContext) -> None:
        """Check that weights are whole, and the model."""
        if run.sharded:
            raise UserError("Method 'das' measures importance after the training, on whole weights; remove fsdp.")
        self._past = run.carried.record("das", list[dict[str, Any]], [])
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Read the importance for what was learned before, or measure that for general knowledge."""
        if carried := run.carried.select(PREFIX, negative=False):
            self._continue(run, carried)
        elif self.general:
            super().prepare(run)
        if not self.softmask:
            self._mask = None

    def _continue(self, run: AdaptContext, carried: dict[str, Tensor]) -> None:
        """Protect what earlier domains left.

        Raises:
            UserError: If other units were measured.
        """
        units = run.units(self.parts)
        sizes = {part: (len(layers), layers[0].units) for part, layers in units.items()}
        if (found := {part: tuple(values.shape) for part, values in carried.items()}) != sizes:
            raise UserError(
                f"The model carries the importance of {_describe(found)}, and this run protects {_describe(sizes)}; "
                f"use parts={','.join(found)}, and the adapters wider and deeper only before the first domain."
            )
        importance = {part: carried[part].to(run.device) for part in units}
        domains = len(self._past)
        run.say(f"Importance: carried from {format_count(domains, 'earlier domain')}.")
        self.protect_units(run, units, importance, importance, {"measured": "carried", "domains": domains})

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and, unless its weight is zero, the contrastive loss."""
        if self._importance is not None:
            return super().objectives()
        contrast = TextContrast(self.contrast_weight, self.temperature, self.contrast_tokens)
        return [LanguageModelling(), *([contrast] if self.contrast_weight else [])]

    def finish(self, run: AdaptContext) -> None:
        """Measure the importance for this domain, and store its maximum with that for what was learned before."""
        past = self._past
        raw, about = self.measure(run, run.units(self.parts), "loss", 1 + len(past))
        importance = self.normalize(raw)
        if self._importance is not None:
            importance = {part: torch.maximum(values, self._importance[part]) for part, values in importance.items()}
        run.carried.tensors |= {f"{PREFIX}{part}": values for part, values in importance.items()}
        means = {part: float(values.mean()) for part, values in importance.items()}
        run.carried.records["das"] = [*past, {**about, "mean_protection": means}]
        shown = ", ".join(f"{GATE_PARTS[part]} {means[part]:.2f}" for part in self.parts)
        run.say(f"Protected from the next domain on, of 1: {shown}.")


def _describe(sizes: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{part} ({layers} x {units})" for part, (layers, units) in sizes.items())
