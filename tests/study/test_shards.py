"""Studies shared by several processes: every job runs exactly once, and no claim outlives its process."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.base.locks import Claim
from acclimate.cli import main as cli
from acclimate.results.study import JobCounts, StudyResults
from acclimate.study import executor
from acclimate.study.compare import compare
from acclimate.study.executor import JobStore
from acclimate.study.graph import Shard, with_needs
from acclimate.study.job import Job, JobGraph, Place
from tests.cases import each
from tests.study.fakes import World, graph_of, of_kind, study
from tests.study.sharing import Process

JOBS = 2 + 6 + 9


def run(folder, out, world=None, **options):
    return compare(study(folder), out, progress=False, backend=(world or World()).backend(), **options)


def calls(world: World) -> int:
    return sum(world.calls[kind] for kind in ("adapt", "lm_loss", "finetune"))


class Step(Job):
    """A job that belongs to no study."""

    number: int
    model: Job | None = None

    name = "step"

    def run(self, context):
        raise NotImplementedError


class Adaptation(Step):
    name, cost = "adaptation", 10.0


class Head(Step):
    name, cost, is_shared_base = "head", 10.0, True


@st.composite
def plans(draw) -> dict[str, Job]:
    """Jobs as in a study: possibly a head, adaptations that need it, and jobs that read any of these models."""
    graph = JobGraph()
    head = graph.add(Head(place=Place(), number=0)) if draw(st.booleans()) else None
    models = [head]
    for number in range(draw(st.integers(0, 4))):
        models.append(graph.add(Adaptation(place=Place(), number=number, model=head)))
    for number in range(draw(st.integers(0, 12))):
        graph.add(Step(place=Place(), number=number, model=draw(st.sampled_from(models))))
    return graph.jobs


def test_the_claim_of_a_job_that_was_finished_before_a_kill_is_removed(folder, tmp_path):
    run(folder, tmp_path / "out")
    path = next(tmp_path.glob("out/*/????????????????.json")).with_suffix(".claim")

    def take_and_die() -> None:
        claim = Claim(path)
        assert claim.take()
        os._exit(0)

    killed = multiprocessing.get_context("fork").Process(target=take_and_die)
    killed.start()
    killed.join()
    assert path.exists()
    world = World()
    run(folder, tmp_path / "out", world)
    assert not path.exists() and calls(world) == 0


def test_reports_of_the_user_are_not_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    for name in ("results.json", "results.md", "report.html"):
        (tmp_path / "out" / name).write_text("mine")
        with pytest.raises(UserError, match=rf"{name}' is not the result of a study"):
            run(tmp_path, tmp_path / "out")
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "jobs").mkdir()
    (tmp_path / "out" / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"it is damaged: delete results\.json"):
        run(tmp_path, tmp_path / "out")


@given(plans(), st.integers(1, 9))
def test_shards_hold_each_job_once_and_keep_adaptations_with_their_jobs(jobs, count):
    shares = [Shard(index, count).select(jobs) for index in range(1, count + 1)]
    assert sorted(key for share in shares for key in share) == sorted(jobs)
    assert shares == [Shard(index, count).select(dict(jobs)) for index in range(1, count + 1)]
    place = {key: index for index, share in enumerate(shares) for key in share}
    heads = {key for key, job in jobs.items() if isinstance(job, Head)}
    for key, job in jobs.items():
        if job.needs and job.needs.key not in heads:
            assert place[key] == place[job.needs.key]
    order = list(jobs)
    for share in shares:
        assert share == sorted(share, key=order.index)
        full = with_needs(share, jobs)
        assert set(full) - set(share) <= heads  # apart from heads, a share contains everything that it needs
        assert {jobs[key].needs.key for key in full if jobs[key].needs} <= set(full)


def test_shares_cost_about_the_same(folder):
    jobs = graph_of(study(folder)).jobs
    shares = [Shard(index, 2).select(jobs) for index in (1, 2)]
    assert [sum(jobs[key].name == "adapt" for key in share) for share in shares] == [1, 1]
    assert min(map(len, shares)) >= JOBS // 2 - 1


@each("text", ["0/4", "5/4", "x", "", "1", "1/", "-1/2", "1/0", "1.5/2", "1/2/3", "²/3"])
def test_texts_that_are_not_a_shard(folder, tmp_path, text):
    world = World()
    with pytest.raises(UserError, match=r"not a shard. Give i/n"):
        run(folder, tmp_path / "out", world, shard=text)
    assert calls(world) == 0


def test_the_last_shard_writes_the_report_and_gathering_computes_nothing(no_report, folder, tmp_path, capsys):
    out = tmp_path / "out"
    worlds = [World() for _ in range(3)]
    for index, world in enumerate(worlds[:2], 1):
        results = compare(study(folder), out, backend=world.backend(), shard=f"{index}/3")
        assert not (out / "results.json").exists()
        assert results["jobs"]["missing"] == JOBS - sum(calls(world) for world in worlds)
    assert "Shard 2/3 is finished" in capsys.readouterr().err
    run(folder, out, worlds[2], shard="3/3")
    assert sum(calls(world) for world in worlds) == JOBS
    written = json.loads((out / "results.json").read_text())
    whole = run(folder, tmp_path / "whole")
    for key in ("scores", "losses", "adaptations"):
        assert written[key] == whole[key]
    gather = World()
    assert run(folder, out, gather)["jobs"]["reused"] == JOBS and calls(gather) == 0
    assert [path.name for path in (out / "jobs").iterdir() if path.suffix != ".json"] == []


@pytest.mark.slow
def test_more_shards_than_work(no_report, folder, tmp_path):
    worlds = [World() for _ in range(9)]
    for index, world in enumerate(worlds, 1):
        run(folder, tmp_path / "out", world, shard=f"{index}/9")
    assert sum(calls(world) for world in worlds) == JOBS and 0 in [calls(world) for world in worlds]
    assert (tmp_path / "out" / "results.json").exists()


@pytest.mark.needs("dga")
def test_a_shard_with_a_failed_job_reports_it_and_writes_no_report(no_report, folder, tmp_path):
    for index in (1, 2):
        world = World()
        world.fail_on["adapt dga"] = UserError("The loss is nan.")
        try:
            run(folder, tmp_path / "out", world, shard=f"{index}/2")
        except UserError as error:
            assert "1 of " in str(error) and "The loss is nan." in str(error)
            failed = index
    assert not (tmp_path / "out" / "results.json").exists()
    run(folder, tmp_path / "out", shard=f"{failed}/2")
    assert (tmp_path / "out" / "results.json").exists()


def test_report_only(folder, tmp_path, capsys):
    out, world = tmp_path / "out", World()
    with pytest.raises(UserError, match="No job of this study is finished"):
        run(folder, out, world, report_only=True)
    with pytest.raises(UserError, match="give one of them"):
        run(folder, out, world, report_only=True, shard="1/2")
    first = World()
    run(folder, out, first, shard="1/2")
    results = compare(study(folder), out, backend=world.backend(), report_only=True)
    assert calls(world) == 0
    left = JOBS - calls(first)
    assert results["jobs"]["missing"] == left == len(results["failures"])
    assert json.loads((out / "results.json").read_text())["jobs"]["missing"] == left
    assert results["failures"][0]["job"] in (out / "report.html").read_text()
    said = capsys.readouterr().err
    assert f"{left} of {JOBS} jobs of the study are left" in said and results["failures"][0]["job"] in said


def work(folder) -> list[tuple[str, ...]]:
    """Return pairs of process and job."""
    return [tuple(line.split(" ", 1)) for line in (folder / "journal").read_text().splitlines()]


@pytest.mark.parametrize("shards", [[None] * 3, ["1/2", "2/2", None]])
def test_processes_share_a_folder_and_repeat_nothing(no_report, folder, tmp_path, shards):
    # The model lacks a head, which all jobs in all shards need.
    processes = [Process(tmp_path, f"process{i}", 0.05, shard=shard) for i, shard in enumerate(shards)]
    assert [process.end() for process in processes] == [0, 0, 0], [process.log.read_text() for process in processes]
    done = work(tmp_path)
    assert len({what for _, what in done}) == len(done) == JOBS + 1
    assert len({who for who, _ in done}) == 3
    assert json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]["missing"] == 0
    assert [path.name for path in (tmp_path / "out" / "jobs").iterdir() if path.suffix != ".json"] == []


def test_the_claim_of_a_killed_process_is_taken_over(no_report, folder, tmp_path):
    stuck = Process(tmp_path, "stuck", endless="adapt")
    stuck.wait_for(" adapt ", tmp_path / "journal")
    other = Process(tmp_path, "other")  # has to wait, since all jobs need the head that is being trained
    assert f"(pid {stuck.pid} on " in other.wait_for("waiting for other processes")
    assert not (tmp_path / "out" / "results.json").exists()
    stuck.kill()
    assert other.end() == 0
    heads = [who for who, what in work(tmp_path) if what.startswith("adapt ['none'")]
    assert heads == [str(stuck.pid), str(other.pid)]
    assert (tmp_path / "out" / "results.json").exists()


def test_a_job_that_failed_elsewhere_during_this_run_is_not_tried_again(no_report, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "POLL", 0.0)
    out, world = tmp_path / "out", World()
    store = JobStore(out)
    job = of_kind(graph_of(study(folder), world), "adapt")[0]
    claim = store.claim(job.key)
    assert claim.take()

    def elsewhere(seconds):
        store.fail(job, "no memory", 1.0)
        claim.release()

    monkeypatch.setattr("acclimate.study.executor.time.sleep", elsewhere)
    with pytest.raises(UserError, match=r"1 of 17 jobs failed.*no memory"):
        run(folder, out, world)
    assert world.calls["adapt"] == 1
    run(folder, out, again := World())  # the next run tries again
    assert again.calls["adapt"] == 1


def test_the_command_line(monkeypatch, tmp_path, capsys):
    asked = {}

    def fake(config, out, **options):
        asked.update(options)
        return StudyResults(name="small", jobs=JobCounts(total=9, done=2, reused=3, left=4))

    monkeypatch.setattr("acclimate.study.described.compare", fake)
    for extra, said in ((["--shard", "2/4"], "4 of 9 jobs are left"), (["--report-only"], "Report: ")):
        asked.clear()
        monkeypatch.setattr("sys.argv", ["acclimate", "compare", "study.yaml", "--out", str(tmp_path), *extra])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None) and said in capsys.readouterr().out
        assert asked == {
            "shard": extra[1] if len(extra) > 1 else None,
            "report_only": len(extra) == 1,
            "keep": None,
            "report_to": None,
            "settings": None,
            "only": (),
            "backend": None,
            "progress": True,
            "workers": None,
            "per_gpu": None,
            "executor": "local",
            "executor_settings": None,
            "require": (),
        }
