"""The tables of what was searched, and of what came before the training."""

from __future__ import annotations

from acclimate.report.tables import searched
from acclimate.report.timing import accounts


def texts(table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, (entry.text for entry in row), strict=True)) for row in table.rows]


def trial(rate: float, score: float, ece: float | None = 0.1, chosen: bool = False) -> dict:
    values = {"score": score, "values": [score], "ece": ece}
    return {"settings": {"learning_rate": rate, "epochs": 3}, "state": "done", "chosen": chosen, **values}


def row(trials: list[dict], **changes) -> dict:
    taken = next((one["settings"] for one in trials if one["chosen"]), None)
    place = {"stage": "method", "model": "bert", "domain": "cs", "task": "intent", "methods": ["none", "mlm"]}
    counts = {"metric": "macro_f1", "tolerance": 0.01, "seeds": [0, 1], "possible": 12, "tried": len(trials)}
    return {**place, **counts, "trials": trials, "chosen": taken, **changes}


def test_a_row_says_what_was_tried_and_taken():
    failed = {"settings": {"learning_rate": 1.0}, "state": "failed", "chosen": False}
    trials = [trial(1e-5, 0.5), trial(2e-5, 0.71, 0.3), trial(3e-5, 0.705, 0.2, chosen=True), failed]
    table = searched({"searched": [row(trials), row([{**failed, "state": "missing"}])]})
    first, second = texts(table)
    assert first["method"] == "none, mlm" and first["combinations"] == "4 of 12, 1 failed"
    assert first["chosen"] == "learning_rate 3e-05, epochs 3"
    assert (first["dev, chosen"], first["dev, best"], first["dev, worst"], first["dev ECE"]) == (
        "70.5", "71.0", "50.0", "20.0",
    )  # fmt: skip
    assert second["chosen"] == second["dev, chosen"] == second["dev ECE"] == "–"
    assert "(1 points)" in table.note
    assert not searched({"searched": []}).rows and not searched({}).rows


def test_questions_have_no_calibration_error():
    (only,) = texts(searched({"searched": [row([trial(1e-5, 0.5, None, chosen=True)])]}))
    assert only["dev ECE"] == "–" and only["dev, chosen"] == "50.0"


def test_minutes_of_every_stage_before_the_training():
    stages = {"finetune": {"minutes": 1.25, "f1": 0.8}, "annotate": {"minutes": 0.031}, "masking": {"share": 0.2}}
    run = {"model": "bert", "domain": "cs", "method": "selective", "task": "mr", "seed": 0, "seconds": 90.0}
    plain = {**run, "method": "mlm", "task": None, "accounts": {}}
    table = accounts({"adaptations": [plain, {**run, "accounts": {"selective.json": stages}}]})
    assert texts(table) == [
        {
            "model": "bert",
            "domain": "cs",
            "method": "selective, mr",
            "seed": "0",
            "fine-tuning": "1.2",
            "annotation": "0.03",
            "sum": "1.3",
            "training": "1.5",
        }
    ]
    assert not accounts({"adaptations": [plain]}).rows
