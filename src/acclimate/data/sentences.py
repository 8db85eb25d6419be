"""Sentences of a text."""

from __future__ import annotations

import regex

_WORD = r"(?<=(?<![\p{L}\p{N}.])(?i:%s)\.)"
"""One of these words with its full stop ends here."""
_TITLES = _WORD % r"mrs?|ms|dr|prof|sr|jr|st|vs|e\.g|i\.e"
_NUMBERED = _WORD % r"figs?|nos?|nr|sects?|secs?|eqs?|refs?|tab|vol|pp?|ch|chap|art|app"
_OTHERS = _WORD % r"al|approx|ca|cf|etc|incl|esp|resp"
# A sentence ends with a punctuation mark of any script and a space; in Chinese and Japanese, the mark alone ends it.
# The look-behind for another mark keeps the time linear in a long run of marks.
_END = regex.compile(
    rf"""(?P<abbreviation>\.(?=\s)(?:{_TITLES}\s+|{_NUMBERED}\s+(?=\d)|{_OTHERS}\s+(?=[\p{{Ll}}\p{{N}}(])))"""
    r"""|(?:(?<![\p{Sentence_Terminal}…])[\p{Sentence_Terminal}…]++["'”’»)\]]*+\s+"""
    r"""|[。！？｡][.!?…。！？｡]*["'”’)\]」』）】》]*\s*)+|\n\s*"""
)


def split_sentences(text: str) -> list[str]:
    """Split a text after full stops, question marks and exclamation marks of any script, and at line ends.

    A full stop after an abbreviation ends no sentence: after a title (``Dr.``) never, after words such as ``Fig.`` and
    ``No.`` before a number, and after others (``et al.``) before a small letter, a number or a parenthesis.
    """
    parts, start = [], 0
    for found in _END.finditer(text):
        if found["abbreviation"] is None:
            parts.append(text[start : found.end()])
            start = found.end()
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]
