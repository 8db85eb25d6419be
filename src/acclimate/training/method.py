"""What a method is, and the list of all there are.

A method is a recipe of parts: objectives over views, perhaps an update rule, perhaps a preparation. Every module in
``acclimate.methods`` is imported when the list is first read, and so is every entry point of the group
``acclimate.methods`` in other packages: one file with ``@register`` is all that a new method needs.

What a method can reach while it prepares: the model, the text, the seed, and a cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.device import Precision, preserve_rng_state
from acclimate.files import cache_folder, find_file, hash_file
from acclimate.masking import Masking
from acclimate.models import HeadLayer, UnitGroup, dropout_rates, gate_units, kernels_of
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.objectives import Batch, BatchObjective, LanguageModelling, Objective
from acclimate.progress import print_message
from acclimate.registry import Registry, build_dataclass, hash_user_code
from acclimate.training.batches import Collator
from acclimate.training.distributed import ProcessGroup
from acclimate.training.tensor_cache import TensorCache
from acclimate.updates import UpdateRule
from acclimate.version import __version__

T = TypeVar("T")
IGNORED_CONFIG_KEYS = ("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache")
"""Entries of a model's configuration on which no number depends."""
SAMPLE_GROUP_TOKENS = 40_000
"""Tokens of a sample, for each process, that are cut into micro-batches together, so that rows of like length meet."""


def cache_key(decides: Mapping[str, Any]) -> str:
    """Return the name in the cache of what these values decide."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:24]


def fingerprint_weights(model: nn.Module) -> str:
    """Hash the weights of a module: the same for the same numbers, wherever they came from."""
    return fingerprint_tensors(model.state_dict())


def fingerprint_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Hash tensors with their names, whatever their order."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fingerprint_model(model: PreTrainedModel) -> str:
    """Hash all of a model that decides what it computes: weights, configuration, and dropout as it is now."""
    shape = {name: value for name, value in model.config.to_dict().items() if name not in IGNORED_CONFIG_KEYS}
    return cache_key({"weights": fingerprint_weights(model), "shape": shape, "dropout": dropout_rates(model)})


@dataclass
class AdaptContext:
    """One adaptation in progress.

    Attributes:
        model: The model as loaded, with attached attention.
        layers: Its attention layers.
        tokenizer: Its tokenizer.
        rows: The domain text as token rows, with a ``fingerprint`` of their content.
        masking: How tokens are hidden in this run.
        seed: The one seed of the run.
        precision: Of the forward.
        progress: Whether to show bars.
        group: The processes of the run.
        task: The labelled task that was given, as :mod:`acclimate.tasks` has it, or None. What is kept in the cache
            and depends on it needs ``task.fingerprint()`` among its options.
        accounts: What a method found while it prepared, by the name of a JSON file that goes beside the model.
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
    accounts: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def sample(self, tokens: int, readings: int = 1, logits: bool = False) -> Iterator[Batch]:
        """Yield micro-batches, one text a row, from a random part of the corpus of about ``tokens`` tokens.

        With several processes each gets its share of them.

        Args:
            tokens: Real tokens to read; the whole corpus if it has fewer.
            readings: How many times one forward reads each row, for the size of the micro-batches.
            logits: Whether the vocabulary is scored at all tokens, for the same.
        """
        for _, group in self.sample_groups(tokens, readings, logits):
            yield from group

    def sample_groups(self, tokens: int, readings: int = 1, logits: bool = False) -> Iterator[tuple[int, list[Batch]]]:
        """Yield what :meth:`sample` does in groups of micro-batches, each a random part of the corpus by itself.

        There are as many in all processes, each with texts of :data:`SAMPLE_GROUP_TOKENS` tokens for each process.
        Before
        the micro-batches of this process stand the tokens of the group in all.
        """
        at_once = training_tokens(self.model, readings, logits=logits)
        collator = Collator.of(self.tokenizer, self.masking, at_once, grain=padding_policy(self.model))
        order = np.random.default_rng([self.seed, 3]).permutation(len(self.rows))
        rng = np.random.default_rng([self.seed, 4])
        chosen: list[np.ndarray] = []
        total = pool = 0
        for index in order:
            row = np.asarray(self.rows[int(index)])
            if total and total + len(row) > tokens:
                break
            chosen.append(row)
            total += len(row)
            pool += len(row)
            if pool > SAMPLE_GROUP_TOKENS * self.group.size:
                yield pool, self.group.share(collator(chosen, rng))
                chosen, pool = [], 0
        if chosen:
            yield pool, self.group.share(collator(chosen, rng))

    def say(self, text: str) -> None:
        """Tell the user something, unless the run is quiet."""
        print_message(text, enabled=self.progress)

    def seeded(self, make: Callable[[], T]) -> T:
        """Return what ``make`` makes, chance inside it coming from the run's seed; the same in all processes."""
        with preserve_rng_state():
            torch.manual_seed(self.seed)
            return make()

    def units(self, parts: Sequence[str]) -> dict[str, list[UnitGroup]]:
        """Return the units of some parts of the model, ready for gates."""
        return gate_units(self.model, self.layers, parts)

    def cached(self, name: str, options: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return tensors from the cache, or make and keep them; chance inside ``make`` comes from the run's seed."""
        return self.tensor_cache(name, options)(make)

    def tensor_cache(self, name: str, options: dict[str, Any]) -> TensorCache:
        """Return a place in the cache for tensors that belong together.

        Its key is the model's weights and configuration, the text, the seed, ``options``, and how it is computed.
        """
        text = getattr(self.rows, "fingerprint", None)
        parts = {
            "name": name,
            "options": options,
            "seed": self.seed,
            "precision": self.precision,
            # Each process measures on its own batches with its own dropout; and an accelerator draws otherwise.
            "processes": self.group.size,
            "device": self.device.type,
            # How texts are cut into micro-batches decides the draws of dropout.
            "tokens_at_once": training_tokens(self.model),
            "kernels": dataclasses.asdict(kernels_of(self.model)),
            "software": [__version__, torch.__version__, transformers.__version__],
            "model": fingerprint_model(self.model),
            "text": text,
        }
        folder = None if text is None else cache_folder() / name / cache_key(parts)
        return TensorCache(folder, self.seed, self.group, self.device)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One of several adaptations that make up a method.

    Attributes:
        method: What it does.
        reads: The text of the domain or that of the task.
        options: Options of ``adapt`` that differ from those of the run.
    """

    method: Method
    reads: Literal["domain", "task"]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Method:
    """Base of all methods; by itself plain masked language modelling.

    Subclasses are dataclasses: their fields are the parameters, with the paper's values as defaults.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    trains: ClassVar[bool] = True
    """False for a method that leaves the model as it is."""
    learning_rate: ClassVar[float] = 1e-4
    """What adaptation uses unless it is told otherwise."""
    loads_without_acclimate: ClassVar[bool] = True
    """False for a method whose result ``transformers`` alone cannot load."""
    reads: ClassVar[Literal["domain", "task"]] = "domain"
    """Whose text it adapts to in a study that says nothing else: see ``on`` in the study file."""
    starts_from: ClassVar[str | None] = None
    """What the card says a model was made from; None for the path of the model that was given."""
    files: ClassVar[tuple[str, ...]] = ()
    """Parameters that may be paths of files; in a study file they start at its folder."""
    sets_mask_rate: ClassVar[bool] = False
    """True for a method that masks as much as it finds: a rate would do nothing."""
    needs_task: ClassVar[bool] = False
    """True for a method that looks at ``run.task``: it cannot run without one."""

    @property
    def virtual_tokens(self) -> int:
        """How many learned vectors every text is read with; see :mod:`acclimate.modules.virtual_tokens`."""
        return 0

    @property
    def virtual_start(self) -> Literal["vocabulary", "uniform"]:
        """Where those start."""
        return "vocabulary"

    def prepare(self, run: AdaptContext) -> None:
        """Measure or build what the method needs before the first step."""

    def masking(self, rate: float) -> Masking | None:
        """Return which tokens are hidden, if that is part of the method; called after :meth:`prepare`.

        Args:
            rate: Share of tokens that the user wants chosen.

        Returns:
            None for what the user names, which is random masking by default.
        """
        return None

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the loss terms; called after :meth:`prepare`."""
        return [LanguageModelling()]

    def update_rule(self) -> UpdateRule | None:
        """Return what happens around each optimiser step; called after :meth:`prepare`."""
        return None

    def finish(self, run: AdaptContext) -> None:
        """Take away what was only there for the training, before the model is written."""

    def stages(self) -> list[Stage]:
        """Return adaptations that are made one after the other instead of this one; mostly there are none."""
        return []

    def settings(self) -> dict[str, Any]:
        """Return the parameters and their values."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def file_contents(self) -> dict[str, str]:
        """Return a hash of every parameter that is a file, and of code of your own: files change under their names."""
        given = {name: getattr(self, name) for name in self.files}
        found = {name: find_file(str(value)) for name, value in given.items() if value}
        contents = {name: hash_file(path) for name, path in found.items() if path is not None}
        return contents | {f"code of {module}": code for module, code in hash_user_code(type(self)).items()}


REGISTRY: Registry[Method] = Registry("acclimate.methods", "method", "methods")
register, names, lookup = REGISTRY.register, REGISTRY.names, REGISTRY.lookup


def get(name: str, **settings: Any) -> Method:
    """Make a method with its parameters; strings are converted to the type of the parameter.

    Raises:
        UserError: If the method or a parameter is unknown, or a value does not fit.
    """
    return build_dataclass(lookup(name), "method", name, settings)
