"""The study files under examples/ are valid: their keys are known, and the files that they name exist.

Models on the Hub, and models and tasks that a user has to fill in, are replaced by tiny ones.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from acclimate.study.backend import Backend
from acclimate.study.config import StudyConfig
from acclimate.study.draft import RECIPES
from acclimate.study.graph import plan, read_study
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import JobGraph
from acclimate.study.search import search_stages
from tests.study_files import skip_if_parts_are_missing
from tests.tiny import save_tiny

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STUDIES = sorted(path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml"))


TO_FILL_IN = {"asc_laptop", "gad"}
"""Tasks that the studies name and the shared data does not have."""


@cache
def planned(name: str, small_model: str, task: str) -> tuple[StudyInputs, JobGraph]:
    """Plan a study without running it; models and tasks that are not there are replaced by a local one."""
    config = StudyConfig.load(EXAMPLES / name)
    teachers = [row.teacher for row in config.sections.get("distill", []) if row.teacher.path]
    for named in (*config.models, *teachers, *config.sections.get("checkpoints", [])):
        named.path = named.path if Path(named.path).exists() else small_model
    for given in (given for domain in config.domains for given in domain.tasks):
        given.path = task if Path(given.path).name in TO_FILL_IN else given.path
    inputs = read_study(config, Backend())
    return inputs, plan(inputs)


def jobs(graph: JobGraph, kind: str) -> list:
    return [job for job in graph.jobs.values() if job.name == kind]


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A model with the same maximum length as those on the Hub."""
    return save_tiny("bert", tmp_path_factory.mktemp("small_model"), max_position_embeddings=512)


@pytest.fixture(scope="session")
def small_task(tmp_path_factory):
    """A task of two labels, 0 and 1."""
    folder = tmp_path_factory.mktemp("task")
    rows = [json.dumps({"text": f"text {number}", "label": str(number % 2)}) for number in range(20)]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def load(shared, small_model, small_task):
    def plan_study(name: str) -> tuple[StudyInputs, JobGraph]:
        skip_if_parts_are_missing(EXAMPLES / name)
        return planned(name, str(small_model), str(small_task))

    return plan_study


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name.split("/")[0] in ("selective", "tapter", "doktra", "detour")
        else name
        for name in STUDIES
    ],
)
def test_every_study_loads_and_plans(load, name):
    inputs, graph = load(name)
    config, counts = inputs.config, Counter(job.name for job in graph.entries)
    methods, tasks = len(config.methods), sum(len(domain.tasks) for domain in config.domains)
    checkpoints = len(config.sections.get("checkpoints", []))
    assert counts["finetune"] == len(config.models) * (methods + checkpoints) * tasks * len(config.seeds)
    assert counts["lm_loss"] and inputs.general.texts
    students = sum(
        len(row.students or [model for model in config.models if model.name != row.teacher.model]) * len(domain.tasks)
        for row in config.sections.get("distill", [])
        for domain in config.domains
        if row.is_for(domain.name)
    )
    assert counts["distill"] == students * len(config.seeds)


def test_studies_to_copy_are_valid():
    found = {name: StudyConfig.load(RECIPES / f"{name}.yaml") for name in ("sentiment", "few-shot", "chat-model")}
    assert found["chat-model"].row_labels == ["none", "lora", "lora and conversations"]
    assert [task.few_shot for task in found["few-shot"].domains[0].tasks] == [16, None]


def test_the_small_study_adapts_as_the_single_ones_but_for_its_budget(load):
    small = load("dga/small.yaml")[1]
    adapted = {(job.method, job.place.adapt_seed): job.settings for job in jobs(small, "adapt")}
    for name in ("dga/cs.yaml", "dga/restaurant.yaml"):
        graph = load(name)[1]
        for job in jobs(graph, "adapt"):
            assert {
                key for key, value in job.settings.items() if value != adapted[job.method, job.place.adapt_seed][key]
            } == {
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
    assert {given["contrast_tokens"] for given in measured} == {"original"}
    assert inputs.methods["MLM+SimCSE"].parameters["tokens"] == "original"
    masks = {label: given.parameters.get("mask_on") for label, given in inputs.methods.items()}
    assert [label for label, on in masks.items() if on == "update"] == ["DGA (soft mask on the update)"]
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


@pytest.mark.slow
def test_the_grids_of_doktra(load):
    """Choi et al., 3.2 and A.1: each of the three grids with three seeds."""
    inputs, _ = load("doktra/paper.yaml")
    sizes, choices = {}, {}
    for stage in search_stages(inputs, choices):
        for search in stage.searches:
            sizes[search.stage] = (len(search.trials), search.possible, len(search.trials[0].keys))
            choices |= dict.fromkeys(search.places, search.trials[0].choice)
    assert sizes == {"method": (6, 6, 3), "teacher": (12, 12, 3), "distillation": (48, 48, 3)}
    search = inputs.config.search
    assert search.distill["confidence_penalty"] == search.distill["teacher_penalty"] == [0, 0.3, 0.5, 0.7]
    assert search.distill["distill_share"] == [0.6, 0.7, 0.8, 0.9]
    assert search.distill["learning_rate"] == search.finetune["learning_rate"] == [6e-6, 8e-6, 1e-5]


@pytest.mark.slow
def test_students_of_doktra_are_fine_tuned_as_the_row_without_distillation(load):
    _, graph = load("doktra/small.yaml")
    plain = [job.options for job in jobs(graph, "finetune") if job.needs is None]
    given = [job.options for job in jobs(graph, "distill")]
    assert plain and given
    for name in ("epochs", "learning_rate", "warmup", "weight_decay", "batch_size", "max_length"):
        ours = f"student_{name}" if name in ("epochs", "learning_rate") else name
        assert {options[name] for options in plain} == {options[ours] for options in given}


@pytest.mark.slow
def test_selective_masking_is_compared_at_equal_steps(load):
    inputs, graph = load("selective/small.yaml")
    assert {job.options["steps"] for job in jobs(graph, "adapt")} == {120}
    given = [{**inputs.methods[label].parameters, "choice": ""} for label in ("selective", "random-same-count")]
    assert given[0] == given[1]  # the control differs only in what it masks
    assert {task.limited["train"][0] for task in inputs.tasks.values() if task.limited} == {600}


@pytest.mark.slow
def test_tapt_and_tapter_read_the_text_of_each_task(load):
    for name, tasks in (("tapter/small.yaml", 3), ("tapter/paper.yaml", 1), ("tapter/paper-squad.yaml", 1)):
        inputs, graph = load(name)
        adapted = [job for job in graph.entries if job.name == "adapt"]
        places = {(job.place.model, job.place.method, job.place.adapted_for) for job in adapted}
        assert len(places) == tasks * (len(inputs.config.methods) - 1) * len(inputs.config.models)
        assert all(job.heldout is not None for job in adapted)
    inputs = load("tapter/small.yaml")[0]
    assert {name: len(found.first.train) for (_, name), found in inputs.tasks.items() if found.first} == {
        "rrc_restaurant": 839,
        "covid_qa": 839,
    }


def test_tapter_has_the_settings_of_each_task_and_an_adaptation_for_each_seed(load):
    """Nishida et al., Tables 4 and 5."""
    for name, vectors, epochs in (("tapter/paper.yaml", (2, 10), 10), ("tapter/paper-squad.yaml", (5, 5), 5)):
        inputs, graph = load(name)
        given = inputs.methods["TAPTER"].parameters
        assert (given["min_count"], given["epochs"]) == vectors
        assert {job.options["epochs"] for job in jobs(graph, "finetune")} == {epochs}
        seeds = {(job.place.seed, job.place.adapt_seed) for job in jobs(graph, "finetune") if job.place.adapt_seed}
        assert seeds == {(seed, seed) for seed in range(1, 10)}


@pytest.mark.slow
def test_the_rows_of_selective_masking_differ_in_one_thing_at_a_time(load):
    inputs, _ = load("selective/paper.yaml")
    given = {label: method.parameters for label, method in inputs.methods.items()}
    pairs = [
        ("selective mask", "selective mask (dynamic)", {"replacement"}),
        ("selective mask", "same count at random", {"choice"}),
    ]
    pairs.append(("same count at random", "same count at random (dynamic)", {"replacement"}))
    for first, second, expected in pairs:
        assert {key for key, value in given[first].items() if value != given[second][key]} == expected


@pytest.mark.slow
def test_the_ablations_of_doktra(load):
    """Choi et al., Tables 5 and 6: rows differ in the teacher's penalty and the objective only."""
    _, graph = load("doktra/ablation.yaml")
    rows = {}
    for job in jobs(graph, "distill"):
        rows.setdefault(job.place.task, {})[job.place.method] = (job.teacher.settings, job.settings)
    assert {task: len(found) for task, found in rows.items()} == {"chemprot": 5, "ddi": 2}
    found = {
        label: (teacher["confidence_penalty"], student["objective"])
        for label, (teacher, student) in rows["chemprot"].items()
    }
    assert found.pop("no distillation") == (0.3, "boundary")
    assert found == {
        "+ CTT + ABD (DoKTra)": (0.3, "boundary"),
        "+ ABD": (0, "boundary"),
        "+ CTT + KLD": (0.3, "kl"),
        "+ KLD": (0, "kl"),
    }
    penalties = {job.place.task: job.settings["confidence_penalty"] for job in jobs(graph, "finetune")}
    assert penalties == {"chemprot": 0, "chemprot-cpl": 0.5, "ddi": 0}


@pytest.mark.slow
def test_doktra_beside_tapt_and_pre_training_on_the_domain(load):
    """Choi et al., Tables 3 and 4, with the settings of the appendix."""
    inputs, graph = load("doktra/in-domain.yaml")
    assert {job.options["batch_size"] for job in jobs(graph, "adapt")} == {36, 108}
    assert {"BioBERT-ft", "RoBERTa-PM-ft"} <= set(inputs.config.row_labels)
    chosen = {
        job.place.task: (
            job.settings["student_epochs"],
            job.settings["confidence_penalty"],
            job.settings["distill_share"],
        )
        for job in jobs(graph, "distill")
    }
    assert chosen == {"chemprot": (5, 0.5, 0.8), "ddi": (10, 0.7, 0.8), "hoc": (10, 0, 0.6)}
    _, graph = load("doktra/gad.yaml")
    shown = {job.place.method: job.settings["student_learning_rate"] for job in jobs(graph, "distill")}
    assert shown == {"RoBERTa-DoKTra": 1e-5, "ALBERT-DoKTra": 6e-6, "ALBERT-DoKTra - CTT": 6e-6}
