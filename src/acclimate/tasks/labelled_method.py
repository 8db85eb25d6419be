"""What methods have in common that learn labelled tasks while they adapt: examples, and heads that are discarded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import nn

from acclimate.adaptation.method import AdaptContext, Method
from acclimate.base.errors import UserError
from acclimate.base.files import find_file
from acclimate.data.rows import LeftOut, Row, RowError, read_rows
from acclimate.models.families import reads_segments
from acclimate.parts.masking import DrawExamples
from acclimate.parts.masking.rewriting import SECOND_SEGMENT
from acclimate.parts.objectives import BatchObjective, ClassificationHeads, LanguageModelling, Objective

HEADS_NAME = "acclimate_heads"
"""Name of the heads' submodule of the model during training, so that checkpoints include it."""


def encode_pairs(
    run: AdaptContext, texts: Sequence[str], seconds: Sequence[str] | None, length: int
) -> list[np.ndarray]:
    """Return the token ids of texts or pairs, at most ``length``, with the segments that fine-tuning gives them.

    Ids of a second segment have :data:`acclimate.parts.masking.rewriting.SECOND_SEGMENT` added if the model has
    segments.
    """
    read = run.tokenizer(texts, seconds, truncation=True, max_length=length, return_token_type_ids=True)
    offset = SECOND_SEGMENT if reads_segments(run.model) else 0
    parts = zip(read["input_ids"], read["token_type_ids"], strict=True)
    return [np.array(ids, dtype=np.int64) + offset * np.array(kinds, dtype=np.int64) for ids, kinds in parts]


def read_columns(file: str, columns: Sequence[str], what: str) -> list[tuple[str, ...]]:
    """Return the cells of some columns of a table, without the rows where one is empty, which are reported.

    Raises:
        UserError: If there is no such file, or too many rows cannot be used; ``what`` says what the table holds.
    """
    if (path := find_file(file)) is None:
        raise UserError(f"There is no file '{file}' with the {what}.")

    def read(row: Row) -> tuple[str, ...]:
        where, cells = row
        found = tuple(str(cells.get(column) or "").strip() for column in columns)
        if "" in found:
            raise RowError(where, f"without a {columns[found.index('')]}")
        return found

    left = LeftOut(path.name, what=what)
    rows = read_rows(path, columns, broken=left.errors.setdefault(what, []))
    kept = left.read(what, rows, read)
    left.report({what: kept})
    return kept


def check_single_label(method: str, tasks: Sequence[Any]) -> None:
    """Check that all tasks are classification with one label per text or pair of texts.

    Raises:
        UserError: If one is not; ``method`` is named in the message.
    """
    for task in tasks:
        if not hasattr(task, "scoring") or task.scoring().name != "single_label":
            raise UserError(
                f"Method '{method}' learns tasks with one label per text, and '{task.name}' is another kind of task; "
                "remove it."
            )


@dataclass
class LabelledMethod(Method):
    """A method whose steps read an example of labelled tasks for each text."""

    without_adapter: ClassVar[str] = "it trains heads of its own, which an adapter would leave out"

    def draw_examples(self, run: AdaptContext, tasks: Sequence[Any]) -> DrawExamples:
        """Return what draws the train examples of the tasks, of which ``len(task.labels)`` classes are known.

        Raises:
            UserError: If a task is of another kind than classification with one label per text.
        """
        self.check_tasks(tasks)
        return DrawExamples([self._tokenize(run, task, run.max_length) for task in tasks])

    def check_tasks(self, tasks: Sequence[Any]) -> None:
        """Check that all tasks are of the kind that :func:`check_single_label` accepts."""
        check_single_label(self.name, tasks)

    def add_heads(self, run: AdaptContext, tasks: Sequence[Any], **others: nn.Module) -> ClassificationHeads:
        """Add a head per task, and other modules, to the model, where they are trained; return the heads."""
        width = run.model.config.get_text_config().hidden_size
        heads = ClassificationHeads(width, [len(task.labels) for task in tasks])
        self.attach_heads(run, tasks=heads, **others)
        return heads

    def attach_heads(self, run: AdaptContext, **heads: nn.Module) -> None:
        """Add modules to the model until the training has finished."""
        run.model.add_module(HEADS_NAME, nn.ModuleDict(heads).to(run.device))

    def read_codes(self, run: AdaptContext, file: str | None) -> tuple[dict[str, str], str]:
        """Return the code of each text of a table, and a note on rows that are left out.

        Of rows with the same text the first one counts. Without a file, the rows are those of the train split of the
        task.

        Raises:
            UserError: If there are no rows, the task has no single labels, or a value is missing.
        """
        codes: dict[str, str] = {}
        rows = 0
        for text, code in self.coded_rows(run, file):
            codes.setdefault(text, code)
            rows += 1
        if not codes:
            raise UserError(f"The taxonomy '{file}' has no rows; give a table of text and code.")
        repeated = rows - len(codes)
        return codes, f"; left out because the text occurred before: {repeated:,}" if repeated else ""

    def coded_rows(
        self, run: AdaptContext, file: str | None, what: str = "taxonomy", columns: Sequence[str] = ("text", "code")
    ) -> Iterator[tuple[str, ...]]:
        """Yield the text and the code of each row of a table, or of the train split of the task without a file.

        With other ``columns``, the values of these are yielded, and there has to be a file.

        Raises:
            UserError: As :meth:`read_codes`.
        """
        if file is None:
            if run.task is None or len(columns) > 2:
                named = " and ".join((", ".join(columns[:-1]), columns[-1]))
                raise UserError(
                    f"Method '{self.name}' needs a {what}; give a table of {named} as '{self.name} {what}=FILE'"
                    + (", or a labelled task with --task." if len(columns) == 2 else ".")
                )
            self.check_tasks([run.task])
            yield from ((example.text, run.task.labels[example.label]) for example in run.task.train)
            return
        yield from read_columns(file, columns, what)

    @staticmethod
    def language_modelling(weight: float) -> list[Objective | BatchObjective]:
        """Return the LM loss; nothing if its weight is 0."""
        return [LanguageModelling(weight)] if weight else []

    def finish(self, run: AdaptContext) -> None:
        """Remove the heads from the model."""
        delattr(run.model, HEADS_NAME)

    def _tokenize(self, run: AdaptContext, task: Any, length: int) -> list[tuple[np.ndarray, int]]:
        """Return the token ids, at most ``length``, and the class of each train example."""
        texts = [example.text for example in task.train]
        pairs = [example.text_pair for example in task.train] if task.is_pair else None
        rows = run.tokenizer(texts, pairs)["input_ids"]
        cut = encode_pairs(run, texts, pairs, length)
        found = [(row, example.label) for row, example in zip(cut, task.train, strict=True) if len(row)]
        if not found:
            raise UserError(f"The tokenizer finds no token in the examples of the task '{task.name}'.")
        shortened = sum(len(row) > length for row in rows)
        run.say(
            f"Task '{task.name}': {len(found):,} labelled examples with {len(task.labels)} classes"
            + (f"; cut to {length} tokens: {shortened:,}" if shortened else "")
            + (f"; left out because they have no token: {len(cut) - len(found):,}" if len(found) < len(cut) else "")
            + "."
        )
        return found
