"""Tournaments with the real backend, on tiny random models."""

from __future__ import annotations

import pytest
import transformers

from acclimate.labs.auto.auto import show_auto
from acclimate.labs.auto.options import AutoOptions
from acclimate.tasks.prediction import predict
from tests.labs.auto.real import run, write_files

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("masked"), "bert")


def test_the_model_that_is_handed_back_loads_and_has_a_card(masked, tmp_path):
    result = run(masked, tmp_path / "out", keep="best")
    assert [one.label for one in result.plan.entrants] == ["none", "lm", "tapt"]
    assert {row.stage for row in result.rows} == {"rung-1", "rung-2"}
    transformers.AutoModelForMaskedLM.from_pretrained(result.model)
    assert (result.folder / "report.html").exists()
    if result.claim is not None:
        assert (result.folder / "claim.html").exists()
        labels = [
            predict(result.folder / row.folder, [{"text": "good"}], None).rows[0]["label"] for row in result.kept
        ]
        assert len(labels) == 2 and {*labels} <= {"no", "yes"}
        options = AutoOptions(masked / "model", masked / "domain.txt", masked / "task", tmp_path / "out", minutes=1)
        *_, last = show_auto(result, options)
        assert last.words[:2] == ["predict", "--model"] and (last.words[2] / "config.json").is_file()


def test_a_decoder_races_with_and_without_replay_and_with_a_chat_vector(tmp_path):
    folder = write_files(tmp_path / "data", "llama")
    result = run(folder, tmp_path / "out", methods="lm", instruct=folder / "model")
    labels = {row.label for row in result.rows}
    assert {"lm", "lm, no replay", "lm, LoRA", "lm, chat vector", "lm, half-way"} <= labels
    assert not {row.decision for row in result.rows if row.decision.startswith("failed")}
    transformers.AutoModelForCausalLM.from_pretrained(result.model)


def test_several_workers_find_the_same(masked, tmp_path):
    one, two = run(masked, tmp_path / "one"), run(masked, tmp_path / "two", workers=2)
    assert [(row.label, row.stage, row.score) for row in two.rows] == [
        (row.label, row.stage, row.score) for row in one.rows
    ]
