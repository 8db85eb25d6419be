"""Contrast of the contexts of neighbouring tokens (TACO, Fu et al., ACL 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from acclimate.api import BatchObjective, Outputs, View, copy_to, mark_text_starts, similarities

SEEDS = 2**24
"""Seeds of texts are less than this, so that float32 holds them exactly."""


def draw_positives(lengths: Tensor, window: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw another token for each token, uniformly from those at most ``window // 2`` away.

    A draw outside of the text is replaced by any other token of the text.

    Args:
        lengths: Tokens of each text (texts,). Tokens are indexed through the concatenation of all texts.
        window: Width of the window centred on the token.
        generator: Where random numbers come from; None for the global generator of torch.

    Returns:
        Indices of the drawn tokens (all tokens,); the token itself if its text has no other.
    """
    half = window // 2
    text, place = _token_positions(lengths)
    length = lengths[text]
    step = torch.randint(2 * half, place.shape, generator=generator) - half
    near = place + torch.where(step < 0, step, step + 1)
    elsewhere = (torch.rand(place.shape, generator=generator) * (length - 1)).long()
    far = (place + 1 + elsewhere) % length
    return _text_offsets(lengths)[text] + torch.where((near >= 0) & (near < length), near, far)


def draw_negatives(lengths: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw tokens of other texts for each text, uniformly and independently.

    Args:
        lengths: Tokens of each of at least two texts (texts,).
        count: How many tokens to draw.
        generator: As for :func:`draw_positives`.

    Returns:
        Indices of the drawn tokens (texts, count).
    """
    others = (lengths.sum() - lengths)[:, None]
    drawn = (torch.rand(len(lengths), count, generator=generator, dtype=torch.float64) * others).long()
    return torch.where(drawn >= _text_offsets(lengths)[:, None], drawn + lengths[:, None], drawn)


def _text_offsets(lengths: Tensor) -> Tensor:
    return lengths.cumsum(0) - lengths


def _token_positions(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the text of each token, and its position in it."""
    text = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    return text, torch.arange(len(text), device=lengths.device) - _text_offsets(lengths)[text]


def context_contrastive_loss(
    context: Tensor, lengths: Tensor, positive: Tensor, negative: Tensor | None, temperature: float
) -> Tensor:
    """Compute the mean over tokens t of -log( e(t, p_t) / (e(t, p_t) + sum_n e(t, n)) ), e(a, b) = exp(cos(a, b) / T).

    The gradient goes through t only, as in the code of TACO. A text of one token has no positive and is skipped.

    Args:
        context: (tokens, width), the concatenation of all texts.
        lengths: Tokens of each text (texts,), on the CPU, as are the other indices.
        positive: Index of the positive of each token (tokens,).
        negative: Indices of the negatives that the tokens of a text share (texts, negatives); None for none.
        temperature: T.

    Returns:
        A scalar.
    """
    device, longest = context.device, int(lengths.max())
    text, place = _token_positions(lengths)
    has_positive = lengths[text] > 1
    count = max(1, int(has_positive.sum()))
    text, place, positive, has_positive = (copy_to(part, device) for part in (text, place, positive, has_positive))
    unit = nn.functional.normalize(context, dim=-1)
    fixed = unit.detach()
    logits = (unit * fixed[positive]).sum(-1, keepdim=True)
    if negative is not None:
        by_text = unit.new_zeros(len(lengths), longest, unit.shape[1])
        by_text = by_text.index_put((text, place), unit)
        shared = fixed[copy_to(negative, device)]
        logits = torch.cat([logits, similarities(by_text, shared, "dot")[text, place]], dim=1)
    losses = torch.logsumexp(logits / temperature, dim=1) - logits[:, 0] / temperature
    return (losses * has_positive).sum() / count


class ContextContrast(BatchObjective):
    """Pulls the context of a token, g = h - e, towards that of a neighbour and away from those of other texts.

    h is the last hidden state, e the output of the embedding layer in the same forward pass. Since e represents the
    token alone, g is what the context added.

    The negatives come from the whole step, not from the micro-batch: micro-batches contain texts of similar length, a
    long text may have one to itself, and the loss must not depend on how a step is split. They are drawn once per text
    and shared by its tokens. Each token sees the same distribution as with separate draws, so the expected loss is the
    same, at less than a hundredth of the memory.
    """

    name = "taco"
    embeddings = True

    def __init__(
        self,
        weight: float = 1.0,
        temperature: float = 0.07,
        window: int = 5,
        negatives: int = 50,
        tokens: Literal["masked", "original"] = "masked",
    ) -> None:
        """Set up the view.

        Args:
            weight: Factor of the term.
            temperature: Divides the cosines.
            window: A positive is at most half of this away.
            negatives: Number of negatives, tokens of other texts.
            tokens: ``"masked"`` shares the view of the LM loss, as in TACO, so the term needs no forward pass of its
                own. ``"original"`` reads the unmasked text in addition, as the released code of DGA does.
        """
        self.weight, self.temperature, self.window, self.negatives = weight, temperature, window, negatives
        self.view = View(tokens)
        self.views = (self.view,)

    def represent(self, outputs: Outputs) -> Tensor:
        """Return the context of each real token, after 1 + the text's seed if it starts one, else 0.

        The shape is (tokens, 1 + width).
        """
        batch, host = outputs.batch, outputs.batch.host
        text, real = host.text, batch.positions()
        states = (outputs.hidden(self.view), outputs.embedded(self.view))
        last, first = (part.flatten(0, 1).index_select(0, real).float() for part in states)
        starts = mark_text_starts(text)
        seeds = torch.zeros(batch.texts, dtype=torch.long) if host.seeds is None else host.seeds % (SEEDS - 1)
        marks = torch.where(starts, 1 + seeds[text.clamp(min=0)], 0)[text >= 0]
        return torch.cat([batch.on_device(marks.to(last.dtype))[:, None], last - first], dim=1)

    def loss(self, representations: Tensor) -> Tensor:
        """Draw positives and negatives among all tokens and return the loss."""
        marks, context = representations[:, 0].detach().cpu().long(), representations[:, 1:]
        # In the order of their seeds, texts draw the same tokens however the step is split.
        seeds, text = marks[marks > 0], (marks > 0).cumsum(0) - 1
        order = seeds[text].argsort(stable=True)
        lengths = torch.bincount(text)[seeds.argsort(stable=True)]
        generator = torch.Generator().manual_seed(int(seeds.sum()))
        positive = draw_positives(lengths, self.window, generator)
        negative = draw_negatives(lengths, self.negatives, generator) if len(lengths) > 1 else None
        context = context.index_select(0, copy_to(order, context.device))
        return context_contrastive_loss(context, lengths, positive, negative, self.temperature)
