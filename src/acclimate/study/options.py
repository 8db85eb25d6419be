"""Options of ``compare`` and ``init``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from acclimate.base.bounds import Count, Duration, SeedCount, TokenCount, number_or_auto
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, TRAINING, Option, options
from acclimate.base.verbs import EVALUATE, FIRST, register_verb
from acclimate.data.fields import Places, Progress, Require, Strings, read_listed, read_names, text_option
from acclimate.data.reading import LabelOptions, TextOptions

MAX_WORKERS = 4_096
Keep = Annotated[
    Literal["best"] | None,
    Option(
        "Keep the fine-tuned model of the best method on each task, and the base model's, to predict with.",
        OUTPUT,
        default="only adapted models are kept",
        recorded=False,
    ),
]
ReportTo = Annotated[
    str | Sequence[str] | None,
    Option(
        "Experiment tracker, such as tensorboard or wandb, that gets the differences with interval and verdict.",
        OUTPUT,
        more="Verdicts are 1 (helped), 0 (no difference shown) and -1 (hurt).",
        many=True,
        recorded=False,
    ),
]


@options
class StudyOptions(TextOptions):
    """Options that describe a study instead of its file, together with :class:`LabelOptions`."""

    _: KW_ONLY
    model: Annotated[Places, Option("Base model: folder or name on the Hugging Face Hub.", MODEL, many=True)] = ()
    corpus: Annotated[Places, text_option("Domain text")] = ()
    heldout: Annotated[
        Places, text_option("Domain text to measure on", default="2 % of the documents of the corpus")
    ] = ()
    general: Annotated[Places, text_option("General text, to measure forgetting", default="not measured")] = ()
    task: Annotated[
        Places,
        Option(
            "Labelled task: folder, file or hf:NAME; data.csv:body names the text column.",
            DATA,
            default="only losses are compared",
            many=True,
        ),
    ] = ()
    methods: Annotated[
        Strings,
        BeforeValidator(read_names),
        Option("Methods to compare with the base model, such as lm,dga.", METHOD, default="lm", many=True),
    ] = ()
    tokens: Annotated[TokenCount | None, Option("Tokens per adaptation.", default="one pass over the corpus")] = None
    seeds: Annotated[SeedCount | None, Option("Number of seeds of fine-tuning.", default="5; 3 with --quick")] = None
    quick: Annotated[
        bool,
        Option(
            "Answer by linear models on frozen states of the base and the adapted models, with three seeds.",
            METHOD,
            more="It takes minutes, and shows what adaptation put into the states; fine-tuning may differ.",
        ),
    ] = False
    tune: Annotated[
        bool,
        Option(
            "Choose the learning rate of fine-tuning among three, on dev with the base model, for all methods.",
            TRAINING,
            negated="--no-tune",
        ),
    ] = True
    advice: Annotated[
        bool,
        Option(
            "Measure first how far the domain is from general text, as `acclimate advise` does.",
            OUTPUT,
            negated="--no-advice",
        ),
    ] = True


@register_verb(
    "init",
    "acclimate.study.described:init",
    show="show_study",
    example="acclimate init study.yaml --model roberta-base --corpus reviews/ --task tasks/restaurant --seeds 3",
    page="docs/study.md",
    section=EVALUATE,
    order=6,
    plugins=True,
)
@options
class InitOptions(LabelOptions, StudyOptions):  # fields of the last base come first
    """Write a study file to start from, for `acclimate compare`."""

    file: Annotated[str | Path, Option("Study file to write.", OUTPUT, flag="STUDY")]
    _: KW_ONLY
    recipe: Annotated[
        str | None,
        Option(
            "Study to copy instead, such as sentiment, few-shot or chat-model; a wrong name lists all.",
            DATA,
            more="They are in the folder ``study/recipes`` of the package.",
        ),
    ] = None


@options
class CompareOptions:
    """Options of :func:`acclimate.compare`."""

    config: Annotated[
        Any,
        Option(
            "YAML or TOML file that describes the study.",
            DATA,
            more="Or a study, as an object or a dictionary.",
            flag="STUDY",
        ),
    ]
    out: Annotated[str | Path, Option("Output directory.", OUTPUT)]
    _: KW_ONLY
    shard: Annotated[
        str | None,
        Option(
            "Share of the jobs to run, as i/n, for job arrays.",
            TRAINING,
            more="Shares are counted from 1. The shard that completes the study writes results and report, as does a "
            "later call without a shard.",
        ),
    ] = None
    report_to: ReportTo = None
    settings: Annotated[
        dict[str, Any] | None,
        Option(
            "Change of a value of the study, such as adapt.steps=100 or methods.dga.adapt.epochs=2.",
            TRAINING,
            more="See :func:`acclimate.study.changes.change_values`.",
            flag="--set",
        ),
    ] = None
    only: Annotated[
        Strings,
        BeforeValidator(read_listed),
        Option(
            "Part of the study to run, as domain=NAME, method=LABEL, task=NAME or model=NAME.",
            TRAINING,
            more="The baseline stays.",
            many=True,
        ),
    ] = ()
    workers: Annotated[
        int | str | None,
        number_or_auto(MAX_WORKERS),
        Option(
            "Number of processes that compute the jobs, each with its own GPU and share of the cores, or auto.",
            TRAINING,
            more="With auto there is one on each GPU, or on a CPU one for every four cores.",
            default="this process computes them",
        ),
    ] = None
    per_gpu: Annotated[
        Count | None,
        Option(
            "Workers on each GPU, which share its memory; jobs on small models leave most of a GPU idle.",
            TRAINING,
            default="as few as possible",
        ),
    ] = None
    executor: Annotated[
        Literal["local", "slurm", "ray"],
        Option("Where workers run: on this machine, as Slurm jobs, or on a Ray cluster.", TRAINING),
    ] = "local"
    executor_settings: Annotated[
        dict[str, Any] | None,
        Option(
            "Setting of the Slurm jobs or Ray tasks, such as partition=gpu, time=240 or num_cpus=4.",
            TRAINING,
            more="See the documentation of ``submitit`` and of ``ray.remote``.",
            flag="--executor-set",
        ),
    ] = None
    report_only: Annotated[bool, Option("Run no jobs; write the report from existing results.", OUTPUT)] = False
    keep: Keep = None
    require: Require = ()
    progress: Progress = True
    backend: Annotated[
        Any, Option("The expensive functions.", TRAINING, default="those of this package", cli=False)
    ] = None


@register_verb(
    "compare",
    "acclimate.study.compare:compare",
    command="acclimate.study.described:compare_from_options",
    show="acclimate.study.described:show_comparison",
    example="acclimate compare --model roberta-base --corpus reviews/ --task tasks/restaurant --out runs/reviews",
    page="docs/study.md",
    section=FIRST,
    order=1,
    plugins=True,
)
@options
class CompareCommand(CompareOptions, LabelOptions, StudyOptions):
    """Find out whether adaptation helps: compare a model with its adapted versions, or the grid of a study file.

    Run it again to resume after an interruption. Several processes, also on several machines, may share --out: no
    job runs twice. Without a study file, the one that was used is written to --out.
    """

    _: KW_ONLY
    config: Annotated[
        Any,
        Option("YAML or TOML file that describes the study; or give --model and --corpus.", DATA, flag="STUDY"),
    ] = None
    minutes: Annotated[
        Duration | None,
        Option(
            "Time for the whole comparison; this machine is timed, and what costs the least evidence is cut to fit.",
            TRAINING,
            more="In this order: tokens per adaptation, epochs, seeds, train rows, fine-tuning at all.",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        Option(
            "Run no jobs; print the remaining jobs and the estimated time, for which this machine is timed if no job "
            "of a kind is finished.",
            OUTPUT,
        ),
    ] = False
