"""Adapting to the text of each task in a study: the jobs, and what they read."""

from __future__ import annotations

import json

import pytest

from acclimate.adaptation.method import REGISTRY
from acclimate.base.errors import UserError
from acclimate.report import markdown
from acclimate.study.compare import compare
from acclimate.study.graph import plan
from tests.cases import each
from tests.study.fakes import World, graph_of, of_kind, read, study, write_task

LEARN_LABELS = [name for name in REGISTRY.names() if REGISTRY.read(name).needs_task and name != "dapt+tapt"]


def values(folder, methods, **changes):
    domains = [
        {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [str(folder / "intent"), str(folder / "aspect")]}
    ]
    return study(folder, domains=domains, methods=methods, seeds=2, **changes)


def planned(folder, methods, **changes):
    return graph_of(values(folder, methods, **changes))


@pytest.mark.needs("prompt")
def test_a_learning_rate_far_from_that_of_a_method_is_reported(folder, caplog):
    """The default learning rate of a soft prompt is 0.3; at that of other methods it would hardly change."""
    planned(folder, ["prompt", "mlm"], adapt={"steps": 2})
    planned(folder, [{"name": "prompt", "adapt": {"learning_rate": 0.3}}, "mlm"], adapt={"learning_rate": 2e-4})
    assert "learning rate" not in caplog.text
    planned(folder, ["prompt", "mlm"], adapt={"learning_rate": 2e-4})
    (found,) = (record.getMessage() for record in caplog.records if "learning rate" in record.getMessage())
    assert "learning rate of 'prompt' is 0.3, and the study sets 0.0002" in found


@each("name", ["seed", "text_column", "head_tokens"])
def test_options_that_all_methods_share_cannot_be_set_for_one(folder, name):
    own = {"name": "mlm", "adapt": {name: "body" if name == "text_column" else 7}}
    with pytest.raises(UserError, match=rf"\.adapt\.{name}' cannot be set .* set adapt\.{name}"):
        planned(folder, [own], adapt={"steps": 2})


@pytest.mark.needs("tapt")
def test_a_method_that_reads_tasks_needs_one_in_every_domain(folder):
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": []}]
    with pytest.raises(UserError, match="'tapt' adapts to each task of a domain, and 'cs' has none"):
        graph_of(study(folder, domains=domains, methods=["mlm", "tapt"]))


@pytest.mark.needs("tapt", "selective")
def test_a_method_learns_no_labels_that_fine_tuning_does_not_get(folder):
    """With `few_shot`, an adaptation would learn the labels of all train texts, and fine-tuning a few of them."""
    for labels in ({"few_shot": 2}, {"limit_train": 4}):
        task = {"path": str(write_task(folder / "few", "few")), **labels}
        domain = {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}
        graph_of(study(folder, domains=[domain], methods=["mlm", "tapt", "dapt+tapt"]))  # they read texts only
        for name in LEARN_LABELS:
            given = study(folder, domains=[domain], methods=["none", name])
            if "limit_train" in labels:
                graph_of(given)
                continue
            with pytest.raises(
                UserError, match=f"'{name}' learns the labels of all train texts of 'few'.*limit_train"
            ):
                graph_of(given)


@pytest.mark.needs("selective")
def test_nothing_is_trained_or_chosen_by_the_rows_that_a_task_is_not_scored_on(folder):
    task = write_task(folder / "halves", "halves", dev=[f"dev text {number}" for number in range(12)])
    for part in ("dev", "tune", "confirm"):
        domain = {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [{"path": str(task), "evaluate_on": part}]}
        jobs = [
            job
            for kind in ("adapt", "finetune")
            for job in of_kind(graph_of(study(folder, domains=[domain], methods=["selective"])), kind)
        ]
        assert {job.name for job in jobs} == {"adapt", "finetune"}
        for job in jobs:
            assert not job.task.dev
            assert len(job.task.test) == (12 if part == "dev" else 6)
            assert all(row.text.startswith("dev") for row in job.task.test)


@pytest.mark.needs("selective")
def test_a_file_with_other_words_makes_another_job(folder):
    words = folder / "words.txt"

    def key():
        return of_kind(planned(folder, [{"name": "selective", "stop_words": str(words)}]), "adapt")[0].key

    words.write_text("the")
    first = key()
    assert key() == first
    words.write_text("the a")
    assert key() != first


@pytest.mark.needs("tapt")
def test_each_task_has_an_adaptation_that_its_own_fine_tunings_use(folder):
    graph = planned(folder, ["none", "mlm", "tapt"])
    by_task = {job.place.adapted_for: job.key for job in of_kind(graph, "adapt", method="tapt")}
    assert set(by_task) == {"intent", "aspect"} and len(set(by_task.values())) == 2
    jobs = [job for job in graph.jobs.values() if job.place.method == "tapt"]
    for job in jobs:
        if job.name != "adapt":
            assert job.needs.key == by_task[job.place.adapted_for]
    kinds = [job.name for job in jobs]
    assert (kinds.count("adapt"), kinds.count("lm_loss"), kinds.count("finetune")) == (2, 4, 4)
    (shared,) = of_kind(graph, "adapt", method="mlm")
    needs = {job.needs.key for job in graph.jobs.values() if job.place.method == "mlm" and job.needs}
    assert needs == {shared.key}


@pytest.mark.needs("tapt")
def test_the_study_file_overrides_what_a_method_reads(folder):
    methods = ["none", {"name": "mlm", "on": "task"}, {"name": "tapt", "on": "domain"}]
    jobs = of_kind(planned(folder, methods), "adapt")
    assert [(job.place.method, job.place.adapted_for) for job in jobs] == [
        ("mlm (on=task)", "intent"),
        ("mlm (on=task)", "aspect"),
        ("tapt (on=domain)", None),
    ]
    assert next(iter(jobs[0].corpus)) == "intent train text 0"
    with pytest.raises(UserError, match="remove 'on'"):
        planned(folder, ["none", {"name": "dapt+tapt", "on": "task"}])
    with pytest.raises(UserError, match=r"methods\[0\]\.on"):
        planned(folder, [{"name": "mlm", "on": "tasks"}])


@pytest.mark.needs("selective", "tapt")
def test_a_method_that_needs_the_task_gets_it_and_reads_the_domain(folder):
    jobs = of_kind(planned(folder, ["none", "mlm", "selective", "dapt+tapt"]), "adapt")
    assert len({job.identity["corpus"] for job in jobs}) == 1
    for job in jobs:
        if job.place.method == "mlm":
            assert job.task is None
        else:
            assert job.task.name == job.place.adapted_for and job.identity["task"] == job.task.fingerprint()
    assert len(jobs) == 1 + 2 + 2


@pytest.mark.needs("tapt")
def test_two_tasks_with_the_same_text_share_an_adaptation(folder):
    texts = [f"text {number}" for number in range(6)]
    for name in ("intent", "aspect"):
        write_task(folder / name, name, train=texts)
    graph = planned(folder, ["none", "tapt"])
    assert len(of_kind(graph, "adapt")) == 1
    assert [job.place.adapted_for for job in graph.entries if job.name == "adapt"] == ["intent", "aspect"]


@pytest.mark.needs("dga")
def test_results_and_reports_have_a_row_for_each_task(folder, tmp_path):
    world = World()
    results = compare(values(folder, ["none", "mlm", {"name": "dga", "on": "task"}]), tmp_path / "out",
                      backend=world.backend(), progress=False)  # fmt: skip
    label = "dga (on=task)"
    rows = [row for row in results["losses"] if row["method"] == label]
    assert [(row["text"], row["task"]) for row in rows] == [
        ("domain", "intent"), ("domain", "aspect"), ("general", "intent"), ("general", "aspect")
    ]  # fmt: skip
    assert all("difference" in row for row in rows)
    assert not any("task" in row for row in results["losses"] if row["method"] == "mlm")
    runs = {run["task"]: run for run in results["adaptations"] if run["method"] == label}
    assert set(runs) == {"intent", "aspect"} and all(len(run["curve"]) == 40 for run in runs.values())
    read = [
        entry["documents"][0] for entry in world.arguments if entry["kind"] == "adapt" and entry["method"] == "dga"
    ]
    assert read == ["intent train text 0", "aspect train text 0"]
    shown = [markdown(results), (tmp_path / "out" / "report.html").read_text()]
    for text in shown:
        assert "dga (on=task), intent" in text and "dga (on=task), aspect" in text
    assert json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]["failed"] == 0


def test_held_out_text_is_measured_during_training_if_the_study_asks_for_it(folder):
    inputs = read(values(folder, ["none", "mlm"], adapt={"tokens": 200_000, "heldout_every": 50}))
    (job,) = of_kind(plan(inputs), "adapt")
    assert job.heldout is inputs.heldout["cs"] and job.identity["heldout"] == inputs.heldout["cs"].fingerprint
    assert job.settings["heldout_every"] == 50
    (plain,) = of_kind(planned(folder, ["none", "mlm"]), "adapt")
    assert plain.heldout is None and plain.key != job.key
