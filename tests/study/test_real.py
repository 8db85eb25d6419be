"""Studies with the real backend, on a tiny random model."""

from __future__ import annotations

import json
import random

import pytest
import transformers

from acclimate.base.errors import UserError
from acclimate.study.compare import compare
from tests.cases import each
from tests.tiny import WORDS, save_tiny, tiny_tokenizer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    rng = random.Random(0)
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(4, 14)))

    for name, count in (("domain", 200), ("general", 40)):
        (tmp_path / f"{name}.txt").write_text("".join(sentence() + "\n" for _ in range(count)))
    (tmp_path / "task").mkdir()
    for split, count in (("train", 16), ("test", 24)):
        rows = [
            {"text": f"{('bad', 'good')[i % 2]} {sentence()}", "label": ("no", "yes")[i % 2]} for i in range(count)
        ]
        (tmp_path / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def write_study(folder, methods: str, model: str = "model"):
    (folder / "study.yaml").write_text(
        f"models: [{model}]\nmethods: {methods}\n"
        "domains: [{name: d, corpus: domain.txt, heldout: general.txt, tasks: [task]}]\ngeneral: general.txt\n"
        "adapt: {steps: 2, batch_size: 8, max_length: 16, head_tokens: 300}\n"
        "finetune: {epochs: 1, max_length: 16}\nevaluate: {documents: 10, max_length: 16}\n"
        "seeds: 2\nadapt_seeds: [0]\n"
    )
    return folder / "study.yaml"


def test_from_files_to_a_report_without_repeated_jobs(folder):
    save_tiny("bert", folder / "model")
    path = write_study(folder, "[none, mlm]")
    results = compare(path, folder / "out", progress=False)
    assert results["jobs"]["done"] == len(list((folder / "out" / "jobs").iterdir()))
    # The held-out text of the domain and the general text are the same, so they share jobs: 1 + 2 + 4, and the floor.
    assert results["jobs"]["done"] == 8
    made = folder / "out" / results["adaptations"][0]["folder"]
    assert transformers.AutoModelForMaskedLM.from_pretrained(made).config.model_type == "bert"
    assert results["losses"][0]["difference"]["difference"] != 0
    assert len(results["scores"][1]["difference"]["seeds"]) == 2
    assert compare(path, folder / "out", progress=False)["jobs"]["reused"] == 8


@each(
    ("said", "instead", "why"),
    [
        (
            "adapt: {steps: 2, batch_size: 8, max_length: 16",
            "adapt: {steps: 2, max_length: 999",
            "'model': .* 999 is more",
        ),
        (
            "documents: 10, max_length: 16",
            "documents: 10, max_length: 999",
            "'model': evaluate.max_length 999 is",
        ),
        ("finetune: {", "finetune: {select: dev, ", "'task' has none. Set 'select: last'"),
        ("corpus: domain.txt", "corpus: broken.jsonl", "no usable document.* 1 broken"),
    ],
)
def test_impossible_studies_are_refused_before_training(folder, said, instead, why):
    save_tiny("bert", folder / "model")
    path = write_study(folder, "[none, mlm]")
    (folder / "broken.jsonl").write_text("{no JSON\n")
    assert said in path.read_text()
    path.write_text(path.read_text().replace(said, instead))
    with pytest.raises(UserError, match=why):
        compare(path, folder / "out", progress=False)
    assert not (folder / "out" / "jobs").exists()


@pytest.mark.slow
def test_the_text_of_the_task_and_held_out_text(folder):
    save_tiny("bert", folder / "model")
    path = write_study(folder, "[none, tapt, {name: dapt+tapt, task_steps: 1}]")
    path.write_text(path.read_text().replace("adapt: {", "adapt: {heldout_every: 1, "))
    results = compare(path, folder / "out", progress=False)
    assert results["jobs"]["failed"] == 0
    runs = {run["method"]: run for run in results["adaptations"]}
    assert [run["task"] for run in runs.values()] == ["task", "task"]
    tapt = json.loads((folder / "out" / runs["tapt"]["folder"] / "acclimate.json").read_text())
    assert tapt["text"]["documents"] == 16  # the train split only
    assert runs["dapt+tapt (task_steps=1)"]["steps"] == 3
    assert [point["step"] for point in runs["tapt"]["heldout_curve"]] == [0, 1, 2]
    assert {row.get("task") for row in results["losses"]} == {"task"}
    assert compare(path, folder / "out", progress=False)["jobs"]["done"] == 0


@pytest.mark.slow
def test_unreadable_records_are_reported(folder):
    save_tiny("bert", folder / "model")
    path = write_study(folder, "[none, mlm, {name: dapt+tapt, task_steps: 1}]")
    lines = (folder / "domain.txt").read_text().splitlines()
    rows = [json.dumps({"text": line}) for line in lines] + ['{"text": broken'] * 3
    (folder / "domain.jsonl").write_text("\n".join(rows))
    path.write_text(path.read_text().replace("domain.txt", "domain.jsonl").replace("seeds: 2", "seeds: 1"))
    results = compare(path, folder / "out", progress=False)
    assert [run["broken"]["records"] for run in results["adaptations"]] == [3, 3]  # one of the two stages reads it
    markdown = (folder / "out" / "results.md").read_text()
    assert "3 records of the text of d could not be read" in markdown
    assert "domain.jsonl:" in markdown


@pytest.mark.slow
def test_a_model_without_a_head_and_a_method_with_parameters(folder):
    whole = save_tiny("bert", folder / "whole")
    transformers.BertModel.from_pretrained(whole).save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    path = write_study(folder, "[none, mlm, {name: dga, importance_tokens: 200}]")
    results = compare(path, folder / "out", progress=False)
    assert results["adaptations"][0]["head"] and results["jobs"]["failed"] == 0
    assert [row["method"] for row in results["scores"]] == ["none", "mlm", "dga (importance_tokens=200)"]
