"""Greedy model soups (Wortsman et al., ICML 2022, Recipe 1)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from acclimate.base.ranking import best_first, settle
from acclimate.merging.measuring import Measured
from acclimate.merging.rules import Rule, linear


class Soup(NamedTuple):
    """The result of :func:`greedy_soup`.

    Attributes:
        scores: Score of each model by itself.
        kept: Indices of the models in the soup, from the best to the worst.
        score: Score of the soup.
    """

    scores: list[float]
    kept: list[int]
    score: float

    @property
    def weights(self) -> list[float]:
        """Weight of each model in the mean; 0 for those that are not in the soup."""
        return [(number in self.kept) / len(self.kept) for number in range(len(self.scores))]


def greedy_soup(scores: Sequence[float], score: Callable[[list[int]], float]) -> Soup:
    """Add models to a mean, from the best to the worst, each if the score of the mean does not fall.

    The soup is then at least as good as the best model on the data that it was selected with.

    Args:
        scores: Score of each model; higher is better. Of equal ones, the first comes first.
        score: Function that returns the score of the mean of the models with these indices.
    """
    order = best_first(scores, range(len(scores))).tolist()
    kept, best = order[:1], scores[order[0]]
    for number in order[1:]:
        if settle(found := score([*kept, number])) >= settle(best):
            kept, best = [*kept, number], found
    return Soup(list(scores), kept, best)


def cook(
    models: Sequence[str], write: Callable[[Path, Rule], None], data: Measured, work: Path
) -> tuple[Rule, list[str]]:
    """Return the mean of the models in a greedy soup, and a note on the models.

    Args:
        models: The models.
        write: Function that writes the result of a rule into an existing folder.
        data: What the models are measured on.
        work: Folder for a soup while it is measured; it does not exist yet.
    """

    def score(kept: list[int]) -> float:
        work.mkdir()
        write(work, linear([(number in kept) / len(kept) for number in range(len(models))]))
        found = data.score(work)
        shutil.rmtree(work)
        return found

    soup = greedy_soup([data.score(model) for model in models], score)
    scores = ", ".join(
        f"'{model}' ({soup.scores[number]:.4f}{'' if number in soup.kept else ', left out'})"
        for number, model in enumerate(models)
    )
    kept = f"The soup has {len(soup.kept)} of {len(models)} models"
    return linear(soup.weights), [f"{kept}, by {data.measure} on {data.name}: {scores}; soup {soup.score:.4f}."]
