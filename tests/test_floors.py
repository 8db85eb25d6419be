"""A room imports only from rooms on its own floor or below, and no two rooms import each other."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "acclimate"
ENTRANCE = {"__init__", "__main__"}


def imports(file):
    """Return the rooms, or modules beside them, that a file imports from anywhere in its code."""
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("acclimate.")}


def rooms():
    """Return which room imports which, rooms and single modules of the package alike."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found.setdefault(room, set()).update(imports(file) - {room})
    return {room: used for room, used in found.items() if room not in ENTRANCE}


def floors():
    """Return the floor of each room as CONTRIBUTING.md has them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("or below:")[2]
    text = text.partition("\n5.")[0]
    return {
        name: int(floor)
        for names, floor in re.findall(r"((?:`\w+`,?\s*)+)\((\d)\)", text)
        for name in re.findall(r"`(\w+)`", names)
    }


def test_a_room_imports_from_its_own_floor_or_below():
    floor = floors()
    assert set(floor) == {room for room in rooms() if (PACKAGE / room).is_dir()}
    upwards = [
        f"{room} ({floor.get(room, 0)}) imports {used} ({floor.get(used, 0)})"
        for room, all_used in rooms().items()
        for used in all_used
        if floor.get(used, 0) > floor.get(room, 0)
    ]
    assert not upwards


def test_no_rooms_import_each_other():
    assert list(TopologicalSorter(rooms()).static_order())  # a circle is an error that names it


def test_only_models_and_the_engine_use_kernels_and_only_by_the_front_door():
    from acclimate import kernels

    inside = r"acclimate\.kernels"
    users = {
        file.relative_to(PACKAGE).parts[0]: re.findall(rf"{inside}[\w.]*", file.read_text(encoding="utf-8"))
        for file in PACKAGE.rglob("*.py")
        if re.search(rf"(?:from|import) {inside}\b", file.read_text(encoding="utf-8"))
        and file.relative_to(PACKAGE).parts[0] != "kernels"
    }
    assert users.keys() <= {"models", "training"}
    assert {name for names in users.values() for name in names} == {"acclimate.kernels"}
    assert len(kernels.__all__) <= 6
