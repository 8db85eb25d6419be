"""Rows of distillation in a study: their jobs, and a study from adaptation to distillation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from acclimate.base.errors import UserError
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.graph import Shard
from tests.cases import each
from tests.study.fakes import files, graph_of, of_kind, study, write_classifier
from tests.study.test_real import folder, write_study  # noqa: F401
from tests.tasks.distillation.conftest import save_student
from tests.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.fixture
def two_models(tmp_path):
    files(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "bert", "hidden_size": 4}')
    write_classifier(tmp_path / "ready")
    models = [str(tmp_path / "model"), str(tmp_path / "other")]

    def graph(distill, **changes):
        return graph_of(study(tmp_path, models=models, methods=["none", "mlm"], distill=distill, **changes))

    graph.folder = tmp_path
    return graph


ROW = {"teacher": {"model": "model", "method": "mlm"}}


def test_seeds_share_a_teacher_and_it_comes_from_its_adaptation(two_models):
    graph = two_models([ROW])
    (teacher,) = of_kind(graph, "teacher")
    assert [teacher.needs.key] == [job.key for job in of_kind(graph, "adapt") if job.place.model == "model"]
    students = of_kind(graph, "distill")
    assert [job.place.seed for job in students] == [0, 1, 2]
    assert {job.needs.key for job in students} == {teacher.key}
    assert {(job.place.model, job.place.method) for job in students} == {("other", "distilled from model, mlm")}
    # Fine-tuning settings apply to teacher and student, not to the distillation itself.
    assert teacher.settings["epochs"] == 3 and teacher.settings["confidence_penalty"] == 0.3
    assert (students[0].settings["student_epochs"], students[0].settings["epochs"]) == (3, 10)
    order = list(graph.jobs)
    assert all(order.index(job.needs.key) < order.index(job.key) for job in graph.jobs.values() if job.needs)


def test_each_adaptation_has_a_teacher_and_each_few_shot_sample(two_models):
    graph = two_models([ROW], adapt_seeds=[5, 6])
    assert [job.place.seed for job in of_kind(graph, "teacher")] == [5, 6]
    needs = [job.needs.key for job in of_kind(graph, "distill")]
    assert needs[0] == needs[2] != needs[1]
    graph = two_models([{"teacher": {"model": "model"}}], adapt_seeds=[5, 6])  # not adapted, but fine-tuned
    assert [job.place.seed for job in of_kind(graph, "teacher")] == [5, 6]
    graph = two_models([ROW], finetune={"few_shot": 2})
    assert [job.place.seed for job in of_kind(graph, "teacher")] == [0, 1, 2]


def test_rows_that_differ_only_in_distillation_share_the_teacher(two_models):
    graph = two_models([ROW, {**ROW, "objective": "kl"}, {**ROW, "teacher_penalty": 0, "label": "no calibration"}])
    assert len(of_kind(graph, "teacher")) == 2
    assert len(of_kind(graph, "distill")) == 9
    assert of_kind(graph, "distill", method="distilled from model, mlm (objective=kl)")
    graph = two_models([{**ROW, "learning_rate": "1e-4"}])  # YAML parses 1e-4 as a string
    assert of_kind(graph, "distill")[0].settings["learning_rate"] == 1e-4


def test_rows_of_one_seed_are_adjacent_so_that_they_reuse_the_cached_student(two_models):
    rows = [{**ROW, "label": "DoKTra"}, {**ROW, "label": "KL", "objective": "kl"}]
    students = [(job.place.seed, job.place.method) for job in of_kind(two_models(rows), "distill")]
    assert students == [(seed, label) for seed in (0, 1, 2) for label in ("DoKTra", "KL")]


def test_an_external_classifier_of_the_task_is_not_fine_tuned_again(two_models):
    graph = two_models([{"teacher": {"path": str(two_models.folder / "ready")}}])
    assert not of_kind(graph, "teacher")
    assert {job.place.model for job in of_kind(graph, "distill")} == {"model", "other"}
    assert {job.needs for job in of_kind(graph, "distill")} == {None}
    graph = two_models([{"teacher": str(two_models.folder / "other"), "students": "model"}])
    assert len(of_kind(graph, "teacher")) == 1
    assert {job.place.model for job in of_kind(graph, "distill")} == {"model"}


def test_distillations_change_no_other_job_and_shards_keep_chains_together(two_models):
    graph, before = two_models([ROW]), two_models([])
    assert list(graph.jobs)[: len(before.jobs)] == list(before.jobs)
    (teacher,) = of_kind(graph, "teacher")
    for index in (1, 2, 3):
        own = Shard(index, 3).select(graph.jobs)
        chain = {teacher.needs.key, teacher.key, *(job.key for job in of_kind(graph, "distill"))}
        assert chain <= set(own) or not chain & set(own)


@each(
    ("row", "message"),
    [
        ({"teacher": {"model": "modle", "method": "mlm"}}, "Did you mean 'model'"),
        ({"teacher": {"model": "model", "method": "mln"}}, "Did you mean 'mlm'"),
        ({**ROW, "students": ["nobody"]}, "Unknown model in the row"),
        ({**ROW, "epochz": 3}, "Did you mean 'epochs'"),
        ({**ROW, "objective": "kd"}, "objective' must be 'auto', 'boundary' or 'kl', not 'kd'"),
        ({**ROW, "epochs": 1}, "less than one epoch"),
        ({"teacher": {"model": "model", "path": "model"}}, "give one"),
        ({**ROW, "label": "mlm"}, "'mlm' is duplicated"),
    ],
)
def test_rows_with_mistakes(two_models, row, message):
    with pytest.raises(UserError, match=message):
        two_models([row])


def test_decoders_are_refused_before_anything_is_trained(two_models):
    config = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
    (two_models.folder / "other" / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"'other' of the row .* is a decoder, so the objective cannot be 'boundary'"):
        two_models([ROW])
    assert of_kind(two_models([{**ROW, "objective": "kl"}]), "distill")


def test_a_study_with_one_model_has_no_student(tmp_path):
    files(tmp_path)
    with pytest.raises(UserError, match="has no student; add another model"):
        graph_of(study(tmp_path, distill=[{"teacher": {"model": "model"}}]))


def test_the_example_of_the_page_is_a_valid_study():
    page = (Path(__file__).resolve().parents[2] / "docs" / "distill.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.S)
    config = StudyConfig.of(yaml.safe_load(text))
    assert [row.label for row in config.sections["distill"]] == ["doktra", "kl", "control"]
    assert config.sections["distill"][1].settings == {"objective": "kl"}


@pytest.mark.slow
def test_adapt_and_distill_in_one_file(folder):  # noqa: F811
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
    (made,) = results["rows"]["distill"]
    assert (made["model"], made["units"], len(made["disagreement"])) == ("student", 24, 3)
    assert made["seconds"] > 0 and made["teacher_seconds"] > 0
    spent = results["scores"][-1]["stage_seconds"]
    assert list(spent) == ["teacher", "student", "distillation", "sum"] and min(spent.values()) > 0
    assert spent["teacher"] >= made["teacher_seconds"]
    assert spent["student"] + spent["distillation"] == pytest.approx(made["seconds"])  # the teacher is a separate job
    page = (folder / "out" / "results.md").read_text()
    assert "## Distillation" in page and "Time per score" in page
    again = compare(path, folder / "out", progress=False)
    assert (again["jobs"]["done"], again["jobs"]["reused"]) == (0, results["jobs"]["total"])
    path.write_text(path.read_text() + "baseline: doktra\n")
    turned = {(row["model"], row["method"]): row for row in compare(path, folder / "out", progress=False)["scores"]}
    assert "difference" not in turned["student", "doktra"] and "difference" not in turned["model", "mlm"]
    was, now = (row["difference"]["macro_f1"] for row in (results["scores"][-1], turned["student", "none"]))
    assert now["difference"] == -was["difference"]
    path.write_text(path.read_text().replace("baseline: doktra\n", ""))
    # another seed reuses the teacher
    (folder / "study.yaml").write_text(path.read_text().replace("seeds: 2", "seeds: 3"))
    more = compare(path, folder / "out", progress=False)
    assert more["jobs"]["done"] == 2 * 2 + 1  # one seed of both models with both methods, and of the student
