"""Which shapes of batches a processor likes: the same few again and again.

oneDNN, which multiplies on a CPU, compiles a kernel for each new shape of a product. Batches that are padded to their
longest text have hundreds of shapes, and each costs a step more than the padding that makes them alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from acclimate.backbone.encoding import longest_text
from acclimate.backbone.unpadded import leaves_padding_out

FEWEST = 2**40


class Grain(NamedTuple):
    """What batches are rounded up to, and when one more is worth its price."""

    width: int = 1
    """Tokens of a row are a multiple of this, unless that is more than the model can read."""
    piece: int = FEWEST
    """Tokens that could have been read in the time that one more forward and backward takes by itself."""
    padding: float = 1.0
    """What a token of padding costs, a real one being one."""
    widest: int | None = None
    """Tokens that the model can read, at most."""

    def wide(self, width: int) -> int:
        """Return to how many tokens rows of ``width`` are padded."""
        padded = round_up(width, self.width)
        return padded if self.widest is None else max(width, min(padded, self.widest))

    def price(self, real: Any, read: Any) -> Any:
        """Return what so many real tokens cost in a rectangle of ``read`` tokens; numbers, or arrays of them."""
        return real + self.padding * (read - real)

    def price_of(self, text: torch.Tensor) -> float:
        """Return what a micro-batch costs, in real tokens; ``text`` is -1 at padding (rows, tokens)."""
        if self.padding == 1:
            return text.numel()  # an accelerator is not asked, which would wait for it
        return float(self.price(int((text >= 0).sum()), text.numel()))


EXACT = Grain()
"""No padding but to the longest row, and as few batches as can be."""
GRAINS = {"cpu": Grain(8, 256), "cuda": Grain(piece=512)}
ATTENDING = 0.2
"""Share of the time of a token that goes into attention, where padding costs nothing else (MiniLM shape, bf16)."""
CHOSEN = {"cpu": 32}
"""What the number of positions is a multiple of at which the vocabulary is scored."""


def round_up(number: int, multiple: int) -> int:
    """Return the least multiple that is not less than ``number``."""
    return -(-number // multiple) * multiple


def grain_of(model: PreTrainedModel) -> Grain:
    """Return the grain for a model where it is now."""
    grain = GRAINS.get(model.device.type, GRAINS["cuda"])._replace(widest=longest_text(model))
    return grain._replace(padding=ATTENDING) if leaves_padding_out(model) else grain


def padding_multiple(model: PreTrainedModel) -> int:
    """Return to multiples of what a tokenizer should pad rows for a model; one if it has no room for such padding."""
    grain = grain_of(model)
    return grain.width if grain.widest is None or grain.widest % grain.width == 0 else 1


def chosen_positions(chosen: torch.Tensor) -> torch.Tensor:
    """Return the places of true entries, in order, and the first of them again until their number is right.

    Args:
        chosen: Boolean, of any shape; places count through it flattened.

    Returns:
        Places (at least as many as there are true entries); none if there are none.
    """
    places = chosen.flatten().nonzero()[:, 0]
    missing = round_up(len(places), CHOSEN.get(places.device.type, 1)) - len(places)
    return torch.cat([places, places[:1].expand(missing)]) if missing else places
