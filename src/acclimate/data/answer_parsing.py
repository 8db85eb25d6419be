"""Lists, pairs and free text in the answers of language models, whatever form a model gives them.

Models answer with JSON, in a fence or not, with numbered lists, bullets, or lines, before and after which they talk.
Nothing here raises: what cannot be read is left out, and the caller counts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from acclimate.data.ngrams import normalize_words

MAX_VALUES, MAX_CUTS, MAX_CHARACTERS = 100, 20, 1 << 20
"""Places of an answer where JSON is tried, commas where a cut list may end, and characters that are read."""
_THOUGHT = re.compile(r"<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*[\w+-]*[ \t]*$", re.MULTILINE)
_BULLET = re.compile(r"\s{0,12}(?:[-*+•‣–]|\(?\d{1,3}[.):]|[a-z][.)])\s+(?=\S)")
_LEAD = re.compile(
    r"\s*(?:sure|certainly|of course|okay|ok|here (?:is|are)|here's|below (?:is|are))\b[^\n]{0,200}:\s*\n", re.I
)
_REFUSAL = re.compile(
    r"\W*(?:as an? (?:ai|(?:large )?language model)\b|(?:sorry|unfortunately"
    r"|(?:i'?m|i am|we are) (?:sorry|afraid|unable)"
    r"|(?:i|we) (?:can ?not|can'?t|won'?t|am not able))\b[^\n]{0,120}\b"
    r"(?:assist|help|provide|comply|fulfil+|generate|write|create|answer|process|access|requests?)\b)",
    re.IGNORECASE,
)
_BROKEN = re.compile(r"[\[{]\s{0,9}[\"{\[]|\"\s{0,9}:")
"""JSON that could not be read, whose lines are no entries."""
_LABEL_KEYS = ("label", "labels", "class", "category", "answer")
_MARKS = "*_`\"'“”‘’«»" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_END = re.compile(r"[.!?。！？…][\"'”’)\]»]*(?=\s|$)")


def clean_answer(answer: str) -> str:
    """Return the text of an answer without thoughts, a fence around it, and a first line that announces it."""
    text = _THOUGHT.sub("", answer[:MAX_CHARACTERS])
    marks = list(_FENCE.finditer(text))
    if len(marks) == 2 and not text[: marks[0].start()].strip() and not text[marks[1].end() :].strip():
        text = text[marks[0].end() : marks[1].start()]
    return _LEAD.sub("", text, count=1).strip() if _LEAD.match(text) else text.strip()


def is_refusal(answer: str) -> bool:
    """Return whether an answer begins like a refusal of a model."""
    return _REFUSAL.match(answer.replace("’", "'")) is not None


def cut_to_sentences(text: str) -> str:
    """Return a text up to the end of its last whole sentence; without the last word if it has none."""
    ends = [found.end() for found in _END.finditer(text)]
    return text[: ends[-1]] if ends else text.rpartition(" ")[0] or text


def find_json(answer: str) -> Iterator[Any]:
    """Yield the outermost objects and lists of JSON in an answer, in their order; of a cut list its whole entries."""
    text, place, decoder = _THOUGHT.sub("", answer[:MAX_CHARACTERS]), 0, json.JSONDecoder()
    for _ in range(MAX_VALUES):
        starts = [found for found in (text.find("{", place), text.find("[", place)) if found >= 0]
        if not starts:
            return
        place = min(starts)
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            if text[place] == "[" and (cut := _complete(text[place:])):
                yield cut
                return
            place += 1
        else:
            yield value


def _complete(text: str) -> list[Any]:
    """Return the whole entries of a list of JSON whose end is missing; none if they are neither texts nor objects."""
    end = len(text)
    for _ in range(MAX_CUTS):
        if (end := text.rfind(",", 0, end)) < 0:
            break
        with suppress(ValueError, RecursionError):
            found = json.loads(text[:end] + "]")
            return found if all(isinstance(one, str | dict) for one in found) else []
    return []


def parse_list(answer: str, *, commas: bool = False) -> list[str]:
    """Return the entries of a list in an answer, each once, without marks around them.

    Args:
        answer: The answer: a list of JSON, bullets, numbers, or lines.
        commas: Whether a single line is a list whose entries are separated by commas or semicolons.
    """
    found = [entry for value in find_json(answer) for entry in _entries(value)]
    if not found:
        text = _FENCE.sub("", clean_answer(answer))
        lines = [] if _BROKEN.search(text) else [line for line in text.splitlines() if line.strip()]
        if any(map(_BULLET.match, lines)):
            for line in lines:
                if start := _BULLET.match(line):
                    found.append(line[start.end() :])
                elif found and line[:1].isspace():  # the entry goes on
                    found[-1] += f" {line.strip()}"
        else:
            found = [line for line in lines if not line.rstrip().endswith(":")]
        if commas and len(found) == 1:
            found = re.split(r"[,;]", found[0].rpartition(":")[2])
    return list(dict.fromkeys(filter(None, (entry.replace("**", "").strip(_MARKS) for entry in found))))


def _entries(value: Any) -> Iterator[str]:
    """Yield the texts of a list of JSON, or of the lists in an object."""
    lists = value.values() if isinstance(value, dict) else [value]
    for one in (entry for found in lists if isinstance(found, list) for entry in found):
        texts = one.values() if isinstance(one, dict) else [one]
        yield from [text for text in texts if isinstance(text, str)][:1]


def parse_pairs(
    answer: str, first: Collection[str], second: Collection[str], *, once: bool = True
) -> list[tuple[str, str]]:
    """Return the pairs of an answer, such as questions with answers, each with two texts.

    Args:
        answer: The answer: objects of JSON, or paragraphs that begin with a name and a colon.
        first: Names of the first part, in lower case, such as ``question`` and ``q``.
        second: Names of the second part.
        once: Whether equal pairs are one.
    """
    found = [pair for value in find_json(answer) for pair in _pairs(value, first, second)]
    if not found:
        names = "|".join(map(re.escape, sorted({*first, *second}, key=len, reverse=True)))
        begin = re.compile(
            rf"^[\W\d]{{0,12}}({names})\W{{0,3}}\d{{0,3}}[*_]{{0,2}}[:.)][*_]{{0,2}}[ \t]*", re.I | re.M
        )
        marks = list(begin.finditer(text := _FENCE.sub("", clean_answer(answer))))
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        question = ""
        for mark, end in zip(marks, ends, strict=False):
            part = text[mark.end() : end]
            if mark[1].lower() in first:
                question = part
            else:
                found.append((question, part))
                question = ""
    pairs = [(one.strip(_MARKS), two.strip(_MARKS)) for one, two in found]
    pairs = [pair for pair in pairs if all(pair)]
    return list(dict.fromkeys(pairs)) if once else pairs


def _pairs(value: Any, first: Collection[str], second: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs in a value of JSON, down to the third level."""
    level = [value]
    for _ in range(3):
        below = list[Any]()
        for one in level:
            if isinstance(one, list) and len(one) == 2 and all(isinstance(part, str) for part in one):
                yield one[0], one[1]
                continue
            parts = {str(key).lower(): part for key, part in one.items()} if isinstance(one, dict) else {}
            found = [next((parts[name] for name in names if name in parts), None) for names in (first, second)]
            if all(isinstance(part, str | int | float) for part in found):
                yield str(found[0]), str(found[1])
            else:
                below += [part for part in parts.values() or one if isinstance(part, list | dict)]
        level = below


def parse_label(answer: str, labels: Collection[str]) -> str | None:
    """Return the label that an answer names, the only one or the first of them; None if it names none.

    A label is named by its words, in any case; of labels that contain each other the longest counts.
    """
    rows = [value for value in find_json(answer) if isinstance(value, dict)]
    texts = [row[key] for row in rows for key in sorted(row, key=lambda key: key.lower() not in _LABEL_KEYS)]
    candidates = [text for text in (*texts, clean_answer(answer)) if isinstance(text, str)]
    names = sorted(((f" {' '.join(normalize_words(name))} ", name) for name in labels), key=lambda one: -len(one[0]))
    for text in candidates:
        words = f" {' '.join(normalize_words(text))} "
        places = [
            (words.find(folded), -len(folded), name) for folded, name in names if folded.strip() and folded in words
        ]
        if places:
            return min(places)[2]
    return next((name for name in labels for text in candidates if text.strip(_MARKS) == name), None)
