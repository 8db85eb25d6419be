"""Multi-label tasks: reading, training, scoring, and the real data sets."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from acclimate.evaluation.scoring import MultiLabel
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.classifier import load_classifier
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.splits import repartition
from tests.cases import each

FILLER = ["the", "a", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with"]
QUICK = {"progress": False, "precision": "fp32"}
LABELS = st.lists(st.sampled_from(["good", "bad", "fresh", " fresh ", 7, 7.0, True]), max_size=5)


def words_task(train=96, test=24):
    """Texts that may contain "good" and "cold", independently; two rows are a document."""
    chance = random.Random(0)

    def row(number):
        there = [word for place, word in enumerate(("good", "cold")) if number >> place & 1]
        words = chance.choices(FILLER, k=chance.randint(3, 8)) + there
        chance.shuffle(words)
        return {"text": " ".join(words), "label": there, "id": f"{number // 2}_s{number % 2}"}

    return Task.of("words", [row(n) for n in range(train)], [row(n) for n in range(test)], [row(n) for n in range(8)])


def read(labels, test=None):
    rows = [{"text": f"t{number}", "label": label} for number, label in enumerate(labels)]
    return Task.of("t", rows, rows[:1] if test is None else [{"text": "x", "label": test}], strict=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(LABELS, min_size=1, max_size=6))
def test_lists_of_labels_are_read(lists):
    names = [{"fresh" if value == " fresh " else str(value) for value in row if value is not True} for row in lists]
    for row, name in zip(lists, names, strict=True):
        name.discard("7.0")
        name.update(["7"] if any(value is not True and value in (7, 7.0) for value in row) else [])
        name.update(["true"] if any(value is True for value in row) else [])
    if not any(lists):
        with pytest.raises(UserError, match=r"No train row .* has a label"):
            read(lists)
        return
    task = read(lists)
    assert task.multi_label and task.scoring().name == "multi_label"
    assert [{task.labels[place] for place in example.places} for example in task.train] == names
    assert all(list(example.places) == sorted(set(example.places)) for example in task.train)
    doubled = read([row + row[::-1] for row in lists])
    assert [example.places for example in doubled.train] == [example.places for example in task.train]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(LABELS, st.sampled_from(["good", "bad"])), min_size=2, max_size=6))
def test_lists_and_single_labels_do_not_mix(labels):
    several = {isinstance(label, list) for label in labels}
    if len(several) == 2:
        with pytest.raises(UserError, match="whose label has another form") as caught:
            read(labels)
        assert "\n" not in str(caught.value)


@each(
    ("train", "test", "message"),
    [
        ([["a"], ["b"]], ["c"], "test: row 1: the label 'c' does not occur in train"),
        ([["a"], [None]], [], "without a label .first: train: row 2"),
        ([["a"], [["b"]]], [], "row 2: the label must be a string"),
        ([["a"], [" "]], [], "without a label .first: train: row 2"),
        ([["a"], ["b"]], "a", "test: row 1: the label is not a list, but those of most"),
        (["a", "b"], [], "test: row 1: the label is a list, but those of most"),
    ],
)
def test_lists_that_cannot_be_used(train, test, message):
    with pytest.raises(UserError, match=message):
        read(train, test)


def test_documents_come_from_a_column_or_from_the_id():
    rows = [{"text": "x", "label": ["a"], "id": "12_s0"}, {"text": "y", "label": [], "id": "12_s1"}]
    assert [example.document for example in Task.of("t", rows, rows).train] == ["12", "12"]
    assert Task.of("t", rows, rows).scoring() == MultiLabel(1, (0, 0))
    named = [{**row, "document": number} for number, row in enumerate(rows)]
    assert Task.of("t", rows, named).scoring() == MultiLabel(1, (0, 1), groups=(0, 1))
    partly = [rows[0], {**rows[1], "id": "12"}]
    assert Task.of("t", rows, partly).scoring() == MultiLabel(1)
    assert Task.of("t", rows, named).fingerprint() != Task.of("t", rows, rows).fingerprint()
    single = [{**row, "label": label} for row, label in zip(rows, "ab", strict=True)]
    assert [example.document for example in Task.of("t", single, single).train] == [None, None]


def test_few_shot_draws_each_label_and_unlabelled_examples():
    task = words_task(train=40)
    kept = task.few_shot(2, seed=0)
    assert kept == task.few_shot(2, seed=0)
    assert [sum(place in example.places for example in kept) >= 2 for place in (0, 1)] == [True, True]
    assert sum(not example.places for example in kept) == 2 and len(kept) <= 6


def test_single_label_operations_are_refused():
    with pytest.raises(UserError, match="cannot be re-partitioned"):
        repartition(words_task(), 0.5)
    with pytest.raises(UserError, match="'negative' does not apply"):
        words_task().scoring(negative=["good"])


def test_weights_are_selected_by_a_metric_of_the_dev_split(tiny_bert):
    task = words_task(train=8)
    apart = dataclasses.replace(task, dev=[dataclasses.replace(example, document=None) for example in task.dev])
    assert "document_f1" in apart.scoring().metrics
    with pytest.raises(UserError, match="Unknown metric 'document_f1'"):
        finetune(tiny_bert, apart, select="dev", metric="document_f1", **QUICK)


@pytest.fixture(scope="module")
def learned(tiny_bert, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "words"
    options = {"epochs": 8, "learning_rate": 3e-3, "select": "dev", "metric": "document_f1"}
    return finetune(tiny_bert, words_task(train=384), out=out, seed=1, **options, **QUICK), out


@pytest.mark.slow
def test_a_multi_label_task_is_learned(learned):
    result, _ = learned
    assert result.kind == "multi_label" and result.scoring["classes"] == 2
    assert result.metrics["micro_f1"] > 0.9 and result.metrics["document_f1"] > 0.9
    assert result.dev_metrics is not None and "document_f1" in result.dev_metrics
    assert result.gold[:4] == [[], [1], [0], [0, 1]]  # cold, good
    for row, said in zip(result.probabilities, result.predicted, strict=True):
        assert said == [place for place, p in enumerate(row) if p > 0.5]
    assert any(abs(sum(row) - 1) > 0.1 for row in result.probabilities)  # no softmax
    assert sum(entry["count"] for entry in result.metrics["reliability"]) == 2 * 24


def test_the_saved_model_is_a_multi_label_model(learned):
    result, out = learned
    config = AutoModelForSequenceClassification.from_pretrained(out).config
    assert config.problem_type == "multi_label_classification"
    assert config.id2label == {0: "cold", 1: "good"}
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert rows[3]["gold"] == ["cold", "good"]
    assert [list(row["probabilities"].values()) for row in rows] == result.probabilities
    assert {tuple(row["probabilities"]) for row in rows} == {("cold", "good")}


def test_the_loss_is_the_mean_binary_cross_entropy(tiny_bert):
    torch.manual_seed(0)
    classifier = load_classifier(tiny_bert, ["a", "b", "c"], 32, torch.device("cpu"), multi_label=True)
    task = read([["a"], ["b", "c"], []])
    batch = classifier.collate(classifier.features(task.train))
    assert batch["labels"].tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    output = classifier.model.eval()(**batch)
    expected = 0.0
    for scores, targets in zip(output.logits.tolist(), batch["labels"].tolist(), strict=True):
        for score, target in zip(scores, targets, strict=True):
            p = 1 / (1 + 2.718281828459045**-score)
            expected -= torch.tensor(p if target else 1 - p).log().item() / 9
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@each("task", ["chemprot", "ddi", "hoc", "hoc_doc"])
def test_real_data_sets_are_read(shared, task):
    loaded = load_task(shared / "data" / task)
    sizes = {"chemprot": (4169, 2427, 3469), "ddi": (25296, 2496, 5716)}
    sizes |= {"hoc": (12119, 1798, 3547), "hoc_doc": (1295, 186, 371)}
    assert (len(loaded.train), len(loaded.dev), len(loaded.test)) == sizes[task]
    assert len(loaded.labels) == {"chemprot": 13, "ddi": 5}.get(task, 10)
    assert loaded.multi_label == task.startswith("hoc")


def test_hallmarks_of_cancer_is_scored_by_document(shared):
    sentences, whole = (load_task(shared / "data" / name) for name in ("hoc", "hoc_doc"))
    scoring = sentences.scoring()
    assert isinstance(scoring, MultiLabel) and scoring.documents is not None
    assert max(scoring.documents) + 1 == len(whole.test) == 371
    gold = [list(example.places) for example in sentences.test]
    assert scoring.score(gold, gold, "document_f1") == 1.0
    unions: list[set[int]] = [set() for _ in whole.test]
    for number, labels in zip(scoring.documents, gold, strict=True):
        unions[number] |= set(labels)
    assert sorted(map(sorted, unions)) == sorted(list(example.places) for example in whole.test)
    assert "document_f1" not in whole.scoring().metrics  # there, each row is a document


@pytest.mark.slow
def test_the_negative_class_of_a_real_set(shared):
    task = load_task(shared / "data" / "ddi")
    scoring = task.scoring(negative=["DDI-false"])
    assert scoring.negative == (task.labels.index("DDI-false"),)
    assert len(set(scoring.groups)) == 191 and scoring.group_name == "document"  # found in the ids
    gold = [example.label for example in task.test]
    assert scoring.score(gold, [task.labels.index("DDI-false")] * len(gold), "positive_micro_f1") == 0.0
