"""Types of the options of what happens around the steps of a training: measurements, and limits on the weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from acclimate.adaptation.replay_options import MEMORY_OPTIONS
from acclimate.base.bounds import Count, Fraction, NonNegative, Share
from acclimate.base.options import DATA, METHOD, Option

if TYPE_CHECKING:
    from acclimate.data.documents import Corpus

    Text = str | Path | Iterable[str | Path] | Corpus
    Names = tuple[str, ...]
else:  # the command line imports neither torch nor transformers to show its help
    Text = Any
    Names = tuple[str, ...]

HELDOUT_EVERY = 50
"""Default number of optimizer steps between measurements of the held-out loss."""
MEASURING_OPTIONS = ("monitor", "keep_best", "patience")
"""Options of the measurements during training."""
SPARSITY = ("sparsity", "sparsity_choice")
STEP_OPTIONS = ("l2_sp", "ewc", "layer_decay", "freeze", "refactor_every", *SPARSITY, *MEMORY_OPTIONS)
"""Options of update rules, and of the texts that are kept."""


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
        "General text whose loss is measured together with that of the held-out text: file, folder, glob or hf:NAME.",
        DATA,
        more="It shows what the model forgets in the course of the training. In a study with ``monitor`` it is the "
        "general text of the study.",
        many=True,
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
L2SP = Annotated[
    NonNegative,
    Option(
        "Strength of the pull of all weights to the base model (L2-SP).",
        METHOD,
        more="It adds strength / 2 times the squared distance from the base weights to the loss (Li et al., ICML "
        "2018); 0 turns it off. The logged loss does not include it.",
        flag="--l2-sp",
    ),
]
EWC = Annotated[
    NonNegative,
    Option(
        "Strength of the pull of weights to the base model by their importance for general text (EWC).",
        METHOD,
        more="As ``l2_sp``, with each squared distance multiplied by the Fisher information of the weight in nats per "
        "token of ``ewc_text`` (Kirkpatrick et al., PNAS 2017); 1 counts a token of general text as much as one of "
        "domain text. 0 turns it off.",
    ),
]
EWCText = Annotated[
    Text | None,
    Option(
        "General text on which the importance of weights for --ewc is measured: file, folder, glob or hf:NAME.",
        DATA,
        more="In a study it is the general text, without the documents that the study measures on.",
        many=True,
        study=False,
    ),
]
LayerDecay = Annotated[
    Fraction,
    Option(
        "Factor of the learning rate per layer, from the head down to the embeddings, such as 0.9.",
        METHOD,
        more="Head and final normalization have the whole rate, the last of n layers the factor, the embeddings its "
        "power n + 1 (Howard and Ruder, ACL 2018; Clark et al., ICLR 2020). An output matrix that is tied to the "
        "embeddings has their rate.",
    ),
]
Freeze = Annotated[
    Names,
    BeforeValidator(split_names),
    Option(
        "Parts of names of weights that do not train, such as embeddings or 'layer.[0-5]'.",
        METHOD,
        more="A pattern (``*``, ``?``, ``[0-5]``) matches whole parts of a name between dots. Tied weights are one "
        "weight.",
        many=True,
    ),
]
FreezeForTask = Annotated[
    Names,
    BeforeValidator(split_names),
    Option(
        "Parts of names of weights that do not train, such as embeddings or 'layer.[0-1]'.",
        METHOD,
        more="See ``freeze`` of :func:`acclimate.adapt`.",
        many=True,
        study=False,
    ),
]
RefactorEvery = Annotated[
    Count | None,
    Option(
        "Optimizer steps between two balanced factorizations of a low-rank adapter.",
        METHOD,
        default="never",
        more="The product B A of each layer stays the same; its factors become those of the singular value "
        "decomposition, each with the root of the singular values, and their moments in the optimizer start anew "
        "(Glentis et al., 2025).",
    ),
]
Sparsity = Annotated[
    Share,
    Option(
        "Share of the weights of each linear layer that are zero throughout the training, such as 0.5.",
        METHOD,
        more="Embeddings, head, biases and normalizations stay dense. The result is an ordinary model, of which "
        "``finetune`` trains all weights (SPDF, Thangarasa et al., 2023). It computes as fast as a dense one.",
    ),
]
SparsityChoice = Annotated[
    Literal["magnitude", "random"],
    Option(
        "Which weights are zero with --sparsity: the smallest of each layer, or random ones.",
        METHOD,
        more="SPDF chooses random ones of a model without training; of a trained model these cost far more.",
    ),
]


def check_steps(given: Any) -> None:
    """Check that options that change the weights of the model, or an adapter, come without or with an adapter.

    Raises:
        ValueError: If not.
    """
    for name in ("l2_sp", "ewc"):
        if getattr(given, name) and given.adapter is not None:
            raise ValueError(
                f"'{name}' pulls the weights of the model to the base, which an adapter leaves unchanged; pull the "
                "adapter to zero with 'weight_decay', or remove 'adapter'"
            )
    if given.sparsity and given.adapter is not None:
        raise ValueError("'sparsity' is for weights that train, which an adapter freezes; remove one of them")
    if given.sparsity_choice == "random" and not given.sparsity:
        raise ValueError("'sparsity_choice' needs a share of weights that are zero; give it with --sparsity")
    if given.refactor_every is not None and given.adapter is None:
        raise ValueError("'refactor_every' is for adapters; add 'adapter', such as lora, or remove it")
