"""Options of ``annotate`` and ``inspect cost``; they are read at each start, so nothing here imports torch."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from acclimate.base.bounds import Count, Integer, Positive, Size
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.base.verbs import TRAIN, register_verb
from acclimate.data.fields import JsonFile, MaxLength, Models, Precision, Progress, Seed, read_models
from acclimate.data.reading import ReadingOptions
from acclimate.tasks.options import TaskLike

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    ModelLists = Mapping[str, Sequence[str | Path]] | Sequence[str | Path] | None
else:
    ModelLists = Any


@options
class AnnotatorOptions:
    """How the classifier that finds important tokens is fine-tuned (Gu et al., EMNLP 2020, appendix B.2)."""

    _: KW_ONLY
    epochs: Annotated[
        Size, Option("Passes over the train split in fine-tuning; the epoch with the best dev accuracy is used.")
    ] = 10
    learning_rate: Annotated[Positive, Option("Peak learning rate of fine-tuning.")] = 2e-5
    batch_size: Annotated[Size, Option("Texts per optimizer step.")] = 64
    max_length: MaxLength = 256


@register_verb(
    "annotate",
    "acclimate.papers.selective.annotation:annotate_task",
    show="show_annotation",
    example="acclimate annotate --model bert-base-uncased --task reviews/ --out annotated/",
    page="src/acclimate/papers/selective/README.md",
    section=TRAIN,
    order=10,
)
@options
class AnnotateOptions(AnnotatorOptions, ReadingOptions):
    """Find the tokens of a task's train split that its labels depend on (Gu et al., EMNLP 2020)."""

    model: Annotated[
        str | Path,
        Option(
            "Model folder or name on the Hugging Face Hub; it is fine-tuned first, unless it is a classifier of the "
            "task.",
            MODEL,
        ),
    ]
    task: Annotated[
        TaskLike | str | Path,
        Option("Labelled task: a folder with train, dev and test files, one file, or hf:NAME.", DATA),
    ]
    out: Annotated[str | Path, Option("Output directory.", OUTPUT)]
    _: KW_ONLY
    preset: Annotated[
        Literal["paper", "released-code"],
        Option("Values to use where paper and released code differ: thresholds, units, stop words.", METHOD),
    ] = "paper"
    settings: Annotated[
        dict[str, Any] | None,
        Option("Option of the annotation, such as delta=0.02 or criterion=marginal.", METHOD, flag="--set"),
    ] = None
    seed: Seed = 42
    samples: Annotated[Integer, Field(ge=0, le=10**6), Option("Number of annotated texts to print.", OUTPUT)] = 5
    precision: Precision = "auto"
    progress: Progress = True


@register_verb(
    "inspect cost",
    "acclimate.papers.selective.cost_table:inspect_cost",
    show="show_cost",
    example="acclimate inspect cost --adapted selective/ --pretrained pretrained/ --finetuned tuned/",
    page="src/acclimate/papers/selective/README.md",
    order=13,
)
@options
class InspectCostOptions:
    """Compare the time that task-guided pre-training takes with the time that stopping early saves."""

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
