"""The ``distill`` and ``search`` sections of a study file."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from acclimate.base.bounds import Count, NonNegative, SeedNumber
from acclimate.study.settings import (
    DistillLists,
    DistillSection,
    FinetuneLists,
    Label,
    Lists,
    ShortForm,
    Strict,
    as_list,
    distinct,
    lists,
    seed_list,
    unused_seeds,
)

Name = TypeVar("Name", bound=Hashable)


def _check_count(value: Any) -> Any:
    seed_list(value)
    return value


def _check_distinct(seeds: list[int]) -> list[int]:
    distinct("search.seeds", [str(seed) for seed in seeds], "list each seed once")
    return seeds


class SearchSettings(Strict):
    """How settings are chosen on the dev splits, and which values are tried.

    ``true`` stands for ``{tune: true, per: base, seeds: 1}``: the learning rate is chosen with the base model.

    Attributes:
        seeds: Seeds of fine-tuning per combination, none of which is scored: a list, or a number of them; by default
            as many as the study has.
        combinations: ``"all"``; ``"one-factor"``: the first value of each list, then one change at a time; or the
            number of combinations to draw at random. Rows with the same lists get the same sample.
        biased: Whether to also fine-tune the baseline with the settings that were chosen for each other row. That
            comparison favors the others; next to the fair one it shows how much of a difference the search makes.
        seed: Random seed of that sample.
        tune: Whether three learning rates of fine-tuning are tried, around the default for the width of the model, on
            each task with a dev split for which the study sets none. Models of retrieval keep their rate.
        per: ``"method"``, the default, chooses the best settings for each method, since settings that suit one method
            could be unfair to another. ``"task"`` chooses the fine-tuning settings with the best mean score over all
            methods of a model on a task, ``"base"`` those with the best score of the base model. With the first two
            all methods, the baseline included, try the same combinations of fine-tuning settings. Settings of
            adaptation and method parameters exist only for some methods; the results give the number of combinations
            of each row.
        tolerance: Of the combinations that score at most this much below the best, the one with the lowest expected
            calibration error is chosen. With 0, calibration only breaks ties.
        teacher_tolerance: The same for settings of a teacher. The DoKTra paper chooses the strength of its penalty
            "in terms of the F1 score and expected calibration error" without giving their weights.
        finetune: Values to try for settings of fine-tuning.
        adapt: Values to try for options of ``adapt``, for every method but ``none``.
        distill: Values to try for settings of ``distill``, for every row of ``distill``.
    """

    seeds: Annotated[
        Annotated[list[SeedNumber], AfterValidator(_check_distinct), Field(min_length=1)] | Count | None,
        BeforeValidator(_check_count),
    ] = None
    combinations: Literal["all", "one-factor"] | Count = "all"
    seed: SeedNumber = 0
    tune: bool = False
    per: Literal["method", "task", "base"] = "method"
    biased: bool = False
    tolerance: NonNegative = 0.0
    teacher_tolerance: NonNegative = 0.01
    finetune: FinetuneLists = Field(default_factory=dict)
    adapt: Lists = Field(default_factory=dict)
    distill: DistillLists = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {"tune": True, "per": "base", "seeds": 1} if value is True else value

    @model_validator(mode="after")
    def _separate(self) -> SearchSettings:
        if self.biased and self.per != "method":
            raise ValueError(f"biased: all methods share their settings with 'per: {self.per}'; remove one of the two")
        return self

    def reserve_seeds(self, scored: set[int], count: int) -> None:
        """Set the seeds to some that are not scored, unless they are listed.

        Args:
            scored: The seeds that are scored.
            count: Number of seeds if the study file gives none.

        Raises:
            ValueError: If a listed seed is scored.
        """
        if not isinstance(self.seeds, list):
            self.seeds = unused_seeds(scored, len(seed_list(self.seeds or count)))
        elif shared := scored & {*self.seeds}:
            raise ValueError(
                f"search.seeds: seed {min(shared)} is also scored, so the choice would favour its score; list other "
                "seeds, or give a number of them"
            )


class MethodSearch(BaseModel):
    """Values to try for parameters of one method and, under ``adapt``, for settings of its adaptation."""

    model_config = ConfigDict(extra="allow")
    adapt: Lists = Field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, list[Any]]:
        """Values to try for parameters of the method."""
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _checked(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        own = lists({name: values for name, values in value.items() if name != "adapt"})
        return own | ({"adapt": value["adapt"]} if "adapt" in value else {})


class SectionEntry(Strict):
    """An entry of a list in the study file that configures a kind of job.

    Attributes:
        label: Row label in the tables; empty if the entry has no row.
        trains_with_adapt_seeds: Whether jobs of the kind are also fine-tuned with the seeds of adaptation.
    """

    trains_with_adapt_seeds: ClassVar[bool] = False
    label: Label = ""

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the paths of models absolute; ``resolve`` returns a name on the Hub unchanged."""

    def resolve_sources(self, resolve: Callable[[Any], Any]) -> None:
        """Make the paths of texts absolute."""

    def is_searched(self, search: SearchSettings, domain: str) -> bool:
        """Return whether settings of the entry are searched on the tasks of a domain."""
        return False

    def replaces_domains(self, method: str) -> bool:
        """Return whether the entry alone uses a method, given by its label, so that no domain has a model of it."""
        return False


def count_combinations(given: Mapping[Name, list[Any]]) -> int:
    """Return the number of possible combinations."""
    return math.prod(len(values) for values in given.values())


def combinations(given: Mapping[Name, list[Any]], how: str | int, seed: int) -> list[dict[Name, Any]]:
    """Return the combinations to try, ordered like :func:`itertools.product`: the last setting changes fastest.

    Args:
        given: Lists of values by name.
        how: ``"all"``, ``"one-factor"``, or the number of combinations to draw at random without replacement.
        seed: Random seed of the sample.
    """
    names = list(given)
    if how == "one-factor":
        start = {name: given[name][0] for name in names}
        changed = [{**start, name: value} for name in names for value in given[name][1:]]
        return [start, *changed]
    total = count_combinations(given)
    if how == "all" or int(how) >= total:
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*given.values())]
    rng, drawn = random.Random(f"{seed}/search"), set[int]()
    while len(drawn) < int(how):  # draw indices, since there may be too many combinations to list
        drawn.add(rng.randrange(total))
    return [_combination_at(given, index) for index in sorted(drawn)]


def _combination_at(given: Mapping[Name, list[Any]], index: int) -> dict[Name, Any]:
    """Return the combination at ``index`` of :func:`itertools.product`."""
    made: dict[Name, Any] = {}
    for name in reversed(list(given)):
        index, choice = divmod(index, len(given[name]))
        made[name] = given[name][choice]
    return {name: made[name] for name in given}


class TeacherSpec(Strict, ShortForm):
    """A teacher: a model of the study adapted with one of its methods, ``{model, method?}``, or any ``{path}``."""

    model: str | None = None
    method: str = "none"
    path: str | None = None

    @model_validator(mode="after")
    def _one(self) -> TeacherSpec:
        if (self.model is None) == (self.path is None):
            raise ValueError(
                "a teacher is {model: NAME, method: LABEL} of this study or {path: FOLDER}: give one of them"
            )
        return self

    @property
    def name(self) -> str:
        """Name of the teacher in labels."""
        return Path(self.path).name if self.path else f"{self.model}, {self.method}"


class DistillSpec(DistillSection, SectionEntry):
    """A row of a study whose students are distilled from a teacher: ``{teacher, label?, students?, **settings}``.

    Other keys are settings of :func:`acclimate.distill`. They override the study's fine-tuning settings, with which
    teacher and student are fine-tuned.

    Attributes:
        teacher: The teacher.
        students: Names of models of the study; None for all but the model of the teacher.
        domains: Names of the domains that the row applies to; None for all.
        search: Values to try for settings of this row; they override those under ``search.distill``.
    """

    trains_with_adapt_seeds: ClassVar[bool] = True  # teachers are
    teacher: TeacherSpec
    students: Annotated[list[str] | None, BeforeValidator(as_list), Field(min_length=1)] = None
    domains: Annotated[list[str] | None, BeforeValidator(as_list), Field(min_length=1)] = None
    search: DistillLists | None = None

    def resolve_paths(self, resolve: Callable[[str], str]) -> None:
        """Make the path of the teacher absolute."""
        self.teacher.path = self.teacher.path and resolve(self.teacher.path)

    def is_searched(self, search: SearchSettings, domain: str) -> bool:
        """Return whether settings of the row are searched on the tasks of a domain."""
        return self.is_for(domain) and bool(search.distill or self.search)

    @property
    def settings(self) -> dict[str, Any]:
        """Explicit settings of distillation, without defaults."""
        return self.given()

    def student_names(self, models: Sequence[str]) -> list[str]:
        """Return the names of the students, given the names of all models of the study."""
        return self.students or [model for model in models if model != self.teacher.model]

    def is_for(self, domain: str) -> bool:
        """Return whether the row applies to a domain."""
        return self.domains is None or domain in self.domains

    @model_validator(mode="after")
    def _labelled(self) -> DistillSpec:
        shown = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        self.label = self.label or f"distilled from {self.teacher.name}" + (f" ({shown})" if shown else "")
        return self
