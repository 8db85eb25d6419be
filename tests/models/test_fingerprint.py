"""Fingerprints of model folders."""

from __future__ import annotations

import json

import pytest

from acclimate.errors import UserError
from acclimate.models.checkpoints import local_folder, model_fingerprint
from tests.tiny import save_tiny


def test_records_and_logs_do_not_change_the_fingerprint(tmp_path):
    save_tiny("bert", tmp_path / "model")
    before = model_fingerprint(str(tmp_path / "model"))
    for name in ("metrics.json", "selective.json", "fasttext.json", "acclimate.json"):
        (tmp_path / "model" / name).write_text(json.dumps({"seconds": 3.5}))
    assert model_fingerprint(str(tmp_path / "model")) == before
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "layer_norm_eps": 1e-3}))
    assert model_fingerprint(str(tmp_path / "model")) != before


def test_a_path_is_not_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert local_folder("org/name") is not None
    assert local_folder("org/other") is None
    assert model_fingerprint("org/other") == "org/other"
    for path in ("./org/other", "runs/org/other", "/nowhere"):
        with pytest.raises(UserError, match="There is no model folder"):
            model_fingerprint(path)
