"""The base class of methods, their registry, and the context in which a method prepares.

A method combines objectives over views and, optionally, a masking strategy, an update rule and a preparation. When the
registry is first read, every module in ``acclimate.adaptation.methods`` is imported, and so is every entry point that
other packages declare in the group ``acclimate.adaptation.methods``: a new method is one file with ``@register``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.adaptation.carried import Carried
from acclimate.adaptation.teacher_models import Uses, load_teacher
from acclimate.base.device import Precision, preserve_rng_state
from acclimate.base.errors import UserError, first_line
from acclimate.base.files import atomic_folder, cache_folder, find_file, hash_file
from acclimate.base.progress import print_message
from acclimate.base.registry import Part, Registry, hash_user_code
from acclimate.base.version import __version__
from acclimate.engine.batches import Collator, SharedTexts
from acclimate.engine.distributed import ProcessGroup
from acclimate.models.attention import HeadLayer
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.models.checkpoints import model_fingerprint
from acclimate.models.families import describe_computation
from acclimate.models.gates import UnitGroup, gate_units
from acclimate.models.kinds import ModelKind, kind_of
from acclimate.models.loading import dropout_rates
from acclimate.parts.masking import Masking
from acclimate.parts.objectives import Batch, BatchObjective, LanguageModelling, Objective
from acclimate.parts.updates import UpdateRule

T = TypeVar("T")
log = logging.getLogger(__name__)
IGNORED_CONFIG_KEYS = ("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache")
"""Entries of a model's configuration that do not affect any result."""
SAMPLE_GROUP_TOKENS = 40_000
"""Tokens per process that :meth:`AdaptContext.sample` sorts by length and splits into micro-batches together."""


def cache_key(decides: Mapping[str, Any]) -> str:
    """Return the cache key of a computation, 24 hex digits, from the values that determine its result."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:24]


def fingerprint_weights(model: nn.Module) -> str:
    """Return the SHA-256 of the names and values of a module's weights, whatever file they were loaded from."""
    return fingerprint_tensors(model.state_dict())


def fingerprint_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and values of tensors, whatever their order."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fingerprint_model(model: PreTrainedModel) -> str:
    """Return a hash of what determines the outputs of a model: weights, configuration and current dropout rates."""
    shape = {name: value for name, value in model.config.to_dict().items() if name not in IGNORED_CONFIG_KEYS}
    return cache_key({"weights": fingerprint_weights(model), "shape": shape, "dropout": dropout_rates(model)})


TENSORS_FILE = "tensors.safetensors"


@dataclass(frozen=True)
class TensorCache:
    """Loads tensors from the cache, or computes and stores them.

    All processes of a run must request the same entries in the same order.

    Attributes:
        folder: Where they are stored; None if they are not stored.
        seed: Random seed for computing them.
        group: The processes of the run.
        device: Where cached tensors are put.
    """

    folder: Path | None
    seed: int
    group: ProcessGroup
    device: torch.device

    def __call__(self, make: Callable[[], dict[str, Tensor]], *place: int) -> dict[str, Tensor]:
        """Return the tensors of an entry.

        Args:
            make: Computes them; called unless every process finds the entry.
            place: Indices of the entry, if there are several. Each entry has its own random seed, so that its values
                do not depend on which other entries were found.
        """
        folder = self.folder / "-".join(map(str, place)) if self.folder and place else self.folder
        found = None if folder is None else _load_tensors(folder / TENSORS_FILE)
        if self.group.all(found is not None):
            assert found is not None
            return {name: value.to(self.device) for name, value in found.items()}
        with preserve_rng_state():
            torch.manual_seed(self._place_seed(place))
            values = make()
        if folder is not None and found is None and self.group.first:
            try:
                with atomic_folder(folder) as temporary:
                    save_file(
                        {name: value.cpu().contiguous() for name, value in values.items()}, temporary / TENSORS_FILE
                    )
            except OSError as error:  # a full disk must not end this run
                log.warning("Cannot store measured values in '%s': %s.", folder.parent, first_line(error))
        return values

    def _place_seed(self, place: tuple[int, ...]) -> int:
        """Return the random seed of an entry in this process."""
        if not place:
            return self.seed + self.group.rank
        return int(np.random.SeedSequence([self.seed, self.group.rank, *place]).generate_state(1, np.uint64)[0] >> 1)


def _load_tensors(file: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it is missing or damaged."""
    try:
        return load_file(file)
    except (OSError, SafetensorError):
        return None


@dataclass
class AdaptContext:
    """One adaptation in progress.

    Attributes:
        model: The loaded model, with attached attention.
        layers: Its attention layers.
        tokenizer: Its tokenizer.
        rows: The domain text as token rows, with a ``fingerprint`` of their content.
        masking: Masking strategy of this run.
        seed: Random seed of the run.
        precision: Precision of the forward pass.
        progress: Whether to show progress bars.
        group: The processes of the run.
        task: The labelled task that was given, see :mod:`acclimate.tasks`, or None. Cached values that depend on it
            need ``task.fingerprint()`` among their options.
        sharded: Whether the weights will be sharded among the processes.
        max_length: Maximum tokens per text.
        sources: Names of the sources of the texts, the domain text first, by :attr:`Batch.source`.
        preparation: What a method recorded before training, by the name of the JSON file to write into the model
            folder.
        carried: What earlier adaptations left next to the model, and what this one leaves.
        steps: Optimizer steps of the training, or a limit far above them if its time is limited; 0 before they are
            known.
    """

    model: PreTrainedModel
    layers: list[HeadLayer]
    tokenizer: PreTrainedTokenizerBase
    rows: Sequence[np.ndarray]
    masking: Masking
    seed: int
    precision: Precision
    progress: bool = True
    group: ProcessGroup = field(default_factory=ProcessGroup)
    task: Any = None
    sharded: bool = False
    max_length: int = 512
    sources: Sequence[str] = ("domain",)
    preparation: dict[str, Any] = field(default_factory=dict)
    carried: Carried = field(default_factory=Carried)
    steps: int = 0

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def sample(self, tokens: int, readings: int = 1) -> Iterator[Batch]:
        """Yield micro-batches, one text per row, from a random part of the corpus of about ``tokens`` tokens.

        With several processes, each gets its share of the micro-batches.

        Args:
            tokens: Real tokens to read; the whole corpus if it has fewer.
            readings: How many times one forward pass reads each row; it limits the size of the micro-batches.
        """
        for _, group in self.sample_groups(tokens, readings):
            yield from group

    def sample_groups(self, tokens: int, readings: int = 1) -> Iterator[tuple[int, list[Batch]]]:
        """Yield the micro-batches of :meth:`sample` in groups, each of which is a random part of the corpus.

        All processes get the same number of groups, of about :data:`SAMPLE_GROUP_TOKENS` tokens per process, and each
        reads and masks its own texts only.

        Yields:
            For each group its number of tokens in all processes, and the micro-batches of this process.
        """
        at_once = training_tokens(self.model, readings)
        collator = Collator.of(
            self.tokenizer, self.masking, kind_of(self.model), at_once, policy=padding_policy(self.model)
        )
        data = SharedTexts(self.rows, collator, (self.seed, 4), self.group)
        chosen: list[int] = []
        total = pool = number = 0
        for index in np.random.default_rng([self.seed, 3]).permutation(len(self.rows)).tolist():
            length = int(data.lengths([index])[0])
            if total and total + length > tokens:
                break
            chosen.append(index)
            total, pool = total + length, pool + length
            if pool > SAMPLE_GROUP_TOKENS * self.group.size:
                yield pool, data.read(number, chosen)
                chosen, pool, number = [], 0, number + 1
        if chosen:
            yield pool, data.read(number, chosen)

    def say(self, text: str) -> None:
        """Print a message, unless the run is quiet."""
        print_message(text, enabled=self.progress)

    def seeded(self, make: Callable[[], T]) -> T:
        """Return the result of ``make``, called with the seed of the run, which is the same in all processes."""
        with preserve_rng_state():
            torch.manual_seed(self.seed)
            return make()

    def units(self, parts: Sequence[str]) -> dict[str, list[UnitGroup]]:
        """Return the units of some parts of the model, by part, prepared for gates."""
        return gate_units(self.model, self.layers, parts)

    def load_reader(self, path: str, uses: Uses = "predictions") -> PreTrainedModel:
        """Return another language model that views can read the texts with: :func:`load_teacher`."""
        return load_teacher(path, self.model, self.tokenizer, uses, self.sharded)

    def cached(self, name: str, options: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return tensors from the cache, or compute and store them, with the random seed of the run."""
        return self.tensor_cache(name, options)(make)

    def tensor_cache(self, name: str, options: dict[str, Any]) -> TensorCache:
        """Return a cache for tensors that belong together.

        Its key covers the model's weights and configuration, the text, the seed, ``options``, and the conditions of
        the computation: precision, processes, device, kernels and software versions.
        """
        text = getattr(self.rows, "fingerprint", None)
        parts = {
            "name": name,
            "options": options,
            "seed": self.seed,
            "precision": self.precision,
            # Each process has its own batches and dropout, and accelerators generate other random numbers.
            "processes": self.group.size,
            "device": self.device.type,
            # The dropout masks depend on the split into micro-batches.
            "tokens_at_once": training_tokens(self.model),
            "kernels": describe_computation(self.model),
            "software": [__version__, torch.__version__, transformers.__version__],
            "model": fingerprint_model(self.model),
            "text": text,
        }
        folder = None if text is None else cache_folder() / name / cache_key(parts)
        return TensorCache(folder, self.seed, self.group, self.device)


@dataclass(frozen=True)
class Stage:
    """One of several adaptations that make up a method.

    Attributes:
        method: The method of this adaptation, or a function that makes it from the results of the stages before.
        reads: Whether it reads the domain text or the text of the task; None for the text of the run.
        options: Options of ``adapt`` that differ from those of the run.
        from_base: Whether it starts from the model that was given, and not from the result of the stage before.
    """

    method: Method | Callable[[Sequence[Path]], Method]
    reads: Literal["domain", "task"] | None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    from_base: bool = False


@dataclasses.dataclass
class Method(Part):
    """Base of all methods; by itself plain language modelling.

    Subclasses are dataclasses: their fields are the parameters. Where a default departs from the paper or its released
    code, the annotation of the field declares their values (:mod:`acclimate.base.registry`).
    """

    purpose: ClassVar[str] = ""
    """What it is for: a heading of ``acclimate methods``; empty for none of them."""
    cost: ClassVar[float] = 1.0
    """Time per token relative to ``lm``, roughly."""
    preparation: ClassVar[str] = ""
    """What happens before the first step and takes longer than seconds; empty if nothing does."""
    kinds: ClassVar[tuple[str, ...]] = ("masked", "causal")
    """Kinds of language models (:data:`acclimate.models.kinds.KINDS`) that it supports."""
    kinds_reason: ClassVar[str] = ""
    """Why it does not support others: the rest of a sentence that begins with its name."""
    trains: ClassVar[bool] = True
    """False for a method that leaves the model unchanged."""
    learning_rate: ClassVar[float] = 1e-4
    """Default peak learning rate."""
    paper_options: ClassVar[Mapping[str, Any]] = {}
    """Options of ``adapt`` that the paper sets."""
    loads_without_acclimate: ClassVar[bool] = True
    """False for a method whose result ``transformers`` alone cannot load."""
    reads: ClassVar[Literal["domain", "task"]] = "domain"
    """The text that it adapts to by default in a study; ``on`` in the study file overrides it."""
    starts_from: ClassVar[str | None] = None
    """What the model card names as the base; None for the model that was given."""
    sets_mask_rate: ClassVar[bool] = False
    """True for a method that itself determines how many tokens are masked, whatever the mask rate."""
    needs_task: ClassVar[bool] = False
    """True for a method that needs a labelled task as ``run.task``."""
    without_adapter: ClassVar[str] = ""
    """Why the method cannot train a low-rank adapter instead of the weights; empty if it can."""
    without_patience: ClassVar[str] = ""
    """Why a held-out loss that does not fall is no reason to end the training; empty if it is one."""

    @property
    def schedule(self) -> str:
        """The default schedule of the learning rate."""
        return "linear"

    @property
    def learns_task(self) -> bool:
        """Whether it learns the labelled task ``run.task`` with these parameters, which a study then gives it."""
        return self.needs_task

    @property
    def learns_labels(self) -> bool:
        """Whether it learns the labels of that task, and not only its texts."""
        return self.learns_task

    @property
    def virtual_tokens(self) -> int:
        """Number of learned vectors appended to every text; see :mod:`acclimate.parts.modules.virtual_tokens`."""
        return 0

    @property
    def virtual_start(self) -> Literal["vocabulary", "uniform"]:
        """How the virtual tokens are initialized."""
        return "vocabulary"

    def has_virtual_tokens(self, model: PreTrainedModel) -> bool:
        """Return whether a model has the virtual tokens already, from an earlier adaptation with this method."""
        return False

    @property
    def sentence_pooling(self) -> Literal["mean", "cls"] | None:
        """How the vectors of texts that it trains are pooled, for a model that is no sentence encoder.

        The result is then a folder of ``sentence-transformers``, whose similarity is measured before and after. None
        for a method that trains a language model first of all.
        """
        return None

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that the method can train a model; ``acclimate inspect model`` asks this as well.

        Args:
            model: The model, attached.
            layers: Its attention layers.

        Raises:
            UserError: If it cannot.
        """

    def check(self, context: AdaptContext) -> None:
        """Check what needs no text, before the text is tokenized and before anything is trained or measured.

        Args:
            context: The adaptation, still without rows.

        Raises:
            UserError: If the method cannot run.
        """
        self.check_model(context.model, context.layers)

    def prepare(self, context: AdaptContext) -> None:
        """Measure or build what the method needs before the first step."""

    def masking(self, rate: float) -> Masking | None:
        """Return the masking strategy, if it is part of the method; called after :meth:`prepare`.

        Args:
            rate: Share of tokens to mask, as the user set it.

        Returns:
            None for the user's strategy, which is random masking by default.
        """
        return None

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the loss terms; called after :meth:`prepare`."""
        return [LanguageModelling()]

    def readers(self) -> Mapping[str, PreTrainedModel]:
        """Return frozen models that views name as their reader, from :meth:`AdaptContext.load_reader`."""
        return {}

    def update_rule(self) -> UpdateRule | None:
        """Return what happens around each optimizer step; called after :meth:`prepare`."""
        return None

    @property
    def protects_by(self) -> Literal["update", "gradient"] | None:
        """What its update rule scales to protect units of the model, which not every adapter can; None for nothing."""
        return None

    @property
    def changes_result(self) -> bool:
        """Whether it changes the whole model after its last step, so that earlier models are no results."""
        return type(self).finish is not Method.finish

    def finish(self, context: AdaptContext) -> None:
        """Remove what was only needed for training, before the model is written."""

    def variants(self) -> Iterator[str]:
        """Give the finished model other weights in turn, and yield the subfolder that each such model is written to.

        Afterwards the model is the result again.
        """
        yield from ()

    def stages(self) -> list[Stage]:
        """Return the adaptations that run one after the other instead of this one; most methods have none."""
        return []

    @classmethod
    def check_kind(cls, kind: ModelKind, model: object) -> None:
        """Check that the method supports a kind of language model; ``model`` is named in the message.

        Raises:
            UserError: If it does not.
        """
        if kind.name not in cls.kinds:
            why = f" {cls.kinds_reason}. It" if cls.kinds_reason else ""
            raise UserError(
                f"Method '{cls.name}'{why} is for {' and '.join(cls.kinds)} language models, but '{model}' is a "
                f"{kind.name} one; use another method, such as lm."
            )

    def file_contents(self) -> dict[str, str]:
        """Return a hash of every parameter that is a file or a model folder, and of user code, by name.

        The content of both can change while the name stays the same.
        """
        given = {name: getattr(self, name) for name in self.files}
        found = {name: find_file(str(value)) for name, value in given.items() if value}
        contents = {name: hash_file(path) for name, path in found.items() if path is not None}
        models = {name: value for name, value in given.items() if value and find_file(f"{value}/config.json")}
        contents |= {name: model_fingerprint(str(value)) for name, value in models.items()}
        return contents | {f"code of {module}": code for module, code in hash_user_code(type(self)).items()}


def reads_context(method: Method) -> bool:
    """Return whether a method defines a hook that gets the context, so that it may read or leave carried state."""
    return any(getattr(type(method), name) is not getattr(Method, name) for name in ("check", "prepare", "finish"))


def check_single_process(name: str, context: AdaptContext) -> None:
    """Check that an adaptation has one process.

    Raises:
        UserError: If it has several; ``name`` is the method's.
    """
    if context.group.size > 1:
        raise UserError(f"Method '{name}' runs in one process; start it without torchrun or accelerate.")


REGISTRY: Registry[Method] = Registry("acclimate.methods", "method", "methods")
register, names, lookup, get = REGISTRY.register, REGISTRY.names, REGISTRY.lookup, REGISTRY.make
