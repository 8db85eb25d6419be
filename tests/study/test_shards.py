"""A study that several processes compute: no cell twice, none forgotten, and no claim outlives its process."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import cli
from acclimate.errors import UserError
from acclimate.study import StudyConfig, compare, runner
from acclimate.study.cells import Cell, CellStore, Kind
from acclimate.study.plan import make_plan
from acclimate.study.shards import Shard, with_needs
from tests.cases import each
from tests.study.fakes import World, study
from tests.study.sharing import Process

CELLS = 2 + 6 + 9


def run(folder, out, world=None, **options):
    return compare(study(folder), out, progress=False, parts=(world or World()).parts(), **options)


def calls(world: World) -> int:
    return sum(world.calls[kind] for kind in ("adapt", "loss", "finetune"))


@st.composite
def plans(draw) -> dict[str, Cell]:
    """Cells as a study lays them out: perhaps a head, adaptations that need it, and what reads any of them."""
    cells = []
    head = None
    if draw(st.booleans()):
        cells.append(Cell("adapt", {"name": "head"}))
        head = cells[0].key
    bases = [head]
    for number in range(draw(st.integers(0, 4))):
        cells.append(Cell("adapt", {"name": number}, needs=head))
        bases.append(cells[-1].key)
    for number in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from([kind for kind in get_args(Kind) if kind != "adapt"]))
        cells.append(Cell(kind, {"name": number}, needs=draw(st.sampled_from(bases))))
    return {cell.key: cell for cell in cells}


@given(plans(), st.integers(1, 9))
def test_the_shards_hold_each_cell_once_and_adaptations_whole(cells, count):
    shares = [Shard(index, count).own(cells) for index in range(1, count + 1)]
    assert sorted(key for share in shares for key in share) == sorted(cells)
    assert shares == [Shard(index, count).own(dict(cells)) for index in range(1, count + 1)]
    place = {key: index for index, share in enumerate(shares) for key in share}
    heads = {cell.needs for cell in cells.values() if cell.kind == "adapt" and cell.needs}
    for key, cell in cells.items():
        if cell.needs and cell.needs not in heads:
            assert place[key] == place[cell.needs]
    order = list(cells)
    for share in shares:
        assert share == sorted(share, key=order.index)
        full = with_needs(share, cells)
        assert set(full) - set(share) <= heads  # all else that a share needs is its own
        assert {cells[key].needs for key in full} <= {*full, None}


def test_shares_cost_about_the_same(folder):
    cells = make_plan(StudyConfig.of(study(folder)), World().parts()).cells
    adaptations = [sum(cells[key].kind == "adapt" for key in Shard(i, 2).own(cells)) for i in (1, 2)]
    sizes = [len(Shard(i, 2).own(cells)) for i in (1, 2)]
    assert adaptations == [1, 1] and min(sizes) >= CELLS // 2 - 1


@each("text", ["0/4", "5/4", "x", "", "1", "1/", "-1/2", "1/0", "1.5/2", "1/2/3", "²/3"])
def test_what_is_no_shard(folder, tmp_path, text):
    world = World()
    with pytest.raises(UserError, match=r"no shard. Give i/n"):
        run(folder, tmp_path / "out", world, shard=text)
    assert calls(world) == 0


def test_the_last_shard_writes_the_report_and_gathering_computes_nothing(no_report, folder, tmp_path, capsys):
    out = tmp_path / "out"
    worlds = [World() for _ in range(3)]
    for index, world in enumerate(worlds[:2], 1):
        results = compare(study(folder), out, parts=world.parts(), shard=f"{index}/3")
        assert not (out / "results.json").exists()
        assert results["cells"]["missing"] == CELLS - sum(calls(world) for world in worlds)
    assert "Shard 2/3 is through" in capsys.readouterr().err
    run(folder, out, worlds[2], shard="3/3")
    assert sum(calls(world) for world in worlds) == CELLS
    written = json.loads((out / "results.json").read_text())
    whole = run(folder, tmp_path / "whole")
    for key in ("scores", "losses", "adaptations"):
        assert written[key] == whole[key]
    gather = World()
    assert run(folder, out, gather)["cells"]["reused"] == CELLS and calls(gather) == 0
    assert [path.name for path in (out / "cells").iterdir() if path.suffix != ".json"] == []


def test_more_shards_than_work(no_report, folder, tmp_path):
    worlds = [World() for _ in range(9)]
    for index, world in enumerate(worlds, 1):
        run(folder, tmp_path / "out", world, shard=f"{index}/9")
    assert sum(calls(world) for world in worlds) == CELLS and 0 in [calls(world) for world in worlds]
    assert (tmp_path / "out" / "results.json").exists()


def test_a_shard_with_a_failed_cell_says_so_and_writes_no_report(no_report, folder, tmp_path):
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


def test_only_a_report(folder, tmp_path, capsys):
    out, world = tmp_path / "out", World()
    with pytest.raises(UserError, match="No cell of this study is finished"):
        run(folder, out, world, report_only=True)
    with pytest.raises(UserError, match="give one of them"):
        run(folder, out, world, report_only=True, shard="1/2")
    first = World()
    run(folder, out, first, shard="1/2")
    results = compare(study(folder), out, parts=world.parts(), report_only=True)
    assert calls(world) == 0
    left = CELLS - calls(first)
    assert results["cells"]["missing"] == left == len(results["failures"])
    assert json.loads((out / "results.json").read_text())["cells"]["missing"] == left
    assert results["failures"][0]["cell"] in (out / "report.html").read_text()
    said = capsys.readouterr().err
    assert f"{left} of {CELLS} cells of the study are left" in said and results["failures"][0]["cell"] in said


def work(folder) -> list[tuple[str, ...]]:
    """Who did what, as (process, piece of work)."""
    return [tuple(line.split(" ", 1)) for line in (folder / "journal").read_text().splitlines()]


@pytest.mark.parametrize("shards", [[None] * 3, ["1/2", "2/2", None]])
def test_processes_share_a_folder_and_do_nothing_twice(no_report, folder, tmp_path, shards):
    # The model lacks a head, which everything in every shard needs.
    processes = [Process(tmp_path, f"process{i}", 0.05, shard=shard) for i, shard in enumerate(shards)]
    assert [process.end() for process in processes] == [0, 0, 0], [process.log.read_text() for process in processes]
    done = work(tmp_path)
    assert len({what for _, what in done}) == len(done) == CELLS + 1
    assert len({who for who, _ in done}) == 3
    assert json.loads((tmp_path / "out" / "results.json").read_text())["cells"]["missing"] == 0
    assert [path.name for path in (tmp_path / "out" / "cells").iterdir() if path.suffix != ".json"] == []


def test_the_claim_of_a_killed_process_is_taken_over(no_report, folder, tmp_path):
    stuck = Process(tmp_path, "stuck", endless="adapt")
    stuck.wait_for(" adapt ", tmp_path / "journal")
    other = Process(tmp_path, "other")  # can do nothing, for everything needs the head that is being made
    assert f"(pid {stuck.pid} on " in other.wait_for("waiting for other processes")
    assert not (tmp_path / "out" / "results.json").exists()
    stuck.kill()
    assert other.end() == 0
    heads = [who for who, what in work(tmp_path) if what.startswith("adapt ['none'")]
    assert heads == [str(stuck.pid), str(other.pid)]
    assert (tmp_path / "out" / "results.json").exists()


def test_what_failed_elsewhere_during_this_run_is_not_tried_again(no_report, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "POLL", 0.0)
    out, world = tmp_path / "out", World()
    store = CellStore(out)
    plan = make_plan(StudyConfig.of(study(folder)), world.parts())
    cell = next(cell for cell in plan.cells.values() if cell.kind == "adapt")
    claim = store.claim(cell)
    assert claim.take()

    def elsewhere(seconds):
        store.fail(cell, "no memory", 1.0)
        claim.release()

    monkeypatch.setattr("acclimate.study.runner.time.sleep", elsewhere)
    with pytest.raises(UserError, match=r"1 of 17 cells failed.*no memory"):
        run(folder, out, world)
    assert world.calls["adapt"] == 1
    run(folder, out, again := World())  # the next run tries once more
    assert again.calls["adapt"] == 1


def test_the_command_line(monkeypatch, tmp_path, capsys):
    asked = {}

    def fake(study, out, **options):
        asked.update(options)
        return {"cells": {"total": 9, "done": 2, "reused": 3, "left": 4}}

    monkeypatch.setattr("acclimate.study.compare", fake)
    for extra, said in ((["--shard", "2/4"], "4 of 9 cells are left"), (["--report-only"], "Report: ")):
        asked.clear()
        monkeypatch.setattr("sys.argv", ["acclimate", "compare", "study.yaml", "--out", str(tmp_path), *extra])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None) and said in capsys.readouterr().out
        assert asked == {
            "shard": extra[1] if len(extra) > 1 else None,
            "report_only": len(extra) == 1,
            "progress": True,
        }
