"""The study files under examples/ can be run as they are: what they name exists, and nothing is misspelt."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from acclimate.study import Parts, StudyConfig
from acclimate.study.plan import Plan, make_plan

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STUDIES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml"))


@cache
def planned(name: str, standin: str) -> tuple[StudyConfig, Plan]:
    """Plan a study without running it; a model of the hub is replaced by one that is here."""
    config = StudyConfig.load(EXAMPLES / name)
    for model in config.models:
        model.path = model.path if Path(model.path).exists() else standin
    return config, make_plan(config, Parts())


@pytest.fixture
def plan(shared, tiny_bert):
    return lambda name: planned(name, str(tiny_bert))


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_loads_and_plans(plan, name):
    config, made = plan(name)
    cells = Counter(cell.kind for cell in made.entries)
    methods, tasks = len(config.methods), sum(len(domain.tasks) for domain in config.domains)
    assert cells["finetune"] == len(config.models) * methods * tasks * len(config.seeds)
    assert cells["loss"] and made.texts["general"].texts


def test_the_small_study_differs_from_the_single_ones_in_its_budget_alone(plan):
    small = plan("dga/small.yaml")[1]
    adapted = {cell.identity["method"]: cell.identity for cell in small.cells.values() if cell.kind == "adapt"}
    for name in ("dga/cs.yaml", "dga/restaurant.yaml"):
        for key, cell in plan(name)[1].cells.items():
            if cell.kind == "adapt":
                ours, theirs = adapted[cell.identity["method"]]["settings"], cell.identity["settings"]
                assert {key for key in theirs if theirs[key] != ours[key]} == {"tokens"}
            elif cell.needs is None:  # of the model as it is
                assert key in small.cells


def test_the_paper_in_numbers(plan):
    config, made = plan("dga/paper.yaml")
    settings = {cell.labels["method"]: made.adapt[key] for key, cell in made.cells.items() if cell.kind == "adapt"}
    assert {(given["steps"], given["batch_size"], given["max_length"]) for given in settings.values()} == {
        (2500, 256, 164)
    }
    rates = {label: given["learning_rate"] for label, given in settings.items()}
    assert rates.pop("MLM (Prompt)") == 0.3
    assert set(rates.values()) == {1e-4}
    assert {given["importance_tokens"] for given in made.settings.values() if "importance_tokens" in given} == {
        1_640_000
    }
    sizes = {name: (len(task.train), len(task.test)) for (_, name), task in made.tasks.items()}
    assert sizes["ACL-ARC"] == (1520, 421)
    assert sizes["SciERC"] == (2260, 2388)
    assert sizes["ChemProt"] == (2667, 7398)
    assert sizes["asc_restaurant"] == (3452, 1120)
    metrics = {task.name: task.metric for domain in config.domains for task in domain.tasks}
    assert {name for name, metric in metrics.items() if metric == "micro_f1"} == {"ChemProt"}
