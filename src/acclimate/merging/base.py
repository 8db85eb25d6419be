"""Interface and registry of merges: ways to make one model from the weights of several.

A new merge needs one file with ``@register``: every module of ``acclimate.merging.methods`` is imported when the
registry is first read, and so is every entry point of the group ``acclimate.merges`` of other packages.
"""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import Number, read_number
from acclimate.base.errors import UserError
from acclimate.base.registry import Part, Registry
from acclimate.base.verbs import Next

if TYPE_CHECKING:
    from torch import Tensor

    from acclimate.merging.merger import Merger
    from acclimate.merging.path import Loss
    from acclimate.merging.rules import Rule
    from acclimate.merging.weights import Checkpoint


def read_numbers(value: Any) -> Any:
    """Return numbers as a tuple; they are given as such, or as text such as ``"0,0.5,1"``; None stays None."""
    if value is None:
        return None
    items = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    split = [part for item in items for part in (item.split(",") if isinstance(item, str) else (item,))]
    return tuple(read_number(part) for part in split)


Weight = Annotated[Number, Field(ge=-1000, le=1000)]
ModelName = Annotated[str, BeforeValidator(lambda value: os.path.expanduser(str(value))), Field(min_length=1)]
"""A model folder, or a name on the Hugging Face Hub."""


class Answering(NamedTuple):
    """A model and the rows that it answers.

    Attributes:
        model: The model.
        rows: For each row, a function that runs the model and returns the logits of its answers (answers, classes),
            with a graph.
        several: Whether an answer can have several classes.
    """

    model: Any
    rows: Sequence[Callable[[], Tensor]]
    several: bool = False


class Measured(Protocol):
    """Text or a task that models are measured on."""

    name: str
    measure: str
    """What :meth:`score` returns, in words."""

    def fingerprint(self) -> str:
        """Return a hash of everything that can change a result."""

    def texts(self) -> list[str]:
        """Return a sample of the documents, or of the texts of the train examples."""

    def open(self, model: str | Path) -> Answering:
        """Load a model, to the default device, and read the rows that it answers."""

    def score(self, model: str | Path) -> float:
        """Return how good a model is on text or examples that it was not trained on; higher is better."""


@dataclass(frozen=True)
class Context:
    """What a merge makes its rule from.

    Attributes:
        merger: The models.
        models: The names of the models as given, of which those of the merger are some.
        data: What they are measured on.
        work: Folder for files while the rule is in use.
        progress: Whether to show progress bars.
    """

    merger: Merger
    models: Sequence[str]
    data: Sequence[Measured]
    work: Path
    progress: bool


@dataclass(frozen=True)
class Merge(Part, ABC):
    """A registered merge; subclasses are frozen dataclasses whose fields are the parameters.

    Attributes:
        formula: What the merged model is.
        several: Whether it merges several models or one; None for any number.
        needs_base: Whether the base model of the others is one of the models that are merged.
        models: Parameters that name further models; they are merged after the given ones and before the base model.
        joins_tasks: Whether it merges models of different tasks, all but their heads.
        data: Whether it measures the models, on one text or task for all, or on one for each; None for no measurement.
        selects: Whether it can merge only those of the models that fit a new domain.
        path: What the shares 0 and 1 of the path are on which losses can be measured; None for no path.
        merges_weights: Whether it reads the weights of all models, which then must have the same shapes.
        in_studies: Whether a study can have it.
        starts_with_base: Whether a study merges the models of a single method into the base model, as the first one.
    """

    formula: ClassVar[str] = ""
    several: ClassVar[bool | None] = True
    needs_base: ClassVar[bool] = False
    models: ClassVar[tuple[str, ...]] = ()
    joins_tasks: ClassVar[bool] = False
    data: ClassVar[Literal["one", "each"] | None] = None
    selects: ClassVar[bool] = False
    path: ClassVar[tuple[str, str] | None] = None
    merges_weights: ClassVar[bool] = True
    in_studies: ClassVar[bool] = True
    starts_with_base: ClassVar[bool] = False

    @property
    def writes_model(self) -> bool:
        """Whether the result is a model, and not only the losses on a path."""
        return True

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the result; models by their content."""
        from acclimate.models.checkpoints import model_fingerprint

        found = super().identity()
        return found | {name: model_fingerprint(str(found[name])) for name in self.models}

    def resolve(self, count: int) -> Self:
        """Return the merge with values for all parameters.

        Args:
            count: Number of models that are merged, without further ones and the base model.

        Raises:
            UserError: If a parameter does not suit this number.
        """
        return self

    def label(self, of: str) -> str:
        """Return the label of a row of a study for the merged models of the rows ``of``."""
        return f"{of}{' + base model' * (self.data == 'each')}, {self.name}"

    def adopt(self, merger: Merger, other: Checkpoint, template: Any, missing: Sequence[str]) -> None:
        """Take more than weights from a further model, which :attr:`models` names.

        Args:
            merger: The models.
            other: The further model.
            template: Chat template of its tokenizer, or None.
            missing: The tokens that only its tokenizer has.
        """

    def next_command(self, out: str) -> Next:
        """Return a command to run on the merged model."""
        return Next(["finetune", "--model", out, "--task", "TASK", "--out", "finetuned"], "to train an end task")

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the rule by which each tensor is merged, and notes on what was measured for it.

        The sources of the rule are the models in their order, then those of :attr:`models`, then the base model.
        """
        raise NotImplementedError

    def measure(
        self, model: str, merger: Merger | None, point: Path, max_length: int
    ) -> Callable[[float], AbstractContextManager[Loss]]:
        """Return the function of a share that :func:`acclimate.merging.path.measure_path` needs.

        Args:
            model: The first model.
            merger: The models; None if weights are not merged.
            point: Folder for a model while it is measured; it does not exist yet.
            max_length: Maximum tokens per text.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class WeightedMerge(Merge):
    """A merge with a weight for each model.

    Attributes:
        weights: Weight of each model, in their order.
        usual: Default weight of each model; None for equal shares.
        normalized: Whether weights are divided by their sum.
    """

    weights: Annotated[tuple[Weight, ...] | None, BeforeValidator(read_numbers)] = None

    selects: ClassVar[bool] = True
    usual: ClassVar[float | None] = 1.0
    normalized: ClassVar[bool] = False

    def resolve(self, count: int) -> Self:
        """Return the merge with a weight for each model."""
        weights = list(self.weights or [1 / count if self.usual is None else self.usual] * count)
        if len(weights) != count:
            raise UserError(f"There are {len(weights)} weights for {count} models; give one for each.")
        if self.normalized:
            if min(weights) < 0 or not sum(weights) > 0:
                raise UserError(f"The weights of a {self.name} must be at least 0, and not all 0.")
            weights = [weight / sum(weights) for weight in weights]
        return replace(self, weights=tuple(weights))


MERGES: Registry[Merge] = Registry("acclimate.merges", "method of merging", "methods of merging")
register = MERGES.register
