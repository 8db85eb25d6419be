"""Greedy model soups (Wortsman et al., ICML 2022, Recipe 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Literal, NamedTuple

from acclimate.base.ranking import best_first, settle
from acclimate.merging.base import Context, Merge, register
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


@register(
    "greedy-soup",
    paper="Wortsman et al., ICML 2022",
    summary="mean of the models that do not lower the score of the mean on dev",
)
@dataclass(frozen=True)
class GreedySoup(Merge):
    """Adds models to an equal mean, from the best to the worst, as long as the score does not get worse.

    Attributes:
        metric: Metric of the dev split that decides; None for the first one of the task.
    """

    formula: ClassVar[str] = (
        "mean of the models that do not lower the dev score of the mean, added from the best to the worst"
    )
    data: ClassVar[Literal["one", "each"] | None] = "one"
    metric: str | None = None

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Measure the models and their means; return the mean of those that are kept, and a note on all of them."""
        models, (data,) = context.merger.models, context.data

        def score(kept: list[int]) -> float:
            with TemporaryDirectory(dir=context.work) as folder:
                context.merger.write(
                    Path(folder), linear([(number in kept) / len(kept) for number in range(len(models))])
                )
                return data.score(folder)

        soup = greedy_soup([data.score(model) for model in models], score)
        scores = ", ".join(
            f"'{model}' ({soup.scores[number]:.4f}{'' if number in soup.kept else ', left out'})"
            for number, model in enumerate(models)
        )
        kept = f"The soup has {len(soup.kept)} of {len(models)} models"
        return linear(soup.weights), [f"{kept}, by {data.measure} on {data.name}: {scores}; soup {soup.score:.4f}."]
