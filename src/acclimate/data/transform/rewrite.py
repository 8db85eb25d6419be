"""Documents in other words, and their repetition: what a recipe is compared with at equal tokens."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.ranking import content_order
from acclimate.data.operations import TRANSFORMS, Context
from acclimate.data.pool import Document, Documents
from acclimate.data.select.control import fill_tokens
from acclimate.data.transform.recipe import Asked, Pieces, Session, Sized, TextRecipe

ROUNDS = 100
"""Maximum number of times that a document is rewritten in each style."""


@TRANSFORMS.register("repeat", summary="the documents again and again, up to a number of tokens: a control")
@dataclass(frozen=True)
class Repeat(Sized):
    """Repeats the documents, each time in another order, until there are as many tokens as another text has.

    Attributes:
        times: Number of times, if neither ``tokens`` nor ``like`` is given.
        seed: Random seed of the orders.
    """

    main: ClassVar[str] = "times"
    times: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times < 1:
            raise UserError(f"Transform 'repeat': times is at least 1, not {self.times}.")

    def apply(self, documents: Documents, context: Context) -> Documents | Iterable[Document]:
        """Repeat the documents."""
        limit, total = self.limit(context), int(documents.tokens.sum())
        rounds = self.times if limit is None else -(-limit // max(1, total))
        order = np.concatenate([content_order(documents, self.seed + number) for number in range(rounds)])
        context.notes["wanted_tokens"] = limit
        chosen = documents.take(order if limit is None else fill_tokens(order, documents.tokens, limit))
        return (Document(*pair) for pair in chosen.with_fields())


@TRANSFORMS.register(
    "rewrite",
    paper="WRAP, Maini et al., ACL 2024",
    summary="each document in other words, in several styles, by a language model; also the control of recipes",
)
@dataclass(frozen=True)
class Rewrite(TextRecipe):
    """Writes each document anew in each of several styles.

    The styles are in ``styles.txt``, a line ``name: instruction`` for each, which ``prompts`` can replace.
    ``styles=paraphrase like=FILE`` is the control of another recipe: the documents in other words, again and again, up
    to as many tokens.

    Attributes:
        styles: Names of the styles, separated by commas.
        seed: Random seed of the order of documents, where tokens are limited.
    """

    placeholders: ClassVar[Mapping[str, tuple[str, ...]]] = {"rewrite": ("style", "text"), "styles": ()}
    styles: str = "plain,expert,encyclopedia,dialogue"

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [name for name in self.chosen if name not in self._listed]:
            known = ", ".join(self._listed)
            raise UserError(f"Transform 'rewrite': unknown style '{unknown[0]}'; styles.txt has {known}.")

    @cached_property
    def _listed(self) -> dict[str, str]:
        lines = (line.partition(":") for line in self.templates["styles"].splitlines())
        return {name.strip(): text.strip() for name, _, text in lines if text.strip()}

    @property
    def chosen(self) -> list[str]:
        """The names of the styles."""
        return [name.strip() for name in self.styles.split(",")]

    def write(self, session: Session, pieces: Pieces) -> Generator[Document]:
        """Yield each document in each style; with a limit of tokens again, as long as that gives new texts."""
        for number in range(1 if self.tokens is None and self.like is None else ROUNDS):
            asked = (
                Asked(piece, "rewrite", {"style": self._listed[name]}, {"style": name}, number)
                for piece in pieces
                for name in self.chosen
            )
            before = session.used
            yield from session.texts(asked)
            if session.used == before:
                return
