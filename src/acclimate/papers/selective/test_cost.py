"""`acclimate inspect cost`: from folders of runs to the table of minutes."""

from __future__ import annotations

import json

import pytest

import acclimate
from acclimate.base.errors import UserError
from acclimate.base.files import read_json, write_json
from acclimate.data.documents import Corpus
from acclimate.papers.selective.cost import cost_table, read_cost
from acclimate.papers.selective.cost_table import inspect_cost
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.test_cli import call
from tests.tiny import TEXTS

MINUTES = {"finetune": 10, "annotate": 20, "train": 10, "mark": 40}


def card(folder, minutes, steps, **more):
    write_json(folder / "acclimate.json", {"method": "pretrain", "result": {"steps": steps, "seconds": 60 * minutes}})
    if more:
        write_json(folder / "acclimate.json", {**read_json(folder / "acclimate.json"), **more})


def made(tmp_path):
    """Runs as in the paper: 1M steps in three days, stopped at 300k, then 200k steps of task-guided pre-training."""
    card(tmp_path / "general", 4320, 1_000_000)
    for step in (100_000, 300_000):
        card(tmp_path / "general" / f"step-{step:06d}", 4320 * step / 1e6, step)
    for name, step in (("yelp", 300_000), ("amazon", 100_000)):
        model = tmp_path / "general" / f"step-{step:06d}"
        card(tmp_path / name, 864, 200_000, method="selective", model=str(model))
        stages = {**MINUTES, "mark": 120 if name == "amazon" else 40}
        summary = {stage: {"minutes": value, "share": 0.1} for stage, value in stages.items()}
        write_json(tmp_path / name / "selective.json", {**summary, "masking": {"texts": 3}})
    for seed, minutes in enumerate((4, 8)):
        write_json(tmp_path / "tuned" / f"seed-{seed}" / "metrics.json", {"seconds": 60 * minutes})
    return tmp_path


@pytest.fixture
def runs(tmp_path):
    return made(tmp_path)


def test_the_table_of_the_paper(runs):
    costs = inspect_cost(
        {"Yelp": runs / "yelp", "Amazon": runs / "amazon"},
        runs / "cost.json",
        pretrained=runs / "general",
        finetuned={"Yelp": [runs / "tuned"]},
    )
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in cost_table(costs).splitlines()]
    assert lines[0] == ["Minutes", "Yelp", "Amazon"]
    assert set("".join(lines[1])) == {"-", ":"}
    assert lines[2:] == [
        ["General pre-training, to the early stop", "1296", "432"],
        ["Fine-tuning the annotator", "10", "10"],
        ["Finding important tokens", "20", "20"],
        ["Training the token classifier", "10", "10"],
        ["In-domain masking", "40", "120"],
        ["**Selective masking, sum of the four**", "80", "160"],
        ["Task-guided pre-training", "864", "864"],
        ["Fine-tuning, each seed", "6", "–"],
        ["General pre-training, to its end", "4320", "4320"],
        ["**Saved by the early stop**", "3024", "3888"],
        ["**Saved, less selective masking and task-guided pre-training**", "2080", "2864"],
    ]
    assert len({len(line) for line in cost_table(costs).splitlines()}) == 1
    written = read_json(runs / "cost.json")
    assert written["columns"]["Yelp"]["step"] == 300_000
    assert written["columns"]["Amazon"]["minutes"]["left"] == 2864
    assert written["columns"]["Amazon"]["minutes"]["fine_tuning"] is None


def test_without_general_pre_training_and_with_a_net_loss(runs):
    table = cost_table({"yelp": read_cost(runs / "yelp")})
    assert "General" not in table and "aved" not in table and "Fine-tuning, each" not in table
    card(runs / "general", 1396, 1_000_000)
    assert read_cost(runs / "yelp", runs / "general").minutes()["left"] == 100 - 80 - 864
    assert "-844" in cost_table({"yelp": read_cost(runs / "yelp", runs / "general")})
    card(runs / "yelp", 0.2, 9, method="selective", model=str(runs / "general"))
    cost = read_cost(runs / "yelp", runs / "general")
    assert (cost.step, cost.minutes()["saved"], cost.task_guided) == (1_000_000, 0, 0.2)


def test_a_renamed_folder_needs_the_step(runs):
    (runs / "general").rename(runs / "moved")
    with pytest.raises(UserError, match="--step"):
        read_cost(runs / "yelp", runs / "moved")
    assert read_cost(runs / "yelp", runs / "moved", step=300_000).general_to_stop == 1296
    with pytest.raises(UserError, match="step 300,000, not 100,000"):
        read_cost(runs / "yelp", runs / "moved", step=100_000)


@each(
    ("change", "message"),
    [
        (lambda runs: (runs / "yelp" / "acclimate.json").unlink(), "was not made by acclimate adapt"),
        (lambda runs: (runs / "yelp" / "selective.json").unlink(), "adapted by 'selective' and has no selective.json"),
        (lambda runs: write_json(runs / "yelp" / "selective.json", {"mark": {}}), "finetune, annotate, train, mark"),
        (lambda runs: (runs / "general" / "acclimate.json").write_text("{"), "was not made by acclimate pretrain"),
        (lambda runs: write_json(runs / "general" / "acclimate.json", {"result": {"steps": 9}}), "no training time"),
        (lambda runs: (runs / "general" / "step-300000" / "acclimate.json").unlink(), "kept steps: 100,000, 300,000"),
        (lambda runs: (runs / "tuned" / "seed-1" / "metrics.json").write_text("[]"), "not made by acclimate finetune"),
    ],
)
def test_incomplete_folders_are_errors(tmp_path, change, message):
    runs = made(tmp_path)
    change(runs)
    with pytest.raises(UserError, match=message):
        read_cost(runs / "yelp", runs / "general", finetuned=[runs / "tuned"])


def test_on_the_command_line(runs, monkeypatch, capsys):
    basic = ["inspect", "cost", "--adapted", runs / "yelp", "--pretrained", runs / "general"]
    code, out, _ = call(monkeypatch, capsys, *basic, "--finetuned", runs / "tuned", "--out", runs / "cost.json")
    assert code == 0
    assert "| yelp |" in out and "2080 |" in out and str(runs / "cost.json") in out
    assert json.loads((runs / "cost.json").read_text())["columns"]["yelp"]["minutes"]["fine_tuning"] == 6
    for more, message in [
        (["--adapted", runs / "yelp"], "two models with the name 'yelp'"),
        (["--adapted", runs / "amazon", "--finetuned", runs / "tuned"], "several columns"),
        (["--finetuned", f"yelpp={runs / 'tuned'}"], "Did you mean 'yelp'"),
    ]:
        code, _, err = call(monkeypatch, capsys, *basic, *more)
        assert code == 2 and message in err and len(err.strip().splitlines()) == 1
    code, _, err = call(monkeypatch, capsys, "inspect", "cost", "--adapted", runs / "yelp", "--step", 3)
    assert code == 2 and "--pretrained" in err


@pytest.mark.slow
def test_real_runs(tiny_bert, tmp_path):
    rows = [{"text": text, "label": number % 2} for number, text in enumerate(TEXTS * 4)]
    task = Task.of("opinions", rows, rows[:8], rows[:8])
    text = Corpus.of([f"{one} {number}" for number in range(4) for one in TEXTS])
    short = {"batch_size": 6, "max_length": 24, "precision": "fp32", "progress": False}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 66}
    general = tmp_path / "general"
    acclimate.pretrain(text, general, changes=sizes, tokenizer=tiny_bert, steps=4, keep_steps=[2], **short)
    every = {
        "delta": 1,
        "finetune_epochs": 1,
        "token_epochs": 3,
        "token_learning_rate": 1e-2,
    }  # all important
    acclimate.adapt(
        general / "step-000002", text, {"selective": every}, tmp_path / "adapted", task=task, steps=2, **short
    )
    acclimate.finetune(
        tmp_path / "adapted", task, out=tmp_path / "tuned" / "seed-0", epochs=1, precision="fp32", progress=False
    )
    cost = read_cost(tmp_path / "adapted", general, finetuned=[tmp_path / "tuned"])
    assert (cost.step, cost.steps) == (2, 4)
    minutes = cost.minutes()
    assert all(minutes[name] > 0 for name in (*MINUTES, "fine_tuning"))
    assert minutes["task_guided"] >= 0  # stored rounded to tenths of a second
    assert minutes["saved"] == minutes["general_to_end"] - minutes["general_to_stop"] >= 0
