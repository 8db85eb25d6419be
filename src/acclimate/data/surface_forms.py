"""The surface forms of the tokens of a vocabulary, without the markers of their tokenizer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from acclimate.base.errors import UserError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class SurfaceForm:
    """The surface form of a token.

    Attributes:
        text: Its characters without markers; empty for special tokens and for bytes that are not valid UTF-8.
        starts: Whether it begins a word.
        part: Its bytes, without surrounding spaces, if they are not valid UTF-8; else empty.
    """

    text: str
    starts: bool
    part: bytes = b""


def read_surface_forms(tokenizer: PreTrainedTokenizerBase) -> list[SurfaceForm]:
    """Return the surface form of every token, by id.

    WordPiece marks the continuation of a word (``##``), byte-level BPE and SentencePiece its beginning (``Ġ``, ``▁``).
    The bytes of byte-level tokens are decoded. Tokens that a user added to the vocabulary have no markers.

    Raises:
        UserError: If the tokenizer is not fast, or marks words in another way.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            f"{type(tokenizer).__name__} is not a fast tokenizer, so the characters of its tokens are unknown."
        )
    read = _make_reader(json.loads(backend.to_str()), type(tokenizer).__name__)
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {index for index, token in added.items() if token.special}
    vocabulary = tokenizer.get_vocab()
    result = [SurfaceForm("", False)] * (max(vocabulary.values()) + 1)
    for token, index in vocabulary.items():
        if index in special:
            continue
        result[index] = SurfaceForm(added[index].content.strip(), True) if index in added else read(token)
    return result


class TextNormalizer:
    """The normalization that a tokenizer applies before it splits a text, such as lower case without accents.

    Attributes:
        rule: The normalizer of the tokenizer as JSON; ``"null"`` if it has none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Read the normalizer of a fast tokenizer; for a slow tokenizer, texts are not changed."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._normalizer = None if backend is None else backend.normalizer
        self.rule = json.dumps(None if backend is None else json.loads(backend.to_str())["normalizer"], sort_keys=True)

    def __call__(self, text: str) -> str:
        """Return a normalized text, with spaces instead of the markers of SentencePiece."""
        return text if self._normalizer is None else self._normalizer.normalize_str(text).replace("▁", " ").strip()


def _make_reader(content: dict[str, Any], kind: str) -> Any:
    decoders = _component_types(content.get("decoder")) | _component_types(content.get("pre_tokenizer"))
    if content["model"]["type"] == "WordPiece":
        mark = content["model"].get("continuing_subword_prefix", "##")
        return lambda token: SurfaceForm(token.removeprefix(mark), not token.startswith(mark) or token == mark)
    if "ByteLevel" in decoders:
        return _read_byte_level
    if "Metaspace" in decoders or "▁" in json.dumps(content.get("decoder"), ensure_ascii=False):
        return _read_metaspace
    raise UserError(
        f"{kind} marks the beginnings of words in an unsupported way. Supported: WordPiece, ByteLevel and Metaspace."
    )


def _component_types(part: Any) -> set[str]:
    """Return the types of a component of a tokenizer and of all components nested in it."""
    if isinstance(part, dict):
        return (
            {part["type"]}
            if set(part) == {"type"}
            else {str(part.get("type"))}.union(*map(_component_types, part.values()))
        )
    if isinstance(part, list):
        return set().union(*map(_component_types, part))
    return set()


def _read_byte_level(token: str) -> SurfaceForm:
    try:
        content = bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return SurfaceForm("", False)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return SurfaceForm("", content[:1].isspace(), content.strip())
    return SurfaceForm(text.strip(), text[:1].isspace())


def _read_metaspace(token: str) -> SurfaceForm:
    if _BYTE_TOKEN.fullmatch(token):
        return SurfaceForm("", False)
    return SurfaceForm(token.replace("▁", " ").strip(), token.startswith("▁"))


def _map_characters_to_bytes() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary represents (Radford et al., 2019).

    Printable bytes represent themselves; the others are represented by the characters from 256 on, in order.
    """
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _map_characters_to_bytes()
