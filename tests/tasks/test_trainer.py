"""The loss of fine-tuning against its equation."""

from __future__ import annotations

import pytest
import torch

from acclimate.tasks.interfaces import ResolvedOptions
from acclimate.tasks.kinds.classification.classifier import load_classifier
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.trainer import train
from tests.cases import each
from tests.tiny import TEXTS, save_tiny

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
