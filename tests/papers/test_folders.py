"""A folder of a paper is complete, and may be absent."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import render_papers

from acclimate import api

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [folder.name for folder in render_papers.folders()]
QUICK = ("dga", "selective", "doge")
PARTS = (
    *("src", "tests", "scripts", "docs", "examples", "benchmarks"),
    *("pyproject.toml", "conftest.py", "Makefile", "mkdocs.yml", "README.md"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", ".github"),
)
CODE = """
from pathlib import Path
import acclimate
from acclimate.cli import main
from scripts import render_papers
from tests.docs.test_links import broken_links
from typer.testing import CliRunner
assert Path(acclimate.__file__).is_relative_to(Path.cwd())
for file, text in render_papers.render(render_papers.read_verdicts()).items():
    assert not file.name.endswith(".json") or file.read_text(encoding="utf-8") == text
    assert not [name for name in GONE if f"/papers/{name}/" in text], file
    file.write_text(text, encoding="utf-8")
assert broken_links(Path.cwd()) == []
assert CliRunner().invoke(main.app, ["methods"]).exit_code == CliRunner().invoke(main.app, ["--help"]).exit_code == 0
"""


def test_every_folder_has_its_parts():
    for folder in render_papers.folders():
        assert list(render_papers.entries(folder)), folder.name
        assert {"README.md", "verdict.json"} <= {file.name for file in folder.iterdir()}, folder.name
        for title in ("When", "Instead", "Cost"):
            assert render_papers.fact(folder, title), f"{folder.name}: {title}"


def test_every_paper_of_the_listing_runs():
    assert "not yet" not in (ROOT / "docs" / "listing.md").read_text(encoding="utf-8")


def test_papers_or_pages_use_each_name_of_the_public_surface():
    files = [*(ROOT / "src" / "acclimate" / "papers").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    assert not set(api.__all__) - words


@pytest.mark.parametrize("compute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_verdicts_and_tables_are_those_of_the_results(compute):
    pages = render_papers.render(None if compute else render_papers.read_verdicts())
    stale = [str(file) for file, text in pages.items() if file.read_text(encoding="utf-8") != text]
    assert not stale, "run `make docs`"


def test_a_verdict_counts_what_is_shown_after_correction():
    shown = {"task": "topic", "low": 0.01, "high": 0.03, "verdict": "helped"}
    lost = {**shown, "verdict": "no difference shown"}
    hurt = {**shown, "low": -0.03, "high": -0.01, "verdict": "hurt"}
    assert render_papers.summarize([shown, lost, hurt]) == "better on 1, worse on 1 of 3 tasks"
    assert render_papers.summarize([lost]) == "better on 0, worse on 0 of 1 task"


def find_tests(folders):
    """Return the files of the tests that name something in a folder, and of those that read all of them."""
    parts = {folder.name for folder in folders}
    parts |= {name for folder in folders for _, name, _ in render_papers.entries(folder)}
    found = {"tests/test_floors.py", "tests/test_site.py", "tests/test_results_pages.py", "tests/docs/test_listing.py"}
    for file in {*ROOT.glob("tests/**/test_*.py"), *render_papers.PAPERS.glob("*/test_*.py")} - {Path(__file__)}:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        if file.parent not in folders and parts & {text.partition(" ")[0] for text in texts}:
            found.add(str(file.relative_to(ROOT)))
    return sorted(found)


@pytest.mark.parametrize(
    "names", [QUICK, *(pytest.param((name,), id=name, marks=pytest.mark.slow) for name in FOLDERS)]
)
def test_without_a_folder_the_rest_works(names, tmp_path):
    """Registries, pages and commands; the slow tests also collect the whole suite, and run what names the folder."""
    for part in PARTS:
        (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, tmp_path / part)
    papers = tmp_path / "src" / "acclimate" / "papers"
    files = {file: file.read_text(encoding="utf-8") for file in papers.glob("*/*.py")}
    users = {file.parent.name for file, text in files.items() if any(f"papers.{name}." in text for name in names)}
    gone = {*names, *users}  # papers that inherit from one go with it
    for folder in gone:
        shutil.rmtree(papers / folder)

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path}", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]

    run("-c", f"GONE = {gone}\n{CODE}")
    if names != QUICK:
        pytest_of = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short")
        run(*pytest_of, "--collect-only", "-m", "slow or not slow")
        run(*pytest_of, *find_tests({render_papers.PAPERS / name for name in gone}))
