"""Options of ``advise``, ``compare``, ``demo`` and ``inspect``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from acclimate.options.declaration import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.options.numbers import (
    Count,
    Duration,
    Fraction,
    Integer,
    NonNegative,
    Number,
    Positive,
    SeedCount,
    SeedNumber,
    Share,
    Size,
    TokenCount,
)
from acclimate.options.reading import Encoding, LabelOptions
from acclimate.options.studies import Places
from acclimate.options.tasks import TaskLike
from acclimate.options.training import MASK_RATE, MaxLength, Precision, Progress, Seed, TextColumn, TextInput

if TYPE_CHECKING:
    from acclimate.masking import Masking

    Maskings = Sequence[str] | Mapping[str, Masking] | None
    Models = Mapping[str, str | Path] | Sequence[str | Path]
    ModelLists = Mapping[str, Sequence[str | Path]] | Sequence[str | Path] | None
    Texts = Mapping[str, TextInput]
    Strings = Sequence[str]
    Seeds = Collection[int]
    Tasks = Sequence[TaskLike | str | Path]
else:
    Maskings = Models = ModelLists = Any
    Texts = dict[str, Any]
    Strings = tuple[str, ...]
    Seeds = tuple[SeedNumber, ...]
    Tasks = tuple[Any, ...]


def split_name(item: Any) -> tuple[str, str]:
    """Split ``NAME=FOLDER``; the name of a folder alone, or of a folder with ``=`` in its path, is empty."""
    name, sign, folder = str(item).partition("=")
    named = sign and name and folder and "/" not in name and not os.path.isdir(item)
    return (name, os.path.expanduser(folder)) if named else ("", os.path.expanduser(str(item)))


def read_models(value: Any) -> Any:
    """Return the folders of models by name; they are given as such, or as a list of ``FOLDER`` and ``NAME=FOLDER``."""
    if isinstance(value, Mapping):
        return dict(value)
    named: dict[str, str] = {}
    for item in _listed(value):
        name, folder = split_name(item)
        name = name or Path(folder).name
        if name in named:
            raise ValueError(f"has two models with the name '{name}'; give each its own name as NAME=FOLDER")
        named[name] = folder
    return named


def _listed(value: Any) -> Any:
    """Return one or several values as a tuple."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else (value,)


def _read_tasks(value: Any) -> Any:
    """Return tasks as a tuple; ``~`` in the path of a folder is the home folder."""
    return tuple(os.path.expanduser(task) if isinstance(task, str | Path) else task for task in _listed(value))


def _distinct(values: Any) -> Any:
    for value in values:
        if list(values).count(value) > 1:
            raise ValueError(f"has {value} twice; give it once")
    return values


def _text(what: str, **more: Any) -> Option:
    """Return the description of an option that names one or several sources of text."""
    return Option(f"{what}: file, folder, glob or hf:NAME.", DATA, many=True, **more)


Model = Annotated[str | Path, Option("Model folder or name on the Hugging Face Hub.", MODEL)]
Folder = Annotated[str | Path | None, Option("Output directory.", OUTPUT, default="nothing is saved")]
JsonFile = Annotated[str | Path | None, Option("JSON file to write.", OUTPUT, default="nothing is saved")]
StopWords = Annotated[
    str, Option("Stop words: english, none, another language such as german, or a file with one word per line.", DATA)
]

PilotBatch = Annotated[Size, Option("Texts per optimizer step of the pilot.")]
PilotRate = Annotated[Positive | None, Option("Peak learning rate of the pilot.", default="the method's")]
PilotMethod = Annotated[str, Option("Method of the pilot; `acclimate methods` lists them.", METHOD)]
PilotSeed = Annotated[Seed, Option("Random seed of the pilot.")]


@options
class AdviseOptions(LabelOptions):
    """Options of :func:`acclimate.advise`."""

    model: Annotated[
        Model,
        Option(
            "Model folder or name on the Hugging Face Hub.",
            MODEL,
            more="For a model without a masked-LM head, a head is first trained on half of the general text, which is "
            "then excluded from the measurements.",
        ),
    ]
    corpus: Annotated[TextInput, _text("Domain text")]
    general: Annotated[TextInput, _text("General text")]
    task: Annotated[
        TaskLike | str | Path | None,
        Option("Labelled task: a folder, a file, or hf:NAME; its train split is inspected.", DATA),
    ] = None
    out: JsonFile = None
    _: KW_ONLY
    pilot_steps: Annotated[
        Integer,
        Field(ge=0, le=10**6),
        Option("Optimizer steps of a pilot adaptation; 0 for none.", more="The model of the pilot is discarded."),
    ] = 200
    batch_size: PilotBatch = 32
    learning_rate: PilotRate = None
    method: PilotMethod = "lm"
    documents: Annotated[Count, Option("Documents per corpus on which losses are measured.", DATA)] = 200
    plans: Annotated[
        Places,
        Option("Plan to follow: folder or plan.json of `acclimate plan`.", DATA, flag="--plan", many=True),
    ] = ()
    max_length: MaxLength = 128
    stop_words: StopWords = "english"
    text_column: TextColumn = "text"
    encoding: Encoding = None
    seed: PilotSeed = 0
    progress: Progress = True


@options
class DemoOptions:
    """Options of :func:`acclimate.demo.demo`."""

    out: Annotated[str | Path, Option("Output directory for data, models, results.json and report.html.", OUTPUT)] = (
        "runs/demo"
    )
    _: KW_ONLY
    seeds: Annotated[SeedCount, Option("Number of seeds of adaptation and fine-tuning.")] = 3
    progress: Progress = True


@options
class InspectImportanceOptions:
    """Options of :func:`acclimate.inspect_importance`."""

    model: Model
    corpora: Annotated[
        Texts,
        Field(min_length=1),
        Option("Text of a domain as NAME=TEXT: file, folder, glob or hf:NAME.", DATA, flag="--corpus"),
    ]
    out: Folder = None
    _: KW_ONLY
    parts: Annotated[
        str | Sequence[str],
        Option("Parts of the model: H heads, I and O feed-forward layers, E embeddings, such as H,I.", METHOD),
    ] = "H"
    tokens: Annotated[TokenCount, Option("Maximum tokens per domain.", DATA)] = 1_640_000
    error: Annotated[
        NonNegative,
        Option(
            "Standard error at which to stop; 0 reads all tokens.",
            METHOD,
            more="See :func:`acclimate.updates.estimate_sampling_error`.",
        ),
    ] = 0.03
    seeds: Annotated[
        Seeds,
        BeforeValidator(_listed),
        Field(min_length=1),
        AfterValidator(_distinct),
        Option("Random seed of the sample of text and of dropout.", flag="--seed", default="0", many=True),
    ] = (0,)
    reads: Annotated[
        Literal["hidden", "logits"],
        Option(
            "Outputs whose divergence is measured.", METHOD, more="See :func:`acclimate.updates.summed_importance`."
        ),
    ] = "hidden"
    protect: Annotated[
        Literal["unusual", "important"],
        Option(
            "Normalization: Eq. 10 of the DGA paper (unusual), or only its upper side (important).",
            METHOD,
            more="See :func:`acclimate.updates.normalize_importance`.",
        ),
    ] = "unusual"
    max_length: MaxLength = 128
    dropout: Annotated[
        Share | None, Option("Dropout probability.", MODEL, default="that of the model's configuration")
    ] = None
    text_column: TextColumn = "text"
    encoding: Encoding = None
    precision: Precision = "auto"
    progress: Progress = True


@options
class InspectModelOptions:
    """Options of :func:`acclimate.inspect_model`."""

    model: Annotated[str | Path, Option("Model folder or name on the Hugging Face Hub.", MODEL, flag="MODEL")]
    out: JsonFile = None
    _: KW_ONLY
    max_length: Annotated[Size, Option("Tokens per row, for the memory of attention.", DATA)] = 1_024


@options
class InspectMasksOptions(LabelOptions):
    """Options of :func:`acclimate.inspect.inspect_masks`."""

    model: Annotated[
        str | Path,
        Option("Model folder or name on the Hugging Face Hub; without a task only its tokenizer is read.", MODEL),
    ]
    corpus: Annotated[TextInput, _text("Text")]
    out: Folder = None
    _: KW_ONLY
    maskings: Annotated[
        Maskings,
        Option(
            "Masking strategy as NAME, or 'NAME parameter=value ...'.",
            METHOD,
            default="those that need no word list",
            more="Or strategies by label.",
            flag="--masking",
            many=True,
        ),
    ] = None
    task: Annotated[
        TaskLike | str | Path | None,
        Option(
            "Labelled task; adds selective masking, and marks the tokens that the labels depend on.",
            DATA,
            more="The classifiers are trained as in an adaptation and share its cache.",
        ),
    ] = None
    settings: Annotated[
        dict[str, Any] | None, Option("Parameter of selective masking, such as delta=0.02.", METHOD, flag="--set")
    ] = None
    mask_rate: Annotated[
        Number, Field(gt=0, lt=1), Option("Share of tokens to mask.", METHOD, more="For strategies given by name.")
    ] = MASK_RATE
    texts: Annotated[Count, Option("Number of texts to show.", OUTPUT)] = 6
    tokens: Annotated[TokenCount, Option("Tokens of the text to count on, from its start.", DATA)] = 200_000
    max_length: Annotated[Size, Option("Maximum tokens per text.", DATA)] = 128
    seed: Annotated[Seed, Option("Random seed of samples and masks.")] = 0
    stop_words: StopWords = "english"
    text_column: TextColumn = "text"
    encoding: Encoding = None
    precision: Precision = "auto"
    progress: Progress = True


@options
class InspectEmbeddingsOptions:
    """Options of :func:`acclimate.inspect_embeddings`."""

    before: Annotated[str | Path, Option("Base model: folder or name on the Hugging Face Hub.", MODEL)]
    after: Annotated[
        Models,
        BeforeValidator(read_models),
        Option("Adapted model, as FOLDER or NAME=FOLDER.", MODEL, more="Or folders by name.", many=True),
    ]
    out: Folder = None
    _: KW_ONLY
    text: Annotated[
        TextInput | None,
        _text("Domain text", more="Distances are also reported over the tokens that occur in it.", flag="--corpus"),
    ] = None
    against: Annotated[
        TextInput | None,
        Option(
            "Other text; words that are much more frequent in the domain text are specific to the domain.",
            DATA,
            many=True,
        ),
    ] = None
    words: Annotated[
        Strings,
        BeforeValidator(_listed),
        Option(
            "Word to label, a single token.",
            OUTPUT,
            default="chosen automatically",
            more="By default, whole words of at least three letters that are not stop words: with both texts, those "
            "with the highest log-odds that occur at least five times; with the domain text alone, the most frequent; "
            "without text, those that moved most.",
            flag="--word",
            many=True,
        ),
    ] = ()
    count: Annotated[Count, Option("Number of words to choose.", OUTPUT)] = 10
    stop_words: StopWords = "english"
    text_column: TextColumn = "text"
    encoding: Encoding = None
    progress: Progress = True


@options
class InspectLeakageOptions(LabelOptions):
    """Options of :func:`acclimate.inspect_leakage`."""

    tasks: Annotated[
        Tasks,
        BeforeValidator(_read_tasks),
        Field(min_length=1),
        Option(
            "Labelled task: a folder, a file, or hf:NAME.", DATA, more="Or a loaded task.", flag="--task", many=True
        ),
    ]
    corpus: Annotated[TextInput | None, _text("Text", default="only train splits are searched")] = None
    out: JsonFile = None
    _: KW_ONLY
    near: Annotated[
        Fraction, Option("Minimum Jaccard similarity of the character n-grams of near duplicates.", METHOD)
    ] = 0.8
    contained: Annotated[
        Fraction, Option("Minimum share of a text's word n-grams that a document contains.", METHOD)
    ] = 0.8
    fewest_words: Annotated[
        Count, Option("Minimum words of a text; shorter ones are only compared with whole documents.", METHOD)
    ] = 8
    text_column: TextColumn = "text"
    encoding: Encoding = None
    progress: Progress = True


@options
class InspectCostOptions:
    """Options of ``acclimate inspect cost``."""

    adapted: Annotated[
        Models,
        BeforeValidator(read_models),
        Option(
            "Result of adapt --method selective, as FOLDER or NAME=FOLDER; each is a column.",
            MODEL,
            more="Or folders by name.",
            many=True,
        ),
    ]
    out: JsonFile = None
    _: KW_ONLY
    pretrained: Annotated[
        str | Path | None, Option("Result of pretrain --keep-steps that the adaptations started from.", MODEL)
    ] = None
    step: Annotated[
        Count | None,
        Option("Pre-training step that the adaptations started from.", MODEL, default="as recorded"),
    ] = None
    finetuned: Annotated[
        ModelLists,
        Option(
            "Result of finetune, as FOLDER, or NAME=FOLDER with the name of a column.",
            MODEL,
            more="Or lists of folders by column.",
            many=True,
        ),
    ] = None


@options
class InspectInstructionsOptions:
    """Options of :func:`acclimate.inspect_instructions`."""

    model: Model
    base: Annotated[str | Path | None, Option("Base model to compare with.", MODEL)] = None
    out: JsonFile = None
    _: KW_ONLY
    prompts: Annotated[
        str | Path | None,
        Option(
            "JSONL file of instructions.",
            DATA,
            default="those that are included",
            more="Each line is an object with ``prompt`` and ``checks``, a list of checks of "
            ":data:`acclimate.evaluation.instructions.CHECKS` with their arguments.",
        ),
    ] = None
    max_tokens: Annotated[Count, Option("Maximum tokens of an answer.", METHOD)] = 160


@options
class InspectBenchmarksOptions:
    """Options of :func:`acclimate.inspect_benchmarks`."""

    model: Model
    tasks: Annotated[
        Strings,
        BeforeValidator(_listed),
        Field(min_length=1),
        Option("Name of a task of lm-eval.", DATA, flag="--task", many=True),
    ]
    base: Annotated[str | Path | None, Option("Base model to compare with.", MODEL)] = None
    out: JsonFile = None
    _: KW_ONLY
    include_path: Annotated[str | Path | None, Option("Folder with more tasks of lm-eval, as YAML files.", DATA)] = (
        None
    )
    few_shot: Annotated[
        Annotated[Integer, Field(ge=0, le=1000)] | None,
        Option("Solved examples before each item.", METHOD, default="that of the task"),
    ] = None
    limit: Annotated[Count | None, Option("Maximum items per task.", DATA, default="all")] = None
    chat_template: Annotated[bool, Option("Ask through the chat template.", METHOD)] = False
    batch_size: Annotated[Size, Option("Sequences per forward pass.", METHOD)] = 8


@options
class BenchOptions:
    """Options of ``acclimate bench``."""

    _: KW_ONLY
    shapes: Annotated[
        Strings,
        BeforeValidator(_listed),
        Option(
            "Shape of a model: minilm, base or tiny.",
            MODEL,
            default="minilm and base on a GPU, else minilm",
            flag="--shape",
            many=True,
        ),
    ] = ()
    batch_size: Annotated[
        Size | None, Option("Texts per optimizer step.", METHOD, default="256 on a GPU, else 32")
    ] = None
    precision: Precision = "auto"
    minutes: Annotated[Duration, Option("Time for all measurements.", METHOD, unit="minutes")] = 5.0
    progress: Progress = True
