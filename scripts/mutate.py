"""Plant random small faults in packages, one at a time, and print those that no test notices.

    python scripts/mutate.py --count 200 --seed 0 evaluation data/mix merging labs/plan labs/auto

Each fault changes one operator, comparison, constant or call of a copy of the checkout; then the quick tests run that
have the name of the module or import it (with ``--reach``, all that the change reaches). A fault that survives is no
proof of a missing test: some change nothing that anybody can see.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.changed_tests import import_graph, module_name, reached  # noqa: E402

COMPARED: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
COMPUTED: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "mean": "sum", "sum": "mean", "floor": "ceil"}
SKIPPED = (ast.Import, ast.ImportFrom, ast.Raise, ast.JoinedStr, ast.AnnAssign, ast.Assert)
"""Statements and expressions without faults: imports, messages, declarations."""


class Fault(NamedTuple):
    """A change of one node: the line, what it was and is, and the function that makes it."""

    line: int
    text: str
    plant: Callable[[], None]


def faults(tree: ast.AST) -> Iterator[Fault]:
    """Yield the faults that can be planted in a module; each changes the tree when it is planted."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, SKIPPED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        yield from _of_node(node)
        yield from faults(node)


def _of_node(node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
        yield _change(node, lambda: node.ops.__setitem__(0, COMPARED[type(node.ops[0])]()))
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in COMPUTED:
        yield _change(node, lambda: setattr(node, "op", COMPUTED[type(node.op)]()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield _change(node, lambda: setattr(node, "op", ast.UAdd() if isinstance(node.op, ast.USub) else _Nothing()))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield _change(node, lambda: setattr(node, "value", node.value + 1 if node.value < 2 else node.value * 2))
    elif isinstance(node, ast.Call):
        name = node.func
        if isinstance(name, ast.Name) and name.id in CALLED:
            yield _change(node, lambda: setattr(name, "id", CALLED[name.id]))
        if isinstance(name, ast.Attribute) and name.attr in CALLED:
            yield _change(node, lambda: setattr(name, "attr", CALLED[name.attr]))


class _Nothing(ast.Not):
    """Two negations: the value as a truth value, which is written as ``not not``."""


def _change(node: ast.expr | ast.stmt, plant: Callable[[], None]) -> Fault:
    return Fault(node.lineno, ast.unparse(node).split("\n")[0], plant)


def write(tree: ast.AST) -> str:
    """Return the source of a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, _Nothing):
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    return ast.unparse(ast.fix_missing_locations(tree))


def choose(packages: list[str], count: int, seed: int) -> list[tuple[Path, int]]:
    """Return files and the numbers of the faults to plant in them, each place of the packages equally likely."""
    places = []
    for package in packages:
        path = ROOT / "src" / "acclimate" / package
        for file in sorted(path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]):
            if not file.name.startswith("test_"):
                found = list(faults(ast.parse(file.read_text(encoding="utf-8"))))
                places += [(file, number) for number in range(len(found))]
    return random.Random(seed).sample(places, min(count, len(places)))


def find_tests(file: Path, graph: dict[str, set[str]], files: dict[str, Path], everything: bool) -> list[str]:
    """Return the test files for a module: of its name, or that import it; or all that it reaches."""
    module = module_name(str(file.relative_to(ROOT)))
    names = reached({module}, graph)
    if not everything:
        names = {name for name in names if module in graph[name] or name.endswith(f".test_{file.stem}")} or names
    return sorted(str(files[name].relative_to(ROOT)) for name in names if files[name].name.startswith("test_"))


def survives(copy: Path, tests: list[str], seconds: float) -> bool | None:
    """Return whether all tests pass; None if there are none."""
    if not tests:
        return None
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    try:
        return subprocess.run(words, cwd=copy, env=environment, capture_output=True, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    """Plant the faults and print a line for each that survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("packages", nargs="+", help="folders or modules below src/acclimate")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=360.0)
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of the tests of one fault")
    parser.add_argument("--reach", action="store_true", help="run every test that the change reaches")
    given = parser.parse_args()
    files = {module_name(str(file.relative_to(ROOT))): file for file in (ROOT / "tests").rglob("*.py")}
    graph = import_graph(files)
    end, counts = time.time() + 60 * given.minutes, {True: 0, False: 0, None: 0}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "site", "runs", "__pycache__"))
        for file, number in choose(given.packages, given.count, given.seed):
            if time.time() > end:
                break
            source = file.read_text(encoding="utf-8")
            tree = ast.parse(source)
            fault = list(faults(tree))[number]
            fault.plant()
            target = copy / file.relative_to(ROOT)
            target.write_text(write(tree), encoding="utf-8")
            state = survives(copy, find_tests(file, graph, files, given.reach), given.seconds)
            target.write_text(source, encoding="utf-8")
            counts[state] += 1
            if state is not False:
                kind = "no test reaches it" if state is None else "survives"
                sys.stdout.write(f"{file.relative_to(ROOT)}:{fault.line}: {kind}: {fault.text}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{counts[False]} noticed, {counts[True]} survive, {counts[None]} without tests\n")


if __name__ == "__main__":
    main()
