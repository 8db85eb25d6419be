"""Every test that ``docs/dev/robustness.md`` names exists, and every promise names a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "dev" / "robustness.md"
NAMED = re.compile(r"`((?:tests|src/acclimate/papers)/[\w/]+\.py)::(\w+)`")


def test_every_test_that_is_named_exists():
    named = NAMED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 40
    there: dict[str, set[str]] = {}
    for file, name in named:
        if file.startswith("src/") and not (ROOT / file).parent.is_dir():
            continue  # the folder of a paper may be missing
        if file not in there:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            there[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in there[file], f"{file}::{name}"


def test_every_row_of_the_tables_names_a_test():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith("| Promise")]
    assert len(promises) > 30
    assert [row for row in promises if not NAMED.search(row.split("|")[2])] == []


def test_every_test_of_this_folder_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    for file in sorted(set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)}):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert f"`tests/robustness/{file.name}::{node.name}`" in page, node.name
