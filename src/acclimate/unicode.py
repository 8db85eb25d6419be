r"""Combining marks, for patterns of words.

``\w`` is letters, digits and the underscore. The vowel signs of Indic scripts, the tones of Thai, the points of Arabic
and Hebrew and the accents of decomposed text are characters by themselves, and no letters: with ``\w`` alone a word
is torn at each of them.
"""

from __future__ import annotations

import unicodedata

_CODE_POINT_RANGES = (range(0x20000), range(0xE0000, 0xE0200))
"""Between them are ideographs alone; to ask for each would only cost time."""


def _combining_mark_ranges() -> str:
    """Return the characters of the categories Mn, Mc and Me as ranges."""
    found: list[list[int]] = []
    for place in _CODE_POINT_RANGES:
        for code in place:
            if not unicodedata.category(chr(code)).startswith("M"):
                continue
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    return "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in found)


COMBINING_MARKS = _combining_mark_ranges()
"""For the inside of a class of a pattern: ``rf"\\w[\\w{MARKS}]*"`` is a word."""
