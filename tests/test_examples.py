"""The study files under examples/ are valid: their keys are known, and the files that they name exist."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from acclimate.study import Backend, StudyConfig
from acclimate.study.graph import plan, read_study
from acclimate.study.inputs import StudyInputs
from acclimate.study.jobs.base import JobGraph
from acclimate.study.search import stages
from tests.tiny import save_tiny

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STUDIES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml"))


@cache
def planned(name: str, standin: str) -> tuple[StudyInputs, JobGraph]:
    """Plan a study without running it; models on the Hub are replaced by a local one."""
    config = StudyConfig.load(EXAMPLES / name)
    for named in (*config.models, *(row.teacher for row in config.distill if row.teacher.path)):
        named.path = named.path if Path(named.path).exists() else standin
    inputs = read_study(config, Backend())
    return inputs, plan(inputs)


def jobs(graph: JobGraph, kind: str) -> list:
    return [job for job in graph.jobs.values() if job.name == kind]


@pytest.fixture(scope="session")
def standin(tmp_path_factory):
    """A model with the same maximum length as those on the Hub."""
    return save_tiny("bert", tmp_path_factory.mktemp("standin"), max_position_embeddings=512)


@pytest.fixture
def load(shared, standin):
    return lambda name: planned(name, str(standin))


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_loads_and_plans(load, name):
    inputs, graph = load(name)
    config, counts = inputs.config, Counter(job.name for job in graph.entries)
    methods, tasks = len(config.methods), sum(len(domain.tasks) for domain in config.domains)
    assert counts["finetune"] == len(config.models) * methods * tasks * len(config.seeds)
    assert counts["lm_loss"] and inputs.general.texts
    students = sum(
        len(row.students or [model for model in config.models if model.name != row.teacher.model]) * len(domain.tasks)
        for row in config.distill
        for domain in config.domains
        if row.is_for(domain.name)
    )
    assert counts["distill"] == students * len(config.seeds)


def test_the_small_study_adapts_as_the_single_ones_but_for_its_budget(load):
    small = load("dga/small.yaml")[1]
    adapted = {job.method: job.settings for job in jobs(small, "adapt")}
    for name in ("dga/cs.yaml", "dga/restaurant.yaml"):
        graph = load(name)[1]
        for job in jobs(graph, "adapt"):
            assert {key for key, value in job.settings.items() if value != adapted[job.method][key]} == {
                "tokens",
                "precision",
            }
        for job in jobs(graph, "lm_loss"):
            assert job.needs or job.key in small.jobs  # losses of the base model


def test_the_paper_in_numbers(load):
    inputs, graph = load("dga/paper.yaml")
    config = inputs.config
    settings = {job.place.method: job.options for job in jobs(graph, "adapt")}
    assert {(given["steps"], given["batch_size"], given["max_length"]) for given in settings.values()} == {
        (2500, 256, 164)
    }
    rates = {label: given["learning_rate"] for label, given in settings.items()}
    assert rates.pop("MLM (Prompt)") == 0.3
    assert set(rates.values()) == {1e-4}
    parameters = [method.parameters for method in inputs.methods.values()]
    assert {given["importance_tokens"] for given in parameters if "importance_tokens" in given} == {1_640_000}
    measured = [given for given in parameters if given.get("importance") == "dropout"]
    assert len(measured) > 4 and {given["importance_error"] for given in measured} == {0}
    sizes = {name: (len(found.task.train), len(found.task.test)) for (_, name), found in inputs.tasks.items()}
    assert sizes["ACL-ARC"] == (1520, 421)
    assert sizes["SciERC"] == (2260, 2388)
    assert sizes["ChemProt"] == (2667, 7398)
    assert sizes["asc_restaurant"] == (3452, 1120)
    given = {job.place.task: job.options for job in jobs(graph, "finetune")}
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


def test_the_grids_of_doktra(load):
    """Choi et al., 3.2 and A.1: each of the three grids with three seeds."""
    inputs, _ = load("doktra/paper.yaml")
    sizes, choices = {}, {}
    for stage in stages(inputs, choices):
        for search in stage.searches:
            sizes[search.stage] = (len(search.trials), search.possible, len(search.trials[0].keys))
            choices |= dict.fromkeys(search.places, search.trials[0].choice)
    assert sizes == {"method": (6, 6, 3), "teacher": (12, 12, 3), "distillation": (48, 48, 3)}
    search = inputs.config.search
    assert search.distill["confidence_penalty"] == search.distill["teacher_penalty"] == [0, 0.3, 0.5, 0.7]
    assert search.distill["distill_share"] == [0.6, 0.7, 0.8, 0.9]
    assert search.distill["learning_rate"] == search.finetune["learning_rate"] == [6e-6, 8e-6, 1e-5]


def test_students_of_doktra_are_fine_tuned_as_the_row_without_distillation(load):
    _, graph = load("doktra/small.yaml")
    plain = [job.options for job in jobs(graph, "finetune") if job.needs is None]
    given = [job.options for job in jobs(graph, "distill")]
    assert plain and given
    for name in ("epochs", "learning_rate", "warmup", "weight_decay", "batch_size", "max_length"):
        ours = f"student_{name}" if name in ("epochs", "learning_rate") else name
        assert {options[name] for options in plain} == {options[ours] for options in given}


def test_selective_masking_is_compared_at_equal_steps(load):
    inputs, graph = load("selective/small.yaml")
    assert {job.options["steps"] for job in jobs(graph, "adapt")} == {120}
    given = [{**inputs.methods[label].parameters, "choice": ""} for label in ("selective", "random-same-count")]
    assert given[0] == given[1]  # the control differs only in what it masks
    assert {task.limited["train"][0] for task in inputs.tasks.values() if task.limited} == {600}


def test_tapt_and_tapter_read_the_text_of_each_task(load):
    for name, tasks in (("tapter/small.yaml", 3), ("tapter/paper.yaml", 2)):
        inputs, graph = load(name)
        adapted = [job for job in graph.entries if job.name == "adapt"]
        assert len(adapted) == tasks * (len(inputs.config.methods) - 1) * 3  # seeds of adaptation
        assert all(job.heldout is not None for job in adapted)
    inputs = load("tapter/small.yaml")[0]
    assert {name: len(found.first.train) for (_, name), found in inputs.tasks.items() if found.first} == {
        "rrc_restaurant": 839,
        "covid_qa": 839,
    }
