"""Language modelling plus the detection of corrupted documents or dialogues (after Deng et al., WWW 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from acclimate.corpus import Corpus
from acclimate.corpus.documents import as_corpus
from acclimate.corpus.sentences import split_sentences
from acclimate.errors import UserError, check_not_negative, check_positive
from acclimate.methods import register
from acclimate.methods.labelled import LabelledMethod
from acclimate.methods.tapter.target_vectors import DecodedDocuments
from acclimate.objectives import BatchObjective, Objective
from acclimate.objectives.corruption import CorruptionDetection, DocumentReader, DrawDocuments
from acclimate.training.method import AdaptContext

MAX_DOCUMENTS = 50_000
"""Documents whose sentences are held in memory; the first ones of the text."""


@register(
    "corruption",
    paper="Deng et al., WWW 2022",
    summary="language modelling plus detection of sentences or turns that were replaced or moved in a document",
)
@dataclass
class CorruptionDetected(LabelledMethod):
    """L = lm_weight L_LM + weight (L_document + sentence_weight L_sentences).

    For each text of the corpus a step reads a document, sentence by sentence. In half of the documents some sentences
    were replaced by those of other documents, or changed places. Two Transformer layers read the vectors of the
    sentences; a head finds corrupted documents, and another one the sentences that do not belong where they are. All
    of these are discarded. In dialogues, turns are the sentences: give one turn per line and ``split=lines``.

    The paper pre-trains a hierarchical encoder of dialogues with a head per utterance and one per dialogue. How its
    dialogues are corrupted is in neither text nor code; both ways here are choices.

    Attributes:
        documents: File or folder of documents or dialogues. By default the domain text. Line ends of the domain text
            are not known to most tokenizers, so ``split=lines`` needs this.
        split: Whether a document is split into ``sentences`` or ``lines``.
        sentences: Maximum sentences of a document that are read at once.
        length: Maximum tokens of a sentence, special tokens included.
        rate: Share of the sentences of a corrupted document that are replaced or moved.
        weight: Weight of the detection.
        sentence_weight: Weight of the loss of sentences within it (released code: 0.01).
        lm_weight: Weight of the LM loss; 0 leaves it out.
    """

    purpose: ClassVar[str] = "Learn better representations"
    cost: ClassVar[float] = 3.0
    files: ClassVar[tuple[str, ...]] = ("documents",)

    documents: str | None = None
    split: Literal["sentences", "lines"] = "sentences"
    sentences: int = 16
    length: int = 32
    rate: float = 0.3
    weight: float = 1.0
    sentence_weight: float = 0.01
    lm_weight: float = 1.0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(sentences=self.sentences, length=self.length, weight=self.weight)
        check_not_negative(sentence_weight=self.sentence_weight, lm_weight=self.lm_weight)
        if self.sentences < 2:
            raise UserError("sentences is at least 2: one sentence has no order.")
        if not 0 < self.rate <= 1:
            raise UserError(f"rate is above 0 and at most 1, not {self.rate:g}.")
        if self.split == "lines" and self.documents is None:
            raise UserError("split=lines needs 'documents', files with one sentence or turn per line.")
        self._term: CorruptionDetection | None = None  # set by `prepare`

    def prepare(self, run: AdaptContext) -> None:
        """Split the documents and add layers and heads."""
        texts = DecodedDocuments(run) if self.documents is None else as_corpus(self.documents, "text", None)
        known: dict[tuple[int, ...], int] = {}
        order: list[int] = []
        documents: list[range] = []
        short = cut = left = 0
        for text in texts:
            parts = text.splitlines() if self.split == "lines" else split_sentences(text)
            parts = [part for part in parts if part.strip()]
            if len(parts) < 2:
                short += 1
            elif len(documents) == MAX_DOCUMENTS:
                left += 1
            else:
                ids = run.tokenizer(parts)["input_ids"]
                cut += sum(len(row) > self.length for row in ids)
                documents.append(range(len(order), len(order) + len(ids)))
                order += [known.setdefault(tuple(self._shorten(row)), len(known)) for row in ids]
        if len(documents) < 2:
            raise UserError(
                f"{len(documents)} documents have two sentences or more, but two documents are needed: replaced "
                "sentences come from another one."
            )
        notes = {"one sentence only": short, f"beyond the first {MAX_DOCUMENTS:,} documents": left}
        run.say(
            f"Documents: {len(documents):,} with {len(order):,} {self.split}"
            + (f"; cut to {self.length} tokens: {cut:,}" if cut else "")
            + "".join(f"; left out, {why}: {count:,}" for why, count in notes.items() if count)
            + "."
        )
        drawing = DrawDocuments(np.array(order), documents, self.sentences, self.rate)
        config = run.model.config.get_text_config()
        width = config.hidden_size
        heads = math.gcd(width, getattr(config, "num_attention_heads", 1))
        reader = run.seeded(lambda: DocumentReader(width, heads, most=self.sentences))
        self.attach_heads(run, tasks=reader)
        readings = math.ceil(self.sentences * self.length / run.max_length)
        rows = [np.array(row) for row in known]
        given = (drawing, run.model, rows, reader, self.weight, self.sentence_weight, readings)
        self._term = CorruptionDetection(*given)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, and that of the detection."""
        assert self._term is not None, "prepare first"
        return [*self.language_modelling(self.lm_weight), self._term]

    def file_contents(self) -> dict[str, str]:
        """Return a fingerprint of the documents, if they are not the domain text."""
        return {} if self.documents is None else {"documents": Corpus([self.documents]).fingerprint}

    def _shorten(self, row: list[int]) -> list[int]:
        """Return at most ``length`` tokens of a sentence, with its last one, a special token in most vocabularies."""
        return row if len(row) <= self.length else [*row[: self.length - 1], row[-1]]
