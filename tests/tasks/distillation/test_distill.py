"""Distillation of small models that learn the task in seconds."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from itertools import chain, repeat

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from acclimate.base.errors import UserError
from acclimate.tasks import training_cache
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.distillation.initial_models import load_or_evaluate
from acclimate.tasks.distillation.student_training import DistillationLoss
from acclimate.tasks.distillation.teacher_targets import compute_teacher_targets
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.classifier import ClassificationLearner, load_classifier
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.loading import is_classifier_of
from tests.cases import each
from tests.tasks.distillation.conftest import CPU
from tests.tasks.test_classification import QUICK, keyword_task
from tests.tiny import ENCODERS

FAST = {"learning_rate": 3e-3, "student_epochs": 2, "student_learning_rate": 1e-3, **QUICK}


@pytest.fixture(scope="module")
def undertrained(student, tmp_path_factory):
    """A student whose fine-tuning was too short."""
    out = tmp_path_factory.mktemp("models") / "undertrained"
    finetune(student, keyword_task(), epochs=1, learning_rate=1e-4, out=out, **QUICK)
    return out


@pytest.fixture(scope="module")
def run(teacher, student, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "student"
    before = {file.name: file.read_bytes() for file in teacher.iterdir()}
    result = distill(teacher, student, keyword_task(), epochs=16, distill_share=0.75, batch_size=8, out=out, **FAST)
    assert {file.name: file.read_bytes() for file in teacher.iterdir()} == before
    return result, out


def test_a_loss_that_explodes_is_reported(teacher, student, tmp_path, caplog):
    out, options = tmp_path / "out", {**FAST, "learning_rate": 1000, "batch_size": 4}
    result = distill(teacher, student, keyword_task(train=16), epochs=2, distill_share=0.5, out=out, **options)
    assert "the training probably diverged" in result.warning
    assert result.warning in caplog.text and result.warning in (out / "README.md").read_text()


def test_the_student_learns_to_be_active_where_the_teacher_is(run):
    result, _ = run
    assert (result.connector, result.units, result.distilled_epochs) == ("teacher", 24, 12)
    assert len(result.disagreement) == 17  # before, and after each epoch
    assert min(result.disagreement) >= 0 and max(result.disagreement) <= 24
    assert result.disagreement[12] < 0.25 * result.disagreement[0]
    assert result.metrics["accuracy"] > result.student_metrics["accuracy"] + 0.25
    assert result.teacher_metrics["accuracy"] > 0.9
    assert not result.teacher_trained
    assert (result.epoch, result.steps, result.train_size) == (16, 128, 64)
    assert set(result.stage_seconds) == {"teacher", "student", "teacher_targets", "distillation"}
    assert result.stage_seconds["distillation"] <= result.seconds
    json.dumps(dataclasses.asdict(result))


def test_the_saved_model_is_an_ordinary_one(run):
    result, out = run
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert {name for name in model.state_dict() if "connector" in name or "projection" in name} == set()
    classifier = load_classifier(out, ["bad", "good"], 128, CPU)
    assert classifier.probabilities(keyword_task().test, "fp32").tolist() == result.probabilities
    saved = json.loads((out / "metrics.json").read_text())
    assert saved["disagreement"] == result.disagreement


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("objective", ["boundary", "kl"])
def test_the_head_learns_in_the_second_phase_only(teacher, undertrained, tmp_path, objective):
    before = load_file(undertrained / "model.safetensors")
    options = {"objective": objective, "epochs": 2, "weight_decay": 0.1, **FAST}
    distill(teacher, undertrained, keyword_task(), distill_share=1.0, out=tmp_path / "first", **options)
    first = changed(before, load_file(tmp_path / "first" / "model.safetensors"))
    assert any(".encoder." in name for name in first)
    assert any(name.startswith("classifier") for name in first) == (objective == "kl")
    distill(teacher, undertrained, keyword_task(), distill_share=0.5, out=tmp_path / "both", **options)
    assert any(
        name.startswith("classifier") for name in changed(before, load_file(tmp_path / "both" / "model.safetensors"))
    )


def test_without_distillation_it_is_fine_tuning_with_the_confidence_penalty(teacher, undertrained, tmp_path):
    shared = {"epochs": 2, "learning_rate": 1e-3, "confidence_penalty": 0.5, "seed": 3, **QUICK}
    ours = distill(teacher, undertrained, keyword_task(), distill_share=0.0, out=tmp_path / "ours", **shared)
    theirs = finetune(undertrained, keyword_task(), warmup=0.0, weight_decay=0.0, out=tmp_path / "theirs", **shared)
    assert ours.probabilities == theirs.probabilities
    assert ours.train_loss == theirs.train_loss
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert not changed(first, second)
    assert ours.distilled_epochs == 0


def test_pure_distillation_does_not_use_labels(teacher, undertrained, tmp_path):
    task = keyword_task()
    wrong = dataclasses.replace(task, train=[dataclasses.replace(row, label=1 - row.label) for row in task.train])
    options = {"epochs": 2, "distill_share": 1.0, **FAST}
    one, two = (distill(teacher, undertrained, data, **options) for data in (task, wrong))
    assert one.probabilities == two.probabilities


@pytest.mark.parametrize("few", [None, 9])
def test_every_step_has_the_targets_of_its_examples(teacher, student, monkeypatch, few):
    # Examples are identified by their words, since rows are shuffled and the two tokenizers split texts differently.
    task, read, taught = keyword_task(), [], []
    keep = DistillationLoss.loss

    def signs_of(classifier, rows, connectors, *options):
        read.extend(words(classifier.tokenizer, row["input_ids"]) for row in rows)
        return compute_teacher_targets(classifier, rows, connectors, *options)

    def loss(self, model, inputs, labels, places):
        taught.extend(zip(inputs["input_ids"].tolist(), places, strict=True))
        return keep(self, model, inputs, labels, places)

    monkeypatch.setattr(sys.modules["acclimate.tasks.distillation.distill"], "compute_teacher_targets", signs_of)
    monkeypatch.setattr(DistillationLoss, "loss", loss)
    distill(teacher, student, task, epochs=2, distill_share=1.0, batch_size=8, few_shot=few, **FAST)
    tokenizer = AutoTokenizer.from_pretrained(student)
    assert len(taught) == 2 * len(read) == 2 * (64 if few is None else 18)
    assert [place for _, place in taught] != sorted(place for _, place in taught)
    assert [words(tokenizer, ids) for ids, _ in taught] == [read[place] for _, place in taught]


def words(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True).split()


def test_weights_are_selected_by_a_metric_of_the_dev_split(teacher, student):
    rows = [{"text": "good food", "label": ["good"], "id": "1_s0"}, {"text": "bad", "label": ["bad"], "id": "1_s1"}]
    task = Task.of("several", rows, rows, [{**row, "id": ""} for row in rows])
    with pytest.raises(UserError, match="Unknown metric 'document_f1'"):
        distill(teacher, student, task, select="dev", metric="document_f1", **QUICK)


def test_kl_distillation_teaches_the_predictions(teacher, undertrained):
    task = keyword_task()
    result = distill(
        teacher, undertrained, task, objective="kl", temperature=2.0, epochs=8, distill_share=1.0, batch_size=8, **FAST
    )
    assert result.student_metrics["accuracy"] < 0.9 < result.metrics["accuracy"]
    assert len(result.disagreement) == 9


@pytest.mark.slow
def test_a_learned_connector_and_schedules(teacher, undertrained):
    # At a higher rate all texts soon have the same state, and the activation signs hardly depend on the connector.
    options = {"epochs": 4, "distill_share": 0.5, **FAST, "learning_rate": 1e-3}
    learned = distill(teacher, undertrained, keyword_task(), connector="student", **options)
    assert (learned.connector, learned.units) == ("student", 32)
    assert learned.disagreement[2] < learned.disagreement[0]
    frozen = distill(
        teacher, undertrained, keyword_task(), connector="student", connector_learning_rate=1e-12, **options
    )
    assert learned.disagreement != frozen.disagreement  # the connector learns
    each = distill(teacher, undertrained, keyword_task(), schedule="each", **options)
    shared = distill(teacher, undertrained, keyword_task(), **options)
    assert each.disagreement[0] == shared.disagreement[0]
    assert each.disagreement[1:] != shared.disagreement[1:]


@pytest.mark.slow
@each("kind", sorted(ENCODERS))
def test_every_architecture_can_be_a_student(teacher, encoders, kind):
    task = keyword_task(train=8, test=4)
    options = {"epochs": 2, "distill_share": 0.5, "student_epochs": 1, **QUICK}
    result = distill(teacher, encoders[kind], task, **options)
    assert len(result.predicted) == 4
    assert result.units == 32


@pytest.mark.slow
def test_both_precisions(teacher, undertrained):
    options = {**FAST, "epochs": 4, "distill_share": 0.75, "batch_size": 8}
    low = distill(teacher, undertrained, keyword_task(), **{**options, "precision": "bf16"})
    assert low.precision == "bf16"
    assert low.disagreement[3] < low.disagreement[0]
    last = distill(teacher, undertrained, keyword_task(), **options)
    assert last.epoch == 4 and "ece" in last.dev_metrics


def test_the_epoch_that_is_best_on_dev_is_kept(teacher, undertrained, monkeypatch):
    """The dev scores are prescribed, and the selected epoch must be the best of them."""
    given = chain([0.1, 0.7, 0.3, 0.2], repeat(0.7))
    measure = ClassificationLearner.measure

    def prescribed(self, split, precision):
        found = measure(self, split, precision)
        if split == "dev":
            found.metrics["macro_f1"] = next(given)
        return found

    options = {**FAST, "epochs": 4, "distill_share": 0.75, "batch_size": 8, "select": "dev"}
    verb = sys.modules["acclimate.tasks.distillation.distill"]
    monkeypatch.setattr(verb, "load_or_evaluate", lambda *_: {"test": {}, "dev": {}})
    monkeypatch.setattr(ClassificationLearner, "measure", prescribed)
    assert distill(teacher, undertrained, keyword_task(), **options).epoch == 2


def test_equal_widths_need_no_connector(teacher, tiny_bert):
    result = distill(teacher, tiny_bert, keyword_task(), epochs=1, distill_share=1.0, **FAST)
    assert (result.connector, result.units) == ("none", 32)


@pytest.mark.slow
def test_models_without_a_classifier_are_fine_tuned_first(tiny_bert, student, tmp_path):
    kept = tmp_path / "teacher"
    options = {"teacher_epochs": 8, "teacher_learning_rate": 3e-3, "epochs": 2, **FAST}
    result = distill(tiny_bert, student, keyword_task(), teacher_out=kept, **options)
    assert result.teacher_trained
    assert is_classifier_of(kept, keyword_task())
    again = distill(kept, student, keyword_task(), **options)
    assert (again.teacher_trained, again.probabilities) == (False, result.probabilities)
    # the teacher is the result of fine-tuning with the penalty
    direct = finetune(
        tiny_bert,
        keyword_task(),
        epochs=8,
        learning_rate=3e-3,
        confidence_penalty=0.3,
        warmup=0.0,
        weight_decay=0.0,
        **QUICK,
    )
    assert direct.metrics == result.teacher_metrics


@pytest.mark.slow
def test_a_finished_result_checks_the_teacher_folder(tiny_bert, student, tmp_path):
    """Further seeds use the teacher in that folder."""
    kept = tmp_path / "teacher"
    options = {"teacher_epochs": 1, "epochs": 2, "distill_share": 0.5, "teacher_out": kept, **FAST}
    first = distill(tiny_bert, student, keyword_task(), out=tmp_path / "a", **options)
    before = load_file(kept / "model.safetensors")
    distill(tiny_bert, student, keyword_task(), out=tmp_path / "b", teacher_penalty=0.0, **options)
    assert not torch.equal(load_file(kept / "model.safetensors")["classifier.weight"], before["classifier.weight"])
    again = distill(tiny_bert, student, keyword_task(), out=tmp_path / "a", **options)
    assert again.seconds == first.seconds  # loaded from the cache
    for name, value in load_file(kept / "model.safetensors").items():
        assert torch.equal(value, before[name])


@pytest.mark.slow
def test_shared_stages_run_once(tiny_bert, student, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    options = {"teacher_epochs": 2, "teacher_learning_rate": 1e-3, "epochs": 2, "distill_share": 0.5, **FAST}
    first = distill(tiny_bert, student, keyword_task(), **options)
    alone = distill(tiny_bert, student, keyword_task(), objective="kl", **options)
    assert alone.teacher_trained
    for name in ("teacher", "student", "teacher_targets"):  # the time of training, not of loading from the cache
        assert alone.stage_seconds[name] == first.stage_seconds[name] > 0
    assert (alone.teacher_metrics, alone.student_metrics) == (first.teacher_metrics, first.student_metrics)

    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "another"))
    anew = distill(tiny_bert, student, keyword_task(), objective="kl", **options)
    assert anew.probabilities == alone.probabilities and anew.train_loss == alone.train_loss

    trained, measured = [], []
    train, measure = training_cache.train, ClassificationLearner.measure
    monkeypatch.setattr(training_cache, "train", lambda *args, **kw: trained.append(args) or train(*args, **kw))
    monkeypatch.setattr(
        ClassificationLearner, "measure", lambda self, *args: measured.append(args) or measure(self, *args)
    )
    distill(tiny_bert, student, keyword_task(), confidence_penalty=0.1, **options)
    assert (len(trained), len(measured)) == (0, 2)  # dev and test of the final student
    other = distill(tiny_bert, student, keyword_task(train=40, test=30), **options)  # another task: nothing is reused
    assert (len(trained), len(measured)) == (2, 2 + 6)
    assert other.teacher_metrics != first.teacher_metrics
    distill(tiny_bert, student, keyword_task(), seed=1, teacher_seed=0, **options)  # another student
    assert len(trained) == 3


def test_scores_are_measured_again_if_the_cache_does_not_match(teacher, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    learner = ClassificationLearner(load_classifier(teacher, keyword_task().labels, 64, CPU), keyword_task())
    first = load_or_evaluate(learner, "fp32")
    (file,) = (tmp_path / "cache" / "scores").iterdir()
    file.write_text("{")
    assert load_or_evaluate(learner, "fp32") == first
    file.write_text(json.dumps([{"test": {}, "dev": {}}, None]))
    assert load_or_evaluate(learner, "fp32")["test"] == {}  # cached, not measured
    assert load_or_evaluate(ClassificationLearner(learner.head, keyword_task(), ["bad"]), "fp32")["test"] != {}
    with torch.no_grad():
        learner.head.model.classifier.bias += 10
    assert load_or_evaluate(learner, "fp32")["test"] not in ({}, first["test"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 2},
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in ({"hidden_dropout_prob": 0.5}, {"layer_norm_eps": 0.1})
        ),
    ],
)
def test_the_same_weights_with_another_configuration_are_another_model(
    tiny_bert, student, monkeypatch, tmp_path, change
):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    options = {"epochs": 2, "distill_share": 0.5, "teacher_epochs": 1, **FAST}
    distill(student, tiny_bert, keyword_task(), **options)
    copy = shutil.copytree(tiny_bert, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    assert config.keys() >= change.keys()
    (copy / "config.json").write_text(json.dumps({**config, **change}))
    after = distill(student, copy, keyword_task(), **options)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "empty"))
    anew = distill(student, copy, keyword_task(), **options)
    assert (after.student_metrics, after.probabilities) == (anew.student_metrics, anew.probabilities)


@pytest.mark.slow
def test_an_unusable_cache_only_costs_time(tiny_bert, student, monkeypatch, tmp_path, caplog):
    options = {"epochs": 2, "distill_share": 0.5, "teacher_epochs": 1, **FAST}
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    first = distill(tiny_bert, student, keyword_task(), **options)
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert {file.parent.parent.name for file in files} >= {"trained", "teacher_targets"}
    for file in files:
        file.write_bytes(b"broken")
    left = next((tmp_path / "cache" / "trained").iterdir())
    left = left.with_name(f".{left.name}.new-1")  # left by a killed process
    left.mkdir()
    assert distill(tiny_bert, student, keyword_task(), **options).probabilities == first.probabilities
    assert not left.exists()
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("acclimate.base.files._writable_cache", lambda path: path)  # as if it broke during the run
    assert distill(tiny_bert, student, keyword_task(), **options).probabilities == first.probabilities
    for what in ("A training", "Teacher targets", "Scores"):
        assert f"{what} cannot be stored" in caplog.text


def test_a_metric_of_the_dev_split_only_and_a_saved_teacher(tiny_bert, student, tmp_path):
    rows = [{"text": f"{word} food", "label": [word], "id": f"{n}_s0"} for n in range(4) for word in ("good", "bad")]
    plain = [{**row, "id": ""} for row in rows]
    task = Task.of("several", plain, plain, rows)
    options = {"select": "dev", "metric": "document_f1", "teacher_out": tmp_path / "teacher", "teacher_epochs": 1}
    result = distill(tiny_bert, student, task, epochs=2, distill_share=0.5, student_epochs=1, **options, **QUICK)
    assert "document_f1" in result.dev_metrics


SLIPS = [
    ({"student_epochs": 0}, "must be"),
    ({"student_learning_rate": -1.0}, "must be"),
    ({"teacher_epochs": 0}, "must be"),
    ({"teacher_penalty": -0.1}, "must be"),
    ({"connector": "techer"}, "'connector' must be"),
    ({"connector": "none"}, "32 units and the student 24"),
]


@each(("slip", "message"), SLIPS)
def test_options_of_all_stages_are_checked_first(tiny_bert, student, slip, message, monkeypatch):
    for name in ("finetune", "load_or_train"):
        monkeypatch.setattr(f"acclimate.tasks.distillation.initial_models.{name}", None)
    with pytest.raises(UserError, match=message):
        distill(tiny_bert, student, keyword_task(), **{**FAST, **slip})


@pytest.mark.slow
def test_the_penalty_makes_a_teacher_less_confident(tiny_bert):
    # With 6 epochs, it depends on the seed whether the model learns the task.
    options = {"epochs": 12, "learning_rate": 3e-3, **QUICK}
    plain, calibrated = (
        finetune(tiny_bert, keyword_task(), confidence_penalty=weight, **options) for weight in (0.0, 0.7)
    )
    sure = [torch.tensor(result.probabilities).max(1).values.mean() for result in (plain, calibrated)]
    assert sure[1] < sure[0]
    assert calibrated.metrics["accuracy"] > 0.9


def test_a_classifier_of_other_labels_is_fine_tuned(teacher, tiny_bert, tmp_path):
    task = keyword_task()
    assert is_classifier_of(teacher, task)
    assert not is_classifier_of(tiny_bert, task)
    assert not is_classifier_of(teacher, dataclasses.replace(task, labels=["good", "bad"]))
    copy = shutil.copytree(teacher, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "problem_type": "multi_label_classification"}))
    assert not is_classifier_of(copy, task)
    with pytest.raises(UserError, match="There is no model folder"):
        is_classifier_of(tmp_path / "nothing", task)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["boundary", pytest.param("kl", marks=pytest.mark.slow)])
def test_a_multi_label_task(tiny_bert, student, objective):
    def row(number):
        words = [word for bit, word in enumerate(("good", "bad", "cold")) if number >> bit & 1]
        return {"text": " ".join(["the food is", *words]), "label": words}

    task = Task.of("several", [row(n) for n in range(1, 33)], [row(n) for n in range(8)], [row(n) for n in range(8)])
    result = distill(
        tiny_bert,
        student,
        task,
        objective=objective,
        teacher_epochs=16,
        teacher_learning_rate=3e-3,
        epochs=16,
        distill_share=0.5,
        batch_size=8,
        **FAST,
    )
    assert (result.kind, result.teacher_trained) == ("multi_label", True)
    if objective == "boundary":
        assert result.disagreement[8] < 0.6 * result.disagreement[0]
    else:
        assert result.metrics["micro_f1"] > result.student_metrics["micro_f1"]


@each(
    ("options", "message"),
    [
        ({"objective": "kd"}, "'objective' must be"),
        ({"schedule": "both"}, "'schedule' must be"),
        ({"connector": "both"}, "'connector' must be"),
        ({"objective": "kl", "connector": "student"}, "'connector' cannot be 'student'"),
        ({"connector": "none"}, "32 units and the student 24"),
        ({"distill_share": 1.5}, "'distill_share' must be at most 1"),
        ({"margin": -1.0}, "'margin' must be"),
        ({"scale": 0.0}, "'scale' must be"),
        ({"temperature": 0.0}, "'temperature' must be"),
        ({"connector_learning_rate": -1e-3}, "'connector_learning_rate' must be"),
        ({"epochs": 1}, "'distill_share' 0.9 of 1 epochs is less than one epoch"),
        ({"confidence_penalty": -0.1}, "'confidence_penalty' must be"),
        ({"epochs": 0}, "'epochs' must be"),
    ],
)
def test_invalid_options(teacher, undertrained, options, message):
    with pytest.raises(UserError, match=message):
        distill(teacher, undertrained, keyword_task(train=4, test=2), **{**QUICK, **options})
