"""Fine-tuning of tiny models on toy tasks that they learn in a second."""

from __future__ import annotations

import dataclasses
import json
import logging
import random

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertJapaneseTokenizer,
    Trainer,
    TrainingArguments,
)

from acclimate.base.errors import UserError
from acclimate.data.tokenizing import read_as_text
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import EvaluationResult
from acclimate.tasks.kinds.classification.classifier import load_classifier
from acclimate.tasks.kinds.classification.data import Example, Task
from tests.cases import each
from tests.tiny import ENCODERS, SPECIAL, save_tiny, tiny_model, tiny_tokenizer

FILLER = ["the", "a", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with", "he", "as", "at", "by", "this"]
QUICK = {"progress": False, "precision": "fp32"}
CPU = torch.device("cpu")


def keyword_task(train=64, test=24, pair=False):
    """Texts that contain "good" or "bad"; in the task of pairs the word is in the second text only."""
    chance = random.Random(0)

    def row(number):
        word = ("good", "bad")[number % 2]
        words = chance.choices(FILLER, k=chance.randint(2, 9))
        if pair:
            return {"text": " ".join(words), "text_pair": f"the {word}", "label": word}
        words.insert(chance.randint(0, len(words)), word)
        return {"text": " ".join(words), "label": word}

    return Task.of(
        "keyword", [row(n) for n in range(train)], [row(n) for n in range(test)], [row(n) for n in range(8)]
    )


@pytest.fixture(scope="module")
def learned(tiny_bert, tmp_path_factory):
    """A finished, saved run and its folder."""
    out = tmp_path_factory.mktemp("runs") / "keyword"
    return finetune(tiny_bert, keyword_task(), epochs=8, learning_rate=3e-3, out=out, **QUICK), out


def test_a_keyword_is_learned(learned):
    result, _ = learned
    assert result.metrics["accuracy"] > 0.9
    assert (result.train_size, result.steps, result.epoch, result.precision) == (64, 32, 8, "fp32")
    assert result.metrics["per_class"]["bad"]["support"] == 12
    assert result.dev_metrics is not None
    assert result.train_loss < 0.7
    json.dumps(dataclasses.asdict(result))


def test_visible_gpus_do_not_change_the_batch_size(tiny_bert, monkeypatch):
    """By default, the Trainer would multiply the batch size by the number of devices."""
    plain = finetune(tiny_bert, keyword_task(), epochs=1, learning_rate=1e-3, **QUICK)
    prepare = TrainingArguments.__post_init__

    def with_two(arguments):
        prepare(arguments)
        arguments._n_gpu = 2

    monkeypatch.setattr(TrainingArguments, "__post_init__", with_two)
    seen = []
    look = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, *a, **b: (look(self, *a, **b), seen.append(self.state)))
    again = finetune(tiny_bert, keyword_task(), epochs=1, learning_rate=1e-3, **QUICK)
    assert seen[0].global_step == again.steps == 4
    assert again.probabilities == plain.probabilities


def test_predictions_match_probabilities(learned):
    result, _ = learned
    assert result.predicted == torch.tensor(result.probabilities).argmax(1).tolist()
    assert torch.tensor(result.probabilities).sum(1).tolist() == pytest.approx([1.0] * 24)
    accuracy = sum(a == b for a, b in zip(result.gold, result.predicted, strict=True)) / 24
    assert result.metrics["accuracy"] == pytest.approx(accuracy)


def test_the_saved_model_is_an_ordinary_one_with_the_same_predictions(learned):
    result, out = learned
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert model.config.id2label == {0: "bad", 1: "good"}
    with torch.no_grad():
        probabilities = [
            model.eval()(**tokenizer(example.text, return_tensors="pt")).logits.softmax(-1)[0].tolist()
            for example in keyword_task().test
        ]
    for theirs, ours in zip(probabilities, result.probabilities, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-5)
    assert json.loads((out / "metrics.json").read_text())["metrics"] == result.metrics
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [row["predicted"] for row in rows] == [result.labels[number] for number in result.predicted]


def test_the_same_seed_gives_the_same_weights_and_another_does_not(tiny_bert, tmp_path):
    task = keyword_task(train=32, test=6)
    torch.manual_seed(99)  # earlier use of the global generator must not matter
    one = finetune(tiny_bert, task, epochs=1, seed=1, out=tmp_path / "one", **QUICK)
    two = finetune(tiny_bert, task, epochs=1, seed=1, out=tmp_path / "two", **QUICK)
    three = finetune(tiny_bert, task, epochs=1, seed=2, out=tmp_path / "three", **QUICK)
    assert one.probabilities == two.probabilities != three.probabilities
    first, second, third = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "three"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], third["classifier.weight"])


def test_new_weights_come_from_the_seed_and_the_encoder_from_the_checkpoint(tiny_bert):
    def load(seed):
        torch.manual_seed(seed)
        return load_classifier(tiny_bert, ["a", "b", "c"], 64, CPU).model.state_dict()

    one, same, other = load(0), load(0), load(1)
    fresh = {name for name in one if not torch.equal(one[name], other[name])}
    assert fresh == {"classifier.weight", "bert.pooler.dense.weight"}
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert one["classifier.weight"].dtype == torch.float32
    saved = load_file(tiny_bert / "model.safetensors")
    assert torch.equal(
        one["bert.encoder.layer.0.output.dense.weight"], saved["bert.encoder.layer.0.output.dense.weight"]
    )


def test_the_second_text_is_read(tiny_bert):
    result = finetune(tiny_bert, keyword_task(pair=True), epochs=8, learning_rate=3e-3, **QUICK)
    assert result.metrics["accuracy"] > 0.9


def test_segments_reach_the_model_and_the_longer_text_is_truncated(tiny_bert):
    task = Task.of(
        "t",
        [{"text": "a " * 50, "text_pair": "b c", "label": n} for n in (0, 1)],
        [{"text": "a", "text_pair": "b", "label": 0}],
    )
    classifier = load_classifier(tiny_bert, task.labels, 16, CPU)
    row = classifier.features(task.train)[1]
    assert len(row["input_ids"]) == 16
    assert row["token_type_ids"] == [0] * 13 + [1] * 3
    assert classifier.tokenizer.convert_ids_to_tokens(row["input_ids"][-4:]) == ["[SEP]", "b", "c", "[SEP]"]
    assert row["labels"] == 1


@pytest.mark.parametrize("kind", ["fast", "slow"])
def test_a_special_token_in_a_text_is_read_as_text(tiny_bert, tmp_path, kind):
    classifier = load_classifier(tiny_bert, ["a", "b"], 40, torch.device("cpu"))
    if kind == "slow":
        (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *"abcdefgh[]"]))
        options = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "character"}
        classifier.tokenizer = read_as_text(BertJapaneseTokenizer(str(tmp_path / "vocab.txt"), **options))
    whole, cut = "a [MASK] b [SEP] c", "a [SEP] " * 30
    for first, second in ((whole, None), (whole, "[CLS] d"), (cut, None), (cut, "[CLS] d")):
        (row,) = classifier.features([Example(first, second, 0)])
        inside = [token for token in row["input_ids"] if token in (2, 3, 4)]
        assert inside == [2, 3, 3][: 2 + (second is not None)]
        assert row["input_ids"][-1] == 3
        assert len(row["input_ids"]) <= 40
        assert set(row["token_type_ids"]) == ({0} if second is None else {0, 1})


@each("kind", sorted(ENCODERS))
def test_every_architecture_is_fine_tuned(encoders, kind):
    result = finetune(encoders[kind], keyword_task(train=8, test=4, pair=True), epochs=1, **QUICK)
    assert len(result.predicted) == 4


def test_the_order_of_the_test_rows_changes_nothing(tiny_bert):
    task = keyword_task(train=16, test=40)
    by_length = sorted(range(40), key=lambda place: len(task.test[place].text))
    ordered = dataclasses.replace(task, test=[task.test[place] for place in by_length])
    one = finetune(tiny_bert, task, epochs=1, **QUICK)
    two = finetune(tiny_bert, ordered, epochs=1, **QUICK)
    assert [one.probabilities[place] for place in by_length] == two.probabilities
    assert one.metrics == two.metrics


def test_few_shot_trains_on_few(tiny_bert):
    assert finetune(tiny_bert, keyword_task(), few_shot=5, epochs=1, **QUICK).train_size == 10


def test_the_best_epoch_on_dev_is_kept(tiny_bert, tmp_path, monkeypatch):
    task = keyword_task(train=16, test=4)
    scores = iter([0.2, 0.9, 0.9])
    seen = []

    def measured(learner, split, precision):
        if split == "dev" and len(seen) < 3:
            seen.append(learner.head.model.classifier.weight.detach().clone())
            return EvaluationResult({"accuracy": next(scores)}, [], [], [])
        return EvaluationResult({"accuracy": 0.0}, [0] * 4, [1] * 4, [[0.2, 0.8]] * 4)

    monkeypatch.setattr("acclimate.tasks.kinds.classification.classifier.ClassificationLearner.measure", measured)
    options = {"select": "dev", "metric": "accuracy", "epochs": 3, "learning_rate": 1e-2}
    result = finetune(tiny_bert, task, out=tmp_path / "out", **options, **QUICK)
    assert result.epoch == 2
    kept = load_file(tmp_path / "out" / "model.safetensors")["classifier.weight"]
    assert torch.equal(kept, seen[1])
    assert not torch.equal(kept, seen[2])


def test_both_precisions_in_one_process(tiny_bert):
    task = keyword_task(train=16, test=8)
    options = {"epochs": 1, "progress": False}
    low, high = (finetune(tiny_bert, task, precision=kind, **options) for kind in ("bf16", "fp32"))
    assert (low.precision, high.precision) == ("bf16", "fp32")
    assert low.train_loss != high.train_loss
    for one, other in zip(low.probabilities, high.probabilities, strict=True):
        assert one == pytest.approx(other, abs=0.02)


def test_logits_keep_fp32_precision_under_autocast(tiny_bert):
    classifier = load_classifier(tiny_bert, ["a", "b"], 64, CPU)
    probabilities = classifier.probabilities(keyword_task().test, "bf16")
    logits = probabilities.log()
    assert not torch.equal(logits, logits.bfloat16().float())
    assert len(set(probabilities[:, 0].tolist())) > 15
    assert not any(layer._forward_hooks for layer in classifier.model.modules())


def test_no_output_without_progress(tiny_bert, capfd):
    finetune(tiny_bert, keyword_task(train=8, test=4), epochs=1, **QUICK)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_task_can_be_given_as_a_folder(tiny_bert, tmp_path):
    for split in ("train", "test"):
        rows = [{"text": word, "label": word} for word in ("good", "bad")]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert finetune(tiny_bert, tmp_path, epochs=1, **QUICK).task == tmp_path.name


@each(
    ("options", "message"),
    [
        ({"select": "best"}, "'select' must be 'last' or 'dev'"),
        ({"metric": "macro-f1"}, r"Unknown metric 'macro-f1'\. Did you mean 'macro_f1'"),
        ({"epochs": 0}, "'epochs' must be at least 1"),
        ({"batch_size": 0}, "'batch_size' must be at least 1"),
        ({"learning_rate": -1.0}, "'learning_rate' must be more than 0"),
        ({"weight_decay": -1.0}, "'weight_decay' must be at least 0"),
        ({"seed": -1}, "'seed' must be at least 0"),
        ({"seed": 2**32}, "'seed' must be at most 4,294,967,295"),
        ({"epochs": float("nan")}, "'epochs' must be a finite number"),
        ({"warmup": 2.0}, "'warmup' must be at most 1"),
        ({"max_length": 2}, "max_length=2"),
        ({"few_shot": 0}, "'few_shot' must be at least 1"),
        ({"precision": "fp8"}, "'precision' must be"),
        ({"negative": "god"}, r"Unknown negative label of the task 'keyword' 'god'\. Did you mean 'good'"),
        ({"negative": ["good", "bad"]}, "All labels .* are negative"),
        ({"metric": "positive_micro_f1"}, "Unknown metric 'positive_micro_f1'"),
    ],
)
def test_invalid_options(tiny_bert, options, message):
    with pytest.raises(UserError, match=message):
        finetune(tiny_bert, keyword_task(train=4, test=2), **{**QUICK, **options})


def test_selecting_on_dev_needs_a_dev_split(tiny_bert):
    task = dataclasses.replace(keyword_task(train=4, test=2), dev=[])
    with pytest.raises(UserError, match="has no dev split"):
        finetune(tiny_bert, task, select="dev", **QUICK)


@pytest.mark.filterwarnings("ignore")
def test_a_diverging_loss_is_a_one_line_error(tiny_bert, tmp_path):
    with pytest.raises(UserError, match=r"The loss is .* at step .*Lower the learning rate"):
        finetune(tiny_bert, keyword_task(train=16, test=4), learning_rate=1e38, out=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_things_is_not_replaced(tiny_bert, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="choose another folder"):
        finetune(tiny_bert, keyword_task(train=4, test=2), out=tmp_path, **QUICK)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_files_of_the_user_in_a_result_are_not_removed(tiny_bert, tmp_path):
    task, out = keyword_task(train=4, test=2), tmp_path / "out"
    finetune(tiny_bert, task, out=out, **QUICK)
    (out / "notes.txt").write_text("years of work")
    finetune(tiny_bert, task, out=out, **QUICK)  # the result is there already
    with pytest.raises(UserError, match=r"notes.txt' was not written by acclimate; move it, or choose another"):
        finetune(tiny_bert, task, out=out, **{**QUICK, "learning_rate": 1e-4})
    (out / "notes.txt").unlink()
    (out / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"model.safetensors' is not what was written there; delete"):
        finetune(tiny_bert, task, out=out, **QUICK)
    (out / "model.safetensors").unlink()
    finetune(tiny_bert, task, out=out, **QUICK)
    assert (out / "model.safetensors").stat().st_size
    (out / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run.json' is damaged; delete"):
        finetune(tiny_bert, task, out=out, **QUICK)


def test_models_that_cannot_be_used(tmp_path):
    task = keyword_task(train=4, test=2)
    with pytest.raises(UserError, match=r"no config\.json"):
        finetune(tmp_path, task, **QUICK)
    with pytest.raises(UserError, match="There is no model folder"):
        finetune("./nowhere", task, **QUICK)
    folder = save_tiny("bert", tmp_path / "small", vocab_size=20)
    with pytest.raises(UserError, match=r"tokenizer .* tokens, its model only 20"):
        finetune(folder, task, **QUICK)
    torn = tmp_path / "torn"
    model = tiny_model("bert")
    state = {name: value for name, value in model.state_dict().items() if "layer.1.attention" not in name}
    model.save_pretrained(torn, state_dict=state)
    tiny_tokenizer().save_pretrained(torn)
    with pytest.raises(UserError, match=r"incomplete: .* missing, such as bert\.encoder\.layer\.1"):
        finetune(torn, task, **QUICK)


def test_truncation_is_reported_once(tmp_path, caplog):
    save_tiny("bert", tmp_path / "short")
    for _ in range(2):
        finetune(tmp_path / "short", keyword_task(), max_length=81, epochs=1, **QUICK)
    assert caplog.text.count("reads at most 80 tokens, so texts are truncated to that instead of 81") == 1


def test_a_collapsed_model_is_reported(tiny_bert, caplog):
    with caplog.at_level(logging.WARNING):
        finetune(tiny_bert, keyword_task(test=40), epochs=8, learning_rate=3e-3, **QUICK)
    assert "the same answer" not in caplog.text
    with caplog.at_level(logging.WARNING):
        result = finetune(tiny_bert, keyword_task(test=40), epochs=1, learning_rate=1e-9, **QUICK)
    assert len(set(result.predicted)) == 1  # a random head prefers one class
    word = result.labels[result.predicted[0]]
    assert f"gives 40 of 40 items of 'keyword' the same answer ({word}): it has not learned" in caplog.text
