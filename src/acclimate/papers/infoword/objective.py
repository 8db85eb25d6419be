"""Contrast between a text with a masked n-gram and that n-gram (InfoWord, Kong et al., ICLR 2020)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.api import (
    Batch,
    BatchObjective,
    ExtractNGram,
    MaskNGram,
    NGramSampler,
    Outputs,
    Similarity,
    View,
    mark_text_starts,
    mean_pool,
    similarities,
)


def info_nce(anchor: Tensor, other: Tensor, temperature: float, kind: Similarity = "cosine") -> Tensor:
    """Compute InfoNCE: the mean over i of -log( exp(s(a_i, o_i) / t) / sum_j exp(s(a_i, o_j) / t) ).

    Args:
        anchor: (pairs, width).
        other: (pairs, width).
        temperature: Divides the similarities.
        kind: The similarity s.

    Returns:
        A scalar; 0 if there are no pairs.
    """
    own = torch.arange(len(anchor), device=anchor.device)
    logits = similarities(anchor, other, kind) / temperature
    return nn.functional.cross_entropy(logits, own, reduction="sum") / max(1, len(anchor))


class SpanContrast(BatchObjective):
    """InfoNCE between the global view of each text and its local n-gram, against the n-grams of all texts.

    With ``span="ngram"``, the original recipe, the global view is the unmasked text with one n-gram masked, and the
    local view is the n-gram alone. The n-gram is drawn independently of the masking of the MLM loss, which stays the
    same: masking an n-gram in addition would hide more than the MLM loss is meant for, and masking whole n-grams for
    it would be a different method. The local view costs little, since an n-gram has few tokens.

    With ``span="masked"``, the recipe of the released code of DGA, the global view is that of the MLM loss, and the
    local one is the mean, over the positions that the MLM loss predicts, of the hidden states of the unmasked text.
    These states depend on the whole text, so they are identified by their text as much as by their words.

    A text without an n-gram, or without a masked token, is skipped. Its mean would be empty; the released code then
    returns NaN.
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
            span: The local view, see above.
            pooling: The representation of a sequence: the mean of its tokens, as in all contrasts of the DGA paper
                (footnote 13), or the first token, as in the original. Masked positions are always averaged.
            similarity: The cosine, as in the released code, or the dot product of the original, which is used with a
                temperature of 1.
            ngrams: How n-grams are sampled.
        """
        self.weight, self.temperature, self.span = weight, temperature, span
        self.pooling, self.similarity = pooling, similarity
        self.text = View(MaskNGram(ngrams)) if span == "ngram" else View()
        self.local = View(ExtractNGram(ngrams)) if span == "ngram" else View("original")
        self.views = (self.text, self.local)

    def _hidden_tokens(self, batch: Batch) -> Tensor:
        """Return where the global view lacks a token (rows, tokens), on the CPU."""
        batch = batch.host
        if self.span == "masked":
            return batch.labels >= 0
        return batch.view_input(self.text.tokens).ids != batch.original

    def _sequence(self, outputs: Outputs, view: View) -> Tensor:
        """Return the representation of each sequence of a view: (texts, width)."""
        if self.pooling == "mean":
            return outputs.pooled(view)
        starts = mark_text_starts(outputs.batch.host.view_input(view.tokens).text).flatten().nonzero()[:, 0]
        return outputs.hidden(view).flatten(0, 1)[outputs.batch.on_device(starts)].float()

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the global and the local vector of each text that is not skipped: (such texts, 2, width)."""
        batch = outputs.batch
        hidden = self._hidden_tokens(batch)
        whole = self._sequence(outputs, self.text)
        if self.span == "ngram":
            local = self._sequence(outputs, self.local)
        else:
            places = torch.where(hidden, batch.host.text, -1)
            local = mean_pool(outputs.hidden(self.local), places, batch.texts)
        takes_part = torch.bincount(batch.host.text[hidden], minlength=batch.texts).nonzero()[:, 0]
        return torch.stack([whole, local], dim=1)[batch.on_device(takes_part)]

    def loss(self, representations: Tensor) -> Tensor:
        """Return InfoNCE over all texts that are not skipped."""
        whole, local = representations.unbind(1)
        return info_nce(whole, local, self.temperature, self.similarity)
