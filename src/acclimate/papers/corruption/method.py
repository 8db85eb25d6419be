"""Language modelling plus the detection of corrupted documents or dialogues (after Deng et al., WWW 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from acclimate.api import (
    AdaptContext,
    Batch,
    BatchObjective,
    Corpus,
    DecodedDocuments,
    Drawing,
    DrawnObjective,
    LabelledMethod,
    Objective,
    Outputs,
    UserError,
    as_corpus,
    check_not_negative,
    check_positive,
    encode,
    mean_pool,
    register_method,
    split_sentences,
)

MAX_DOCUMENTS = 50_000
"""Documents whose sentences are held in memory; the first ones of the text."""


class DrawDocuments(Drawing):
    """A document, as the indices of its sentences, of which some may be replaced or moved.

    Half of the documents are intact. In the others, with the same probability, either each sentence is replaced with
    the probability ``rate``, at least one of them, by a sentence of another document, or as many sentences as that,
    at least two, change places among each other. The drawn text is a single token, since sentences are read by the
    objective. What is known are, for each of ``most`` places, the index of the sentence, -1 after the end, then for
    each place whether it has another sentence than it should, and last whether any has. A sentence that was replaced
    by an equal one counts as intact.
    """

    full = False

    def __init__(self, order: np.ndarray, documents: Sequence[range], most: int, rate: float) -> None:
        """Set up the documents.

        Args:
            order: The sentences of all documents in reading order; equal sentences have the same index.
            documents: The places in ``order`` of each document, at least two; they follow each other.
            most: Maximum sentences of a drawn document; longer ones are cut at a random place.
            rate: Share of the sentences that are replaced or moved.
        """
        self.order, self.documents, self.most, self.rate = order, documents, most, rate
        self.width = 1

    def draw(self, rng: np.random.Generator) -> tuple[np.ndarray, Sequence[int]]:
        """Return a token, and what is known."""
        document = self.documents[int(rng.integers(len(self.documents)))]
        size = min(self.most, len(document))
        start = document.start + int(rng.integers(len(document) - size + 1))
        right = np.arange(start, start + size)
        shown = right.copy()
        if rng.random() < 0.5:
            replaces = bool(rng.integers(2))
            least = 1 if replaces else 2
            chosen = rng.random(size) < self.rate
            if chosen.sum() < least:
                chosen[rng.permutation(size)[:least]] = True
            places = np.flatnonzero(chosen)
            if replaces:
                others = rng.integers(len(self.order) - len(document), size=len(places))
                shown[places] = others + len(document) * (others >= document.start)
            else:  # a rotation of the places in random order leaves none where it was
                order = rng.permutation(places)
                shown[order] = right[np.roll(order, 1)]
        found, moved = self.order[shown], (self.order[shown] != self.order[right]).astype(int)
        padding = [-1] * (self.most - size)
        known = [*found.tolist(), *padding, *moved.tolist(), *padding, int(moved.any())]
        return np.zeros(1, dtype=np.int64), known


class DocumentReader(nn.Module):
    """A Transformer over the vectors of the sentences of a document, with a head per sentence and one per document."""

    def __init__(self, width: int, heads: int, layers: int = 2, most: int = 16) -> None:
        """Make the layers.

        Args:
            width: Width of the vectors.
            heads: Attention heads.
            layers: Number of layers (USDA: 2).
            most: Maximum sentences of a document.
        """
        super().__init__()
        self.places = nn.Embedding(most, width)
        nn.init.normal_(self.places.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.sentence, self.document = nn.Linear(width, 2), nn.Linear(width, 2)

    def forward(self, vectors: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of sentences (documents, sentences, 2) and documents (documents, 2).

        Args:
            vectors: (documents, sentences, width).
            real: Whether there is a sentence (documents, sentences).
        """
        places = self.places(torch.arange(vectors.shape[1], device=vectors.device))
        # The vectors are means in float32; the weights may be copies in the precision of the run.
        states = self.layers(vectors.to(places.dtype) + places, src_key_padding_mask=~real)
        mean = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return self.sentence(states), self.document(mean)


class CorruptionDetection(DrawnObjective):
    """Mean over drawn documents of CE(document) + sentence_weight x mean over its sentences of CE(sentence).

    One head predicts whether a document is corrupted, the other one whether a sentence is not where it belongs. A
    sentence is read by itself; its vector is the mean of its last hidden states.
    """

    name = "corruption"

    def __init__(
        self,
        drawing: DrawDocuments,
        model: PreTrainedModel,
        sentences: Sequence[np.ndarray],
        reader: DocumentReader,
        weight: float = 1.0,
        sentence_weight: float = 0.01,
        readings: int = 1,
    ) -> None:
        """Set up the term.

        Args:
            drawing: Draws documents.
            model: The student.
            sentences: Token ids of each sentence, with its special tokens.
            reader: The layers over sentences, and both heads.
            weight: Factor of the term.
            sentence_weight: Factor of the loss of sentences (released code of USDA: 0.01).
            readings: Tokens of a drawn document, in texts of the corpus.
        """
        super().__init__(drawing, weight)
        self.model, self.sentences, self.reader = model, sentences, reader
        self.sentence_weight, self.readings = sentence_weight, readings

    def total(self, outputs: Outputs) -> Tensor:
        """Return the summed losses."""
        batch = outputs.batch
        known = self.known(batch)
        most = known.shape[1] // 2
        shown, moved, corrupted = known[:, :most], known[:, most:-1], known[:, -1]
        real = batch.on_device(shown >= 0)
        different, place = shown.clamp(min=0).unique(return_inverse=True)
        vectors = self._read(batch, [self.sentences[number] for number in different.tolist()])[batch.on_device(place)]
        of_sentences, of_documents = self.reader(vectors, real)
        labels = batch.on_device(torch.where(shown >= 0, moved, -100))
        losses = nn.functional.cross_entropy(of_sentences.float().flatten(0, 1), labels.flatten(), reduction="none")
        per_document = losses.view_as(real).sum(1) / real.sum(1)
        document = nn.functional.cross_entropy(of_documents.float(), batch.on_device(corrupted), reduction="sum")
        return document + self.sentence_weight * per_document.sum()

    def _read(self, batch: Batch, rows: Sequence[np.ndarray]) -> Tensor:
        """Return the vectors of sentences (sentences, width)."""
        ids = nn.utils.rnn.pad_sequence([torch.as_tensor(row).long() for row in rows], batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        text = torch.arange(len(rows))[:, None].where(torch.arange(ids.shape[1]) < lengths[:, None], -1)
        states = encode(self.model, batch.on_device(ids), batch.on_device(text))
        return mean_pool(states, text, len(rows))


@register_method(
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
        texts = DecodedDocuments(run.rows, run.tokenizer) if self.documents is None else as_corpus(self.documents)
        known: dict[tuple[int, ...], int] = {}
        order: list[int] = []
        documents: list[range] = []
        short = cut = left = 0
        for text in texts:
            parts = text.split("\n") if self.split == "lines" else split_sentences(text)
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
        """Return the LM loss, unless its weight is 0, and the loss of the detection."""
        assert self._term is not None, "prepare first"
        return [*self.language_modelling(self.lm_weight), self._term]

    def file_contents(self) -> dict[str, str]:
        """Return a fingerprint of the documents, if they are not the domain text."""
        return {} if self.documents is None else {"documents": Corpus([self.documents]).fingerprint}

    def _shorten(self, row: list[int]) -> list[int]:
        """Return at most ``length`` tokens of a sentence, with its last one, a special token in most vocabularies."""
        return row if len(row) <= self.length else [*row[: self.length - 1], row[-1]]
