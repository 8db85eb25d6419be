"""How many tokens a text may have."""

from __future__ import annotations

from acclimate.backbone import LoadedModel, longest_text
from acclimate.errors import UserError
from acclimate.modules import add_virtual_tokens, virtual_ids
from acclimate.training.method import Method


def extend(loaded: LoadedModel, method: Method, seed: int) -> int:
    """Give model and tokenizer the virtual tokens that the method wants; return by how much texts are longer."""
    if method.virtual_tokens:
        loaded.tokenizer = add_virtual_tokens(
            loaded.model, loaded.tokenizer, method.virtual_tokens, start=method.virtual_start, seed=seed
        )
    return len(virtual_ids(loaded.tokenizer))


def check_length(loaded: LoadedModel, max_length: int) -> None:
    """See that the model can read texts of ``max_length`` tokens.

    Raises:
        UserError: If it cannot, or there is no sense in texts so short.
    """
    if max_length < 8:
        raise UserError(f"max-length must be at least 8 tokens, not {max_length}.")
    room = longest_text(loaded.model)
    if room is not None and max_length > room:
        raise UserError(f"max-length {max_length} is more than the {room} positions of this model.")
