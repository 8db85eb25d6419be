"""Adapting to the text of each task in a study: which cells there are, who reads what, and keys that stay."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from acclimate.corpus import Corpus
from acclimate.errors import UserError
from acclimate.report import markdown
from acclimate.study import Parts, StudyConfig, compare
from acclimate.study.parts import Reads
from acclimate.study.plan import make_plan
from tests.cases import each
from tests.study.fakes import METHODS, World, study

BEFORE = {
    "mlm": "10064bac63fb5518",
    "dga, no contrast": "7ba7599a6d3a5417",
}
"""Keys of the adaptations of the study of the fakes with the real defaults of ``adapt``, stored by version 0.1."""
READS = {
    "mlm": Reads(),
    "dga": Reads(),
    "tapt": Reads("task"),
    "selective": Reads("domain", True),
    "dapt+tapt": Reads("domain", True, True),
}


@pytest.fixture(autouse=True)
def _methods(monkeypatch):
    for name in READS:
        monkeypatch.setitem(METHODS, name, METHODS.get(name, {}))


def parts(world):
    return replace(
        world.parts(),
        reads=READS.__getitem__,
        task_text=lambda task: Corpus.of([f"{task.name} train text {number}" for number in range(5)]),
        adapt_defaults=Parts().adapt_defaults,
    )


def values(folder, methods, **changes):
    domains = [
        {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [str(folder / "intent"), str(folder / "aspect")]}
    ]
    return study(folder, domains=domains, methods=methods, seeds=2, **changes)


def plan_of(folder, methods, **changes):
    return make_plan(StudyConfig.of(values(folder, methods, **changes)), parts(World()))


def test_a_rate_that_cannot_be_meant_for_a_method_is_told(folder, caplog, monkeypatch):
    """A prompt learns at 0.3; at the rate of the others it would stay where it started."""
    monkeypatch.setitem(READS, "mlm", Reads(learning_rate=0.3))
    monkeypatch.setitem(READS, "dga", Reads(learning_rate=1e-4))
    plan_of(folder, ["mlm", "dga"], adapt={"steps": 2})
    plan_of(folder, [{"name": "mlm", "adapt": {"learning_rate": 0.3}}, "dga"], adapt={"learning_rate": 2e-4})
    assert not caplog.records
    plan_of(folder, ["mlm", "dga"], adapt={"learning_rate": 2e-4})
    (record,) = caplog.records
    assert "'mlm' learns at 0.3 by itself, and at 0.0002 here" in record.getMessage()


@each("name", ["seed", "text_column", "head_tokens"])
def test_what_all_methods_share_cannot_be_one_methods_own(folder, name):
    own = {"name": "mlm", "adapt": {name: "body" if name == "text_column" else 7}}
    with pytest.raises(UserError, match=rf"\.adapt\.{name}' would be .* set adapt\.{name}"):
        plan_of(folder, [own], adapt={"steps": 2})


def test_a_method_that_reads_tasks_wants_one_in_every_domain(folder):
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": []}]
    config = StudyConfig.of(study(folder, domains=domains, methods=["mlm", "tapt"]))
    with pytest.raises(UserError, match="'tapt' adapts to each task of a domain, and 'cs' has none"):
        make_plan(config, parts(World()))


def test_a_file_with_other_words_makes_another_cell(folder):
    words = folder / "words.txt"
    real = replace(parts(World()), method=Parts().method)

    def key():
        methods = [{"name": "selective", "stop_words": str(words)}]
        return adaptations(make_plan(StudyConfig.of(values(folder, methods)), real))[0].key

    words.write_text("the")
    first = key()
    assert key() == first
    words.write_text("the a")
    assert key() != first


def adaptations(plan):
    return [cell for cell in plan.cells.values() if cell.kind == "adapt"]


def test_keys_of_stored_studies_stay_as_they_are(folder):
    real = replace(parts(World()), method=Parts().method)
    made = make_plan(StudyConfig.of(study(folder)), real)
    assert {cell.labels["method"]: cell.key for cell in adaptations(made)} == BEFORE
    explicit = make_plan(StudyConfig.of(study(folder, methods=[{"name": "mlm", "on": "domain"}])), real)
    assert adaptations(explicit)[0].key == BEFORE["mlm"]


def test_each_task_has_an_adaptation_that_its_own_fine_tunings_use(folder):
    plan = plan_of(folder, ["none", "mlm", "tapt"])
    by_task = {cell.labels["task"]: cell.key for cell in adaptations(plan) if cell.labels["method"] == "tapt"}
    assert set(by_task) == {"intent", "aspect"} and len(set(by_task.values())) == 2
    for cell in plan.cells.values():
        if cell.labels["method"] == "tapt" and cell.kind != "adapt":
            assert cell.needs == by_task[cell.labels["task"]]
    kinds = [cell.kind for cell in plan.cells.values() if cell.labels["method"] == "tapt"]
    assert (kinds.count("adapt"), kinds.count("loss"), kinds.count("finetune")) == (2, 4, 4)
    (shared,) = [cell.key for cell in adaptations(plan) if cell.labels["method"] == "mlm"]
    assert {cell.needs for cell in plan.cells.values() if cell.labels["method"] == "mlm"} == {None, shared}


def test_what_the_file_says_goes_before_what_the_method_says(folder):
    methods = ["none", {"name": "mlm", "on": "task"}, {"name": "tapt", "on": "domain"}]
    plan = plan_of(folder, methods)
    assert [(cell.labels["method"], cell.labels.get("task")) for cell in adaptations(plan)] == [
        ("mlm (on=task)", "intent"),
        ("mlm (on=task)", "aspect"),
        ("tapt (on=domain)", None),
    ]
    assert next(iter(plan.adapt[adaptations(plan)[0].key]["corpus"])) == "intent train text 0"
    with pytest.raises(UserError, match="leave out 'on'"):
        plan_of(folder, ["none", {"name": "dapt+tapt", "on": "task"}])
    with pytest.raises(UserError, match=r"methods\[0\]\.on"):
        plan_of(folder, [{"name": "mlm", "on": "tasks"}])


def test_a_method_that_needs_the_task_gets_it_and_reads_the_domain(folder):
    plan = plan_of(folder, ["none", "mlm", "selective", "dapt+tapt"])
    assert not plan.task_texts
    corpus = {cell.labels["method"]: cell.identity["corpus"] for cell in adaptations(plan)}
    assert len(set(corpus.values())) == 1
    for cell in adaptations(plan):
        task = plan.adapt[cell.key].get("task")
        if cell.labels["method"] == "mlm":
            assert task is None and "task" not in cell.identity
        else:
            assert task.name == cell.labels["task"] and cell.identity["task"] == task.fingerprint()
    assert len(adaptations(plan)) == 1 + 2 + 2


def test_two_tasks_with_the_same_text_share_an_adaptation(folder):
    same = replace(parts(World()), task_text=lambda task: Corpus.of(["one text", "another"]))
    plan = make_plan(StudyConfig.of(values(folder, ["none", "tapt"])), same)
    assert len(adaptations(plan)) == 1
    assert [cell.labels["task"] for cell in plan.entries if cell.kind == "adapt"] == ["intent", "aspect"]


def test_results_and_reports_have_a_row_for_each_task(folder, tmp_path):
    world = World()
    results = compare(values(folder, ["none", "mlm", {"name": "dga", "on": "task"}]), tmp_path / "out",
                      parts=parts(world), progress=False)  # fmt: skip
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
    assert json.loads((tmp_path / "out" / "results.json").read_text())["cells"]["failed"] == 0


def test_held_out_text_is_measured_during_training_where_it_is_asked_for(folder):
    plan = plan_of(folder, ["none", "mlm"], adapt={"tokens": 200_000, "heldout_every": 50})
    (cell,) = adaptations(plan)
    assert cell.key not in BEFORE.values()
    assert cell.identity["heldout"] == plan.texts["domain cs"].identity
    assert cell.identity["settings"]["heldout_every"] == 50
    assert sorted(plan.adapt[cell.key]["heldout"]) == sorted(plan.texts["domain cs"].texts)
    assert "heldout" not in adaptations(plan_of(folder, ["none", "mlm"]))[0].identity
