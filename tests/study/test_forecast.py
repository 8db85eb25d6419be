"""What is left of a study, without doing any of it."""

from __future__ import annotations

import pytest

from acclimate.study import StudyConfig, compare
from acclimate.study.cells import CellStore
from acclimate.study.forecast import forecast
from acclimate.study.plan import make_plan
from tests.study.fakes import World, study
from tests.study.searching import Trials, searching, write_task
from tests.test_cli import call


def shown(plan):
    return {(stretch.part, stretch.kind): (stretch.cells, stretch.done) for stretch in plan.stretches}


def test_nothing_done_and_nothing_known(folder, tmp_path):
    world = World()
    plan = forecast(StudyConfig.of(study(folder)), tmp_path / "out", world.parts())
    assert shown(plan) == {("study", "loss"): (6, 0), ("study", "adapt"): (2, 0), ("study", "finetune"): (9, 0)}
    assert plan.seconds is None and not plan.guessed
    assert not world.calls and not (tmp_path / "out").exists()


def test_what_is_done_says_how_long_the_rest_takes(folder, tmp_path, no_report, monkeypatch):
    plain = CellStore.finish

    def finish(self, cell, result, seconds):
        took = {"finetune": 30 if cell.labels["method"] == "mlm" else 10, "adapt": 100, "loss": 1}
        plain(self, cell, result, took[cell.kind])

    monkeypatch.setattr(CellStore, "finish", finish)
    compare(study(folder, seeds=1, methods=["none", "mlm"]), tmp_path / "out", progress=False, parts=World().parts())
    plan = forecast(StudyConfig.of(study(folder)), tmp_path / "out", World().parts())
    assert shown(plan) == {("study", "loss"): (6, 4), ("study", "adapt"): (2, 1), ("study", "finetune"): (9, 2)}
    # Fine-tunings of none take 10 s and of mlm 30 s; dga, of which none was done, is taken for the mean of all.
    seconds = {stretch.kind: stretch.seconds for stretch in plan.stretches}
    assert seconds["finetune"] == pytest.approx(2 * 10 + 2 * 30 + 3 * 20)
    assert seconds["adapt"] == pytest.approx(100)
    assert plan.seconds == pytest.approx(sum(seconds.values()))
    done = forecast(StudyConfig.of(study(folder, seeds=1, methods=["none", "mlm"])), tmp_path / "out", World().parts())
    assert done.seconds == 0


def test_a_search_comes_first_and_what_follows_it_is_a_guess(folder, tmp_path, no_report):
    config = StudyConfig.of(searching(folder))
    plan = forecast(config, tmp_path / "out", Trials().parts())
    assert plan.guessed
    counts = {("search 1", "finetune"): (12, 0), ("search 1", "adapt"): (1, 0)}
    counts |= {("study", "loss"): (6 - 2, 0), ("study", "finetune"): (6, 0)}
    assert shown(plan) == counts
    compare(config, tmp_path / "out", progress=False, parts=Trials().parts())
    plan = forecast(config, tmp_path / "out", Trials().parts())
    assert not plan.guessed and all(cells == done for cells, done in shown(plan).values())


def test_limits_of_a_task(folder, tmp_path, no_report):
    write_task(folder / "task")
    task = {"path": str(folder / "task"), "limit_train": 8, "limit_test": 100}
    domains = [{"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}]
    config = searching(folder, domains=domains, search=None, methods=["none"])
    trials = Trials()
    results = compare(config, tmp_path / "out", progress=False, parts=trials.parts())
    assert results["notes"] == [
        "Of task only a part was read, drawn at random once for all models and seeds: 8 of 24 rows of train. Scores "
        "on it cannot be compared with those on the whole."
    ]
    assert {score["train_size"] for score in results["scores"]} == {8}
    whole = {**task, "limit_train": 24}
    domains[0] = {**domains[0], "tasks": [whole]}
    same = make_plan(StudyConfig.of({**config, "domains": domains}), trials.parts())
    domains[0] = {**domains[0], "tasks": [task["path"]]}
    plain = make_plan(StudyConfig.of({**config, "domains": domains}), trials.parts())
    assert list(same.cells) == list(plain.cells)  # a limit above the size is none


def test_on_the_command_line(folder, tmp_path, monkeypatch, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(
        f"models: [{folder / 'model'}]\nmethods: [none]\ndomains: [{{name: d, corpus: {folder / 'cs.txt'}}}]\n"
    )
    monkeypatch.setattr("acclimate.study.forecast.Parts", lambda: World().parts())
    asked = (monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--dry-run")
    code, out, _ = call(*asked)
    assert code == 0 and "0 of 1 cells are done; no finished cell of each kind says yet" in out
    assert not (tmp_path / "out").exists()
    code, _, said = call(*asked, "--shard", "1/2")
    assert code == 2 and "leave out --shard" in said
