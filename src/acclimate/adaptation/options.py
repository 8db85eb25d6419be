"""Options of ``adapt`` and ``pretrain``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from acclimate.adaptation.replay_options import ReplayOptions, check_shares
from acclimate.adaptation.step_options import (
    General,
    Heldout,
    HeldoutEvery,
    Instructions,
    KeepBest,
    Monitor,
    Patience,
    Rules,
)
from acclimate.adaptation.vocabulary_options import NewTokens, check_new_tokens
from acclimate.base.bounds import (
    MAX_SIZE,
    Count,
    Duration,
    Integer,
    NonNegative,
    Number,
    Positive,
    Share,
    TokenCount,
    number_or_auto,
)
from acclimate.base.errors import shorten
from acclimate.base.options import DATA, METHOD, MODEL, OUTPUT, Option, options
from acclimate.base.registry import PartLike
from acclimate.base.verbs import FIRST, TRAIN, register_verb
from acclimate.data.fields import (
    LENGTH,
    LENGTH_OF_CAUSAL,
    MASK_RATE,
    DryRun,
    Length,
    Precision,
    Progress,
    Seed,
    TextInput,
)
from acclimate.data.reading import LabelOptions, TextOptions
from acclimate.engine.options import (
    Adapter,
    Compile,
    Fsdp,
    GradientCheckpointing,
    MaxMemory,
    Optimizer,
    Weights,
    check_adapter,
)
from acclimate.engine.row_options import DocumentBorders, RowLayout
from acclimate.models.kinds import MASKED, SEQ2SEQ

if TYPE_CHECKING:
    Steps = Collection[int]
else:  # the command line imports neither torch nor transformers to show its help
    Steps = tuple[Annotated[int, Field(le=10**9)], ...]

HEAD_TOKENS = 300_000
"""Budget for training a missing masked-LM head, in tokens."""
PRETRAIN_LENGTH = 256
"""Default maximum tokens per text when a masked language model is trained from scratch (Gu et al., 2020)."""
SAMPLE_CHARACTERS = 50_000_000
"""Size of the sample that a tokenizer is trained on, in characters."""
NO_SIMILARITY = "none"
"""Value of the option ``similarity`` with which nothing is measured."""
BUDGETS = ("steps", "epochs", "tokens", "max_minutes")
"""Options that limit the training; at most one of them may be given."""


def read_steps(value: Any) -> Any:
    """Return step numbers as a tuple; they are given as a collection, or as text such as ``"1000,2000"``."""
    items = [value] if isinstance(value, str | int) else value
    try:
        return tuple(int(number) for item in items for number in str(item).replace("_", "").split(","))
    except (TypeError, ValueError) as error:
        shown = ",".join(map(str, items)) if isinstance(items, Iterable) else items
        raise ValueError(f"expects step numbers such as 1000,2000, not {shorten(shown)}") from error


PEAK_RATE = Option("Peak learning rate.", more="It is reached after the warm-up; see ``schedule``.")
LearningRate = Annotated[Positive, PEAK_RATE]
BatchSize = Annotated[
    int | str,
    number_or_auto(MAX_SIZE),
    Option(
        "Texts per optimizer step, or auto for as many as suit the device.",
        more="A step accumulates micro-batches as needed. With auto, the texts of a step have about as many tokens as "
        "keep a GPU busy, or as make the update of the weights cheap on a CPU "
        "(:data:`acclimate.adaptation.inputs.STEP_TOKENS`), but no more than leave a training by epochs or tokens 100 "
        "steps, and four to a pass over the text; 64 texts are always allowed. The learning rate stays the same.",
    ),
]
WeightDecay = Annotated[NonNegative, Option("AdamW weight decay, applied to matrices only.")]
MaxGradientNorm = Annotated[
    NonNegative,
    Option("Maximum gradient norm; larger gradients are scaled down to it. 0 turns clipping off."),
]
Warmup = Annotated[Share, Option("Share of the training over which the learning rate rises.")]
Schedule = Annotated[
    PartLike | None,
    Option(
        "Learning rate after the warm-up: linear, cosine, constant or wsd, or 'wsd decay=0.2'.",
        default="the method's, usually linear",
        more="``linear`` and ``cosine`` fall to zero over the rest of the training, ``wsd`` is constant and falls "
        "linearly over the share ``decay`` at the end. See :class:`acclimate.engine.schedules.Schedule`.",
    ),
]
AverageLast = Annotated[
    Count | None,
    Option(
        "Number of checkpoints whose mean is the model, as after 'constant' instead of a falling rate.",
        default="the last step is the model",
        more="They are spread evenly over the last fifth of the training, or over the share ``decay`` of the schedule "
        "(``'constant decay=0.3'``). Their sum takes 8 bytes per weight on the host (WSM, Tian et al., 2025).",
    ),
]
Out = Annotated[str | Path, Option("Output directory.", OUTPUT, study=False, recorded=False)]
KeepSteps = Annotated[
    Steps,
    BeforeValidator(read_steps),
    Option(
        "Optimizer steps after which a copy of the model is kept, such as 1000,2000; 0 is the start.",
        OUTPUT,
        more="The copies are written to ``out/step-000100`` and so on.",
        many=True,
    ),
]
Overwrite = Annotated[
    bool,
    Option("Replace the result of a different configuration in the output directory.", OUTPUT, recorded=False),
]
ReportTo = Annotated[
    str | Sequence[str] | None,
    Option(
        "Experiment tracker, such as tensorboard or wandb.",
        OUTPUT,
        more="It receives what is written to ``log.jsonl``; see :func:`acclimate.engine.callbacks.check_trackers`.",
        many=True,
        recorded=False,
    ),
]


@options
class TrainingOptions(TextOptions):
    """Options that every training on text has."""

    _: KW_ONLY
    steps: Annotated[
        Count | None,
        Option(
            "Optimizer steps to train for.",
            more="Give at most one of ``steps``, ``epochs``, ``tokens`` and ``max_minutes``.",
        ),
    ] = None
    epochs: Annotated[Duration | None, Option("Passes over the corpus.", default="1; 100 on the text of a task")] = (
        None
    )
    tokens: Annotated[TokenCount | None, Option("Tokens to train on.")] = None
    max_minutes: Annotated[
        Duration | None,
        Option(
            "Minutes to train for.",
            more="The learning rate decays with time. Such a run is not exactly repeatable.",
        ),
    ] = None
    seed: Seed = 0
    max_length: Annotated[
        Length | None,
        replace(LENGTH, default=f"{MASKED.max_length}; {SEQ2SEQ.max_length} for encoder-decoders; {LENGTH_OF_CAUSAL}"),
    ] = None
    batch_size: BatchSize = 64
    mask_rate: Annotated[
        Number, Field(gt=0, lt=1), Option("Share of tokens that a masked model predicts.", METHOD)
    ] = MASK_RATE
    masking: Annotated[
        PartLike | None,
        Option(
            "Masking strategy of a masked model: NAME, or 'NAME parameter=value ...'; see docs/masking.md.",
            METHOD,
            default="random",
            more="Or ``{name: parameters}``.",
        ),
    ] = None
    weight_decay: WeightDecay = 0.0
    max_gradient_norm: MaxGradientNorm = 1.0
    warmup: Warmup = 0.1
    schedule: Schedule = None
    average_last: AverageLast = None
    dropout: Annotated[
        Share | None,
        Option(
            "Dropout probability during training.",
            MODEL,
            default="that of the model's configuration",
            more="The saved model keeps its own configuration. ALBERT, ModernBERT and most decoders have no dropout "
            "by default; methods that compare two dropout masks of a text, such as ``dga`` and ``simcse``, need it "
            "(usually 0.1). In most decoders it applies to the attention weights alone; an architecture without any "
            "dropout gets it on the embeddings.",
        ),
    ] = None
    precision: Precision = "auto"
    optimizer: Optimizer = "adamw"
    weights: Weights = "fp32"
    rules: Rules = ()
    compile: Compile = False
    gradient_checkpointing: GradientCheckpointing = None
    max_memory: MaxMemory = None
    fsdp: Fsdp = False
    layout: RowLayout = None
    documents: DocumentBorders = None
    heldout: Heldout = None
    heldout_every: HeldoutEvery = None
    save_every: Annotated[
        Count | None,
        Option("Optimizer steps between checkpoints.", OUTPUT, default="every 5 minutes", recorded=False),
    ] = None
    loader_workers: Annotated[
        Annotated[Integer, Field(ge=0, le=64)] | None,
        Option(
            "Processes that prepare batches ahead.",
            default="2 on a GPU, 0 on a CPU",
            recorded=False,
        ),
    ] = None
    keep_steps: KeepSteps = ()
    overwrite: Overwrite = False
    progress: Progress = True
    report_to: ReportTo = None

    @model_validator(mode="after")
    def check_budget(self) -> Any:
        """Check that at most one budget is given."""
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of {', '.join(BUDGETS[:-1])} and {BUDGETS[-1]}, not {' and '.join(given)}")
        return self


@options
class AdaptOptions(TrainingOptions, LabelOptions, ReplayOptions):
    """Options of :func:`acclimate.adapt`."""

    model: Annotated[
        str | Path | Callable[[], Path],
        Option(
            "Model folder or name on the Hugging Face Hub.",
            MODEL,
            more="A function that makes the folder is called after all other checks. A missing masked-LM head is "
            "trained first.",
            study=False,
        ),
    ]
    corpus: Annotated[
        TextInput | None,
        Option(
            "Domain text: file, folder, glob or hf:NAME.",
            DATA,
            default="the train split of the task",
            more="Or a :class:`acclimate.data.documents.Corpus`.",
            many=True,
            study=False,
        ),
    ] = None
    method: Annotated[
        PartLike,
        Option(
            "Method of adaptation: NAME, or 'NAME parameter=value ...'; `acclimate methods` lists them.",
            METHOD,
            more="Or ``{name: parameters}``.",
            study=False,
        ),
    ] = "lm"
    out: Out = "adapted"
    _: KW_ONLY
    task: Annotated[
        Any,
        Option(
            "Labelled task, for methods that use one: a folder, a file, or hf:NAME; only its train split is read.",
            DATA,
            more="Or rows in memory, or a loaded task: see :func:`acclimate.data.task_kinds.load_task`.",
            study=False,
        ),
    ] = None
    learning_rate: Annotated[
        Positive | None,
        Option(
            "Peak learning rate.",
            default="the method's, usually 1e-4; ten times that with an adapter",
            more="It is reached after the warm-up; see ``schedule``.",
        ),
    ] = None
    head_tokens: Annotated[TokenCount, Option("Tokens for training a missing masked-LM head.", MODEL)] = HEAD_TOKENS
    new_tokens: NewTokens = None
    similarity: Annotated[
        Any,
        Option(
            "Pairs of sentences, with or without scores, that a sentence encoder is measured on before and after.",
            DATA,
            default="neighbouring sentences of the held-out text, else of the domain text",
            more="A file, a folder, rows in memory or a loaded task of similarity or retrieval, or a folder of them, "
            "such as NanoBEIR; ``none`` measures nothing. The result is in the manifest and in the card, "
            "and a drop whose interval excludes zero is a warning.",
            study=False,
        ),
    ] = None
    adapter: Adapter = None
    general: General = None
    instructions: Instructions = False
    monitor: Monitor = False
    keep_best: KeepBest = False
    patience: Patience = None

    @model_validator(mode="after")
    def check_options(self) -> Any:
        """Check that options fit each other."""
        for check in (check_adapter, check_new_tokens, check_shares):
            check(self)
        return self


@register_verb(
    "pretrain",
    "acclimate.adaptation.pretrain:pretrain",
    show="show_pretraining",
    example="acclimate pretrain --corpus text/ --architecture bert --size small --tokens 1000000000 --out pretrained/",
    page="docs/pretrain.md",
    section=TRAIN,
    order=11,
    shared=True,
)
@options
class PretrainOptions(TrainingOptions):
    """Train a masked or causal language model and its tokenizer from scratch."""

    corpus: Annotated[
        TextInput,
        Option(
            "Training text: file, folder, glob or hf:NAME.",
            DATA,
            more="Or a :class:`acclimate.data.documents.Corpus`.",
            many=True,
        ),
    ]
    out: Out = "pretrained"
    _: KW_ONLY
    architecture: Annotated[
        str | Path | None,
        Option(
            "Architecture, such as bert or llama, or a Hugging Face configuration: folder, JSON file or name.",
            MODEL,
            default="bert; llama for a causal model",
            more="See :data:`acclimate.adaptation.pretrain.ARCHITECTURES`.",
        ),
    ] = None
    objective: Annotated[
        Literal["masked", "causal"] | None,
        Option("Objective: masked or causal language modelling.", METHOD, default="that of the architecture"),
    ] = None
    size: Annotated[
        str | None,
        Option(
            "Model size: tiny, mini, small, medium (Turc et al., 2019) or base.",
            MODEL,
            default="that of the configuration; base for a decoder named by its architecture",
        ),
    ] = None
    changes: Annotated[
        dict[str, Any] | None,
        Option("Setting of the model configuration, such as num_hidden_layers=6.", MODEL, flag="--set"),
    ] = None
    tokenizer: Annotated[
        str | Path | None,
        Option(
            "Tokenizer: a folder or model, or the kind to train: wordpiece or byte-bpe.",
            MODEL,
            default="the kind that the architecture usually has",
        ),
    ] = None
    vocab_size: Annotated[
        Annotated[Integer, Field(le=MAX_SIZE)] | None,
        Option("Vocabulary size of a trained tokenizer.", MODEL, default="at most 30,000"),
    ] = None
    lowercase: Annotated[
        bool | None,
        Option("Whether a trained tokenizer ignores case.", MODEL, default="only for WordPiece", negated="--cased"),
    ] = None
    tokenizer_characters: Annotated[
        TokenCount, Option("Maximum characters of the sample that a tokenizer is trained on.", MODEL)
    ] = SAMPLE_CHARACTERS
    epochs: Annotated[Duration | None, Option("Passes over the corpus.", default="1")] = None
    max_length: Annotated[Length | None, replace(LENGTH, default=f"{PRETRAIN_LENGTH}; {LENGTH_OF_CAUSAL}")] = None
    batch_size: BatchSize = 256
    learning_rate: LearningRate = 1e-4
    weight_decay: WeightDecay = 0.01
    warmup: Warmup = 0.01


@register_verb(
    "adapt",
    "acclimate.adaptation.adapt:adapt",
    command="adapt_and_push",
    dry_run="acclimate.study.dry_runs:price_adaptation",
    show="show_adaptation",
    example="acclimate adapt --model roberta-base --corpus reviews/ --method dga --epochs 1 --out adapted/",
    page="docs/commands.md",
    section=FIRST,
    order=2,
    plugins=True,
    shared=True,
)
@options
class AdaptCommand(AdaptOptions):
    """Adapt a model to domain text."""

    _: KW_ONLY
    push_to_hub: Annotated[
        str | None,
        Option(
            "Upload the model to the Hugging Face Hub as USER/NAME at the end; a new repository is private.", OUTPUT
        ),
    ] = None
    dry_run: DryRun = False
