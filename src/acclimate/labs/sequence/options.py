"""Options of ``sequence``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from acclimate.adaptation.replay_options import Texts
from acclimate.base.bounds import Count, SeedCount, SeedNumber, TokenCount, number_or_auto
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, TRAINING, Option, options
from acclimate.base.verbs import TRAIN, register_verb
from acclimate.data.fields import Places, Progress, Strings, read_listed, read_names
from acclimate.data.reading import TextOptions
from acclimate.study.options import MAX_WORKERS, ReportTo

if TYPE_CHECKING:
    Tasks = Mapping[str, Any]
    Orders = str | int | Sequence[str | Sequence[str]]
else:  # the command line imports neither torch nor transformers to show its help
    Orders = tuple[Any, ...]
    Tasks = dict[str, Any]


@options
class SequenceOptions(TextOptions):
    """Options of :func:`acclimate.sequence`."""

    model: Annotated[str | Path, Option("Base model: folder or name on the Hugging Face Hub.", MODEL)]
    domains: Annotated[
        Texts,
        Option(
            "Domain text in the order of training, as NAME=TEXT: file, folder, glob or hf:NAME.",
            DATA,
            more="Or texts in memory by name. Run the command again with a further domain at the end, and only that "
            "one is trained.",
            flag="--domain",
        ),
    ]
    out: Annotated[str | Path, Option("Output directory.", OUTPUT)]
    _: KW_ONLY
    methods: Annotated[
        Strings,
        BeforeValidator(read_names),
        Option(
            "Methods of adaptation, such as das,lm; the others are compared with the first.",
            METHOD,
            many=True,
            default="lm",
        ),
    ] = ("lm",)
    tasks: Annotated[
        Tasks | None,
        Option(
            "Labelled task of a domain, as NAME=TASK: folder, file or hf:NAME.",
            DATA,
            more="Every domain needs one for the measures of scores. In Python also several in a list.",
            flag="--task",
            default="only losses are measured",
        ),
    ] = None
    heldout: Annotated[
        Texts | None,
        Option(
            "Held-out text of a domain, as NAME=TEXT.",
            DATA,
            default="2 % of the documents of the domain",
        ),
    ] = None
    general: Annotated[
        Places,
        Option(
            "General text, to measure forgetting of it: file, folder, glob or hf:NAME.",
            DATA,
            many=True,
            default="not measured",
        ),
    ] = ()
    orders: Annotated[
        Orders,
        BeforeValidator(read_listed),
        Option(
            "Orders of the domains: given, similarity, a number of random ones, or names such as law,food,news.",
            DATA,
            many=True,
            flag="--order",
            default="given",
            more="See the section ``sequence`` of studies.",
        ),
    ] = ("given",)
    order_seed: Annotated[SeedNumber, Option("Random seed of random orders.", DATA)] = 0
    separate: Annotated[
        bool, Option("Also adapt one model per domain with the first method, to compare with.", METHOD)
    ] = False
    joint: Annotated[
        bool, Option("Also adapt one model to all domains at once with the first method, to compare with.", METHOD)
    ] = False
    tokens: Annotated[TokenCount | None, Option("Tokens per domain.", TRAINING, default="one pass over its text")] = (
        None
    )
    seeds: Annotated[SeedCount, Option("Number of seeds; intervals need at least two, better five.", TRAINING)] = 1
    settings: Annotated[
        dict[str, Any] | None,
        Option(
            "Setting of the study, such as adapt.learning_rate=1e-4 or methods.das.adapt.epochs=2.",
            TRAINING,
            more="See :func:`acclimate.study.changes.change_values`.",
            flag="--set",
        ),
    ] = None
    workers: Annotated[
        int | str | None,
        number_or_auto(MAX_WORKERS),
        Option("Number of processes that compute, or auto.", TRAINING, default="this process computes"),
    ] = None
    per_gpu: Annotated[Count | None, Option("Workers on each GPU.", TRAINING, default="as few as possible")] = None
    report_to: ReportTo = None
    progress: Progress = True
    backend: Annotated[
        Any, Option("The expensive functions.", TRAINING, default="the functions of this package", cli=False)
    ] = None


@register_verb(
    "sequence",
    "acclimate.labs.sequence.run:sequence",
    command="sequence_or_forecast",
    show="show_sequence",
    example=(
        "acclimate sequence --model roberta-base --domain law=law/ --domain food=food.jsonl --methods das,lm "
        "--general wiki.txt --out runs/sequence"
    ),
    page="docs/sequence.md",
    section=TRAIN,
    order=4,
    plugins=True,
)
@options
class SequenceCommand(SequenceOptions):
    """Adapt a model to several domains, one after the other; show what it gains, keeps and forgets.

    Run it again to resume after an interruption, or with a further --domain, and only that one is trained.
    """

    _: KW_ONLY
    dry_run: Annotated[bool, Option("Train nothing; print the remaining jobs and the estimated time.", OUTPUT)] = False
