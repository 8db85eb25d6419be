"""Every block of the README and of the guides runs as printed, on tiny models and texts and for two steps."""

from __future__ import annotations

import shlex
import types
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from acclimate.adaptation import inputs, kept_steps, method, mixture
from acclimate.adaptation.kept_steps import check_keep_steps
from acclimate.adaptation.method import REGISTRY as METHODS
from acclimate.cli.main import app
from acclimate.data.mix.base import MIXES
from acclimate.data.operations import SELECTIONS, TRANSFORMS
from acclimate.parts.masking import base as masking
from acclimate.study import pricing
from acclimate.tasks.kinds.retrieval.model import RetrievalLearner
from tests.cases import each
from tests.docs.blocks import ROOT, SHELLS, Runner, blocks, commands, pages, papers, run_page
from tests.study_files import skip_if_parts_are_missing

STEPS = 2
COMMANDS = typer.main.get_command(app)
QUICK = ("README.md", "docs/models.md", "docs/install.md")
"""Pages of the first hour that are short, which are run in every test run; the others are slow tests."""
MOST_SKIPPED = 18
TO_COPY = sorted((ROOT / "src" / "acclimate" / "study" / "recipes").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _two_steps(monkeypatch):
    """Limit every adaptation to two steps, whatever the options say; tasks are small enough for all epochs.

    Vectors are cut to what the tiny models have.
    """
    configure = RetrievalLearner.configure
    cut = lambda options: replace(options, dimensions=tuple(size // 32 for size in options.dimensions))  # noqa: E731
    monkeypatch.setattr(RetrievalLearner, "configure", lambda self, options: configure(self, cut(options)))
    resolve, plan = inputs.Budget.resolve, mixture.Mixture.plan
    monkeypatch.setattr(inputs.Budget, "resolve", lambda *given, **named: min(STEPS, resolve(*given, **named)))
    monkeypatch.setattr(mixture.Mixture, "plan", lambda *given, **named: min(STEPS, plan(*given, **named)))
    monkeypatch.setattr(kept_steps, "check_keep_steps", lambda keep, method, _=None: check_keep_steps(keep, method))
    monkeypatch.setattr(pricing, "PILOT_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """Forget the methods, masking strategies and mixes that pages register."""
    for registry in (method.REGISTRY, masking.REGISTRY, MIXES):
        registry.names()  # which imports those of the package
        monkeypatch.setattr(registry, "entries", dict(registry.entries))


def params():
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        if any(block.language not in ("", "text") for block in blocks(page)):
            yield pytest.param(page, id=name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("page", params())
def test_the_blocks_of_a_page_run(page, workspace):
    module = types.ModuleType("page_of_the_docs")
    module.__file__ = str(workspace / "page_of_the_docs.py")
    follows = page.relative_to(ROOT).as_posix() not in QUICK
    assert run_page(page, module, follows=follows) or all(block.skipped for block in blocks(page))


@pytest.mark.slow
@pytest.mark.parametrize("study", TO_COPY, ids=lambda study: study.stem)
def test_a_study_to_copy_runs(study, workspace):
    skip_if_parts_are_missing(study)
    (workspace / study.name).write_text(study.read_text(encoding="utf-8"), encoding="utf-8")
    arguments = ["compare", study.name, "--out", "runs", "--set", "seeds=2", "--quiet"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.exception, result.output)
    assert (workspace / "runs" / "report.html").stat().st_size > 10_000


@each("page", papers())
def test_the_commands_of_a_paper_are_read(page, workspace):
    """Options, methods, mixes and operations with their parameters; the slow tests run them."""
    module = types.ModuleType("page")
    module.__file__ = str(workspace / "page.py")
    made = False
    for block in blocks(page):
        if block.language not in SHELLS:
            with suppress(FileNotFoundError) if made else nullcontext():  # it may read what the commands above make
                Runner(page, module).run(block)
            continue
        made = True
        for words in (shlex.split(line) for line in commands(block)):
            command = COMMANDS
            while words[0] != "pip" and hasattr(command, "commands"):
                command = command.commands[(words := words[1:])[0]]
            given = command.make_context(words[0], words[1:]).params if words[0] != "pip" else {}
            operations = SELECTIONS if words[0] == "select" else TRANSFORMS
            for registry, key in ((METHODS, "method"), (MIXES, "mix"), (operations, "by")):
                for value in [given[key]] if isinstance(given.get(key), str) else given.get(key) or ():
                    registry.read(value)


def test_few_blocks_are_skipped_and_each_says_why():
    marked = [block for page in pages() for block in blocks(page) if block.marker.startswith("skip")]
    assert all(block.skipped for block in marked), [block.place for block in marked if not block.skipped]
    assert len(marked) <= MOST_SKIPPED, [block.place for block in marked]
