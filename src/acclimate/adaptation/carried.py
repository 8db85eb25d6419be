"""State that travels with a model folder from one adaptation to the next: past domains, tensors, kept texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.replay_options import MEMORIES, find_memory
from acclimate.base.errors import UserError, first_line, shorten
from acclimate.base.files import check_regular_file, local_folder, read_json_object, write_json
from acclimate.base.records import Count, Record, build_value, read_record
from acclimate.data.documents import Corpus, subsample_documents

CARRIED_FILE, CARRIED_TENSORS = "carried.json", "carried.safetensors"
FORMAT = 1
"""Version of :data:`CARRIED_FILE`."""
SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
"""Entries of a configuration that must be the same in the model that tensors were measured on and the one that reads
them. The vocabulary is not among them: it may grow between domains."""
MEMORY = "memory"
"""Entry of :attr:`Carried.records` with the texts of past domains."""
MEMORY_CHARACTERS = 2_000
"""Maximum characters of a document that the memory keeps; of a longer one it keeps a random piece."""


class _Domain(Record):
    """An entry of :attr:`Carried.domains`."""

    text: str
    documents: Count
    method: str


class _KeptTexts(Record):
    """The kept texts of a domain, and its number of documents."""

    seen: Count
    texts: list[str]

    def __post_init__(self) -> None:
        if self.seen < len(self.texts):
            raise UserError(f"records.{MEMORY}: {len(self.texts)} texts are kept of seen = {self.seen}")


class _State(Record):
    """The content of :data:`CARRIED_FILE`."""

    domains: list[_Domain]
    records: dict[str, Any]
    shape: dict[str, Any]
    tensors: list[str]


@contextmanager
def _blame(file: str | Path, remedy: str) -> Iterator[None]:
    """Name the file in the error of an entry."""
    try:
        yield
    except UserError as error:
        raise UserError(f"'{file}' is damaged ({error}); {remedy}.") from error


@dataclass
class Carried:
    """What earlier adaptations left next to a model, and what the one in progress adds.

    ``adapt`` reads it from the folder of the base model. A method finds it as ``context.carried``, may change it in
    :meth:`~acclimate.adaptation.Method.prepare` and :meth:`~acclimate.adaptation.Method.finish`, and leaves what is
    not its own unchanged. It is written next to the adapted model; a model without it has carried nothing.

    Attributes:
        domains: The past domains, oldest first: ``text``, the fingerprint of the text, its number of ``documents``,
            and the ``method``. The domain in progress is added after the method has finished.
        tensors: Tensors by name. A name starts with that of its method or rule, such as ``"das/H"``.
        records: JSON values by the name of their method or rule.
        shape: Entries :data:`SHAPE` of the configuration of the model.
    """

    domains: list[dict[str, Any]] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    _folder: Path | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.domains or self.tensors or self.records)

    @classmethod
    def read(cls, model: str | Path | Callable[[], Path]) -> Carried:
        """Read the state next to a model without its tensors, which :meth:`attach` reads.

        Args:
            model: A model folder; a name on the Hub, or a function that makes the folder, has carried nothing.

        Raises:
            UserError: If the file is damaged, or of a later version.
        """
        folder = None if callable(model) else local_folder(model)
        if folder is None or not (folder / CARRIED_FILE).is_file():
            return cls()
        file, stored = folder / CARRIED_FILE, folder / CARRIED_TENSORS
        remedy = f"restore it, or delete it and {CARRIED_TENSORS} to adapt the model as one without earlier domains"
        if (form := (read_json_object(file) or {}).get("format", FORMAT)) != FORMAT:
            raise UserError(f"'{file}' has format {shorten(form)}, and this version reads {FORMAT}; update it.")
        found = read_record(file, _State, remedy)
        with _blame(file, remedy):
            build_value(list[_KeptTexts], found.records.get(MEMORY, []), f"records.{MEMORY}")
        check_regular_file(stored)
        try:
            with safe_open(stored, "pt") if stored.is_file() else nullcontext() as tensors:
                present = set(tensors.keys()) if tensors else set()
        except (OSError, SafetensorError) as error:
            raise UserError(f"'{stored}' is damaged ({first_line(error)}); restore it, or delete both.") from error
        if missing := sorted({*found.tensors} - present):
            raise UserError(
                f"'{stored}' is missing, or lacks '{missing[0]}', which {CARRIED_FILE} next to it names. Restore it, "
                "or delete both to start anew."
            )
        return cls([one.to_dict() for one in found.domains], {}, found.records, found.shape, folder)

    def record(self, name: str, form: Any, default: Any = None) -> Any:
        """Return the value of a method or rule, after a check of its form.

        Args:
            name: The key in :attr:`records`.
            form: Its type, see :func:`acclimate.base.records.build_value`.
            default: What is returned where there is none.

        Raises:
            UserError: If it has another form.
        """
        if name not in self.records:
            return default
        with _blame(f"{self._folder}/{CARRIED_FILE}", f"restore it, or delete it and {CARRIED_TENSORS}"):
            return build_value(form, self.records[name], f"records.{name}")

    def attach(self, model: PreTrainedModel) -> None:
        """Read the tensors, on the CPU, and check that they belong to a model.

        Raises:
            UserError: If they belong to a model of another shape, or the file is missing or damaged.
        """
        config = model.config.get_text_config()
        shape = {name: getattr(config, name, None) for name in SHAPE}
        file = None if self._folder is None else self._folder / CARRIED_TENSORS
        if file is not None and file.is_file():
            for name, value in shape.items():
                if self.shape.get(name) != value:
                    raise UserError(
                        f"'{file}' belongs to a model whose {name} is {self.shape.get(name)}, but here it is {value}. "
                        f"Adapt the model that it was written for, or delete it and {CARRIED_FILE} to start anew."
                    )
            try:
                self.tensors = load_file(file) | self.tensors
            except (OSError, SafetensorError) as error:
                raise UserError(f"'{file}' is damaged: {first_line(error)}.") from error
        self.shape = shape

    def select(
        self, prefix: str, like: Mapping[str, Tensor] | None = None, *, negative: bool = True
    ) -> dict[str, Tensor]:
        """Return the tensors whose names start with a prefix, by the rest of the name.

        Args:
            prefix: The prefix, such as ``"ewc/fisher/"``.
            like: Tensors that must have the same shapes, by the rest of the name; None checks nothing.
            negative: Whether values may be negative or not finite; an importance is neither.

        Raises:
            UserError: If a tensor has another shape, or there is none to compare with, or a value is negative.
        """
        found = {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}
        wrong = (name for name, value in found.items() if not ((value >= 0) & value.isfinite()).all())
        if not negative and (name := next(wrong, None)) is not None:
            raise UserError(
                f"'{self._folder}/{CARRIED_TENSORS}' is damaged: '{prefix}{name}' has values that are negative or not "
                f"finite. Restore it, or delete it and {CARRIED_FILE} to start anew."
            )
        if like is None:
            return found
        for name, value in found.items():
            expected = tuple(like[name].shape) if name in like else None
            if expected != tuple(value.shape):
                raise UserError(
                    f"The carried tensor '{prefix}{name}' has the shape {tuple(value.shape)}, and in the model it is "
                    f"{'missing' if expected is None else expected}; new tokens and other changes of the weights are "
                    "only possible before the first domain."
                )
        return found

    def kept_texts(self) -> Corpus | None:
        """Return the kept texts of past domains; None if there are none."""
        texts = [text for part in self.records.get(MEMORY, ()) for text in part["texts"]]
        return Corpus.of(texts) if texts else None

    def close(self, options: AdaptOptions, text: Corpus, method: str) -> None:
        """Add the domain in progress, if anything is carried, and keep some of its texts if the options say so."""
        memory = find_memory(options.replay)
        if memory is None and not self:
            return
        again = any(domain["text"] == text.fingerprint for domain in self.domains)
        if memory is not None and not again:
            kept = subsample_documents(text, memory.what)
            rng = np.random.default_rng([options.seed, 11, len(self.domains)])
            part = {"seen": text.report.documents, "texts": [_cut(document, rng) for document in kept]}
            past = self.records.get(MEMORY, [])
            self.records[MEMORY] = share_memory([*past, part], memory.what, MEMORIES[memory.kind], rng)
        if not again:
            entry = {"text": text.fingerprint, "documents": text.report.documents, "method": method}
            self.domains.append(entry)

    def write(self, folder: Path) -> None:
        """Write the state into a model folder that is being written; nothing if there is none."""
        if not self:
            return
        names = ("domains", "records", "shape")
        entries = {"format": FORMAT, **{name: getattr(self, name) for name in names}, "tensors": sorted(self.tensors)}
        write_json(folder / CARRIED_FILE, entries)
        if self.tensors:
            tensors = {name: value.detach().cpu().clone().contiguous() for name, value in self.tensors.items()}
            save_file(tensors, folder / CARRIED_TENSORS)


def share_memory(parts: list[dict[str, Any]], most: int, rule: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Reduce the kept texts of several domains to a number in total.

    Args:
        parts: For each domain the number of documents ``seen``, and a random sample of its ``texts``; the last domain
            is new.
        most: Number of texts to keep.
        rule: ``"equal"`` keeps as many of each domain. ``"reservoir"`` keeps a uniform sample of the documents of all
            domains (Vitter, 1985), so that domains have texts in proportion to their sizes: the number of new ones is
            hypergeometric, and they replace random old ones.
        rng: Random numbers.
    """
    if rule == "equal":
        each, more = divmod(most, len(parts))
        return [{**part, "texts": part["texts"][: each + (number < more)]} for number, part in enumerate(parts)]
    *past, new = parts
    before = sum(part["seen"] for part in past)
    count = min(most, before + new["seen"])
    fresh = int(rng.hypergeometric(new["seen"], before, count)) if before else count
    old = [(number, place) for number, part in enumerate(past) for place in range(len(part["texts"]))]
    chosen = {old[index] for index in rng.permutation(len(old))[: count - fresh]}
    kept = [
        {**part, "texts": [text for place, text in enumerate(part["texts"]) if (number, place) in chosen]}
        for number, part in enumerate(past)
    ]
    return [*kept, {**new, "texts": new["texts"][:fresh]}]


def _cut(document: str, rng: np.random.Generator) -> str:
    """Return a document, or a random piece of a long one, cut between words where it has spaces."""
    if len(document) <= MEMORY_CHARACTERS:
        return document
    start = int(rng.integers(len(document) - MEMORY_CHARACTERS + 1))
    piece = document[start : start + MEMORY_CHARACTERS]
    words = piece.split(" ")
    return " ".join(words[start > 0 : len(words) - 1]) if len(words) > 2 else piece
