"""Regular expressions take time that is proportional to the text, for text from the web that is made to slow them."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import regex

from acclimate.base.registry import ROOT
from tests.cases import SOURCES

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
    """Yield the place, the pattern and the method of all patterns of the package, compiled in a module or a call."""
    for file in SOURCES:
        source = file.read_text(encoding="utf-8")
        place = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        if re.search(r"\bre(gex)?\.compile\(", source):
            for name, value in vars(importlib.import_module(place)).items():
                used = {"fullmatch"} if name in WHOLE else set(re.findall(rf"\b{name}\.(\w+)\(", source))
                method = used.pop() if used in ({"match"}, {"fullmatch"}) else "finditer"
                yield from ((f"{place}.{name}", one, method) for one in compiled(value))
        calls = ast.walk(ast.parse(source)) if re.search(r"\bre(gex)?\.(?!compile|escape)[a-z]+\(", source) else ()
        for call in (node for node in calls if isinstance(node, ast.Call) and node.args):
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in ("re", "regex"):
                library = regex if ast.unparse(call.func.value) == "regex" else re
                if isinstance(call.args[0], ast.Constant) and call.func.attr not in ("compile", "escape"):
                    method = call.func.attr if call.func.attr in ("match", "fullmatch") else "finditer"
                    yield f"{place}:{call.lineno}", library.compile(call.args[0].value), method


def compiled(value: Any) -> Iterator[Any]:
    """Yield the patterns in a value, also in collections."""
    if isinstance(value, re.Pattern | regex.Pattern):
        yield value
    elif type(value) in (dict, list, tuple, set, frozenset):
        for one in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from compiled(one)


def triggers(pattern: str) -> Iterator[str]:
    """Yield texts that repeat what a pattern contains: its runs of literals, their starts, and pairs with a letter."""
    runs = re.findall(
        r"[A-Za-z@<>&#;:/!%.,'\"=|()\[\]-]{1,8}", re.sub(r"\\(?:[pPxuU]\{?\w+\}?|\w)|\(\?\S{1,2}", "", pattern)
    )
    units = {part for run in runs for part in (run, run[:1], run[:2], run[:-1])} - {""}
    for unit in [*ANY, *sorted(units)[:60]]:
        for repeated in {unit, f"a{unit}", f"{unit} "}:
            yield repeated * (SIZE // len(repeated))


def seconds(pattern: Any, method: str, text: str) -> float:
    start = time.process_time()
    found = getattr(pattern, method)(text)
    if method == "finditer":
        for _ in found:
            pass
    return time.process_time() - start


@pytest.mark.slow
def test_every_pattern_takes_time_in_proportion_to_its_trigger():
    slow, places = set(), set()
    for name, pattern, method in patterns():
        places.add(name.split(".")[1])
        if isinstance(pattern.pattern, bytes):
            continue
        for text in triggers(pattern.pattern):
            if all(seconds(pattern, method, text) > LIMIT for _ in range(3)):
                slow.add((name, text[:20]))
                break
    assert places > {"data", "evaluation", "labs", "models", "papers", "parts", "tasks"} and not slow
