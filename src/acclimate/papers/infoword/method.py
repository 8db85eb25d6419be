"""MLM+InfoWord: contrast between a text and its own masked-out n-gram (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from acclimate.api import (
    BatchObjective,
    LanguageModelling,
    Method,
    NGramSampler,
    Objective,
    Published,
    check_not_negative,
    check_positive,
    register_method,
)
from acclimate.papers.infoword.objective import SpanContrast


@register_method(
    "infoword",
    paper="Kong et al., ICLR 2020; Ke et al., EMNLP 2022",
    summary="MLM plus a contrast between a text and its own masked-out n-gram, against n-grams of other texts",
)
@dataclass
class MLMWithInfoWord(Method):
    """L = L_MLM + weight x mean over texts i of -log( e^(s(g_i, l_i) / t) / sum_j e^(s(g_i, l_j) / t) ).

    g_i is the representation of text i with one n-gram masked, l_i the representation of that n-gram alone. The
    negatives l_j are the n-grams of the other texts in the step.

    Attributes:
        weight: Weight of the contrastive loss (released code of DGA: 1).
        temperature: t (released code of DGA: 0.05, as for its other contrastive losses).
        span: ``"ngram"`` is the definition above and adds a forward pass over each text and a cheap one over its
            n-gram. ``"masked"`` (released code) takes g from the text as masked for MLM, and l as the mean hidden
            state of the original text at the masked positions.
        pooling: How a sequence becomes a vector: its ``"mean"`` (DGA paper) or its ``"first"`` token (InfoWord).
        similarity: s, ``"cosine"`` (released code) or ``"dot"`` (InfoWord; use temperature 1).
        ngram_mean: Mean length of an n-gram in tokens.
        ngram_deviation: Standard deviation of that length in tokens.
        ngram_longest: Maximum length of an n-gram in tokens.
    """

    purpose: ClassVar[str] = "Learn better representations"
    cost: ClassVar[float] = 2.0
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = "hides a part of each text behind mask tokens"

    weight: float = 1.0
    temperature: float = 0.05
    span: Annotated[
        Literal["ngram", "masked"],
        Published(
            {"released-code": "masked"},
            "The definition of the paper.",
        ),
    ] = "ngram"
    pooling: Annotated[
        Literal["mean", "first"],
        Published(
            {"paper": "first"},
            "As in the paper on DGA, whose baseline this is.",
        ),
    ] = "mean"
    similarity: Annotated[
        Literal["cosine", "dot"],
        Published(
            {"paper": "dot"},
            "As the other contrastive losses, with their temperature.",
        ),
    ] = "cosine"
    ngram_mean: float = 5.0
    ngram_deviation: float = 1.0
    ngram_longest: int = 10

    def __post_init__(self) -> None:
        """Validate the numbers."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature, ngram_mean=self.ngram_mean, ngram_longest=self.ngram_longest)
        if self.ngram_deviation:
            check_positive(ngram_deviation=self.ngram_deviation)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the contrastive loss."""
        ngrams = NGramSampler(self.ngram_mean, self.ngram_deviation, self.ngram_longest)
        contrast = SpanContrast(self.weight, self.temperature, self.span, self.pooling, self.similarity, ngrams)
        return [LanguageModelling(), contrast]
