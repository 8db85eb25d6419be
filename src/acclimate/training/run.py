"""What a method can reach while it prepares: the model, the text, the seed, and a cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.backbone import Gated, HeadLayer, gate_units
from acclimate.backbone.device import Precision, forked_chance
from acclimate.backbone.dropout import dropout_rates
from acclimate.backbone.memory import training_tokens
from acclimate.backbone.shapes import grain_of
from acclimate.files import cache_folder
from acclimate.masking import Masking
from acclimate.objectives import Batch
from acclimate.training.batches import Collator
from acclimate.training.processes import Processes
from acclimate.training.progress import TrainingBar
from acclimate.training.shelf import Shelf
from acclimate.version import __version__

T = TypeVar("T")
SAYS_NOTHING = ("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache")
"""Entries of a model's configuration on which no number depends."""
SAMPLED_AT_ONCE = 40_000
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
    shape = {name: value for name, value in model.config.to_dict().items() if name not in SAYS_NOTHING}
    return cache_key({"weights": fingerprint_weights(model), "shape": shape, "dropout": dropout_rates(model)})


@dataclass
class Run:
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
    group: Processes = field(default_factory=Processes)
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
        for _, group in self.sampled(tokens, readings, logits):
            yield from group

    def sampled(self, tokens: int, readings: int = 1, logits: bool = False) -> Iterator[tuple[int, list[Batch]]]:
        """Yield what :meth:`sample` does in groups of micro-batches, each a random part of the corpus by itself.

        There are as many in all processes, each with texts of :data:`SAMPLED_AT_ONCE` tokens for each process. Before
        the micro-batches of this process stand the tokens of the group in all.
        """
        at_once = training_tokens(self.model, readings, logits=logits)
        collator = Collator.of(self.tokenizer, self.masking, at_once, grain=grain_of(self.model))
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
            if pool > SAMPLED_AT_ONCE * self.group.size:
                yield pool, self.group.share(collator(chosen, rng))
                chosen, pool = [], 0
        if chosen:
            yield pool, self.group.share(collator(chosen, rng))

    def say(self, text: str) -> None:
        """Tell the user something, unless the run is quiet."""
        TrainingBar.say(text, enabled=self.progress)

    def seeded(self, make: Callable[[], T]) -> T:
        """Return what ``make`` makes, chance inside it coming from the run's seed; the same in all processes."""
        with forked_chance():
            torch.manual_seed(self.seed)
            return make()

    def units(self, parts: Sequence[str]) -> dict[str, list[Gated]]:
        """Return the units of some parts of the model, ready for gates."""
        return gate_units(self.model, self.layers, parts)

    def cached(self, name: str, options: dict[str, Any], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return tensors from the cache, or make and keep them; chance inside ``make`` comes from the run's seed."""
        return self.shelf(name, options)(make)

    def shelf(self, name: str, options: dict[str, Any]) -> Shelf:
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
            "software": [__version__, torch.__version__, transformers.__version__],
            "model": fingerprint_model(self.model),
            "text": text,
        }
        folder = None if text is None else cache_folder() / name / cache_key(parts)
        return Shelf(folder, self.seed, self.group, self.device)
