"""TAPTER: adaptation that draws word embeddings to fastText vectors of the text (Nishida et al., EMNLP 2021)."""

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from acclimate.corpus import Corpus
from acclimate.errors import UserError, check_not_negative, check_positive
from acclimate.methods import Method, register
from acclimate.methods.tapter.target_vectors import make_fasttext_targets
from acclimate.objectives import BatchObjective, EmbeddingRegulariser, LanguageModelling, Objective
from acclimate.objectives.embedding import EmbeddingProjection
from acclimate.training.method import AdaptContext

PROJECTION_NAME = "acclimate_projection"
"""Name under which f is part of the model while it trains, so that checkpoints hold it."""


@register(
    "tapter",
    paper="Nishida et al., Findings of EMNLP 2021",
    summary="MLM, with the embeddings of words drawn to fastText vectors of the same text",
)
@dataclass
class TAPTER(Method):
    """L = L_MLM + weight x mean over R(X) of || LN(W E[x] + b) - F[x] ||^2; W, b and LN are thrown away.

    First fastText (skip-gram) is trained on the text; F holds its vector of what each token spells. R(X) leaves out
    special tokens, stop words, pieces shorter than the shortest n-gram, and what has no vector.

    Attributes:
        weight: The paper has none, which is 1. The norm of F weighs, too: ``fasttext.json`` beside the model
            has its mean.
        vectors: A fastText ``.bin`` to go on from, as in the paper; empty to train on the text alone. A ``.npy`` is
            F itself, with a row for each token of the vocabulary, zeros where it has none; nothing is trained then.
        general: Text on which fastText is trained first where there are no ``vectors``; empty for none. The result
            is kept in the cache for every run and every seed.
        general_epochs: Of fastText on that text (5 is the default of its library).
        dimension: Of vectors that are trained from nothing.
        min_count: Words of the text that are rarer have no vector of their own (paper: 5 for SQuAD, 2 for BioASQ).
        epochs: Of fastText (paper: 5 and 10).
        buckets: Rows for n-grams; fewer save memory (2 million of 300 numbers are 2.4 GB).
        stop_words: ``english``, ``none``, a file with one a line, or another language, as ``german``. The paper does
            not say which.
        boundary: ``"paper"`` looks every piece up as a word; ``"aware"`` leaves out n-grams with a boundary that a
            piece does not have.
        normalise: Give all vectors the norm of a layer-normalised one. The paper does not, and it is off.
    """

    learning_rate: ClassVar[float] = 5e-5
    files: ClassVar[tuple[str, ...]] = ("vectors", "general", "stop_words")

    weight: float = 1.0
    vectors: str = ""
    general: str = ""
    general_epochs: int = 5
    dimension: int = 300
    min_count: int = 2
    epochs: int = 10
    buckets: int = 2_000_000
    stop_words: str = "english"
    boundary: Literal["paper", "aware"] = "paper"
    normalise: bool = False

    def __post_init__(self) -> None:
        """Check the values, and start without a regulariser: :meth:`prepare` makes it.

        Raises:
            UserError: If a number makes no sense, or there is text to train fastText on, and vectors that take its
                place.
        """
        check_not_negative(weight=self.weight)
        numbers = ("general_epochs", "dimension", "min_count", "epochs", "buckets")
        check_positive(**{name: getattr(self, name) for name in numbers})
        if self.vectors and self.general:
            raise UserError("Give vectors to go on from, or a general text to learn them from, not both.")
        self._regulariser: EmbeddingRegulariser | None = None

    def prepare(self, run: AdaptContext) -> None:
        """Train fastText, or take it from the cache, and make f."""
        targets = make_fasttext_targets(run, self.settings())
        count, dimension = int(targets.regularised.sum()), targets.vectors.shape[1]
        run.say(f"TAPTER: {count:,} tokens take part; mean norm of F {targets.mean_norm:.2f}.")
        run.accounts["fasttext.json"] = {"tokens": count, "dimension": dimension, "mean_norm": targets.mean_norm}
        table: Tensor = run.model.get_input_embeddings().weight  # type: ignore[assignment]
        projection = run.seeded(lambda: EmbeddingProjection(table.shape[1], dimension))
        run.model.add_module(PROJECTION_NAME, projection.to(run.device))
        self._regulariser = EmbeddingRegulariser(table, projection, targets.vectors, targets.regularised, self.weight)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the regulariser."""
        assert self._regulariser is not None, "prepare first"
        return [LanguageModelling(), self._regulariser]

    def finish(self, run: AdaptContext) -> None:
        """Throw f away."""
        delattr(run.model, PROJECTION_NAME)

    def file_contents(self) -> dict[str, str]:
        """Return a hash of what the files hold, and of the general text also where it is a folder or a pattern."""
        found = super().file_contents()
        if self.general and "general" not in found:
            with suppress(UserError):  # what is not there is told when it is read
                found["general"] = Corpus([self.general]).fingerprint
        return found
