"""Results of a study: the content of ``results.json``, from which reports and model cards are made.

The modules ``results``, ``rows``, ``adaptation_rows`` and ``records`` belong to no package, since studies write
results and reports read them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acclimate.adaptation_rows import AdaptationRow, MaskedSample
from acclimate.errors import UserError
from acclimate.files import read_json
from acclimate.records import Record, optional
from acclimate.rows import (
    ContaminationRow,
    DistillationRow,
    DriftRow,
    ForgettingRow,
    LossRow,
    MeanRow,
    ScoreRow,
    SearchRow,
    WinCount,
)

FORMAT = 2
"""Version of the layout of ``results.json``."""


@dataclass(kw_only=True, eq=False)
class MethodRow(Record):
    """A row label of the study.

    Attributes:
        name: Name of the method, or of the kind of job, such as ``"distill"``.
        parameters: Parameters as they were used, defaults included.
    """

    label: str
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Sample(Record):
    """An example of a task that the study file gives."""

    text: str
    label: str | None = optional()


@dataclass(kw_only=True, eq=False)
class Failure(Record):
    """A job without a result.

    Attributes:
        job: Description of the job.
        error: The reason.
        state: ``"failed"``, ``"blocked"`` by a job that failed, or ``"missing"``.
    """

    job: str
    error: str
    state: str


@dataclass(kw_only=True, eq=False)
class JobCounts(Record):
    """Number of jobs of a study by state.

    Attributes:
        done: Jobs that this call computed.
        reused: Jobs whose result was stored before.
        failed: Jobs that failed.
        blocked: Jobs that depend on a failed one.
        missing: Jobs that are left to other processes.
        left: Jobs without a result that the study needs.
    """

    total: int = 0
    done: int = 0
    reused: int = 0
    failed: int = 0
    blocked: int = 0
    missing: int = 0
    left: int = 0


@dataclass(kw_only=True, eq=False)
class StageName(Record):
    """How the report names a stage of :attr:`acclimate.rows.ScoreRow.stage_seconds`.

    Attributes:
        stage: Key of the stage.
        name: Title of its column.
        note: What its time includes, a sentence; empty if that is clear.
    """

    stage: str
    name: str
    note: str = ""


@dataclass(kw_only=True, eq=False)
class ReportTable(Record):
    """A table that a kind of job adds to the report.

    Attributes:
        rows: One list per row, as long as ``columns``: texts, numbers, or None for what does not apply.
        digits: Digits after the decimal point of numbers that are not whole.
    """

    title: str
    note: str = ""
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    digits: int = 3


@dataclass(kw_only=True, eq=False)
class StudyResults(Record):
    """All results of a study; :meth:`to_dict` is ``results.json``.

    Attributes:
        baseline: Label of the method that the others are compared with.
        shared_adaptation: Whether all seeds of fine-tuning start from one adaptation.
        stages: Names of the stages behind a score, in the order of the columns.
        searches: Settings that were chosen on dev.
        means: Means over tasks; empty with a single task.
        win_counts: Wins, ties and losses over tasks.
        forgetting: Scores on tasks of other domains.
        drift: How far adaptation moved embeddings and hidden states.
        contamination: Dev and test texts in corpora and train splits.
        unchecked: Corpora and train splits that should have been searched for dev and test texts but were not.
    """

    format: int = FORMAT
    name: str
    title: str = ""
    notes: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    finished: str = ""
    baseline: str = ""
    models: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    methods: list[MethodRow] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    adapt_seeds: list[int] = field(default_factory=list)
    shared_adaptation: bool = False
    stages: list[StageName] = field(default_factory=list)
    searches: list[SearchRow] = field(default_factory=list)
    scores: list[ScoreRow] = field(default_factory=list)
    means: list[MeanRow] = field(default_factory=list)
    win_counts: list[WinCount] = field(default_factory=list)
    losses: list[LossRow] = field(default_factory=list)
    forgetting: list[ForgettingRow] = field(default_factory=list)
    drift: list[DriftRow] = field(default_factory=list)
    contamination: list[ContaminationRow] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    adaptations: list[AdaptationRow] = field(default_factory=list)
    masked: list[MaskedSample] = field(default_factory=list)
    distillations: list[DistillationRow] = field(default_factory=list)
    tables: list[ReportTable] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    jobs: JobCounts = field(default_factory=JobCounts)
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> StudyResults:
        """Read a ``results.json``.

        Raises:
            UserError: If the file is missing or does not contain the results of a study.
        """
        try:
            values = read_json(path)
        except OSError as error:
            raise UserError(f"There are no results at '{path}'. Give the results.json of a study.") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"'{path}' is not JSON. Give the results.json of a study.") from error
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise UserError(f"'{path}' holds no results of format {FORMAT}. Give the results.json of a study.")
        return cls.from_dict(values)
