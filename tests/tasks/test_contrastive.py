"""Contrastive training of a classifier with few labels (SetFit)."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from acclimate.base.errors import UserError
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.contrastive import draw_pairs
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.tiny import WORDS

sentence_transformers = pytest.importorskip("sentence_transformers")
QUICK = {"progress": False, "precision": "fp32", "max_length": 24, "contrastive": True}
TOPICS = [WORDS[24:32], WORDS[40:48], WORDS[52:60]]


def topic_task(classes=3, train=20):
    """Texts about topics, in a background of other words; no word alone tells the class of all texts."""
    chance = random.Random(0)

    def rows(count):
        return [
            {
                "text": " ".join(chance.sample([*chance.sample(TOPICS[n % classes], 2), *WORDS[:6]], 8)),
                "label": f"t{n % classes}",
            }
            for n in range(count)
        ]

    return Task.of("topics", rows(train * classes), rows(40 * classes))


@settings(max_examples=60, deadline=None)
@given(classes=st.lists(st.integers(0, 3), max_size=12), rounds=st.integers(0, 3), seed=st.integers(0, 5))
def test_pairs_are_of_one_class_or_of_two(classes, rounds, seed):
    pairs = draw_pairs(classes, rounds, seed)
    assert all((classes[first] == classes[second]) == bool(same) and first != second for first, second, same in pairs)
    for index, label in enumerate(classes):
        mine = [same for first, _, same in pairs if first == index]
        assert mine.count(1.0) == rounds * (classes.count(label) > 1)
        assert mine.count(0.0) == rounds * (len({*classes}) > 1)
    assert draw_pairs(classes, rounds, seed) == pairs


def test_partners_are_uniform():
    partners = [second for first, second, same in draw_pairs([0] * 4 + [1], 4_000, 0) if first == 1 and same]
    assert np.allclose(np.bincount(partners, minlength=4) / len(partners), [1 / 3, 0, 1 / 3, 1 / 3], atol=0.04)


@each("classes", [2, 3])
def test_without_epochs_it_is_a_logistic_regression_on_the_vectors(classes, tiny_bert, tmp_path):
    task = topic_task(classes)
    result = finetune(tiny_bert, task, out=tmp_path / "out", epochs=0, **QUICK)
    modules = sentence_transformers.sentence_transformer.modules
    transformer = modules.Transformer(str(tiny_bert), max_seq_length=24)
    encoder = sentence_transformers.SentenceTransformer(
        modules=[transformer, modules.Pooling(32, "mean"), modules.Normalize()], device="cpu"
    )
    train, test = ([example.text for example in split] for split in (task.train, task.test))
    fitted = LogisticRegression(max_iter=1_000).fit(encoder.encode(train), [example.label for example in task.train])
    assert np.abs(fitted.predict_proba(encoder.encode(test)) - np.array(result.probabilities)).max() < 1e-4
    assert result.steps == 0


def test_learns_from_few_examples_and_the_folder_gives_the_same(tiny_bert, tmp_path, capsys):
    task = topic_task()
    options = {**QUICK, "few_shot": 8, "learning_rate": 3e-3, "batch_size": 16}
    before = finetune(tiny_bert, task, epochs=0, **options)
    result = finetune(tiny_bert, task, out=tmp_path / "out", epochs=8, **options)
    assert result.train_size == 24 and result.steps == 24
    assert result.metrics["accuracy"] > before.metrics["accuracy"] + 0.1
    saved = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    logits = saved.encode([example.text for example in task.test])
    labels = json.loads((tmp_path / "out" / "labels.json").read_text())
    assert labels == task.labels and logits.argmax(1).tolist() == result.predicted
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert np.abs(chance - np.array(result.probabilities)).max() < 1e-5
    card = (tmp_path / "out" / "README.md").read_text()
    assert "labels.json" in card and "pipeline_tag: text-classification" in card
    block = card.partition("```python\n")[2].partition("```")[0].replace("'out'", repr(str(tmp_path / "out")))
    exec(block, {})  # prints a class
    assert capsys.readouterr().out.strip() in task.labels
    assert finetune(tiny_bert, task, out=tmp_path / "out", epochs=8, **options).seconds == result.seconds


PAIRS = [{"text": f"a {n}", "text_pair": "b", "label": n % 2} for n in range(12)]


@each(("task", "options", "words"), [
    (PAIRS, {}, "has pairs of texts"),
    ([{"text": f"a {n}", "label": ["x", "y"][: n % 3]} for n in range(12)], {}, "has lists of labels"),
    ([{"text": f"a {n}", "label": n + 0.5} for n in range(12)], {}, "'contrastive' is for classification"),
    ([{"text": f"a {n}", "label": n % 2} for n in range(40)], {"select": "dev"}, "'select' does not apply"),
    ([{"text": f"a {n}", "label": n % 2} for n in range(40)], {"adapter": "lora"}, "'adapter' is for retrieval"),
])  # fmt: skip
def test_what_does_not_apply_is_an_error(task, options, words, tiny_bert):
    with pytest.raises(UserError, match=words):
        finetune(tiny_bert, task, **QUICK, **options)
