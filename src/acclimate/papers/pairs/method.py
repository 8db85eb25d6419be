"""Contrast of texts that share metadata, such as papers that are cited together (after Hallee et al., 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    Drawing,
    LabelledMethod,
    Objective,
    Outputs,
    PoolingHead,
    UserError,
    View,
    check_not_negative,
    check_positive,
    known_numbers,
    load_pooling_head,
    register_method,
    similarities,
)


class DrawPartners(Drawing):
    """One text of a pair: a random text, or another one that shares a code with it.

    First texts are uniform among those that have a partner, the code is uniform among those that the first text
    shares, and the second text is uniform among the others with that code. Both parts draw the same pair for a text.
    """

    def __init__(self, rows: Sequence[np.ndarray], codes: Sequence[Sequence[int]], part: Literal[0, 1]) -> None:
        """Set up the pairs.

        Args:
            rows: Token ids of each text.
            codes: The codes of each text, as numbers.
            part: Whether the first or the second text is drawn.
        """
        self.rows, self.part = rows, part
        self.width = max(map(len, rows))
        self.members: dict[int, list[int]] = defaultdict(list)
        for place, own in enumerate(codes):
            for code in own:
                self.members[code].append(place)
        self.shared = [[code for code in own if len(self.members[code]) > 1] for own in codes]
        self.anchors = [place for place, own in enumerate(self.shared) if own]

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return the token ids of the text, and the indices of both."""
        first = self.anchors[int(rng.integers(len(self.anchors)))]
        members = self.members[self.shared[first][int(rng.integers(len(self.shared[first])))]]
        second = members[int(rng.integers(len(members) - 1))]
        pair = first, second if second != first else members[-1]
        return self.rows[pair[self.part]], pair


class PairContrast(BatchObjective):
    """Mean over pairs of -log( exp(cos(a_i, p_i) / t) / sum_j exp(cos(a_i, p_j) / t) ).

    a and p are the vectors of the first and the second text of a pair. j runs over all pairs of the step, except for
    those whose second text shares a code with the first text of i. (``MultipleNegativesRankingLoss`` of
    sentence-transformers takes these as negatives as well.)
    """

    name = "pairs"

    def __init__(
        self,
        pairs: Sequence[DrawPartners],
        codes: Sequence[Sequence[int]],
        temperature: float = 0.05,
        pooling: PoolingHead | None = None,
    ) -> None:
        """Set up the views of both texts.

        Args:
            pairs: Draws the first and the second text.
            codes: The codes of each text.
            temperature: t; 0.05 is the scale of 20 of sentence-transformers.
            pooling: How the hidden states of a text become its vector; None for their mean.
        """
        self.weight, self.temperature, self.pooling = 1.0, temperature, pooling
        self.codes = [frozenset(own) for own in codes]
        self.views = tuple(View(one) for one in pairs)

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the vectors of both texts, followed by the index of each: (texts, 2, width + 1)."""
        vectors = torch.stack([outputs.pooled(view, self.pooling) for view in self.views], dim=1)
        known = known_numbers(outputs.batch, self.views[0])
        return torch.cat([vectors, outputs.batch.on_device(known)[..., None].to(vectors.dtype)], dim=-1)

    def loss(self, representations: Tensor) -> Tensor:
        """Return the contrast over all pairs."""
        first, second = representations[..., :-1].unbind(1)
        logits = similarities(first, second) / self.temperature
        pairs = representations[..., -1].detach().long().tolist()
        related = [
            [i != j and bool(self.codes[one] & self.codes[other]) for j, (_, other) in enumerate(pairs)]
            for i, (one, _) in enumerate(pairs)
        ]
        logits = logits.masked_fill(torch.tensor(related, device=logits.device), -torch.inf)
        return nn.functional.cross_entropy(logits, torch.arange(len(pairs), device=logits.device))


@register_method(
    "pairs",
    paper="Hallee et al., 2024",
    summary="contrast of texts with the same code, such as papers cited together; the result is a sentence encoder",
)
@dataclass
class PairContrasted(LabelledMethod):
    """L = contrast of texts with a common code and texts without + lm_weight L_LM.

    A table says which texts belong together: papers that the same paper cites, reviews of the same product, texts by
    the same author. A text may be in several rows, with a code in each. For each text of the corpus a step reads two
    texts with a common code; the negatives are the second texts of the other pairs that have no code of the first one.

    Hallee et al. train on pairs of abstracts that are cited together; method ``experts`` has their experts per domain.
    With ``lm_weight`` the model learns the text of the domain and the similarity of its vectors at once, as in MOSAIC
    (arXiv 2510.16797), whose choice of the masked tokens is not built.

    Attributes:
        table: A table with the columns ``text`` and ``code``, in a format of tasks. By default the task of the run:
            the labels are the codes, or in retrieval a query and its passages have a code of their own.
        temperature: Divides the cosines.
        lm_weight: Weight of the LM loss; 0 for the contrast alone. The result is a sentence encoder in both cases,
            and with a weight also a language model.
    """

    purpose: ClassVar[str] = "Learn sentence embeddings"
    cost: ClassVar[float] = 2.0
    without_adapter: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ("table",)
    columns: ClassVar[tuple[str, ...]] = ("text", "code")
    """Columns of the table; a third one divides the texts, so that those of a pair agree in it."""

    table: str | None = None
    temperature: float = 0.05
    lm_weight: float = 0.0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(temperature=self.temperature)
        check_not_negative(lm_weight=self.lm_weight)
        self._term: PairContrast | None = None  # set by `prepare`

    @property
    def sentence_pooling(self) -> Literal["mean"]:
        """The mean over tokens."""
        return "mean"

    @property
    def learns_task(self) -> bool:
        """Whether there is no table, for which the task then stands."""
        return self.table is None

    def check(self, run: AdaptContext) -> None:
        """Read the table.

        Raises:
            UserError: If it has no texts.
        """
        self._codes: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
        rows: Iterable[tuple[str, ...]] = self.coded_rows(run, self.table, "table", self.columns)
        if self.table is None and len(self.columns) == 2 and getattr(run.task, "task_kind", "") == "retrieval":
            rows = ((text, query.id) for query in run.task.train for text in query.texts)
        for text, code, *part in rows:
            self._codes[text, *part].add((code, *part))
        if not self._codes:
            raise UserError(
                f"Method '{self.name}': the task has no train split, whose texts are the pairs; give a task that has "
                f"one, or a table of text and code as '{self.name} table=FILE'."
            )
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Tokenize the texts of the table."""
        codes = self._codes
        names = {name: number for number, name in enumerate(sorted(set().union(*codes.values())))}
        own = [sorted(names[name] for name in found) for found in codes.values()]
        texts = [text for text, *_ in codes]
        read = run.tokenizer(texts)["input_ids"]
        cut_rows = run.tokenizer(texts, truncation=True, max_length=run.max_length)["input_ids"]
        rows = [self.mark(run, np.array(row), *part) for row, (_, *part) in zip(cut_rows, codes, strict=True)]
        pairs = [DrawPartners(rows, own, part) for part in (0, 1)]
        if not pairs[0].anchors or len(names) < 2:
            raise UserError(
                "There are no two texts with the same code and one with another, so there is nothing to contrast; "
                "check the codes of the table."
            )
        cut, alone = sum(len(row) > run.max_length for row in read), len(rows) - len(pairs[0].anchors)
        run.say(
            f"Pairs: {len(pairs[0].anchors):,} texts with a partner, {len(names):,} codes"
            + (f"; cut to {run.max_length} tokens: {cut:,}" if cut else "")
            + (f"; left out because no other text has their code: {alone:,}" if alone else "")
            + "."
        )
        pooling = load_pooling_head(run.model.name_or_path or "", run.device)
        self._term = PairContrast(pairs, own, self.temperature, pooling)

    def mark(self, run: AdaptContext, ids: np.ndarray, *part: str) -> np.ndarray:
        """Return the ids with which the model reads a text, given its value in the third column, if there is one."""
        return ids

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, and the contrast."""
        assert self._term is not None, "prepare first"
        return [*self.language_modelling(self.lm_weight), self._term]

    def finish(self, run: AdaptContext) -> None:
        """Keep the model as it is: there are no heads."""
