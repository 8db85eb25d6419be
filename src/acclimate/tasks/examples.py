"""What the tasks of all kinds have in common: three splits of examples, their groups, their hash, and small draws."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from acclimate.base.errors import UserError
from acclimate.evaluation.scoring import Scoring
from acclimate.tasks.drawing import draw_places, draw_splits
from acclimate.tasks.groups import describe_groups, number_known_groups
from acclimate.tasks.readers import SPLITS, fold_text


@dataclass(frozen=True, slots=True)
class Example:
    """An example of a task: a row with its answer."""

    _: KW_ONLY
    group: str | None = None
    """Name of what it shares with others that are not independent of it, such as a document; None if not known."""
    row: str = field(default="", compare=False)
    """Where it is in the file of the user, such as ``tickets.csv:829``; empty if that is not known."""

    @property
    def texts(self) -> tuple[str | None, ...]:
        """The texts that a language model can learn from, without the answer."""
        raise NotImplementedError

    @property
    def item_text(self) -> str:
        """The text that identifies it: if it is also in another split, that is contamination."""
        return "\n".join(text for text in self.texts if text is not None)

    @property
    def item(self) -> str:
        """What stays in one split: its texts, without differences of case and blanks."""
        return "\n".join(fold_text(text) for text in self.texts if text is not None)

    @staticmethod
    def strata(examples: Sequence[Any]) -> Sequence[Sequence[Any]]:
        """Return the classes of each example, which keep their shares when a split is drawn; empty for none."""
        return [()] * len(examples)


@dataclass(frozen=True, slots=True)
class TextExample(Example):
    """A text, or a pair of texts."""

    text: str
    text_pair: str | None

    @property
    def texts(self) -> tuple[str | None, ...]:
        """The text, and the second text of a pair."""
        return self.text, self.text_pair


ExampleT = TypeVar("ExampleT", bound=Example)
ORIGIN = ("name", "path", "drawn", "reading")
"""Fields of a task that say where it is from."""


def _values(part: Any) -> list[Any]:
    """Return all fields of a part of an example that can change a result, for JSON."""
    return [getattr(part, field.name) for field in fields(part) if field.name != "row"]


@dataclass(frozen=True, repr=False)
class Examples(Generic[ExampleT]):
    """A task, which is shown by its name, kind and sizes and not by all its texts."""

    task_kind: ClassVar[str]
    default_length: ClassVar[int]
    """Default maximum tokens per example, or per window of it."""
    least_examples: ClassVar[int] = 1
    """Fewest train examples that can be learned from."""
    items: ClassVar[str] = "rows"
    """What the examples are, in the plural."""
    drawn_by: ClassVar[str] = ""
    """What else holds for splits that are drawn from train, such as ``every class in proportion``."""
    scored_by: ClassVar[type[Scoring]]
    no_negative: ClassVar[str] = "has no labels"
    """Why ``negative`` does not apply."""
    contrasts_in_batch: ClassVar[bool] = False
    """Whether examples of a step are contrasted with each other, so that the loss of a smaller last step is lower."""

    name: str
    train: list[ExampleT]
    test: list[ExampleT]
    labels: list[str] = field(default_factory=list)
    """The classes; empty if there is no fixed set of answers."""
    dev: list[ExampleT] = field(default_factory=list)
    _: KW_ONLY
    path: Path | None = None
    drawn: str = ""
    """A sentence on the splits that were drawn from train; empty if none were."""
    reading: dict[str, Any] = field(default_factory=dict)
    """The options with which later texts are read in the same way, and the counts of what was masked."""
    group_name: str = "document"
    """What a group is, in the singular; see :mod:`acclimate.tasks.groups`."""

    @classmethod
    def divided(
        cls, name: str, splits: Mapping[str, list[ExampleT]], seed: int | None, *, group_name: str, **own: Any
    ) -> Self:
        """Make a task; without a test split it is drawn from train, and so is dev if that is missing, too.

        Args:
            name: Name of the task.
            splits: The examples of each split.
            seed: Random seed of splits that are drawn; with None, none are.
            group_name: What a group is.
            own: Other fields.

        Raises:
            UserError: If there are too few examples to draw a split.
        """
        found: dict[str, Any] = {split: splits.get(split) or [] for split in SPLITS}
        drawn = ""
        if seed is not None and not found["test"]:
            strata = found["train"][0].strata(found["train"]) if found["train"] else []
            how = {"items": cls.items, "group_name": group_name, "rule": cls.drawn_by}
            drawn = draw_splits(found, name, strata, seed, **how)
        return cls(name, **found, drawn=drawn, group_name=group_name, **own)

    def scored_rows(self, split: str) -> Sequence[Any]:
        """Return a row of each item of a split that is scored, in order."""
        rows: Sequence[Any] = getattr(self, split)
        return rows

    def row_names(self, split: str) -> list[str]:
        """Return the id of each item of a split that is scored, or its row in the file of the user."""
        return [getattr(row, "id", "") or row.row for row in self.scored_rows(split)]

    def groups(self, split: str = "test") -> tuple[int, ...] | None:
        """Return the number of the group of each item of a split that is scored, counted from zero.

        Items of one group are not independent. An item whose group is not known is a group of its own; None if no
        group is known.
        """
        return number_known_groups(getattr(row, "group", None) for row in self.scored_rows(split))

    def grouping(self, split: str) -> dict[str, Any]:
        """Return the groups of a split and their name, as arguments of a scoring."""
        return {"groups": self.groups(split), "group_name": self.group_name}

    def describe_groups(self, texts: Callable[[Any], Iterable[str | None]]) -> list[str]:
        """Return what a user should know about the groups; see :func:`acclimate.tasks.groups.describe_groups`."""
        return describe_groups(self, texts)

    def scoring(self, split: str = "test", negative: Sequence[str] | None = None) -> Scoring:
        """Return how predictions for a split are scored: intervals are over its groups, if any are known.

        Args:
            split: ``"test"`` or ``"dev"``.
            negative: Labels that mean "none of these"; classification only.

        Raises:
            UserError: If ``negative`` is given and does not apply.
        """
        if negative:
            raise UserError(f"'{self.name}' {self.no_negative}, so 'negative' does not apply; remove it.")
        return self.scored_by(**self._scoring_fields(split), **self.grouping(split))

    def _scoring_fields(self, split: str) -> dict[str, Any]:
        """Return what the scoring needs besides the groups."""
        return {}

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything in the task that can change a result.

        That is every field of the task and of its examples, in the order of the splits, but for its name and where it
        is from. It does not change if the files change later.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in (*SPLITS, *ORIGIN)}
        digest = hashlib.sha256(json.dumps([self.task_kind, own], sort_keys=True).encode())
        for split in SPLITS:
            digest.update(f"\n{split}\n".encode())
            for example in getattr(self, split):
                digest.update(json.dumps(example, default=_values).encode() + b"\n")
        return digest.hexdigest()

    def few_shot(self, count: int, seed: int) -> list[ExampleT]:
        """Draw ``count`` train examples, or all if there are fewer, from as many groups as possible.

        Returns:
            The examples in the order of the file.

        Raises:
            UserError: If ``count`` is too small.
        """
        self._check_few_shot(count)
        drawn = draw_places(self.train, range(len(self.train)), count, random.Random(f"{seed}"))
        return [self.train[place] for place in sorted(drawn)]

    def _check_few_shot(self, count: int) -> None:
        if count < (least := self.least_examples):
            problem = "leaves nothing to train on" if least == 1 else f"is too few for {self.task_kind}"
            raise UserError(f"few_shot={count} {problem}; it must be at least {least}.")

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(getattr(self, split)):,} {split}" for split in SPLITS)
        more = f" and {len(self.labels) - 8} more" if len(self.labels) > 8 else ""
        classes = f"; labels: {', '.join(self.labels[:8])}{more}" if self.labels else ""
        return f"<{type(self).__name__} '{self.name}': {sizes}{classes}>"
