"""Count the lines of the functions that a plain adaptation executes: what a reader of one run has to read.

    python scripts/executed_lines.py            # the total
    python scripts/executed_lines.py --files    # and each file, with its functions

The run is ``adapt --method lm`` for two steps, with a tiny model. A function counts with all of its lines, docstring
included, if any of it ran; class bodies, comprehensions, and the top level of modules do not count.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = str(ROOT / "src" / "acclimate")
OPTIMIZED = 0x2
"""Flag of the code of a function: its local names are fixed, as those of a class body or a module are not."""


def executed(run: Callable[[], object]) -> dict[str, dict[str, int]]:
    """Return the lines of each function of the package that ran, by file and by name."""
    ran: set[tuple[str, int]] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and code.co_flags & OPTIMIZED:
            ran.add((code.co_filename, code.co_firstlineno))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    starts = defaultdict(set)
    for file, line in ran:
        starts[file].add(line)
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for file, lines in starts.items():
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if lines & {first, node.lineno}:
                    name = str(Path(file).relative_to(SOURCE))
                    found[name][f"{node.name}:{first}"] = (node.end_lineno or first) - first + 1
    return dict(found)


def adapt_plainly(folder: Path) -> dict[str, dict[str, int]]:
    """Return what ``adapt --method lm`` executes with a tiny model and text files in a folder."""
    import acclimate
    from tests.tiny import TEXTS, save_tiny

    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(f"{text} {number}" for number in range(4) for text in TEXTS))
    model = save_tiny("bert", folder / "model")
    given = {"steps": 2, "batch_size": 8, "max_length": 32, "progress": False}
    return executed(lambda: acclimate.adapt(model, corpus, "lm", folder / "out", **given))


def main() -> None:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="also print each file and its functions")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCLIMATE_CACHE"] = f"{folder}/cache"  # an empty one: nothing is read from earlier runs
        found = adapt_plainly(Path(folder))
    totals = {file: sum(lines.values()) for file, lines in found.items()}
    for file in sorted(totals, key=lambda name: -totals[name]) if asked.files else ():
        ranked = sorted(found[file].items(), key=lambda item: -item[1])
        functions = ", ".join(f"{name.partition(':')[0]} {count}" for name, count in ranked)
        sys.stdout.write(f"{totals[file]} {file}: {functions}\n")
    count = sum(map(len, found.values()))
    sys.stdout.write(f"adapt: {sum(totals.values()):,} lines of {count} functions in {len(totals)} files\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
