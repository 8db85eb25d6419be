"""Pre-training on the metadata of documents, read as sentence vectors (FPDM / FastDoc, Nandy et al., 2023)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    ClassificationHeads,
    DrawTriplets,
    LabelledMethod,
    Objective,
    Published,
    UserError,
    check_not_negative,
    check_positive,
    encode,
    fingerprint,
    load_encoder,
    longest_text,
    mean_pool,
    register_method,
    split_sentences,
    with_presets,
)
from acclimate.papers.fastdoc.objective import DocumentMetadata

SENTENCES_AT_ONCE = 64


@register_method(
    "fastdoc",
    paper="Nandy et al., 2023",
    summary="documents, read as frozen sentence vectors, learn their codes and to be near those of the same code",
)
@with_presets
@dataclass
class DocumentLevelMetadata(LabelledMethod):
    """L = lm_weight L_LM + triplet margin loss + cross-entropy of each level of the code of each document.

    The sentences of a document become vectors, once and by a frozen encoder. A trained linear layer maps them to the
    width of token embeddings, whose place they take, so the encoder reads a long document at the cost of a short text.
    For each text of the corpus a step reads a triplet: a document, another with the same code, and one with
    another code. A code such as ``law/tax`` has two levels, each with a head. The layer and the heads are discarded.
    Fine-tune the result on ordinary text.

    Attributes:
        preset: ``"paper"`` for no language modelling. None for the defaults.
        taxonomy: A table with the columns ``text``, the document, and ``code``, in a format of tasks. By default the
            task of the run, whose labels are the codes.
        separator: What separates the levels of a code.
        encoder: The sentence encoder, a model of ``sentence-transformers``. By default the mean of the last hidden
            states of the base model.
        sentences: Maximum sentences per document; further ones are left out.
        weight: Weight of the losses of documents.
        margin: Margin of the triplet loss.
        lm_weight: Weight of the LM loss; 0 leaves it out, and a step costs next to nothing.
    """

    purpose: ClassVar[str] = "Learn better representations"
    cost: ClassVar[float] = 2.0
    preparation: ClassVar[str] = "the sentences of all documents are encoded"
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "reads documents as sequences of vectors, which a decoder could not continue"
    files: ClassVar[tuple[str, ...]] = ("taxonomy", "encoder")

    preset: Literal["paper"] | None = None
    taxonomy: str | None = None
    separator: str = "/"
    encoder: str | None = None
    sentences: int = 100
    weight: float = 1.0
    margin: float = 1.0
    lm_weight: Annotated[
        float, Published({"paper": 0.0}, "Keeps the language model, and learns the words of the domain.")
    ] = 1.0

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_positive(sentences=self.sentences, margin=self.margin, weight=self.weight)
        check_not_negative(lm_weight=self.lm_weight)
        if not self.separator:
            raise UserError("separator is empty; give what separates the levels of a code.")
        self._term: DocumentMetadata | None = None  # set by `prepare`

    def check(self, run: AdaptContext) -> None:
        """Read the taxonomy."""
        found, self._dropped = self.read_codes(run, self.taxonomy)
        self._triplets = DrawTriplets([("", code, text) for text, code in found.items()])
        if not self._triplets.anchors:
            raise UserError(
                "There are no two documents with the same code and one with another, so there is nothing to compare; "
                "check the codes of the taxonomy."
            )
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Encode the sentences of all documents, and add the layer and the heads."""
        triplets = self._triplets
        documents, cut = self._encode(run, [text for _, _, text in triplets.entries])
        parts = [code.split(self.separator) for _, code, _ in triplets.entries]
        levels = [["/".join(part[: level + 1]) for part in parts] for level in range(max(map(len, parts)))]
        classes = [{name: number for number, name in enumerate(sorted(set(names)))} for names in levels]
        codes = torch.tensor([[known[name] for name in names] for known, names in zip(classes, levels, strict=True)]).T
        run.say(
            f"Documents: {len(documents):,} with {sum(map(len, documents)):,} sentences; classes by level: "
            f"{', '.join(f'{len(known):,}' for known in classes)}; anchors: {len(triplets.anchors):,}"
            f"{cut}{self._dropped}."
        )

        def make() -> None:
            table: Tensor = run.model.get_input_embeddings().weight  # type: ignore[assignment]
            projection = nn.Linear(documents[0].shape[1], table.shape[1])
            width = run.model.config.get_text_config().hidden_size
            heads = ClassificationHeads(width, [len(known) for known in classes])
            self.attach_heads(run, tasks=heads, projection=projection)
            given = (triplets, run.model, documents, codes, projection, heads, self.weight, self.margin)
            self._term = DocumentMetadata(*given)

        run.seeded(make)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss, unless its weight is 0, and the loss of the documents."""
        assert self._term is not None, "prepare first"
        return [*self.language_modelling(self.lm_weight), self._term]

    def _encode(self, run: AdaptContext, texts: list[str]) -> tuple[list[Tensor], str]:
        """Return the vectors of the sentences of each document (sentences, dimensions), and a note on what is cut.

        They come from the cache if possible.
        """
        most = min(self.sentences, longest_text(run.model) or self.sentences)
        whole = [split_sentences(text) or [text] for text in texts]
        split = [sentences[:most] for sentences in whole]
        shortened = sum(len(sentences) > most for sentences in whole)
        flat = [sentence for sentences in split for sentence in sentences]
        make = self._own_vectors if self.encoder is None else self._encoder_vectors
        options = {"sentences": fingerprint(flat), "encoder": self.file_contents().get("encoder", self.encoder)}
        vectors = run.cached("sentence-vectors", options, lambda: {"vectors": make(run, flat)})["vectors"]
        cut = f"; cut to {most} sentences: {shortened:,}" if shortened else ""
        return list(vectors.split([len(sentences) for sentences in split])), cut

    def _encoder_vectors(self, run: AdaptContext, sentences: list[str]) -> Tensor:
        encoder = load_encoder(str(self.encoder))
        vectors: Tensor = encoder.encode(sentences, convert_to_tensor=True, show_progress_bar=run.progress)
        return vectors.float().clone().to(run.device)

    @torch.no_grad()
    def _own_vectors(self, run: AdaptContext, sentences: list[str]) -> Tensor:
        """Return the mean of the last hidden states of each sentence."""
        run.model.eval()
        found = []
        for start in range(0, len(sentences), SENTENCES_AT_ONCE):
            some = sentences[start : start + SENTENCES_AT_ONCE]
            read = run.tokenizer(some, truncation=True, max_length=run.max_length, padding=True, return_tensors="pt")
            real = read["attention_mask"] > 0
            text = torch.arange(len(some))[:, None].expand_as(real).where(real, -1)
            states = encode(run.model, read["input_ids"].to(run.device), text.to(run.device))
            found.append(mean_pool(states, text, len(some)))
        return torch.cat(found)
