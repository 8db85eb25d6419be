"""Contrast of a text without an n-gram with the n-gram (InfoWord, Kong et al., ICLR 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.masking import ExtractNGram, MaskNGram, NGramSampler
from acclimate.objectives.base import Batch, BatchObjective, Outputs, View, mark_text_starts, mean_pool
from acclimate.objectives.contrast import Similarity, similarities


def info_nce(anchor: Tensor, other: Tensor, temperature: float, kind: Similarity = "cosine") -> Tensor:
    """Compute InfoNCE: the mean over i of -log( exp(s(a_i, o_i) / t) / sum_j exp(s(a_i, o_j) / t) ); 0 for no pairs.

    Args:
        anchor: (pairs, width).
        other: (pairs, width).
        temperature: Divides the similarities.
        kind: The similarity s.
    """
    own = torch.arange(len(anchor), device=anchor.device)
    logits = similarities(anchor, other, kind) / temperature
    return nn.functional.cross_entropy(logits, own, reduction="sum") / max(1, len(anchor))


class SpanContrast(BatchObjective):
    """InfoNCE between the global reading of each text and its own local n-gram, against the n-grams of all texts.

    With ``span="ngram"``, the original recipe, the global reading is that of the clean text with one n-gram hidden,
    and the local one that of the n-gram on its own. The n-gram is drawn apart from the corruption of the MLM loss,
    which stays the same: one n-gram on top of it would hide more than the MLM loss is made for, and hiding whole
    n-grams for it would make another method. So the global reading is one of its own; the local one costs little,
    since an n-gram has a few tokens.

    With ``span="masked"``, the recipe of the released code of DGA, the global reading is that of the MLM loss, and the
    local one is the mean, at the scattered positions that the MLM loss predicts, of a reading of the clean text. The
    local states then see the whole text, so that they are found by their text as much as by their words.

    A text without an n-gram, or without a masked token, takes no part. Its mean would be empty, which is what makes
    the released code return NaN.
    """

    name = "infoword"

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.05,
        span: Literal["ngram", "masked"] = "ngram",
        pooling: Literal["mean", "first"] = "mean",
        similarity: Similarity = "cosine",
        ngrams: NGramSampler = NGramSampler(),  # noqa: B008  (frozen)
    ) -> None:
        """Set up the two views.

        Args:
            weight: Factor of the term.
            temperature: Divides the similarities.
            span: What is local, see above.
            pooling: What stands for a sequence: the mean of its tokens, as in all contrasts of the DGA paper (its
                footnote 13), or the first token, as in the original. It does not touch scattered positions.
            similarity: The cosine, as in the released code; or the dot product of the original, for which a
                temperature of 1 is meant.
            ngrams: How n-grams are drawn.
        """
        self.weight, self.temperature, self.span = weight, temperature, span
        self.pooling, self.similarity = pooling, similarity
        self.text = View(MaskNGram(ngrams)) if span == "ngram" else View()
        self.local = View(ExtractNGram(ngrams)) if span == "ngram" else View("original")
        self.views = (self.text, self.local)

    def _hidden_tokens(self, batch: Batch) -> Tensor:
        """Return where the global reading misses a token (rows, tokens)."""
        if self.span == "masked":
            return batch.labels >= 0
        return batch.reading(self.text.tokens).ids != batch.original

    def _sequence(self, outputs: Outputs, view: View) -> Tensor:
        """Return what stands for each sequence of a view: (texts, width)."""
        if self.pooling == "mean":
            return outputs.pooled(view)
        return outputs.hidden(view)[mark_text_starts(outputs.batch.reading(view.tokens).text)].float()

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the global and the local vector of each text that takes part: (such texts, 2, width)."""
        batch = outputs.batch
        hidden = self._hidden_tokens(batch)
        whole = self._sequence(outputs, self.text)
        if self.span == "ngram":
            local = self._sequence(outputs, self.local)
        else:
            places = torch.where(hidden, batch.text, -1)
            local = mean_pool(outputs.hidden(self.local), places, batch.texts)
        takes_part = torch.bincount(batch.text[hidden], minlength=batch.texts) > 0
        return torch.stack([whole, local], dim=1)[takes_part]

    def loss(self, representations: Tensor) -> Tensor:
        """Return the contrast over all texts that take part."""
        whole, local = representations.unbind(1)
        return info_nce(whole, local, self.temperature, self.similarity)
