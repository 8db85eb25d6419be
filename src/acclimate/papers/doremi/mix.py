"""Weights from the loss in excess of a reference model (DoReMi, Xie et al., NeurIPS 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from acclimate.api import History, Measure, MultiplicativeMix, UserError, hash_file, model_files, register_mix


@register_mix(
    "doremi",
    paper="Xie et al., NeurIPS 2023 (DoReMi)",
    summary="more of the sources on which a reference model is still better",
)
@dataclass(frozen=True)
class DoReMi(MultiplicativeMix):
    """Reads more of the sources whose loss exceeds the loss of a reference model (Xie et al., NeurIPS 2023).

    A weight is multiplied by ``exp(eta * excess)``. The reference is a model that was adapted to the same sources with
    fixed weights. The base model is none: training soon has a lower loss than it everywhere, and all weights stay.

    The paper takes the mean of the weights over the training for a second one with fixed weights; the result of
    ``adapt`` records it.

    Attributes:
        reference: Folder of the reference model, with the tokenizer of the base model.
        eta: Factor of the excess loss: 1 in the paper, with a proposal at each of 200,000 steps; 0.1 in the released
            code of DoGE.
        clip: Whether the excess of each ``token`` counts at least as 0, as in the paper, or that of the whole
            ``source``, as in the released code of DoGE. Single tokens differ by chance in both directions, so the
            former is positive even for a model that is as good as the reference.
        smoothing: Share of the weights that is always divided equally, ``c`` in the paper.
        texts: Texts of each source that a proposal reads, in both models and without gradients.
    """

    reference: str = ""
    eta: float = 1.0
    clip: Literal["token", "source"] = "token"
    smoothing: float = 1e-3
    texts: int = 64

    files: ClassVar[tuple[str, ...]] = ("reference",)
    main: ClassVar[str] = "reference"

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If there is no reference, or a parameter is out of range.
        """
        super().__post_init__()
        if not self.reference:
            raise UserError(
                "Mix 'doremi' needs a reference model; adapt one with the mix 'fixed', and give reference=FOLDER."
            )
        if self.eta <= 0 or self.texts < 2:
            raise UserError(
                f"Mix 'doremi': 'eta' must be positive and 'texts' at least 2, not {self.eta} and {self.texts}."
            )

    @property
    def reads(self) -> tuple[Measure, ...]:
        """The excess loss, per token or from the losses of both models."""
        return ("excess_loss",) if self.clip == "token" else ("heldout_loss", "reference_loss")

    def exponents(self, history: History) -> np.ndarray:
        """Return the excess loss times ``eta``."""
        now = history.now
        if self.clip == "token":
            assert now.excess_loss is not None
            return self.eta * now.excess_loss
        assert now.heldout_loss is not None and now.reference_loss is not None
        return self.eta * np.maximum(now.heldout_loss - now.reference_loss, 0.0)

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the mix; the reference by the content of its files."""
        folder = Path(self.reference)
        files = [file for file in model_files(folder) if file.is_file()] if folder.is_dir() else []
        return {**super().identity(), **({"reference": [hash_file(file) for file in files]} if files else {})}
