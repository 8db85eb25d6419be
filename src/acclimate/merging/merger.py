"""Models that are checked against each other, and merged tensor by tensor."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acclimate.base.errors import UserError
from acclimate.base.progress import Progress
from acclimate.merging.rules import Rule
from acclimate.merging.weights import Checkpoint, find_folder, match, write_weights
from acclimate.models.loading import load_tokenizer
from acclimate.models.saving import copy_sentence_encoder_files, save_tokenizer

GENERATION_FILE = "generation_config.json"


class Source(NamedTuple):
    """A model that is merged: ``"model"``, ``"base"``, or the role of a further one, and its name."""

    role: str
    name: str


class Merger:
    """Models that are checked against each other and can be merged by several rules.

    Attributes:
        models: Folders or names of the models themselves, without the base model and the like.
        notes: What is not merged.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        max_shard_gb: float,
        progress: bool,
        joins_tasks: bool,
        adopt: Callable[[Merger, Checkpoint, Any, Sequence[str]], None],
    ) -> None:
        """Open the models.

        Args:
            sources: The models.
            max_shard_gb: Maximum size of a file of weights in gigabytes.
            progress: Whether to show progress bars.
            joins_tasks: Whether they may be models of different tasks.
            adopt: See :meth:`acclimate.merging.base.Merge.adopt`.

        Raises:
            UserError: If one cannot be read, or they do not fit together.
        """
        self._first = Checkpoint(find_folder(sources[0].name), sources[0].name)
        others = [Checkpoint(find_folder(source.name), source.name, self._first) for source in sources[1:]]
        self._models = [self._first, *others]
        self._max_shard_bytes, self._progress = round(max_shard_gb * 10**9), progress
        self._tokenizer = load_tokenizer(self._first.folder)
        self._generation = self._first.folder / GENERATION_FILE
        self._sentence_modules = self._first.folder
        self.models = [source.name for source in sources if source.role == "model"]
        self.notes: list[str] = []
        for source, other in zip(sources[1:], others, strict=True):
            self.notes += match(self._first, other, joins_tasks)
            tokenizer = load_tokenizer(other.folder)
            missing = self._missing_tokens(tokenizer.get_vocab(), other.label)
            if source.role not in ("model", "base"):
                adopt(self, other, tokenizer.chat_template, missing)
        self.notes = list(dict.fromkeys(self.notes))

    def _missing_tokens(self, vocabulary: dict[str, int], label: str) -> list[str]:
        """Return the tokens that only the other model has."""
        own = {index: token for token, index in self._tokenizer.get_vocab().items()}
        others = {index: token for token, index in vocabulary.items()}
        for index in sorted(own.keys() & others.keys()):
            if own[index] != others[index]:
                raise UserError(
                    f"The token with the id {index} is {own[index]!r} in '{self._first.label}', but "
                    f"{others[index]!r} in '{label}'; merge models of the same vocabulary."
                )
        missing = [others[index] for index in sorted(others.keys() - own.keys())]
        if missing:
            self.notes.append(
                f"The tokenizer of '{self._first.label}', which the result has, lacks {len(missing):,} tokens of "
                f"'{label}', such as {missing[0]!r}."
            )
        return missing

    def take_sentence_modules(self, encoder: Checkpoint) -> None:
        """Use the modules of a sentence encoder."""
        self._sentence_modules = encoder.folder
        self.notes.append(f"From '{encoder.label}', the result also has the modules of a sentence encoder.")

    def take_chat_files(self, instruct: Checkpoint, template: Any, missing: Sequence[str]) -> None:
        """Use the chat template and the generation settings of the instruction-tuned model."""
        if template is None:
            self.notes.append(f"'{instruct.label}' has no chat template, so the result has that of the first model.")
        else:
            self._tokenizer.chat_template = template
        if unknown := [token for token in missing if token in str(template)]:
            self.notes.append(
                f"The chat template uses {unknown[0]!r}, which the result reads as ordinary text, so that chats may "
                "not work. Adapt a model that has this token."
            )
        if (instruct.folder / GENERATION_FILE).is_file():
            self._generation = instruct.folder / GENERATION_FILE
        taken = [
            *(["chat template"] if template is not None else []),
            *(["generation settings"] if self._generation.parent == instruct.folder else []),
        ]
        if taken:
            self.notes.append(f"From '{instruct.label}', the result also has the {' and the '.join(taken)}.")

    @property
    def largest(self) -> int:
        """Number of entries of the largest tensor."""
        return max(math.prod(one.shape) for one in self._first.stored.values())

    def find_names(self, model: int, names: Iterable[str]) -> dict[str, str]:
        """Return which of the names of tensors in memory each tensor of the result has in a model."""
        checkpoint = self._models[model]
        found = {checkpoint.resolve(name): name for name in names}
        return {name: found[place] for name in self._first.stored if (place := checkpoint.source_of(name)) in found}

    def first_layers(self, count: int) -> set[str]:
        """Return the names of the embeddings and of the first layers; see :meth:`Checkpoint.first_layers`."""
        return self._first.first_layers(count)

    def depths(self) -> dict[str, float]:
        """Return the depth of each tensor in a layer; see :meth:`Checkpoint.depths`."""
        return self._first.depths()

    def write(self, folder: Path, rule: Rule) -> None:
        """Write the merged model into an existing folder: weights, configuration and tokenizer.

        Raises:
            UserError: If a weight is not finite.
        """
        first = self._first
        with Progress("merge", len(first.stored), unit="tensors", enabled=self._progress) as bar:
            done = iter(range(1, 1 + len(first.stored)))

            def compute(name: str) -> Tensor:
                bar.update(next(done))
                return self._merge_tensor(name, rule)

            write_weights(folder, first.stored, compute, self._max_shard_bytes)
        shutil.copy(first.folder / "config.json", folder)
        if self._generation.is_file():
            shutil.copy(self._generation, folder)
        save_tokenizer(self._tokenizer, folder)
        copy_sentence_encoder_files(str(self._sentence_modules), folder)

    def _merge_tensor(self, name: str, rule: Rule) -> Tensor:
        """Merge the tensor, or the rows of it that all models have."""
        one = self._first.stored[name]
        if not (reads := self._readers(name)):
            return self._first.read(name)
        merged = rule(name, reads).to(one.dtype)
        if merged.numel() and not all(bool(end.isfinite()) for end in merged.aminmax()):
            raise UserError(
                f"The merged tensor {name} is not finite in {one.dtype}, so nothing is written. Check the models, or "
                "use smaller weights."
            )
        if merged.shape != one.shape:
            merged = torch.cat([merged, self._first.read(name)[len(merged) :]])
        return merged

    def _readers(self, name: str) -> list[Callable[[], Tensor]]:
        """Return a function per model that reads a tensor, or the rows that all models have; none if it is kept."""
        found = [model.find(name) for model in self._models]
        if not self._first.stored[name].dtype.is_floating_point or not all(found):
            return []
        rows = min((other.shape[0] for other in found if other and other.shape), default=0)

        def read(model: Checkpoint) -> Tensor:
            value = model.read(name)
            return value[:rows] if value.dim() else value

        return [partial(read, model) for model in self._models]

    def differences(self, number: int) -> Iterator[Tensor]:
        """Yield the difference of each tensor of a model to that of the base model, the last one, in fp32."""
        for name in self._first.stored:
            if reads := self._readers(name):
                yield reads[number]().float() - reads[-1]().float()
