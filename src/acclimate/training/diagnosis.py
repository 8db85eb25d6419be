"""What to say when a training goes to NaN or infinity: which step, which term, which texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.device import autocast
from acclimate.errors import UserError
from acclimate.models.batching import MINIMAL_PADDING
from acclimate.training.batches import StepDataset
from acclimate.training.checkpoints import find_newest_checkpoint
from acclimate.training.engine import Engine

MAX_NAMED_TEXTS = 3
"""How many texts are named, and how many words of each are shown."""
SHOWN_WORDS = 6

log = logging.getLogger(__name__)


def make_divergence_error(
    engine: Engine, data: StepDataset, step: int, terms: dict[str, Tensor], learning_rate: float, work: Path
) -> UserError:
    """Make the error for a loss, a gradient or weights that are not finite.

    Args:
        engine: The one that trains.
        data: What it reads.
        step: Steps that were taken before this one.
        terms: Those of this step, with their sum as ``"loss"``.
        learning_rate: The peak.
        work: Where the checkpoints are.
    """
    values = {name: float(value) for name, value in terms.items()}
    bad = [name for name, value in values.items() if name != "loss" and not np.isfinite(value)]
    if bad:
        what = f"The loss is {values['loss']} at step {step + 1}: {_describe_terms(bad)} not finite"
    elif not np.isfinite(values["loss"]):
        what = f"The loss is {values['loss']} at step {step + 1}: each term is finite, their weighted sum is not"
    else:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name != "loss")
        what = f"At step {step + 1} the loss is finite ({shown}), but the gradient or a weight is not"
    kept = find_newest_checkpoint(work)
    last = f"checkpoint of step {kept.name.rpartition('-')[2]} is kept" if kept else "model as it came is as it was"
    return UserError(
        f"{what}. {_describe_texts(engine, data, step)} Lower the learning rate (now {learning_rate:g}) or "
        f"use precision fp32; the {last}."
    )


def _describe_terms(names: Sequence[str]) -> str:
    quoted = " and ".join(f"'{name}'" for name in names)
    return f"the term {quoted} is" if len(names) == 1 else f"the terms {quoted} are"


def _describe_texts(engine: Engine, data: StepDataset, step: int) -> str:
    """Say which texts of a step give what is not finite, if they do so alone; else what the step read."""
    indices = data.indices(step)
    alone: list[int] = []
    if engine.group.size == 1:
        try:
            alone = [index for index in indices if not _is_finite_alone(engine, data, step, index)]
        except Exception:  # the search must not hide what is searched for
            log.debug("the search for the text failed", exc_info=True)
    if alone and len(alone) < len(indices):
        verb = "gives" if len(alone) == 1 else "give"
        return f"Of the {len(indices)} texts of the step {_name_texts(data, alone)} {verb} that alone."
    if alone:
        named = _name_texts(data, indices)
        return f"Each of the {len(indices)} texts of the step gives that, so it is the weights: {named}."
    return f"The step read {_name_texts(data, indices)}."


@torch.no_grad()
def _is_finite_alone(engine: Engine, data: StepDataset, step: int, index: int) -> bool:
    """Say whether all states and term values of one text, read alone without dropout, are finite."""
    model = engine.readers["student"]
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        rng = np.random.default_rng([data.seed, 2, step])
        exact = replace(
            data.collator, grain=MINIMAL_PADDING
        )  # a position that only padding stands at is no fault of the text
        for batch in exact([np.asarray(data.rows[index])], rng):
            batch = batch.to(device)
            with engine.step_context(), autocast(engine.precision, device):
                outputs = engine.read(batch, engine.views, all_tokens=True)
                values = [outputs.hidden(view)[batch.reading(view.tokens).text >= 0] for view in engine.views]
                values += [term.total(outputs) for term in engine.plain]
            if not all(bool(value.isfinite().all()) for value in values):
                return False
        return True
    finally:
        model.train(training)


def _name_texts(data: StepDataset, indices: Sequence[int]) -> str:
    """Name texts by the number of their document, from 1 in the order of the corpus, and their first words."""
    rows: Any = data.rows
    tokenizer = data.collator.vocabulary.tokenizer
    named = []
    for index in indices[:MAX_NAMED_TEXTS]:
        place = f"document {int(rows.document[index]) + 1:,}" if hasattr(rows, "document") else f"text {index + 1:,}"
        if tokenizer is not None:
            text = str(tokenizer.decode(np.asarray(rows[index])[:64].tolist(), skip_special_tokens=True))
            place += f" ('{' '.join(text.split()[:SHOWN_WORDS])} …')"
        named.append(place)
    more = f" and {len(indices) - MAX_NAMED_TEXTS} more" if len(indices) > MAX_NAMED_TEXTS else ""
    return ", ".join(named) + more
