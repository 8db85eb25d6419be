"""Rows of distillation in a study: what cells they make, and a study from adaptation to distillation."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml

from acclimate.errors import UserError
from acclimate.study import Parts, compare
from acclimate.study.config import StudyConfig
from acclimate.study.distilling import OWN
from acclimate.study.plan import make_plan
from acclimate.study.shards import Shard
from tests.cases import each
from tests.study.fakes import World, files, study
from tests.study.test_real import folder, write_study  # noqa: F401
from tests.tasks.distillation.conftest import save_student
from tests.tiny import save_tiny


def fake_parts():
    world = World()
    defaults = {"epochs": 10, "learning_rate": 1e-5, "teacher_epochs": 5, "teacher_penalty": 0.3, "batch_size": 16}
    defaults |= {
        "student_epochs": 5,
        "few_shot": None,
        "select": "last",
        "metric": None,
        "objective": "boundary",
        "progress": True,
        "seed": 0,
    }
    return dataclasses.replace(
        world.parts(), distill_defaults=lambda: defaults, knows_task=lambda path, task: "ready" in str(path)
    )


@pytest.fixture
def two_models(tmp_path):
    files(tmp_path)
    for name in ("other", "ready"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": name}))
    models = [str(tmp_path / "model"), str(tmp_path / "other")]

    def plan(distill, **changes):
        values = study(tmp_path, models=models, methods=["none", "mlm"], distill=distill, **changes)
        return make_plan(StudyConfig.of(values), fake_parts())

    plan.folder = tmp_path
    return plan


def cells(plan, kind):
    return [cell for cell in plan.cells.values() if cell.kind == kind]


ROW = {"teacher": {"model": "model", "method": "mlm"}}


def test_the_seeds_share_a_teacher_and_it_comes_from_its_adaptation(two_models):
    plan = two_models([ROW])
    (teacher,) = cells(plan, "teacher")
    adapted = [cell.key for cell in cells(plan, "adapt") if cell.labels["model"] == "model"]
    assert [teacher.needs] == adapted
    students = cells(plan, "distill")
    assert [cell.labels["seed"] for cell in students] == [0, 1, 2]
    assert {cell.needs for cell in students} == {teacher.key}
    assert {(cell.labels["model"], cell.labels["method"]) for cell in students} == {
        ("other", "distilled from model, mlm")
    }
    # what the study says of fine-tuning holds for both, and not for the phases
    assert teacher.identity["settings"]["epochs"] == 3
    assert teacher.identity["settings"]["confidence_penalty"] == 0.3
    assert (students[0].identity["settings"]["student_epochs"], students[0].identity["settings"]["epochs"]) == (3, 10)
    order = list(plan.cells)
    assert all(order.index(cell.needs) < order.index(cell.key) for cell in plan.cells.values() if cell.needs)


def test_keys_of_stored_studies_know_these_keywords_alone():
    # Every default is part of the key, so a keyword that distill() is given later must be left out of it.
    names = "objective epochs distill_share learning_rate confidence_penalty margin scale temperature connector"
    names += " connector_learning_rate schedule teacher_epochs teacher_learning_rate teacher_penalty student_epochs"
    names += " student_learning_rate batch_size max_length few_shot select warmup weight_decay precision"
    assert {*(Parts().distill_defaults() or {})} - {*OWN} == {*names.split()}


def test_each_adaptation_has_a_teacher_and_each_draw_of_few(two_models):
    plan = two_models([ROW], adapt_seeds=[5, 6])
    assert [cell.labels["seed"] for cell in cells(plan, "teacher")] == [5, 6]
    needs = [cell.needs for cell in cells(plan, "distill")]
    assert needs[0] == needs[2] != needs[1]
    plan = two_models([ROW], finetune={"few_shot": 2})
    assert [cell.labels["seed"] for cell in cells(plan, "teacher")] == [0, 1, 2]


def test_rows_that_differ_after_the_teacher_share_it(two_models):
    plan = two_models([ROW, {**ROW, "objective": "kl"}, {**ROW, "teacher_penalty": 0, "label": "no calibration"}])
    assert len(cells(plan, "teacher")) == 2
    assert len(cells(plan, "distill")) == 9
    assert "distilled from model, mlm (objective=kl)" in [cell.labels["method"] for cell in cells(plan, "distill")]
    plan = two_models([{**ROW, "learning_rate": "1e-4"}])  # as YAML reads it
    assert cells(plan, "distill")[0].identity["settings"]["learning_rate"] == 1e-4


def test_rows_of_one_seed_follow_each_other_and_find_what_the_first_one_learnt(two_models):
    rows = [{**ROW, "label": "DoKTra"}, {**ROW, "label": "KL", "objective": "kl"}]
    students = [(cell.labels["seed"], cell.labels["method"]) for cell in cells(two_models(rows), "distill")]
    assert students == [(seed, label) for seed in (0, 1, 2) for label in ("DoKTra", "KL")]


def test_a_classifier_from_elsewhere_teaches_as_it_is(two_models):
    plan = two_models([{"teacher": {"path": str(two_models.folder / "ready")}}])
    assert not cells(plan, "teacher")
    assert {cell.labels["model"] for cell in cells(plan, "distill")} == {"model", "other"}
    assert {cell.needs for cell in cells(plan, "distill")} == {None}
    plan = two_models([{"teacher": str(two_models.folder / "other"), "students": "model"}])
    assert len(cells(plan, "teacher")) == 1
    assert {cell.labels["model"] for cell in cells(plan, "distill")} == {"model"}


def test_other_cells_keep_their_keys_and_shards_keep_chains_together(two_models):
    plan, before = two_models([ROW]), two_models([])
    assert list(plan.cells)[: len(before.cells)] == list(before.cells)
    (teacher,) = cells(plan, "teacher")
    for index in (1, 2, 3):
        own = Shard(index, 3).own(plan.cells)
        chain = {teacher.needs, teacher.key, *(cell.key for cell in cells(plan, "distill"))}
        assert chain <= set(own) or not chain & set(own)


@each(
    ("row", "message"),
    [
        ({"teacher": {"model": "modle", "method": "mlm"}}, "Did you mean 'model'"),
        ({"teacher": {"model": "model", "method": "mln"}}, "Did you mean 'mlm'"),
        ({**ROW, "students": ["nobody"]}, "Unknown model in the row"),
        ({**ROW, "epochz": 3}, "Did you mean 'epochs'"),
        ({**ROW, "objective": "kd"}, "of distill: Unknown objective 'kd'"),
        ({**ROW, "epochs": 1}, "not one whole epoch"),
        ({"teacher": {"model": "model", "path": "model"}}, "give one"),
        ({**ROW, "label": "mlm"}, "'mlm' stands twice"),
    ],
)
def test_rows_that_make_no_sense(two_models, row, message):
    with pytest.raises(UserError, match=message):
        two_models([row])


def test_a_study_with_one_model_has_no_student(tmp_path):
    files(tmp_path)
    with pytest.raises(UserError, match="has no student; add another model"):
        make_plan(StudyConfig.of(study(tmp_path, distill=[{"teacher": {"model": "model"}}])), fake_parts())


def test_the_study_of_the_page_is_one():
    page = (Path(__file__).resolve().parents[2] / "docs" / "distill.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    config = StudyConfig.of(yaml.safe_load(text))
    assert [row.label for row in config.distill] == ["doktra", "kl", "from outside"]
    assert config.distill[1].settings == {"objective": "kl"}


def test_adapt_and_distil_in_one_file(folder):  # noqa: F811
    save_tiny("bert", folder / "model")
    save_student(folder / "student")
    path = write_study(folder, "[none, mlm]", "model, student")
    row = "{label: doktra, teacher: {model: model, method: mlm}, epochs: 2, distill_share: 0.5, learning_rate: 1e-3}"
    path.write_text(path.read_text() + f"distill:\n- {row}\n")
    results = compare(path, folder / "out", progress=False)
    assert not results["failures"]
    rows = [(score["model"], score["method"]) for score in results["scores"]]
    assert rows == [(m, method) for m in ("model", "student") for method in ("none", "mlm")] + [("student", "doktra")]
    assert len(results["scores"][-1]["difference"]["seeds"]) == 2
    (made,) = results["distillations"]
    assert (made["model"], made["units"], len(made["disagreement"])) == ("student", 24, 3)
    assert made["seconds"] > 0 and made["teacher_seconds"] > 0
    spent = results["scores"][-1]["stage_seconds"]
    assert list(spent) == ["teacher", "student", "distillation", "sum"] and min(spent.values()) > 0
    assert spent["teacher"] >= made["teacher_seconds"]
    assert spent["student"] + spent["distillation"] == pytest.approx(made["seconds"])  # the teacher is another cell
    page = (folder / "out" / "results.md").read_text()
    assert "## Distillation" in page and "Time per score" in page
    again = compare(path, folder / "out", progress=False)
    assert (again["cells"]["done"], again["cells"]["reused"]) == (0, results["cells"]["total"])
    path.write_text(path.read_text() + "baseline: doktra\n")
    turned = {(row["model"], row["method"]): row for row in compare(path, folder / "out", progress=False)["scores"]}
    assert "difference" not in turned["student", "doktra"] and "difference" not in turned["model", "mlm"]
    was, now = (row["difference"]["macro_f1"] for row in (results["scores"][-1], turned["student", "none"]))
    assert now["difference"] == -was["difference"]
    path.write_text(path.read_text().replace("baseline: doktra\n", ""))
    # another seed has the teacher that is there
    (folder / "study.yaml").write_text(path.read_text().replace("seeds: 2", "seeds: 3"))
    more = compare(path, folder / "out", progress=False)
    assert more["cells"]["done"] == 2 * 2 + 1  # a seed of both models and methods, and of the student
