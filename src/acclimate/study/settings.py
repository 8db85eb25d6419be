"""Sections of the study file: adaptation, fine-tuning, tasks and evaluation."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from acclimate.adaptation.options import AdaptOptions
from acclimate.base.bounds import MAX_SIZE, Count, Fraction, Integer, SeedNumber
from acclimate.base.errors import UserError, shorten
from acclimate.base.files import cache_folder, write_text
from acclimate.base.options import Section, section
from acclimate.base.registry import MAX_INTEGER, Registry, parse_number
from acclimate.data.csv_reader import DEFAULT_COLUMN
from acclimate.data.documents import texts_in_memory
from acclimate.data.operations import SELECTIONS, TRANSFORMS, Operation, list_operations, read_operations
from acclimate.data.reading import default_task_name, reading_names
from acclimate.data.sources import ListSource
from acclimate.evaluation.prompts import AskedPrompt, list_prompts
from acclimate.tasks.options import DistillOptions, FinetuneOptions, ProbeOptions, Shots

Sources = list[str | dict[str, str]]
"""Sources of text: paths and names, or mappings with ``path``, ``text_column`` and ``encoding``."""
UNADAPTED = "none"
"""Label of the method that leaves the base model unchanged."""
MOST_SEEDS = 1000
"""Maximum for a number of seeds. A larger one is probably a mistake, and its list could fill the memory."""


def as_list(value: Any) -> Any:
    """Turn a single path or name into a list."""
    return [str(value)] if isinstance(value, str | Path) else value


def store_texts(value: Any) -> Any:
    """Write texts in memory to a file of the cache that is named by their content.

    Args:
        value: A ``Dataset``, a data frame or the like. Lists are sources, as those of a study file are.

    Returns:
        The path of the file; a value that names files or datasets as it is.

    Raises:
        UserError: If the texts are in no known column.
    """
    texts = None
    if not isinstance(value, str | Path | Mapping | list | tuple):
        texts = texts_in_memory(value, DEFAULT_COLUMN)
    if texts is None:
        return value
    name = ListSource(tuple(texts)).fingerprint().split()[-1]
    path = cache_folder() / "texts" / f"{name}.jsonl"
    if not path.is_file():
        write_text(path, "".join(json.dumps({"text": text}, default=str) + "\n" for text in texts))
    return path


def as_sources(value: Any) -> Any:
    """Turn a single source of text into a list, and texts in memory into the file that holds them."""
    value = as_list(value if value is None else store_texts(value))
    return [value] if isinstance(value, Mapping) else value


def as_operations(value: Any, registry: Registry[Operation]) -> Any:
    """Turn operations, in any form that a user may write, into a list of mappings of one name to its parameters.

    Raises:
        ValueError: If a name or a parameter is unknown, or a value does not fit.
    """
    try:
        read_operations(value, registry)
        listed = list_operations(value, registry)
        if any(callable(one) for _, settings in listed for one in settings.values()):
            raise ValueError("give functions as FILE.py:FUNCTION in a study")
        return None if value is None else [{name: settings} for name, settings in listed]
    except UserError as error:
        raise ValueError(str(error).removesuffix(".")) from error


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
        ValueError: If the number is below 1 or above :data:`MOST_SEEDS`, or the value is neither a number nor a list.
    """
    if isinstance(value, str | float):
        raise ValueError(f"give a number of them, or a list of seeds, not {shorten(value)}")
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value < 1:
        raise ValueError(f"give at least one seed, not {shorten(value)}")
    if value > MOST_SEEDS:
        raise ValueError(f"{shorten(value)} is more than {MOST_SEEDS}; give a list of the seeds that you want")
    return list(range(value))


def unused_seeds(used: Collection[int], count: int) -> list[int]:
    """Return the lowest seeds that are not used."""
    return list(itertools.islice((seed for seed in itertools.count() if seed not in used), count))


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
    for name, values in given.items():
        if None in values:
            raise ValueError(f"a value to try for '{name}' is empty; remove it")
    return {name: [options.check({name: value})[name] for value in values] for name, values in given.items()}


Selections = Annotated[list[dict[str, dict[str, Any]]], BeforeValidator(lambda v: as_operations(v, SELECTIONS))]
"""Selections of documents: each a mapping of its name to its parameters."""
Transforms = Annotated[list[dict[str, dict[str, Any]]], BeforeValidator(lambda v: as_operations(v, TRANSFORMS))]
"""Transforms of documents: each a mapping of its name to its parameters."""
Lists = Annotated[dict[str, list[Any]], BeforeValidator(lists)]
"""Values to try, by name of the setting."""
FinetuneLists = Annotated[Lists, AfterValidator(lambda given: _check_values(FinetuneSettings, given))]
DistillLists = Annotated[Lists, AfterValidator(lambda given: _check_values(DistillSection, given))]


def check_name(name: str) -> str:
    """Return the name of a part of a study, which becomes part of file names and of tables.

    Raises:
        ValueError: If it is longer than 200 characters, or contains a control character or a lone surrogate.
    """
    if len(name) > 200:
        raise ValueError(f"the name has {len(name):,} characters; give one of at most 200")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise ValueError(f"the name {shorten(name)} contains a control character; remove it")
    return name


Label = Annotated[str, AfterValidator(check_name)]


def check_plain_values(value: Any, where: str = "", seen: set[int] | None = None) -> None:
    """Check that a study file has no number that is too large to compute with, and no NUL character.

    Raises:
        ValueError: If it has one.
    """
    seen = set() if seen is None else seen
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ValueError(f"{where or 'study'}: the number {shorten(value)} is too large")
    if isinstance(value, str) and "\0" in value:
        raise ValueError(f"{where or 'study'}: the text {shorten(value)} contains a NUL character; remove it")
    if isinstance(value, Mapping | list) and id(value) not in seen:  # YAML may repeat, or even nest, one object
        seen.add(id(value))
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            place = f"[{key}]" if isinstance(value, list) else f"{'.' if where else ''}{key}"
            check_plain_values(inner, where + place, seen)


Seeds = Annotated[list[SeedNumber], BeforeValidator(seed_list), Field(min_length=1)]


class Strict(BaseModel):
    """A section that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), coerce_numbers_to_str=True)


class OperationSpec(BaseModel):
    """What is done to the text of a domain before models are adapted to it.

    Attributes:
        select: Selection of documents; ``[]`` for all, where a method overrides that of its domain.
        transform: Transforms of the selected documents; ``[]`` for none.
    """

    select: Selections | None = None
    transform: Transforms | None = None

    def describe_operations(self) -> dict[str, str]:
        """Return the operations that are given, by key of the study file."""
        given = (("select", self.select, SELECTIONS, "all"), ("transform", self.transform, TRANSFORMS, "none"))
        return {
            key: ", ".join(one.describe() for one in read_operations(value, registry)) or nothing
            for key, value, registry, nothing in given
            if value is not None
        }


class ShortForm(BaseModel):
    """An entry that can also be written as a plain text, the value of its key :attr:`short`."""

    short: ClassVar[str] = "path"

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {cls.short: str(value)} if isinstance(value, str | Path) else value


OF_ONE_TASK = ("metric", "negative", "first", "first_epochs", "first_learning_rate", *reading_names())
"""Options of ``finetune`` that a study sets for single tasks."""


if TYPE_CHECKING:

    class FinetuneSettings(Section):
        """Options of ``acclimate.finetune``."""

    class TaskSection(FinetuneSettings):
        """The same, and those of a single task."""

        metric: str | None
        negative: tuple[str, ...] | None
        text_column: str | None
        pair_column: str | None
        label_column: str | None
        group_column: str | None
        split_seed: int | None
        encoding: str | None
        task_kind: str | None
        passages: str | Path | None
        strict: bool | None
        merge_labels: bool | None
        clean: tuple[str, ...] | None
        mask_personal: bool | None

    class DistillSection(Section):
        """Options of ``acclimate.distill``."""

    class ProbeSection(Section):
        """Options of ``acclimate.probe``."""

    class AdaptSection(Section):
        """Options of ``acclimate.adapt``."""

else:
    FinetuneSettings = section(FinetuneOptions, without=("report_to",))
    TaskSection = section(FinetuneOptions, without=("report_to",), also=OF_ONE_TASK)
    DistillSection = section(DistillOptions, without=("report_to",))
    ProbeSection = section(ProbeOptions)
    AdaptSection = section(AdaptOptions)


class LikelihoodSpec(Strict):
    """How a task is also answered without fine-tuning, by the likelihood of label words under a causal model.

    Attributes:
        template: The prompt, with ``{text}`` and, for pairs, ``{text_pair}``; the word of a label follows. Of a list,
            each model gets the prompt with the best accuracy on dev. By default
            :data:`acclimate.evaluation.likelihood.TEMPLATES`, or the first of them without a dev split.
        shots: Solved examples from train in a prompt; of a list, each model gets the best number. By default 0 with
            a template that is given, else :data:`acclimate.evaluation.prompts.SHOTS`.
        words: Word or words for labels; labels that are missing stand for themselves.
        score: Score of a label: see :func:`acclimate.evaluation.likelihood.classify_by_likelihood`.
        max_length: Maximum tokens of a prompt with a label.
    """

    template: str | Annotated[list[str], Field(min_length=1)] | None = None
    shots: Shots | Annotated[list[Shots], Field(min_length=1)] | None = None
    words: dict[str, str] = Field(default_factory=dict)
    score: Literal["pmi", "mean", "sum"] = "pmi"
    max_length: Count = 1024

    def prompts(self, task: Any) -> list[AskedPrompt]:
        """Return the prompts for a task that a model chooses from."""
        from acclimate.evaluation.likelihood import PAIR_TEMPLATES, TEMPLATES

        usual = PAIR_TEMPLATES if task.test[0].text_pair is not None else TEMPLATES
        return list_prompts(self.template, self.shots, usual, bool(task.dev))


class ReviewSpec(Strict):
    """Where a classification is measured at the prevalence that a label has in use.

    Attributes:
        positive: The label.
        prevalence: Its share of the texts there.
        budgets: Shares of all texts that people review, those with the highest scores first.
    """

    positive: str
    prevalence: Annotated[Fraction, Field(lt=1)]
    budgets: Annotated[list[Fraction], Field(min_length=1)] = [0.01, 0.05, 0.1]


def _expand_flag(value: Any) -> Any:
    """Return the defaults for true and None for false."""
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class TaskSpec(TaskSection, ShortForm):
    """A labelled end task: a folder, file or ``hf:NAME``; or ``{path, name?, metric?, ...}`` with its own settings.

    Attributes:
        repartition: Ratio of :func:`acclimate.tasks.splits.repartition`.
        limit_train: Maximum rows of the train split, sampled with a fixed seed; ``limit_dev`` and ``limit_test`` limit
            the other splits.
        search: Values to try on this task; they override those under ``search.finetune``.
        likelihood: ``true``, or a :class:`LikelihoodSpec`: causal models also answer the task without fine-tuning.
        review: A :class:`ReviewSpec`: scores at another prevalence, and what a budget of human review finds.
        first: Folder of a task to train on before this one.
        limit_first: Maximum rows of the train split of ``first``.
        evaluate_on: Rows to score on instead of the test split: the dev split, or one of the two halves that
            :func:`acclimate.tasks.splits.cut_dev` makes of it.
    """

    path: str
    name: Label = ""
    repartition: Fraction | None = None
    limit_train: Count | None = None
    limit_dev: Count | None = None
    limit_test: Count | None = None
    search: FinetuneLists | None = None
    likelihood: Annotated[LikelihoodSpec | None, BeforeValidator(_expand_flag)] = None
    review: ReviewSpec | None = None
    first: str | None = None
    limit_first: Count | None = None
    evaluate_on: Literal["dev", "tune", "confirm"] | None = None

    @property
    def limits(self) -> dict[str, int]:
        """Maximum rows by split, for the splits that have a limit."""
        given = {"train": self.limit_train, "dev": self.limit_dev, "test": self.limit_test}
        return {split: count for split, count in given.items() if count is not None}

    @model_validator(mode="after")
    def _named(self) -> TaskSpec:
        self.name = self.name or default_task_name(self.path)
        if self.first is None and self.limit_first:
            raise ValueError(f"the task '{self.name}' has 'limit_first' but no 'first', the folder of a first task")
        return self


class AdaptSettings(AdaptSection):
    """The ``adapt`` section: options of ``acclimate.adapt``; None selects the default."""

    seed: SeedNumber = 0


class EvaluateSettings(Strict):
    """Settings of the measurements besides end-task scores.

    Attributes:
        advice: Whether to measure first how far each domain is from general text.
        documents: Number of documents for the language-model loss.
        general_half: Half of the general text to measure on; the halves are disjoint, like those of ``evaluate_on``.
        max_length: Maximum tokens per document that masked models read, or per window of causal models.
        instructions: Whether to measure how many instructions a causal model with a chat template follows.
        drift: Whether to measure representation drift on the general text.
        meters: Whether to measure how far each adapted model is from its base model: the divergence of its predictions
            on domain and general text, and the distance of its weights.
        recovery: Steps of training on general text, after which it is measured how much of the loss that each
            adaptation added there is gone; 0 for none.
        masked_texts: Number of domain texts shown masked in the report, and kept with the adaptations; usually none,
            since all who get the report read them.
        quick: Whether linear models on frozen states are scored on the tasks, instead of fine-tuned models.
    """

    advice: bool = False
    documents: Count = 200
    general_half: Literal["tune", "confirm"] | None = None
    max_length: Count = 128
    instructions: bool = False
    drift: bool = False
    meters: bool = False
    recovery: Annotated[Integer, Field(ge=0, le=MAX_SIZE)] = 0
    quick: bool = False
    masked_texts: Annotated[Integer, Field(ge=0, le=1000)] = 0

    def needs_general(self) -> str | None:
        """Return the first setting that needs general text; None if there is none."""
        return next((name for name in ("drift", "meters", "recovery") if getattr(self, name)), None)
