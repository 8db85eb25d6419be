"""Weighted sums of models: chat vectors, skills, task arithmetic, interpolation, scaling with depth, and soups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field
from torch import Tensor

from acclimate.base.bounds import Number
from acclimate.base.verbs import Next
from acclimate.merging.base import Context, Merge, ModelName, Weight, WeightedMerge, register
from acclimate.merging.merger import Merger
from acclimate.merging.path import Loss, merged_model
from acclimate.merging.rules import Rule, linear
from acclimate.merging.weights import Checkpoint
from acclimate.models.saving import find_file


@register("chat-vector", paper="Huang et al., ACL 2024", summary="a model plus what instruction tuning changed")
@dataclass(frozen=True)
class ChatVector(Merge):
    """Adds what instruction tuning has changed. The chat template and generation settings come with it.

    Attributes:
        instruct: Instruction-tuned model of the same base.
        weight: Weight of the chat vector.
    """

    formula: ClassVar[str] = "model + weight (instruct - base)"
    several: ClassVar[bool | None] = False
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("instruct",)
    main: ClassVar[str] = "instruct"
    instruct: ModelName
    weight: Weight = 1.0

    def label(self, of: str) -> str:
        """Return the label with the weight, unless it is 1."""
        return f"{of} + {'' if self.weight == 1 else f'{self.weight:g} '}chat vector"

    def next_command(self, out: str) -> Next:
        """Return the command that measures which instructions the model follows."""
        words = ["inspect", "instructions", "--model", out, "--base", self.instruct]
        return Next(words, "to see which instructions it still follows")

    def adopt(self, merger: Merger, other: Checkpoint, template: Any, missing: Sequence[str]) -> None:
        """Take the chat template and the generation settings."""
        merger.take_chat_files(other, template, missing)

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the sum."""
        return linear([1.0, self.weight, -self.weight]), []


@register("skill", paper="Huang et al., EMNLP 2023", summary="a model plus what another training changed (AdaSent)")
@dataclass(frozen=True)
class Skill(Merge):
    """Adds what any other training has changed. With a sentence encoder as the skill, the result is one, too.

    Attributes:
        skill: Model of the same base that has learned something else, such as a sentence encoder.
        weight: Weight of the skill.
    """

    formula: ClassVar[str] = "model + weight (skill - base)"
    several: ClassVar[bool | None] = False
    needs_base: ClassVar[bool] = True
    models: ClassVar[tuple[str, ...]] = ("skill",)
    main: ClassVar[str] = "skill"
    skill: ModelName
    weight: Weight = 1.0

    def adopt(self, merger: Merger, other: Checkpoint, template: Any, missing: Sequence[str]) -> None:
        """Take the modules of a sentence encoder."""
        if find_file(str(other.folder), "modules.json"):
            merger.take_sentence_modules(other)

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the sum."""
        return linear([1.0, self.weight, -self.weight]), []


@register("task-arithmetic", paper="Ilharco et al., ICLR 2023", summary="the base model plus weighted changes")
@dataclass(frozen=True)
class TaskArithmetic(WeightedMerge):
    """Adds to the base model the weighted differences of the models to it; a negative weight takes one away.

    Attributes:
        weights: Weight of each model (0.4, which Yadav et al., 2023, recommend if there is no validation set).
    """

    formula: ClassVar[str] = "base + sum of weight (model - base)"
    several: ClassVar[bool | None] = None
    needs_base: ClassVar[bool] = True
    joins_tasks: ClassVar[bool] = True
    usual: ClassVar[float | None] = 0.4

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the sum."""
        weights = self.weights or ()
        return linear([*weights, 1 - sum(weights)]), []


@register("interpolation", paper="Wortsman et al., CVPR 2022", summary="between a base model and an adapted one")
@dataclass(frozen=True)
class Interpolation(Merge):
    """Interpolates between the base model and an adapted one (WiSE-FT); 0 and 1 copy weights bit by bit.

    Attributes:
        alpha: Share of the adapted model; 0 is the base model. None to measure a path only.
    """

    formula: ClassVar[str] = "(1 - alpha) base + alpha model"
    several: ClassVar[bool | None] = False
    needs_base: ClassVar[bool] = True
    path: ClassVar[tuple[str, str] | None] = ("base model", "adapted model")
    main: ClassVar[str] = "alpha"
    alpha: Annotated[Number, Field(ge=0, le=1)] | None = None

    @property
    def writes_model(self) -> bool:
        """Whether a share is given."""
        return self.alpha is not None

    def label(self, of: str) -> str:
        """Return the label with the share."""
        return f"{of} + base model, alpha {self.alpha:g}"

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the weighted mean."""
        assert self.alpha is not None
        return linear([self.alpha, 1 - self.alpha]), []

    def measure(
        self, model: str, merger: Merger | None, point: Path, max_length: int
    ) -> Callable[[float], AbstractContextManager[Loss]]:
        """Return the function that writes and measures the model of a share."""
        assert merger is not None
        write = merger.write
        return lambda share: merged_model(lambda folder: write(folder, linear([share, 1 - share])), point, max_length)


@register("lines", paper="Wang et al., ICLR 2025", summary="the base model plus changes that grow with depth (LiNeS)")
@dataclass(frozen=True)
class Lines(Merge):
    """Scales what training has changed linearly with depth, so that low layers stay close to the base model.

    Everything outside of the layers, such as embeddings, the last norm and the head, has the scale of the first layer,
    as in the code of the paper. A head that the base model does not have is kept.

    Attributes:
        alpha: Scale of the change of the first layer.
        slope: What the scale of the last layer has more, beta in the paper (1 - alpha, as there for one model).
    """

    formula: ClassVar[str] = "base + (alpha + slope depth) sum of (model - base), depth from 0 to 1"
    several: ClassVar[bool | None] = None
    needs_base: ClassVar[bool] = True
    joins_tasks: ClassVar[bool] = True
    selects: ClassVar[bool] = True
    main: ClassVar[str] = "alpha"
    alpha: Weight
    slope: Weight | None = None

    @property
    def rise(self) -> float:
        """The slope, or its default."""
        return 1 - self.alpha if self.slope is None else self.slope

    def resolve(self, count: int) -> Self:
        """Return the merge with a slope."""
        return replace(self, slope=self.rise)

    def label(self, of: str) -> str:
        """Return the label with the scales of the first and the last layer."""
        return f"{of}, scaled with depth by {self.alpha:g} to {self.alpha + self.rise:g}"

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the sum, whose weights depend on the tensor."""
        depths, count = context.merger.depths(), len(context.merger.models)

        def rule(name: str, reads: Sequence[Callable[[], Tensor]]) -> Tensor:
            scale = self.alpha + self.rise * depths.get(name, 0.0)
            return linear([*[scale] * count, 1 - count * scale])(name, reads)

        return rule, []


@register("soup", paper="Wortsman et al., ICML 2022", summary="the weighted mean of several models")
@dataclass(frozen=True)
class Soup(WeightedMerge):
    """Averages models of one architecture, such as those of several seeds.

    Attributes:
        weights: Weight of each model (equal ones); they are divided by their sum.
    """

    formula: ClassVar[str] = "weighted mean of the models"
    usual: ClassVar[float | None] = None
    normalized: ClassVar[bool] = True

    def rule(self, context: Context) -> tuple[Rule, list[str]]:
        """Return the weighted mean."""
        return linear(self.weights or ()), []
