"""Models in the layout of the cache of the Hub, whose files are links to blobs elsewhere: every command reads them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from acclimate import merge
from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.models.checkpoints import check_folder, model_fingerprint
from tests.cases import each
from tests.tiny import TEXTS, save_tiny


def cached(model: Path, place: Path) -> Path:
    """Copy a model folder into a cache of the Hub, and return the folder of its snapshot."""
    snapshot = place / f"models--made--{model.name}" / "snapshots" / "0123abcd"
    blobs = snapshot.parents[1] / "blobs"
    for file in sorted(file for file in model.rglob("*") if file.is_file()):
        blob, link = blobs / hashlib.sha256(file.read_bytes()).hexdigest(), snapshot / file.relative_to(model)
        for folder in (blob.parent, link.parent):
            folder.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(file.read_bytes())
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_models_of_the_cache_are_merged_and_identified_like_folders(tiny_bert, tmp_path):
    other = save_tiny("bert", tmp_path / "other", seed=1)
    models = [cached(model, tmp_path / "hub") for model in (tiny_bert, other)]
    assert model_fingerprint(str(models[0])) == model_fingerprint(str(tiny_bert))
    for name, given in (("links", models), ("folders", [tiny_bert, other])):
        merge(given[0], {"interpolation": {"alpha": 0.5}}, tmp_path / name, base=given[1], progress=False)
    made = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("links", "folders")]
    assert made[0] == made[1]


@each(
    ("name", "message"),
    [
        ("w/pipe.safetensors", "is a pipe, a socket or a device"),
        ("a\0b.safetensors", "is outside the folder"),
        ("../model.safetensors", "is outside the folder"),
    ],
)
def test_an_index_names_plain_files_of_its_folder(tiny_bert, tmp_path, name, message):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    assert weights.is_file()
    (folder / "w").mkdir()
    os.mkfifo(folder / "w" / "pipe.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"x": name}}))
    with pytest.raises(UserError, match=message):
        check_folder(folder)
    with pytest.raises(UserError, match=message):
        merge(folder, {"interpolation": {"alpha": 0.5}}, tmp_path / "out", base=tiny_bert, progress=False)


SHORT = ["--max-length", 24, "--precision", "fp32"]
TRAINED = [*SHORT, "--epochs", 1]
GAP = ["--by", "year", "--seeds", 1, "--epochs", 1, "--max-length", 24]
COMMANDS = {
    "adapt": ["adapt", "--model", "BERT", "--corpus", "TEXT", "--steps", 1, *SHORT],
    "adapt lora": ["adapt", "--model", "LLAMA", "--corpus", "TEXT", "--steps", 1, "--adapter", "lora", *SHORT],
    "sequence": ["sequence", "--model", "BERT", "--domain", "a=TEXT", "--domain", "b=TEXT", "--methods", "lm",
                 "--set", "adapt.steps=1", "--set", "adapt.max_length=16", "--set", "seeds=1",
                 "--set", "evaluate.max_length=16"],
    "select": ["select", "--corpus", "TEXT", "--by", "best by=perplexity model=BERT documents=3"],
    "transform": ["transform", "--corpus", "TEXT", "--by", "passages model=LLAMA length=16", "--target", "TEXT"],
    "finetune": ["finetune", "--model", "BERT", "--task", "TASK", "--seeds", 1, *TRAINED],
    "distill": ["distill", "--teacher", "BERT", "--student", "BERT", "--task", "TASK", "--seeds", 1, *SHORT,
                "--epochs", 2, "--distill-share", 0.5],
    "annotate": ["annotate", "--model", "BERT", "--task", "TASK", *TRAINED],
    "soup": ["merge", "--method", "soup", "--model", "BERT", "--model", "OTHER"],
    "compare": ["compare", "STUDY"],
    "inspect model": ["inspect", "model", "BERT"],
    "inspect masks": ["inspect", "masks", "--model", "BERT", "--corpus", "TEXT"],
    "inspect embeddings": ["inspect", "embeddings", "--before", "BERT", "--after", "OTHER"],
    "inspect importance": ["inspect", "importance", "--model", "BERT", "--corpus", "a=TEXT", "--corpus", "b=TEXT",
                           "--max-length", 24],
    "inspect experts": ["inspect", "experts", "--expert", "a=BERT", "--expert", "b=OTHER", "--corpus", "a=TEXT",
                        "--corpus", "b=TEXT", "--target", "TEXT"],
    "inspect sensitivity": ["inspect", "sensitivity", "--before", "BERT", "--after", "OTHER", "--corpus", "TEXT"],
    "inspect specificity": ["inspect", "specificity", "--before", "BERT", "--after", "OTHER", "--task", "TASK",
                            "--general", "TEXT"],
    "inspect task-words": ["inspect", "task-words", "--before", "BERT", "--after", "OTHER", "--task", "TASK",
                           "--fewest", 1, "--max-length", 24],
    "advise": ["advise", "--model", "BERT", "--corpus", "TEXT", "--general", "TEXT", "--max-length", 24],
}  # fmt: skip


@pytest.mark.slow
@each("name", sorted(COMMANDS))
def test_every_command_reads_a_model_of_the_cache(tiny_bert, tiny_llama, tmp_path, monkeypatch, capsys, name):
    given = {"BERT": tiny_bert, "OTHER": save_tiny("bert", tmp_path / "other", seed=1), "LLAMA": tiny_llama}
    given = {key: cached(model, tmp_path / "hub") for key, model in given.items()}
    given |= {"TEXT": tmp_path / "text.txt", "TASK": tmp_path / "task", "STUDY": tmp_path / "study.yaml"}
    given["TEXT"].write_text("".join(f"{text} {number}\n" for text in TEXTS for number in range(4)))
    given["TASK"].mkdir()
    rows = [json.dumps({"text": f"{text} {n}", "label": ("no", "yes")[n % 2]}) for n, text in enumerate(TEXTS * 3)]
    for split in ("train", "dev", "test"):
        (given["TASK"] / f"{split}.jsonl").write_text("\n".join(rows))
    given["STUDY"].write_text(
        f"models: [{given['BERT']}]\nmethods: [none, lm]\nseeds: 1\n"
        f"domains: [{{name: d, corpus: {given['TEXT']}, tasks: [{given['TASK']}]}}]\n"
        "merges: [{of: lm, method: {interpolation: 0.5}}]\n"
        "adapt: {steps: 1, max_length: 16, precision: fp32}\nfinetune: {epochs: 1, max_length: 16, precision: fp32}\n"
        "evaluate: {max_length: 16}\n"
    )
    words = ["acclimate"]
    for word in map(str, COMMANDS[name]):
        for key, value in given.items():
            word = word.replace(key, str(value))
        words.append(word)
    if name != "advise":
        words += ["--out", str(tmp_path / ("out.jsonl" if name in ("select", "transform") else "out"))]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    assert not ended.value.code, capsys.readouterr().err[-500:]
