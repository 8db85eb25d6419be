"""A place in the cache for tensors that took long: made once, and found again by what decides them."""

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
    """Gives tensors from the cache, or makes and keeps them; all processes of a run must ask for the same.

    Attributes:
        folder: Where they are kept; None if nothing is to be.
        seed: Where chance inside of what makes them comes from.
        group: The processes of the run.
        device: Where tensors from the cache are put.
    """

    folder: Path | None
    seed: int
    group: ProcessGroup
    device: torch.device

    def __call__(self, make: Callable[[], dict[str, Tensor]], *place: int) -> dict[str, Tensor]:
        """Return the tensors at a place.

        Args:
            make: Makes them; called if not every process finds them.
            place: Numbers, if there are several on this shelf. Each place has its own stream of chance, so that what
                is made does not depend on whether others were found or made before.
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
            except OSError as error:  # a full disk costs time later, not this run
                log.warning("What was measured could not be kept in '%s': %s.", folder.parent, first_line(error))
        return values

    def _place_seed(self, place: tuple[int, ...]) -> int:
        """Return the seed of a place in this process."""
        if not place:
            return self.seed + self.group.rank
        return int(np.random.SeedSequence([self.seed, self.group.rank, *place]).generate_state(1, np.uint64)[0] >> 1)


def _load_tensors(file: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it is absent or damaged."""
    try:
        return load_file(file)
    except (OSError, SafetensorError):
        return None
