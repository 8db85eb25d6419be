"""Attributes of registered classes, read from their source: a list of all methods needs no import of torch."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

from acclimate.base.registry import ROOT, declared_modules


def read_entries(group: str) -> dict[str, dict[str, Any]]:
    """Return the attributes of all entries of a group that are literals, own and inherited, by name of the entry.

    The arguments by name of ``@register("NAME", ...)`` are attributes, too; ``file`` is the file of the class.

    Args:
        group: Key of :data:`acclimate.base.registry.PLACES`.
    """
    found = {}
    for module in declared_modules(group):
        for node in _parse(module).values():
            marks = [mark for mark in getattr(node, "decorator_list", ()) if isinstance(mark, ast.Call)]
            for mark in marks:
                if ast.unparse(mark.func).rpartition(".")[2].startswith("register") and isinstance(node, ast.ClassDef):
                    name = ast.literal_eval(mark.args[0])
                    own = {str(one.arg): ast.literal_eval(one.value) for one in mark.keywords}
                    usual = {"file": _file(module), "paper": "", "summary": ""}
                    found[name] = _attributes(module, node.name) | usual | own | {"name": name}
    return found


def read_fields(group: str, name: str) -> set[str]:
    """Return the names of the parameters of an entry from its source, own and inherited; none if there is no entry."""
    for module in declared_modules(group):
        for node in (one for one in _parse(module).values() if isinstance(one, ast.ClassDef)):
            marks = [mark.args[0] for mark in node.decorator_list if isinstance(mark, ast.Call) and mark.args]
            if repr(name) in map(ast.unparse, marks):
                return _fields(module, node.name)
    return set()


def _fields(module: str, name: str) -> set[str]:
    node = _parse(module).get(name) if module.startswith("acclimate") else None
    if isinstance(node, ast.ImportFrom):
        return _fields(str(node.module), next(one.name for one in node.names if (one.asname or one.name) == name))
    if not isinstance(node, ast.ClassDef):
        return set()
    found = set[str]().union(*(_fields(module, ast.unparse(base)) for base in node.bases))
    lines = [line for line in node.body if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line)]
    return found | {ast.unparse(line.target) for line in lines}


def _attributes(module: str, name: str) -> dict[str, Any]:
    """Return the attributes of a class or of an imported one that are literals; none of a class of another package."""
    if not module.startswith("acclimate"):
        return {}
    node = _parse(module).get(name)
    if isinstance(node, ast.ImportFrom):
        original = next(one.name for one in node.names if (one.asname or one.name) == name)
        return _attributes(str(node.module), original)
    found: dict[str, Any] = {}
    if not isinstance(node, ast.ClassDef):
        return found
    for base in reversed(node.bases):
        found |= _attributes(module, ast.unparse(base))
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(line.value, ast.expr):
            try:
                found[line.target.id] = ast.literal_eval(line.value)
            except ValueError:  # it is computed
                found.pop(line.target.id, None)
    return found


@functools.cache
def _parse(module: str) -> dict[str, ast.AST]:
    """Return the classes of a module by name, and the imports of names by these names."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(_file(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
    return found


def _file(module: str) -> Path:
    place = ROOT.joinpath(*module.split(".")[1:])
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
