"""Models learn to choose, are compared with chance, and their folders choose the same without this package."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultipleChoice, AutoTokenizer

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import load_task
from acclimate.evaluation.choice import ChoiceScoring, compare_choices
from acclimate.evaluation.scoring import make_scoring
from acclimate.labs.benchmarks.harness import measure_items
from acclimate.labs.benchmarks.options import InspectBenchmarksOptions
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.choice.data import Item
from acclimate.tasks.kinds.choice.model import (
    TEMPLATES,
    answers_of,
    load_choice_decoder,
    load_choice_encoder,
    prompt_of,
)
from tests.tasks.choice.toy import QUICK, rows, task_of
from tests.tiny import DECODERS, SIZES, tiny_tokenizer

LEARN = {**QUICK, "epochs": 2, "learning_rate": 1e-2, "batch_size": 4}
DECODER = {**LEARN, "max_length": 64}
CPU = torch.device("cpu")


def small_task():
    return task_of(train=16, test=12, sizes=(2, 3))


@pytest.fixture(scope="module")
def encoder(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice") / "encoder"
    return folder, finetune(tiny_bert, task_of(), out=folder, **LEARN)


@pytest.fixture(scope="module")
def decoder(tiny_llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice") / "decoder"
    return folder, finetune(tiny_llama, small_task(), out=folder, **DECODER)


def probabilities_of(scores):
    return torch.tensor(scores, dtype=torch.float64).softmax(-1).tolist()


@functools.cache
def plain_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def likelihoods(folder, item):
    """The log-likelihood of each choice, the same per token, and the score, with transformers alone."""
    model, tokenizer = plain_model(folder)
    sums, means, scores = [], [], []
    for choice in item.choices:
        prompt = tokenizer(f"Question: {item.question}\nAnswer:", return_tensors="pt")["input_ids"]
        whole = tokenizer(f"Question: {item.question}\nAnswer: {choice}", return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logs = model(whole).logits[0, :-1].double().log_softmax(-1)
        own = logs.gather(1, whole[0, 1:, None])[prompt.shape[1] - 1 :, 0]
        sums.append(float(own.sum()))
        means.append(float(own.mean()))
        scores.append(sums[-1] / len(choice) * np.mean([len(other) for other in item.choices]))
    return sums, means, scores


def test_the_folder_of_an_encoder_chooses_the_same_elsewhere(encoder):
    folder, result = encoder
    assert result.kind == "choice" and result.labels == []
    assert {"ece", "brier", "nll"} <= set(result.metrics)
    model = AutoModelForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for item, expected in zip(task_of().test[:8], result.probabilities, strict=False):
        read = tokenizer([item.text] * len(item.choices), list(item.choices), padding=True, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**{name: value[None] for name, value in read.items()}).logits[0]
        assert probabilities_of(logits.tolist()) == pytest.approx(expected, abs=1e-5)
    card = (folder / "README.md").read_text()
    assert "AutoModelForMultipleChoice" in card and "pipeline_tag: multiple-choice" in card and "| chance |" in card
    # Such a folder is evaluated as it is, too.
    again = finetune(folder, task_of(), **{**LEARN, "epochs": 0})
    assert again.predicted == result.predicted and again.steps == 0


def test_the_folder_of_a_decoder_chooses_the_same_elsewhere(decoder, tiny_llama):
    folder, result = decoder
    before = result.metrics["references"]["before training"]
    assert before["difference"]["difference"] == pytest.approx(result.metrics["accuracy"] - before["accuracy"])
    hits = {"likelihood of the whole choice": [], "likelihood per token": []}
    for item, expected in zip(small_task().test, result.probabilities, strict=True):
        sums, means, scores = likelihoods(folder, item)
        assert probabilities_of(scores) == pytest.approx(expected, abs=1e-5)
        hits["likelihood of the whole choice"].append(int(np.argmax(sums)) == item.answer)
        hits["likelihood per token"].append(int(np.argmax(means)) == item.answer)
    for name, right in hits.items():
        assert result.metrics["references"][name]["accuracy"] == pytest.approx(np.mean(right))
    card = (folder / "README.md").read_text()
    assert "AutoModelForCausalLM" in card and "before training" in card
    zero_shot = finetune(tiny_llama, small_task(), **{**DECODER, "epochs": 0})
    assert zero_shot.metrics["accuracy"] == pytest.approx(before["accuracy"])


@pytest.mark.parametrize("kind", ["distilbert", "electra", "modernbert", "roberta"])
def test_scores_are_those_of_the_class_of_transformers(encoders, kind):
    head = load_choice_encoder(encoders[kind], 32, 4, CPU)
    task = task_of(context=True)
    found = head.choose(task.test, "fp32")
    for item, scores in list(zip(task.test, found, strict=True))[:4]:
        read = head.tokenizer([item.text] * len(item.choices), list(item.choices), padding=True, return_tensors="pt",
                              return_token_type_ids=head.reads_segments)  # fmt: skip
        with torch.inference_mode():
            expected = head.model(**{name: value[None] for name, value in read.to(head.device).items()}).logits[0]
        assert scores == pytest.approx(expected.tolist(), abs=1e-5)


def test_gradients_are_those_of_the_class_of_transformers(tiny_bert):
    head = load_choice_encoder(tiny_bert, 32, 3, CPU)
    items = load_task({"train": rows(6, sizes=(3,)), "test": rows(2)}).train
    inputs = head.collate(head.features(items))
    assert inputs["input_ids"].shape[:2] == (6, 3)
    head.model.eval()
    head.run(head.model, inputs).loss.backward()
    found = {name: value.grad.clone() for name, value in head.model.named_parameters() if value.grad is not None}
    head.model.zero_grad()
    head.model(**inputs).loss.backward()
    for name, value in head.model.named_parameters():
        assert value.grad is None or torch.allclose(found[name], value.grad, atol=1e-6), name


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_parts_of_a_step_have_the_gradients_of_the_whole(tiny_bert, tiny_llama, kind, monkeypatch):
    from acclimate.engine.steps import TaskEngine
    from acclimate.tasks.kinds.choice import model as module
    from acclimate.tasks.trainer import TaskSteps, supervised_loss

    head = load_choice_encoder(tiny_bert, 32, 4, CPU) if kind == "encoder" else load_choice_decoder(tiny_llama, 64, 4)
    head.prepare()
    made = head.features(task_of().train[:12])
    gradients, losses = [], []
    for budget in (10**9, 100):
        monkeypatch.setattr(module, "training_tokens", lambda model, length, budget=budget: budget)
        batches = [batch.to(head.device) for batch in TaskSteps(made, head, 12, 1, 0)[0]]
        head.model.eval()
        head.model.zero_grad()
        losses.append(float(TaskEngine(head.model, supervised_loss(head), "fp32").step(batches)["loss"]))
        gradients.append(torch.cat([p.grad.flatten() for p in head.model.parameters() if p.grad is not None]))
    assert len(batches) > 2 and losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.allclose(*gradients, atol=1e-6)


def test_no_better_than_chance_is_said(tiny_bert, caplog):
    with caplog.at_level(logging.WARNING):
        finetune(tiny_bert, task_of(), **{**LEARN, "epochs": 1, "learning_rate": 1e-12})
    assert "no better than chance" in caplog.text or "the same answer" in caplog.text
    scoring = ChoiceScoring((4,) * 100)
    gold = [number % 4 for number in range(100)]
    half = [answer if number < 50 else (answer + 1) % 4 for number, answer in enumerate(gold)]
    third = [answer if number < 30 else (answer + 1) % 4 for number, answer in enumerate(gold)]
    assert scoring.find_collapse(gold, half) is None
    assert "30 of 100 items correct, 25.0 by chance" in scoring.find_collapse(gold, third).reason
    assert (
        scoring.find_collapse(gold, [2] * 100) == (2, 100, "") and scoring.find_collapse(gold[:9], third[:9]) is None
    )
    assert make_scoring("choice", scoring.details()) == scoring
    found = compare_choices(gold, half, {"chance": [0.25] * 100})["chance"]
    assert found["accuracy"] == 0.25 and found["difference"]["low"] < 0.25 < found["difference"]["high"]


def test_models_that_cannot_choose_yet(tiny_bert, encoder):
    with pytest.raises(UserError, match="no trained head for multiple choice, so 'epochs' must be at least 1"):
        finetune(tiny_bert, task_of(), **{**LEARN, "epochs": 0})
    with pytest.raises(UserError, match="no classes"):
        finetune(tiny_bert, task_of(), confidence_penalty=0.1, **QUICK)


def test_long_passages_lose_their_start(tiny_bert, tiny_llama, caplog):
    item = Item("is it good ?", ("good", "bad"), 0, "the food was cold . " * 20)
    encoder = load_choice_encoder(tiny_bert, 32, 2, CPU)
    (row,) = encoder.features([item])
    read = encoder.tokenizer.decode(row["input_ids"][: row["sizes"][0]])
    assert row["sizes"] == [32, 32] and read.endswith("is it good ? [SEP] good [SEP]")
    assert "1 of 1 questions are longer than 32 tokens" in caplog.text
    decoder = load_choice_decoder(tiny_llama, 32, 2)
    (row,) = decoder.features([item])
    assert row["sizes"] == [32, 32]
    assert decoder.tokenizer.decode(row["input_ids"][:32]).endswith("Question: is it good ?\nAnswer: good")
    assert prompt_of(Item("she", ("a", "b"), 0, "a man .", continues=True)) == "a man . she"


def test_templates_show_the_choices_with_letters_or_without(tiny_llama):
    item = Item("is it good ?", ("yes {x}", "no"), 1, "the food was cold .")
    shown = prompt_of(item, TEMPLATES[3])
    assert shown == "the food was cold .\n\nQuestion: is it good ?\nA. yes {x}\nB. no\nAnswer:"
    assert list(answers_of(item, TEMPLATES[3])) == ["A", "B"] and answers_of(item, TEMPLATES[2]) is item.choices
    assert "Options:\n- yes {x}\n- no\nAnswer:" in prompt_of(item, TEMPLATES[2])
    assert prompt_of(item) == prompt_of(item, TEMPLATES[0])
    head = load_choice_decoder(tiny_llama, 64, 2)
    head.template, head.solved = TEMPLATES[3], [item]
    (row,) = head.features([replace(item, question="why ?", context="")])
    read = head.tokenizer.decode(row["input_ids"][: row["sizes"][0]])
    assert read.endswith(f"{shown} B\n\nQuestion: why ?\nA. yes {{x}}\nB. no\nAnswer: A") and row["scale"] == [1, 1]


def test_two_stages(tiny_bert):
    result = finetune(tiny_bert, task_of(), first=task_of(train=20), first_epochs=1, **{**LEARN, "epochs": 1})
    assert result.first == "task"


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_scores_are_likelihoods_in_every_family_of_decoders(decoders, kind):
    head, task = load_choice_decoder(decoders[kind], 96, 4), task_of(train=4, test=4)
    for item, scores in zip(task.test, head.choose(task.test, "fp32"), strict=True):
        assert scores == pytest.approx(likelihoods(decoders[kind], item)[2], abs=1e-4)


def test_an_architecture_without_a_class_for_choices(tmp_path):
    config = transformers.DebertaConfig(**SIZES, pooler_hidden_size=32)
    transformers.DebertaForMaskedLM(config).save_pretrained(tmp_path / "start")
    tiny_tokenizer().save_pretrained(tmp_path / "start")
    result = finetune(tmp_path / "start", small_task(), out=tmp_path / "out", **{**LEARN, "epochs": 1})
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert config.architectures == ["DebertaForSequenceClassification"] and config.num_labels == 1
    again = finetune(tmp_path / "out", small_task(), **{**LEARN, "epochs": 0})
    assert again.predicted == result.predicted


@pytest.mark.slow
def test_decoders_choose_as_in_lm_eval(decoders, tmp_path):
    pytest.importorskip("lm_eval")
    items = rows(60, 3)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items))
    (tmp_path / "exam.yaml").write_text(
        f"task: exam\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: 'Question: {{question}}\n\n  Answer:'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: answer\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n"
    )
    options = InspectBenchmarksOptions(decoders["smollm3"], ["exam"], include_path=tmp_path)
    theirs = measure_items(decoders["smollm3"], options)
    head, task = load_choice_decoder(decoders["smollm3"], 128, 4), load_task({"train": items, "test": items})
    found = head.choose(task.test, "fp32")
    ours = [int(scores.argmax()) == item.answer for item, scores in zip(task.test, found, strict=True)]
    whole = [
        head.other_answers(item, scores)["likelihood of the whole choice"] == item.answer
        for item, scores in zip(task.test, found, strict=True)
    ]
    for metric, own in (("acc_norm", ours), ("acc", whole)):
        names, values, *_ = theirs["exam", metric]
        order = np.argsort([int(name.partition("/")[0]) for name in names])
        assert values[order].tolist() == own
    assert 0 < sum(ours) != sum(whole)
