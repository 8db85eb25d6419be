"""The settings of a study's parts: of adaptation, of fine-tuning and of a task, of what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from acclimate.errors import did_you_mean
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


def _of_finetuning(given: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Check names and values of settings of fine-tuning; return the values as they are meant."""
    made: dict[str, list[Any]] = {}
    for name, values in given.items():
        known = FinetuneSettings.model_fields
        if name not in known:
            raise ValueError(f"unknown setting '{name}'.{did_you_mean(name, known)} Known here: {', '.join(known)}")
        try:
            made[name] = [getattr(FinetuneSettings.model_validate({name: entry}), name) for entry in values]
        except ValidationError as error:
            raise ValueError(f"'{name}': {error.errors()[0]['msg']}") from error
    return made


Lists = Annotated[dict[str, list[Any]], BeforeValidator(lists)]
FinetuneLists = Annotated[Lists, AfterValidator(_of_finetuning)]
"""Values to try, by name of the setting."""
Seed = Annotated[int, BeforeValidator(parse_number), Field(ge=0)]
Count = Annotated[int, BeforeValidator(parse_number), Field(ge=1)]


class Strict(BaseModel):
    """Keys that are not known are mistakes."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), coerce_numbers_to_str=True)


class FinetuneSettings(Strict):
    """Settings of fine-tuning; what is None is left to the defaults of ``acclimate.finetune``."""

    epochs: Count | None = None
    learning_rate: float | None = Field(default=None, gt=0)
    batch_size: Count | None = None
    max_length: Count | None = None
    few_shot: Count | None = None
    select: Literal["last", "dev"] | None = None
    warmup: float | None = Field(default=None, ge=0, lt=1)
    weight_decay: float | None = Field(default=None, ge=0)
    precision: Literal["fp32", "bf16", "auto"] | None = None
    confidence_penalty: float | None = Field(default=None, ge=0)

    def given(self) -> dict[str, Any]:
        """The settings that were given."""
        values = {key: getattr(self, key) for key in FinetuneSettings.model_fields}
        return {key: value for key, value in values.items() if value is not None}


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
"""Settings of a task that are options of ``finetune`` about the task that is learnt before it."""
BUDGETS = ("steps", "epochs", "tokens", "max_minutes")
"""Settings that say how long to adapt, one of which is given at most."""


class AdaptSettings(BaseModel):
    """Settings of adaptation: any keyword of ``acclimate.adapt``, checked against it before the study starts."""

    model_config = ConfigDict(extra="allow")
    steps: Count | None = None
    epochs: float | None = Field(default=None, gt=0)
    tokens: Count | None = None
    max_minutes: float | None = Field(default=None, gt=0)
    seed: Seed = 0
    max_length: Count | None = None
    batch_size: Count | None = None
    learning_rate: float | None = Field(default=None, gt=0)
    mask_rate: float | None = Field(default=None, gt=0, lt=1)
    weight_decay: float | None = Field(default=None, ge=0)
    warmup: float | None = Field(default=None, ge=0, lt=1)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    precision: Literal["fp32", "bf16", "auto"] | None = None
    layout: Literal["padded", "packed"] | None = None
    head_tokens: Count | None = None
    heldout_every: Count | None = None
    save_every: Count | None = None

    @model_validator(mode="after")
    def _one_budget(self) -> AdaptSettings:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of {', '.join(BUDGETS[:-1])} and {BUDGETS[-1]}, not {' and '.join(given)}")
        return self

    def given(self) -> dict[str, Any]:
        """The settings that were given."""
        values = {key: getattr(self, key) for key in AdaptSettings.model_fields}
        return {key: value for key, value in {**values, **(self.model_extra or {})}.items() if value is not None}


class EvaluateSettings(Strict):
    """How masked-LM loss is measured: how many documents, and how many tokens of each.

    With ``moved`` it is also measured how far each adaptation moved embeddings and hidden states on the general text.
    ``masked_texts`` says how many texts of the domain the report shows masked; 0 keeps its text out of the report.
    """

    documents: Count = 200
    max_length: Count = 128
    moved: bool = False
    masked_texts: Annotated[int, BeforeValidator(parse_number), Field(ge=0)] = 3
