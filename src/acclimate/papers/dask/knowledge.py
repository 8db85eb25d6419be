"""Texts with branches: triples of a knowledge graph after the words that they are about (K-BERT, Liu et al., 2020)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PADDING = -1


def read_branches(triples: Iterable[tuple[str, ...]], most: int) -> dict[str, list[str]]:
    """Return the branches of each entity in lower case: what the triples say that begin or end with it.

    Args:
        triples: Head, relation and tail; an underscore is a space.
        most: Maximum branches per entity, the first ones.
    """
    found: dict[str, dict[str, None]] = {}
    for triple in triples:
        head, relation, tail = (" ".join(part.replace("_", " ").split()) for part in triple)
        for entity, branch in ((head, f"{relation} {tail}"), (tail, f"{head} {relation}")):
            found.setdefault(entity.lower(), {})[branch] = None
    return {entity: list(branches)[:most] for entity, branches in found.items()}


@dataclass(frozen=True)
class Mention:
    """A word of a text: its tokens from ``start`` to ``stop``, and the number of the word."""

    start: int
    stop: int
    word: int


@dataclass(frozen=True)
class Trees:
    """Texts with branches, padded.

    Attributes:
        ids: Token ids (texts, tokens).
        position: Position of each token, counted from 0 (texts, tokens): a token of the text counts those of the text
            before it, one of a branch continues after the last token of its word.
        branch: 0 for tokens of the text, else the number of the branch; -1 at padding (texts, tokens).
        word: What a branch and its word have in common: the first position of the word (texts, tokens). For other
            tokens, their own position; -1 at padding.
    """

    ids: Tensor
    position: Tensor
    branch: Tensor
    word: Tensor

    def visible(self) -> Tensor:
        """Return what each token attends to: boolean (texts, tokens, tokens).

        A token of the text attends to the whole text, and to the branches of its word. A token of a branch attends to
        the branch and its word. Padding attends to padding.
        """
        branch, word = self.branch, self.word
        text = branch == 0
        of_word = (word[:, :, None] == word[:, None, :]) & (text[:, :, None] | text[:, None, :])
        return (branch[:, :, None] == branch[:, None, :]) | of_word


def grow_trees(
    texts: Sequence[tuple[Sequence[int], Sequence[Mention]]],
    branches: Mapping[int, Sequence[Sequence[int]]],
    longest: int,
    positions: int | None = None,
) -> Trees:
    """Insert branches into texts.

    Args:
        texts: The token ids of each text, and its mentions in reading order.
        branches: The token ids of the branches of each word; words without branches may be missing.
        longest: Maximum tokens of a text with its branches, unless the text alone has more; a branch that does not
            fit is left out.
        positions: Number of positions of the model, beyond which no branch goes; None for any number.

    Returns:
        The trees, in the order of the texts.
    """
    rows: list[tuple[Tensor, ...]] = []
    for ids, mentions in texts:
        first = {mention.start: mention for mention in mentions if mention.word in branches}
        made: list[tuple[int, int, int, int]] = []
        room, number, place = longest - len(ids), 0, 0
        while place < len(ids):
            mention = first.get(place)
            stop = mention.stop if mention else place + 1
            made += [(ids[here], here, 0, place) for here in range(place, stop)]
            for branch in branches[mention.word] if mention else ():
                if len(branch) <= room and (positions is None or stop + len(branch) <= positions):
                    room, number = room - len(branch), number + 1
                    made += [(token, stop + depth, number, place) for depth, token in enumerate(branch)]
            place = stop
        rows.append(tuple(torch.tensor(column) for column in zip(*made, strict=True)))
    filled = (0, 0, PADDING, PADDING)
    return Trees(
        *(
            pad_sequence([row[column] for row in rows], batch_first=True, padding_value=value)
            for column, value in enumerate(filled)
        )
    )
