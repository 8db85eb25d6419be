"""The loss of fine-tuning against its equation."""

from __future__ import annotations

import pytest
import torch
from transformers import BertForTokenClassification

from acclimate.engine.steps import TaskBatch, TaskEngine
from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.kinds.classification.classifier import load_classifier
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.trainer import train
from tests.cases import each
from tests.tiny import TEXTS, save_tiny, tiny_model

CPU = torch.device("cpu")
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LABELS = [["cold"], ["good"], ["cold", "good"], [], ["good", "rude"], ["rude"], ["cold"], ["good"]]


def spelled_out(logits, labels, weight, several):
    """Cross-entropy - weight x entropy, over the classes or for each label; the mean over all texts and labels."""
    values = []
    for row, wanted in zip(logits.double(), labels, strict=True):
        if several:
            for value, there in zip(row, wanted, strict=True):
                yes = torch.sigmoid(value)
                entropy = -(yes * yes.log() + (1 - yes) * (1 - yes).log())
                values.append(-(yes if there else 1 - yes).log() - weight * entropy)
        else:
            shares = row.exp() / row.exp().sum()
            values.append(-shares[wanted].log() + weight * (shares * shares.log()).sum())
    return sum(values) / len(values)


@each("several", [False, True])
@each("weight", [0.0, 0.3])
def test_the_loss_is_the_cross_entropy_minus_the_weighted_entropy(several, weight, tmp_path):
    """With a weight of 0 it is the cross-entropy."""
    rows = [
        {"text": text, "label": label if several else (label or ["rude"])[0]}
        for text, label in zip(TEXTS, LABELS, strict=True)
    ]
    task = Task.of("words", rows, rows)
    classifier = load_classifier(
        save_tiny("bert", tmp_path / "model", **NO_DROPOUT), task.labels, 64, CPU, task.multi_label
    )
    features = classifier.features(task.train)
    batch = classifier.collate(features)
    model = classifier.model.train()
    with torch.no_grad():
        model.classifier.weight.mul_(20)  # so that the classes are not equally likely
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    options = ResolvedOptions(
        seed=0,
        epochs=1,
        learning_rate=1e-3,
        batch_size=len(rows),
        max_length=64,
        few_shot=None,
        select="last",
        metric="accuracy",
        warmup=0.0,
        weight_decay=0.0,
        precision="fp32",
        progress=False,
        negative=(),
        confidence_penalty=weight,
    )
    found = train(classifier, features, options, "fp32")
    assert found.steps == 1
    wanted = spelled_out(logits, batch["labels"], weight, several)
    assert found.loss == pytest.approx(wanted.item(), rel=1e-5)
    other = spelled_out(logits, batch["labels"], 0.3 - weight, several)
    assert abs(other - wanted) > 0.01


def test_parts_of_a_step_count_by_their_labelled_tokens():
    """A loss that is a mean over labelled tokens has the gradients of the whole step; a part may have none."""
    torch.manual_seed(0)
    model = BertForTokenClassification(tiny_model("bert").config).eval()
    ids = torch.randint(5, 60, (4, 6))
    labels = torch.full_like(ids, -100)
    labels[0, 1:6], labels[1, 2], labels[3, 3:5] = torch.randint(0, 2, (5,)), 1, 0  # the third row has none
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    found = []
    for cuts in ([4], [1, 2, 3, 4], [2, 3, 4]):
        model.zero_grad()
        places = [slice(start, end) for start, end in zip([0, *cuts], cuts, strict=False)]
        parts = [{name: value[place] for name, value in rows.items()} for place in places]
        batches = [TaskBatch(part, 0, int((part["labels"] >= 0).sum())) for part in parts]
        engine = TaskEngine(model, lambda model, inputs, _: model(**inputs).loss, "fp32")
        terms = engine.step([batch for batch in batches if batch.items])
        found.append([terms["loss"], *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    for whole, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(other, whole, atol=1e-6, rtol=1e-4)
