"""The language-model loss of each source of a mixture, as a training reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.base.device import in_full
from acclimate.parts.objectives import Batch


class SourceLedger:
    """Sums of the losses of the predicted tokens of each source, and their number.

    Sums stay on the device until they are read, so that the host does not wait for it in every step.

    Attributes:
        step: Sums and numbers of the step that is being read, in this process: (2, sources).
        known: Mean loss of each source between the last two lines of the log, or where it was read last (sources,);
            NaN before.
    """

    def __init__(self, sources: int) -> None:
        self.sources = sources
        self.step = torch.zeros(2, sources)
        self._total: Tensor | None = None
        self.known = np.full(sources, np.nan)
        self._earlier = np.zeros((2, sources))  # of the run before its interruption
        self._marks: dict[str, np.ndarray] = {}

    def open_step(self, device: torch.device) -> None:
        """Begin a step."""
        self.step = torch.zeros(2, self.sources, device=device)

    def add(self, batch: Batch, losses: Tensor, places: Tensor) -> None:
        """Add the losses at some positions of the flattened rows of a micro-batch, both (positions,)."""
        if batch.source is None:
            return
        source = batch.source[batch.text.flatten()[places]]
        each = torch.arange(self.sources, device=source.device)
        # Sums of products are the same in every run, unlike index_add, and autocast leaves them in float32.
        chosen = (source[:, None] == each).float()
        self.step += torch.stack([(losses.detach().float()[:, None] * chosen).sum(0), chosen.sum(0)])

    def close_step(self, sums: Tensor) -> None:
        """Add the sums of a step over all processes (2, sources)."""
        self._total = in_full(sums) if self._total is None else self._total + sums

    def total(self) -> np.ndarray:
        """Return the sums and numbers since the start of the training: (2, sources)."""
        return self._earlier if self._total is None else self._earlier + self._total.cpu().numpy()

    def since(self, reader: str) -> np.ndarray:
        """Return the mean loss of each source since the same reader asked last (sources,); NaN without a token."""
        total = self.total()
        sums, counts = total - self._marks.get(reader, 0.0)
        self._marks[reader] = total
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(counts > 0, sums / counts, np.nan)

    def update_known(self) -> None:
        """Take the losses for a line of the log."""
        found = self.since("log")
        self.known = np.where(np.isnan(found), self.known, found)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as plain values."""
        return {
            "total": self.total().tolist(),
            "marks": {name: mark.tolist() for name, mark in self._marks.items()},
            "known": [None if np.isnan(loss) else loss for loss in self.known.tolist()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._earlier, self._total = np.array(state["total"]), None
        self._marks = {name: np.array(mark) for name, mark in state["marks"].items()}
        self.known = np.array(state["known"], dtype=float)
