"""Types of the options of what happens around the steps of a training: measurements, and limits on the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from acclimate.base.bounds import Count
from acclimate.base.options import DATA, METHOD, Option
from acclimate.base.registry import PartLike

if TYPE_CHECKING:
    from acclimate.data.documents import Corpus

    Text = str | Path | Iterable[str | Path] | Corpus
    Names = tuple[str, ...]
    Parts = PartLike | Collection[PartLike]
else:  # the command line imports neither torch nor transformers to show its help
    Text = Any
    Names = tuple[str, ...]
    Parts = tuple[Any, ...]

HELDOUT_EVERY = 50
"""Default number of optimizer steps between measurements of the held-out loss."""
MEASURING_OPTIONS = ("monitor", "keep_best", "patience")
"""Options of the measurements during training."""


def list_parts(value: Any) -> Any:
    """Return parts, each in any form that :meth:`acclimate.base.registry.Registry.read` takes, as a tuple."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple({name: settings} for name, settings in value.items())
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def split_names(value: Any) -> Any:
    """Return names as a tuple; they are given as a collection, or as text such as ``"embeddings,layer.0"``.

    Raises:
        ValueError: If something is given, but no name.
    """
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Iterable):
        return value
    items = [str(item) for item in items]
    names = tuple(part.strip() for item in items for part in item.split(",") if part.strip())
    if items and not names:
        raise ValueError("it is empty; give at least one name, or leave the option out")
    return names


Heldout = Annotated[
    Text | None,
    Option(
        "Held-out text for measuring the loss during training: file, folder, glob or hf:NAME.",
        DATA,
        more="Every loss term is measured without dropout, always under the same masks, which come from ``masking`` "
        "for all methods. The values are written to ``log.jsonl``. Each measurement costs about a third of the time "
        "that training on this text would take.",
        many=True,
        study=False,
    ),
]
HeldoutEvery = Annotated[
    Count | None,
    Option(
        "Optimizer steps between measurements of the held-out loss.",
        default=str(HELDOUT_EVERY),
        more="It is also measured at the start and at the end.",
    ),
]
General = Annotated[
    Text | None,
    Option(
        "General text whose loss is measured before and after, with interval: file, folder, glob or hf:NAME.",
        DATA,
        more="It shows what the model forgets. The losses are those of 100 documents, also of the held-out text. With "
        "``heldout`` it is measured during the training as well. In a study with ``monitor`` it is the general text "
        "of the study.",
        many=True,
        study=False,
    ),
]
Instructions = Annotated[
    bool,
    Option(
        "Measure before and after how many of 52 instructions a chat model follows.",
        DATA,
        more="As ``acclimate inspect instructions`` does; the answers take minutes on a CPU.",
        study=False,
    ),
]
Monitor = Annotated[
    bool,
    Option(
        "Measure the held-out loss after steps 1, 2, 3, 4, 6, 8, 11 and so on, and report a temporary rise.",
        more="The steps are powers of the root of 2, so that each doubling of the steps has two measurements. With "
        "``heldout_every``, both are measured. See :class:`acclimate.evaluation.dips.Dip`.",
    ),
]
KeepBest = Annotated[
    bool,
    Option(
        "Take the model of the measured step with the lowest held-out loss, not the last one.",
        more="Where the held-out or the general loss first rose and then fell again by half of that, only the steps "
        "after that count (:func:`acclimate.evaluation.dips.find_best`). The learning rate of an earlier step was "
        "higher than at the end.",
    ),
]
Patience = Annotated[
    Count | None,
    Option(
        "Measurements without a lower held-out loss after which the training ends, with --keep-best.",
        default="the training does not end early",
        more="Measurements while the held-out or the general loss is in a temporary rise do not count. While general "
        "text is forgotten more and more, the training therefore goes on.",
    ),
]
Rules = Annotated[
    Parts,
    BeforeValidator(list_parts),
    Option(
        "Update rule in addition to the method's, such as 'l2-sp strength=0.1' or 'freeze names=embeddings'.",
        METHOD,
        more="Or ``{name: parameters}``; several in a list. Rules: ``l2-sp`` and ``ewc`` pull weights to the base "
        "model, ``layer-decay`` and ``freeze`` limit what trains, ``sparsity`` keeps weights at zero, ``refactor`` "
        "balances a low-rank adapter; see docs/trains.md.",
        flag="--rule",
        many=True,
    ),
]
FreezeForTask = Annotated[
    Names,
    BeforeValidator(split_names),
    Option(
        "Parts of names of weights that do not train, such as embeddings or 'layer.[0-1]'.",
        METHOD,
        more="See the update rule ``freeze`` of :func:`acclimate.adapt`.",
        many=True,
        study=False,
    ),
]
