"""Fine-tuning tiny models for question answering."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from acclimate.base.device import default_device
from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task, task_texts
from acclimate.tasks import training_cache
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.kinds.qa.data import QATask
from acclimate.tasks.kinds.qa.model import load_qa_model
from acclimate.tasks.kinds.qa.windows import WindowConfig
from tests.cases import each
from tests.tasks.qa.toy import food_task, squad
from tests.tiny import ENCODERS

QUICK = {"progress": False, "precision": "fp32", "max_length": 64}


@pytest.fixture(scope="module")
def learned(tiny_bert, tmp_path_factory):
    """A finished, saved run and its folder."""
    out = tmp_path_factory.mktemp("runs") / "food"
    return finetune(tiny_bert, food_task(), epochs=6, learning_rate=3e-3, out=out, **QUICK), out


def test_the_answer_is_found(learned):
    result, _ = learned
    assert result.kind == "qa"
    assert result.metrics["exact_match"] > 0.9
    assert result.metrics["f1"] >= result.metrics["exact_match"]
    assert result.metrics["lenient_accuracy"] >= result.metrics["mrr"] >= result.metrics["strict_accuracy"] > 0.9
    assert result.train_size == 48
    assert (len(result.gold), len(result.predicted), len(result.probabilities)) == (12, 12, 12)
    assert result.dev_metrics is not None
    assert result.labels == []
    json.dumps(asdict(result))


def test_predictions_are_ranked_and_distinct(learned):
    result, _ = learned
    for answers, scores in zip(result.predicted, result.probabilities, strict=True):
        assert len(answers) == len({answer.lower() for answer in answers}) == 5
        assert scores == sorted(scores, reverse=True)


def test_the_saved_model_is_an_ordinary_one_and_keeps_its_head(learned, tiny_bert):
    result, out = learned
    model, tokenizer = AutoModelForQuestionAnswering.from_pretrained(out).eval(), AutoTokenizer.from_pretrained(out)
    question = food_task().test[0]
    inputs = tokenizer(question.text, question.passage, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    first, last = int(output.start_logits.argmax()), int(output.end_logits.argmax())
    assert tokenizer.decode(inputs["input_ids"][0, first : last + 1]) == result.predicted[0][0]
    again = load_qa_model(out, WindowConfig(64), default_device())
    assert torch.equal(again.model.qa_outputs.weight, load_file(out / "model.safetensors")["qa_outputs.weight"])
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [row["predicted"] for row in rows] == result.predicted
    assert rows[0]["gold"] == [question.answers[0].text]


def test_long_passages_are_read_in_windows(tiny_bert):
    task = food_task(train=32, test=8, words=(60, 90))  # the model reads 80 tokens
    result = finetune(tiny_bert, task, epochs=5, learning_rate=3e-3, **{**QUICK, "max_length": 384})
    assert result.metrics["exact_match"] > 0.7


def test_the_same_seed_gives_the_same_answers(tiny_bert):
    task = food_task(train=16, test=6)
    one, two, three = (finetune(tiny_bert, task, epochs=1, seed=seed, **QUICK) for seed in (1, 1, 2))
    assert one.probabilities == two.probabilities != three.probabilities


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_order_of_the_questions_changes_nothing(tiny_bert, side):
    """The composition of batches does not matter either, whichever side the tokenizer pads."""
    reader = load_qa_model(tiny_bert, WindowConfig(40, overlap=10), default_device())
    reader.tokenizer.padding_side = side
    questions = food_task(test=10).test
    forward, backward = (reader.answers(order, "fp32") for order in (questions, questions[::-1]))
    assert forward == backward[::-1]
    for question, ranked in zip(questions, forward, strict=True):
        (alone,) = reader.answers([question], "fp32")
        assert [answer for answer, _ in alone] == [answer for answer, _ in ranked]


def test_a_tokenizer_that_pads_on_the_left_marks_the_same_answers(tiny_bert):
    reader = load_qa_model(tiny_bert, WindowConfig(64), default_device())
    reader.tokenizer.padding_side = "left"
    windows = reader.features(food_task(words=(10, 30)).train, seed=0)
    rows = [windows[place] for place in range(len(windows))]
    batch = reader.collate(rows)
    for row, ids, mask, first in zip(
        rows, batch["input_ids"], batch["attention_mask"], batch["start_positions"], strict=True
    ):
        assert ids[: len(row["input_ids"])].tolist() == list(row["input_ids"]) and mask[0] == 1
        assert ids[first] == row["input_ids"][row["start_positions"]]
    assert reader.tokenizer.padding_side == "left", "the tokenizer is saved unchanged"


def test_questions_of_one_item_share_their_answers(tiny_bert):
    reader = load_qa_model(tiny_bert, WindowConfig(40, overlap=10), default_device())
    name = "0123456789abcdef01234567"
    one, two = (replace(question, id=f"{name}_00{place}") for place, question in enumerate(food_task(test=2).test))
    (both,) = reader.answers([one, two], "fp32")
    apart = [
        answer for ranked in reader.answers([replace(one, id="1"), replace(two, id="2")], "fp32") for answer in ranked
    ]
    assert both[0][1] == pytest.approx(max(score for _, score in apart), abs=1e-5)


def test_long_training_answers_raise_the_maximum_answer_length(tiny_bert):
    reader = load_qa_model(tiny_bert, WindowConfig(64), default_device())
    assert reader.max_answer_tokens == 30
    reader.features(food_task().train, seed=0)
    assert reader.max_answer_tokens == 30
    value = squad(20, 0, words=(40, 41))
    for paragraph in value["data"][0]["paragraphs"]:
        paragraph["qas"][0]["answers"] = [{"text": paragraph["context"], "answer_start": 0}]
    reader.features(QATask.of("long", value, value).train, seed=0)
    assert reader.max_answer_tokens >= 81


@each("kind", sorted(ENCODERS))
def test_every_architecture_answers(encoders, kind):
    result = finetune(encoders[kind], food_task(train=8, test=4), epochs=1, **QUICK)
    assert len(result.predicted) == 4


def test_dev_chooses_by_f1(tiny_bert):
    result = finetune(tiny_bert, food_task(train=24, test=4), epochs=3, learning_rate=3e-3, select="dev", **QUICK)
    assert 1 <= result.epoch <= 3
    with pytest.raises(UserError, match="Unknown metric 'macro_f1'"):
        finetune(tiny_bert, food_task(train=4, test=2), select="dev", metric="macro_f1", **QUICK)


def test_the_default_window_is_384_tokens(tiny_bert):
    assert food_task().default_length == 384
    short = {name: value for name, value in QUICK.items() if name != "max_length"}
    assert finetune(tiny_bert, food_task(train=4, test=2), epochs=1, **short).metrics


def test_negative_labels_do_not_apply(tiny_bert):
    with pytest.raises(UserError, match="has no labels, so 'negative' does not apply"):
        finetune(tiny_bert, food_task(train=4, test=2), negative="x", **QUICK)


def test_task_text_has_each_passage_once():
    value = squad(3, 0)
    paragraph = value["data"][0]["paragraphs"][0]
    paragraph["qas"].append({**paragraph["qas"][0], "id": "another", "question": "what else?"})
    texts = task_texts(QATask.of("t", value, squad(2, 1)))
    passages = [entry["context"] for entry in value["data"][0]["paragraphs"]]
    assert texts == ["which food is good?", passages[0], "what else?", *passages[1:]]


# --- two stages -----------------------------------------------------------------------------------------------------


@pytest.fixture
def trainings(monkeypatch, tmp_path):
    """The options of every first stage that is trained, with an empty cache."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    seen = []
    real = training_cache.train

    def train(head, rows, options, *others, **more):
        seen.append(options)
        return real(head, rows, options, *others, **more)

    monkeypatch.setattr(training_cache, "train", train)
    return seen


def test_the_first_stage_helps(tiny_bert, trainings):
    few = food_task(train=2, test=12, seed=1)
    options = {"epochs": 1, "learning_rate": 1e-4, **QUICK}
    alone = finetune(tiny_bert, few, **options)
    after = finetune(tiny_bert, few, first=food_task(), first_epochs=6, first_learning_rate=3e-3, **options)
    assert after.metrics["exact_match"] > alone.metrics["exact_match"] + 0.5
    assert (alone.first, after.first, after.train_size) == (None, "food", 2)
    assert [(made.epochs, made.learning_rate) for made in trainings] == [(6, 3e-3)]


def test_the_first_stage_is_trained_once_and_reused_exactly(tiny_bert, trainings, tmp_path):
    first, options = food_task(train=12), {"epochs": 1, "learning_rate": 1e-3, **QUICK}
    one = finetune(tiny_bert, food_task(train=8, test=6), first=first, out=tmp_path / "one", **options)
    two = finetune(tiny_bert, food_task(train=8, test=6), first=first, out=tmp_path / "two", **options)
    assert len(trainings) == 1
    assert one.probabilities == two.probabilities
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    finetune(tiny_bert, food_task(train=4, test=6, seed=2), first=first, **options)  # another second task
    assert len(trainings) == 1
    finetune(tiny_bert, food_task(train=8, test=6), first=first, seed=1, **options)
    finetune(tiny_bert, food_task(train=8, test=6), first=first, first_epochs=2, **options)
    finetune(tiny_bert, food_task(train=8, test=6), first=food_task(train=11), **options)
    assert len(trainings) == 4


def test_a_damaged_or_full_cache_only_costs_time(tiny_bert, trainings, tmp_path, monkeypatch):
    monkeypatch.setattr(training_cache, "MAX_CACHED_TRAININGS", 1)
    task, options = food_task(train=8, test=4), {"epochs": 1, **QUICK}
    one = finetune(tiny_bert, task, first=food_task(train=9), **options)
    (kept,) = (tmp_path / "cache" / "trained").iterdir()
    (kept / "model.safetensors").write_bytes(b"broken")
    assert finetune(tiny_bert, task, first=food_task(train=9), **options).probabilities == one.probabilities
    finetune(tiny_bert, task, first=food_task(train=10), **options)
    (left,) = (tmp_path / "cache" / "trained").iterdir()
    assert left.name != kept.name


def test_an_identical_training_of_another_process_is_awaited(tiny_bert, trainings, tmp_path, monkeypatch):
    task, first, options = food_task(train=8, test=4), food_task(train=9), {"epochs": 1, **QUICK}
    one = finetune(tiny_bert, task, first=first, **options)
    (made,) = (tmp_path / "cache" / "trained").iterdir()
    made.rename(hidden := tmp_path / "hidden")
    other = training_cache.Claim(made.parent / f".{made.name}.claim")
    assert other.take()

    def sleep(seconds):  # the other process finishes in the meantime
        hidden.rename(made)
        other.release()

    monkeypatch.setattr(training_cache.time, "sleep", sleep)
    assert finetune(tiny_bert, task, first=first, **options).probabilities == one.probabilities
    assert len(trainings) == 1
    assert [entry.name for entry in made.parent.iterdir()] == [made.name]


def test_a_first_task_of_classes_needs_the_same_labels(tiny_bert, trainings):
    rows = [{"text": f"{word} food", "label": word} for word in ("good", "bad")] * 4
    other = [{"text": f"{word} food", "label": word} for word in ("kind", "rude")] * 4
    task = Task.of("good", rows, rows)
    short = {"epochs": 1, "progress": False, "precision": "fp32"}
    assert finetune(tiny_bert, task, first=Task.of("first", rows[:4], rows), **short).first == "first"
    with pytest.raises(UserError, match=r"labels of 'kind' \(kind, rude\) differ from those of 'good' \(bad, good\)"):
        finetune(tiny_bert, task, first=Task.of("kind", other, other), **short)
    with pytest.raises(UserError, match="a task of the same kind"):
        finetune(tiny_bert, task, first=food_task(train=4), **short)
    with pytest.raises(UserError, match="'first_epochs' needs a first task"):
        finetune(tiny_bert, task, first_epochs=3, **short)
    with pytest.raises(UserError, match="'first_epochs' must be at least 1"):
        finetune(tiny_bert, task, first=task, first_epochs=0, **short)


@pytest.mark.slow
def test_the_loss_falls_on_real_questions(shared):
    task = load_task(shared / "data" / "rrc_restaurant")
    task = replace(task, train=task.train[:96], test=task.test[:20], dev=[])
    options = {"learning_rate": 3e-4, "max_length": 128, "progress": False}
    one, four = (finetune(shared / "models" / "minilm-mlm", task, epochs=epochs, **options) for epochs in (1, 4))
    assert four.train_loss < 0.85 * one.train_loss
