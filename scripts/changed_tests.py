"""Print the test files that a change reaches, one per line.

    python scripts/changed_tests.py           # since the branch left origin/main or main, with what is not committed
    python scripts/changed_tests.py HEAD~3    # since another commit

A change reaches a test that imports a changed module, imports a module of the package that imports one, has its name
and folder, or is in the folder of the same paper; and the tests that import a helper of which the same is true. The
whole suite is the check before a merge.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from acclimate.base.registry import declared_modules  # noqa: E402
from tests.test_floors import REGISTRIES, imported_names, module_graph  # noqa: E402

EVERYTHING = {"pyproject.toml", "constraints.txt", "conftest.py", "tests/fixtures.py"}
"""Files on which every test depends."""


def git(*arguments: str) -> list[str]:
    """Return the lines that a command of git prints; none if it fails."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def changed_files(since: str | None) -> set[str]:
    """Return the paths that differ from a commit, and those that git does not track yet."""
    starts = [git("merge-base", start, "HEAD") for start in ([since] if since else ["origin/main", "main", "HEAD"])]
    start = next((found[0] for found in starts if found), None)
    if start is None:
        sys.exit(f"There is no commit '{since}'.")
    return {*git("diff", "--name-only", start), *git("ls-files", "--others", "--exclude-standard")}


def module_name(path: str) -> str:
    """Return the dotted name of a file of the repository."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_test(module: str) -> bool:
    """Return whether a module is a test or a helper of tests; tests of a paper are in its folder."""
    return module.startswith("tests.") or module.rpartition(".")[2].startswith("test_")


def find_tests() -> dict[str, Path]:
    """Return the tests and their helpers, by name of the module."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src").rglob("test_*.py")]
    return {module_name(str(file.relative_to(ROOT))): file for file in files}


def import_graph(tests: dict[str, Path]) -> dict[str, set[str]]:
    """Return what each module of the package and of ``tests`` imports; a registry imports its entries."""
    sources = {name: file.read_text(encoding="utf-8") for name, file in tests.items()}
    graph = module_graph(
        {name: imported_names(source, name, ("acclimate.", "tests.")) for name, source in sources.items()}
    )
    for registry, groups in REGISTRIES.items():
        graph[registry] |= {name for group in groups for name in declared_modules(group)} & set(graph)
    return graph


def reached(changed: set[str], graph: dict[str, set[str]]) -> set[str]:
    """Return the modules of ``tests`` that a change of some modules reaches."""
    places = [module.removeprefix("acclimate.").rpartition(".") for module in changed]
    mirrored = {f"tests.{folder}.test_{name}".replace("..", ".") for folder, _, name in places}
    found = changed | mirrored
    papers = {module.rpartition(".")[0] for module in changed if module.startswith("acclimate.papers.")}
    found |= {module for module, names in graph.items() if is_test(module) and module.rpartition(".")[0] in papers}
    found |= {module for module, names in graph.items() if not is_test(module) and names & changed}
    while more := {name for name, names in graph.items() if is_test(name) and names & found} - found:
        found |= more
    return {name for name in found if name in graph and is_test(name)}


def main(since: str | None = None) -> None:
    """Print the files of the tests that the changes since a commit reach."""
    tests = find_tests()
    changed = changed_files(since)
    modules = {module_name(path) for path in changed if path.endswith(".py")}
    for name in sorted(tests if changed & EVERYTHING else reached(modules, import_graph(tests))):
        if tests[name].name.startswith("test_"):
            sys.stdout.write(f"{tests[name].relative_to(ROOT)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
