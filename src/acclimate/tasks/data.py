"""A labelled end task: three splits of texts (or pairs of texts) with one label each, or with any number of them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from acclimate.errors import UserError, unknown
from acclimate.evaluation.scoring import MultiLabel, Scoring, SingleLabel
from acclimate.tasks.folders import SPLITS


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or pair of texts."""

    text: str
    text_pair: str | None
    label: int | tuple[int, ...]
    """Place of the label in :attr:`Task.labels`; in a multi-label task the places of all, ascending."""
    document: str | None = None
    """What the text is a part of, where a multi-label task is scored by document too."""

    @property
    def places(self) -> tuple[int, ...]:
        """The places of its labels, in either kind of task."""
        return (self.label,) if isinstance(self.label, int) else self.label


@dataclass(frozen=True)
class Task:
    """A classification task.

    Labels are in a fixed order that depends on the train labels alone: by number if all are whole numbers, else
    alphabetical.
    """

    default_length: ClassVar[int] = 128
    """The tokens that are read of an example unless something else is said."""

    name: str
    train: list[Example]
    test: list[Example]
    labels: list[str]
    dev: list[Example] = field(default_factory=list)
    path: Path | None = None
    multi_label: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        train: Iterable[Mapping[str, Any]],
        test: Iterable[Mapping[str, Any]],
        dev: Iterable[Mapping[str, Any]] = (),
    ) -> Task:
        """Make a task from rows ``{"text", "text_pair"?, "label", "document"?}`` in memory.

        Raises:
            UserError: As :func:`acclimate.tasks.load_task`.
        """
        from acclimate.tasks.labels import build_task

        splits = {"train": train, "dev": dev, "test": test}
        return build_task(
            name,
            {
                split: [(f"{name}/{split}: row {number}", dict(row)) for number, row in enumerate(rows, 1)]
                for split, rows in splits.items()
            },
        )

    @property
    def kind(self) -> str:
        """``"single_label"`` or ``"multi_label"``."""
        return MultiLabel.kind if self.multi_label else SingleLabel.kind

    @property
    def is_pair(self) -> bool:
        """Say whether each row has two texts."""
        return self.train[0].text_pair is not None

    def scoring(self, split: str = "test", negative: Sequence[str] | None = None) -> Scoring:
        """Return how predictions for a split are scored.

        Args:
            split: ``"test"`` or ``"dev"``.
            negative: Labels that stand for "none of these"; with them there is ``positive_micro_f1``.

        Raises:
            UserError: If ``negative`` names no label, or all, or the task is multi-label, where an empty list says it.
        """
        if not self.multi_label:
            return SingleLabel(self._numbers(negative or ()))
        if negative:
            raise UserError(f"'{self.name}' has lists of labels, so it needs no negative label; leave 'negative' out.")
        documents = [example.document for example in getattr(self, split)]
        if None in documents:
            return MultiLabel(len(self.labels))
        order = {name: number for number, name in enumerate(dict.fromkeys(documents))}
        return MultiLabel(len(self.labels), tuple(order[name] for name in documents))

    def _numbers(self, labels: Sequence[str]) -> tuple[int, ...]:
        for label in labels:
            if label not in self.labels:
                raise unknown(f"negative label of the task '{self.name}'", label, self.labels)
        if len(set(labels)) == len(self.labels):
            raise UserError(f"Every label of the task '{self.name}' is called negative; leave at least one positive.")
        return tuple(sorted({self.labels.index(label) for label in labels}))

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything in the task that can change a result.

        That is the splits with their texts, labels and order, as they were read: neither the name nor the format,
        nor columns that are not used. It belongs to what was loaded, also if the files change later.
        """
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.labels).encode())
        for split in SPLITS:
            digest.update(f"\n{split}\n".encode())
            for example in getattr(self, split):
                values = [example.text, example.text_pair, example.label]
                values += [] if example.document is None else [example.document]
                digest.update(json.dumps(values).encode() + b"\n")
        return digest.hexdigest()

    def few_shot(self, count: int, seed: int) -> list[Example]:
        """Draw ``count`` train examples of each class, all of a class that has fewer, in the order of the file.

        In a multi-label task the examples without a label are one more class, and an example that is drawn for
        several labels is there once, so that a label can have more than ``count``.

        Raises:
            UserError: If ``count`` is below one.
        """
        if count < 1:
            raise UserError(f"few_shot={count} leaves nothing to train on; ask for at least 1 example per class.")
        members: dict[int, list[int]] = {label: [] for label in range(len(self.labels) + self.multi_label)}
        for place, example in enumerate(self.train):
            for label in example.places or (len(self.labels),):
                members[label].append(place)
        kept: set[int] = set()
        for label, places in members.items():
            # A generator per class: one more example of a class does not change what is drawn of the others.
            kept.update(random.Random(f"{seed}/{label}").sample(places, min(count, len(places))))
        return [self.train[place] for place in sorted(kept)]
