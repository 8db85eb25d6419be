"""The number of texts per step that is chosen for the device."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.inputs import (
    LEAST_EPOCH_STEPS,
    LEAST_STEPS,
    LEAST_TEXTS,
    STEP_TOKENS,
    Budget,
    choose_batch_size,
    report_batch,
)
from acclimate.adaptation.options import AdaptOptions
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.base.options import section
from acclimate.data.documents import Corpus
from acclimate.engine.distributed import ProcessGroup
from tests.accelerator import emulated
from tests.cases import each
from tests.kills import killed
from tests.tiny import TEXTS

CPU, GPU = torch.device("cpu"), torch.device("cuda")
DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(16)]
OPTIONS = {"batch_size": "auto", "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


class Texts:
    """So many texts of the same length."""

    def __init__(self, texts: int, length: int) -> None:
        self.texts, self.tokens = texts, texts * length

    def __len__(self) -> int:
        return self.texts


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3_000),
    st.integers(1, 600),
    st.one_of(st.builds(Budget, epochs=st.floats(0.1, 50)), st.builds(Budget, tokens=st.integers(1, 10**7))),
    st.sampled_from(sorted(STEP_TOKENS.values())),
)
def test_a_step_suits_the_device_unless_too_few_would_be_left(texts, length, budget, wanted):
    rows = Texts(texts, length)
    found = choose_batch_size(wanted, budget, rows, length)
    assert found >= 1 and found * length <= wanted + length
    if found > LEAST_TEXTS:
        assert budget.resolve(rows, found) >= LEAST_STEPS and math.ceil(texts / found) >= LEAST_EPOCH_STEPS
    elif found < LEAST_TEXTS:
        assert found * length > wanted - 9 * length
    assert choose_batch_size(wanted, Budget(steps=5), rows, length) >= found


@each(("texts", "length", "budget", "share", "expected"), [
    (10**6, 128, Budget(epochs=1), 1, 256),
    (10**6, 128, Budget(steps=3), 1, 256),
    (10**6, 4_096, Budget(epochs=1), 1, 8),
    (12_800, 128, Budget(epochs=1), 1, 128),
    (12_800, 128, Budget(epochs=1), 0.5, 256),
    (500, 128, Budget(epochs=100), 1, 120),
    (500, 128, Budget(epochs=1), 1, 64),
])  # fmt: skip
def test_texts_per_step_on_a_gpu(texts, length, budget, share, expected):
    assert choose_batch_size(STEP_TOKENS["cuda"], budget, Texts(texts, length), length, share) == expected


def test_a_training_records_its_batch_and_resumes_with_it(tiny_bert, tmp_path):
    corpus, budget = Corpus.of(DOCUMENTS), {"epochs": 2, "save_every": 2}
    whole = adapt(tiny_bert, corpus, "lm", tmp_path / "whole", **OPTIONS, **budget)
    assert whole.batch_size == LEAST_TEXTS
    card = read_json(tmp_path / "whole" / "acclimate.json")
    assert (card["batch_size"], card["step_tokens"]) == ("auto", STEP_TOKENS["cpu"])
    assert card["result"]["batch_size"] == LEAST_TEXTS
    assert f"| batch size | {LEAST_TEXTS} |" in (tmp_path / "whole" / "README.md").read_text()
    assert adapt(tiny_bert, corpus, "lm", tmp_path / "whole", **OPTIONS, **budget).batch_size == LEAST_TEXTS
    with killed(3):
        adapt(tiny_bert, corpus, "lm", tmp_path / "cut", **OPTIONS, **budget)
    adapt(tiny_bert, corpus, "lm", tmp_path / "cut", **OPTIONS, **budget)
    given = adapt(tiny_bert, corpus, "lm", tmp_path / "given", **{**OPTIONS, "batch_size": LEAST_TEXTS}, **budget)
    assert given.steps == whole.steps
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    for name in ("cut", "given"):
        found = load_file(tmp_path / name / "model.safetensors")
        assert all(torch.equal(value, found[key]) for key, value in weights.items())


def test_the_batch_follows_the_device_and_all_that_is_read(tiny_bert, tmp_path, capsys, monkeypatch):
    long = {"replay": {Corpus.of([" ".join([text] * 4) for text in TEXTS]): 0.5}}
    monkeypatch.setitem(STEP_TOKENS, "cpu", 400)
    monkeypatch.setitem(STEP_TOKENS, "cuda", 200)
    sizes, options = {}, {**OPTIONS, "steps": 4, "progress": True}
    for name, more in (("plain", {}), ("mixed", long)):
        run = adapt(tiny_bert, Corpus.of(DOCUMENTS), "lm", tmp_path / name, **options, **more)
        sizes[name] = run.batch_size
        assert 0.7 * 400 < run.tokens / run.steps < 1.2 * 400
    assert sizes["mixed"] < sizes["plain"] < LEAST_TEXTS and "texts per step, or" in capsys.readouterr().err
    with emulated():
        there = adapt(tiny_bert, Corpus.of(DOCUMENTS), "lm", tmp_path / "there", **options)
    assert there.batch_size == sizes["plain"] // 16 * 8


def test_what_is_chosen_is_printed(capsys, caplog):
    report_batch(440, 74.4, ProcessGroup(), GPU, True, STEP_TOKENS["cuda"])
    assert "Batch size: 440 texts per step, or 32,736 tokens.\n" in capsys.readouterr().err and not caplog.records
    report_batch(64, 74.4, ProcessGroup(), CPU, True, STEP_TOKENS["cuda"])
    printed = " ".join(capsys.readouterr().err.split())
    assert "or 4,762 tokens, fewer than the 32,768 that suit the device: the training or its text is short." in printed
    report_batch(440, 74.4, ProcessGroup(0, 8), GPU, True, STEP_TOKENS["cuda"])
    assert "only 4,092 tokens per step" in caplog.text and "Use fewer GPUs" in caplog.text


def test_a_study_file_may_ask_for_it():
    assert section(AdaptOptions).check({"batch_size": "auto"}) == {"batch_size": "auto"}
    with pytest.raises(ValueError, match="must be auto or an integer from 1 to 1,000,000, not 'automatic'"):
        section(AdaptOptions).check({"batch_size": "automatic"})


@each("wrong", ["Auto", "many", 0, -1, 2.5, True, 10**9])
def test_other_values_are_refused(wrong, tmp_path):
    with pytest.raises(UserError, match=r"'batch_size' must be (auto or )?an? (integer|number)"):
        adapt("model", TEXTS, out=tmp_path, batch_size=wrong)
