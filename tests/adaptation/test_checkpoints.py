"""Checkpoints: an incomplete one is recognized, and the previous one is used."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine import trainer
from acclimate.engine.callbacks import (
    COMPLETE_FILE,
    find_newest_checkpoint,
    is_complete,
    mark_complete,
    remove_incomplete_checkpoints,
)
from acclimate.engine.trainer import log_interval
from tests.cases import each
from tests.kills import counted, killed
from tests.tiny import TEXTS, save_tiny, with_old_names

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
SHORT = {"steps": 6, "batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


def run(model, out):
    return adapt(model, Corpus.of(DOCUMENTS), "mlm", out, save_every=1, **SHORT)


def made(folder, step: int):
    checkpoint = folder / f"checkpoint-{step}"
    (checkpoint / "deep").mkdir(parents=True)
    for name in ("model.safetensors", "deep/optimizer.pt"):
        (checkpoint / name).write_bytes(b"x" * 100)
    return checkpoint


@pytest.fixture(scope="module")
def cut(tiny_bert, tmp_path_factory):
    """A run that was killed in its fifth step, and a complete one, with checkpoints after every step."""
    place = tmp_path_factory.mktemp("cut")
    run(tiny_bert, place / "whole")

    with killed(4):
        run(tiny_bert, place / "out")
    kept = place / ".out.work" / "steps"
    assert sorted(path.name for path in kept.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    return place


FILES = (
    *("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"),
    *("trainer_state.json", "clock.json", COMPLETE_FILE),
)


@each("damage", ["gone", "half", "empty"])
@each("name", FILES)
def test_a_checkpoint_with_a_missing_or_truncated_file_is_incomplete(cut, tmp_path, name, damage):
    shutil.copytree(cut / ".out.work" / "steps", tmp_path / "steps")
    work = tmp_path / "steps"
    assert find_newest_checkpoint(work) == work / "checkpoint-4"
    file = work / "checkpoint-4" / name
    data = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(data[: len(data) // 2] if damage == "half" else b"")
    assert find_newest_checkpoint(work) == work / "checkpoint-3"
    remove_incomplete_checkpoints(work)
    assert [path.name for path in work.glob("checkpoint-*")] == ["checkpoint-3"]


@pytest.mark.parametrize("name", ["optimizer.pt", COMPLETE_FILE])
def test_the_run_resumes_from_the_previous_checkpoint_with_the_same_result(cut, tiny_bert, tmp_path, name):
    shutil.copytree(cut / ".out.work", tmp_path / ".out.work")
    file = tmp_path / ".out.work" / "steps" / "checkpoint-4" / name
    file.write_bytes(file.read_bytes()[:-7])
    with counted() as steps:
        result = run(tiny_bert, tmp_path / "out")
    assert steps == [3, 4, 5]
    whole, again = (load_file(place / "model.safetensors") for place in (cut / "whole", tmp_path / "out"))
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    card = json.loads((cut / "whole" / "acclimate.json").read_text())
    assert result.tokens == card["result"]["tokens"]
    assert len((tmp_path / "out" / "log.jsonl").read_text().splitlines()) == 6


def test_two_checkpoints_are_kept_and_other_files_untouched(tmp_path):
    (tmp_path / "checkpoint-old").mkdir()
    (tmp_path / "checkpoint-7.txt").touch()
    for step in (9, 10, 100):
        mark_complete(made(tmp_path, step))
    assert find_newest_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
    assert is_complete(tmp_path / "checkpoint-10") and not (tmp_path / "checkpoint-9").exists()
    made(tmp_path, 200)
    assert find_newest_checkpoint(tmp_path) == tmp_path / "checkpoint-100"
    remove_incomplete_checkpoints(tmp_path)
    names = ["checkpoint-10", "checkpoint-100", "checkpoint-7.txt", "checkpoint-old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_model_with_old_weight_names_resumes_with_the_same_result(tmp_path):
    """transformers renames LayerNorm.gamma on loading, and back on saving."""
    start = with_old_names(save_tiny("bert", tmp_path / "start"))
    shape = {**SHORT, "learning_rate": 5e-2}
    adapt(start, Corpus.of(DOCUMENTS), "mlm", tmp_path / "whole", save_every=2, **shape)
    with killed(5):
        adapt(start, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", save_every=2, **shape)
    adapt(start, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", save_every=2, **shape)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "out"))
    assert not any("gamma" in name for name in one)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_an_interrupted_logging_interval_is_reported_completely(tiny_bert, tmp_path, monkeypatch):
    """A line of the log averages two steps, as with a hundred steps, here one before and one after the kill."""
    assert log_interval(100) == 2
    monkeypatch.setattr(trainer, "log_interval", lambda _: 2)
    options = {**SHORT, "batch_size": 2, "max_length": 8, "save_every": 5}
    whole = adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "whole", **options)
    with killed(5):
        adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", **options)
    again = adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "out", **options)
    assert again.losses == whole.losses
    logs = [read_lines(tmp_path / name / "log.jsonl") for name in ("whole", "out")]
    assert len(logs[0]) == 3 and [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]


def read_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_checkpoint_with_other_names_is_refused(cut, tiny_bert, tmp_path):
    shutil.copytree(cut / ".out.work", tmp_path / ".out.work")
    with_old_names(tmp_path / ".out.work" / "steps" / "checkpoint-4")
    mark_complete(tmp_path / ".out.work" / "steps" / "checkpoint-4")
    with pytest.raises(UserError, match=r"is not one of this model .* such as .*LayerNorm"):
        run(tiny_bert, tmp_path / "out")


@each("content", ["", "[]", "{", '{"a": 1}', "null"])
def test_an_invalid_file_list_means_incomplete(tmp_path, content):
    checkpoint = made(tmp_path, 1)
    (checkpoint / COMPLETE_FILE).write_text(content)
    assert not is_complete(checkpoint) and find_newest_checkpoint(tmp_path) is None
