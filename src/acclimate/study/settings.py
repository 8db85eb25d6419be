"""The settings of a study's parts: of adaptation, of fine-tuning and of a task, of what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from acclimate.options import AdaptOptions, DistillOptions, FinetuneOptions, Section, section
from acclimate.options.training import BUDGETS as BUDGETS
from acclimate.registry import parse_number

Paths = list[str]
UNADAPTED = "none"
"""The method that leaves the model as it is; it needs no cell of adaptation."""
MOST_SEEDS = 1000
"""A number of seeds above it is taken for a slip: the list of them alone could fill the memory."""


def several(value: Any) -> Any:
    """Let one path stand for a list of one."""
    return [str(value)] if isinstance(value, str | Path) else value


def _labels(value: Any) -> Any:
    """Let one label stand for a list of one, and write truth values as labels are written."""
    values = value if isinstance(value, list | None) else [value]
    return values and [str(entry).lower() if isinstance(entry, bool) else entry for entry in values]


def lists(value: Any) -> Any:
    """Check that every setting has a list of values to try."""
    if not isinstance(value, Mapping):
        raise ValueError("give settings, each with a list of values to try")
    for name, values in value.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"'{name}' needs a list of values to try, as {name}: [1, 2]")
    return {str(name): [parse_number(entry) for entry in values] for name, values in value.items()}


def seed_list(count: int) -> list[int]:
    """Return the seeds 0 to ``count`` - 1.

    Raises:
        ValueError: If these are too many.
    """
    if count > MOST_SEEDS:
        raise ValueError(f"seeds: {count} is more than {MOST_SEEDS}; for certain seeds, give a list of them")
    return list(range(count))


def distinct(what: str, names: list[str], remedy: str) -> None:
    """Raise ValueError for a name that is duplicated."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"'{name}' is duplicated under {what}: {remedy}")


def _check_values(options: type[Section], given: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Check names and values of options to try; return the values converted to their types."""
    return {name: [options.check({name: value})[name] for value in values] for name, values in given.items()}


Lists = Annotated[dict[str, list[Any]], BeforeValidator(lists)]
"""Values to try, by name of the setting."""
FinetuneLists = Annotated[Lists, AfterValidator(lambda given: _check_values(FinetuneSettings, given))]
DistillLists = Annotated[Lists, AfterValidator(lambda given: _check_values(DistillSection, given))]
Seed = Annotated[int, BeforeValidator(parse_number), Field(ge=0)]
Count = Annotated[int, BeforeValidator(parse_number), Field(ge=1)]


class Strict(BaseModel):
    """Keys that are not known are mistakes."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), coerce_numbers_to_str=True)


if TYPE_CHECKING:
    FinetuneSettings = Section
    DistillSection = Section
    AdaptSection = Section
else:
    FinetuneSettings = section(FinetuneOptions, without=("report_to",))
    DistillSection = section(DistillOptions, without=("report_to",))
    AdaptSection = section(AdaptOptions)


class TaskSpec(FinetuneSettings):
    """A labelled end task: a folder, or ``{path, name?, metric?, ...}`` with its own settings of fine-tuning.

    ``metric`` is the metric that it is evaluated on, by default the first of its kind, which is macro_f1 in
    classification. ``negative`` names the label, or labels, that stand for "none of these". ``first`` is the folder of
    another task that is learnt before it, with ``first_epochs`` and ``first_learning_rate`` if they are not the same.
    ``limit_train``, ``limit_dev`` and ``limit_test`` keep so many rows of a split, drawn with a fixed seed (see
    :func:`acclimate.tasks.splits.limit_splits`), and ``limit_first`` does so with the train split of ``first``; the
    results
    say so. ``search`` has values to try on this task, in place of those that the study's ``search`` has under
    ``finetune``.
    """

    path: str
    name: str = ""
    metric: str | None = None
    negative: Annotated[list[str] | None, BeforeValidator(_labels), Field(min_length=1)] = None
    repartition: float | None = Field(default=None, gt=0, le=1)  # the ratio of acclimate.tasks.splits
    limit_train: Count | None = None
    limit_dev: Count | None = None
    limit_test: Count | None = None
    search: FinetuneLists | None = None
    first: str | None = None
    first_epochs: Count | None = None
    first_learning_rate: float | None = Field(default=None, gt=0)
    limit_first: Count | None = None

    @property
    def limits(self) -> dict[str, int]:
        """The limits that were given, by split."""
        given = {"train": self.limit_train, "dev": self.limit_dev, "test": self.limit_test}
        return {split: count for split, count in given.items() if count is not None}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _named(self) -> TaskSpec:
        self.name = self.name or Path(self.path).name
        if self.first is None and (self.first_epochs or self.first_learning_rate or self.limit_first):
            raise ValueError(f"the task '{self.name}' has settings of a first stage, but no 'first': the folder of it")
        return self


FIRST_STAGE = ("first_epochs", "first_learning_rate")
"""Options of ``finetune`` about the task that is trained on first."""


class AdaptSettings(AdaptSection):
    """The ``adapt`` section: options of ``acclimate.adapt``; what is None has its default."""

    seed: Seed = 0


class EvaluateSettings(Strict):
    """How masked-LM loss is measured: how many documents, and how many tokens of each.

    With ``moved`` it is also measured how far each adaptation moved embeddings and hidden states on the general text.
    ``masked_texts`` says how many texts of the domain the report shows masked; 0 keeps its text out of the report.
    """

    documents: Count = 200
    max_length: Count = 128
    moved: bool = False
    masked_texts: Annotated[int, BeforeValidator(parse_number), Field(ge=0)] = 3
