"""Models and tokenizers that cannot be used: a one-line error, whatever is wrong with them."""

from __future__ import annotations

import json
import shutil

import pytest
import transformers

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.loading import load_language_model
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.tiny import TEXTS, save_tiny, tiny_model, tiny_tokenizer

ROWS = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(TEXTS)]
TASK = Task.of("t", ROWS, ROWS[:4])
SHORT = {"steps": 1, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}


def refused(use, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        use()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def tune(folder):
    return finetune(folder, TASK, epochs=1, precision="fp32", progress=False)


@each("kind", ["ViT", "Wav2Vec2", "CLIP", "Whisper", "T5"])
def test_a_model_of_another_modality(tmp_path, kind):
    folder = tmp_path / kind
    getattr(transformers, f"{kind}Config")().save_pretrained(folder)
    refused(lambda: load_language_model(folder), str(folder))
    tiny_tokenizer().save_pretrained(folder)
    words = (
        ["encoder-decoder"] if kind in ("T5", "Whisper") else ["No language model could be loaded", f"{kind}Config"]
    )
    refused(lambda: load_language_model(folder), *words)
    refused(lambda: adapt(folder, Corpus.of(TEXTS), "mlm", tmp_path / "out", **SHORT), words[-1])
    if kind in ("ViT", "CLIP"):
        refused(lambda: tune(folder), "cannot be loaded as a classifier", f"{kind}Config")
    assert not (tmp_path / "out").exists()


def save_without(folder, *names: str):
    """A tiny BERT whose tokenizer lacks some special tokens."""
    save_tiny("bert", folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for name in names:
        config.pop(name)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert all(getattr(loaded, name) is None for name in names)
    return folder


def test_a_tokenizer_without_mask_token(tmp_path):
    folder = save_without(tmp_path / "model", "mask_token")
    refused(lambda: load_language_model(folder), "has no mask token")
    assert len(tune(folder).predicted) == 4  # fine-tuning masks nothing


def test_a_tokenizer_without_padding_token(tmp_path):
    folder = save_without(tmp_path / "model", "pad_token")
    assert adapt(folder, Corpus.of(TEXTS), "mlm", tmp_path / "out", **SHORT).steps == 1
    refused(lambda: tune(folder), "neither a padding nor an end token")


def test_a_tokenizer_without_files_is_refused(tmp_path):
    """If the config names a tokenizer class but there is no file, transformers makes one of special tokens only."""
    folder = tmp_path / "model"
    tiny_model("bert").save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    for use in (lambda: load_language_model(folder), lambda: tune(folder)):
        refused(use, str(folder))


@each("damage", ["empty", "half", "garbage", "folder", "gone"])
@each("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_files(tiny_bert, tmp_path, name, damage):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    file = folder / name
    data = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage != "gone":
        file.write_bytes({"empty": b"", "half": data[: len(data) // 2], "garbage": b"\x00\xff{[" * 99}[damage])
    for use in (lambda: load_language_model(folder), lambda: tune(folder)):
        refused(use, str(folder))


@each("content", ["[]", "3", "null", '{"model_type": 3}', '{"model_type": "bert", "hidden_size": "wide"}', "{}"])
def test_invalid_configurations_are_refused(tiny_bert, tmp_path, content):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    (folder / "config.json").write_text(content)
    for use in (lambda: load_language_model(folder), lambda: tune(folder)):
        refused(use, str(folder))


def test_a_file_in_place_of_a_folder(tiny_bert, tmp_path):
    (tmp_path / "model").write_text("no folder")
    refused(lambda: load_language_model(tmp_path / "model"), "no model folder")
    refused(lambda: tune(tmp_path / "model"), "no model folder")
    refused(lambda: adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "model", **SHORT), "is a file")
    assert (tmp_path / "model").read_text() == "no folder"
