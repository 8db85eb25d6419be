"""What later steps read of the record of a fine-tuning: its kind of task, and how texts were read."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from acclimate.base.errors import UserError, first_line
from acclimate.base.files import RECORD_FILE, local_folder
from acclimate.base.options import build
from acclimate.base.records import Record, read_record
from acclimate.data.reading import ReadingOptions
from acclimate.data.task_kinds import READ_ALIKE


class _TrainedOptions(Record):
    max_length: Annotated[int, 1] | None = None
    first_stage: str | None = None


class _TrainedIdentity(Record):
    options: _TrainedOptions = field(default_factory=_TrainedOptions)


class _TrainedResult(Record):
    kind: str = ""
    reading: dict[str, Any] = field(default_factory=dict)


class TrainingRecord(Record):
    """What is read of the record of a fine-tuning, see :meth:`acclimate.tasks.result.RunFolder.write`."""

    identity: _TrainedIdentity = field(default_factory=_TrainedIdentity)
    result: _TrainedResult = field(default_factory=_TrainedResult)


def read_training(model: str | Path) -> TrainingRecord:
    """Return the record of the fine-tuning of a model; an empty one if there is none.

    Raises:
        UserError: If it is damaged.
    """
    folder, remedy = local_folder(model), "fine-tune again, or delete it to give its options yourself"
    if folder is None or not (file := folder / RECORD_FILE).is_file():
        return TrainingRecord()
    found = read_record(file, TrainingRecord, remedy)
    try:
        build(ReadingOptions, **{name: value for name, value in found.result.reading.items() if name in READ_ALIKE})
    except UserError as error:
        raise UserError(f"'{file}' is damaged ({first_line(error).removesuffix('.')}); {remedy}.") from error
    return found
