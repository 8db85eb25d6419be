"""Fingerprints of model folders."""

from __future__ import annotations

import json

import pytest

from acclimate.base.errors import UserError
from acclimate.base.files import local_folder
from acclimate.models.checkpoints import model_fingerprint
from tests.cases import each
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


def _write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


FILES = {
    "config.json": "{}",
    "tokenizer.json": "{}",
    "spiece.model": "a",
    "bpe.codes": "a",
    "chat_template.jinja": "a",
    "additional_chat_templates/tools.jinja": "a",
    "model.safetensors.index.json": json.dumps({"weight_map": {"x": "w/1.safetensors", "y": "2.safetensors"}}),
    "w/1.safetensors": "a",
    "2.safetensors": "a",
    "pytorch_model.bin.index.json": json.dumps({"weight_map": {"x": "old/1.bin"}}),
    "old/1.bin": "a",
    "modules.json": json.dumps([{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]),
    "1_Pooling/config.json": "{}",
    "2_Dense/model.safetensors": "a",
}
CODE = {"modeling_own.py": "a", "parts/layers.py": "a"}


@each("name", sorted(FILES | CODE))
def test_a_byte_changed_in_any_file_that_is_read_changes_the_fingerprint(tmp_path, monkeypatch, name):
    monkeypatch.setenv("ACCLIMATE_TRUST_REMOTE_CODE", "1")
    _write(tmp_path, FILES | CODE)
    before = model_fingerprint(str(tmp_path))
    _write(tmp_path, {name: (FILES | CODE)[name] + " "})
    assert model_fingerprint(str(tmp_path)) != before


@each("name", [*sorted(CODE), "README.md", "log.jsonl", "step-000002/model.safetensors", "notes/a.txt"])
def test_files_that_are_not_read_do_not_change_the_fingerprint(tmp_path, monkeypatch, name):
    monkeypatch.delenv("ACCLIMATE_TRUST_REMOTE_CODE", raising=False)
    _write(tmp_path, FILES)
    before = model_fingerprint(str(tmp_path))
    _write(tmp_path, {name: "b"})
    assert model_fingerprint(str(tmp_path)) == before
