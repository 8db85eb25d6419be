"""Distillation from a teacher per source of text: domain experts that are switched by the domain of the text."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    LanguageModelling,
    Method,
    Objective,
    UserError,
    check_not_negative,
    check_positive,
    model_fingerprint,
    register_method,
    unknown_name_error,
)
from acclimate.papers.teachers.objective import TeacherDistillation


def parse_teachers(given: Any) -> Any:
    """Return ``domain=PATH,law=PATH``, or a single path for the domain text, as a mapping.

    Raises:
        ValueError: If there is none, a name is missing or one is duplicated.
    """
    if not isinstance(given, str):
        return given
    pairs = [part.strip().partition("=") for part in given.split(",") if part.strip()]
    if len(pairs) == 1 and not pairs[0][1]:
        return {"domain": pairs[0][0]}
    named = {name.strip(): path.strip() for name, mark, path in pairs if mark}
    if not named or len(named) != len(pairs):
        raise ValueError("give one teacher per source of text, such as domain=experts/law,general=base")
    return named


@register_method(
    "teachers",
    paper="Kothari et al., 2024",
    summary="language modelling plus predictions distilled from one or several teachers, each for its source of text",
)
@dataclass
class Teachers(Method):
    """L = mean over predicted tokens of alpha CE(token) + (1 - alpha) T^2 KL(teacher || model).

    The teacher is that of the source of the text: the domain text (``domain``), a source of a mix by its name, or
    replayed text by the name of its file. Tokens of a source without a teacher have CE(token) alone, with the weight
    1. So both losses of a token have the same weights whatever share of the text is taught. The paper gives no
    weights.

    Attributes:
        teachers: Models by source, as ``domain=experts/law,general=base``, or as a mapping in Python and study files.
            A single model teaches the domain text. They have the tokenizer of the model and may be larger. By default
            the base model teaches all texts (learning without forgetting, Li and Hoiem, 2016).
        alpha: Weight of the LM loss.
        temperature: T, which divides the logits of all models.
    """

    purpose: ClassVar[str] = "Forget less"
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal", "seq2seq")
    cost: ClassVar[float] = 1.4
    files: ClassVar[tuple[str, ...]] = ("teachers",)

    teachers: Annotated[dict[str, str] | None, BeforeValidator(parse_teachers)] = None
    alpha: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_not_negative(alpha=self.alpha)
        check_positive(temperature=self.temperature)
        if self.alpha >= 1:
            raise UserError(f"alpha must be below 1, not {self.alpha:g}: the teachers have the weight 1 - alpha.")
        if self.teachers is not None and not self.teachers:
            raise UserError("teachers is empty; name one, or leave it out for the base model.")
        self._term: TeacherDistillation | None = None  # set by `prepare`

    def check(self, run: AdaptContext) -> None:
        """Check the names of the sources."""
        super().check(run)
        for name in self.teachers or ():
            if name not in run.sources:
                raise unknown_name_error("source of text with a teacher", name, run.sources)

    def prepare(self, run: AdaptContext) -> None:
        """Load the teachers."""
        if self.teachers is None:
            base = copy.deepcopy(run.model).eval().requires_grad_(False)
            models = dict.fromkeys(range(len(run.sources)), base)
        else:
            self.check(run)  # once more: a mix may divide sources, and a part without texts is no source
            loaded = {path: run.load_reader(path) for path in dict.fromkeys(self.teachers.values())}
            models = {run.sources.index(name): loaded[path] for name, path in self.teachers.items()}
            if others := [name for name in run.sources if name not in self.teachers]:
                run.say(f"Sources without a teacher: {', '.join(others)}.")
        self._term = TeacherDistillation(models, 1 - self.alpha, self.temperature)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the distillation."""
        assert self._term is not None, "prepare first"
        return [LanguageModelling(self.alpha), self._term]

    def file_contents(self) -> dict[str, str]:
        """Return a hash of each teacher."""
        given: Mapping[str, str] = self.teachers or {}
        return super().file_contents() | {f"teacher {name}": model_fingerprint(path) for name, path in given.items()}
