"""Changes by an adaptation: losses on held-out and general text, and the instructions that a chat model follows."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acclimate.adaptation.replay_options import list_replayed
from acclimate.adaptation.run import Feature, Run
from acclimate.base.errors import UserError, first_line
from acclimate.base.progress import print_message
from acclimate.data.documents import as_corpus, subsample_documents
from acclimate.evaluation.instructions import check_answers, measure_instructions
from acclimate.evaluation.lm_loss import language_model_loss, open_language_model
from acclimate.evaluation.significance import Interval, paired_bootstrap, paired_difference
from acclimate.models.kinds import get_kind
from acclimate.results.adaptations import Change

DOCUMENTS = 100
"""Maximum number of documents of each text."""

log = logging.getLogger(__name__)


class Changes(Feature):
    """What is measured of the base model and of the adapted one.

    Attributes:
        base: The base model.
        texts: The texts that losses are measured on, by option.
        instructions: Whether the included instructions are given.
    """

    def __init__(self, run: Run) -> None:
        """Open the texts.

        Raises:
            UserError: If a text does not exist, or instructions are asked for and the model has no chat template.
        """
        given = run.options
        self.base, self.instructions = str(given.model), given.instructions
        texts = {"heldout": given.heldout, "general": given.general}
        self.texts = {option: as_corpus(text, given) for option, text in texts.items() if text is not None}
        if self.instructions:
            check_answers(self.base)
        if given.general is not None and _is_read(given):
            log.warning(
                "The training reads the general text, too, so its loss cannot show what is forgotten: give text that "
                "is not read with --general."
            )

    @classmethod
    def of(cls, run: Run) -> Changes | None:
        """Return what a run measures; None if the model does not change, or is made later."""
        trains = run.method.trains or run.method.stages()
        return cls(run) if trains and not callable(run.options.model) else None

    def identity(self) -> dict[str, Any]:
        """Return the hashes of the texts."""
        return {option: text.fingerprint for option, text in self.texts.items()}

    def finish(self, run: Run, folder: Path) -> None:
        """Measure the base model and the one that was written; a failure is a warning, since the model is made."""
        print_message("Measuring the base model and the adapted one.", enabled=run.progress)
        try:
            run.result.changes = [*self._losses(folder, run.max_length), *self._instructions(folder)]
        except (UserError, torch.OutOfMemoryError) as error:
            log.warning("The change by the adaptation was not measured. %s", first_line(error))

    def _losses(self, folder: Path, length: int) -> Iterator[Change]:
        texts = [subsample_documents(corpus, DOCUMENTS) for corpus in self.texts.values()]
        measured = [_measure_losses(model, texts, length) for model in (self.base, folder) if texts]
        for option, *sides in zip(self.texts, *measured, strict=True):
            yield _compare_losses({"heldout": "held-out text", "general": "general text"}[option], *sides)

    def _instructions(self, folder: Path) -> Iterator[Change]:
        if self.instructions:
            before, after = (measure_instructions(model)["followed"] for model in (self.base, folder))
            found = paired_bootstrap([1] * len(before), [after], [before], "accuracy")
            yield _change("instructions", "% followed", len(before), np.mean(before), np.mean(after), found, 100)


def _is_read(given: Any) -> bool:
    """Return whether training also reads a part of the general text, by name."""

    def parts(text: Any) -> set[Any]:
        several = text if isinstance(text, list | tuple) else [text]
        return {os.path.abspath(one) if isinstance(one, str | Path) else id(one) for one in several}

    texts = [given.corpus, *(given.sources or {}).values(), *(one.what for one in list_replayed(given.replay))]
    general = parts(given.general)
    return any(general & parts(text) for text in texts)


def _measure_losses(path: str | Path, texts: Sequence[Sequence[str]], length: int) -> list[dict[str, Any]]:
    loaded = open_language_model(path)
    return [
        language_model_loss(loaded.model, documents, tokenizer=loaded.tokenizer, max_length=length)
        for documents in texts
    ]


def _compare_losses(name: str, base: dict[str, Any], adapted: dict[str, Any]) -> Change:
    """Return the change of the loss on a text, per byte where the two models do not have the same tokens."""
    kind = get_kind(base["kind"])
    unit, counts, scale = kind.loss_unit, "per_text_masked", 1.0
    if base[counts] != adapted[counts]:
        if kind.uses_masking:
            raise UserError(f"The models have different tokens, so their losses on {name} cannot be compared.")
        unit, counts, scale = "bits per byte", "per_text_bytes", math.log(2)
    size = scale * np.asarray(base[counts], dtype=float)
    used = size > 0
    old, new = (np.asarray(side["per_text"])[used] / size[used] for side in (base, adapted))
    before, after = (np.average(values, weights=size[used]) for values in (old, new))
    return _change(f"loss on {name}", unit, len(old), before, after, paired_difference(new, old, size[used]))


def _change(name: str, unit: str, count: int, before: Any, after: Any, found: Interval, scale: int = 1) -> Change:
    ends = {end: scale * float(getattr(found, end)) for end in ("difference", "low", "high")}
    return Change(name=name, unit=unit, count=count, before=scale * float(before), after=scale * float(after), **ends)
