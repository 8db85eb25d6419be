"""Types of the options that extend the vocabulary of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from acclimate.base.bounds import MAX_SIZE
from acclimate.base.errors import shorten
from acclimate.base.options import MODEL, Option
from acclimate.base.registry import parse_number


def read_new_tokens(value: Any) -> Any:
    """Return a number of tokens as an integer, words as a tuple, and the name of a file unchanged.

    Raises:
        ValueError: If it is another number, or there is no word.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value or not all(isinstance(word, str) for word in value):
            raise ValueError(f"must be a number, a file or a list of words, not {shorten(value)}")
        return tuple(value)
    number = parse_number(value)
    if isinstance(number, int | float) and (type(number) is not int or not 1 <= number <= MAX_SIZE):
        raise ValueError(
            f"must be a whole number from 1 to {MAX_SIZE:,}, a file or a list of words, not {shorten(value)}"
        )
    return number


NewTokens = Annotated[
    int | str | Path | tuple[str, ...] | None,
    BeforeValidator(read_new_tokens),
    Option(
        "Tokens to add to the vocabulary: a number, or a file with a word per line.",
        MODEL,
        default="none",
        more="With a number, byte-pair encoding is continued on the domain text, so that its most frequent split "
        "words become tokens. The files of the model hold the new vocabulary, and any program can load them. In "
        "Python also a list of words.",
    ),
]
NewTokenSettings = Annotated[
    dict[str, Any] | None,
    Option(
        "Setting of the new tokens: start, outputs, vectors, min_count or warm_up_tokens.",
        MODEL,
        default="start=mean, min_count=10, warm_up_tokens=0",
        more="See :class:`acclimate.adaptation.new_tokens.NewTokenSettings`.",
        flag="--new-token-set",
    ),
]


def check_new_tokens(given: Any) -> None:
    """Check that settings of new tokens come with new tokens, and new tokens without a low-rank adapter.

    Raises:
        ValueError: If not.
    """
    if given.new_token_settings is not None and given.new_tokens is None:
        raise ValueError("'new_token_settings' is for new tokens; add 'new_tokens', or remove it")
    if given.new_tokens is not None and given.adapter is not None:
        raise ValueError(
            "new tokens need an embedding table that trains, which an adapter freezes; adapt once with 'new_tokens' "
            "and then, from the result, with 'adapter'"
        )
