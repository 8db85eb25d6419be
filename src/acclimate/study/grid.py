"""What a study file says about its search on dev: which values are tried, and which combinations of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from acclimate.study.settings import Count, FinetuneLists, Lists, Seed, Strict, distinct, lists, seed_list

Name = TypeVar("Name", bound=Hashable)


def _seeds(value: Any) -> Any:
    """Let a number n stand for 0 to n - 1."""
    return seed_list(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _once(seeds: list[int] | None) -> list[int] | None:
    distinct("search.seeds", [str(seed) for seed in seeds or []], "list each seed once")
    return seeds


class SearchSettings(Strict):
    """How settings are chosen on the dev splits, and which values are tried.

    Attributes:
        seeds: Seeds of fine-tuning that judge a combination; by default those of the study.
        combinations: ``"all"``; ``"one-factor"``: the first value of each list, and from there one change at a time;
            or a number: so many of all, drawn with ``seed``, the same for every row that has the same lists.
        seed: Of that draw.
        per: ``"method"``: each method has the settings that are best for it. ``"task"``: settings of fine-tuning are
            the same for all methods of a model on a task, those with the best mean over them. The first is the
            default: a setting that suits one method is no fair one for another, and here all, the baseline too, get
            the same combinations of settings of fine-tuning. What only adaptation has (``adapt``, parameters) can be
            tried for the methods that have it alone; the number of combinations of each row is in the results.
        tolerance: Of the combinations whose score is at most so much below the best, the one with the lowest expected
            calibration error is taken; with 0, only what is equally good is compared by that.
        teacher_tolerance: The same for settings of a teacher. The paper chooses the strength of its penalty "in terms
            of the F1 score and expected calibration error" and does not say how they are weighed.
        finetune: Values of settings of fine-tuning.
        adapt: Values of keywords of ``adapt``, for every method but ``none``.
        distill: Values of settings of ``distill``, for every row of ``distill``.
    """

    seeds: Annotated[list[Seed] | None, BeforeValidator(_seeds), AfterValidator(_once), Field(min_length=1)] = None
    combinations: Literal["all", "one-factor"] | Count = "all"
    seed: Seed = 0
    per: Literal["method", "task"] = "method"
    tolerance: float = Field(default=0.0, ge=0)
    teacher_tolerance: float = Field(default=0.01, ge=0)
    finetune: FinetuneLists = Field(default_factory=dict)
    adapt: Lists = Field(default_factory=dict)
    distill: Lists = Field(default_factory=dict)


class MethodSearch(BaseModel):
    """Values to try for one method: of its parameters and, under ``adapt``, of settings of its adaptation."""

    model_config = ConfigDict(extra="allow")
    adapt: Lists = Field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        """Values of parameters of the method."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        own = lists({name: values for name, values in value.items() if name != "adapt"})
        return own | ({"adapt": value["adapt"]} if "adapt" in value else {})


def possible(given: Mapping[Name, list[Any]]) -> int:
    """Return how many combinations there are."""
    return math.prod(len(values) for values in given.values())


def combinations(given: Mapping[Name, list[Any]], how: str | int, seed: int) -> list[dict[Name, Any]]:
    """Return the combinations to try, in the order of the lists, the last one changing fastest.

    Args:
        given: Values by name.
        how: ``"all"``, ``"one-factor"``, or how many to draw.
        seed: Of the draw.
    """
    names = list(given)
    if how == "one-factor":
        start = {name: given[name][0] for name in names}
        changed = [{**start, name: value} for name in names for value in given[name][1:]]
        return [start, *changed]
    total = possible(given)
    if how == "all" or int(how) >= total:
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*given.values())]
    chance, drawn = random.Random(f"{seed}/search"), set[int]()
    while len(drawn) < int(how):  # by their numbers, since all of them may be too many to list
        drawn.add(chance.randrange(total))
    return [_numbered(given, place) for place in sorted(drawn)]


def _numbered(given: Mapping[Name, list[Any]], place: int) -> dict[Name, Any]:
    """Return the combination of that number, counted as :func:`itertools.product` lists them."""
    made: dict[Name, Any] = {}
    for name in reversed(list(given)):
        place, index = divmod(place, len(given[name]))
        made[name] = given[name][index]
    return {name: made[name] for name in given}
