"""Experiment trackers: names are checked, missing packages reported, and losses passed on."""

from __future__ import annotations

import json
import os

import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.callbacks import TENSORBOARD_VARIABLE, check_trackers, tensorboard_folder
from acclimate.study.compare import compare
from acclimate.tasks.distillation.distill import distill
from acclimate.tasks.finetune import finetune
from tests.study.fakes import World, files, study
from tests.test_cli import call
from tests.tiny import TEXTS


class Tracker(TrainerCallback):
    """A tracker that records what it receives."""

    received: list = []

    def __init__(self):
        self.place = os.environ.get(TENSORBOARD_VARIABLE)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.received.append({"step": state.global_step, "run": args.run_name, "place": self.place, **logs})


@pytest.fixture
def tracker(monkeypatch):
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tensorboard", Tracker)
    monkeypatch.setattr(integration_utils, "get_available_reporting_integrations", lambda: ["tensorboard"])
    monkeypatch.setattr(Tracker, "received", [])
    return Tracker


def test_names_are_checked(tracker):
    assert check_trackers(None) == check_trackers("none") == check_trackers([]) == []
    assert check_trackers("tensorboard") == check_trackers(["tensorboard,tensorboard"]) == ["tensorboard"]
    assert check_trackers("all") == ["tensorboard"]
    with pytest.raises(UserError, match=r"Unknown tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        check_trackers("tensorbord")
    with pytest.raises(UserError, match=r"'wandb' is not installed: pip install wandb"):
        check_trackers("tensorboard,wandb")
    with pytest.raises(UserError, match="pip install comet-ml"):
        check_trackers(["comet_ml"])


def test_an_adaptation_reports_every_term(tracker, tiny_bert, tmp_path):
    options = {"steps": 3, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}
    adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "plain", **options)
    assert tracker.received == []
    adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "out", report_to="tensorboard", **options)
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    entries = [entry for entry in tracker.received if "term_mlm" in entry]
    assert [entry["step"] for entry in entries] == [line["step"] for line in log] == [1, 2, 3]
    assert [entry["term_mlm"] for entry in entries] == [line["terms"]["mlm"] for line in log]
    assert entries[0]["run"] == "out" and entries[0]["place"] == str(tmp_path / "out.tensorboard")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "out")]
    assert weights[0] == weights[1]
    # Trackers are not part of the identity: the same run is found again.
    assert adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "out", **options).steps == 3


def test_fine_tuning_reports_the_loss(tracker, tiny_bert, tmp_path):
    lines = [json.dumps({"text": text, "label": str(number % 2)}) for number, text in enumerate(TEXTS)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    options = {"epochs": 2, "batch_size": 4, "max_length": 24, "progress": False, "precision": "fp32"}
    plain = finetune(tiny_bert, tmp_path, **options)
    found = finetune(tiny_bert, tmp_path, report_to=["tensorboard"], out=tmp_path / "out", **options)
    losses = [entry["loss"] for entry in tracker.received if "loss" in entry]
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert losses == pytest.approx([line["loss"] for line in log], abs=1e-4) and len(losses) == 4
    assert [line["epoch"] for line in log] == [0.5, 1.0, 1.5, 2.0]
    assert found.metrics == plain.metrics


def test_a_distillation_reports_the_loss_of_both_phases(tracker, tiny_bert, tmp_path):
    lines = [json.dumps({"text": text, "label": str(number % 2)}) for number, text in enumerate(TEXTS)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    options = {"epochs": 2, "distill_share": 0.5, "teacher_epochs": 1, "student_epochs": 1, "batch_size": 4}
    options |= {"max_length": 24, "progress": False, "precision": "fp32"}
    out = tmp_path / "out"
    found = distill(tiny_bert, tiny_bert, tmp_path, out=out, report_to="tensorboard", **options)
    losses = [entry["loss"] for entry in tracker.received if "loss" in entry]
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert losses == pytest.approx([line["loss"] for line in log], abs=1e-4) and len(losses) == 4
    assert {(entry["run"], entry["place"]) for entry in tracker.received} == {
        ("out", str(tmp_path / "out.tensorboard"))
    }
    assert "tensorboard" not in (out / "README.md").read_text()
    # Trackers are not part of the identity: the same run is found again.
    tracker.received.clear()
    assert distill(tiny_bert, tiny_bert, tmp_path, out=out, **options).metrics == found.metrics
    with pytest.raises(UserError, match="Unknown tracker"):
        distill(tiny_bert, tiny_bert, tmp_path, report_to="tensorbord", **options)


def test_the_users_tensorboard_folder_is_respected(monkeypatch, tmp_path):
    monkeypatch.setenv(TENSORBOARD_VARIABLE, "mine")
    with tensorboard_folder(["tensorboard"], tmp_path / "out"):
        assert os.environ[TENSORBOARD_VARIABLE] == "mine"
    monkeypatch.delenv(TENSORBOARD_VARIABLE)
    with tensorboard_folder(["tensorboard"], tmp_path / "out"):
        assert os.environ[TENSORBOARD_VARIABLE] == str(tmp_path / "out.tensorboard")
    assert TENSORBOARD_VARIABLE not in os.environ


def test_on_the_command_line(tiny_bert, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    basic = ["adapt", "--model", tiny_bert, "--corpus", tmp_path / "text.txt", "--steps", 1, "--out", tmp_path / "o"]
    code, _, err = call(monkeypatch, capsys, *basic, "--report-to", "nothing-like-it", "--quiet")
    assert code == 2 and "Unknown tracker 'nothing-like-it'" in err and not (tmp_path / "o").exists()


@pytest.mark.needs("dga")
def test_a_study_reports_its_differences_with_interval_and_verdict(tracker, tmp_path):
    results = compare(
        study(files(tmp_path / "data")),
        tmp_path / "out",
        backend=World().backend(),
        progress=False,
        report_to="tensorboard",
    )
    (sent,) = tracker.received
    assert sent["run"] == "out" and sent["place"] == str(tmp_path / "out.tensorboard")
    general = next(row for row in results.losses if row.text == "general" and row.method == "mlm")
    names = ("difference", "low", "high")
    assert [sent[f"loss of general text/mlm/{name}"] for name in names] == [general.difference[n] for n in names]
    assert sent[f"{results.scores[1].task}/mlm/low"] == results.scores[1].comparison.low
    signs = {"helped": 1, "hurt": -1, "no difference shown": 0}
    assert sent.get("loss of general text/mlm/verdict") == signs.get(general.difference.verdict)
