"""Packages import only from their own floor or below, no two import each other, and no modules import in a circle.

The floors are read from the table in ``CONTRIBUTING.md``. Imports count wherever they are: in functions, under
``TYPE_CHECKING``, and as ``importlib.import_module("acclimate...")``. A registry imports a package when it is first
read; that is the only way upwards, and :data:`REGISTRIES` lists all of them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from acclimate.base.registry import PLACES, declared_modules
from tests.cases import SOURCES

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "acclimate"
ENTRY_POINTS = {"__init__", "__main__"}
REGISTRIES = {
    "acclimate.merging.base": ["acclimate.merges"],
    "acclimate.evaluation.scoring": ["acclimate.scorings"],
    "acclimate.models.adapters": ["acclimate.adapters"],
    "acclimate.adaptation.rules": ["acclimate.rules"],
    "acclimate.adaptation.method": ["acclimate.methods"],
    "acclimate.data.mix.base": ["acclimate.mixes"],
    "acclimate.data.operations": ["acclimate.selections", "acclimate.transforms"],
    "acclimate.data.task_kinds": ["acclimate.tasks"],
    "acclimate.parts.masking.base": ["acclimate.masking"],
    "acclimate.results.display": ["acclimate.renderers"],
    "acclimate.results.study": ["acclimate.jobs"],
}
"""The groups of the registries in a module; :data:`acclimate.base.registry.PLACES` says where their entries are."""
BETWEEN_PAPERS = {("das", "dga"), ("dask", "pivots"), ("experts", "pairs")}
"""Papers that inherit from, or build on, another one."""
BETWEEN_LABS = {("advise", "inspection"), ("advise", "plan"), ("auto", "advise"), ("benchmarks", "judge")}
"""Labs that measure with another one."""
LIGHT = {"command_options"}
"""Modules of a paper that are imported at each start, so without :mod:`acclimate.api`, which imports torch."""
STANDARD = {"select", "options"}
"""Names of modules that are also in the standard library, but are found in each folder."""


def imported_names(source: str, module: str, packages: tuple[str, ...] = ("acclimate.",)) -> set[str]:
    """Return the dotted names that a module imports; ``from a import b`` counts as ``a.b``."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            names |= {str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    return {name for name in names if name.startswith(packages)}


def dynamic_imports(source: str) -> list[str]:
    """Return the argument of each registry, and of each ``import_module`` whose argument is not a constant."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    named = [(ast.unparse(call.func).split(".")[-1].partition("[")[0], call.args[0]) for call in calls]
    return [
        argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument)
        for name, argument in named
        if name == "Registry" or (name in ("import_module", "__import__") and not isinstance(argument, ast.Constant))
    ]


@cache
def modules() -> dict[str, set[str]]:
    """Return the names that each module imports; an ``__init__`` is the package itself."""
    found = {}
    for file in SOURCES:
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = imported_names(
            file.read_text(encoding="utf-8"), ".".join(parts)
        )
    return found


def packages() -> dict[str, set[str]]:
    """Return, for each package or top-level module, the packages and top-level modules that it imports."""
    found: dict[str, set[str]] = {}
    for module, names in modules().items():
        if module != "acclimate" and (package := module.split(".")[1]) not in ENTRY_POINTS:
            found.setdefault(package, set()).update({name.split(".")[1] for name in names} - {package})
    return found


def floors() -> dict[str, int]:
    """Read the floor of each package from CONTRIBUTING.md."""
    rows = re.findall(r"^\| (\d+) \| (.+?) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M)
    return {name: int(floor) for floor, names in rows for name in re.findall(r"`(\w+)`", names)}


def module_graph(others: Mapping[str, set[str]] | None = None) -> dict[str, set[str]]:
    """Return the imports of each module; an import through a package counts for the module that defines the name.

    Args:
        others: The names that modules outside of the package import.
    """
    imports = {**modules(), **(others or {})}
    exported = {}  # name of a package -> where its __init__ imports it from
    for package, names in imports.items():
        if package == "acclimate.api" or (PACKAGE.parent / package.replace(".", "/") / "__init__.py").is_file():
            exported |= {f"{package}.{name.rpartition('.')[2]}": name for name in names}

    def find(name: str) -> str:
        while name in exported and name not in imports:
            name = exported[name]
        while name not in imports:
            name = name.rpartition(".")[0]
        return name

    inits = {name for name in imports if (PACKAGE.parent / name.replace(".", "/")).is_dir()} | {"acclimate.api"}
    return {
        module: {found for name in names if (found := find(name)) not in inits} - {module}
        for module, names in imports.items()
        if module not in inits
    }


def test_every_way_to_import_is_seen():
    source = """
from typing import TYPE_CHECKING
import acclimate.a
if TYPE_CHECKING:
    from acclimate.b import thing
def later():
    from acclimate.c.deep import thing
    from .. import errors
    import importlib
    importlib.import_module("acclimate.d")
"""
    assert imported_names(source, "acclimate.tasks.qa.data") == {
        "acclimate.a", "acclimate.b.thing", "acclimate.c.deep.thing", "acclimate.tasks.errors", "acclimate.d",
    }  # fmt: skip


def test_registries_are_the_only_dynamic_imports():
    assert dynamic_imports('Registry("a", "b")\nx.Registry[int](name)\nimport_module(f"{a}")\nimport_module("a")') == [
        "a", "name", "f'{a}'",
    ]  # fmt: skip
    found = {}
    for file in SOURCES:
        if names := dynamic_imports(file.read_text(encoding="utf-8")):
            found[".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)] = names
    assert found.pop("acclimate.adaptation.adapt") == ["f'acclimate.adaptation.{module}'"]  # features that are on
    assert found.pop("acclimate.base.registry") == ["module"]
    assert found.pop("acclimate.base.verbs") == ["module or own"]  # the functions of a verb
    assert found == REGISTRIES
    assert {group for groups in REGISTRIES.values() for group in groups} == set(PLACES) - {"acclimate.verbs"}
    assert all(declared_modules(group) for group in PLACES)


def test_packages_import_from_their_own_floor_or_below():
    floor, imports = floors(), packages()
    assert set(floor) == {package for package in imports if (PACKAGE / package).is_dir()} | {"api"}
    upwards = [
        f"{package} ({floor.get(package, 0)}) imports {used} ({floor.get(used, 0)})"
        for package, all_used in imports.items()
        for used in all_used
        if floor.get(used, 0) > floor.get(package, 0)
    ]
    assert not upwards


def test_the_core_knows_neither_papers_nor_labs_and_these_know_each_other_only_where_listed():
    between: dict[str, set[tuple[str, str]]] = {"papers": set(), "labs": set()}
    wrong = []
    for module, names in modules().items():
        ring, *folder = module.split(".")[1:3] if module.count(".") else ("", "")
        for name in names:
            _, used, *rest = name.split(".")
            if used not in between or not rest:
                continue
            if ring not in between or ring != used:
                wrong += [f"{module} imports {name}"]
            elif folder[0] != rest[0]:
                between[ring].add((folder[0], rest[0]))
    assert not wrong
    assert between["papers"] <= BETWEEN_PAPERS and between["labs"] == BETWEEN_LABS


def test_papers_import_the_public_surface_and_to_inherit_other_papers():
    outside = {
        f"{module} imports {name}"
        for module, names in modules().items()
        for name in names
        if module.startswith("acclimate.papers.")
        and module.rpartition(".")[2] not in LIGHT
        and not name.startswith(("acclimate.api.", "acclimate.papers."))
    }
    assert not outside
    others = {module for module in modules() if not module.startswith("acclimate.papers.")}
    assert not [module for module in others if any(name.startswith("acclimate.api") for name in modules()[module])]


def test_names_of_modules_have_an_address():
    files = [file.stem for file in SOURCES if not file.stem.startswith("__")]
    fixed = {"options", "data", "model", "method", "objective", "select", "transform", "mix", "base", "jobs"}
    assert [name for name in set(files) - fixed if files.count(name) > 3] == []
    assert set(files) & sys.stdlib_module_names <= STANDARD


def test_only_models_know_of_kernels_through_six_names_at_most():
    from acclimate import kernels

    imports = {
        module: {name for name in names if "kernel" in name.lower()}
        for module, names in modules().items()
        if not module.startswith("acclimate.kernels")
    }
    assert imports.pop("acclimate.study.summary") == {"acclimate.base.device.KERNELS_VARIABLE"}  # recorded in results
    users = {module for module, names in imports.items() if names}
    assert all(module.startswith("acclimate.models") for module in users)
    assert len(kernels.__all__) <= 6
    used = {name for module in users for name in imports[module] if name.startswith("acclimate.kernels")}
    assert used <= {f"acclimate.kernels.{name}" for name in kernels.__all__}


def test_no_packages_import_each_other():
    check(packages())


def test_no_modules_import_in_a_circle():
    check(module_graph())


def check(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("Import circle: " + " -> ".join(error.args[1]))
