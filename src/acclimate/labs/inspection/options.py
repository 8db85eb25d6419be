"""Options of most inspections."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from acclimate.base.bounds import Count, Fraction, NonNegative, Number, SeedNumber, Share, Size, TokenCount
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.base.registry import PartLike
from acclimate.base.verbs import PUBLISH, register_group, register_verb
from acclimate.data.fields import (
    MASK_RATE,
    Folder,
    JsonFile,
    MaxLength,
    Model,
    Models,
    Precision,
    Progress,
    Seed,
    StopWords,
    Strings,
    TextInput,
    Texts,
    check_distinct,
    read_listed,
    read_models,
    read_names,
    read_tasks,
    text_option,
)
from acclimate.data.reading import LabelOptions, TextOptions
from acclimate.tasks.options import TaskLike

if TYPE_CHECKING:
    from acclimate.parts.masking import Masking

    Maskings = Sequence[str] | Mapping[str, Masking] | None
    Seeds = Collection[int]
    Tasks = Sequence[TaskLike | str | Path]
else:
    Maskings = Any
    Seeds = tuple[SeedNumber, ...]
    Tasks = tuple[Any, ...]

register_group(
    "inspect",
    help="Inspect a model or a text.",
    example="acclimate inspect masks --model roberta-base --corpus reviews/ --out masks/",
    page="docs/commands.md",
    section=PUBLISH,
    order=1,
)


@register_verb(
    "inspect importance",
    "acclimate.labs.inspection.importance:inspect_importance",
    show="show_importance",
    example=(
        "acclimate inspect importance --model roberta-base --corpus reviews=reviews.txt --corpus news=news.txt --out "
        "importance/"
    ),
    page="docs/analyses.md",
    order=2,
)
@options
class InspectImportanceOptions(TextOptions):
    """Measure the importance of heads and units for general knowledge on several domains, and compare with chance."""

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
            more="See :func:`acclimate.parts.updates.estimate_sampling_error`.",
        ),
    ] = 0.03
    seeds: Annotated[
        Seeds,
        BeforeValidator(read_listed),
        Field(min_length=1),
        AfterValidator(check_distinct),
        Option("Random seed of the sample of text and of dropout.", flag="--seed", default="0", many=True),
    ] = (0,)
    reads: Annotated[
        Literal["hidden", "logits"],
        Option(
            "Outputs whose divergence is measured.",
            METHOD,
            more="See :func:`acclimate.parts.updates.summed_importance`.",
        ),
    ] = "hidden"
    protect: Annotated[
        Literal["unusual", "important"],
        Option(
            "Normalization: Eq. 10 of the DGA paper (unusual), or only its upper side (important).",
            METHOD,
            more="See :func:`acclimate.parts.updates.normalize_importance`.",
        ),
    ] = "unusual"
    max_length: MaxLength = 128
    dropout: Annotated[
        Share | None, Option("Dropout probability.", MODEL, default="the value in the model's configuration")
    ] = None
    precision: Precision = "auto"
    progress: Progress = True


@register_verb(
    "inspect model",
    "acclimate.labs.inspection.model:inspect_model",
    show="show_model",
    example="acclimate inspect model HuggingFaceTB/SmolLM2-135M --out model.json",
    page="docs/decoders.md",
    order=1,
)
@options
class InspectModelOptions:
    """Show what a model is, how it will be run and why, what it can do, and the memory of each way of training."""

    model: Annotated[str | Path, Option("Model folder or name on the Hugging Face Hub.", MODEL, flag="MODEL")]
    out: JsonFile = None
    _: KW_ONLY
    max_length: Annotated[Size, Option("Tokens per row, for the memory of attention.", DATA)] = 1_024


@register_verb(
    "inspect masks",
    "acclimate.labs.inspection.masks:inspect_masks",
    show="show_masks",
    example="acclimate inspect masks --model roberta-base --corpus reviews/ --masking whole-word --out masks/",
    page="docs/masking.md",
    order=3,
    plugins=True,
)
@options
class InspectMasksOptions(LabelOptions, TextOptions):
    """Compare masking strategies: which tokens they mask, with counts."""

    model: Annotated[
        str | Path,
        Option("Model folder or name on the Hugging Face Hub; without a task only its tokenizer is read.", MODEL),
    ]
    corpus: Annotated[TextInput, text_option("Text")]
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
    method: Annotated[
        PartLike, Option("Method of selective masking, with parameters such as 'selective delta=0.02'.", METHOD)
    ] = "selective"
    mask_rate: Annotated[
        Number, Field(gt=0, lt=1), Option("Share of tokens to mask.", METHOD, more="For strategies given by name.")
    ] = MASK_RATE
    texts: Annotated[Count, Option("Number of texts to show.", OUTPUT)] = 6
    tokens: Annotated[TokenCount, Option("Tokens of the text to count on, from its start.", DATA)] = 200_000
    max_length: Annotated[Size, Option("Maximum tokens per text.", DATA)] = 128
    seed: Annotated[Seed, Option("Random seed of samples and masks.")] = 0
    stop_words: StopWords = "english"
    precision: Precision = "auto"
    progress: Progress = True


@register_verb(
    "inspect embeddings",
    "acclimate.labs.inspection.embeddings:inspect_embeddings",
    show="show_embeddings",
    example="acclimate inspect embeddings --before roberta-base --after adapted/ --out embeddings/",
    page="docs/analyses.md",
    order=4,
)
@options
class InspectEmbeddingsOptions(TextOptions):
    """Measure and draw how far adaptation moved the static word embeddings."""

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
        text_option(
            "Domain text", more="Distances are also reported over the tokens that occur in it.", flag="--corpus"
        ),
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
        BeforeValidator(read_listed),
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
    progress: Progress = True


@register_verb(
    "inspect leakage",
    "acclimate.labs.inspection.leakage:inspect_leakage",
    show="show_leakage",
    example="acclimate inspect leakage --task reviews-task/ --corpus reviews/ --out leakage.json",
    page="docs/evidence.md",
    order=5,
)
@options
class InspectLeakageOptions(LabelOptions, TextOptions):
    """Find texts of benchmarks, and dev and test texts of tasks, in corpora and in the train splits of the tasks."""

    tasks: Annotated[
        Tasks,
        BeforeValidator(read_tasks),
        Option(
            "Labelled task: a folder, a file, or hf:NAME.",
            DATA,
            default="none",
            more="Or a loaded task.",
            flag="--task",
            many=True,
        ),
    ] = ()
    corpus: Annotated[
        TextInput | None,
        text_option("Text", default="only train splits are searched", more="Each one given is a corpus of its own."),
    ] = None
    out: JsonFile = None
    _: KW_ONLY
    benchmarks: Annotated[
        Tasks,
        BeforeValidator(read_tasks),
        Option(
            "Texts of a benchmark that is no task, such as questions: file, folder, glob or hf:NAME.",
            DATA,
            default="none",
            more="Or texts or rows in memory.",
            flag="--benchmark",
            many=True,
        ),
    ] = ()
    benchmark_columns: Annotated[
        Strings,
        BeforeValidator(read_names),
        Option(
            "Columns of the benchmarks whose texts are searched for, each by itself, such as question,doc.question; "
            "the latter is a key of an object.",
            DATA,
            default="the text column",
            many=True,
        ),
    ] = ()
    write_clean: Annotated[
        str | Path | None,
        Option("Output directory of the corpora without the documents that contain a text.", OUTPUT, default="none"),
    ] = None
    tables: Annotated[
        str | Path | None,
        Option(
            "Output directory of a table per benchmark (CSV and LaTeX) and the list of flagged documents.",
            OUTPUT,
            default="none",
        ),
    ] = None
    near: Annotated[
        Fraction, Option("Minimum Jaccard similarity of the character n-grams of near duplicates.", METHOD)
    ] = 0.8
    contained: Annotated[
        Fraction, Option("Minimum share of a text's word n-grams that a document contains.", METHOD)
    ] = 0.8
    fewest_words: Annotated[
        Count, Option("Minimum words of a text; shorter ones are only compared with whole documents.", METHOD)
    ] = 8
    progress: Progress = True
