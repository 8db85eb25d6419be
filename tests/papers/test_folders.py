"""A folder of a paper is complete, and may be absent."""

from __future__ import annotations

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
QUICK = ("dga", "doge", "refine")
CODE = """
from pathlib import Path
import acclimate
from acclimate.cli import main
from scripts import render_papers
from typer.testing import CliRunner
assert Path(acclimate.__file__).is_relative_to(Path.cwd())
for file, text in render_papers.render(render_papers.read_verdicts()).items():
    assert not file.name.endswith(".json") or file.read_text(encoding="utf-8") == text
    assert not [name for name in GONE if f"/papers/{name}/" in text], file
assert CliRunner().invoke(main.app, ["methods"]).exit_code == 0
"""


def test_every_folder_has_its_parts():
    for folder in render_papers.folders():
        assert list(render_papers.entries(folder)), folder.name
        assert {"README.md", "verdict.json"} <= {file.name for file in folder.iterdir()}, folder.name
        for title in ("When", "Instead", "Cost"):
            assert render_papers.fact(folder, title), f"{folder.name}: {title}"


def test_papers_or_pages_use_each_name_of_the_public_surface():
    files = [*(ROOT / "src" / "acclimate" / "papers").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    assert not set(api.__all__) - words


@pytest.mark.parametrize("compute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_verdicts_and_tables_are_those_of_the_results(compute):
    pages = render_papers.render(None if compute else render_papers.read_verdicts())
    stale = [str(file) for file, text in pages.items() if file.read_text(encoding="utf-8") != text]
    assert not stale, "run `make docs`"


@pytest.mark.parametrize(
    "names", [QUICK, *(pytest.param((name,), id=name, marks=pytest.mark.slow) for name in FOLDERS)]
)
def test_without_a_folder_the_rest_works(names, tmp_path):
    """Registries, tables and commands; the slow tests also collect the whole suite and check the wall."""
    for part in ("src", "tests", "scripts"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for part in ("pyproject.toml", "conftest.py", "CONTRIBUTING.md", "docs", "examples", "benchmarks", "README.md"):
        (tmp_path / part).symlink_to(ROOT / part)
    papers = tmp_path / "src" / "acclimate" / "papers"
    files = {file: file.read_text(encoding="utf-8") for file in papers.glob("*/*.py")}
    users = {file.parent.name for file, text in files.items() if any(f"papers.{name}." in text for name in names)}
    for folder in {*names, *users}:  # papers that inherit from one go with it
        shutil.rmtree(papers / folder)

    def run(*arguments):
        environment = {"PYTHONPATH": f"{tmp_path / 'src'}:{tmp_path}", "PATH": "", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    run("-c", f"GONE = {names}\n{CODE}")
    if names != QUICK:
        run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_floors.py")
        run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "-m", "slow or not slow")
