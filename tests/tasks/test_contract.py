"""What every kind of task must do, for encoders and decoders: load, learn, score, save, reload elsewhere, resume."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import random
import re
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.trainer_callback import CallbackHandler

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import TASK_KINDS, find_task_kind, load_task, task_texts
from acclimate.engine import callbacks
from acclimate.evaluation.scoring import find_scoring, make_scoring
from acclimate.models.kinds import SEQ2SEQ
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import EVALUATION_SPLITS, item_texts
from acclimate.tasks.prediction import load_predictor, predict
from acclimate.tasks.splits import limit_splits
from tests.tiny import save_tiny

FILLER = "the a of and to in is was it for on with".split()
FOODS, TOPICS = "pasta pizza soup wine menu table".split(), "model data train test loss layer".split()


def _classes(chance, number):
    return {"text": f"{sentence(chance)} {('good', 'bad')[number % 2]}", "label": ("fine", "poor")[number % 2]}


def _joint(chance, number):
    place = number % 4
    text = f"{sentence(chance)} {('good', 'bad')[number % 2]} {FOODS[place // 2]}"
    return {"text": text, "label": ("fine", "poor")[number % 2], "auxiliary": ("ask", "tell")[place // 2]}


def _numbers(chance, number):
    good = number % 4
    return {"text": " ".join(["good"] * good + ["bad"] * (3 - good) + [sentence(chance)]), "label": good + 0.5}


def _entities(chance, number):
    words = [*sentence(chance).split(), FOODS[number % 2], chance.choice(FILLER)]
    return {"tokens": words, "tags": ["O"] * (len(words) - 2) + [("B-food", "B-place")[number % 2], "O"]}


def _questions(chance, number):
    before = f"{sentence(chance)} "
    answer = {"text": [FOODS[number % 4]], "answer_start": [len(before)]}
    return {"id": f"{chance.random()}", "question": "which food ?", "context": f"{before}{FOODS[number % 4]} is it",
            "answers": answer}  # fmt: skip


def _queries(chance, number):
    place = number % 6
    return {"query": f"{sentence(chance)} {FOODS[place]}", "positive": f"the {TOPICS[place]}"}


def _choices(chance, number):
    good, bad = ["good", "fresh", "kind", "quick"], ["bad", "cold", "rude", "slow"]
    words = [chance.choice(good if place == number % 3 else bad) for place in range(3)]
    return {"question": sentence(chance), "choices": [f"{FOODS[place]} {word}" for place, word in enumerate(words)],
            "answer": number % 3}  # fmt: skip


def _prompts(chance, number):
    question = f"{sentence(chance)} {('good', 'bad')[number % 2]}"
    return {"question": question, "answers": [("kind", "rude")[number % 2], f"the {number}th"]}


def sentence(chance):
    return " ".join(chance.choices(FILLER, k=chance.randint(2, 5)))


class Sample(NamedTuple):
    """A tiny task of one kind.

    Attributes:
        row: Makes a row from a random generator and a number, which determines the answer.
        options: Options of fine-tuning with which a tiny model learns the task.
        needs: A package without which the kind cannot be used.
        model: The architecture of which it is tested, where that is no encoder.
    """

    row: Callable[[random.Random, int], dict[str, Any]]
    options: dict[str, Any] = {}
    needs: str = "torch"
    model: str = "bert"


SAMPLES = {
    "classification": Sample(_classes),
    "regression": Sample(_numbers),
    "joint": Sample(_joint, {"auxiliary_weight": 0.3}),
    "entities": Sample(_entities),
    "qa": Sample(_questions, {"epochs": 8}),
    "choice": Sample(_choices, {"epochs": 8, "max_length": 64}),
    "generation": Sample(_prompts, {"epochs": 8, "max_length": 64, "max_new_tokens": 4}, model="llama"),
    "retrieval": Sample(_queries, needs="sentence_transformers"),
}
"""A tiny task of every kind in the registry."""
MODELS = ("usual", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "t5", "bart")))
PAIRED = {"t5": ("classification", "regression", "generation"), "bart": ("classification", "regression")}
"""Kinds of tasks that tiny encoder-decoders learn."""
OPTIONS = {
    **{"epochs": 6, "learning_rate": 1e-2, "batch_size": 8, "max_length": 40, "select": "dev"},
    **{"precision": "fp32", "progress": False},
}
SIZES = {"train": 32, "dev": 8, "test": 12}


@pytest.fixture(params=TASK_KINDS.names())
def kind(request):
    assert request.param in SAMPLES, f"add a tiny task of the kind '{request.param}' to SAMPLES"
    if importlib.util.find_spec(SAMPLES[request.param].needs) is None:
        pytest.skip(f"{SAMPLES[request.param].needs} is not installed")
    return request.param


def splits_of(kind):
    """Rows by split."""
    return {
        split: [SAMPLES[kind].row(random.Random(f"{split}{number}"), number) for number in range(count)]
        for split, count in SIZES.items()
    }


def options_of(kind):
    return {**OPTIONS, **SAMPLES[kind].options}


GOLD = ("label", "tags", "answers", "answer", "positive", "references")
"""Columns of the gold answers of the tiny tasks."""


def simplified(kind, row, answer):
    """An answer in a form that a prediction and a line of ``predictions.jsonl`` have in common."""
    if kind == "regression":
        return pytest.approx(answer, rel=1e-5)
    if kind == "entities":
        return [(span["start"], span["end"], span.get("label", span.get("type"))) for span in answer]
    if kind == "choice" and answer in row["choices"]:
        return chr(ord("A") + row["choices"].index(answer))
    if kind in ("qa", "generation") and isinstance(answer, list):
        return answer[0]
    if kind == "retrieval":
        return [entry["id"] if isinstance(entry, dict) else entry for entry in answer]
    return answer


def other_value(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, dict):
        return {**value, "more": "text"}
    return f"{value} x" if value is None or isinstance(value, str) else type(value)([*value, *(value or ["x"])])


def test_another_value_of_any_field_is_another_fingerprint(kind):
    """Whatever is added to a task or an example of a kind is in its identity without an edit."""
    task = load_task(splits_of(kind))
    origin = {"name", "path", "drawn", "reading"}
    for field in dataclasses.fields(task):
        changed = dataclasses.replace(task, **{field.name: other_value(getattr(task, field.name))})
        assert (changed.fingerprint() == task.fingerprint()) == (field.name in origin), field.name
    first = task.train[0]
    for field in dataclasses.fields(first):
        other = dataclasses.replace(first, **{field.name: other_value(getattr(first, field.name))})
        changed = dataclasses.replace(task, train=[other, *task.train[1:]])
        assert (changed.fingerprint() == task.fingerprint()) == (field.name == "row"), field.name


def test_it_is_found_and_read_the_same_from_objects_and_files(kind, tmp_path):
    rows = splits_of(kind)
    for split, own in rows.items():
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    task, read = load_task(rows, name="tiny"), load_task(tmp_path, name="tiny")
    assert task.task_kind == read.task_kind == kind == load_task(rows, task_kind=kind).task_kind
    assert task.fingerprint() == read.fingerprint() == load_task(rows, name="other").fingerprint()
    assert {split: len(getattr(task, split)) for split in SIZES} == SIZES
    assert f"'tiny': {SIZES['train']} train" in repr(task)
    fewer = load_task({**rows, "train": rows["train"][1:]})
    assert fewer.fingerprint() != task.fingerprint()
    names = read.row_names("test")
    assert len(set(names)) == SIZES["test"] and all(name for name in names)
    if kind not in ("qa", "retrieval"):  # which have ids
        assert names == [f"test.jsonl:{number}" for number in range(1, SIZES["test"] + 1)]
    drawn = load_task(rows["train"])
    every = [name for split in SIZES for name in drawn.row_names(split)]
    assert len(set(every)) == len(every) and all(every)
    assert drawn.drawn and drawn.test and len(drawn.train) < SIZES["train"]

    found, own = find_task_kind(task), item_texts(task)
    assert own.keys() == set(SIZES) and all(text.strip() for texts in own.values() for text in texts)
    assert all(text.strip() for text in task_texts(task))
    for split in SIZES:
        for example in getattr(task, split):
            assert found.answer(example, task).strip() and list(found.texts(example))
    shots = task.few_shot(4, 0)
    assert shots == task.few_shot(4, 0) != task.few_shot(4, 1) and all(example in task.train for example in shots)
    assert len(shots) < len(task.train)
    with pytest.raises(UserError):
        task.few_shot(0, 0)
    assert len(limit_splits(task, train=8).train) == 8 and found.shrink(limit_splits(task, train=8)).test
    for split in EVALUATION_SPLITS:
        scoring = task.scoring(split)
        assert make_scoring(scoring.name, json.loads(json.dumps(scoring.details()))) == scoring
        assert scoring.metrics and all(find_scoring(scoring.name).hub_task)


def test_all_labels_are_learned_and_none_is_scored(kind, tmp_path):
    """Once the question is answered: every row, with given settings, and no score of rows that were seen."""
    task, options = load_task(splits_of(kind), name="tiny"), {**options_of(kind), "select": "last", "epochs": 1}
    start = save_tiny(SAMPLES[kind].model, tmp_path / "start")
    made = finetune(start, task, all_labels=True, out=tmp_path / "out", **options)
    assert (made.train_size, made.metrics, made.dev_metrics, made.predicted) == (sum(SIZES.values()), {}, None, [])
    assert "So this model has no score" in (tmp_path / "out" / "README.md").read_text()
    assert load_predictor(tmp_path / "out", None) and not (tmp_path / "out" / "predictions.jsonl").exists()
    for wrong in ({"select": "dev"}, {"tune": True, "learning_rate": None}, {"few_shot": 4}, {"epochs": 0}):
        with pytest.raises(UserError, match=r"no dev split|does not apply"):
            finetune(start, task, all_labels=True, **{**options, **wrong})


def killing(at, monkeypatch):
    """Kill a training of any trainer at a step, once, after a checkpoint in the step before."""
    on_step_begin, seen = CallbackHandler.on_step_begin, []

    def kill(self, args, state, control):
        seen.append(state.global_step)
        monkeypatch.setattr(callbacks, "SECONDS_BETWEEN_CHECKPOINTS", -1 if state.global_step == at - 1 else 1e9)
        if state.global_step == at and seen.count(at) == 1:
            raise KeyboardInterrupt
        return on_step_begin(self, args, state, control)

    return patch.object(CallbackHandler, "on_step_begin", kill), seen


@pytest.mark.parametrize("model", MODELS)
def test_it_learns_scores_saves_reloads_elsewhere_and_resumes(kind, model, tmp_path, monkeypatch):
    task, options = load_task(splits_of(kind), name="tiny"), options_of(kind)
    if model == SAMPLES[kind].model:
        pytest.skip("its usual model")
    if kind not in PAIRED.get(model, (kind,)):
        pytest.skip("it has no head for this kind, or is too small")
    model = SAMPLES[kind].model if model == "usual" else model
    start = save_tiny(model, tmp_path / "start")

    # Learns: better than the same model with hardly any step.
    whole = finetune(start, task, **options)
    metric = make_scoring(whole.kind, whole.scoring).metrics[0]
    before = finetune(start, task, **{**options, "epochs": 1, "learning_rate": 1e-12, "select": "last"})
    assert whole.metrics[metric] > max(0.8, before.metrics[metric] + 0.1), (before.metrics[metric], whole.metrics)

    # Scores: what a study computes from stored predictions, in which the true answers are the best possible.
    stored = json.loads(json.dumps([whole.gold, whole.predicted]))
    scoring = make_scoring(whole.kind, json.loads(json.dumps(whole.scoring)))
    for name in scoring.metrics:
        assert scoring.score(*stored, name) == pytest.approx(whole.metrics[name], abs=1e-9)
        assert scoring.score(stored[0], stored[0], name) == pytest.approx(1.0) and name not in scoring.errors
        items, score = scoring.resampler(*stored, name)
        assert float(score(np.ones((1, items)))[0]) == pytest.approx(whole.metrics[name], abs=1e-9)
    assert len(whole.predicted) == len(whole.gold) == len(whole.probabilities) == SIZES["test"]
    assert all(name in whole.dev_metrics for name in task.scoring("dev").metrics)

    # Resumes: a training that is killed in its second half ends with the same numbers.
    kill, seen = killing(whole.steps // 2, monkeypatch)
    with kill:
        with pytest.raises(KeyboardInterrupt):
            finetune(start, task, out=tmp_path / "out", **options)
        first = len(seen)
        resumed = finetune(start, task, out=tmp_path / "out", **options)
    assert 0 < seen[first] <= whole.steps // 2 and seen[-1] == whole.steps - 1
    assert (resumed.predicted, resumed.metrics) == (whole.predicted, whole.metrics)
    assert not list(tmp_path.glob(".*.work"))

    # Saves: a folder that another place and `transformers` read, with a card and readable predictions.
    out = shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    config = transformers.AutoConfig.from_pretrained(out)
    loaded, info = getattr(transformers, config.architectures[0]).from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    weights = load_file(out / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in loaded.state_dict().items() if name in weights)
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    shown = {"output", "scores"} if kind == "generation" else {"probabilities"}
    assert len(lines) == SIZES["test"] and lines[0].keys() - {"group", "row"} == {"gold", "predicted", *shown}
    text = (out / "README.md").read_text()
    tag = SEQ2SEQ.pipeline_tag if (model, kind) == ("t5", "generation") else scoring.hub_task[0]
    assert f"pipeline_tag: {tag}" in text and "tiny" in text
    assert scoring.show(metric, whole.metrics[metric]) in text

    # The code of its card runs on a text that is longer than any that the model reads, at the length of the training.
    words = " ".join(FILLER * 200)
    usage = text.partition("## How to use it")[2].partition("\n## ")[0]
    code = "\n".join(re.findall(r"```python\n(.*?)```", usage, flags=re.DOTALL)).replace("'out'", repr(str(out)))
    code, texts = re.subn(r'"(A|Another) [^"]*[.s]"', repr(words), code)
    names = {}
    exec(code, names)
    assert texts or (kind in ("choice", "generation") and model != "bert")
    encoder = names.get("encoder")
    limit = encoder.max_seq_length if encoder else transformers.AutoTokenizer.from_pretrained(out).model_max_length
    assert limit == options["max_length"]

    # Predicts: rows without their answers get the same answers from the saved folder.
    rows = splits_of(kind)["test"]
    bare = [{name: value for name, value in row.items() if name not in GOLD} for row in rows]
    passages = (
        {"passages": [{"id": key, "text": text} for key, text in task.documents.items()]}
        if kind == "retrieval"
        else {}
    )
    made = predict(out, bare, None, progress=False, **passages)
    answers = [row[made.columns[0]] for row in made.rows]
    assert made.skipped == 0 and [[*row][: len(bare[0])] for row in made.rows] == [[*row] for row in bare]
    assert [simplified(kind, row, answer) for row, answer in zip(rows, answers, strict=True)] == [
        simplified(kind, row, line["predicted"]) for row, line in zip(rows, lines, strict=True)
    ]
    if kind != "retrieval":
        labelled = predict(out, rows, None, progress=False)
        assert labelled.scored == len(rows) and labelled.scores[0][0] == pytest.approx(whole.metrics[labelled.metric])

    again = finetune(out, task, **{**options, "epochs": 1, "learning_rate": 1e-12, "select": "last"})
    assert again.predicted == pytest.approx(whole.predicted) if kind == "regression" else whole.predicted
    assert again.metrics[metric] == pytest.approx(whole.metrics[metric], abs=1e-6)
