"""A cache on disk for tensors that take long to compute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from acclimate.device import preserve_rng_state
from acclimate.errors import first_line
from acclimate.files import atomic_folder
from acclimate.training.distributed import ProcessGroup

TENSORS_FILE = "tensors.safetensors"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TensorCache:
    """Loads tensors from the cache, or computes and stores them; all processes of a run must ask for the same ones.

    Attributes:
        folder: Where they are stored; None for no storage.
        seed: Random seed of what computes them.
        group: The processes of the run.
        device: Where cached tensors are put.
    """

    folder: Path | None
    seed: int
    group: ProcessGroup
    device: torch.device

    def __call__(self, make: Callable[[], dict[str, Tensor]], *place: int) -> dict[str, Tensor]:
        """Return the tensors of an entry.

        Args:
            make: Computes them; called unless every process finds them.
            place: Numbers of the entry, if there are several. Each entry has its own random seed, so that its values
                do not depend on which other entries were found.
        """
        folder = self.folder / "-".join(map(str, place)) if self.folder and place else self.folder
        found = None if folder is None else _load_tensors(folder / TENSORS_FILE)
        if self.group.all(found is not None, self.device):
            assert found is not None
            return {name: value.to(self.device) for name, value in found.items()}
        with preserve_rng_state():
            torch.manual_seed(self._place_seed(place))
            values = make()
        if folder is not None and found is None and self.group.first:
            try:
                with atomic_folder(folder) as temporary:
                    save_file(
                        {name: value.cpu().contiguous() for name, value in values.items()}, temporary / TENSORS_FILE
                    )
            except OSError as error:  # a full disk must not end this run
                log.warning("Cannot store measured values in '%s': %s.", folder.parent, first_line(error))
        return values

    def _place_seed(self, place: tuple[int, ...]) -> int:
        """Return the random seed of an entry in this process."""
        if not place:
            return self.seed + self.group.rank
        return int(np.random.SeedSequence([self.seed, self.group.rank, *place]).generate_state(1, np.uint64)[0] >> 1)


def _load_tensors(file: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it is missing or damaged."""
    try:
        return load_file(file)
    except (OSError, SafetensorError):
        return None
