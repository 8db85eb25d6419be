"""What tests replace by its name exists; slow tests, which seldom run, would not notice that it has moved."""

from __future__ import annotations

import ast
import pkgutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_name_that_a_test_replaces_exists():
    names = {}
    for file in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("src/**/test_*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match call:
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(name)), _, *_]):
                    names[name] = f"{file.name}:{call.lineno}"
    missing = []
    for name, place in names.items():
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ImportError):
            missing.append(f"{place}: {name}")
    assert len(names) > 10 and not missing
