"""More tokens of long documents, with the same share of each source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from acclimate.api import History, Mix, Weights, check_names, check_weights, find_weights, register_mix


@register_mix(
    "lengths",
    paper="Fu et al., 2024",
    summary="more tokens of long documents within each source, while the shares of the sources stay",
)
@dataclass(frozen=True)
class Lengths(Mix):
    """Upsamples long documents per source (Fu et al., ICML 2024).

    Taking long documents wherever they are would change the domains that the model reads: books are long, and
    conversations are short. Here every source keeps its share of the tokens, and within it long documents get more. It
    needs no further sources. For the long documents to be read whole, ``max_length`` must be at least as long.

    Attributes:
        threshold: Tokens above which a document is long.
        share: Share of the tokens of each source that comes from long documents. A source with more of them keeps its
            own share, and one without long documents is read as it is.
        weights: Weights of the sources: ``size``, which leaves the mixture of the texts as it is, ``equal``, or by
            name.
    """

    threshold: Annotated[int, Field(gt=0)] = 4096
    share: Annotated[float, Field(gt=0, lt=1)] = 0.7
    weights: Weights = "size"

    main: ClassVar[str] = "threshold"
    classes: ClassVar[tuple[str, ...]] = ("short", "long")

    def __post_init__(self) -> None:
        """Check the weights.

        Raises:
            UserError: If they are invalid.
        """
        check_weights(self.name, self.weights)

    def check(self, names: Sequence[str]) -> None:
        """Check that all weights belong to sources."""
        check_names(self.name, self.weights, names)

    def classify(self, lengths: np.ndarray) -> np.ndarray:
        """Return 1 for each long document, and 0 for the others (documents,)."""
        return (lengths > self.threshold).astype(int)

    def propose(self, history: History) -> np.ndarray:
        """Return the weights of the parts of the sources."""
        found = np.zeros(len(history.names))
        parents = np.unique(history.parents)
        first = [int(np.flatnonzero(history.parents == parent)[0]) for parent in parents]
        names = [history.names[place].rpartition(" (")[0] for place in first]
        sizes = np.array([history.sizes[history.parents == parent].sum() for parent in parents])
        for parent, weight in zip(parents, find_weights(self.weights, names, sizes), strict=True):
            parts = np.flatnonzero(history.parents == parent)
            long = np.array([history.names[part].endswith("(long)") for part in parts])
            share = max(self.share, float((history.sizes[parts] / history.sizes[parts].sum())[long].sum()))
            found[parts] = weight * (np.where(long, share, 1 - share) if len(parts) > 1 else 1.0)
        return found
