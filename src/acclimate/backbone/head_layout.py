"""Between tokens with their heads side by side and one matrix for each row and head, as attention multiplies them.

Linear layers write the heads of a token beside each other, without padding; products of attention want the tokens of a
head below each other, with padding. Both changes at once are one pass over memory instead of two or three.
"""

from __future__ import annotations

from torch import Tensor

from acclimate.backbone.passes import Passes
from acclimate.backbone.unpadded import Unpadded


def split_heads(part: Tensor, unpadded: Unpadded | None, passes: Passes | None) -> Tensor:
    """Return (rows x heads, tokens, head width).

    Args:
        part: (rows, heads, tokens, head width), or (1, heads, kept, head width) without padding.
        unpadded: How to put padding back, if it was left out.
        passes: What is compiled for such values.
    """
    rows, tokens = (len(part), part.shape[2]) if unpadded is None else unpadded.shape
    if passes is not None:
        return passes.split_heads(part, None if unpadded is None else unpadded.back, rows, tokens)
    if unpadded is None:
        return part.flatten(0, 1)
    heads, width = part.shape[1], part.shape[3]
    opened = part[0].transpose(0, 1).reshape(-1, heads * width).index_select(0, unpadded.back)
    return opened.view(rows, tokens, heads, width).transpose(1, 2).flatten(0, 1)


def merge_heads(part: Tensor, heads: int, unpadded: Unpadded | None, passes: Passes | None) -> Tensor:
    """Return the reverse of :func:`split_heads`, as a view of what has the heads of a token side by side.

    Args:
        part: (rows x heads, tokens, head width), contiguous.
        heads: Of each row.
        unpadded: As for :func:`split_heads`.
        passes: As for :func:`split_heads`.
    """
    tokens, width = part.shape[1:]
    rows = len(part) // heads
    if passes is not None:
        count, places = (rows * tokens, None) if unpadded is None else (len(unpadded), unpadded.kept)
        merged = passes.merge_heads(part, places, heads, count)
    else:
        merged = part.view(rows, heads, tokens, width).transpose(1, 2).reshape(rows * tokens, heads, width)
        merged = merged if unpadded is None else merged.index_select(0, unpadded.kept)
    return merged.view(rows if unpadded is None else 1, -1, heads, width).transpose(1, 2)
