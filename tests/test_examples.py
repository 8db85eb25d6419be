"""The study files under examples/ can be run as they are: what they name exists, and nothing is misspelt."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from acclimate.study import Parts, StudyConfig
from acclimate.study.plan import Plan, make_plan, survey
from acclimate.study.rounds import rounds
from tests.tiny import save_tiny

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STUDIES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml"))


@cache
def planned(name: str, standin: str) -> tuple[StudyConfig, Plan]:
    """Plan a study without running it; a model of the hub is replaced by one that is here."""
    config = StudyConfig.load(EXAMPLES / name)
    for named in (*config.models, *(row.teacher for row in config.distill if row.teacher.path)):
        named.path = named.path if Path(named.path).exists() else standin
    return config, make_plan(config, Parts())


@pytest.fixture(scope="session")
def standin(tmp_path_factory):
    """A model that reads as much at once as those of the hub."""
    return save_tiny("bert", tmp_path_factory.mktemp("standin"), max_position_embeddings=512)


@pytest.fixture
def plan(shared, standin):
    return lambda name: planned(name, str(standin))


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_loads_and_plans(plan, name):
    config, made = plan(name)
    cells = Counter(cell.kind for cell in made.entries)
    methods, tasks = len(config.methods), sum(len(domain.tasks) for domain in config.domains)
    assert cells["finetune"] == len(config.models) * methods * tasks * len(config.seeds)
    assert cells["loss"] and made.texts["general"].texts
    students = sum(
        len(row.students or [model for model in config.models if model.name != row.teacher.model]) * len(domain.tasks)
        for row in config.distill
        for domain in config.domains
        if row.is_for(domain.name)
    )
    assert cells["distill"] == students * len(config.seeds)


def test_the_small_study_adapts_as_the_single_ones_but_for_its_budget(plan):
    small = plan("dga/small.yaml")[1]
    adapted = {cell.identity["method"]: cell.identity for cell in small.cells.values() if cell.kind == "adapt"}
    for name in ("dga/cs.yaml", "dga/restaurant.yaml"):
        for key, cell in plan(name)[1].cells.items():
            if cell.kind == "adapt":
                ours, theirs = adapted[cell.identity["method"]]["settings"], cell.identity["settings"]
                assert {key for key in theirs if theirs[key] != ours[key]} == {"tokens", "precision"}
            elif cell.kind == "loss" and cell.needs is None:  # of the model as it is
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
    measured = [given for given in made.settings.values() if given.get("importance") == "dropout"]
    assert len(measured) > 4 and {given["importance_error"] for given in measured} == {0}
    sizes = {name: (len(task.train), len(task.test)) for (_, name), task in made.tasks.items()}
    assert sizes["ACL-ARC"] == (1520, 421)
    assert sizes["SciERC"] == (2260, 2388)
    assert sizes["ChemProt"] == (2667, 7398)
    assert sizes["asc_restaurant"] == (3452, 1120)
    given = {made.cells[key].labels["task"]: options for key, options in made.finetune.items()}
    assert {name: options["epochs"] for name, options in given.items()} == {
        **dict.fromkeys(("asc_camera", "asc_phone"), 15),
        **dict.fromkeys(("SciERC", "ACL-ARC", "ChemProt"), 10),
        "asc_restaurant": 5,
    }
    for options in given.values():
        assert (options["learning_rate"], options["batch_size"], options["max_length"]) == (1e-5, 16, 164)
        assert options["warmup"] == 0 and "select" not in options
    assert config.seeds == [0, 1, 2, 3, 4]
    metrics = {task.name: task.metric for domain in config.domains for task in domain.tasks}
    assert {name for name, metric in metrics.items() if metric == "micro_f1"} == {"ChemProt"}


def test_the_grids_of_doktra(shared, plan):
    """Choi et al., 3.2 and A.1: each of the three grids with three seeds."""
    config, _ = plan("doktra/paper.yaml")
    ground = survey(config, Parts())
    sizes = {}
    choices = {}
    for made in rounds(ground, choices):
        for hunt in made.hunts:
            sizes[hunt.stage] = (len(hunt.trials), hunt.possible, len(hunt.trials[0].keys))
            choices |= dict.fromkeys(hunt.places, hunt.trials[0].choice)
    assert sizes == {"method": (6, 6, 3), "teacher": (12, 12, 3), "distillation": (48, 48, 3)}
    grid = config.search.distill
    assert grid["confidence_penalty"] == grid["teacher_penalty"] == [0, 0.3, 0.5, 0.7]
    assert grid["distill_share"] == [0.6, 0.7, 0.8, 0.9]
    assert grid["learning_rate"] == config.search.finetune["learning_rate"] == [6e-6, 8e-6, 1e-5]


def test_the_students_of_doktra_start_as_the_row_that_is_only_fine_tuned(plan):
    _, made = plan("doktra/small.yaml")
    plain = [options for key, options in made.finetune.items() if made.cells[key].needs is None]
    given = [options for options in made.distill.values() if "student" in options]
    assert plain and given
    for name in ("epochs", "learning_rate", "warmup", "weight_decay", "batch_size", "max_length"):
        ours = f"student_{name}" if name in ("epochs", "learning_rate") else name
        assert {options[name] for options in plain} == {options[ours] for options in given}


def test_selective_masking_is_compared_at_equal_steps(plan):
    _, made = plan("selective/small.yaml")
    assert {settings["steps"] for settings in made.adapt.values()} == {120}
    given = [{**made.settings[label], "choice": ""} for label in ("selective", "random-same-count")]
    assert given[0] == given[1]  # the control differs in what it masks alone
    assert {(sizes["train"][0]) for sizes in made.limits.values()} == {600}


def test_tapt_and_tapter_read_the_text_of_each_task(plan):
    for name, tasks in (("tapter/small.yaml", 3), ("tapter/paper.yaml", 2)):
        config, made = plan(name)
        adapted = [cell for cell in made.entries if cell.kind == "adapt"]
        assert len(adapted) == tasks * (len(config.methods) - 1)
        assert all(made.adapt[cell.key]["heldout"] is not None for cell in adapted)
    firsts = {place[1]: len(first.train) for place, first in plan("tapter/small.yaml")[1].firsts.items()}
    assert firsts == {"rrc_restaurant": 839, "covid_qa": 839}
