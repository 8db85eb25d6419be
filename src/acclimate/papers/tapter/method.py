"""TAPTER: word embeddings are pulled towards fastText vectors of the same text (Nishida et al., EMNLP 2021)."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from torch import Tensor

from acclimate.api import (
    AdaptContext,
    BatchObjective,
    Corpus,
    LanguageModelling,
    Method,
    Objective,
    Published,
    UserError,
    check_not_negative,
    check_positive,
    find_file,
    read_stop_words,
    register_method,
    with_presets,
)
from acclimate.papers.tapter.objective import EmbeddingProjection, EmbeddingRegularizer
from acclimate.papers.tapter.target_vectors import make_fasttext_targets

PROJECTION_NAME = "acclimate_projection"
"""Name of the projection's submodule of the model during training, so that checkpoints include it."""


@register_method(
    "tapter",
    paper="Nishida et al., Findings of EMNLP 2021",
    summary="language modelling that also pulls word embeddings towards fastText vectors of the same text",
)
@with_presets
@dataclass
class TAPTER(Method):
    """L = L_LM + weight x mean over R(X) of || LN(W E[x] + b) - F[x] ||^2.

    E is the embedding table of the model, and F[x] the fastText vector of token x, from a skip-gram model trained on
    the text. The projection (W, b and LN) is discarded after the training. R(X) are the tokens of a step without
    special tokens, stop words, subwords shorter than the shortest n-gram, and tokens without a vector.

    Attributes:
        preset: The source of values that the paper sets by task: ``"paper"`` for BioASQ, the text that the paper's
            method helps on, or ``"paper-squad"`` for SQuAD. Its code was not released.
        weight: Weight of the embedding loss (paper: 1). The norm of F acts as another weight; ``fasttext.json`` in the
            model folder holds its mean.
        vectors: A fastText ``.bin`` file whose training continues on the text, as in the paper; empty to train on the
            text from scratch. A ``.npy`` file is F itself, with a row per vocabulary token (zeros for tokens without a
            vector); fastText is then not trained.
        general: General text that fastText is trained on first if there are no ``vectors``; empty for none. The result
            is cached and shared by all runs and seeds.
        general_epochs: Epochs of fastText on the general text (5 is the library's default).
        dimension: Dimension of vectors that are trained from scratch.
        min_count: Minimum count of a word; rarer words have only n-gram vectors.
        epochs: Epochs of fastText on the text.
        buckets: Rows of the n-gram table; fewer save memory (2 million rows of 300 numbers take 2.4 GB).
        stop_words: Words without an embedding loss: ``english``, ``none``, a file with one word per line, or another
            language such as ``german``. The paper does not name its list.
        boundary: ``"paper"`` looks every subword up as a word; ``"aware"`` drops n-grams with a word boundary that the
            subword does not have.
        normalize: Scale all vectors to the norm of a layer-normalized vector (not in the paper).
    """

    purpose: ClassVar[str] = "Learn the words of the domain"
    preparation: ClassVar[str] = "fastText vectors are trained"
    learning_rate: ClassVar[float] = 5e-5
    without_adapter: ClassVar[str] = "it trains the embedding table"
    paper_options: ClassVar[Mapping[str, Any]] = {
        "epochs": 100,
        "batch_size": 256,
        "max_length": 512,
        "warmup": 0.06,
        "weight_decay": 0.01,
    }
    files: ClassVar[tuple[str, ...]] = ("vectors", "general", "stop_words")

    preset: Literal["paper", "paper-squad"] = "paper"
    weight: float = 1.0
    vectors: str = ""
    general: str = ""
    general_epochs: int = 5
    dimension: int = 300
    min_count: Annotated[int, Published({"paper-squad": 5})] = 2
    epochs: Annotated[int, Published({"paper-squad": 5})] = 10
    buckets: int = 2_000_000
    stop_words: str = "english"
    boundary: Literal["paper", "aware"] = "paper"
    normalize: bool = False

    def __post_init__(self) -> None:
        """Validate the numbers and their combination."""
        check_not_negative(weight=self.weight)
        numbers = ("general_epochs", "dimension", "min_count", "epochs", "buckets")
        check_positive(**{name: getattr(self, name) for name in numbers})
        if self.vectors and self.general:
            raise UserError("Give either vectors to continue from or a general text to train them on, not both.")
        self._regularizer: EmbeddingRegularizer | None = None  # set by `prepare`

    def check(self, run: AdaptContext) -> None:
        """Check that the files exist."""
        super().check(run)
        read_stop_words(self.stop_words, run.tokenizer)
        if self.vectors and find_file(self.vectors) is None:
            raise UserError(f"There is no file '{self.vectors}'; give the vectors of method tapter as .bin or .npy.")
        if self.general:
            Corpus([self.general])

    def prepare(self, run: AdaptContext) -> None:
        """Train fastText, or read its vectors from the cache, and create the projection."""
        targets = make_fasttext_targets(run, self.settings())
        count, dimension = int(targets.regularized.sum()), targets.vectors.shape[1]
        run.say(f"TAPTER: {count:,} vocabulary tokens are regularized; mean norm of F {targets.mean_norm:.2f}.")
        run.preparation["fasttext.json"] = {"tokens": count, "dimension": dimension, "mean_norm": targets.mean_norm}
        table: Tensor = run.model.get_input_embeddings().weight  # type: ignore[assignment]
        projection = run.seeded(lambda: EmbeddingProjection(table.shape[1], dimension))
        run.model.add_module(PROJECTION_NAME, projection.to(run.device))
        self._regularizer = EmbeddingRegularizer(table, projection, targets.vectors, targets.regularized, self.weight)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the LM loss and the regularizer."""
        assert self._regularizer is not None, "prepare first"
        return [LanguageModelling(), self._regularizer]

    def finish(self, run: AdaptContext) -> None:
        """Remove the projection from the model."""
        delattr(run.model, PROJECTION_NAME)

    def file_contents(self) -> dict[str, str]:
        """Return the content hashes of the files, and of the general text even if it is a folder or a pattern."""
        found = super().file_contents()
        if self.general and "general" not in found:
            with suppress(UserError):  # a missing text raises an error when it is read
                found["general"] = Corpus([self.general]).fingerprint
        return found
