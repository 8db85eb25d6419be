"""Replay: a training that reads several texts, each with its share of the tokens.

General text and conversations among the domain text keep a model from forgetting them. The loss of every token counts
alike. Terms that compare the texts of a step read the replayed texts as well: leaving them out would give each step
another number of negatives, and a text of another source is never a false negative. What a method measures before the
training, such as importance, is measured on the domain text alone.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.corpus import Corpus, TokenDataset, tokenize
from acclimate.corpus.chat import Chats, tokenize_chats
from acclimate.corpus.token_dataset import Rows
from acclimate.corpus.tokenizing import Framing
from acclimate.errors import UserError
from acclimate.models import LanguageModel
from acclimate.options.replay import REPLAY_SHARE
from acclimate.progress import print_message, report_text
from acclimate.training.inputs import Budget, as_corpus
from acclimate.training.method import cache_folder
from acclimate.training.sampler import EpochSampler, MixtureSampler

COUNTS = ("documents", "duplicates", "leaked", "broken", "truncated", "repeated")
"""What is recorded of a text, unless it is 0."""
MANY_EPOCHS = 16
"""Repetitions of a text after which another one teaches almost nothing (Muennighoff et al., NeurIPS 2023)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replay:
    """Text or conversations to replay, and their share of the tokens."""

    text: Corpus | Chats
    share: float

    def identity(self) -> dict[str, Any]:
        """Return the entry of the configuration that is recorded."""
        kind = "chat" if isinstance(self.text, Chats) else "text"
        return {kind: self.text.fingerprint, "share": self.share}


def open_replay(given: Mapping[str, Any], text_column: str) -> list[Replay]:
    """Return what is replayed, without sources whose share is 0.

    Args:
        given: The options ``replay``, ``replay_share``, ``chat`` and ``chat_share``, as far as they are given.
        text_column: Column that holds the text in tables and JSON lines.

    Raises:
        UserError: If a share is given without a source, a source does not exist, or the shares leave nothing for the
            domain text.
    """
    found = [
        Replay(as_corpus(source, text_column, given.get("encoding")), share)
        for source, share in _shares("replay", given)
    ]
    for source, share in _shares("chat", given):
        found.append(Replay(source if isinstance(source, Chats) else Chats(source), share))
    if (total := sum(replay.share for replay in found)) >= 1:
        raise UserError(
            f"The shares of replay and chat are {total:.0%} together and leave nothing for the domain text."
        )
    return [replay for replay in found if replay.share]


def _shares(name: str, given: Mapping[str, Any]) -> list[tuple[Any, float]]:
    sources, share = given.get(name), given.get(f"{name}_share")
    if sources is None:
        if share:
            raise UserError(f"'{name}_share' needs a source; give it with --{name}.")
        return []
    if isinstance(sources, Mapping):
        return list(sources.items())
    return [(sources, REPLAY_SHARE if share is None else share)]


@dataclass(frozen=True)
class MixedText:
    """One of the texts that a training reads.

    Attributes:
        name: Its name in messages.
        rows: Its rows.
        share: Its share of the tokens.
    """

    name: str
    rows: TokenDataset
    share: float


class MixedRows(Rows):
    """The rows of several texts behind one index, those of the first text first."""

    def __init__(self, texts: Sequence[MixedText]) -> None:
        self.texts = texts
        self._ends = np.cumsum([len(text.rows) for text in texts]).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, index: int) -> np.ndarray:
        """Return a row of one of the texts."""
        text, row = self._locate(index)
        return text.rows[row]

    def lengths_of(self, indices: Sequence[int]) -> np.ndarray:
        """Return the numbers of tokens of some rows: int64 of shape (indices,)."""
        rows = np.asarray(indices, dtype=np.int64)
        number = np.searchsorted(self._ends, rows, side="right")
        lengths = np.zeros(len(rows), dtype=np.int64)
        for text, (source, end) in enumerate(zip(self.texts, self._ends, strict=True)):
            here = number == text
            lengths[here] = source.rows.lengths_of(rows[here] - (end - len(source.rows)))
        return lengths

    def place(self, index: int) -> str:
        """Return the number of the document of a row, counted from 1, and the name of its text."""
        text, row = self._locate(index)
        return f"{text.rows.place(row)} of {text.name}"

    def _locate(self, index: int) -> tuple[MixedText, int]:
        number = bisect_right(self._ends, index)
        return self.texts[number], index - (self._ends[number - 1] if number else 0)


class Mixture:
    """The domain text and what is replayed beside it, and the order in which a training reads them.

    Attributes:
        texts: The texts, the domain text first.
        rows: The rows of all texts.
        batch_size: Texts per step.
    """

    def __init__(self, texts: Sequence[MixedText], batch_size: int, seed: int, appended: int = 0) -> None:
        """Prepare the order.

        Args:
            texts: The texts, the domain text first.
            batch_size: Texts per step.
            seed: Random seed.
            appended: Virtual tokens per row, which do not count.
        """
        self.texts, self.batch_size, self._appended = texts, batch_size, appended
        self.rows: Rows = texts[0].rows
        self._sampler: MixtureSampler | None = None
        if len(texts) > 1:
            lengths = [text.rows.lengths - appended for text in texts]
            self._sampler = MixtureSampler(lengths, [text.share for text in texts], batch_size, seed)
            self.rows = MixedRows(texts)
        self._order = self._sampler or EpochSampler(len(self.rows), batch_size, seed)

    @property
    def mean_length(self) -> float:
        """Mean tokens per row of the mix."""
        return _mean_length(self.texts)

    def of(self, step: int) -> list[int]:
        """Return the indices of the texts of a step."""
        return self._order.of(step)

    def describe(self, steps: int) -> list[dict[str, Any]]:
        """Return what the first ``steps`` steps read of each text: its share as given and realized, tokens, epochs.

        The numbers of its documents, and of those that were left out or cut, are included. The list is empty if there
        is only the domain text.
        """
        if self._sampler is None:
            return []
        tokens = self._sampler.read(steps)
        return [
            {
                "name": text.name,
                "share": round(text.share, 6),
                "realized": round(read / max(1, sum(tokens)), 6),
                "tokens": read,
                "epochs": round(epochs, 3),
                **{name: text.rows.report[name] for name in COUNTS if text.rows.report.get(name)},
            }
            for text, read, epochs in zip(self.texts, tokens, self._sampler.epochs(steps), strict=True)
        ]

    def plan(self, budget: Budget, progress: bool) -> int:
        """Return the number of optimizer steps, and print the shares and the epochs of each text.

        Epochs are those of the domain text, and all tokens count as tokens.
        """
        mix = self._sampler
        if mix is None:
            return budget.resolve(self.texts[0].rows, self.batch_size, self._appended)
        if budget.epochs is not None:
            steps = mix.steps_for(budget.epochs)
        elif budget.tokens is not None:
            steps = max(1, round(budget.tokens / self.batch_size / mix.mean_length))
        else:
            steps = budget.resolve(self.texts[0].rows, self.batch_size)
        timed = budget.max_minutes is not None
        parts = [
            f"{text['share']:.1%} {text['name']}" + ("" if timed else f" ({text['epochs']:.3g} epochs)")
            for text in self.describe(1 if timed else steps)
        ]
        print_message(f"Mix: {', '.join(parts)}.", enabled=progress)
        for text in self.describe(1 if timed else steps)[1:]:
            if text["epochs"] > MANY_EPOCHS:
                log.warning(
                    "'%s' is read %.0f times, and a text teaches little after %d times; give more of it, or a smaller "
                    "share.",
                    text["name"],
                    text["epochs"],
                    MANY_EPOCHS,
                )
        return steps


def read_mixture(
    replays: Sequence[Replay],
    domain: Corpus,
    rows: TokenDataset,
    loaded: LanguageModel,
    max_length: int,
    *,
    framing: Framing,
    choose_batch: Callable[[TokenDataset, float, float], int],
    seed: int,
    appended: int,
    progress: bool,
) -> Mixture:
    """Tokenize what is replayed, and mix it with the domain text.

    Args:
        replays: What is replayed.
        domain: The domain text.
        rows: Its rows.
        loaded: The model and its tokenizer.
        max_length: Maximum tokens per row.
        framing: Where special tokens are added to documents.
        choose_batch: Function from the domain text, the mean tokens per text of the mix, and the share of the domain
            text to the number of texts per step.
        seed: Random seed.
        appended: Virtual tokens per row.
        progress: Whether to show progress.

    Raises:
        UserError: If a text is empty, or conversations are given for a model that cannot learn from them.
    """
    texts, cache = [], cache_folder() / "rows"
    of_domain = {one["hash"] for one in domain.contents()} if replays else set()
    for replay in replays:
        if isinstance(replay.text, Chats):
            if loaded.kind.uses_masking or appended:
                what = "virtual tokens" if appended else f"a {loaded.kind.name} language model"
                raise UserError(f"Conversations are for causal language models; {what} cannot learn answers.")
            found = tokenize_chats(replay.text, loaded.tokenizer, max_length, cache=cache)
            about = replay.text.report.summary("conversation")
            for count, words in (("truncated", "truncated"), ("repeated", "split into one text per answer")):
                about += f"; {found.report[count]:,} {words}" if found.report[count] else ""
        else:
            found = tokenize(
                replay.text, loaded.tokenizer, max_length, framing=framing, cache=cache, progress=progress
            )
            about = replay.text.report.summary()
        texts.append(MixedText(text_name(replay.text), found, replay.share))
        report_text(f"Replay: {about}.", progress, bool(replay.text.report.problems))
        if of_domain & {one["hash"] for one in replay.text.contents()}:
            log.warning(
                "'%s' is replayed and is domain text as well, so it is read more often.", text_name(replay.text)
            )
    counts = Counter(text.name for text in texts)
    named = [
        MixedText(f"{text.name} ({number})" if counts[text.name] > 1 else text.name, text.rows, text.share)
        for number, text in enumerate(texts, 1)
    ]
    share = 1 - sum(text.share for text in named)
    mixed = [MixedText("domain text", rows, share), *named]
    return Mixture(mixed, choose_batch(rows, _mean_length(mixed), share), seed, appended)


def _mean_length(texts: Sequence[MixedText]) -> float:
    """Return the mean tokens per row of a mix."""
    return 1 / sum(text.share * len(text.rows) / text.rows.tokens for text in texts)


def text_name(text: Corpus | Chats) -> str:
    """Return the name of the first file of a text, and how many others there are."""
    first, *others = [Path(str(source["name"])).name for source in text.contents()]
    return first + (f" and {len(others)} more" if others else "")
