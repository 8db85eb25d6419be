"""Domain adaptation with structured knowledge (DASK; Li et al., IJCAI 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    HeadLayer,
    LabelledMethod,
    Objective,
    Published,
    SubwordTable,
    UserError,
    Words,
    check_not_negative,
    check_positive,
    check_single_process,
    encode_pairs,
    encode_texts,
    longest_text,
    probe_of,
    read_columns,
    read_stop_words,
    register_method,
    with_presets,
)
from acclimate.papers.dask.knowledge import Mention, read_branches
from acclimate.papers.dask.objective import KnowledgeClassification, Polarity
from acclimate.papers.pivots.method import PIVOTS_FILE, find_candidates, score_words

LENGTHENING = 2
"""Maximum tokens of a text with its branches, in maximum lengths of a text."""


@register_method(
    "dask",
    paper="Li et al., IJCAI 2022",
    summary="language modelling on target text, plus a labelled source with knowledge in its text, at pivots that "
    "pseudo-labels of the target update",
)
@with_presets
@dataclass
class Dask(LabelledMethod):
    """L = lm_weight L_LM(target) + task_weight L_task(source with knowledge).

    The text of the run is the target, and the train split of the task the source: a step reads a source text for each
    target text. Where a source text has a pivot, what the triples say about that word follows it as branches. A
    branch sees itself and its word, the word sees its branches, and no other token of the text does (a visible
    matrix); positions continue at the word in each branch, and after the word in the text (soft positions).

    Pivots are the candidates whose labels are farthest from equal shares, in the mean of source and target. In the
    target these are pseudo-labels, a moving average over its texts. The head is discarded; fine-tune the result on the
    source task. ``pivots.json`` has the first and the last pivots.

    The paper chooses candidates by part of speech as well; here, stop words are left out. Its released code updates
    the average text by text, in their order; here, all texts of a step count alike.

    Attributes:
        preset: ``"paper"`` for no language modelling. None for the defaults.
        triples: Table with the columns ``head``, ``relation`` and ``tail``, such as triples of ConceptNet.
        count: Number of pivots.
        least: Minimum number of texts, in each of the two domains, that a candidate occurs in.
        branches: Maximum branches per pivot, the first in the table (K-BERT: 2).
        rate: Weight of one text of the target in the moving average of pseudo-labels.
        confidence: Minimum probability of a pseudo-label that counts.
        lm_weight: Weight of the LM loss on the target text; 0 leaves it out.
        task_weight: Weight of the loss of the source labels.
        stop_words: Words that are no pivots: ``english``, ``none``, a file, or the name of a language.
    """

    purpose: ClassVar[str] = "Use the end task"
    cost: ClassVar[float] = 4.0
    needs_task: ClassVar[bool] = True
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "puts knowledge after the word that reads it, which a causal model cannot see"
    files: ClassVar[tuple[str, ...]] = ("triples", "stop_words")

    preset: Literal["paper"] | None = None
    triples: str | None = None
    count: int = 100
    least: int = 10
    branches: int = 2
    rate: float = 0.01
    confidence: float = 0.9
    lm_weight: Annotated[
        float, Published({"paper": 0.0}, "The text of the target teaches its language as well, as with `dann`.")
    ] = 1.0
    task_weight: float = 1.0
    stop_words: str = "english"

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(count=self.count, least=self.least, branches=self.branches, task_weight=self.task_weight)
        check_not_negative(lm_weight=self.lm_weight)
        for name in ("rate", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} must be between 0 and 1, not {getattr(self, name):g}.")
        self._term: KnowledgeClassification | None = None  # these are set by `prepare`
        self._words: list[str] = []
        self._known: dict[str, list[str]] = {}

    def check_model(self, model: PreTrainedModel, layers: Sequence[HeadLayer]) -> None:
        """Check that each token can attend to given others."""
        probe, local = probe_of(model), "sliding_attention" in (getattr(model.config, "layer_types", None) or ())
        if local or probe is None or not probe.packs:
            why = "its local attention counts places in the row" if local else "its attention takes no mask per pair"
            raise UserError(
                f"Method 'dask' lets each token see only some others, which {type(model).__name__} cannot: {why}. Use "
                "a model such as BERT or RoBERTa, or the methods 'pivots' or 'dann'."
            )

    def check(self, run: AdaptContext) -> None:
        """Check the task, and read the triples."""
        check_single_process(self.name, run)
        self.check_tasks([run.task])
        if run.task.is_pair:
            raise UserError(f"Method 'dask' reads single texts, and '{run.task.name}' has pairs; use 'dann'.")
        if self.triples is None:
            raise UserError(
                "Method 'dask' needs triples; give a table of head, relation and tail as 'dask triples=FILE'."
            )
        rows = read_columns(self.triples, ("head", "relation", "tail"), "triples")
        self._known = read_branches(rows, self.branches)
        read_stop_words(self.stop_words, run.tokenizer)
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Find the candidates, and add the head."""
        candidates, source, _ = find_candidates(run, self.least, self.stop_words)
        labels = np.array([example.label for example in run.task.train])
        _, counts = score_words(candidates, source, labels, len(run.task.labels), "polarity")
        listed = [(number, text) for number, word in enumerate(candidates) for text in self._known.get(word, ())]
        if not listed:
            raise UserError(
                f"None of the {len(candidates):,} words that can be pivots, such as '{candidates[0]}', is a head or "
                f"tail in '{self.triples}'; give triples about words of the task, or lower 'least'."
            )
        branches: dict[int, list[list[int]]] = {}
        encoded = encode_texts(run.tokenizer, [f" {text}" for _, text in listed])
        for (number, _), ids in zip(listed, encoded, strict=True):
            branches.setdefault(number, []).append(ids)
        polarity = Polarity(counts / counts.sum(1, keepdims=True), self.rate)
        heads = run.seeded(lambda: self.add_heads(run, [run.task], polarity=polarity))
        subwords, special = SubwordTable.of(run.tokenizer), run.tokenizer.all_special_ids
        numbers = {word: number for number, word in enumerate(candidates)}
        rows = encode_pairs(run, [example.text for example in run.task.train], None, run.max_length)
        texts = [
            (row.tolist(), find_mentions(row, subwords, special, numbers), int(label))
            for row, label in zip(rows, labels, strict=True)
        ]
        given = (run.model, heads[0], polarity, texts, branches, numbers, subwords, special)
        room = LENGTHENING * run.max_length, longest_text(run.model)
        self._term = KnowledgeClassification(*given, self.task_weight, self.count, self.confidence, room)
        self._words = candidates
        pivots = self._pivots(polarity)
        run.preparation[PIVOTS_FILE] = {"candidates": len(candidates), "with_triples": len(branches), "first": pivots}
        run.say(
            f"Pivots: {len(pivots)} of {len(candidates):,} words that are in {self.least} texts of both domains; "
            f"{len(branches):,} of these have triples."
        )

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, and the loss of the source labels."""
        assert self._term is not None, "prepare first"
        return [*self.language_modelling(self.lm_weight), self._term]

    def finish(self, run: AdaptContext) -> None:
        """Record the last pivots and remove the head."""
        assert self._term is not None, "prepare first"
        run.preparation[PIVOTS_FILE]["last"] = self._pivots(self._term.polarity)
        super().finish(run)

    def _pivots(self, polarity: Polarity) -> list[str]:
        return [self._words[number] for number in polarity.pivots(self.count)]


def find_mentions(
    row: np.ndarray, subwords: SubwordTable, special: Sequence[int], numbers: dict[str, int]
) -> list[Mention]:
    """Return the words of a row of token ids (tokens,) that have a number, in reading order."""
    ids = row[None]
    words = Words.of(ids, np.zeros_like(ids), ~np.isin(ids, special), subwords)
    forms = words.surface_forms(ids, subwords, lowercase=True)
    return [
        Mention(int(words.positions[start]), int(words.positions[stop - 1]) + 1, numbers[form])
        for form, (start, stop) in zip(forms, pairwise(words.starts.tolist()), strict=True)
        if form in numbers
    ]
