"""Tournaments from the plan to the model that is returned, with a fake backend."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from acclimate.base.errors import UserError
from acclimate.base.locks import output_lock
from acclimate.base.options import build
from acclimate.cli.main import app
from acclimate.labs.auto import confirming, race
from acclimate.labs.auto.auto import _State, open_tournament
from acclimate.labs.auto.options import AutoOptions
from acclimate.labs.auto.report import AutoResult
from acclimate.results.requirements import decide, parse_requirements
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.labs.auto.worlds import World, options, run, tournament_files
from tests.labs.auto.worlds import helped as helping
from tests.study.fakes import write_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tournament_files(tmp_path_factory.mktemp("auto"))


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory):
    """Draw no reports, and do not return the memory of each job to the system."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acclimate.study.executor.malloc_trim", lambda: None)
        patch.setattr("acclimate.labs.auto.stages.Stages.write_report", lambda *_, **__: [])
        patch.setattr(race, "MOST_CLAIM_SEEDS", 4)
        # The items of all tests have the same texts, so the cache would count them as read before.
        patch.setattr(confirming, "cache_folder", lambda: Path(tempfile.mkdtemp(dir=tmp_path_factory.getbasetemp())))
        yield


def method_of(folder) -> str:
    return json.loads((folder / "config.json").read_text()).get("method", "none")


@pytest.fixture(scope="module")
def helped(folder, tmp_path_factory):
    """A tournament in which plain training helps, and its world."""
    world = helping()
    out = tmp_path_factory.mktemp("helped") / "out"
    return run(folder, out, world, forget_at_most=0.05, require=["task > 2", "general text <= 0.2"]), world


def test_an_adaptation_that_helps_is_handed_back(helped):
    result, _ = helped
    assert result.winner == "lm" and result.holds
    assert method_of(result.model) == "lm"
    assert 0.05 < result.claim.gain.bound < result.claim.gain.estimate < 0.2
    assert result.claim.forgotten.bound < 0.05
    assert result.dev_gain > 0 and result.shrunken_gain <= result.dev_gain
    assert len(result.plan.entrants) > 2


def test_what_is_required_is_decided_by_the_claim_and_the_limit_is_required_too(helped, folder, tmp_path):
    result, world = helped
    gain, forgotten = result.claim.gain, result.claim.forgotten
    assert result.decision.exit_code == 0
    assert [one.requirement for one in result.decision.requirements] == [
        "task > 2", "general text <= 0.2", "general text <= 0.05",
    ]  # fmt: skip
    shown = f"[{100 * gain.bound:+.1f}, {100 * (2 * gain.estimate - gain.bound):+.1f}]"
    assert shown in result.decision.describe()[0] and f", {forgotten.bound:+.3f}]" in result.decision.describe()[1]
    calls = dict(world.calls)
    same = {"minutes": 30, "tokens": 60_000, "methods": "tapt", "forget_at_most": 0.05, "backend": world.backend()}
    changed = options(folder, result.folder, **same, require="task >= 90")
    open_tournament(build(AutoOptions, **changed), result.folder)  # the same tournament
    assert decide(parse_requirements("task >= 90"), result.bounds(["task"])).exit_code == 1
    with pytest.raises(UserError, match=r"Unknown name in a requirement: 'tsk'\. Did you mean 'task'"):
        run(folder, tmp_path / "out", world, require="tsk > 0")
    assert dict(world.calls) == calls


def test_without_a_claim_nothing_that_is_required_is_decided():
    without = AutoResult(base="bert", minutes=1, plan=None)
    decision = decide(parse_requirements(["task > 0"]), without.bounds(["task", "general text"]))
    assert decision.exit_code == 3 and "no entrant was ahead of it in the race" in decision.describe()[0]


def test_the_claim_reads_other_items_and_seeds_than_the_race(helped):
    result, world = helped
    studies = {name: StudyConfig.load(result.folder / f"{name}.yaml") for name in ("rung-1", "claim")}
    parts = {name: study.domains[0].tasks[0].evaluate_on for name, study in studies.items()}
    assert parts == {"rung-1": "tune", "claim": "confirm"}
    race, claim = (set(study.seeds) for study in studies.values())
    assert len(claim) >= 3 and not race & claim
    assert set(studies["claim"].adapt_seeds) == claim
    raced, claimed = (set().union(*(world.read[seed] for seed in seeds)) for seeds in (race, claim))
    assert not raced & claimed and len(raced | claimed) == 800
    assert all(text.startswith("dev") for text in raced | claimed)


def test_the_search_reads_what_the_race_reads_with_a_seed_of_its_own(helped):
    """And trains the base model only, so the claim is the test that it would be at a rate fixed before."""
    result, world = helped
    trials = [StudyConfig.load(result.folder / f"search-{number}.yaml") for number in (1, 2, 3)]
    claim, rung = (StudyConfig.load(result.folder / f"{name}.yaml") for name in ("claim", "rung-1"))
    assert [study.domains[0].tasks[0].learning_rate for study in trials] == [5e-5, 1e-4, 2e-4]
    assert {study.domains[0].tasks[0].learning_rate for study in (claim, rung)} == {1e-4}
    assert {tuple(study.row_labels) for study in trials} == {("none",)}
    assert {study.domains[0].tasks[0].evaluate_on for study in trials} == {"tune"}
    searched = {seed for study in trials for seed in study.seeds}
    assert not searched & {*claim.seeds, *rung.seeds}
    read = set().union(*(world.read[seed] for seed in searched))
    assert read == set().union(*(world.read[seed] for seed in rung.seeds))
    assert any("chosen with the base model on the items of the race: 0.0001." in note for note in result.notes)


@pytest.mark.parametrize("changes", [{"settings": {"finetune.learning_rate": 1e-4}}, {"settings": {"search": False}}])
def test_there_is_no_search_where_the_rate_is_given(folder, tmp_path, changes):
    world = World()
    plan = run(folder, tmp_path / "out", world, dry_run=True, **changes).plan
    assert not plan.rates and plan.searching == 0.0


def test_a_base_model_that_has_not_learned_is_no_basis_of_a_claim(folder, tmp_path):
    world = helping()
    tune = world.finetune

    def finetune(*args, **given):
        return SimpleNamespace(**vars(tune(*args, **given)), losses=[1 - step / 60 for step in range(20)])

    world.finetune = finetune
    result = run(folder, tmp_path / "out", world)
    assert result.claim.holds and not result.holds and method_of(result.model) == "none"
    assert "not learned its tasks: the training loss on task still fell steeply" in result.verdict()
    assert "--set finetune.epochs=" in result.verdict()


def test_every_rung_has_the_base_model_and_the_cheapest(helped):
    result, _ = helped
    for number in range(len(result.plan.rungs)):
        rows = {row.label for row in result.rows if row.stage == f"rung-{number + 1}"}
        assert {"none", "lm"} <= rows
    assert "lm, half-way" in {row.label for row in result.rows if row.stage == f"rung-{len(result.plan.rungs)}"}


def test_the_report_has_the_race_the_three_gains_and_the_cost(helped):
    result, _ = helped
    page = (result.folder / "report.html").read_text()
    assert "<svg" in page and "The race" in page
    for text in (
        "lm is returned",
        "shrunken for the choice",
        "claimed gain",
        "fresh seeds",
        "of 30 minutes",
        "Before training: 300 documents",
    ):
        assert text in page
    assert json.loads((result.folder / "results.json").read_text())["winner"] == "lm"


def test_the_weights_of_the_race_are_not_kept(helped):
    result, _ = helped
    kept = [path for path in (result.folder / "models").iterdir() if (path / "config.json").exists()]
    assert len(kept) == len(result.claim_seeds)


def test_a_finished_tournament_trains_nothing_again(helped, folder):
    result, world = helped
    before = world.calls.copy()
    again = run(folder, result.folder, world, forget_at_most=0.05)
    assert world.calls == before
    assert again.claim == result.claim and again.rows == result.rows


@pytest.mark.slow
def test_where_nothing_helps_the_base_model_is_handed_back(folder, tmp_path):
    result = run(folder, tmp_path / "out", World(gains={"lm": -0.2, "tapt": -0.2}))
    assert not result.holds
    assert method_of(result.model) == "none"
    assert (result.model / "model.safetensors").read_bytes() == b"weights"
    assert "The base model is returned" in result.verdict()


@pytest.mark.slow
def test_what_forgets_more_than_the_limit_is_not_handed_back(folder, tmp_path):
    world = World(gains={"lm": 0.15}, forgets={"lm": 0.05})
    result = run(folder, tmp_path / "out", world, forget_at_most=0.0515)
    assert result.claim is not None and result.claim.helps and not result.holds
    assert "and the limit is 0.0515" in result.verdict()
    assert method_of(result.model) == "none"


@pytest.mark.slow
def test_what_lost_more_than_the_limit_in_the_race_does_not_win(folder, tmp_path):
    world = World(gains={"lm": 0.15, "tapt": 0.1}, forgets={"lm": 0.3, "lm+interpolation": 0.3})
    result = run(folder, tmp_path / "out", world, forget_at_most=0.1)
    assert result.winner == "tapt"
    assert any(note.startswith("lm lost 0.3") for note in result.notes)


@pytest.mark.slow
def test_an_entrant_that_fails_is_reported_and_the_others_go_on(folder, tmp_path):
    world = World(gains={"lm": 0.12})
    world.fail_on = {"tapt"}
    result = run(folder, tmp_path / "out", world)
    assert {one.label: one.reason for one in result.plan.skipped}["tapt"] == (
        "a short adaptation failed: it does not fit into memory"
    )
    assert result.holds


def test_few_dev_items_are_no_race(tmp_path):
    folder = tournament_files(tmp_path / "data", dev=300)
    world = World(gains={"lm": 0.3})
    result = run(folder, tmp_path / "out", world)
    assert [one.label for one in result.plan.entrants] == ["none", "lm"]
    assert world.calls["pilot"] == 1, "only what can take part is timed"
    assert len(result.plan.skipped) > 2
    assert "there is no race" in result.plan.notes[-1]
    assert result.claim.item_count == 300 and result.holds and not result.rows


def test_few_dev_documents_are_no_race(tmp_path):
    folder = tournament_files(tmp_path / "data")
    path = folder / "task" / "dev.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["document"] = f"d{number % 40}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run(folder, tmp_path / "out", World(gains={"lm": 0.3}))
    assert "800 items of 40 groups" in result.plan.notes[-1] and not result.rows
    assert (result.claim.item_count, result.claim.unit_count) == (800, 40)


@pytest.mark.parametrize("after", [24, *(pytest.param(count, marks=pytest.mark.slow) for count in (9, 14, 36))])
def test_an_interrupted_tournament_ends_as_if_it_had_not_been(helped, folder, tmp_path, after):
    world = helping()
    world.die_after = after
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out", world, forget_at_most=0.05)
    world.die_after = None
    result = run(folder, tmp_path / "out", world, forget_at_most=0.05)
    assert_same(result, helped[0])


@pytest.mark.slow
def test_kill_9_in_two_stages(helped, folder, tmp_path):
    for after in ("9", "12"):
        words = [sys.executable, "-m", "tests.labs.auto.worlds", folder, tmp_path / "out", after]
        assert subprocess.run(words, check=False, timeout=170).returncode == -signal.SIGKILL
    assert_same(run(folder, tmp_path / "out", helping(), forget_at_most=0.05), helped[0])


def assert_same(result, expected):
    assert [(row.label, row.stage, row.gain) for row in result.rows] == [
        (row.label, row.stage, row.gain) for row in expected.rows
    ]
    assert result.claim.gain.estimate == expected.claim.gain.estimate
    assert result.claim_seeds == expected.claim_seeds


@pytest.mark.slow
def test_the_second_claim_on_the_same_items_is_more_careful(tmp_path):
    folder = tournament_files(tmp_path / "data")
    world = World(gains={"lm": 0.12})
    first = run(folder, tmp_path / "out", world)
    shutil.rmtree(tmp_path / "out")
    second = run(folder, tmp_path / "out", world)
    assert (first.claim.reads, second.claim.reads) == (1, 2)
    assert second.claim.confidence == pytest.approx(0.995)
    assert second.claim.gain.bound < first.claim.gain.bound
    assert "read 2 times" in str(second)


@pytest.mark.needs("tsdae")
def test_a_sentence_encoder_also_learns_from_whole_texts(tmp_path):
    folder = tournament_files(tmp_path / "data")
    (folder / "model" / "modules.json").write_text("[]")
    result = run(folder, tmp_path / "out", World(), methods="tsdae", dry_run=True)
    assert [one.label for one in result.plan.entrants] == ["none", "lm", "tsdae"]
    assert result.model is None and "Race, at most" in str(result)


def test_two_tournaments_do_not_share_a_folder(folder, tmp_path):
    with output_lock(tmp_path / "out"), pytest.raises(UserError, match="Another run is writing"):
        run(folder, tmp_path / "out", World())


def test_other_options_need_another_folder(helped, folder):
    with pytest.raises(UserError, match="holds a tournament with other options"):
        run(folder, helped[0].folder, helped[1], forget_at_most=0.06)
    with pytest.raises(UserError, match="give --general"):
        run(folder, helped[0].folder, helped[1], forget_at_most=0.06, general=())


def test_what_cannot_work_later_is_refused_before_the_race(folder, tmp_path):
    with pytest.raises(UserError, match="Unknown method of a tournament: 'electra'"):
        run(folder, tmp_path / "out", World(), methods="tapt,electra")
    with pytest.raises(UserError, match="nowhere"):
        run(folder, tmp_path / "out", World(), instruct=tmp_path / "nowhere")


def test_too_little_time_is_refused_with_what_would_be_enough(folder, tmp_path):
    with pytest.raises(UserError, match=r"0.1 minutes are too short .* needs about \d+ minutes"):
        run(folder, tmp_path / "out", World(), minutes=0.1)
    world = World()
    with pytest.raises(UserError, match=r"could not be timed: .* time.*; give more --minutes"):
        run(folder, tmp_path / "at once", world, minutes=1e-6)
    assert not world.calls


def test_the_command_line_shows_the_plan(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["acclimate.labs.auto.auto"], "Backend", World().backend)
    given = options(folder, tmp_path / "out")
    del given["progress"]
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    result = CliRunner().invoke(app, ["auto", *words, "--dry-run", "--methods", "tapt"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "entrants:" in result.output and "Race, at most" in result.output
    assert not (tmp_path / "out" / "rung-1.yaml").exists()


def test_the_claim_measures_forgetting_on_other_general_texts_than_the_race(helped):
    _, world = helped
    raced, claimed = (world.measured[tokens] for tokens in ("race", "claim"))
    assert raced and claimed and not raced & claimed


@each("change", ["labels", "text", "general", "model"])
def test_data_that_change_between_two_calls_are_noticed(change, tmp_path):
    folder = tournament_files(tmp_path / "data", dev=420)
    run(folder, tmp_path / "out", World(), dry_run=True)
    run(folder, tmp_path / "out", World(), dry_run=True)  # as it was
    files = {
        "labels": "task/dev.jsonl",
        "text": "cs.txt",
        "general": "general.txt",
        "model": "model/model.safetensors",
    }
    path = folder / files[change]
    if change == "labels":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[0]["label"] = next(row["label"] for row in rows if row["label"] != rows[0]["label"])
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_bytes(path.read_bytes() + b"\nmore of it\n")
    with pytest.raises(UserError, match="holds a tournament of other data"):
        run(folder, tmp_path / "out", World(), dry_run=True)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_state_of_another_form_is_an_error_that_names_the_file(helped, data):
    state = json.loads((helped[0].folder / "tournament.json").read_text())
    places = [(state, key) for key in ("plan", "stages", "ends", "running", "name")]
    places += [(state["plan"], key) for key in state["plan"]] + [(state["stages"], key) for key in state["stages"]]
    holder, key = data.draw(st.sampled_from(places))
    value = data.draw(st.sampled_from([5, "abc", [5], {"a": 5}, None, True, ...]))
    if value is ...:
        del holder[key]
    else:
        holder[key] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tournament.json"
        path.write_text(json.dumps(state))
        try:
            _State.open(path, state["options"], state["data"], 1)
        except UserError as error:
            assert "tournament.json" in str(error) and "\n" not in str(error)
        path.write_text(path.read_text()[:-9])
        with pytest.raises(UserError, match="is damaged"):
            _State.open(path, state["options"], state["data"], 1)


@pytest.mark.parametrize(("rows", "batch"), [(1_400, 2), pytest.param(11_200, 16, marks=pytest.mark.slow)])
def test_timing_trains_some_steps_and_a_large_task_is_shortened_to_fit(tmp_path, capsys, rows, batch):
    """An epoch has 700 steps, and no fine-tuning is trained to its end to time it."""
    folder = tournament_files(tmp_path / "data", dev=800)
    write_task(folder / "task", "task", train=[f"train text {number}" for number in range(rows)],
               dev=[f"dev text {number}" for number in range(800)], test=["a", "b"])  # fmt: skip
    world, trained = World(), []
    plain = world.finetune

    def finetune(model, task, *, seed=0, **given):
        made = plain(model, task, seed=seed, **given)
        trained.append(len(task.train) * given["epochs"])
        made.training_seconds, made.evaluation_seconds = 0.16 / batch * trained[-1], 0.0
        return made

    world.finetune = finetune
    given = {"tokens": 60_000, "methods": "tapt", "dry_run": True, "progress": True}
    given["settings"] = {"finetune.batch_size": batch}
    plan = run(folder, tmp_path / "out", world, minutes=600, **given).plan
    assert len(trained) == 2 and max(trained) <= 8 * batch and not plan.settings
    assert plan.prices.scoring == pytest.approx(0.16 * 5 * 700, rel=0.01)
    said = capsys.readouterr().err
    assert "Timing finetune · model · task on this machine" in said and "Timing adapt" in said
    plan = run(folder, tmp_path / "short", world, minutes=100, **given).plan
    assert plan.settings == {"domains.0.tasks.0.epochs": 2}
    assert "2 epochs of fine-tuning on task instead of 5" in plan.notes[0]
    with pytest.raises(UserError, match=r"minutes are too short .*acclimate compare --model .* --quick --out"):
        run(folder, tmp_path / "none", world, minutes=10, **given)


def test_too_few_dev_rows_are_reported_before_anything_is_timed(tmp_path, capsys):
    folder = tournament_files(tmp_path / "data", dev=387)
    world = World()

    def adapt(*args, **given):
        assert "13 more dev rows would allow a race." in " ".join(capsys.readouterr().err.split())
        raise UserError("the test ends here")

    world.adapt = adapt
    with pytest.raises(UserError, match="could not be timed: the test ends here"):
        run(folder, tmp_path / "out", world, progress=True)
