"""The detour in real trainings: its phases, what is frozen, what is measured, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.engine import trainer
from tests.cases import each
from tests.kills import counted, killed
from tests.papers.test_contract import DOCUMENTS, HELD, SHORT, run, weights
from tests.tiny import SIZES, save_tiny, tiny_tokenizer

HALVES = {"steps": 6, "heldout": HELD, "heldout_every": 2}
"""Steps of a training with ``causal=0.5``: three of each phase."""


def adapted(model, out, parameters="causal=0.5", **options):
    return adapt(model, Corpus.of(DOCUMENTS), f"detour {parameters}", out, **{**SHORT, **HALVES, **options})


def log_of(folder):
    """The trained and the measured lines of a log."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "terms" in line], [line["heldout"] for line in lines if "heldout" in line]


def equal(left, right):
    left, right = weights(left), weights(right)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_log_has_the_loss_of_each_phase_and_measures_the_same_as_lm(tiny_bert, tmp_path):
    """Without a first phase the result is that of ``lm``, bit for bit."""
    result = adapted(tiny_bert, tmp_path / "detour", layout="packed")
    trained, measured = log_of(tmp_path / "detour")
    assert [list(line["terms"]) for line in trained] == [["clm"]] * 3 + [["mlm"]] * 3
    assert [list(found["terms"]) for found in measured] == [["mlm"]] * 4 and list(result.losses) == ["mlm", "loss"]
    run(tiny_bert, "lm", tmp_path / "lm", **HALVES)
    adapted(tiny_bert, tmp_path / "zero", "causal=0")
    assert equal(tmp_path / "zero", tmp_path / "lm") and not equal(tmp_path / "detour", tmp_path / "lm")
    (lines, before), (lm_lines, lm_before) = log_of(tmp_path / "zero"), log_of(tmp_path / "lm")
    assert [line["loss"] for line in lines] == [line["loss"] for line in lm_lines] and before == lm_before
    assert measured[0]["terms"]["mlm"] == pytest.approx(lm_before[0]["terms"]["mlm"], abs=1e-5)
    assert [line["tokens"] for line in trained] == [line["tokens"] for line in lm_lines], "the same texts in each step"
    schedules = [read_json(tmp_path / name / "acclimate.json")["schedule"] for name in ("detour", "zero")]
    assert [found["shape"] for found in schedules] == ["wsd", "linear"] and schedules[0]["decay"] == 0.5


def test_a_training_that_is_killed_in_either_phase_resumes_bit_for_bit(tiny_bert, tmp_path):
    options = {"save_every": 1, "parameters": "causal=0.5 frozen=0"}
    adapted(tiny_bert, tmp_path / "whole", **options)
    for place in (2, 4):
        with killed(place):
            adapted(tiny_bert, tmp_path / "cut", **options)
    with counted() as steps:
        adapted(tiny_bert, tmp_path / "cut", **options)
    assert steps == [4, 5] and equal(tmp_path / "whole", tmp_path / "cut")


def test_frozen_layers_train_in_the_second_phase_only(tiny_bert, tmp_path, monkeypatch):
    """And a line of the log that averages steps of both phases has the mean loss of each."""
    monkeypatch.setattr(trainer, "log_interval", lambda steps: steps)
    adapted(tiny_bert, tmp_path / "out", "causal=0.5 frozen=0", keep_steps=[3], weight_decay=0.1, schedule="linear")
    assert read_json(tmp_path / "out" / "acclimate.json")["schedule"]["shape"] == "linear"
    base, middle, end = (weights(folder) for folder in (tiny_bert, tmp_path / "out" / "step-000003", tmp_path / "out"))

    def changed(before, after):
        return {name for name in before if not torch.equal(before[name], after[name])}

    first = {name for name in base if ".encoder.layer.0." in name}
    assert first and not first & changed(base, middle)
    assert changed(base, middle) >= {name for name in base if ".encoder.layer.1." in name and "key.bias" not in name}
    assert changed(middle, end) >= {name for name in first if "key.bias" not in name}
    ((line,), _) = log_of(tmp_path / "out")
    assert line["terms"].keys() == {"clm", "mlm"}
    assert line["loss"] == pytest.approx(sum(line["terms"].values()) / 2), "three steps of each phase"


@each(
    ("parameters", "options", "says"),
    [
        ("causal=1", {}, r"causal is a share .* below 1, not 1\."),
        ("frozen=3-1", {}, "such as 0-7, not '3-1'"),
        ("frozen=low", {}, "such as 0-7, not 'low'"),
        ("frozen=''", {}, "such as 0-7, not ''"),
        ("", {}, r"Of 6 steps none is in the last 0\.1 of the training, .* lower 'causal'"),
        ("frozen=0-2", {}, r"BertForMaskedLM has 2 sets of layer weights, so not '0-2'\."),
        ("", {"patience": 2}, "'detour' does not end early: the masked-LM loss rises .* Remove 'patience'"),
    ],
)
def test_what_does_not_fit_is_explained(tiny_bert, tmp_path, parameters, options, says):
    with pytest.raises(UserError, match=says):
        adapted(tiny_bert, tmp_path / "out", parameters, **options)


def test_an_encoder_with_its_own_attention_is_refused_by_name_before_the_training(tmp_path):
    config = transformers.DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"])
    transformers.DebertaV2ForMaskedLM(config).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    with counted() as steps, pytest.raises(UserError, match="DebertaV2ForMaskedLM cannot read from left to right"):
        adapted(tmp_path / "model", tmp_path / "out")
    assert not steps and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_relative_positions_train(tmp_path):
    transformers.MPNetForMaskedLM(transformers.MPNetConfig(**SIZES)).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    result = adapted(tmp_path / "model", tmp_path / "out", learning_rate=1e-2, steps=40)
    losses = [line["terms"]["clm"] for line in log_of(tmp_path / "out")[0] if "clm" in line["terms"]]
    assert losses[-1] < losses[0] - 0.3 and "mlm" in result.losses


@pytest.mark.slow
def test_an_order_is_learned_that_only_reading_from_left_to_right_predicts(tmp_path):
    """Each word follows from the one before it, so the next token is known and a masked one as well."""
    cycle = "good bad food service waiter pasta pizza fresh cold slow".split()
    texts = [" ".join((cycle * 3)[start : start + 12]) for start in range(10)]
    base = save_tiny("bert", tmp_path / "base")
    options = {"steps": 120, "batch_size": 10, "learning_rate": 5e-3, "heldout": Corpus.of(texts), "heldout_every": 60}
    adapt(base, Corpus.of(texts), "detour causal=0.5", tmp_path / "out", **{**SHORT, **options})
    trained, measured = log_of(tmp_path / "out")
    assert [line["terms"]["clm"] for line in trained if "clm" in line["terms"]][-1] < 0.6
    assert measured[-1]["terms"]["mlm"] < measured[1]["terms"]["mlm"] - 0.5, "masked tokens are learned in the end"
