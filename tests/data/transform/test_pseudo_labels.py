"""Pseudo-labels: those of the model itself, one text at a time; thresholds; and the task that comes out."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.data.operations import find_accounts
from acclimate.data.task_kinds import load_task
from acclimate.data.transform import pseudo_labels
from tests.cases import each
from tests.tiny import TEXTS, tiny_tokenizer

POOL = [f"{text} {other}" for text in TEXTS for other in TEXTS[:5]]
LABELS = ["bad", "fine", "good"]


def save_classifier(
    folder, kind="single_label_classification", labels=LABELS, auto=AutoModelForSequenceClassification
):
    """Save a random classifier whose probabilities differ between texts."""
    torch.manual_seed(3)
    tokenizer = tiny_tokenizer()
    names = dict(enumerate(labels))
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model("bert", **sizes, intermediate_size=48, initializer_range=0.6)
    config.id2label, config.label2id, config.problem_type = names, {v: k for k, v in names.items()}, kind
    model = auto.from_config(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def expected(folder, kind="softmax", max_length=256):
    """Return the probabilities that the model gives each text alone."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        rows = [
            model(**tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")).logits[0]
            for text in POOL
        ]
    logits = torch.stack(rows)
    return (logits.sigmoid() if kind == "sigmoid" else logits.softmax(-1)).numpy()


def read_rows(corpus):
    return [json.loads(line) for line in corpus.sources[0].path.read_text().splitlines()]


@each("confidence", [0.0, 0.7])
def test_labels_are_those_of_the_model_where_it_is_sure(classifier, confidence):
    probabilities = expected(classifier)
    sure = probabilities.max(axis=1) >= confidence
    assert confidence == 0 or 5 < sure.sum() < len(POOL) - 5  # the case says something
    made = transform(POOL, {"pseudo_labels": {"model": str(classifier), "confidence": confidence}})
    rows = read_rows(made)
    assert [row["text"] for row in rows] == [text for text, is_sure in zip(POOL, sure, strict=True) if is_sure]
    assert [row["label"] for row in rows] == [LABELS[place] for place in probabilities[sure].argmax(axis=1)]
    assert np.allclose([row["confidence"] for row in rows], probabilities[sure].max(axis=1), atol=1e-4)
    notes = find_accounts(made)[0].notes
    predicted = np.bincount(probabilities.argmax(axis=1), minlength=3).tolist()
    kept = np.bincount(probabilities[sure].argmax(axis=1), minlength=3).tolist()
    assert notes["labels"] == {
        name: {"predicted": one, "kept": other} for name, one, other in zip(LABELS, predicted, kept, strict=True)
    }
    assert notes["truncated"] == 0


def test_a_limit_per_label_keeps_those_of_highest_confidence(classifier):
    probabilities = expected(classifier)
    rows = read_rows(transform(POOL, {"pseudo_labels": {"model": str(classifier), "confidence": 0, "most": 4}}))
    for place, name in enumerate(LABELS):
        own = probabilities[probabilities.argmax(axis=1) == place].max(axis=1)
        found = sorted(row["confidence"] for row in rows if row["label"] == name)
        assert np.allclose(found, np.sort(own)[-4:], atol=1e-4)


def test_several_labels_per_text(tmp_path):
    folder = save_classifier(tmp_path / "several", "multi_label_classification")
    probabilities = expected(folder, "sigmoid")
    sure = np.maximum(probabilities, 1 - probabilities).min(axis=1) >= 0.6
    rows = read_rows(transform(POOL, {"pseudo_labels": {"model": str(folder), "confidence": 0.6}}))
    assert 0 < sure.sum() < len(POOL)
    assert [row["label"] for row in rows] == [
        [name for name, p in zip(LABELS, row, strict=True) if p > 0.5] for row in probabilities[sure]
    ]


def test_the_result_is_a_task_and_predictions_are_cached(classifier, tmp_path, monkeypatch):
    out = tmp_path / "labelled.jsonl"
    calls = []
    predict = pseudo_labels.Labeler.probabilities
    monkeypatch.setattr(
        pseudo_labels.Labeler, "probabilities", lambda self, texts: calls.append(1) or predict(self, texts)
    )
    settings = {"model": str(classifier), "max_length": 10}
    transform(POOL, {"pseudo_labels": {**settings, "confidence": 0.3}}, out)
    task = load_task(out)
    assert set(task.labels) <= set(LABELS) and len(task.labels) > 1
    assert {example.text for example in [*task.train, *task.dev, *task.test]} <= set(POOL)
    (account,) = find_accounts(transform(POOL, {"pseudo_labels": {**settings, "confidence": 0.4}}))
    assert len(calls) == 1
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    assert account.notes["truncated"] == sum(len(tokenizer(text).input_ids) > 10 for text in POOL) > 0


def test_entities_are_those_of_the_model_where_it_is_sure_of_every_word(tmp_path):
    tags = ["O", "B-dish", "I-dish"]
    folder = save_classifier(tmp_path / "tagger", None, tags, AutoModelForTokenClassification)
    model, tokenizer = AutoModelForTokenClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    expected = []
    for text in POOL:
        read = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
        words, offsets = read.word_ids(0), read.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            probabilities = model(**read).logits[0].softmax(-1)
        places = {word: place for place, word in reversed(list(enumerate(words))) if word is not None}
        spans, sure = [], []
        for word, place in sorted(places.items()):
            end = max(offsets[other][1] for other, one in enumerate(words) if one == word)
            tag = tags[int(probabilities[place].argmax())]
            sure.append((tag, float(probabilities[place].max())))
            if tag == "I-dish" and len(sure) > 1 and sure[-2][0] != "O":
                spans[-1]["end"] = end
            elif tag != "O":
                spans.append({"start": offsets[place][0], "end": end, "label": "dish"})
        expected.append((spans, sure))
    made = transform(POOL, {"pseudo_labels": {"model": str(folder), "confidence": 0}})
    assert [row["spans"] for row in read_rows(made)] == [spans for spans, _ in expected]
    lowest = [row["confidence"] for row in read_rows(made)]
    assert all(min(p for _, p in sure) - 1e-3 <= low for low, (_, sure) in zip(lowest, expected, strict=True))
    few = transform(
        POOL, {"pseudo_labels": {"model": str(folder), "confidence": sorted(lowest)[20]}}, tmp_path / "a.jsonl"
    )
    assert len(list(few)) in (19, 20, 21)  # the confidence in the file is rounded
    task = load_task(tmp_path / "a.jsonl")
    assert task.task_kind == "entities" and task.labels == ["dish"]
    windows = read_rows(transform(POOL, {"pseudo_labels": {"model": str(folder), "confidence": 0, "max_length": 12}}))
    starts = [[span["start"] for span in row["spans"]] for row in windows]
    assert len(windows) == len(POOL) and all(places == sorted(set(places)) for places in starts)
    assert max(place for places in starts for place in places) > 100  # beyond the first window
    with pytest.raises(UserError, match="most limits documents per label"):
        transform(POOL, {"pseudo_labels": {"model": str(folder), "most": 3}})


@each(
    ("parameters", "message"),
    [
        ({}, "needs model"),
        ({"model": "x", "confidence": 1}, "below 1"),
        ({"model": "x", "most": 0}, "at least 1"),
        ({"model": "missing/folder"}, "missing/folder"),
    ],
)
def test_mistakes_are_explained(parameters, message):
    with pytest.raises(UserError, match=message):
        transform(POOL, {"pseudo_labels": parameters})


def test_models_that_label_nothing_are_refused(tiny_bert, tmp_path, classifier):
    with pytest.raises(UserError, match="is no classifier of texts"):
        transform(POOL, {"pseudo_labels": str(tiny_bert)})
    numbers = save_classifier(tmp_path / "numbers", "regression", ["score"])
    with pytest.raises(UserError, match="predicts numbers"):
        transform(POOL, {"pseudo_labels": str(numbers)})
    with pytest.raises(UserError, match="makes no document"):
        transform(POOL, {"pseudo_labels": {"model": str(classifier), "confidence": 0.99999}})
