"""The teacher's targets for each example: which of its units are active, and its logits, computed once and cached."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from acclimate.adaptation.method import cache_key, fingerprint_weights
from acclimate.base.device import Precision, autocast
from acclimate.base.errors import warn_once
from acclimate.base.files import atomic_folder, cache_folder, warn_on_write_error
from acclimate.models.checkpoints import load_config
from acclimate.models.loading import load_tokenizer
from acclimate.parts.modules.connectors import Connectors
from acclimate.tasks.head_model import HeadModel, check_finite
from acclimate.tasks.training_cache import computation_key, hash_rows, load_tensors

TARGETS_FILE = "teacher_targets.safetensors"


@dataclass(frozen=True)
class TeacherTargets:
    """The teacher's targets, with one bit per unit: 768 units of 10,000 examples take less than a megabyte."""

    bits: Tensor
    """Which units are active, packed: (rows, ceil(units / 8)), uint8."""
    logits: Tensor
    """Its answers, see :meth:`HeadModel.answer_logits`: (answers, classes), fp32; NaN where it has none."""
    units: int
    """Number of units that are compared; 0 if none are."""
    seconds: float = 0.0
    """Time it took to compute them."""
    ends: tuple[int, ...] = ()
    """For each row of the student the number of answers up to it; set by :meth:`match`."""

    def match(self, teacher: Sequence[Sequence[Hashable]], student: Sequence[Sequence[Hashable]]) -> TeacherTargets:
        """Return the targets with the answers that the rows of the student need, in their order.

        Warn of answers that the teacher does not have, since its tokenizer divides a text in another way.

        Args:
            teacher: What each answer in ``logits`` is about, see :meth:`HeadModel.answer_keys`.
            student: The same for the answers of the student.
        """
        places = {key: place for place, key in enumerate(key for row in teacher for key in row)}
        wanted = [places.get(key, -1) for row in student for key in row]
        if missing := wanted.count(-1):
            warn_once(
                f"The teacher has no answer for {missing:,} of the {len(wanted):,} words that the student marks, "
                "since the tokenizers divide them differently; these are learned from their labels only."
            )
        padded = torch.cat([self.logits, torch.full_like(self.logits[:1], torch.nan)])
        ends = tuple(np.cumsum([len(row) for row in student]).tolist())
        return replace(self, logits=padded[wanted], ends=ends)

    def answers(self, rows: Sequence[int]) -> Tensor:
        """Return the answers that rows of the student should have: (answers, classes), on the CPU."""
        return torch.cat([self.logits[self.ends[row - 1] if row else 0 : self.ends[row]] for row in rows])

    def active(self, places: Sequence[int]) -> Tensor:
        """Return which units are above zero: booleans (places, units), on the CPU."""
        chosen = np.unpackbits(self.bits[list(places)].numpy(), axis=1, count=self.units)
        return torch.from_numpy(chosen).bool()


def first_token_states(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return the last hidden state of the first token, before any pooler: (rows, width).

    Pooler and head are not part of the graph, so they get no gradient.
    """
    return model.base_model(**inputs)[0][:, 0]


def representation_width(path: str | Path) -> int | None:
    """Return the width of :func:`first_token_states` for a model, without loading it.

    Args:
        path: A model folder or a name on the Hugging Face Hub.

    Returns:
        The width; None if the first token of a text does not represent the text.

    Raises:
        UserError: If there is no model.
    """
    config, tokenizer = load_config(path), load_tokenizer(path)
    leads = tokenizer.cls_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.cls_token_id
    # XLNet puts that token last; in BART and similar models the last states are the decoder's.
    return int(config.hidden_size) if leads and not getattr(config, "is_encoder_decoder", False) else None


def compute_teacher_targets(
    head: HeadModel,
    rows: Sequence[dict[str, Any]],
    connectors: Connectors | None,
    precision: Precision,
) -> TeacherTargets:
    """Return the targets from the cache, or compute them.

    The key of the cache covers the teacher, the token ids, the connector, device, precision and software.

    Args:
        head: The teacher, with its own tokenizer.
        rows: The examples as its model inputs, with their targets.
        connectors: The projections, of which ``teacher`` is applied before the sign is taken; None if no units are
            compared.
        precision: Precision of the forward pass.

    Raises:
        UserError: If the teacher returns NaN or infinity.
    """
    folder = cache_folder() / "teacher_targets" / _targets_key(head, rows, connectors, precision)
    if (found := load_tensors(folder / TARGETS_FILE)) is not None:
        tensors, seconds = found
        return TeacherTargets(tensors["bits"], tensors["logits"], connectors.units if connectors else 0, seconds)
    targets = run_teacher(head, rows, connectors, precision)
    with warn_on_write_error("Teacher targets", folder), atomic_folder(folder) as temporary:
        save_file(
            {"bits": targets.bits, "logits": targets.logits},
            temporary / TARGETS_FILE,
            {"seconds": f"{targets.seconds:.3f}"},
        )
    return targets


def _targets_key(
    head: HeadModel, rows: Sequence[dict[str, Any]], connectors: Connectors | None, precision: Precision
) -> str:
    return cache_key(
        {
            **computation_key(head.model, head.tokenizer, precision),
            "connector": [connectors.units, fingerprint_weights(connectors.teacher)] if connectors else None,
            "rows": hash_rows(rows),
            "unit": head.unit,
        }
    )


@torch.inference_mode()
def run_teacher(
    head: HeadModel, rows: Sequence[dict[str, Any]], connectors: Connectors | None, precision: Precision
) -> TeacherTargets:
    """Compute the targets, reading each example once with the teacher in evaluation mode.

    The released code reads the examples again in every epoch of distillation, with the same result.
    """
    head.prepare()
    model, device, units = head.model.eval(), head.device, connectors.units if connectors else 0
    bits = torch.empty(len(rows), -(-units // 8), dtype=torch.uint8)
    found = [torch.empty(0)] * len(rows)
    seen: list[Tensor] = []
    started = time.perf_counter()
    # One pass gives both: the hook reads the input of the head, even if the encoder is an ensemble.
    hook = model.base_model.register_forward_hook(lambda module, inputs, output: seen.append(output[0][:, 0]))
    try:
        for batch in head.batches([row["input_ids"] for row in rows]):
            inputs = head.collate([rows[place] for place in batch])
            labels = inputs.pop("labels")
            with autocast(precision, device):
                moved = {name: value.to(device) for name, value in inputs.items()}
                logits = head.run(model, moved).logits.float().cpu()
            for place, own, label in zip(batch, logits, labels, strict=True):
                found[place] = head.answer_logits(own[None], label[None])
            states = seen.pop()
            if connectors:
                active = (connectors.teacher.to(device)(states.float()) > 0).cpu().numpy()
                bits[batch] = torch.from_numpy(np.packbits(active, axis=1))
    finally:
        hook.remove()
    check_finite(found)
    return TeacherTargets(bits, torch.cat(found), units, time.perf_counter() - started)
