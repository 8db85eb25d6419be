"""Probes: simple models that learn a task from the states of a frozen model."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

import acclimate
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.data.task_kinds import load_task
from acclimate.evaluation.scoring import SingleLabel
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.probing import (
    PENALTY,
    ClassProbe,
    _load_or_compute,
    join_states,
    mean_states,
    measure_probe,
    plan_draws,
)
from tests.cases import each

WORDS = ["the", "food", "was", "good", "bad", "service", "slow", "nice", "and", "cold"]


def texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(count)]


def labelled(count: int, seed: int, label=lambda text: "yes" if "good" in text else "no", **more) -> list[dict]:
    return [
        {"text": text, "label": label(text), **{k: f(text) for k, f in more.items()}} for text in texts(count, seed)
    ]


def splits(label, **more):
    return load_task({split: labelled(count, count, label, **more) for split, count in (("train", 60), ("test", 30))})


@pytest.fixture(scope="module")
def task() -> Task:
    return Task.of("reviews", labelled(60, 1), labelled(40, 2))


@torch.inference_mode()
def plain_states(folder, texts: list[str]) -> np.ndarray:
    """Mean of the last hidden states, one text at a time, by transformers alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    inputs = [tokenizer(text, return_tensors="pt", return_token_type_ids=False) for text in texts]
    return np.stack([model(**one).last_hidden_state[0].mean(0).numpy() for one in inputs])


@each("kind", ["bert", "roberta", "modernbert", "llama", "gpt2"])
def test_states_are_means_over_the_tokens_of_each_text(kind, encoders, decoders):
    folder = {**encoders, **decoders}[kind]
    some = texts(12, 3)
    assert np.allclose(mean_states(folder, some, 32), plain_states(folder, some), atol=2e-5)


def test_a_sentence_encoder_pools_as_it_says(tiny_bert, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    modules = library.sentence_transformer.modules
    parts = [modules.Transformer(str(tiny_bert), max_seq_length=32), modules.Pooling(32, "max"), modules.Normalize()]
    encoder = library.SentenceTransformer(modules=parts, device="cpu")
    encoder.save(str(tmp_path / "encoder"))
    some = texts(5, 3)
    found = mean_states(tmp_path / "encoder", some, 32)
    assert np.allclose(found, encoder.encode(some), atol=1e-5)
    assert np.allclose(np.linalg.norm(found, axis=1), 1)


def test_scikit_learn_on_plain_states_gives_the_same_predictions(tiny_bert, task):
    result = acclimate.probe(tiny_bert, task, labels_per_class=[8, "all"], draws=2, progress=False)
    train, test = (
        plain_states(tiny_bert, [example.text for example in split]).astype(float) for split in (task.train, task.test)
    )
    scaler = StandardScaler().fit(train)
    width = train.shape[1]
    train, test = scaler.transform(train) / np.sqrt(width), scaler.transform(test) / np.sqrt(width)
    gold = np.array([example.label for example in task.train])
    for score in result.scores:
        drawn = task.train if score.labels is None else task.few_shot(8, score.draw)
        rows = [next(i for i, one in enumerate(task.train) if one is example) for example in drawn]
        near = KNeighborsClassifier(5, metric="cosine", weights="distance")
        model = {"linear": LogisticRegression(C=PENALTY, max_iter=2000), "neighbors": near}[score.probe]
        expected = model.fit(train[rows], gold[rows]).predict(test)
        assert np.mean(expected == score.predicted) >= 0.95  # a tie may be decided by the last bit of a state
        expected_score = SingleLabel().score(result.gold, score.predicted, "macro_f1")
        assert score.metrics["macro_f1"] == pytest.approx(expected_score)
    assert result.gold == [example.label for example in task.test]
    assert [(s.labels, s.draw, s.train_size) for s in result.scores if s.probe == "linear"] == [
        (8, 0, 16), (8, 1, 16), (None, 0, 60),
    ]  # fmt: skip


def test_a_task_that_the_states_show_is_learned(tiny_bert, task):
    result = acclimate.probe(tiny_bert, task, labels_per_class="4,all", draws=3, progress=False)
    rows = {(row["probe"], row["labels per class"]): row for row in result.rows()}
    assert rows["linear", "all"]["macro_f1"] > 0.8 > 0.6 > 0.3  # a word that is there or not
    assert rows["linear", 4]["sd"] is not None and rows["linear", "all"]["sd"] is None
    assert "linear: 4: 0." in repr(result) and len(result.to_pandas()) == 4
    assert "Frozen states on reviews" in result.report().html


def test_states_are_stored_once(tiny_bert, task, tmp_path, monkeypatch):
    settings = {"labels_per_class": [4], "draws": [0], "neighbors": 5, "states": tmp_path / "states"}
    first = measure_probe(tiny_bert, task, **settings)
    monkeypatch.setattr("acclimate.tasks.probing.mean_states", lambda *args: pytest.fail("read again"))
    second = measure_probe(tiny_bert, task, **settings | {"draws": [0, 1]})
    assert [s.predicted for s in second.scores if not s.draw] == [s.predicted for s in first.scores]
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["states.npy"]


def test_workers_that_need_the_same_states_read_the_texts_once(tmp_path):
    read = []

    def compute() -> np.ndarray:
        read.append(1)
        time.sleep(0.2)
        return np.ones((2, 3))

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: _load_or_compute(tmp_path / "states" / "one", compute), range(4))]
    assert len(read) == 1 and all((states == 1).all() for states in found)
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["one"]


def test_a_worker_reads_the_texts_if_another_one_failed(tmp_path):
    with pytest.raises(ZeroDivisionError):
        _load_or_compute(tmp_path / "one", lambda: np.ones(1 // 0))
    assert _load_or_compute(tmp_path / "one", lambda: np.ones(3)).tolist() == [1, 1, 1]


def test_other_kinds_of_tasks(tiny_bert):
    many = splits(lambda text: [word for word in ("good", "bad") if word in text])
    numbers = splits(lambda text: len(text.split()) / 2)
    pairs = splits(lambda text: "ab"[text < "n"], text_pair=lambda text: text[::-1])
    classes = "labels per class"
    for task, unit, features in ((many, classes, 1), (numbers, "labels", 1), (pairs, classes, 4)):
        result = acclimate.probe(tiny_bert, task, labels_per_class=[8, "all"], draws=2, progress=False)
        width = AutoModel.from_pretrained(tiny_bert).config.hidden_size
        assert result.unit == unit and result.features == features * width
        best = max(row[next(iter(result.scores[0].metrics))] for row in result.rows())
        assert best > 0.5
        again = task.scoring()
        for score in result.scores:
            for name, value in score.metrics.items():
                assert again.score(result.gold, score.predicted, name) == pytest.approx(value)


def test_features_of_pairs():
    u, v = np.array([[1.0, 2.0]]), np.array([[3.0, 1.0]])
    assert join_states([u]) is u
    assert join_states([u, v]).tolist() == [[1, 2, 3, 1, 2, 1, 3, 2]]


def test_a_kind_without_a_probe_is_refused_by_name(tiny_bert):
    answer = {"text": ["good"], "answer_start": [4]}
    rows = [
        {"id": str(n), "context": f"The good text {n}.", "question": "What?", "answers": answer} for n in range(20)
    ]
    with pytest.raises(UserError, match=r"of the kind 'qa', which cannot be learned from one state per text"):
        acclimate.probe(tiny_bert, load_task(rows, name="questions"), progress=False)


@each(("levels", "match"), [
    ([0], "at least 1"), ("8,some", "integers of at least 1, or all, not 'some'"), ([], "not be empty"),
    ([True], "not True"), ([2.5], "not 2.5"),
])  # fmt: skip
def test_numbers_of_labels_that_are_refused(levels, match, task):
    with pytest.raises(UserError, match=match):
        acclimate.probe("model", task, labels_per_class=levels)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.lists(st.integers(1, 15), min_size=1, max_size=4))
def test_draws_are_balanced_and_what_is_missing_is_said(sizes, levels):
    sizes = dict(zip("abcd", sizes, strict=False))
    rows = [{"text": f"text {name} {n}", "label": name} for name, size in sizes.items() for n in range(size)]
    task = Task.of("task", rows, rows)
    plan, short, notes = plan_draws(ClassProbe(), task, [*levels, "all"])
    assert plan == [*sorted({level for level in levels if level < max(sizes.values())}), None]
    for level in plan[:-1]:
        counts = Counter(task.labels[example.label] for example in task.few_shot(level, 3))
        assert counts == {name: min(level, size) for name, size in sizes.items()}
        expected = {name: size for name, size in sizes.items() if size < level}
        assert short.get(level, {}) == expected
        assert bool(expected) == any(note.startswith(f"{level:,} labels") for note in notes)


def test_command(tiny_bert, tmp_path):
    rows = tmp_path / "reviews.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in labelled(80, 1)))
    words = ["finetune", "--model", str(tiny_bert), "--task", str(rows), "--quiet"]
    ran = CliRunner().invoke(app, [*words, "--probe", "--labels-per-class", "4,all", "--draws", "2"])
    assert ran.exit_code == 0, ran.output
    assert "linear: 4: 0." in ran.output and "all: " in ran.output and "acclimate finetune --model" in ran.output
    for more, match in (
        (["--probe", "--epochs", "3"], "'epochs' does not apply with a probe"),
        (["--probe", "--out", "x"], "'out' does not apply with a probe"),
        (["--draws", "3"], "'draws' needs 'probe'"),
    ):
        refused = CliRunner().invoke(app, [*words, *more])
        assert refused.exit_code != 0 and match in str(refused.exception)
