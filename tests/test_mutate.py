"""Faults that are planted change what a module does, one place at a time, and only there."""

from __future__ import annotations

import ast

from scripts.mutate import choose, faults, find_tests, write

from tests.cases import each

SOURCE = '''
"""Doc of 3 things."""
LIMIT = 5

def f(x: int, y: int = 2) -> bool:
    """Return whether 1 < 2."""
    if x < y and not y:
        raise ValueError(f"{x + 1}")
    return max(x, -y) == LIMIT
'''


def test_every_fault_is_one_change_of_what_runs():
    plain = ast.unparse(ast.parse(SOURCE))
    found = []
    for number in range(len(list(faults(ast.parse(SOURCE))))):
        tree = ast.parse(SOURCE)
        list(faults(tree))[number].plant()
        changed = [line.strip() for line in write(tree).splitlines() if line not in plain.splitlines()]
        assert len(changed) == 1
        found += changed
    assert found == [
        "LIMIT = 10",
        "def f(x: int, y: int=4) -> bool:",
        "if x < y or not y:",
        "if x <= y and (not y):",
        "if x < y and (not not y):",
        "return max(x, -y) != LIMIT",
        "return min(x, -y) == LIMIT",
        "return max(x, +y) == LIMIT",
    ]


@each("package", ["evaluation", "base/ranking"])
def test_the_same_seed_plants_the_same_faults(package):
    assert choose([package], 5, 3) == choose([package], 5, 3) != choose([package], 5, 4)


def test_the_tests_of_a_module_have_its_name_or_import_it():
    from tests.test_floors import PACKAGE

    files = {
        name: PACKAGE.parents[1] / f"{name.replace('.', '/')}.py" for name in ("tests.test_ranking", "tests.cases")
    }
    graph = {"tests.test_ranking": {"acclimate.base.ranking"}, "tests.cases": set(), "acclimate.base.ranking": set()}
    assert find_tests(PACKAGE / "base" / "ranking.py", graph, files, everything=False) == ["tests/test_ranking.py"]
