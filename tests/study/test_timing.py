"""Minutes next to scores: the stages from the base model to a scored model."""

from __future__ import annotations

import pytest

from acclimate.report.tables import tables
from acclimate.study.compare import compare
from tests.study.fakes import World, distilling, study, write_classifier

TITLE = "Time per score"


def stage_minutes(results, model="model"):
    return {row["method"]: row["stage_seconds"] for row in results["scores"] if row["model"] == model}


def run(values, out, world=None, backend=None, **options):
    backend = backend or (world or World()).backend()
    return compare(values, out, progress=False, backend=backend, **options)


def shown(results):
    return next(table for table in tables(results) if table.title == TITLE)


@pytest.mark.needs("dga")
def test_a_plain_study_has_adaptation_and_fine_tuning(folder, tmp_path, no_report):
    results = run(study(folder), tmp_path / "out")
    adapted = {"adaptation": 62.5, "finetuning": 1.5, "sum": 64.0}
    assert stage_minutes(results) == {
        "none": {"finetuning": 1.5, "sum": 1.5},
        "mlm": adapted,
        "dga, no contrast": adapted,
    }
    table = shown(results)
    assert table.columns == ["task", "method", "metric", "score", "minutes", "adaptation", "fine-tuning"]
    assert [entry.text for entry in table.rows[0][4:]] == ["0.03", "–", "0.03"]
    assert [entry.text for entry in table.rows[1][4:]] == ["1.1", "1.0", "0.03"]
    assert " ± " in table.rows[0][3].text and "Teacher:" not in table.note
    assert TITLE in (tmp_path / "out" / "results.md").read_text()


def test_the_time_of_a_distilled_student_includes_its_teacher(folder, tmp_path, no_report):
    world = World()
    results = run(distilling(folder), tmp_path / "out", world)
    assert (world.calls["adapt"], world.calls["distill"]) == (2, 6)  # six students share one teacher
    found = stage_minutes(results, "student")
    assert found["mlm"] == {"adaptation": 62.5, "finetuning": 1.5, "sum": 64.0}
    assert found["doktra"] == {"teacher": 62.5 + 1.5, "student": 1.25, "distillation": 3.25, "sum": 68.5}
    assert found["kl"] == found["doktra"]
    table = shown(results)
    stages = ["adaptation", "teacher", "student before", "distillation", "fine-tuning"]
    assert table.columns == ["model", "task", "method", "metric", "score", "minutes", *stages]
    row = next(row for row in table.rows if row[2].text == "doktra")
    assert [entry.text for entry in row[5:]] == ["1.1", "–", "1.1", "0.02", "0.05", "–"]


def test_an_external_classifier_takes_no_time(folder, tmp_path, no_report):
    write_classifier(folder / "ready")
    values = study(folder, methods=["none"], distill=[{"label": "given", "teacher": {"path": str(folder / "ready")}}])
    found = stage_minutes(run(values, tmp_path / "out"))
    assert found["given"] == {"student": 1.25, "distillation": 3.25, "sum": 4.5}


def test_the_warm_up_of_a_head_counts_for_adaptation_only(folder, tmp_path, no_report):
    found = stage_minutes(run(study(folder), tmp_path / "out", World(headless=True)))
    assert found["none"] == {"finetuning": 1.5, "sum": 1.5}
    assert found["mlm"] == {"adaptation": 125.0, "finetuning": 1.5, "sum": 126.5}


@pytest.mark.needs("selective")
def test_stages_before_training_are_counted(folder, tmp_path, no_report):
    world = World()

    def adapt(*given, **options):
        made = world.adapt(*given, **options)
        made.preparation = {"selective.json": {"annotate": {"minutes": 2.0}, "mark": {"minutes": 0.5}, "texts": 3}}
        return made

    found = stage_minutes(run(study(folder), tmp_path / "out", backend=world.backend(adapt=adapt)))
    assert found["mlm"]["adaptation"] == pytest.approx(62.5 + 150)


def test_seeds_of_several_adaptations_are_averaged(folder, tmp_path, no_report):
    world, made = World(), []

    def adapt(*given, **options):
        made.append(world.adapt(*given, **options))
        made[-1].seconds = 10.0 if options["seed"] == 5 else 40.0
        return made[-1]

    values = study(folder, methods=["none", "mlm"], adapt_seeds=[5, 6])
    found = stage_minutes(run(values, tmp_path / "out", backend=world.backend(adapt=adapt)))
    assert found["mlm"]["adaptation"] == pytest.approx((10 + 40 + 10) / 3)


def test_a_score_without_the_result_of_its_adaptation_is_left_out(folder, tmp_path, no_report):
    values, out = study(folder, methods=["none", "mlm"]), tmp_path / "out"
    (made,) = run(values, out)["adaptations"]
    (out / "jobs" / f"{made['folder'].split('/')[1]}.json").unlink()
    results = run(values, out, report_only=True)
    assert stage_minutes(results) == {"none": {"finetuning": 1.5, "sum": 1.5}, "mlm": {}}
    assert [row[1].text for row in shown(results).rows] == ["none"]
