"""Texts of the task next to their nearest neighbors in the corpus (ICL-APT, Zhukova et al., 2025)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from acclimate.api import (
    Documents,
    OperationContext,
    Transform,
    UserError,
    load_embedding,
    register_transform,
    search_neighbors,
)

ALIKE = 64
"""Documents of about the same length among which the control draws."""


@register_transform(
    "neighbors",
    paper="ICL-APT, Zhukova et al., 2025",
    summary="each text of the task with its nearest neighbors in the corpus",
)
@dataclass(frozen=True)
class WithNeighbors(Transform):
    """Writes each text of the task, followed by the documents of the corpus that are most similar to it.

    The model so reads every text of the task with related text as context. A document that equals the text is no
    neighbor of it. Masks are drawn again for every copy and in every epoch, so that ``copies`` are the maskings of the
    paper.

    Attributes:
        k: Maximum number of neighbors of each text.
        by: ``nearest``; or ``random``, the control: for every neighbor a random document of about the same length,
            such that the sum of the tokens is the same.
        similarity: Minimum cosine similarity of a neighbor; 0 or less never counts.
        encoder: Model that embeds the texts, a folder or a name on the Hugging Face Hub; None for TF-IDF vectors that
            are reduced by an SVD. The paper uses a sentence encoder.
        length: Maximum tokens of a text and its neighbors together, such as the maximum length of the model; a
            neighbor that does not fit is left out, and farther ones that do fit are taken. None for no limit.
        copies: How often each result is written.
        seed: Random seed of the control.
    """

    main: ClassVar[str] = "k"
    models: ClassVar[tuple[str, ...]] = ("encoder",)
    k: int = 4
    by: Literal["nearest", "random"] = "nearest"
    similarity: float = 0.0
    encoder: str | None = None
    length: int | None = None
    copies: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UserError: If one is out of range.
        """
        for name in ("k", "copies", "length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"Transform 'neighbors': {name} must be at least 1, not {value}.")
        if self.similarity > 1:
            raise UserError(f"Transform 'neighbors': similarity must be at most 1, not {self.similarity:g}.")

    @property
    def reads(self) -> tuple[str, ...]:
        """The text of the task."""
        return ("target",)

    def apply(self, documents: Documents, context: OperationContext) -> Iterator[str]:
        """Search the neighbors, and join each text with its own."""
        target = list(context.target or ())
        chosen, similarity, left_out = self._search(documents, target, context)
        if self.by == "random":
            chosen = self._draw_alike(documents, target, chosen)
        context.notes.update(
            task_texts=len(target),
            without_neighbor=sum(not positions for positions in chosen),
            neighbors=sum(map(len, chosen)),
            too_long_to_fit=left_out,
            similarity={"mean": float(np.mean(similarity)) if similarity else None},
        )
        for text, positions in zip(target, chosen, strict=True):
            joined = "\n".join([text, *(documents[position] for position in positions)])
            yield from [joined] * self.copies

    def _search(
        self, documents: Documents, target: list[str], context: OperationContext
    ) -> tuple[list[list[int]], list[float], int]:
        """Return the positions of the neighbors of each text, their similarities, and how many did not fit."""
        embed = load_embedding(self.encoder, documents, target, context)
        known = set(target)
        equal = Counter(text for text in documents if text in known)
        spare = max(equal.values(), default=0)  # neighbors that may equal the text
        found = search_neighbors(documents, target, self.k + spare, embed, context.progress)
        sizes = context.count(target) if self.length is not None else [0] * len(target)
        chosen, similarities, left_out = list[list[int]](), list[float](), 0
        for number, (text, size) in enumerate(zip(target, sizes, strict=True)):
            accepted = found.similarity[number] >= max(self.similarity, 1e-6)
            pairs = zip(found.positions[number][accepted].tolist(), found.similarity[number][accepted], strict=True)
            usable = [(p, s) for p, s in pairs if not (equal[text] and documents[p] == text)][: self.k]
            room, kept = (np.inf if self.length is None else self.length - size), list[int]()
            for position, similarity in usable:
                if (tokens := int(documents.tokens[position])) <= room:
                    room -= tokens
                    kept.append(position)
                    similarities.append(float(similarity))
            left_out += len(usable) - len(kept)
            chosen.append(kept)
        return chosen, similarities, left_out

    def _draw_alike(self, documents: Documents, target: list[str], chosen: list[list[int]]) -> list[list[int]]:
        """Return as many random documents for each text as it has neighbors, with as many tokens in total.

        Each is one of the :data:`ALIKE` documents whose length is nearest to that of the neighbor, corrected by how
        much longer or shorter the ones before were.
        """
        rng = np.random.default_rng(self.seed)
        order = np.argsort(documents.tokens, kind="stable")
        lengths = documents.tokens[order]
        window, missing, drawn = min(ALIKE, len(order)), 0, list[list[int]]()
        for text, positions in zip(target, chosen, strict=True):
            own = list[int]()
            for position in positions:
                wanted = int(documents.tokens[position]) + missing
                middle = int(np.searchsorted(lengths, wanted))
                first = min(max(middle - window // 2, 0), len(order) - window)
                near = rng.permutation(order[first : first + window]).tolist()
                new = (one for one in near if one not in own and documents[one] != text)
                picked = next(new, position)  # nothing else is there
                missing = wanted - int(documents.tokens[picked])
                own.append(picked)
            drawn.append(own)
        return drawn
