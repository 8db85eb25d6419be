"""Rows of the results of a study about its adaptations: budget, learning curves, importance, and masked text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import read_lines
from acclimate.base.records import Record, optional

CURVE_POINTS = 200
"""Maximum points of a learning curve in the results; longer curves are thinned."""


ORIGIN = ("generator", "prompts")
"""Notes of an operation that wrote text: the name of the function or model, and the digests of its prompts."""


class Change(Record):
    """A measurement of the base model and of the adapted one.

    Attributes:
        name: What it is measured on.
        unit: Unit of the values: that of a loss, or ``"% followed"``.
        count: Number of documents or instructions.
        low: Lower end of the 95 % interval of after minus before, over these.
    """

    name: str
    unit: str
    count: int
    before: float
    after: float
    difference: float
    low: float
    high: float

    def shown(self) -> list[str]:
        """Return the values before and after, the difference and the ends of its interval, as text."""
        digits = 1 if "%" in self.unit else 3
        values = [f"{value:.{digits}f}" for value in (self.before, self.after)]
        return [*values, *(f"{value:+.{digits}f}" for value in (self.difference, self.low, self.high))]

    def describe(self) -> str:
        """Return the change in one line."""
        before, after, change, low, high = self.shown()
        return (
            f"{self.name[:1].upper()}{self.name[1:]}, {self.unit}: {before} before, {after} after (difference "
            f"{change}, 95 % interval {low} to {high}; {self.count:,} items)"
        )


class CurvePoint(Record):
    """A point of a learning curve."""

    step: int | None = optional()
    tokens: int | None = optional()
    loss: float | None = optional()
    terms: dict[str, float] = field(default_factory=dict)


def read_log(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a ``log.jsonl``. Invalid lines are skipped; a missing file has none."""
    try:
        lines = read_lines(log)
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def read_curves(log: Path) -> dict[str, list[CurvePoint]]:
    """Read the losses in training, on held-out and on general text from a log. Invalid lines are skipped.

    Args:
        log: A ``log.jsonl``; if it is missing, all curves are empty.

    Returns:
        ``curve``, the training loss, ``heldout_curve`` and ``general_curve``, each with at most :data:`CURVE_POINTS`
        points.
    """
    found: dict[str, list[CurvePoint]] = {"curve": [], "heldout_curve": [], "general_curve": []}
    for entry in read_log(log):
        kinds: list[str] = [name for name in ("heldout", "general") if name in entry]
        for kind in kinds or [""]:
            with suppress(TypeError, ValueError, UserError):
                point = CurvePoint.from_dict({**entry, **(entry[kind] if kind else {})})
                found[f"{kind}_curve" if kind else "curve"].append(point)
    return {kind: _thinned(points) for kind, points in found.items()}


def _thinned(points: list[CurvePoint]) -> list[CurvePoint]:
    if len(points) <= CURVE_POINTS:
        return points
    chosen = np.unique(np.linspace(0, len(points) - 1, CURVE_POINTS).round().astype(int))
    return [points[index] for index in chosen]


class UnreadRecords(Record):
    """Records of a corpus that could not be read."""

    records: int
    documents: int
    first: str


class OperationAccount(Record):
    """Report of an operation, such as a selection, on the documents of a text.

    Attributes:
        operation: The operation with the parameters that differ from the defaults.
        name: Name of the operation.
        kind: Kind of the operation: ``selection`` or ``transform``.
        settings: All parameters.
        counted_by: Kind of the tokens: words and punctuation marks, or tokens of a tokenizer.
        kept: Beginnings of a few documents of the result.
        dropped: Beginnings of a few documents that are not in the result.
        sources: Names of the files and datasets that were read.
        notes: Further values that the operation reports, by name.
    """

    operation: str
    name: str
    kind: str = "selection"
    settings: dict[str, Any] = field(default_factory=dict)
    counted_by: str = "words"
    documents_in: int
    documents_out: int
    tokens_in: int
    tokens_out: int
    kept: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> str:
        """Return the operation and its counts as one line."""
        if self.kind != "selection":
            return (
                f"{self.operation}: {self.documents_out:,} documents from {self.documents_in:,}, "
                f"{self.tokens_out:,} {self.counted_by} from {self.tokens_in:,}"
            )
        return (
            f"{self.operation}: {self.documents_out:,} of {self.documents_in:,} documents, {self.tokens_out:,} of "
            f"{self.tokens_in:,} {self.counted_by}"
        )

    def without_texts(self) -> OperationAccount:
        """Return the report with counts and numbers only; the file next to the text keeps all of it."""
        notes = {name: _without_texts(value) for name, value in self.notes.items()}
        read = {name: self.notes[name] for name in ("read", *ORIGIN) if name in self.notes}
        return replace(self, kept=[], dropped=[], notes={n: v for n, v in notes.items() if v is not None} | read)

    def public(self) -> dict[str, Any]:
        """Return the fields that may be published with a model: neither texts nor names of files."""
        shown = {"operation": self.name, "kind": self.kind, "counted_by": self.counted_by}
        names = ("documents_in", "documents_out", "tokens_in", "tokens_out")
        settings = {name: value for name, value in self.settings.items() if not isinstance(value, str | list)}
        datasets = [name.removeprefix("hf:").split(":")[0] for name in self.sources if name.startswith("hf:")]
        origin = {name: self.notes[name] for name in ORIGIN if name in self.notes}
        values = {name: getattr(self, name) for name in names}
        return {**shown, "settings": settings, **values, "datasets": datasets, **origin}


def _without_texts(value: Any) -> Any:
    """Return a value without the texts in it; None for a text, and for a list with one."""
    if isinstance(value, Mapping):
        made = {name: _without_texts(one) for name, one in value.items()}
        return {name: one for name, one in made.items() if one is not None}
    if isinstance(value, list | tuple):
        return None if any(_without_texts(one) is None for one in value) else list(value)
    return None if isinstance(value, str) else value


class SelectionRow(Record):
    """The operations on the text that a row of a study adapts to.

    Attributes:
        domain: Name of the domain.
        method: Label of a method with a selection of its own; None for the domain's selection.
        accounts: Reports of the operations in their order.
    """

    domain: str
    method: str | None = None
    accounts: list[OperationAccount] = field(default_factory=list)


class PartImportance(Record):
    """Importance of the units of one part of a model.

    Attributes:
        name: Name of the units, such as ``"attention heads"``.
        layers: Number of layers.
        units: Number of units per layer.
        sorted: Whether the units are a sample in descending order of ``raw``, instead of all in their order.
        raw: Importance as measured (layers, units).
        protection: Importance as normalized, from 0 to 1 (layers, units).
    """

    name: str
    layers: int
    units: int
    sorted: bool
    raw: list[list[float]]
    protection: list[list[float]]


class Importance(Record):
    """Importance of heads and units, as a method such as ``dga`` measured it.

    Attributes:
        measured: Description of the measurement.
        tokens: Tokens read; None if none were.
        standard_error: Standard error of the importance; None if unknown.
        parts: Importance by the letter of the part.
    """

    measured: str
    tokens: int | None = optional()
    standard_error: float | None = optional()
    parts: dict[str, PartImportance]


class AdaptationRow(Record):
    """One adaptation: its budget, duration and learning curve.

    Attributes:
        domain: Name of the domain; None for the warm-up of a head.
        head: Whether it is the warm-up of a head that the checkpoint lacked.
        folder: Folder of the model, relative to the study's folder.
        seconds: Duration of training.
        broken: Records that could not be read; None if all could.
        preparation: Records of the method from before training, by file name.
        importance: Importance of heads and units that the method measured, for the heat map.
        mix: Statistics of each text, if there were several, see
            :meth:`acclimate.adaptation.mixture.Mixture.describe`.
    """

    model: str | None
    domain: str | None
    method: str
    task: str | None = None
    head: bool = False
    seed: int | None = None
    folder: str = ""
    steps: int | None = None
    tokens: int | None = None
    seconds: float | None = None
    losses: dict[str, float] | None = None
    broken: UnreadRecords | None = None
    preparation: dict[str, Any] = field(default_factory=dict)
    importance: Importance | None = None
    curve: list[CurvePoint] = field(default_factory=list)
    heldout_curve: list[CurvePoint] = field(default_factory=list)
    general_curve: list[CurvePoint] = field(default_factory=list)
    mix: list[dict[str, Any]] = field(default_factory=list)


Replacement = Literal["", "mask", "random", "unchanged"]
"""Replacement of a token; empty if it was not selected for prediction."""


class MaskedToken(TypedDict):
    """A token of a masked text.

    Keys:
        text: Characters of the original token.
        space: Whether to show a space before it.
        replacement: Replacement of the token.
        replaced_by: Characters of the replacement if ``replacement`` is ``"random"``.
        important: True if a token classifier found the token important to the end task; otherwise absent.
    """

    text: str
    space: bool
    replacement: Replacement
    replaced_by: str
    important: NotRequired[bool]


class MaskedTexts(TypedDict):
    """A few texts of a corpus, masked with one strategy.

    Keys:
        masking: Name of the masking strategy.
        texts: The tokens of each text.
    """

    masking: str
    texts: list[list[MaskedToken]]


class MaskedSample(Record):
    """A text of a domain under each masking strategy of a study, by label."""

    domain: str
    maskings: dict[str, list[MaskedToken]]
