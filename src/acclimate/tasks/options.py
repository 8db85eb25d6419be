"""Options of ``finetune`` and ``distill``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import ArgsKwargs

from acclimate.adaptation.options import PEAK_RATE, MaxGradientNorm, ReportTo
from acclimate.adaptation.step_options import FreezeForTask
from acclimate.base.bounds import (
    ALL,
    MAX_SIZE,
    Count,
    Fraction,
    Integer,
    Levels,
    NonNegative,
    Number,
    Positive,
    SeedCount,
    SeedNumber,
    Size,
)
from acclimate.base.errors import UserError, first_line
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option, defaults, option_fields, options
from acclimate.base.registry import Published, fill_from_preset, preset_names
from acclimate.base.settings_file import read_value
from acclimate.base.verbs import FIRST, TRAIN, register_verb
from acclimate.data.fields import DryRun, Precision, Progress, Require, Seed, Strings, read_counts, read_listed
from acclimate.data.reading import ReadingOptions
from acclimate.engine.options import Compile, GradientCheckpointing, MaxMemory
from acclimate.tasks import recipe
from acclimate.tasks.embedding_options import EmbeddingOptions
from acclimate.tasks.generation_options import GenerationOptions

if TYPE_CHECKING:

    class TaskLike(Protocol):
        """A labelled task (see :class:`acclimate.tasks.interfaces.LabelledTask`)."""

        @property
        def name(self) -> str:
            """The name."""

        def fingerprint(self) -> str:
            """Return a content hash."""

else:
    TaskLike = Any


def read_labels(value: Any) -> Any:
    """Return one or several labels as a tuple, or None; a boolean becomes the label ``"true"`` or ``"false"``."""
    if value is None:
        return None
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return tuple(str(item).lower() if isinstance(item, bool) else item for item in items) or None


def read_templates(value: Any) -> Any:
    """Return one or several templates as a tuple; a YAML file stands for the list in it.

    Raises:
        ValueError: If such a file has no list of texts.
    """
    if isinstance(value, list | tuple) and len(value) == 1:  # as from the command line
        value = value[0]
    if not (isinstance(value, str | Path) and str(value).endswith((".yaml", ".yml"))):
        return value if value is None else read_listed(value)
    try:
        found = read_value(Path(value).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, UserError) as error:
        raise ValueError(f"cannot be read from '{value}': {first_line(error)}") from error
    if not (isinstance(found, list) and found and all(isinstance(one, str) for one in found)):
        raise ValueError(f"needs a list of texts, and '{value}' has none")
    return tuple(found)


Share = Annotated[Number, Field(ge=0, le=1)]
OUT = Option(
    "Output directory.",
    OUTPUT,
    default="nothing is saved",
    more="It gets the model, its tokenizer, ``metrics.json`` and ``predictions.jsonl``. If it holds the result of the "
    "same call already, that is returned.",
    study=False,
    recorded=False,
)
MAX_CONTEXT = 64
Context = Annotated[Integer, Field(ge=0, le=MAX_CONTEXT)]
Shots = Annotated[Integer, Field(ge=0, le=1000)]
Epochs = Annotated[Integer, Field(ge=0, le=MAX_SIZE)]


@options
class SupervisedOptions:
    """Options that every training on a labelled task has."""

    _: KW_ONLY
    seed: Annotated[
        Seed,
        Option(
            "Random seed of new weights, the order of examples, dropout and few-shot sampling.",
            study=False,
        ),
    ] = 0
    epochs: Annotated[
        Epochs | None,
        Option(
            "Passes over the train split; 0 evaluates a retrieval model, or a decoder on choices or answers, as is.",
            default=f"{recipe.EPOCHS}, or as many as {recipe.STEPS} steps need; {recipe.EPOCHS} for retrieval",
        ),
    ] = None
    learning_rate: Annotated[
        Positive | None,
        replace(
            PEAK_RATE,
            default=f"{recipe.RATE:g} for a model of width {recipe.WIDTH}, half of that for twice the width; "
            f"{recipe.CONTRASTIVE_RATE:g} for retrieval",
        ),
    ] = None
    batch_size: Annotated[Size, Option("Examples per optimizer step.")] = 16
    max_length: Annotated[
        Size | None,
        Option(
            "Maximum tokens per example, or per window of a passage.",
            DATA,
            default="128; 256 for multiple choice and retrieval, 384 for question answering, 1,024 for generation",
            more="Of a pair, the longer text is truncated first; a passage is read whole, in overlapping windows. The "
            "model's own limit applies, too.",
        ),
    ] = None
    few_shot: Annotated[
        Count | None,
        Option("Train examples per class (of questions, in total), drawn at random.", DATA, default="all"),
    ] = None
    select: Annotated[
        Literal["last", "dev"],
        Option(
            "Weights to keep: those of the last epoch, or of the epoch that is best on the dev split.",
            more="Of more than 20 epochs, about 20 are measured.",
        ),
    ] = "last"
    metric: Annotated[
        str | None,
        Option(
            "Metric that selects the best epoch on the dev split.",
            default="the first of the task, such as macro_f1",
            more="See :mod:`acclimate.evaluation.scoring`.",
            study=False,
        ),
    ] = None
    warmup: Annotated[Share, Option("Share of the steps over which the learning rate rises.")] = recipe.WARMUP
    weight_decay: Annotated[NonNegative, Option("AdamW weight decay, except of biases and norms.")] = 0.01
    max_gradient_norm: MaxGradientNorm = 1.0
    precision: Precision = "auto"
    compile: Compile = False
    gradient_checkpointing: GradientCheckpointing = None
    max_memory: MaxMemory = None
    negative: Annotated[
        str | Sequence[str] | None,
        BeforeValidator(read_labels),
        Option(
            "Label that means 'none of these', such as DDI-false; a micro-F1 of the other labels is added.",
            DATA,
            many=True,
            study=False,
        ),
    ] = None
    confidence_penalty: Annotated[
        NonNegative,
        Option(
            "Weight of the entropy of the predictions, which is subtracted from the loss.",
            METHOD,
            more="Pereyra et al., 2017; usually 0.3. Classes and entities only.",
        ),
    ] = 0.0
    progress: Progress = True


@options
class JointOptions:
    """Options of fine-tuning that apply only to tasks with auxiliary labels."""

    _: KW_ONLY
    context: Annotated[
        Context,
        Option("Texts before each one in its dialogue or document that are read with it, the last one first.", DATA),
    ] = 0
    auxiliary_weight: Annotated[
        NonNegative, Option("Weight of the loss of the auxiliary labels of a task that has them.", METHOD)
    ] = 1.0


@options
class FinetuneOptions(SupervisedOptions, EmbeddingOptions, GenerationOptions, JointOptions, ReadingOptions):
    """Options of :func:`acclimate.finetune`."""

    model: Annotated[
        str | Path,
        Option("Model folder or name on the Hugging Face Hub.", MODEL, study=False),
    ]
    task: Annotated[
        TaskLike | str | Path,
        Option(
            "Labelled task: a folder with train, test and perhaps dev files, one file, or hf:NAME.",
            DATA,
            more="Or rows in memory, or a loaded task: see :func:`acclimate.data.task_kinds.load_task`.",
            study=False,
        ),
    ]
    _: KW_ONLY
    out: Annotated[str | Path | None, OUT] = None
    first: Annotated[
        TaskLike | str | Path | None,
        Option(
            "Folder of a task of the same kind, with the same labels, to fine-tune on before this one.",
            DATA,
            more="The model is trained on its train split, head included, with the same options. The result is "
            "cached for later runs with the same model, seed and options.",
            study=False,
        ),
    ] = None
    first_epochs: Annotated[
        Size | None,
        Option(
            "Passes over the train split of the first task.",
            default="by the same rule as on the task",
            study=False,
        ),
    ] = None
    first_learning_rate: Annotated[
        Positive | None,
        Option("Peak learning rate on the first task.", default="the same as on the task", study=False),
    ] = None
    tune: Annotated[
        bool,
        Option(
            "Choose the learning rate on dev among three around the default.",
            more="Each is tried once, with a seed that is not used afterwards.",
            study=False,
        ),
    ] = False
    freeze: FreezeForTask = ()
    all_labels: Annotated[
        bool,
        Option(
            "Train on the dev and test splits, too: a model to use, without a score.",
            DATA,
            more="Give the settings that were found before, since no rows are left to choose by.",
            study=False,
        ),
    ] = False
    template: Annotated[
        Strings | None,
        BeforeValidator(read_templates),
        Option(
            "Prompt of a decoder that is not trained, or a YAML file with a list of them.",
            METHOD,
            default="the templates of the kind of task",
            many=True,
            more="Of several prompts, the model gets the one that is best on dev; see ``docs/decoders.md``.",
        ),
    ] = None
    shots: Annotated[
        tuple[Shots, ...] | None,
        BeforeValidator(read_counts),
        Option(
            "Train examples with their answers in the prompt of a decoder; of several numbers, the best on dev.",
            METHOD,
            default="0,4 for a model of multiple choice that is not trained and has no template, else 0",
            more="They are never from dev or test, and no example is shown its own answer.",
        ),
    ] = None
    prompt_seeds: Annotated[
        tuple[SeedNumber, ...],
        BeforeValidator(read_counts),
        Option(
            "All seeds of a comparison, each of which chooses a prompt on its own part of dev.",
            cli=False,
            study=False,
        ),
    ] = ()
    every_prompt: Annotated[
        bool, Option("Whether to answer test with every prompt, for a comparison.", cli=False, study=False)
    ] = False
    report_to: ReportTo = None

    @model_validator(mode="after")
    def check_together(self) -> Any:
        """Check that options of the first task come with that task, and that ``all_labels`` has nothing to choose."""
        for name in ("first_epochs", "first_learning_rate"):
            if self.first is None and getattr(self, name) is not None:
                raise ValueError(f"'{name}' needs a first task: give it as 'first', or remove '{name}'")
        if self.epochs != 0 and (self.template is not None or len(self.shots or ()) > 1):
            name = "shots" if self.template is None else "template"
            raise ValueError(f"'{name}' is chosen for models that are not trained: set epochs to 0, or remove it")
        if self.tune and self.learning_rate is not None:
            raise ValueError("'tune' chooses the learning rate: remove 'learning_rate', or 'tune'")
        if self.all_labels and (self.tune or self.few_shot is not None or self.epochs == 0):
            wrong = "tune" if self.tune else "few_shot" if self.few_shot is not None else "epochs=0"
            raise ValueError(f"'all_labels' trains on every row, so '{wrong}' does not apply; remove it")
        return self


@options
class ProbeSettings:
    """How a task is learned from the states of a frozen model."""

    _: KW_ONLY
    labels_per_class: Annotated[
        Levels,
        Option(
            "Train examples per class (of regression, in total) that a probe learns from, such as 8,64,all.",
            DATA,
            default="8,16,64,all",
            many=True,
        ),
    ] = (8, 16, 64, ALL)
    draws: Annotated[SeedCount, Option("Random draws of the train examples of a probe, counted from 0.", DATA)] = 8
    neighbors: Annotated[Size, Option("Neighbors whose answers a probe averages.", METHOD)] = 5


@register_verb(
    "probe",
    "acclimate.tasks.probing:probe",
    example="acclimate finetune --model roberta-base --task reviews.csv --probe",
    page="docs/data.md",
    cli=False,
)
@options
class ProbeOptions(ProbeSettings, ReadingOptions):
    """Options of :func:`acclimate.probe`."""

    model: Annotated[
        str | Path, Option("Model folder or name on the Hugging Face Hub; it is not trained.", MODEL, study=False)
    ]
    task: Annotated[
        TaskLike | str | Path,
        Option("Labelled task, as that of :func:`acclimate.finetune`.", DATA, study=False),
    ]
    _: KW_ONLY
    max_length: Annotated[Size | None, Option("Maximum tokens per text.", DATA, default="that of the task")] = None
    negative: Annotated[
        str | Sequence[str] | None,
        BeforeValidator(read_labels),
        Option("Label that means 'none of these', as for fine-tuning.", DATA, many=True, study=False),
    ] = None
    progress: Progress = True


@options
class DistillOptions(SupervisedOptions, ReadingOptions):
    """Options of :func:`acclimate.distill`."""

    teacher: Annotated[
        str | Path,
        Option("Teacher: a classifier of the task, or any other model of the domain.", MODEL, study=False),
    ]
    student: Annotated[
        str | Path,
        Option(
            "Student: a classifier of the task, or any other model, of any architecture.",
            MODEL,
            study=False,
        ),
    ]
    task: Annotated[
        TaskLike | str | Path,
        Option(
            "Task of classes, numbers, entities or choices: a folder with train, test and perhaps dev files, one "
            "file, or hf:NAME.",
            DATA,
            study=False,
        ),
    ]
    _: KW_ONLY
    seed: Annotated[Seed, Option("Random seed of the student's training and of a random connector.", study=False)] = 0
    out: Annotated[str | Path | None, replace(OUT, help="Output directory of the student.")] = None
    teacher_out: Annotated[
        str | Path | None,
        Option("Output directory of a teacher that is fine-tuned.", OUTPUT, cli=False, study=False, recorded=False),
    ] = None
    preset: Annotated[
        Literal["paper", "released-code"] | None,
        Option(
            "Source of values that are not given: the paper, or its released code, whose values are the defaults.",
            METHOD,
            recorded=False,
        ),
    ] = None
    objective: Annotated[
        Literal["auto", "boundary", "kl"],
        Option(
            "What the student learns: which units are active (boundary), or softened predictions (kl).",
            METHOD,
            more="``kl`` is the paper's ablation (Table 6), and what entities and decoders can learn; for numbers it "
            "is the squared distance. ``auto`` is ``boundary``, for entities and choices ``kl``.",
        ),
    ] = "auto"
    epochs: Annotated[Size, Option("Passes over the train split, distillation and refinement together.")] = 10
    few_shot: Annotated[Count | None, Option("Train examples per class, drawn at random.", DATA, default="all")] = None
    distill_share: Annotated[
        Share,
        Option(
            "Share of the epochs that distill, rounded down to whole epochs; the others refine on the labels.",
            METHOD,
            more="The paper's gamma. With 0 nothing is distilled.",
        ),
    ] = 0.9
    learning_rate: Annotated[Positive, Option("Peak learning rate of both phases.")] = 1e-5
    confidence_penalty: Annotated[
        NonNegative,
        Option(
            "Weight of the entropy of the predictions during refinement.",
            METHOD,
            more="The paper's beta_2. Numbers have none.",
        ),
    ] = 0.5
    margin: Annotated[NonNegative, Option("Margin of the activation boundary.", METHOD, more="The paper's mu.")] = 1.0
    scale: Annotated[
        Positive,
        Option(
            "Factor of the boundary loss.",
            METHOD,
            more="See :func:`acclimate.parts.objectives.distillation.activation_boundary_loss`.",
        ),
        Published(
            {"paper": 1.0, "released-code": 1e-3},
            "As in the released code. With Adam it matters only to clipping and at the start of refinement.",
        ),
    ] = 1e-3
    temperature: Annotated[
        Positive,
        Option("Temperature of the predictions, for the objective kl.", METHOD, more="The released code has none."),
    ] = 1.0
    connector: Annotated[
        Literal["auto", "none", "teacher", "student"],
        Option(
            "Which representation is projected, where the models differ in width.",
            METHOD,
            more="See :class:`acclimate.parts.modules.connectors.Connectors`.",
        ),
    ] = "auto"
    connector_learning_rate: Annotated[
        Positive,
        Option(
            "Learning rate of the student's connector.",
            METHOD,
            more="The connector is new and small, and is not saved: at an encoder's learning rate it would remain a "
            "random projection.",
        ),
    ] = 1e-3
    schedule: Annotated[
        Literal["shared", "each"],
        Option(
            "One learning-rate schedule for both phases, or one for each.",
            more="``shared`` is that of the released code: the rate falls linearly over both phases.",
        ),
    ] = "shared"
    teacher_epochs: Annotated[Size, Option("Passes over the train split in the teacher's fine-tuning.")] = 5
    teacher_learning_rate: Annotated[Positive, Option("Peak learning rate of the teacher's fine-tuning.")] = 2e-5
    teacher_penalty: Annotated[
        NonNegative,
        Option(
            "Weight of the entropy of the predictions in the teacher's fine-tuning.",
            METHOD,
            more="The paper's beta_1; 0 is the ablation without calibration. Numbers have none.",
        ),
    ] = 0.3
    teacher_seed: Annotated[
        SeedNumber | None,
        Option("Random seed of the teacher's fine-tuning.", default="that of the student", cli=False, study=False),
    ] = None
    student_epochs: Annotated[Size, Option("Passes over the train split in the student's fine-tuning.")] = 5
    student_learning_rate: Annotated[Positive, Option("Peak learning rate of the student's fine-tuning.")] = 1e-5
    max_length: Annotated[
        Size, Option("Maximum tokens per example, in all stages; each model counts its own tokens.", DATA)
    ] = 128
    warmup: Annotated[Share, Option("Share of the steps of each stage over which the learning rate rises.")] = 0.0
    weight_decay: Annotated[NonNegative, Option("AdamW weight decay, in all stages.")] = 0.0
    report_to: ReportTo = None

    @model_validator(mode="before")
    @classmethod
    def take_preset(cls, given: Any) -> Any:
        """Add the values of the preset; an unknown one is left to the check of the field."""
        if isinstance(given, ArgsKwargs) and (given.kwargs or {}).get("preset") in preset_names(cls):
            return ArgsKwargs(given.args, fill_from_preset(cls, given.kwargs or {}))
        return given

    @property
    def distilled_epochs(self) -> int:
        """Number of epochs of the first phase: ``floor(distill_share * epochs)``, despite rounding errors."""
        return int(self.distill_share * self.epochs + 1e-9)

    @model_validator(mode="after")
    def check_distillation(self) -> Any:
        """Check that a share above 0 is at least one epoch, and that the objective trains the connector."""
        if self.objective == "kl" and self.connector == "student":
            raise ValueError("'connector' cannot be 'student' with the objective 'kl', which does not train it")
        if self.distill_share and not self.distilled_epochs:
            raise ValueError(
                f"'distill_share' {self.distill_share:g} of {self.epochs} epochs is less than one epoch, so nothing "
                "would be distilled; give more epochs, a larger share, or 0 to distill nothing"
            )
        return self


@register_verb(
    "finetune",
    "acclimate.tasks.finetune:finetune",
    command="acclimate.tasks.seeds:finetune_seeds",
    dry_run="acclimate.study.dry_runs:price_finetuning",
    show="acclimate.tasks.seeds:show_finetuned",
    decide="acclimate.tasks.seeds:decide_finetuned",
    example="acclimate finetune --model adapted/ --task ner/ --seeds 5 --out finetuned/",
    page="docs/data.md",
    section=FIRST,
    order=3,
    without=("seed",),
    shared=True,
)
@options
class FinetuneCommand(FinetuneOptions, ProbeSettings):
    """Fine-tune a model on a labelled task, once per seed, and evaluate it on the test split.

    Each seed gets a folder seed-0, seed-1, ... in the output directory. With --probe the model is not trained:
    simple models learn the task from its states, with several numbers of labels, in little more time than to read
    the texts.
    """

    _: KW_ONLY
    probe: Annotated[
        bool, Option("Freeze the model: a linear model and nearest neighbours learn from its states.", METHOD)
    ] = False
    seeds: Annotated[
        SeedCount | None, Option("Number of seeds, counted from 0.", default="5; 1 with --all-labels")
    ] = None
    repartition: Annotated[
        Fraction | None,
        Option(
            "Share of the train split to keep; the rest and the dev split are added to the test split, as in the DGA "
            "paper.",
            DATA,
        ),
    ] = None
    require: Require = ()
    dry_run: DryRun = False

    @model_validator(mode="after")
    def check_probe(self) -> Any:
        """Check that options of a training are given only without a probe, and options of a probe only with it."""
        usual = defaults(FinetuneCommand)
        own, shared = option_fields(ProbeSettings).keys(), option_fields(ProbeOptions).keys()
        others = own if not self.probe else usual.keys() - shared - {"probe", "repartition"}
        if given := [name for name in usual if name in others and getattr(self, name) != usual[name]]:
            wrong = "does not apply with a probe, which trains no model" if self.probe else "needs 'probe'"
            raise ValueError(f"'{given[0]}' {wrong}; remove it" + ("" if self.probe else ", or give --probe"))
        return self


@register_verb(
    "distill",
    "acclimate.tasks.distillation.distill:distill",
    command="acclimate.tasks.seeds:distill_seeds",
    show="acclimate.tasks.seeds:show_students",
    example="acclimate distill --teacher adapted/ --student distilroberta-base --task reviews/ --out distilled/",
    page="docs/distill.md",
    section=TRAIN,
    order=9,
    without=("seed",),
)
@options
class DistillCommand(DistillOptions):
    """Distill a task from a teacher that knows the domain into a model of another architecture.

    The output directory gets the teacher, if it is fine-tuned, and one student per seed. All students share a
    teacher.
    """

    _: KW_ONLY
    seeds: Annotated[SeedCount, Option("Number of seeds of the student, counted from 0.")] = 1

    @model_validator(mode="after")
    def check_seeds(self) -> Any:
        """Check that there is one seed with few-shot examples, which it draws for the teacher, too."""
        if self.seeds > 1 and self.few_shot is not None:
            raise ValueError("each seed draws other few-shot examples, but all seeds share one teacher; give one seed")
        return self
