"""Sections of the study file: adaptation, fine-tuning, tasks and evaluation."""

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
from acclimate.registry import parse_number

Paths = list[str]
UNADAPTED = "none"
"""Name of the method that leaves the base model unchanged."""
MOST_SEEDS = 1000
"""Maximum for a number of seeds. A larger one is probably a mistake, and its list could fill the memory."""


def several(value: Any) -> Any:
    """Turn a single path into a list."""
    return [str(value)] if isinstance(value, str | Path) else value


def _labels(value: Any) -> Any:
    """Turn a single label into a list, and YAML booleans (a label such as ``true``) into strings."""
    values = value if isinstance(value, list | None) else [value]
    return values and [str(entry).lower() if isinstance(entry, bool) else entry for entry in values]


def lists(value: Any) -> Any:
    """Return lists of values to try by name of the setting, numbers parsed.

    Raises:
        ValueError: If a setting has no non-empty list.
    """
    if not isinstance(value, Mapping):
        raise ValueError("give settings, each with a list of values to try")
    for name, values in value.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"'{name}' needs a list of values to try, as {name}: [1, 2]")
    return {str(name): [parse_number(entry) for entry in values] for name, values in value.items()}


def seed_list(value: Any) -> Any:
    """Expand a number n to the seeds 0 to n - 1.

    Raises:
        ValueError: If the number is above :data:`MOST_SEEDS`, or the value is neither a number nor a list.
    """
    if isinstance(value, str | float):
        raise ValueError(f"give a number of them, or a list of seeds, not {value!r}")
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value > MOST_SEEDS:
        raise ValueError(f"{value} is more than {MOST_SEEDS}; give a list of the seeds that you want")
    return list(range(value))


def distinct(what: str, names: list[str], remedy: str) -> None:
    """Raise ValueError if a name is duplicated.

    Args:
        what: The section, for the message.
        names: The names.
        remedy: What the user should do, for the message.
    """
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"'{name}' is duplicated under {what}: {remedy}")


def _check_values(options: type[Section], given: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Validate names and values of options to try; return the values converted to their types."""
    return {name: [options.check({name: value})[name] for value in values] for name, values in given.items()}


Lists = Annotated[dict[str, list[Any]], BeforeValidator(lists)]
"""Values to try, by name of the setting."""
FinetuneLists = Annotated[Lists, AfterValidator(lambda given: _check_values(FinetuneSettings, given))]
DistillLists = Annotated[Lists, AfterValidator(lambda given: _check_values(DistillSection, given))]
Seed = Annotated[int, BeforeValidator(parse_number), Field(ge=0)]
Seeds = Annotated[list[Seed], BeforeValidator(seed_list), Field(min_length=1)]
Count = Annotated[int, BeforeValidator(parse_number), Field(ge=1)]


class Strict(BaseModel):
    """A section that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), coerce_numbers_to_str=True)


if TYPE_CHECKING:

    class FinetuneSettings(Section):
        """Options of ``acclimate.finetune``."""

    class DistillSection(Section):
        """Options of ``acclimate.distill``."""

    class AdaptSection(Section):
        """Options of ``acclimate.adapt``."""

else:
    FinetuneSettings = section(FinetuneOptions, without=("report_to",))
    DistillSection = section(DistillOptions, without=("report_to",))
    AdaptSection = section(AdaptOptions)


class TaskSpec(FinetuneSettings):
    """A labelled end task: a folder, or ``{path, name?, metric?, ...}`` with its own settings of fine-tuning.

    Attributes:
        metric: Primary metric; by default the first one of the task kind, which is macro_f1 for classification.
        negative: The label, or labels, for "none of these".
        repartition: Ratio of :func:`acclimate.tasks.repartition`.
        limit_train: Maximum rows of the train split, sampled with a fixed seed; ``limit_dev`` and ``limit_test`` limit
            the other splits.
        search: Values to try on this task; they override those under ``search.finetune``.
        first: Folder of a task to train on before this one. ``first_epochs`` and ``first_learning_rate`` override the
            settings of fine-tuning for it.
        limit_first: Maximum rows of the train split of ``first``.
    """

    path: str
    name: str = ""
    metric: str | None = None
    negative: Annotated[list[str] | None, BeforeValidator(_labels), Field(min_length=1)] = None
    repartition: float | None = Field(default=None, gt=0, le=1)
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
        """Maximum rows by split, for the splits that have a limit."""
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
            raise ValueError(f"the task '{self.name}' has settings of a first stage but no 'first': its folder")
        return self


FIRST_STAGE = ("first_epochs", "first_learning_rate")
"""Options of ``finetune`` about the task that is trained on first."""


class AdaptSettings(AdaptSection):
    """The ``adapt`` section: options of ``acclimate.adapt``; None selects the default."""

    seed: Seed = 0


class EvaluateSettings(Strict):
    """Settings of the measurements besides end-task scores.

    Attributes:
        documents: Number of documents for the language-model loss.
        max_length: Maximum tokens per document.
        moved: Whether to measure representation drift on the general text.
        masked_texts: Number of domain texts shown masked in the report; 0 shows none.
    """

    documents: Count = 200
    max_length: Count = 128
    moved: bool = False
    masked_texts: Annotated[int, BeforeValidator(parse_number), Field(ge=0)] = 3
