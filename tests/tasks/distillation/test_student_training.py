"""The change between the two phases, and the loss of the first one."""

from __future__ import annotations

import pytest
import torch

from acclimate.parts.modules.connectors import Connectors
from acclimate.parts.objectives.distillation import activation_boundary_loss
from acclimate.tasks.distillation.student_training import DisagreementCallback, DistillationLoss
from acclimate.tasks.distillation.teacher_targets import run_teacher
from acclimate.tasks.kinds.classification.classifier import load_classifier
from acclimate.tasks.options import DistillOptions
from acclimate.tasks.trainer import phase_schedule
from tests.cases import each
from tests.tasks.distillation.conftest import CPU
from tests.tasks.test_classification import keyword_task


@each(
    ("epochs", "share", "expected"),
    [(10, 0.9, 9), (10, 0.6, 6), (10, 0.7, 7), (5, 0.9, 4), (100, 0.29, 29), (10, 0.0, 0), (10, 1.0, 10)],
)
def test_phases_change_at_the_end_of_an_epoch(epochs, share, expected):
    options = DistillOptions("teacher", "student", "task", epochs=epochs, distill_share=share)
    assert options.distilled_epochs == expected


def test_each_phase_has_its_own_schedule():
    factor = phase_schedule(8, 12, 0.25)
    assert [factor(step) for step in range(12)] == pytest.approx(
        [0, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 1, 2 / 3, 1 / 3]
    )
    assert factor(12) == 0
    assert [phase_schedule(0, 4, 0.0)(step) for step in range(4)] == [1, 0.75, 0.5, 0.25]


@pytest.fixture
def distillation_loss(teacher):
    task = keyword_task(train=12)
    loaded = load_classifier(teacher, task.labels, 64, CPU)
    connectors = Connectors("auto", 32, 24, 0)
    targets = run_teacher(loaded, loaded.features(task.train), connectors, "fp32")
    targets = targets.match(loaded.answer_keys(task.train), loaded.answer_keys(task.train))
    return DistillationLoss(loaded, targets, connectors, "boundary", 1.0, 1e-3, 2.0, "fp32")


def batch(student, places):
    torch.manual_seed(0)
    task = keyword_task(train=12)
    classifier = load_classifier(student, task.labels, 64, CPU)
    classifier.model.eval()
    rows = classifier.features(task.train)
    inputs = classifier.collate([rows[place] for place in places])
    labels = inputs.pop("labels")
    return classifier, rows, dict(inputs), labels


def test_the_boundary_loss_uses_the_right_examples_and_does_not_train_the_head(distillation_loss, student):
    places = [7, 2, 11]
    classifier, _, inputs, labels = batch(student, places)
    loss = distillation_loss.loss(classifier.model, inputs, labels, places)
    states = classifier.model.roberta(**inputs).last_hidden_state[:, 0]
    active = torch.stack([distillation_loss.targets.active([place])[0] for place in places])
    torch.testing.assert_close(loss, activation_boundary_loss(states, active))
    loss.backward()
    assert all(value.grad is None for value in classifier.model.classifier.parameters())
    assert all(value.grad is not None for value in classifier.model.roberta.encoder.parameters())


def test_the_divergence_uses_the_right_examples(distillation_loss, student):
    places = [3, 0]
    classifier, _, inputs, labels = batch(student, places)
    distillation_loss.objective = "kl"
    ours = (classifier.model(**inputs).logits / 2).log_softmax(-1)
    theirs = (distillation_loss.targets.logits[places] / 2).softmax(-1)
    slow = 4 * (theirs * (theirs.log() - ours)).sum(-1).mean()
    torch.testing.assert_close(distillation_loss.loss(classifier.model, inputs, labels, places), slow)


def test_disagreement_counts_units_of_each_example(distillation_loss, student):
    classifier, rows, *_ = batch(student, [0])
    distillation_loss.head = classifier
    watch = DisagreementCallback(rows, distillation_loss, distillation_loss.connectors, 0)
    assert watch.indices == list(range(12))
    counts = []
    for place, row in enumerate(rows):
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            state = classifier.model.roberta(ids).last_hidden_state[0, 0]
        counts.append(
            sum((s > 0) != t for s, t in zip(state, distillation_loss.targets.active([place])[0], strict=True))
        )
    assert watch.measure() == pytest.approx(float(sum(counts)) / 12, abs=0.2)  # a unit near zero may change its sign
