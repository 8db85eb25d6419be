"""The teacher's targets for each example: which of its units are active, and its logits, computed once and cached."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from acclimate.device import Precision, autocast
from acclimate.errors import UserError
from acclimate.files import atomic_folder, warn_on_write_error
from acclimate.models import load_tokenizer
from acclimate.models.checkpoints import load_config
from acclimate.modules.connectors import Connectors
from acclimate.tasks.classification.classifier import Classifier
from acclimate.tasks.head_model import check_finite
from acclimate.tasks.training_cache import computation_key, hash_rows, load_tensors
from acclimate.training.method import cache_folder, cache_key, fingerprint_weights

TARGETS_FILE = "teacher_targets.safetensors"


@dataclass(frozen=True)
class TeacherTargets:
    """The teacher's targets, with one bit per unit: 768 units of 10,000 examples take less than a megabyte."""

    bits: Tensor
    """Which units are active, packed: (examples, ceil(units / 8)), uint8."""
    logits: Tensor
    """(examples, classes), fp32."""
    units: int
    seconds: float = 0.0
    """Time it took to compute them."""

    def active(self, places: Sequence[int]) -> Tensor:
        """Return which units are above zero: booleans (places, units), on the CPU."""
        chosen = np.unpackbits(self.bits[list(places)].numpy(), axis=1, count=self.units)
        return torch.from_numpy(chosen).bool()


def first_token_states(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return the last hidden state of the first token, before any pooler: (rows, width).

    Pooler and head are not part of the graph, so they get no gradient.
    """
    return model.base_model(**inputs)[0][:, 0]


def representation_width(path: str | Path) -> int:
    """Return the width of :func:`first_token_states` for a model, without loading it.

    Args:
        path: A model folder or a name on the Hugging Face Hub.

    Raises:
        UserError: If there is no model, or the first token of a text does not represent the text.
    """
    config, tokenizer = load_config(path), load_tokenizer(path)
    leads = tokenizer.cls_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.cls_token_id
    # XLNet puts that token last; in BART and similar models the last states are the decoder's.
    if not leads or getattr(config, "is_encoder_decoder", False):
        raise UserError(
            f"'{path}' ({config.model_type}) has no first token that represents the whole text, so its "
            "representation cannot be distilled or compared; choose an encoder such as BERT or RoBERTa."
        )
    return int(config.hidden_size)


def compute_teacher_targets(
    classifier: Classifier,
    rows: Sequence[dict[str, Any]],
    connectors: Connectors,
    precision: Precision,
    cache: bool = True,
) -> TeacherTargets:
    """Compute the targets, reading each example once with the teacher in evaluation mode.

    The released code reads the examples again in every epoch of distillation, with the same result.

    Args:
        classifier: The teacher, with its own tokenizer.
        rows: The examples as its model inputs, see :meth:`Classifier.features`.
        connectors: The projections, of which ``teacher`` is applied before the sign is taken.
        precision: Precision of the forward pass.
        cache: Whether to use the cache. Its key covers the teacher, the token ids, the connector, device, precision
            and software.

    Raises:
        UserError: If the teacher returns NaN or infinity.
    """
    if not cache:
        return _run_teacher(classifier, rows, connectors, precision)
    folder = cache_folder() / "teacher_targets" / _targets_key(classifier, rows, connectors, precision)
    if (found := load_tensors(folder / TARGETS_FILE)) is not None:
        tensors, seconds = found
        return TeacherTargets(tensors["bits"], tensors["logits"], connectors.units, seconds)
    targets = _run_teacher(classifier, rows, connectors, precision)
    with warn_on_write_error("Teacher targets", folder), atomic_folder(folder) as temporary:
        save_file(
            {"bits": targets.bits, "logits": targets.logits},
            temporary / TARGETS_FILE,
            {"seconds": f"{targets.seconds:.3f}"},
        )
    return targets


def _targets_key(
    classifier: Classifier, rows: Sequence[dict[str, Any]], connectors: Connectors, precision: Precision
) -> str:
    return cache_key(
        {
            **computation_key(classifier.model, classifier.tokenizer, precision),
            "connector": [connectors.units, fingerprint_weights(connectors.teacher)],
            "rows": hash_rows([{name: row[name] for name in row if name != "labels"} for row in rows]),
        }
    )


@torch.inference_mode()
def _run_teacher(
    classifier: Classifier, rows: Sequence[dict[str, Any]], connectors: Connectors, precision: Precision
) -> TeacherTargets:
    model, device = classifier.model.eval(), classifier.device
    project = connectors.teacher.to(device)
    bits = torch.empty(len(rows), -(-connectors.units // 8), dtype=torch.uint8)
    logits = torch.empty(len(rows), int(model.config.num_labels or 0))
    seen: list[Tensor] = []
    started = time.perf_counter()
    # One pass gives both: the hook reads the input of the head, even if the encoder is an ensemble.
    hook = model.base_model.register_forward_hook(lambda module, inputs, output: seen.append(output[0][:, 0]))
    try:
        for batch in classifier.batches([row["input_ids"] for row in rows]):
            inputs = classifier.collate([rows[place] for place in batch])
            inputs.pop("labels")
            with autocast(precision, device):
                logits[batch] = (
                    model(**{name: value.to(device) for name, value in inputs.items()}).logits.float().cpu()
                )
            active = (project(seen.pop().float()) > 0).cpu().numpy()
            bits[batch] = torch.from_numpy(np.packbits(active, axis=1))
    finally:
        hook.remove()
    check_finite([logits])
    return TeacherTargets(bits, logits, connectors.units, time.perf_counter() - started)
