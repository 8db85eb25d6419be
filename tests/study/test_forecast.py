"""Dry runs: remaining jobs and estimated time."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from acclimate.base.errors import UserError, check_stop
from acclimate.results.study import ProbeResult, ProbeScore
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.executor import JobStore
from acclimate.study.forecast import forecast
from acclimate.study.pricing import TIMED, TIMING_SHARE, TYPICAL, Durations
from tests.cases import each
from tests.servers import serve
from tests.study.fakes import World, graph_of, of_kind, study
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


def test_text_that_is_yet_to_be_written_is_planned_and_not_paid(folder, tmp_path):
    with serve() as server:
        written = {"generate": {"by": server.url, "model": "m", "prompt": "On {text}"}}
        values = study(folder, methods=["none", {"name": "mlm", "transform": written}])
        plan = forecast(StudyConfig.of(values), tmp_path / "out", World().backend())
        assert not server.bodies
    assert not plan.estimates and plan.calls.calls > 0 and plan.calls.prompts[0].startswith("On ")
    lines = list(map(str, plan.show()))
    assert any(f"{plan.calls.calls:,} calls, about" in line for line in lines) and "jobs are done" not in str(lines)


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


class Machine(World):
    """A world with a clock, in which each job takes as long as its text says.

    Attributes:
        now: The time in seconds.
        prices: Seconds of each call so far, by kind.
    """

    now = 0.0
    speed, per_row, per_document, per_probe, loading = 50.0, 0.4, 0.25, 0.02, 3.0
    cost = {"lm": 1.0, "mlm": 1.0, "dga": 2.5}

    def clock(self) -> float:
        return self.now

    def adapt(self, model, corpus, method="mlm", out=None, **options):
        made = super().adapt(model, corpus, method, out, **options)
        size = sum(map(len, corpus))  # one token per character
        made.tokens = int(options.get("epochs", 1) * size)
        if options.get("max_minutes"):
            made.tokens = int(60 * options["max_minutes"] * self.speed / self.cost[made.method])
        elif options.get("tokens") or options.get("steps"):
            made.tokens = options.get("tokens") or 10 * options["steps"]
        made.steps = made.tokens // 10
        made.seconds = self.cost[made.method] * made.tokens / self.speed
        made.rows = SimpleNamespace(tokens=size)
        self.now += self.loading + made.seconds
        return made

    def finetune(self, model, task, *, seed=0, **options):
        made = super().finetune(model, task, seed=seed, **options)
        made.training_seconds = self.per_row * options.get("epochs", 5) * len(task.train)
        made.evaluation_seconds = self.per_row / 3 * (len(task.test) + len(task.dev))
        made.seconds = self.loading + made.training_seconds + made.evaluation_seconds
        self.now += made.seconds
        return made

    def lm_loss(self, model, texts, **options):
        self.now += self.loading + self.per_document * len(texts)
        return super().lm_loss(model, texts, **options)

    def probe(self, model, task, *, states=None, **options):
        """Answer as fine-tuning does; a folder of states is read the second time."""
        known = states is not None and states.exists()
        self.now += 0.1 * self.loading if known else self.loading + self.per_probe * (len(task.train) + len(task.test))
        if states is not None:
            states.mkdir(parents=True, exist_ok=True)
        self.calls["probe"] += 1
        run = World.finetune(self, model, task, seed=options["draws"][0])
        self.calls["finetune"] -= 1
        found = {name: value for name, value in run.metrics.items() if isinstance(value, float)}
        score = ProbeScore(probe="linear", labels=None, draw=0, train_size=9, metrics=found, predicted=run.predicted)
        answers = {"task": task.name, "gold": run.gold, "labels": run.labels, "scoring": run.scoring}
        return ProbeResult(kind="single_label", unit="labels per class", scores=[score], **answers)

    def backend(self, **functions):
        return super().backend(**{"probe": self.probe, **functions})


@pytest.mark.needs("dga")
@each("budget", [{"tokens": 30_000}, {"steps": 4_000}, {"epochs": 2}, {"max_minutes": 3}, {}])
def test_a_timed_machine_takes_as_long_as_it_was_estimated(folder, tmp_path, no_report, budget):
    values = study(folder, methods=["none", "mlm", "dga"], adapt_seeds=2)
    values["adapt"] = {"max_length": 64, **budget}
    machine = Machine()
    config, out = StudyConfig.of(values), tmp_path / f"out-{len(budget)}-{sum(budget.values())}"
    plan = forecast(config, out, machine.backend(), timed=True, clock=machine.clock)
    assert not out.exists() and {one.source for one in plan.estimates} == {TIMED}
    # lm first, whose speed is that of methods that cannot be timed; two sizes of each of the others
    assert [machine.calls[kind] for kind in ("adapt", "finetune", "lm_loss")] == [3, 2, 2]
    assert plan.prepared == {
        "dga": "timed on at most 2,000 documents is that, before the first step, importance of heads is measured"
    }
    assert set(plan.rows) == {"none", "mlm", "dga"}
    began = machine.now
    compare(config, out, progress=False, backend=machine.backend())
    assert plan.seconds == pytest.approx(machine.now - began, rel=0.03)


def test_a_kind_without_pilots_is_estimated_by_its_typical_cost_and_a_failure_is_reported(folder, tmp_path, capsys):
    machine = Machine()
    values = study(folder, methods=["none", "mlm"], evaluate={"documents": 20, "drift": True})
    plan = forecast(
        StudyConfig.of(values), tmp_path / "out", machine.backend(), timed=True, clock=machine.clock, progress=True
    )
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Timing")]
    assert len(lines) == 4 and lines[0] == "Timing adapt · model · lm on this machine (1 of 4) ..."
    by_kind = {one.kind: one for one in plan.estimates}
    tuned = by_kind["finetune"].seconds / by_kind["finetune"].jobs
    assert by_kind["drift"].source == TYPICAL and by_kind["drift"].seconds == pytest.approx(0.5 * tuned)
    machine.fail_on["adapt"] = UserError("this model cannot be adapted")
    plan = forecast(StudyConfig.of(values), tmp_path / "out", machine.backend(), timed=True, clock=machine.clock)
    assert plan.notes == [
        f"adapt · model · {name} could not be timed: this model cannot be adapted" for name in ("lm", "mlm")
    ]
    assert {one.kind: one.source for one in plan.estimates}["adapt"] == TYPICAL and plan.seconds


def test_a_method_that_cannot_be_timed_by_itself_takes_its_usual_multiple_of_lm(folder):
    jobs = of_kind(graph_of(study(folder)), "adapt", method="dga, no contrast")
    machine, durations = Machine(), Durations()
    machine.fail_on["adapt dga"] = UserError("its preparation takes too long")
    durations.time(jobs, machine.backend(), clock=machine.clock)
    (seconds, source), tokens = durations.estimate(jobs[0]), 200_000
    assert source == TIMED
    assert seconds == pytest.approx(machine.loading + jobs[0].relative_cost * tokens / machine.speed, rel=0.01)


def test_timing_ends_after_a_tenth_of_the_time(folder):
    """Also within a job: work looks at the clock where it looks for signals."""
    graph, machine = graph_of(study(folder)), Machine()

    def slow(*args, **options):
        for _ in range(10_000):
            time.sleep(0.001)
            check_stop()

    durations, began = Durations(), time.monotonic()
    durations.time(graph.jobs.values(), machine.backend(adapt=slow), 0.05)
    assert time.monotonic() - began < 60 * 0.05 * TIMING_SHARE + 0.5
    assert not machine.calls and len(durations.problems) == 5
    assert set(map(str, durations.problems.values())) == {
        "it takes longer than there is time for", "there was no time left to time it"
    }  # fmt: skip


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
    monkeypatch.setenv("COLUMNS", "120")
    asked = (monkeypatch, capsys, "compare", path, "--out", tmp_path / "out", "--dry-run")
    code, out, _ = call(*asked)
    assert code == 0 and "0 of 1 jobs are done; the others take about 0.1 min on one process, a rough estimate" in out
    assert "unknown" not in out and "this machine, timed" in out
    assert out.endswith(f"Next, to run it: acclimate compare {path} --out {tmp_path / 'out'}\n")
    assert not (tmp_path / "out").exists()
    code, _, said = call(*asked, "--shard", "1/2")
    assert code == 2 and "remove --shard" in said
