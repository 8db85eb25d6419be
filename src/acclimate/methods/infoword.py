"""MLM+InfoWord: a text without an n-gram against the n-grams of all texts (baseline of Ke et al., EMNLP 2022)."""

from dataclasses import dataclass
from typing import Literal

from acclimate.errors import check_not_negative, check_positive
from acclimate.masking import NGramSampler
from acclimate.methods import Method, register
from acclimate.objectives import BatchObjective, LanguageModelling, Objective, SpanContrast


@register(
    "mlm-infoword",
    paper="Kong et al., ICLR 2020; Ke et al., EMNLP 2022",
    summary="MLM, with each text contrasted with its own hidden n-gram against those of other texts",
)
@dataclass
class MLMWithInfoWord(Method):
    """L = L_MLM + weight x mean over i of -log( e^(s(g_i, l_i) / t) / sum_j e^(s(g_i, l_j) / t) ).

    g is the reading of a text with one n-gram hidden, l the reading of that n-gram by itself; negatives are the
    n-grams of the other texts of the step.

    Attributes:
        weight: Of the contrast (released code of DGA: 1).
        temperature: t (released code of DGA: 0.05, as for its other contrasts).
        span: ``"ngram"`` as above: the clean text is read once more, the n-gram costs little. ``"masked"`` (released
            code) takes the MLM reading as g, and as l the mean of the clean text's reading at the masked positions.
        pooling: What stands for a sequence: its ``"mean"`` (DGA paper) or its ``"first"`` token (original).
        similarity: s, ``"cosine"`` (released code), or ``"dot"`` (original; take temperature 1).
        ngram_mean: Mean length of an n-gram in tokens.
        ngram_deviation: Standard deviation of that length.
        ngram_longest: Length of the longest n-gram.
    """

    weight: float = 1.0
    temperature: float = 0.05
    span: Literal["ngram", "masked"] = "ngram"
    pooling: Literal["mean", "first"] = "mean"
    similarity: Literal["cosine", "dot"] = "cosine"
    ngram_mean: float = 5.0
    ngram_deviation: float = 1.0
    ngram_longest: int = 10

    def __post_init__(self) -> None:
        """Check what must be positive."""
        check_not_negative(weight=self.weight)
        check_positive(temperature=self.temperature, ngram_mean=self.ngram_mean, ngram_longest=self.ngram_longest)
        if self.ngram_deviation:
            check_positive(ngram_deviation=self.ngram_deviation)

    def objectives(self) -> list[Objective | BatchObjective]:
        """Return the MLM loss and the contrast."""
        ngrams = NGramSampler(self.ngram_mean, self.ngram_deviation, self.ngram_longest)
        contrast = SpanContrast(self.weight, self.temperature, self.span, self.pooling, self.similarity, ngrams)
        return [LanguageModelling(), contrast]
