"""Forgetting of other tasks, drift, and test-set contamination in a study."""

from __future__ import annotations

import json
import shutil

import pytest

from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder
from acclimate.report import markdown, render, summarize
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.job import FORGETTING
from tests.study.fakes import World, graph_of, of_kind, study, write_task

pytestmark = pytest.mark.usefixtures("no_report")

LEAKED = "cs document number 7 of many"


def keys(values) -> dict[str, set[str]]:
    graph = graph_of(values)
    return {kind: {job.key for job in of_kind(graph, kind)} for kind in ("adapt", "lm_loss", "drift", "finetune")}


@pytest.mark.parametrize("extra", [{"other_tasks": ["aspect"]}, {"evaluate": {"documents": 20, "drift": True}}])
def test_further_measurements_add_jobs_and_change_none(folder, extra):
    if "other_tasks" in extra:
        extra = {"other_tasks": [str(folder / "aspect")]}
    before, after = keys(study(folder)), keys(study(folder, **extra))
    assert all(before[kind] <= after[kind] for kind in before)
    added = {kind: len(after[kind] - before[kind]) for kind in after}
    assert {kind: count for kind, count in added.items() if count} in ({"finetune": 9}, {"drift": 2})


@pytest.mark.needs("dga")
def test_every_adapted_model_is_fine_tuned_on_other_tasks(folder, tmp_path):
    world = World()
    values = study(folder, other_tasks=[{"path": str(folder / "aspect"), "epochs": 2}], adapt_seeds=None)
    results = compare(values, tmp_path / "out", progress=False, backend=world.backend())
    asked = [call for call in world.arguments if call["kind"] == "finetune" and call["task"] == "aspect"]
    assert len(asked) == 9 and {call["epochs"] for call in asked} == {2}
    assert [(row["method"], row["task"]) for row in results["forgetting"]] == [
        ("mlm", "aspect"),
        ("dga, no contrast", "aspect"),
    ]
    row = results["forgetting"][0]
    difference = row["difference"]["accuracy"]  # the fake backend has the same difference in all metrics
    assert row["macro_f1"]["mean"] - row["before"] == pytest.approx(difference["difference"])
    difference = row["difference"]["macro_f1"]
    assert difference["p_holm"] >= difference["p"] and len(row["difference"]["seeds"]) == 3
    # Scores of other tasks are not listed as scores of the domain.
    assert {score["task"] for score in results["scores"]} == {"intent"}
    page = markdown(results)
    assert "## Forgetting on other tasks" in page and "On tasks of other domains, mlm hurt on" in page
    again = World()
    compare(values, tmp_path / "out", progress=False, backend=again.backend())
    assert not again.arguments


@pytest.mark.needs("dga")
def test_the_reference_is_the_base_model_whatever_the_baseline(folder, tmp_path):
    values = study(folder, methods=["mlm", "dga"], baseline="mlm", other_tasks=[str(folder / "aspect")])
    results = compare(values, tmp_path / "out", progress=False, backend=World().backend())
    assert [row["method"] for row in results["forgetting"]] == ["mlm", "dga"]
    assert all(row["difference"] for row in results["forgetting"])


def test_a_task_of_the_domain_itself_does_not_measure_forgetting(folder):
    domains = [
        {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [str(folder / "intent")]},
        {"name": "food", "corpus": str(folder / "food.txt"), "tasks": [str(folder / "aspect")]},
    ]
    others = [str(folder / "intent"), {"path": str(folder / "aspect"), "name": "aspect"}]
    graph = graph_of(study(folder, domains=domains, other_tasks=others))
    found = {(job.place.domain, job.place.task) for job in of_kind(graph, "finetune", role=FORGETTING)}
    assert found == {("cs", "aspect"), ("food", "intent")}


def test_a_teacher_is_not_taken_from_other_tasks(folder):
    (folder / "small").mkdir()
    (folder / "small" / "config.json").write_text('{"model_type": "bert", "hidden_size": 4}')
    row = {"teacher": {"model": "model", "method": "mlm"}, "label": "distilled", "students": ["small"]}
    values = study(
        folder,
        models=[str(folder / "model"), str(folder / "small")],
        methods=["none", "mlm"],
        other_tasks=[{"path": str(folder / "aspect"), "name": "intent"}],
    )
    plain = graph_of({**values, "other_tasks": [], "distill": [row]})
    other = graph_of({**values, "distill": [row]})
    for kind in ("teacher", "distill"):
        found = [{job.key for job in of_kind(graph, kind)} for graph in (plain, other)]
        assert found[0] == found[1] and found[0]


@pytest.mark.needs("dga")
def test_drift_is_measured_if_the_study_asks_for_it(folder, tmp_path):
    values = study(folder, evaluate={"documents": 20, "drift": True}, adapt_seeds=[0, 1])
    results = compare(values, tmp_path / "out", progress=False, backend=World().backend())
    assert [row["method"] for row in results["rows"]["drift"]] == ["mlm", "dga, no contrast"]
    assert results["rows"]["drift"][0]["adapt_seeds"] == [0, 1]
    assert [layer["cka"] for layer in results["rows"]["drift"][0]["layers"]] == pytest.approx([0.9, 0.7, 0.8])
    assert "## Representation drift" in markdown(results)
    assert compare(study(folder), tmp_path / "plain", progress=False, backend=World().backend()).rows == {}
    with pytest.raises(UserError, match=r"evaluate\.drift measures on general text"):
        StudyConfig.of(study(folder, evaluate={"drift": True}, general=None))


def test_bits_per_byte_are_reported_with_nats(folder, tmp_path):
    world = World()

    def with_bits(*args, **options):
        found = world.lm_loss(*args, **options)
        return {**found, "bits_per_byte": found["nats"] / 3}

    results = compare(study(folder), tmp_path / "o", progress=False, backend=world.backend(lm_loss=with_bits))
    row = next(row for row in results["losses"] if row["text"] == "general" and row["method"] == "mlm")
    assert row["bits_per_byte"] == pytest.approx(row["nats"] / 3)
    assert row["bits_per_byte_before"] == pytest.approx(row["before"] / 3)
    assert "bits per byte: before" in markdown(results)
    old = compare(study(folder), tmp_path / "old", progress=False, backend=World().backend())
    assert "bits per byte" not in markdown(old)


def corpora(world: World) -> list[list[str]]:
    return [call["documents"] for call in world.arguments if call["kind"] == "adapt"]


@pytest.fixture
def leaked(folder):
    """A dev and a test text of the task are also in the corpus."""
    write_task(folder / "intent", "intent", dev=["cs document, number 9 of many!", "other"], test=[LEAKED, "nothing"])
    return folder


def test_contamination_is_reported_and_the_text_stays(leaked, folder, tmp_path, capsys):
    world = World()
    results = compare(study(folder), tmp_path / "out", backend=world.backend())
    found, _ = results["contamination"]
    assert (found["domain"], found["flagged"], found["removed"]) == ("cs", 2, False)
    assert [(row["task"], row["split"], row["texts"], row["found"]) for row in found["texts"]] == [
        ("intent", "dev", 2, 1),
        ("intent", "test", 2, 1),
    ]
    assert "examples" not in found and "digests" not in found
    assert all(LEAKED in documents for documents in corpora(world))
    page = markdown(results)
    assert "1 of the 2 test texts of intent, without labels" in page and "## Test texts in the corpus" in page
    assert "2 documents of cs with 2 dev or test texts" in " ".join(capsys.readouterr().err.split())
    assert json.loads((tmp_path / "out" / "results.json").read_text())["contamination"] == results["contamination"]


def test_contamination_is_removed_before_adaptation(leaked, folder, tmp_path):
    world = World()
    values = study(folder, leakage="remove")
    results = compare(values, tmp_path / "out", progress=False, backend=world.backend())
    assert results["contamination"][0]["removed"]
    whole = World()
    compare(study(folder), tmp_path / "whole", progress=False, backend=whole.backend())
    for clean, dirty in zip(corpora(world), corpora(whole), strict=True):
        assert set(dirty) - set(clean) == {LEAKED, "cs document number 9 of many"}
    assert "excluded from adaptation" in markdown(results)
    assert "'leakage: remove'" not in markdown(results).split("##")[0]


@pytest.mark.needs("dga")
def test_removal_changes_the_jobs_of_adapted_models_alone_and_only_if_something_was_found(folder):
    def jobs(**changes):
        return graph_of(study(folder, **changes)).jobs

    before = jobs()
    assert jobs(leakage="off").keys() == jobs(leakage="remove").keys() == before.keys()
    write_task(folder / "intent", "intent", test=[LEAKED, "nothing", "more"])
    before = jobs()
    after = jobs(leakage="remove")
    assert {job.place.method for key, job in before.items() if key not in after} == {"mlm", "dga, no contrast"}


def test_a_corpus_is_searched_once(leaked, folder, tmp_path, monkeypatch):
    compare(study(folder), tmp_path / "out", progress=False, backend=World().backend())

    def never(*args, **options):
        raise AssertionError("the findings are cached")

    monkeypatch.setattr("acclimate.study.contamination.find_contamination", never)
    for options in ({}, {"report_only": True}, {"shard": "1/2"}):
        results = compare(study(folder), tmp_path / "out", progress=False, backend=World().backend(), **options)
        assert results["contamination"][0]["flagged"] == 2
    assert (
        compare(study(folder, leakage="off"), tmp_path / "out", progress=False, backend=World().backend())[
            "contamination"
        ]
        == []
    )


def test_text_that_was_not_searched_is_reported(leaked, folder, tmp_path):
    values, world = study(folder), World().backend()
    for number in ("1/2", "2/2"):
        compare(values, tmp_path / "out", shard=number, progress=False, backend=world)
    shutil.rmtree(cache_folder() / "leakage")
    found = {}
    for name, options in (("report", {"report_only": True}), ("whole", {})):
        results = compare(values, tmp_path / "out", progress=False, backend=world, **options)
        found[name] = [text for text in summarize(results).caveats if "the text of cs" in text and "searched" in text]
        assert bool(results["contamination"]) == (name == "whole")
    assert found["report"] and not found["whole"]


TWICE = "A sentence that is in train and in test, learned with its label before it is tested."


@pytest.fixture
def twice(folder):
    """A test text is in the train split of the same task, and in the test split of another one."""
    train = [TWICE.upper(), "cs document, number 8 of many"]
    write_task(folder / "intent", "intent", train=train, dev=["Of its own.", "too"], test=[TWICE, "x"])
    train = ["nothing of another task is searched for here", "neither here"]
    write_task(folder / "aspect", "aspect", train=train, dev=["a", "b"], test=["nothing of it", TWICE])
    return folder


def test_texts_in_the_train_split_are_reported_and_stay(twice, folder, tmp_path, capsys, monkeypatch):
    # TWICE in train of intent and in test of aspect does not count: a model learns one task at a time.
    values = study(folder, leakage="remove", other_tasks=[str(folder / "aspect")])
    results = compare(values, tmp_path / "out", backend=World().backend())
    corpus, intent, aspect = results["contamination"]
    assert "train_of" not in corpus and corpus["removed"] and corpus["flagged"] == 0
    assert (intent["domain"], intent["train_of"], intent["documents"], intent["flagged"]) == ("cs", "intent", 2, 1)
    assert not intent["removed"] and "digests" not in intent
    assert [(row["split"], row["texts"], row["exact"]) for row in intent["texts"]] == [("dev", 2, 0), ("test", 2, 1)]
    assert (aspect["train_of"], aspect["flagged"]) == ("aspect", 0)
    page = markdown(results)
    (said,) = (line for line in page.split("##")[0].splitlines() if "Train splits contain" in line)
    assert "1 of the 2 test texts of intent. All methods train on the same texts with a label" in said
    assert "aspect" not in said and "leakage: remove" not in said
    table = page.split("## Test texts in train splits")[1].split("##")[0]
    assert [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| aspect")] == [
        [" aspect ", f" {split} ", " aspect "] for split in ("dev", "test")
    ]
    printed = " ".join(capsys.readouterr().err.split())
    assert "the train split of intent holds 1 dev or test text of intent, with labels" in printed

    def never(*args, **options):
        raise AssertionError("the findings are cached")

    monkeypatch.setattr("acclimate.study.contamination.find_contamination", never)
    again = compare(values, tmp_path / "out", progress=False, backend=World().backend())
    assert again["contamination"] == results["contamination"]
    off = compare({**values, "leakage": "off"}, tmp_path / "out", progress=False, backend=World().backend())
    assert off["contamination"] == [] and "Test texts in train" not in markdown(off)


def test_groups_that_are_in_train_and_test_are_counted(folder, tmp_path, capsys):
    (folder / "notes").mkdir()
    for split, patients in (("train", "aabbcc"), ("test", "bccdd")):
        rows = [
            {"text": f"the {split} note with number {n}", "label": "xy"[n % 2], "case": f"p{patient}"}
            for n, patient in enumerate(patients)
        ]
        (folder / "notes" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = study(folder, other_tasks=[{"path": str(folder / "notes"), "group_column": ["patient", "case"]}])
    results = compare(values, tmp_path / "out", backend=World(items=5).backend())
    intent, notes = results["contamination"][-2:]
    (test,) = notes["texts"]
    assert (test["groups"], test["groups_in_train"], test["group_name"]) == (3, 2, "case")
    assert "groups" not in intent["texts"][0]
    page = markdown(results)
    assert "Train splits contain rows of 2 of 3 cases of the test split of notes." in page
    assert "2 of 3 cases" in page.split("## Test texts in train splits")[1].split("##")[0]
    printed = " ".join(capsys.readouterr().err.split())
    assert "the train split of notes has rows of 2 of 3 cases of its test split" in printed


def test_findings_in_train_splits_change_no_job(twice, folder):
    graphs = [graph_of(study(folder, leakage=leakage)) for leakage in ("off", "report", "remove")]
    assert graphs[0].jobs.keys() == graphs[1].jobs.keys() == graphs[2].jobs.keys()


def test_the_first_task_counts_and_the_same_task_once(folder, tmp_path):
    write_task(folder / "intent", "intent", train=["x y", "z"], dev=["d", "e"], test=[TWICE, "t"])
    write_task(folder / "before", "before", train=[TWICE, "z"], test=["x y", "t"])
    task = {"path": str(folder / "intent"), "first": str(folder / "before")}
    domains = [{"name": name, "corpus": str(folder / f"{name}.txt"), "tasks": [task]} for name in ("cs", "food")]
    results = compare(study(folder, domains=domains), tmp_path / "out", progress=False, backend=World().backend())
    assert [(row.train_of, row.texts[-1].task, row.flagged) for row in results.contamination[2:]] == [
        ("intent", "intent", 0),
        ("before", "intent", 1),
    ]
    assert "1 of the 2 test texts of intent (in before, its first task)" in markdown(results)


def test_yaml_reads_a_bare_off_as_false_and_typos_are_reported(folder):
    assert StudyConfig.of(study(folder, leakage=False)).leakage == "off"
    with pytest.raises(UserError, match="'leakage'"):
        StudyConfig.of(study(folder, leakage="delete"))


def test_names_from_data_are_escaped(folder, tmp_path):
    write_task(folder / "intent", "intent", train=[LEAKED, "x"], test=[LEAKED, "y"])
    task = {"path": str(folder / "intent"), "name": "<b>task</b>"}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    results = compare(study(folder, domains=domains), tmp_path / "out", progress=False, backend=World().backend())
    page = render(results)
    assert "Train splits contain 1 of the 2 test texts of &lt;b&gt;task" in page and "<b>task</b>" not in page


def test_the_difference_of_a_single_text_is_not_reported(folder, tmp_path):
    results = compare(
        study(folder, evaluate={"documents": 1}), tmp_path / "o", progress=False, backend=World().backend()
    )
    assert results["losses"] and not any("difference" in row for row in results["losses"])
    assert "general text is unknown" in markdown(results) and render(results)
