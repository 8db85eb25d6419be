"""Which fine-tuned models a study keeps, that they are those of its scores, and that they cost no score."""

from __future__ import annotations

import json
import shlex
import shutil

from acclimate.report.next_steps import next_steps, predict_words
from acclimate.study.changes import load_study
from acclimate.study.compare import compare
from acclimate.study.forecast import forecast
from acclimate.study.keeping import with_keep
from acclimate.tasks.prediction import predict
from tests.study.fakes import World, study
from tests.tiny import TEXTS, save_tiny


class WithDev(World):
    """A backend whose fine-tunings have scores on dev, by seed."""

    def __init__(self, dev: dict[int, float], **options):
        super().__init__(**options)
        self.dev = dev

    def finetune(self, model, task, *, seed=0, progress=True, **options):
        made = super().finetune(model, task, seed=seed, progress=progress, **options)
        made.dev_metrics = {"macro_f1": self.dev[seed]} if self.dev else None
        return made


def run(folder, out, world, **changes):
    values = study(folder, methods=["none", "mlm"], adapt_seeds=[0, 1, 2], **changes)
    return compare(values, out, progress=False, backend=world.backend(), keep="best")


def tunings(world):
    return world.calls["finetune"]


def test_the_seed_is_chosen_on_dev_and_the_method_by_what_helped(no_report, folder, tmp_path):
    out = tmp_path / "out"
    plain = compare(
        study(folder, methods=["none", "mlm"], adapt_seeds=[0, 1, 2]),
        out,
        progress=False,
        backend=WithDev({0: 0.2, 1: 0.6, 2: 0.4}, gain=0.4).backend(),
    )
    again = WithDev({0: 0.2, 1: 0.6, 2: 0.4}, gain=0.4)
    kept = run(folder, out, again)
    assert tunings(again) == 2 and kept["scores"] == plain["scores"] and not again.calls["adapt"]
    rows = kept.rows["kept"]
    assert [(row.method, row.seed, row.best, row.folder) for row in rows] == [
        ("none", 1, False, "kept/intent/base"),
        ("mlm", 1, True, "kept/intent/mlm"),
    ]
    assert rows[0].chosen == "the best of 3 on dev: 0.6000"
    words = predict_words(kept, out)
    assert words == ["predict", "--model", str(out / "kept/intent/mlm"), "--data", "DATA", "--out", "predictions.csv"]
    (use, differ) = next(step.commands for step in next_steps(kept, out) if "was kept" in step.text)
    assert use == shlex.join(["acclimate", *words]) and f"--model {out}/kept/intent/base --model {out}/kept" in differ
    assert all("--keep best" in one for step in next_steps(kept, out) for one in step.commands if " compare " in one)
    third = WithDev({}, gain=0.4)
    assert run(folder, out, third).rows["kept"] == rows and tunings(third) == 0

    # A model that was deleted is made again, with the adapted model that it needs; nothing else is.
    for place in (out / "kept" / "intent" / "mlm", *(out / "models").iterdir()):
        shutil.rmtree(place)
    fourth = WithDev({1: 0.6}, gain=0.4)
    assert run(folder, out, fourth).rows["kept"] == rows
    assert (tunings(fourth), fourth.calls["adapt"]) == (1, 1)


def test_without_a_gain_the_base_model_is_the_one_to_use_and_old_models_go(no_report, folder, tmp_path):
    out = tmp_path / "out"
    rows = run(folder, out, WithDev({}, gain=0.0)).rows["kept"]
    assert [(row.method, row.seed, row.best, row.chosen) for row in rows] == [
        ("none", 0, True, "the first seed"),
        ("mlm", 0, False, "the first seed"),
    ]
    more = run(folder, out, WithDev({}, gain=0.0), seeds=[4, 5, 6])
    assert [row.seed for row in more.rows["kept"]] == [4, 4]
    assert json.loads((out / "kept" / "kept.json").read_text()).keys() == {"intent/base", "intent/mlm"}
    only = study(folder, methods=["none"])
    compare(only, out, progress=False, backend=WithDev({}).backend(), keep="best")
    assert [path.name for path in (out / "kept" / "intent").iterdir()] == ["base"]


def test_a_forecast_counts_the_models_to_keep(folder, tmp_path):
    config = load_study(study(folder, methods=["none", "mlm"]), with_keep(None, "best"))
    parts = {one.part: one.jobs for one in forecast(config, tmp_path / "out", World().backend()).estimates}
    assert parts["kept models"] == 2


def test_a_kept_model_predicts_what_the_study_scored(no_report, tmp_path, monkeypatch):
    """With real models: the same training as that of the score, bit by bit."""
    monkeypatch.chdir(tmp_path)
    save_tiny("bert", tmp_path / "model")
    (tmp_path / "text.txt").write_text("\n".join(f"{text} {n}" for text in TEXTS for n in range(6)))
    rows = [{"body": f"{TEXTS[n % 8]} {n}", "queue": ("food", "paper")[n % 2]} for n in range(60)]
    (tmp_path / "tickets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "models": ["model"],
        "methods": ["none", "lm"],
        "domains": [
            {"name": "d", "corpus": "text.txt", "tasks": [{"path": "tickets.jsonl:body", "label_column": "queue"}]}
        ],
        **{"adapt": {"steps": 2, "max_length": 24}, "finetune": {"epochs": 1, "max_length": 24}, "probe": False},
        **{"seeds": 2, "evaluate": {"documents": 5, "max_length": 24}, "keep": "best", "search": False},
    }
    results = compare(values, "out", progress=False)
    base, _ = results.rows["kept"]
    job = next(
        record
        for path in (tmp_path / "out" / "jobs").glob("*.json")
        if (record := json.loads(path.read_text()))["kind"] == "finetune"
        if (record["place"]["method"], record["place"]["seed"]) == ("none", base.seed)
    )
    made = tmp_path / "out" / base.folder
    lines = [json.loads(line) for line in (made / "predictions.jsonl").read_text().splitlines()]
    labels = job["result"]["labels"]
    assert [line["predicted"] for line in lines] == [labels[number] for number in job["result"]["predicted"]]
    test = [rows[int(line["row"].rpartition(":")[2]) - 1] for line in lines]
    found = predict(made, test, None, progress=False).rows  # it knows the column
    assert [row["label"] for row in found] == [line["predicted"] for line in lines]
    card = (made / "README.md").read_text()
    assert "pipeline(\"text-classification\", model='out/kept/tickets/base')" in card
    assert "# model-lm-tickets\n" in (tmp_path / "out" / "kept" / "tickets" / "lm" / "README.md").read_text()
