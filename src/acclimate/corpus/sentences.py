"""Sentences of a text."""

from __future__ import annotations

import regex

# A sentence ends with a punctuation mark and a space; in Chinese and Japanese, the mark alone ends it.
_SENTENCE_END = regex.compile(r"""(?:[.!?…]+["'”’)\]]*\s+|[。！？｡][.!?…。！？｡]*["'”’)\]」』）】》]*\s*)+|\n\s*""")
_ABBREVIATION = regex.compile(
    r"""(?:^|[\s("'“‘\[])(?:mrs?|ms|dr|prof|sr|jr|st|vs|e\.g|i\.e)\.\s+$""", regex.IGNORECASE
)


def split_sentences(text: str) -> list[str]:
    """Split a text after full stops, question marks and exclamation marks, and at line ends."""
    parts, start = [], 0
    for found in _SENTENCE_END.finditer(text):
        if _ABBREVIATION.search(text[start : found.end()]):
            continue
        parts.append(text[start : found.end()])
        start = found.end()
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]
