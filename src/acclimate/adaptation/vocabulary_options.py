"""Types of the options that extend the vocabulary of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from acclimate.base.bounds import MAX_SIZE
from acclimate.base.errors import UserError, shorten
from acclimate.base.options import MODEL, Option
from acclimate.base.registry import parse_number, split_entry


def split_new_tokens(given: Any) -> tuple[int | str | tuple[str, ...], dict[str, Any]]:
    """Return what becomes tokens, a number, the name of a file or words, and the parameters.

    Args:
        given: That, ``"NUMBER parameter=value ..."`` or ``"FILE parameter=value ..."``, or a mapping of it to the
            parameters.

    Raises:
        ValueError: If it is something else.
    """
    settings: Any = {}
    if isinstance(given, str) and not Path(given).is_file():
        try:
            given, settings = split_entry(given, "new vocabulary")
        except UserError as error:
            raise ValueError(str(error).removesuffix(".")) from error
    elif isinstance(given, Mapping) and len(given) == 1:
        ((given, settings),) = given.items()
        if not isinstance(settings or {}, Mapping):
            raise ValueError(f"must give the parameters of {shorten(given)} by name, not {shorten(settings)}")
    if isinstance(given, Sequence) and not isinstance(given, str):
        if not given or not all(isinstance(word, str) for word in given):
            raise ValueError(f"must be a number, a file or a list of words, not {shorten(given)}")
        return tuple(given), dict(settings or {})
    number = parse_number(given)
    if isinstance(number, int | float) and (type(number) is not int or not 1 <= number <= MAX_SIZE):
        raise ValueError(
            f"must be a whole number from 1 to {MAX_SIZE:,}, a file or a list of words, not {shorten(given)}"
        )
    return number if isinstance(number, int) else str(given), dict(settings or {})


def read_new_tokens(value: Any) -> Any:
    """Return what becomes tokens, or a mapping of it to its parameters."""
    what, settings = split_new_tokens(value)
    return {what: settings} if settings else what


NewTokens = Annotated[
    int | str | Path | tuple[str, ...] | dict[Any, Any] | None,
    BeforeValidator(lambda value: value if value is None else read_new_tokens(value)),
    Option(
        "Tokens to add to the vocabulary: a number, or a file with a word per line; with parameters, "
        "'500 start=fasttext'.",
        MODEL,
        default="none",
        more="With a number, byte-pair encoding is continued on the domain text, so that its most frequent split "
        "words become tokens. The files of the model hold the new vocabulary, and any program can load them. In "
        "Python also a list of words, or a mapping of what becomes tokens to the parameters: those of "
        ":class:`acclimate.adaptation.new_tokens.NewTokenSettings`.",
    ),
]


def check_new_tokens(given: Any) -> None:
    """Check that new tokens come without an adapter.

    Raises:
        ValueError: If not.
    """
    if given.new_tokens is not None and given.adapter is not None:
        raise ValueError(
            "new tokens need an embedding table that trains, which an adapter freezes; adapt once with 'new_tokens' "
            "and then, from the result, with 'adapter'"
        )
