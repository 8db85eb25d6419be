"""Every block of the README and of the guides runs as printed, on tiny models and texts and for two steps."""

from __future__ import annotations

import types

import pytest

from acclimate.masking import base as masking
from acclimate.study import budget
from acclimate.tasks import trainer as task_trainer
from acclimate.training import inputs, method, mixture
from tests.docs.blocks import ROOT, blocks, pages, run_page

STEPS = 2
QUICK = ("README.md", "docs/data.md", "docs/models.md", "docs/install.md", "docs/methods.md")
"""Pages of the first hour, which are run in every test run; the others are slow tests."""
MOST_SKIPPED = 12


@pytest.fixture(autouse=True)
def _two_steps(monkeypatch):
    """Limit every adaptation to two steps and every fine-tuning to one pass, whatever the options say."""
    resolve, plan, begin = inputs.Budget.resolve, mixture.Mixture.plan, task_trainer.TaskSteps.__init__

    def one_pass(self, rows, head, batch_size, epochs, *others, **named):
        begin(self, rows, head, batch_size, 1, *others, **named)

    monkeypatch.setattr(inputs.Budget, "resolve", lambda *given, **named: min(STEPS, resolve(*given, **named)))
    monkeypatch.setattr(mixture.Mixture, "plan", lambda *given, **named: min(STEPS, plan(*given, **named)))
    monkeypatch.setattr(task_trainer.TaskSteps, "__init__", one_pass)
    monkeypatch.setattr(budget, "PILOT_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """Forget the methods and masking strategies that pages register."""
    for registry in (method.REGISTRY, masking.REGISTRY):
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
    assert run_page(page, module) or all(block.skipped for block in blocks(page))


def test_few_blocks_are_skipped_and_each_says_why():
    marked = [block for page in pages() for block in blocks(page) if block.marker.startswith("skip")]
    assert all(block.skipped for block in marked), [block.place for block in marked if not block.skipped]
    assert len(marked) <= MOST_SKIPPED, [block.place for block in marked]
