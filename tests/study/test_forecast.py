"""Dry runs: remaining jobs and estimated time."""

from __future__ import annotations

import pytest

from acclimate.study import StudyConfig, compare
from acclimate.study.executor import JobStore
from acclimate.study.forecast import forecast
from tests.study.fakes import World, graph_of, study
from tests.study.searching import Trials, searching, write_task
from tests.test_cli import call


def shown(plan):
    return {(one.part, one.kind): (one.jobs, one.done) for one in plan.estimates}


def test_without_finished_jobs_the_time_is_unknown(folder, tmp_path):
    world = World()
    plan = forecast(StudyConfig.of(study(folder)), tmp_path / "out", world.backend())
    assert shown(plan) == {("study", "lm_loss"): (6, 0), ("study", "adapt"): (2, 0), ("study", "finetune"): (9, 0)}
    assert plan.seconds is None and not plan.guessed
    assert not world.calls and not (tmp_path / "out").exists()


def test_finished_jobs_give_an_estimate_for_the_others(folder, tmp_path, no_report, monkeypatch):
    plain = JobStore.finish

    def finish(self, job, result, seconds):
        took = {"finetune": 30 if job.place.method == "mlm" else 10, "adapt": 100, "lm_loss": 1}
        plain(self, job, result, took[job.name])

    monkeypatch.setattr(JobStore, "finish", finish)
    compare(
        study(folder, seeds=1, methods=["none", "mlm"]), tmp_path / "out", progress=False, backend=World().backend()
    )
    plan = forecast(StudyConfig.of(study(folder)), tmp_path / "out", World().backend())
    assert shown(plan) == {("study", "lm_loss"): (6, 4), ("study", "adapt"): (2, 1), ("study", "finetune"): (9, 2)}
    # Fine-tunings of none take 10 s and of mlm 30 s; dga, which has no finished job, is estimated by the mean of all.
    seconds = {one.kind: one.seconds for one in plan.estimates}
    assert seconds["finetune"] == pytest.approx(2 * 10 + 2 * 30 + 3 * 20)
    assert seconds["adapt"] == pytest.approx(100)
    assert plan.seconds == pytest.approx(sum(seconds.values()))
    done = forecast(
        StudyConfig.of(study(folder, seeds=1, methods=["none", "mlm"])), tmp_path / "out", World().backend()
    )
    assert done.seconds == 0


def test_jobs_after_an_unfinished_search_are_a_guess(folder, tmp_path, no_report):
    config = StudyConfig.of(searching(folder))
    plan = forecast(config, tmp_path / "out", Trials().backend())
    assert plan.guessed
    counts = {("search 1", "finetune"): (12, 0), ("search 1", "adapt"): (1, 0)}
    counts |= {("study", "lm_loss"): (6 - 2, 0), ("study", "finetune"): (6, 0), ("study", "adapt"): (1, 0)}
    assert shown(plan) == counts
    compare(config, tmp_path / "out", progress=False, backend=Trials().backend())
    plan = forecast(config, tmp_path / "out", Trials().backend())
    assert not plan.guessed and all(jobs == done for jobs, done in shown(plan).values())


def test_limits_of_a_task(folder, tmp_path, no_report):
    write_task(folder / "task")
    task = {"path": str(folder / "task"), "limit_train": 8, "limit_test": 100}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    config = searching(folder, domains=domains, search=None, methods=["none"])
    trials = Trials()
    results = compare(config, tmp_path / "out", progress=False, backend=trials.backend())
    assert results["notes"] == [
        "Only a random sample of task was used, the same for all models and seeds: 8 of 24 rows of train. Scores "
        "cannot be compared with those on the full data."
    ]
    assert {score["train_size"] for score in results["scores"]} == {8}
    whole = {**task, "limit_train": 24}
    domains[0] = {**domains[0], "tasks": [whole]}
    same = graph_of({**config, "domains": domains}, trials)
    domains[0] = {**domains[0], "tasks": [task["path"]]}
    plain = graph_of({**config, "domains": domains}, trials)
    assert list(same.jobs) == list(plain.jobs)  # a limit above the size changes nothing


def test_on_the_command_line(folder, tmp_path, monkeypatch, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(
        f"models: [{folder / 'model'}]\nmethods: [none]\ndomains: [{{name: d, corpus: {folder / 'cs.txt'}}}]\n"
    )
    monkeypatch.setattr("acclimate.study.forecast.Backend", lambda: World().backend())
    asked = (monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--dry-run")
    code, out, _ = call(*asked)
    assert code == 0 and "0 of 1 jobs are done; their duration is unknown" in out
    assert not (tmp_path / "out").exists()
    code, _, said = call(*asked, "--shard", "1/2")
    assert code == 2 and "remove --shard" in said
