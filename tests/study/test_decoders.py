"""Studies of a tiny decoder with the real backend."""

from __future__ import annotations

import functools
import json

import pytest
import transformers

from acclimate.evaluation import instructions
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.study.compare import compare
from tests.tiny import TEXTS, decoder_tokenizer, tiny_model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("acclimate.report.write_report", lambda results, path: path)
    model, tokenizer = tiny_model("llama"), decoder_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}:"
    model.generation_config = transformers.GenerationConfig(eos_token_id=[2, 5], temperature=0.5, do_sample=True)
    model.save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    for name, rows in (("domain", TEXTS * 3), ("general", TEXTS[::-1])):
        lines = [f"{text} {name} {number}\n" for number, text in enumerate(rows)]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    (tmp_path / "task").mkdir()
    for split in ("train", "test"):
        rows = [{"text": f"{text} {split}", "label": ("no", "yes")[len(text) % 2]} for text in TEXTS]
        (tmp_path / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(folder, **changes):
    domain = {"name": "d", "corpus": str(folder / "domain.txt"), "heldout": str(folder / "general.txt")}
    config = {
        "models": [str(folder / "llama")],
        "methods": ["none", "lm"],
        "domains": [{**domain, **changes.pop("domain", {})}],
        "general": str(folder / "general.txt"),
        "adapt": {"steps": 2, "batch_size": 4, "max_length": 32, "learning_rate": 1e-3},
        "finetune": {"epochs": 1, "max_length": 32},
        "evaluate": {"documents": 10, "max_length": 32},
        "seeds": 2,
        **changes,
    }
    return compare(config, folder / "out", progress=False)


def test_without_tasks_a_study_measures_bits_per_byte(folder):
    results = run(folder)
    rows = {(row.text, row.method): row for row in results.losses}
    assert rows.keys() == {("domain", "lm"), ("general", "lm")}
    row = rows["domain", "lm"]
    texts = (folder / "general.txt").read_text().splitlines()
    before = language_model_loss(folder / "llama", texts, max_length=32)
    assert row.kind == "causal" and row.bits_per_byte_before == pytest.approx(before["bits_per_byte"])
    change = row.bits_per_byte_difference
    assert change.difference == pytest.approx(row.bits_per_byte - row.bits_per_byte_before, abs=1e-6)
    assert change.low <= change.difference <= change.high and change.verdict in (
        "helped",
        "no difference shown",
        "hurt",
    )
    page = (folder / "out" / "results.md").read_text()
    assert "Causal-LM loss in nats per token" in page and "bits per byte" in page and "masked" not in page.lower()
    made = folder / "out" / results.adaptations[0].folder
    card = (made / "README.md").read_text()
    assert "pipeline_tag: text-generation" in card and "AutoModelForCausalLM" in card and "bits per byte" in card
    model, tokenizer = (
        auto.from_pretrained(made) for auto in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer)
    )
    assert model.generation_config.eos_token_id == [2, 5] and model.generation_config.temperature == 0.5
    assert tokenizer.chat_template == "{{ messages[0].content }}:"
    inputs = tokenizer("the food", return_tensors="pt")
    assert model.generate(**inputs, max_new_tokens=3, do_sample=False).shape[1] > inputs["input_ids"].shape[1]


def test_a_task_is_fine_tuned_and_answered_without_training(folder, monkeypatch):
    short = functools.partial(instructions.measure_instructions, max_tokens=3)
    monkeypatch.setattr(instructions, "measure_instructions", short)
    results = run(
        folder,
        domain={"tasks": [{"path": str(folder / "task"), "likelihood": True}]},
        evaluate={"documents": 10, "max_length": 32, "instructions": True},
    )
    assert {row.method for row in results.scores} == {"none", "lm"}
    assert all(len(row.seeds) == 2 for row in results.scores)
    sheet, table = results.tables
    assert [row[2] for row in sheet.rows] == ["base model", "lm"] and sheet.rows[1][4] is not None
    assert [row[3] for row in table.rows] == ["base model", "lm"]
    assert all(0 <= row[4] <= 100 for row in table.rows) and "to" in table.rows[1][7]
