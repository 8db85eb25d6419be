"""Labels and auxiliary labels that are learned together, with the texts before each text."""

from __future__ import annotations

import random

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from acclimate.base.errors import UserError
from acclimate.cards.card import AUXILIARY_FILE
from acclimate.data.task_kinds import find_task_kind, load_task
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import resolve_options
from acclimate.tasks.kinds.joint import texts_before
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.prediction import load_predictor, predict
from tests.tasks.test_contract import OPTIONS, splits_of

ACTS = ("ask", "tell", None)
LONG = {"epochs": 20, "learning_rate": 5e-3}


def turn(number, **more):
    words = ("good", "bad")[number % 2], ("pasta", "soup", "wine")[number % 3]
    label, act = ("fine", "poor")[number % 2], ACTS[number % 3]
    row = {"text": " ".join(words), "label": label, "dialogue_id": number // 5, "dialogue_act": act}
    return row | {"text": f"{row['text']} {number}"} | more


ROWS = {split: [turn(number) for number in range(first, first + 25)] for split, first in (("train", 0), ("test", 50))}


def joint(model, context=0, weight=0.5):
    task = find_task_kind(load_task(ROWS)).configured(load_task(ROWS), {"context": context})
    given = FinetuneOptions(model=model, task=task, context=context, auxiliary_weight=weight, epochs=1)
    torch.manual_seed(0)
    learner = find_task_kind(task).learner(model, task, resolve_options(given, task, model)[0], torch.device("cpu"))
    learner.configure(given)
    return learner


def test_texts_before_equal_a_search_in_all_texts():
    chance = random.Random(0)
    for _ in range(40):
        groups = [chance.choice(["a", "b", None]) for _ in range(9)]
        texts = [chance.choice([f"text {number}", None, 3, " "]) for number in range(9)]
        wanted = [
            tuple(
                texts[other]
                for other in range(place - 1, -1, -1)
                if groups[place] is not None
                and groups[other] == groups[place]
                and str(texts[other]).startswith("text")
            )
            for place in range(9)
        ]
        assert texts_before(texts, groups) == wanted


def test_the_loss_is_that_of_two_heads_on_the_same_state(tiny_bert):
    """The layers are read from the model; a text without an auxiliary label adds nothing to the second sum."""
    learner = joint(tiny_bert)
    head, examples = learner.head, learner.task.train[:8]
    inputs = head.collate(learner.rows(examples))
    head.model.eval()
    states = head.model.bert(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).pooler_output
    (main, other), wanted = head._heads, 0.0
    for state, example in zip(states, examples, strict=True):
        wanted -= main(state).log_softmax(-1)[example.label] / len(examples)
        if example.auxiliary is not None:
            wanted -= 0.5 * other(state).log_softmax(-1)[example.auxiliary] / len(examples)
    torch.testing.assert_close(head.run(head.model, inputs).loss, wanted)
    assert 0 < sum(example.auxiliary is None for example in examples) < len(examples)
    assert learner.task.auxiliary_labels == ["ask", "tell"] and isinstance(main, nn.Linear)
    head.run(head.model, inputs).loss.backward()
    assert all(float(layer.weight.grad.abs().max()) > 0 for layer in head._heads)


def test_context_is_read_in_training_and_prediction_and_both_labels_are_saved(tiny_bert, tmp_path):
    task = load_task(ROWS)
    assert [one.before for one in task.train[5:8]] == [
        (),
        (ROWS["train"][5]["text"],),
        (ROWS["train"][6]["text"], ROWS["train"][5]["text"]),
    ]
    options = {**OPTIONS, "epochs": 2, "max_length": 32, "select": "last"}
    made = finetune(tiny_bert, task, out=tmp_path / "out", context=2, **options)
    plain, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["unexpected_keys"] and plain.config.num_labels == 2
    assert load_file(tmp_path / "out" / AUXILIARY_FILE)["weight"].shape == (2, 32)

    card = (tmp_path / "out" / "README.md").read_text()
    assert "also predicts the auxiliary label" in card and "2 texts before, a line each, the last one first" in card

    bare = [{"text": row["text"], "dialogue_id": row["dialogue_id"]} for row in ROWS["test"]]
    found = predict(tmp_path / "out", bare, None, progress=False)
    assert [row["label"] for row in found.rows] == [made.labels[number] for number in made.predicted]
    right = [row["auxiliary"] == gold["dialogue_act"] for row, gold in zip(found.rows, ROWS["test"], strict=True)
             if gold["dialogue_act"]]  # fmt: skip
    assert sum(right) / len(right) == pytest.approx(made.metrics["auxiliary_accuracy"])
    read = load_predictor(tmp_path / "out", None).read([("", row) for row in bare], FinetuneOptions("m", "t"))
    assert read[2].text_pair == f"{bare[1]['text']}\n{bare[0]['text']}" and read[5].text_pair == ""
    with pytest.raises(UserError, match="'context' needs; name the column of the dialogue"):
        predict(tmp_path / "out", [{"text": "good"}], None, progress=False)

    rows = {
        split: [{**row, "dialogue_act": "pq"[row["dialogue_id"] % 2]} for row in own] for split, own in ROWS.items()
    }
    kind, other = find_task_kind(task), load_task(rows)
    known = [kind.is_model_of(tmp_path / "out", kind.configured(one, {"context": count}))
             for one, count in ((task, 2), (task, 0), (other, 2))]  # fmt: skip
    assert known == [True, False, False]
    for first, wrong in (
        (other, r"auxiliary labels of .* \(p, q\) differ from .* \(ask, tell\)"),
        (plain_rows(ROWS), r"auxiliary labels of .* \(none\) differ"),
    ):
        with pytest.raises(UserError, match=wrong):
            finetune(tiny_bert, task, first=first, **options)

    save_file(load_file(tmp_path / "out" / AUXILIARY_FILE), tmp_path / "out" / AUXILIARY_FILE)  # without the labels
    with pytest.raises(UserError, match=rf"{AUXILIARY_FILE}' is damaged"):
        predict(tmp_path / "out", bare, None, progress=False)


def plain_rows(rows):
    return {split: [{"text": row["text"], "label": row["label"]} for row in own] for split, own in rows.items()}


def test_an_auxiliary_label_without_another_is_the_label():
    """A table whose only label is the act of a turn, or where the user names it as the label."""
    rows = [{**row, "dialogue_act": row["dialogue_act"] or "none"} for row in ROWS["train"]]
    alone = [{key: row[key] for key in ("text", "dialogue_act", "dialogue_id")} for row in rows]
    without = [{key: row[key] for key in ("text", "dialogue_act")} for row in rows]
    for given, named in ((rows, "dialogue_act"), (alone, "dialogue_act"), (alone, None), (without, None)):
        task = load_task({"train": given, "test": given}, label_column=named)
        assert task.task_kind == "classification" and task.labels == ["ask", "none", "tell"]


@pytest.mark.slow
def test_both_labels_are_learned(tiny_bert):
    made = finetune(tiny_bert, load_task(splits_of("joint")), auxiliary_weight=2.0, **OPTIONS | LONG)
    assert made.metrics["accuracy"] > 0.75 and made.metrics["auxiliary_accuracy"] > 0.9


def test_rows_and_options_that_cannot_be_used(tiny_bert, tmp_path, caplog):
    rows = [turn(number) for number in range(40)]
    rows[0]["dialogue_act"], rows[39]["dialogue_act"] = ["ask"], "other"
    for number in range(2, 30, 3):  # more than may be left out for a fault
        rows[number]["label"] = None
    task = load_task({"train": rows[:30], "test": rows[30:]})
    assert len(task.train) == 19 and task.test[-1].auxiliary is None
    assert [one.before for one in task.train[:3]] == [
        (rows[0]["text"],),
        tuple(rows[place]["text"] for place in (2, 1, 0)),
        tuple(rows[place]["text"] for place in (3, 2, 1, 0)),
    ]
    assert "such as 'other', are not scored: 1." in caplog.text and "read as context alone: 10." in caplog.text
    configured = find_task_kind(task).configured(task, {"context": 2})
    assert find_task_kind(task).configured(configured, {"context": 2}) is configured

    several = [{"text": f"a {n}", "label": ["x", "y"][: n % 3], "auxiliary": "pq"[n % 2]} for n in range(9)]
    alone = [{key: row[key] for key in row if key != "dialogue_id"} for row in rows]
    no_second = [{**row, "dialogue_act": "ask"} for row in rows]
    plain = [{"text": row["text"], "label": "ab"[number % 2]} for number, row in enumerate(rows)]
    for given, options, wrong in (
        (several, {}, "lists of labels"),
        (no_second, {}, "1 auxiliary labels; a task needs two"),
        (alone, {"context": 1}, "which texts follow each other"),
        ([{**row, "text_pair": "b"} for row in rows], {"context": 1}, "has pairs of texts"),
        (plain, {"context": 1}, "'context' is for tasks of the kind joint"),
        (plain, {"task_kind": "joint"}, "no column of an auxiliary label; call it 'auxiliary'"),
        (rows, {"contrastive": True}, "'contrastive' is for classification"),
    ):
        with pytest.raises(UserError, match=wrong):
            finetune(tiny_bert, {"train": given, "test": given}, progress=False, epochs=1, **options)
