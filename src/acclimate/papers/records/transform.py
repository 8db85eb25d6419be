"""Records of a table as text, packed with related ones (EcomGPT-CT, Ma et al., 2023)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from acclimate.api import (
    CHUNK_NUMBERS,
    EXAMPLES,
    Document,
    Documents,
    Neighbors,
    OperationContext,
    Transform,
    UserError,
    content_order,
    content_ranks,
    embed_chunks,
    load_embedding,
    register_transform,
)

NEIGHBORS = 16
"""Nearest records from which the next of a document is taken."""
SEPARATOR = "\n\n"
COMMON_FIELDS = 20
"""Fields that the account lists, with the number of records that have them."""


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields of a record and their values as text, without empty ones.

    Nested fields have the names of the outer ones before theirs; lists of plain values are joined by commas.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flatten(inner, f"{name} {key}".strip().replace("_", " "))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(one, Mapping | list) for one in value):
            for one in value:
                yield from flatten(one, name)
        else:
            yield from flatten(", ".join(str(one).strip() for one in value if one is not None and one == one), name)
    elif value is not None and value == value and (text := str(value).strip()):  # NaN differs from itself
        yield name, text


def serialize(record: Mapping[str, Any], fields: Sequence[str] = (), body: str | None = None) -> str:
    """Return a record as lines of ``field: value``.

    Args:
        record: The record.
        fields: Names of the fields to write, in this order; all for none.
        body: Field that is written without its name, after the others.
    """
    chosen = {name: record.get(name) for name in fields} if fields else record
    lines = [f"{name}: {value}" for name, value in flatten({k: v for k, v in chosen.items() if k != body})]
    return "\n".join([*lines, *(value for _, value in flatten(record.get(body) if body else None))])


def chain_neighbors(neighbors: np.ndarray) -> list[int]:
    """Return an order in which records follow their neighbors.

    From the first record on, the next is the nearest neighbor that is not in the order yet; where none of the
    neighbors is left, the chain starts again at the first record that is left.

    Args:
        neighbors: Positions of the neighbors of each record, the nearest first; -1 for none (records, k).
    """
    order, used, start = list[int](), np.zeros(len(neighbors), bool), 0
    place: int | None = None
    while len(order) < len(neighbors):
        if place is None:
            while used[start]:
                start += 1
            place = start
        used[place] = True
        order.append(place)
        place = next((other for other in neighbors[place].tolist() if other >= 0 and not used[other]), None)
    return order


@register_transform(
    "records", paper="EcomGPT-CT, Ma et al., 2023", summary="rows of a table as text, related ones in one document"
)
@dataclass(frozen=True)
class Records(Transform):
    """Writes records as lines of ``field: value`` and packs related ones into one document.

    The documents are JSON objects: the rows of any table, read with ``--text-column "*"``.

    Attributes:
        related: Which records share a document: those with the same value of ``key``; the ``nearest`` neighbors, one
            after the other; those that are ``next`` to each other in the table; or ``random`` ones, the control of
            the others with the same text. None for ``key`` if there is one, else ``nearest``.
        key: Field of the key, such as a category.
        fields: Names of the fields to write, separated by commas, in this order; None for all.
        body: Field that is written last and without its name, such as a description.
        tokens: Maximum tokens of a document; a longer record is a document by itself.
        encoder: Model that embeds the records for ``nearest``; None for TF-IDF vectors.
        seed: Random seed of ``random``.
    """

    main: ClassVar[str] = "key"
    models: ClassVar[tuple[str, ...]] = ("encoder",)
    related: Literal["key", "nearest", "next", "random"] | None = None
    key: str | None = None
    fields: str | None = None
    body: str | None = None
    tokens: int = 512
    encoder: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If the key is missing or not used, or there is no space for a record.
        """
        if self.related not in ("key", None) and self.key is not None:
            raise UserError(f"Transform 'records': related={self.related} has no key; remove one of them.")
        if self.related == "key" and self.key is None:
            raise UserError("Transform 'records': related=key needs key, the name of a field.")
        if self.tokens < 1:
            raise UserError("Transform 'records': tokens is at least 1.")

    def apply(self, documents: Documents, context: OperationContext) -> Iterator[Document]:
        """Write the records, then pack them."""
        keys, names, dropped = list[str](), Counter[str](), list[str]()
        records = Documents.of(
            ((text, 0) for text in self._serialize(documents, keys, names, dropped)), ("records",), context.count
        )
        if not len(records):
            fields = "its fields" if self.fields is None else f"the fields '{self.fields}'"
            raise UserError(
                f"Transform 'records': no document is a JSON object with text in {fields}; read whole rows of a table "
                "with --text-column '*'."
            )
        if self.key is not None and not any(keys):
            raise UserError(
                f"Transform 'records': no record has a field '{self.key}'; its fields: {', '.join(map(str, names))}."
            )
        sizes = list[int]()
        for group in self._groups(records, keys, context):
            for pack in self._fill(group, records.tokens):
                sizes.append(len(pack))
                yield Document(SEPARATOR.join(records[place] for place in pack), {"records": len(pack)})
        context.notes.update(
            records=len(records),
            without_record=len(documents) - len(records),
            fields=dict(names.most_common(COMMON_FIELDS)),
            too_long=int((records.tokens > self.tokens).sum()),
            records_per_document={"mean": len(records) / max(1, len(sizes)), "most": max(sizes, default=0)},
            dropped=dropped,
        )
        if self.key is not None:
            context.notes.update(keys=len(set(keys) - {""}), without_key=keys.count(""))

    def _serialize(
        self, documents: Documents, keys: list[str], names: Counter[str], dropped: list[str]
    ) -> Iterator[str]:
        """Yield the text of each record, and collect its key, the names of its fields, and examples of no records."""
        fields = [name.strip() for name in (self.fields or "").split(",") if name.strip()]
        for text in documents:
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                record = None
            written = serialize(record, fields, self.body) if isinstance(record, dict) else ""
            if written:
                names.update(list(record))  # of a mapping, the values would be counted
                keys.append(", ".join(value for _, value in flatten(record.get(self.key))) if self.key else "")
                yield written
            elif len(dropped) < EXAMPLES:
                dropped.append(text)

    def _groups(self, records: Documents, keys: Sequence[str], context: OperationContext) -> Iterator[list[int]]:
        """Yield the positions of records that may share documents; records without a key are alone."""
        related = self.related or ("key" if self.key else "nearest")
        if related == "key":
            groups: dict[str | int, list[int]] = {}
            for place, key in enumerate(keys):
                groups.setdefault(key or place, []).append(place)
            yield from groups.values()
        elif related == "nearest":
            yield chain_neighbors(self._find_neighbors(records, context))
        else:
            order = content_order(records, self.seed) if related == "random" else np.arange(len(records))
            yield order.tolist()

    def _find_neighbors(self, records: Documents, context: OperationContext) -> np.ndarray:
        """Return the positions of the nearest neighbors of each record, itself among them (records, k)."""
        embed = load_embedding(self.encoder, records, (), context)
        size = max(1, min(4096, CHUNK_NUMBERS // len(records)))
        chunks = list(embed_chunks(records, embed, 4096, "Embedding records", context.progress))
        vectors = np.concatenate(chunks)
        found, ranks = Neighbors(vectors, min(NEIGHBORS + 1, len(records))), content_ranks(records)
        for first in range(0, len(vectors), size):
            found.add(vectors[first : first + size], first, ranks[first : first + size])
        return found.positions

    def _fill(self, group: Sequence[int], tokens: np.ndarray) -> Iterator[list[int]]:
        """Yield the records of a group, as many per document as fit."""
        pack, total = list[int](), 0
        for place in group:
            if pack and total + int(tokens[place]) > self.tokens:
                yield pack
                pack, total = [], 0
            pack.append(place)
            total += int(tokens[place])
        if pack:
            yield pack
