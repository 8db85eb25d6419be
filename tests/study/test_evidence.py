"""What was lost and what leaked in a study: other tasks, movement, and test texts in the corpus."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from acclimate.errors import UserError
from acclimate.report import markdown, render, summarize
from acclimate.study import StudyConfig, compare
from acclimate.study.plan import make_plan
from acclimate.training.method import cache_folder
from tests.study.fakes import World, study

LEAKED = "cs document number 7 of many"


def moved(base, adapted, texts, *, max_length):
    layer = {"cka": 0.9, "distance": 1.0, "share": 0.1, "cosine": 0.95}
    movement = {"distance": 0.05, "coordinate": 0.01, "share": 0.02, "cosine": 0.99, "moved": 1.0, "tokens": 7}
    layers = [layer, {**layer, "cka": 0.7}, {**layer, "cka": 0.8}]
    return {"texts": len(texts), "tokens": 99, "embeddings": {"all": movement, "read": movement}, "layers": layers}


def parts(world, texts=None, items=None):
    told = [lambda task, of=of or {}: of.get(task.name, {}) for of in (texts, items)]
    return replace(world.parts(), moved=moved, judged_texts=told[0], item_texts=told[1])


def keys(folder, **changes) -> dict[str, set[str]]:
    plan = make_plan(StudyConfig.of(study(folder, **changes)), parts(World()))
    found: dict[str, set[str]] = {}
    for cell in plan.cells.values():
        found.setdefault(cell.kind, set()).add(cell.key)
    return found


@pytest.mark.parametrize("extra", [{"other_tasks": ["aspect"]}, {"evaluate": {"documents": 20, "moved": True}}])
def test_evidence_adds_cells_and_changes_none(folder, extra):
    if "other_tasks" in extra:
        extra = {"other_tasks": [str(folder / "aspect")]}
    before, after = keys(folder), keys(folder, **extra)
    assert all(before[kind] <= after[kind] for kind in before)
    added = {kind: len(after[kind] - before.get(kind, set())) for kind in after}
    assert {kind: count for kind, count in added.items() if count} in ({"finetune": 9}, {"moved": 2})


def test_other_tasks_are_learnt_by_every_adapted_model(folder, tmp_path):
    world = World()
    values = study(folder, other_tasks=[{"path": str(folder / "aspect"), "epochs": 2}])
    results = compare(values, tmp_path / "out", progress=False, parts=parts(world))
    asked = [call for call in world.arguments if call["kind"] == "finetune" and call["task"] == "aspect"]
    assert len(asked) == 9 and {call["epochs"] for call in asked} == {2}
    assert [(row["method"], row["task"]) for row in results["kept"]] == [
        ("mlm", "aspect"),
        ("dga, no contrast", "aspect"),
    ]
    row = results["kept"][0]
    difference = row["difference"]["accuracy"]  # that of the fakes in all metrics
    assert row["macro_f1"]["mean"] - row["before"] == pytest.approx(difference["difference"])
    difference = row["difference"]["macro_f1"]
    assert difference["p_holm"] >= difference["p"] and len(row["difference"]["seeds"]) == 3
    assert {score["task"] for score in results["scores"]} == {"intent"}  # they are no scores of the domain
    page = markdown(results)
    assert "## Forgetting on other tasks" in page and "On tasks of other domains, mlm hurt on" in page
    again = World()
    compare(values, tmp_path / "out", progress=False, parts=parts(again))
    assert not again.arguments


def test_the_reference_is_the_model_as_it_came_whatever_the_baseline(folder, tmp_path):
    values = study(folder, methods=["mlm", "dga"], baseline="mlm", other_tasks=[str(folder / "aspect")])
    results = compare(values, tmp_path / "out", progress=False, parts=parts(World()))
    assert [row["method"] for row in results["kept"]] == ["mlm", "dga"]
    assert all(row["difference"] for row in results["kept"])


def test_a_task_of_the_domain_itself_is_no_other_task(folder):
    domains = [
        {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [str(folder / "intent")]},
        {"name": "food", "corpus": str(folder / "food.txt"), "tasks": [str(folder / "aspect")]},
    ]
    others = [str(folder / "intent"), {"path": str(folder / "aspect"), "name": "aspect"}]
    plan = make_plan(StudyConfig.of(study(folder, domains=domains, other_tasks=others)), parts(World()))
    kept = {(cell.labels["domain"], cell.labels["task"]) for cell in plan.entries if cell.labels.get("role") == "kept"}
    assert kept == {("cs", "aspect"), ("food", "intent")}


def test_a_teacher_is_not_taken_from_other_tasks(folder):
    (folder / "small").mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / "small" / name).write_text(f"{{}} {name}")
    row = {"teacher": {"model": "model", "method": "mlm"}, "label": "distilled", "students": ["small"]}
    values = study(
        folder,
        models=[str(folder / "model"), str(folder / "small")],
        methods=["none", "mlm"],
        other_tasks=[{"path": str(folder / "aspect"), "name": "intent"}],
    )
    world = replace(parts(World()), distill_defaults=lambda: {"kd": 0.0}, knows_task=lambda path, task: False)
    plain = make_plan(StudyConfig.of({**values, "other_tasks": [], "distill": [row]}), world)
    other = make_plan(StudyConfig.of({**values, "distill": [row]}), world)
    for kind in ("teacher", "distill"):
        found = [{cell.key for cell in plan.cells.values() if cell.kind == kind} for plan in (plain, other)]
        assert found[0] == found[1] and found[0]


def test_movement_is_measured_where_it_is_asked_for(folder, tmp_path):
    values = study(folder, evaluate={"documents": 20, "moved": True}, adapt_seeds=[0, 1])
    results = compare(values, tmp_path / "out", progress=False, parts=parts(World()))
    assert [row["method"] for row in results["moved"]] == ["mlm", "dga, no contrast"]
    assert results["moved"][0]["adapt_seeds"] == [0, 1]
    assert [layer["cka"] for layer in results["moved"][0]["layers"]] == pytest.approx([0.9, 0.7, 0.8])
    assert "## Representation drift" in markdown(results)
    assert compare(study(folder), tmp_path / "plain", progress=False, parts=parts(World()))["moved"] == []
    with pytest.raises(UserError, match=r"evaluate\.moved measures on general text"):
        StudyConfig.of(study(folder, evaluate={"moved": True}, general=None))


def test_bits_per_byte_stand_beside_nats(folder, tmp_path):
    world = World()

    def with_bits(*args, **options):
        found = world.lm_loss(*args, **options)
        return {**found, "bits_per_byte": found["nats"] / 3}

    results = compare(study(folder), tmp_path / "o", progress=False, parts=replace(parts(world), lm_loss=with_bits))
    row = next(row for row in results["losses"] if row["text"] == "general" and row["method"] == "mlm")
    assert row["bits_per_byte"] == pytest.approx(row["nats"] / 3)
    assert row["bits_per_byte_before"] == pytest.approx(row["before"] / 3)
    assert "bits per byte: before" in markdown(results)
    old = compare(study(folder), tmp_path / "old", progress=False, parts=parts(World()))
    assert "bits per byte" not in markdown(old)


def corpora(world: World) -> list[list[str]]:
    return [call["documents"] for call in world.arguments if call["kind"] == "adapt"]


TEXTS = {"intent": {"dev": ["cs document, number 9 of many!"], "test": [LEAKED, "nothing of the kind"]}}


def test_leakage_is_reported_and_the_text_stays(folder, tmp_path, capsys):
    world = World()
    results = compare(study(folder), tmp_path / "out", parts=parts(world, TEXTS))
    (found,) = results["leakage"]
    assert (found["domain"], found["flagged"], found["removed"]) == ("cs", 2, False)
    assert [(row["task"], row["split"], row["texts"], row["found"]) for row in found["texts"]] == [
        ("intent", "dev", 1, 1),
        ("intent", "test", 2, 1),
    ]
    assert found["examples"][0]["task"] == "intent" and "digests" not in found
    assert all(LEAKED in documents for documents in corpora(world))
    page = markdown(results)
    assert "1 of the 2 test texts of intent, without labels" in page and "## Test texts in the corpus" in page
    assert "2 documents of cs hold 2 dev or test texts" in " ".join(capsys.readouterr().err.split())
    assert json.loads((tmp_path / "out" / "results.json").read_text())["leakage"] == results["leakage"]


def test_leakage_is_removed_before_adaptation(folder, tmp_path):
    world = World()
    values = study(folder, leakage="remove")
    results = compare(values, tmp_path / "out", progress=False, parts=parts(world, TEXTS))
    assert results["leakage"][0]["removed"]
    whole = World()
    compare(study(folder), tmp_path / "whole", progress=False, parts=parts(whole, TEXTS))
    for clean, dirty in zip(corpora(world), corpora(whole), strict=True):
        assert set(dirty) - set(clean) == {LEAKED, "cs document number 9 of many"}
    assert "excluded from adaptation" in markdown(results)
    assert "'leakage: remove'" not in markdown(results).split("##")[0]


def test_removal_changes_the_cells_of_adapted_models_alone_and_only_if_something_leaked(folder):
    def plan(texts, **changes):
        return make_plan(StudyConfig.of(study(folder, **changes)), parts(World(), texts)).cells

    before = plan(TEXTS)
    assert plan(TEXTS, leakage="off").keys() == plan({}, leakage="remove").keys() == before.keys()
    after = plan(TEXTS, leakage="remove")
    assert {cell.labels["method"] for key, cell in before.items() if key not in after} == {"mlm", "dga, no contrast"}


def test_a_corpus_is_looked_at_once(folder, tmp_path, monkeypatch):
    compare(study(folder), tmp_path / "out", progress=False, parts=parts(World(), TEXTS))

    def never(*args, **options):
        raise AssertionError("it was looked at already")

    monkeypatch.setattr("acclimate.study.leaks.find_contamination", never)
    for options in ({}, {"report_only": True}, {"shard": "1/2"}):
        results = compare(study(folder), tmp_path / "out", progress=False, parts=parts(World(), TEXTS), **options)
        assert results["leakage"][0]["flagged"] == 2
    assert (
        compare(study(folder, leakage="off"), tmp_path / "out", progress=False, parts=parts(World(), TEXTS))["leakage"]
        == []
    )


def test_what_was_not_looked_for_is_told(folder, tmp_path):
    values = study(folder)
    world = parts(World(), TEXTS)
    for number in ("1/2", "2/2"):
        compare(values, tmp_path / "out", shard=number, progress=False, parts=world)
    shutil.rmtree(cache_folder() / "leakage")
    told = {}
    for name, options in (("report", {"report_only": True}), ("whole", {})):
        results = compare(values, tmp_path / "out", progress=False, parts=world, **options)
        told[name] = [text for text in summarize(results).caveats if "the text of cs was not searched" in text]
        assert bool(results["leakage"]) == (name == "whole")
    assert told["report"] and not told["whole"]


TWICE = "A sentence that stands in train and in test, learnt with its label before it is asked for."
ITEMS = {
    "intent": {
        "train": [TWICE.upper(), "cs document, number 8 of many"],
        "dev": ["Of its own."],
        "test": [TWICE, "x"],
    },
    "aspect": {"train": ["nothing of another task is looked for here"], "test": ["nothing of it", TWICE]},
}


def test_texts_in_the_train_split_are_told_and_stay(folder, tmp_path, capsys, monkeypatch):
    # TWICE is in train of intent and test of aspect, which is no find: models learn one task at a time.
    values = study(folder, leakage="remove", other_tasks=[str(folder / "aspect")])
    results = compare(values, tmp_path / "out", parts=parts(World(), TEXTS, ITEMS))
    corpus, intent, aspect = results["leakage"]
    assert "train_of" not in corpus and corpus["removed"] and corpus["flagged"] == 2
    assert (intent["domain"], intent["train_of"], intent["documents"], intent["flagged"]) == ("cs", "intent", 2, 1)
    assert not intent["removed"] and "digests" not in intent
    assert [(row["split"], row["texts"], row["exact"]) for row in intent["texts"]] == [("dev", 1, 0), ("test", 2, 1)]
    assert [(one["task"], one["split"], one["text"]) for one in intent["examples"]] == [("intent", "test", TWICE)]
    assert (aspect["train_of"], aspect["flagged"]) == ("aspect", 0)
    page = markdown(results)
    (said,) = (line for line in page.split("##")[0].splitlines() if "Train splits contain" in line)
    assert "1 of the 2 test texts of intent. All methods train on the same texts with a label" in said
    assert "aspect" not in said and "leakage: remove" not in said
    table = page.split("## Test texts in train splits")[1].split("##")[0]
    assert [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| aspect")] == [
        [" aspect ", " test ", " aspect "]
    ]
    told = " ".join(capsys.readouterr().err.split())
    assert "the train split of intent holds 1 dev or test texts of intent; they are learnt there with a label" in told

    def never(*args, **options):
        raise AssertionError("what was found is kept")

    monkeypatch.setattr("acclimate.study.leaks.find_contamination", never)
    again = compare(values, tmp_path / "out", progress=False, parts=parts(World(), TEXTS, ITEMS))
    assert again["leakage"] == results["leakage"]
    off = compare({**values, "leakage": "off"}, tmp_path / "out", progress=False, parts=parts(World(), TEXTS, ITEMS))
    assert off["leakage"] == [] and "Test texts in train" not in markdown(off)


def test_what_train_splits_hold_changes_no_cell(folder):
    plans = [
        make_plan(StudyConfig.of(study(folder, leakage=leakage)), parts(World(), None, items))
        for leakage, items in (("off", {}), ("report", ITEMS), ("remove", ITEMS))
    ]
    assert plans[0].cells.keys() == plans[1].cells.keys() == plans[2].cells.keys()


def test_the_task_that_is_learnt_before_counts_and_the_same_task_once(folder, tmp_path):
    (folder / "before").write_text("before")
    task = {"path": str(folder / "intent"), "first": str(folder / "before")}
    domains = [{"name": name, "corpus": str(folder / f"{name}.txt"), "tasks": [task]} for name in ("cs", "food")]
    items = {"intent": {"train": ["x y"], "test": [TWICE]}, "before": {"train": [TWICE], "test": ["x y"]}}
    world = replace(parts(World(), None, items), check_first=lambda first, task: None)
    world = replace(world, finetune_defaults=lambda: {"first": None, "epochs": 5})
    results = compare(study(folder, domains=domains), tmp_path / "out", progress=False, parts=world)
    assert [(row["train_of"], row["texts"][0]["task"], row["flagged"]) for row in results["leakage"]] == [
        ("intent", "intent", 0),
        ("before", "intent", 1),
    ]
    assert "1 of the 1 test texts of intent (in before, which is trained on before)" in markdown(results)


def test_yaml_reads_a_bare_off_as_false_and_a_slip_is_told(folder):
    assert StudyConfig.of(study(folder, leakage=False)).leakage == "off"
    with pytest.raises(UserError, match="'leakage'"):
        StudyConfig.of(study(folder, leakage="delete"))


def test_what_comes_from_data_is_escaped(folder, tmp_path):
    texts = {"intent": {"<b>test</b>": [LEAKED]}}
    results = compare(study(folder), tmp_path / "out", progress=False, parts=parts(World(), texts))
    assert "<b>test</b>" not in render(results) and "&lt;b&gt;test&lt;/b&gt;" in render(results)
    items = {"intent": {"train": [LEAKED], "<i>test</i>": [LEAKED]}}
    results = compare(study(folder), tmp_path / "out", progress=False, parts=parts(World(), None, items))
    assert "Train splits contain 1 of the 1 &lt;i&gt;test" in render(results) and "<i>test</i>" not in render(results)


def test_the_change_of_a_single_text_is_no_evidence(folder, tmp_path):
    results = compare(study(folder, evaluate={"documents": 1}), tmp_path / "o", progress=False, parts=parts(World()))
    assert results["losses"] and not any("difference" in row for row in results["losses"])
    assert "general text is unknown" in markdown(results) and render(results)
