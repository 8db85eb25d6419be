"""Studies of tasks with a negative class or several labels per item."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from acclimate.base.errors import UserError
from acclimate.evaluation.scoring import SingleLabel, make_scoring
from acclimate.study.compare import compare
from tests.study.fakes import World, study


def test_a_task_with_a_negative_class_is_evaluated_on_the_others(folder, tmp_path, no_report):
    task = {"path": str(folder / "intent"), "negative": "b", "metric": "positive_micro_f1"}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    world = World(items=300, gain=0.3)
    config = study(folder, domains=domains, adapt_seeds=None)
    results = compare(config, tmp_path / "out", progress=False, backend=world.backend())
    assert all(call["negative"] == ("b",) for call in world.arguments if call["kind"] == "finetune")
    row = next(row for row in results["scores"] if row["method"] == "mlm")
    assert row["metric"] == "positive_micro_f1" and row["metrics"][-1] == "positive_micro_f1"
    difference = row["difference"]["positive_micro_f1"]
    assert difference["verdict"] == "helped" and difference["p_holm"] >= difference["p"]
    assert "micro-F1 of the positive classes" in (tmp_path / "out" / "results.md").read_text()


def test_a_metric_that_the_task_does_not_have(folder, tmp_path):
    task = {"path": str(folder / "intent"), "metric": "positive_micro_f1"}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    with pytest.raises(UserError, match="Unknown metric of the task 'intent' 'positive_micro_f1'"):
        compare(study(folder, domains=domains), tmp_path / "out", progress=False, backend=World().backend())


@pytest.mark.slow
def test_lists_of_labels_are_compared_by_document(folder, tmp_path):
    """Results of a multi-label task hold lists of labels and the documents of the items."""
    world = World(gain=0.3)
    plain = world.finetune

    def lists(model, task, **options):
        single = SimpleNamespace(name=task.name, scoring=lambda negative=None: SingleLabel(()))
        result = plain(model, single, **options)
        result.kind, result.labels = "multi_label", ["a", "b", "c"]
        result.scoring = {"classes": 3, "documents": [place // 2 for place in range(world.items)]}
        result.gold, result.predicted = ([[label] for label in side] for side in (result.gold, result.predicted))
        scoring = make_scoring("multi_label", result.scoring)
        result.metrics = {name: scoring.score(result.gold, result.predicted, name) for name in scoring.metrics}
        return result

    for split in ("train", "dev", "test"):
        rows = [{"text": f"{split} {n}", "label": ["abc"[n % 3]], "id": f"{n // 2}_s{n}"} for n in range(6)]
        (folder / "intent" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"path": str(folder / "intent"), "metric": "document_f1"}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    backend = world.backend(finetune=lists)
    config = study(folder, domains=domains, adapt_seeds=None)
    results = compare(config, tmp_path / "out", progress=False, backend=backend)
    row = next(row for row in results["scores"] if row["method"] == "mlm")
    assert row["kind"] == "multi_label" and row["difference"]["document_f1"]["verdict"] == "helped"
    assert "document F1" in (tmp_path / "out" / "report.html").read_text()
    again = compare(config, tmp_path / "out", progress=False, backend=backend)  # now from the stored results
    assert again["jobs"]["reused"] and again["scores"] == results["scores"]
