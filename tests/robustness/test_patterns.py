"""Regular expressions take time that is proportional to the text, for text from the web that is made to slow them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Iterator
from typing import Any

import regex

import acclimate.data
import acclimate.parts.masking
import acclimate.tasks

SIZE, LIMIT = 2**13, 4 / 128
"""Characters of a trigger, and CPU seconds that a pattern may take for it.

That is four seconds for a megabyte if the time grows with the text, as the slowest takes one and a busy processor is
slower; a quadratic pattern takes minutes.
"""
ANY = [
    "a",
    "aB",
    "1",
    " ",
    "\n",
    "\t",
    ".",
    "-",
    "_",
    "é",
    "\u0301",
    "中",
    "a ",
    "a.",
    ". ",
    "a\n",
    "\n ",
    "1,",
    "(",
    "|",
]

WHOLE = {"_BETWEEN", "_WITHIN", "ID_PATTERNS", "OTHER_TAGS"}
"""Collections whose patterns have to fit a whole text; those of others are searched for in it."""


def patterns() -> Iterator[tuple[str, Any, str]]:
    """Yield the name, the pattern and the source of its module, of all compiled patterns of modules."""
    for package in (acclimate.data, acclimate.parts.masking, acclimate.tasks):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            source = inspect.getsource(module)
            for name, value in vars(module).items():
                values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
                for one in values:
                    if isinstance(one, re.Pattern | regex.Pattern):
                        yield f"{found.name}.{name}", one, source


def triggers(pattern: str) -> Iterator[str]:
    """Yield texts that repeat what a pattern contains: its runs of literals, their starts, and pairs with a letter."""
    runs = re.findall(
        r"[A-Za-z@<>&#;:/!%.,'\"=|()\[\]-]{1,8}", re.sub(r"\\(?:[pPxuU]\{?\w+\}?|\w)|\(\?\S{1,2}", "", pattern)
    )
    units = {part for run in runs for part in (run, run[:1], run[:2], run[:-1])} - {""}
    for unit in [*ANY, *sorted(units)[:60]]:
        for repeated in {unit, f"a{unit}", f"{unit} "}:
            yield repeated * (SIZE // len(repeated))


def seconds(pattern: Any, source: str, name: str, text: str) -> float:
    used = {"fullmatch"} if name in WHOLE else set(re.findall(rf"\b{name}\.(\w+)\(", source))
    method = used.pop() if used in ({"match"}, {"fullmatch"}) else "finditer"
    start = time.process_time()
    found = getattr(pattern, method)(text)
    if method == "finditer":
        for _ in found:
            pass
    return time.process_time() - start


def test_every_pattern_takes_time_in_proportion_to_its_trigger():
    slow, count = set(), 0
    for name, pattern, source in patterns():
        if isinstance(pattern.pattern, bytes):
            continue
        count += 1
        for text in triggers(pattern.pattern):
            if all(seconds(pattern, source, name.rpartition(".")[2], text) > LIMIT for _ in range(3)):
                slow.add((name, text[:20]))
                break
    assert count > 20 and not slow
