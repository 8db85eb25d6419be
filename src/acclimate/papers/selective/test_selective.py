"""Selective masking end to end on a tiny model."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import AdaptContext, get
from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder
from acclimate.data.documents import Corpus
from acclimate.data.token_dataset import TokenDataset
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.trainer import StepTrainer
from acclimate.models.loading import load_language_model
from acclimate.papers.selective import annotation, stages
from acclimate.papers.selective.command_options import AnnotatorOptions
from acclimate.papers.selective.options import AnnotationOptions, TokenTrainingOptions
from acclimate.papers.selective.token_classifier import load_token_classifier
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import Batch
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.papers.test_contract import SHORT, weights

WORDS = "the food menu table wine was and with pizza soup".split()


def task(labelled=True, dev=True, pair=False, seed=0):
    """A task whose label depends on one word of each text; with ``labelled=False`` the labels are random."""
    rng = np.random.default_rng(seed)

    def rows(count):
        made = []
        for number in range(count):
            text = rng.choice(WORDS, rng.integers(3, 8)).tolist()
            label = number % 2
            word = label if labelled else int(rng.integers(2))
            text.insert(int(rng.integers(len(text))), ("bad", "good")[word])
            made.append({"text": " ".join(text), "label": label, **({"text_pair": "the food"} if pair else {})})
        return made

    return Task.of("opinions", rows(96), rows(30), rows(30) if dev else ())


TASK = task()
CORPUS = [f"{text.text} {number}" for number, text in enumerate(task(seed=7).train[:40])]
QUICK = {
    "finetune_epochs": 6,
    "finetune_learning_rate": 3e-3,
    "finetune_batch_size": 16,
    "token_epochs": 6,
    "token_learning_rate": 5e-3,
    "token_batch_size": 8,
    "delta": 0.1,
}


@pytest.fixture(autouse=True)
def shared_cache(tmp_path_factory, monkeypatch, request):
    """One cache for all tests of this file, so that equal stages are computed once."""
    folder = request.config.cache_of_selective = getattr(
        request.config, "cache_of_selective", None
    ) or tmp_path_factory.mktemp("selective-cache")
    monkeypatch.setenv("ACCLIMATE_CACHE", str(folder))


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    """A new cache, so that it holds a single token classifier."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))


def run(model, out, documents=CORPUS, given=TASK, settings=None, **options):
    method = {"selective": {**QUICK, **(settings or {})}}
    return adapt(model, Corpus.of(documents), method, out, task=given, **{**SHORT, **options})


@pytest.fixture
def batches(monkeypatch):
    """All micro-batches of the training."""
    seen = []
    step = StepTrainer.training_step

    def watched(self, model, inputs, *rest, **more):
        seen.extend(batch for batch in inputs if isinstance(batch, Batch))  # not those of the classifiers
        return step(self, model, inputs, *rest, **more)

    monkeypatch.setattr(StepTrainer, "training_step", watched)
    return seen


def texts_of(batches):
    """Yield the ids, masked ids and labels of each text in the batches."""
    for batch in batches:
        for number in range(batch.texts):
            here = batch.text == number
            yield batch.original[here].numpy(), batch.masked[here].numpy(), batch.labels[here].numpy()


def token_classifier():
    (folder,) = {path for path in (cache_folder() / "selective").glob("train-*") if path.is_dir()}
    return load_token_classifier(folder)


@pytest.mark.parametrize("layout", [pytest.param("padded", marks=pytest.mark.slow), "packed"])
def test_exactly_the_predicted_tokens_are_masked_and_the_summary_is_saved(
    tiny_bert, tmp_path, batches, layout, fresh_cache
):
    run(tiny_bert, tmp_path / "out", layout=layout)
    classifier = token_classifier()
    found = list(texts_of(batches))
    assert len(found) == 3 * SHORT["batch_size"]
    for ids, _, labels in found:
        (logits,) = classifier.logits([ids.tolist()], "fp32")
        assert ((labels != -100) == ((logits[:, 1] > logits[:, 0]) & (ids > 4))).all()
    assert any((labels != -100).any() for *_, labels in found)
    summary = json.loads((tmp_path / "out" / "selective.json").read_text())
    assert summary["finetune"]["better_than_chance"]
    assert 0 < summary["annotate"]["share"] < 1
    assert summary["train"]["f1"] > summary["train"]["f1_of_all"]
    assert summary["mark"]["important"] == summary["masking"]["masked"] > 0
    assert all(summary[stage]["minutes"] > 0 for stage in stages.STAGES)
    assert summary["masking"]["texts_without"] == summary["mark"]["texts_without"]
    load_language_model(tmp_path / "out")


@pytest.mark.slow
def test_the_marginal_criterion_finds_the_decisive_words(tiny_bert, tmp_path, batches, fresh_cache):
    run(tiny_bert, tmp_path / "out", settings={"criterion": "marginal", "epsilon": 0.2}, batch_size=40, steps=1)
    tokens = [token for *_, labels in texts_of(batches) for token in labels[labels != -100]]
    decisive = load_language_model(tiny_bert).tokenizer.convert_tokens_to_ids(["good", "bad"])
    assert np.isin(tokens, decisive).mean() > 0.6, "only one token in seven is decisive"


@pytest.mark.slow
@pytest.mark.parametrize("replacement", ["static", "dynamic"])
def test_static_masking_is_the_same_in_every_epoch(tiny_bert, tmp_path, batches, replacement):
    run(tiny_bert, tmp_path / replacement, settings={"replacement": replacement}, steps=20, batch_size=40)
    variants = {}
    for ids, masked, _ in texts_of(batches):
        variants.setdefault(ids.tobytes(), set()).add(masked.tobytes())
    assert len(variants) == 40
    assert all(len(found) == 1 for found in variants.values()) == (replacement == "static")


@pytest.mark.slow
def test_the_control_masks_as_many_random_tokens_with_the_same_stages(tiny_bert, tmp_path, batches, monkeypatch):
    run(tiny_bert, tmp_path / "a", batch_size=40, steps=1)
    monkeypatch.setattr(stages, "mark_rows", None)  # fails if anything is not cached
    selective = {ids.tobytes(): labels != -100 for ids, _, labels in texts_of(batches)}
    batches.clear()
    run(tiny_bert, tmp_path / "b", settings={"choice": "random-same-count"}, batch_size=40, steps=1)
    control = {ids.tobytes(): labels != -100 for ids, _, labels in texts_of(batches)}
    assert {key: chosen.sum() for key, chosen in control.items()} == {
        key: chosen.sum() for key, chosen in selective.items()
    }
    assert any((control[key] != selective[key]).any() for key in control)


@pytest.mark.slow
def test_a_cap_masks_at_most_that_share(tiny_bert, tmp_path, batches):
    run(tiny_bert, tmp_path / "out", settings={"cap": 0.15}, batch_size=40, steps=1)
    assert max((labels != -100).sum() for *_, labels in texts_of(batches)) <= 1
    assert json.loads((tmp_path / "out" / "selective.json").read_text())["masking"]["masked"] <= 40


@pytest.mark.slow
def test_stages_are_cached_and_an_interrupted_one_is_recomputed(tiny_bert, tmp_path, monkeypatch):
    calls = []
    for module, name in (
        (stages.annotator, "fine_tune_annotator"),
        (annotation, "annotate"),
        (stages, "train_token_classifier"),
    ):
        made = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *args, made=made, name=name, **more: calls.append(name) or made(*args, **more)
        )
    mark = stages.mark_rows

    def killed(*_, **__):
        calls.append("mark")
        raise KeyboardInterrupt

    new = {"annotator_seed": 5}
    with monkeypatch.context() as patch:
        patch.setattr(stages, "mark_rows", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tiny_bert, tmp_path / "out", settings=new)
    everything = ["fine_tune_annotator", "annotate", "train_token_classifier"]
    assert calls == [*everything, "mark"]
    assert not list((cache_folder() / "selective").glob(".mark*")), "no partial folder remains"
    monkeypatch.setattr(stages, "mark_rows", lambda *args, **more: calls.append("mark again") or mark(*args, **more))
    run(tiny_bert, tmp_path / "out", settings=new)
    assert calls[4:] == ["mark again"]
    run(tiny_bert, tmp_path / "other text", documents=CORPUS[:20], settings=new)
    assert calls[5:] == ["mark again"]
    run(tiny_bert, tmp_path / "other rule", settings={**new, "delta": 0.2})
    assert calls[6:] == ["annotate", "train_token_classifier", "mark again"]
    one = weights(tmp_path / "out")
    run(tiny_bert, tmp_path / "same", settings=new)
    two = weights(tmp_path / "same")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert calls[9:] == []


@pytest.mark.slow
def test_a_classifier_at_chance_level_logs_a_warning_in_every_run(tiny_bert, tmp_path, caplog):
    for name in ("first", "from the cache"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            run(tiny_bert, tmp_path / name, given=task(labelled=False), settings={"finetune_epochs": 1})
        (message,) = [text for text in caplog.messages if "better than chance" in text]
        assert "0.500" in message
        assert "30 items of dev" in message


@pytest.mark.slow
def test_an_annotation_that_marks_every_token_logs_a_warning(tiny_bert, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run(tiny_bert, tmp_path / "out", settings={"delta": 1.0})
    assert any("annotator found" in text and "100.00 %" in text for text in caplog.messages)


def test_a_token_classifier_that_marks_every_token_logs_a_warning(tiny_bert, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run(tiny_bert, tmp_path / "out", settings={"delta": 1.0})
    mark = json.loads((tmp_path / "out" / "selective.json").read_text())["mark"]
    assert mark["share"] > 0.9
    (message,) = [text for text in caplog.messages if "tokens of the text important" in text]
    assert f"{mark['important']} of the {mark['tokens']} tokens" in message
    assert "too few tokens to predict them from" in message


def test_a_text_without_important_tokens_is_an_error_with_the_figures(tiny_bert, tmp_path, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(UserError, match=r"nothing to mask: 0\.0%"):
        run(tiny_bert, tmp_path / "out", settings={"delta": -1.0})
    assert any("0.00 %" in message for message in caplog.messages)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_pairs_and_a_task_without_dev(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out", given=task(dev=False, pair=True))
    summary = json.loads((tmp_path / "out" / "selective.json").read_text())
    assert summary["finetune"]["split"] == "test"
    assert summary["annotate"]["units"] == 96


def test_invalid_tasks_and_settings_are_errors(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="needs a labelled task"):
        run(tiny_bert, tmp_path / "out", given=None)
    several = Task.of("m", [{"text": "good", "label": ["a", "b"]}, {"text": "bad", "label": ["a"]}], [
        {"text": "good", "label": ["b"]}
    ])  # fmt: skip
    with pytest.raises(UserError, match="one label per text"):
        run(tiny_bert, tmp_path / "out", given=several)
    with pytest.raises(UserError, match="Did you mean 'delta'"):
        get("selective", dleta=1)
    with pytest.raises(UserError, match="between -1 and 1"):
        run(tiny_bert, tmp_path / "out", settings={"delta": 2})


@each(
    ("setting", "message"),
    [
        ({"cap": 1.5}, "cap must be above 0"),
        ({"class_weight": 0}, "class_weight"),
        ({"token_length": 2}, "max_length=2"),
    ],
)
def test_invalid_values_fail_before_the_first_stage(setting, message):
    with pytest.raises(UserError, match=message):
        get("selective", **setting)


def test_presets_replace_values_that_are_not_given():
    paper, code = get("selective").settings(), get("selective", preset="released-code", delta="0.2").settings()
    assert (paper["delta"], paper["cap"], paper["class_weight"], paper["unit"]) == (0.05, 1.0, 1.5, "text")
    assert (code["delta"], code["cap"], code["class_weight"], code["unit"]) == (0.2, 0.15, 3.0, "sentence")
    assert (code["stop_words"], code["misclassified"], code["special_tokens"]) == ("english", "negative", True)


def test_the_parameters_of_the_stages_have_the_defaults_of_their_options():
    found = get("selective").selection_options(0)
    assert found == stages.SelectionOptions(AnnotatorOptions(), AnnotationOptions(), TokenTrainingOptions(), 0)
    changed = get("selective", delta=0.2, finetune_length=99, token_length=77, class_weight=2, token_epochs=3)
    one = changed.selection_options(0)
    assert (one.annotation.delta, one.fine_tuning.max_length) == (0.2, 99)
    with pytest.raises(UserError, match="Fine-tuned classifier: 'epochs' must be at least 1"):
        get("selective", finetune_epochs=0)
    assert (one.token_training.max_length, one.token_training.class_weight, one.token_training.epochs) == (77, 2, 3)


@pytest.mark.slow
def test_distributed_runs_read_the_stages_from_the_cache(tiny_bert, tmp_path, fresh_cache):
    """The stages run in one process only, so a distributed run that finds none cached is an error."""
    loaded, second = load_language_model(tiny_bert), ProcessGroup(1, 2)
    rows = TokenDataset.of([loaded.tokenizer(text)["input_ids"] for text in CORPUS])
    several = AdaptContext(loaded.model, [], loaded.tokenizer, rows, RandomMasking(), 0, "fp32", False, second, TASK)
    options = get("selective", **QUICK).selection_options(42)
    with pytest.raises(UserError, match="without torchrun"):
        stages.find_important_tokens(several, options)
    marks, _ = stages.find_important_tokens(replace(several, group=ProcessGroup()), options)
    with torch.no_grad():  # as if the head were missing and initialized differently in this process
        loaded.model.cls.predictions.bias.add_(1)
    again, _ = stages.find_important_tokens(several, options)
    assert (again.hashes == marks.hashes).all()


def test_a_mask_rate_is_an_error(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="sets the mask rate itself"):
        run(tiny_bert, tmp_path / "out", mask_rate=0.3)
