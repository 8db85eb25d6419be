"""Adaptation gets no verdict on models that have learned less than a linear model, or whose training was too short."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.report.next_steps import next_steps
from acclimate.report.summary import summarize
from acclimate.results.scores import NOT_LEARNED, NOTHING_LEARNED
from acclimate.results.study import ProbeResult, ProbeScore, StudyResults
from acclimate.study.changes import change_values
from acclimate.study.compare import compare
from tests.study.fakes import World, graph_of, of_kind, study

pytestmark = pytest.mark.usefixtures("no_report")
FALLING = np.linspace(1.0, 0.7, 20).tolist()


class Floor:
    """A fake probe that is right on a share of the items of the fake fine-tunings."""

    def __init__(self, share: float) -> None:
        self.share, self.calls = share, []

    def __call__(self, model, task, *, draws, labels_per_class, states, **settings):
        self.calls.append((labels_per_class, draws, settings["max_length"]))
        gold = np.random.default_rng(5).integers(3, size=120)
        scores = []
        for draw in draws:
            right = np.random.default_rng([9, draw]).random(120) < self.share
            predicted = np.where(right, gold, (gold + 1) % 3)
            metrics = {name: task.scoring().score(gold, predicted, name) for name in task.scoring().metrics}
            labels = None if labels_per_class == ("all",) else labels_per_class[0]
            scores.append(
                ProbeScore(probe="linear", labels=labels, draw=draw, train_size=6, metrics=metrics,
                           predicted=predicted.tolist())
            )  # fmt: skip
        return ProbeResult(task=task.name, gold=gold.tolist(), labels=["a", "b", "c"], kind="single_label",
                           unit="labels per class", scoring=task.scoring().details(), scores=scores)  # fmt: skip


def run(folder, out, share=0.3, losses=None, **changes):
    values = study(folder, methods=["none", "mlm"], adapt_seeds=3, **changes)
    world, floor = World(gain=0.3), Floor(share)

    def finetune(*args, **options):
        result = world.finetune(*args, **options)
        result.losses = losses
        return result

    del values["probe"]
    results = compare(values, out, progress=False, backend=world.backend(probe=floor, finetune=finetune))
    return results, floor


def test_a_task_below_its_probe_gets_no_verdict(folder, tmp_path):
    """Although the adapted model is far better, and also than the probe."""
    results, floor = run(folder, tmp_path, 0.75)
    base, ours = results.scores
    assert floor.calls == [(("all",), (0,), 128)]
    assert base.learning.is_below_probe and not base.learning.has_learned
    assert base.learning.probe.before > 0.7 > base.learning.probe.after and ours.learning is None
    assert ours.comparison.verdict == NOT_LEARNED and ours.comparison.p is ours.comparison.p_holm is None
    summary = summarize(results)
    assert summary.verdict == NOTHING_LEARNED and summary.headline.startswith(NOTHING_LEARNED)
    assert "less than a linear model of its frozen states (7" in summary.headline
    (step,) = next_steps(results)
    assert step.commands[0].endswith("--set finetune.epochs=12 --set search=true")
    assert StudyResults.load(tmp_path / "results.json").scores == results.scores
    change_values(results.config, {"finetune.epochs": "12", "search": "true"})


def test_a_task_above_its_probe_gets_a_verdict(folder, tmp_path):
    results, _ = run(folder, tmp_path, losses=np.geomspace(1, 0.01, 20).tolist())
    base, ours = results.scores
    assert base.learning.has_learned and base.learning.probe.low > 0 and ours.comparison.verdict == "helped"
    shots, floor = run(folder, tmp_path / "shots", finetune={"few_shot": 2, "epochs": 3, "learning_rate": 1e-5})
    assert floor.calls == [((2,), (0, 1, 2), 128)] and shots.scores[0].learning.has_learned


def test_a_loss_that_still_falls_steeply_is_no_basis(folder, tmp_path):
    results, _ = run(folder, tmp_path, losses=FALLING, finetune={"epochs": 3, "learning_rate": 1e-5})
    base, ours = results.scores
    assert base.learning.falling == 3 and base.learning.probe.low > 0 and ours.comparison.verdict == NOT_LEARNED
    assert "the training loss still fell steeply at the end in 3 of 3 runs" in summarize(results).headline
    assert next_steps(results)[0].commands[0].endswith("--set search=true --set finetune.learning_rate=null")


def test_which_tasks_have_a_floor(folder):
    values = study(folder, seeds=2)
    assert not of_kind(graph_of(values), "floor")
    del values["probe"]
    assert len(of_kind(graph_of(values), "floor")) == 1
    assert len(of_kind(graph_of({**values, "probe": True}), "floor")) == 1
    assert not of_kind(graph_of({**values, "methods": ["mlm"]}), "floor")
