"""What the tokens of a vocabulary spell, whatever marks their tokenizer puts on them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from acclimate.errors import UserError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class SurfaceForm:
    """What a token spells.

    Attributes:
        text: Its characters, without marks; empty for special tokens and for bytes that are no text by themselves.
        starts: Whether it begins a word.
        part: Its bytes, without a space before them, where they are parts of characters; else empty.
    """

    text: str
    starts: bool
    part: bytes = b""


def read_surface_forms(tokenizer: PreTrainedTokenizerBase) -> list[SurfaceForm]:
    """Return the surface of every token, by id.

    WordPiece marks what continues a word (``##``), byte-level BPE and SentencePiece what begins one (``Ġ``, ``▁``);
    byte-level tokens stand for bytes, which are decoded here. Words that a user added to a vocabulary stand in it as
    they do in a text.

    Raises:
        UserError: If the tokenizer is of another kind.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer; what its tokens spell is not known.")
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
    """How a tokenizer writes a text before it cuts it: in lower case, without accents, or as it is.

    Attributes:
        rule: The tokenizer's rule as JSON; ``"null"`` if it has none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Read the rule of a fast tokenizer; one of another kind has none here."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._normaliser = None if backend is None else backend.normalizer
        self.rule = json.dumps(None if backend is None else json.loads(backend.to_str())["normalizer"], sort_keys=True)

    def __call__(self, text: str) -> str:
        """Return a text as the tokenizer writes it, with spaces where it has marks for them."""
        return text if self._normaliser is None else self._normaliser.normalize_str(text).replace("▁", " ").strip()


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
        f"How {kind} marks the beginnings of words is not known here (WordPiece, ByteLevel and Metaspace are)."
    )


def _component_types(part: Any) -> set[str]:
    """Return the types of a part of a tokenizer and of all parts inside it."""
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
    """Return which byte each character of a byte-level vocabulary stands for (Radford et al., 2019).

    Bytes that print stand for themselves; the others for the characters from 256 on, in their order.
    """
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _map_characters_to_bytes()
