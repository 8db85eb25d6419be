"""Making a study fit into a time: which changes come first, that the result fits, and what is said."""

from __future__ import annotations

import re
import shlex
import sys
from functools import partial

import pytest

from acclimate.base.errors import UserError
from acclimate.study import described
from acclimate.study.changes import change_values
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.fitting import ENOUGH_TOKENS, FEWEST_TOKENS, RESERVE, all_jobs, fit
from tests.cases import each
from tests.study.fakes import files, read, study, write_task
from tests.study.test_forecast import Machine
from tests.test_cli import call

ROWS, BATCH = 700, 1
"""Train rows and batch size: 700 steps per epoch, as 11,186 rows in batches of 16 have."""


@pytest.fixture
def machine(monkeypatch, no_report):
    """A machine on which a pass over the corpus takes 150 s and an epoch of the task 45 s."""
    made = Machine()
    made.per_row, made.speed, made.loading, made.per_probe = 0.064, 4_000.0, 1.0, 0.008
    for module in ("compare", "fitting", "forecast"):
        monkeypatch.setattr(sys.modules[f"acclimate.study.{module}"], "Backend", made.backend)
    monkeypatch.setattr(described, "fit", partial(fit, clock=made.clock))
    return made


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A study of a corpus of 600,000 tokens and a large task."""
    place = files(tmp_path_factory.mktemp("large"))
    (place / "cs.txt").write_text("".join(f"{number:06d} {'x' * 592}\n" for number in range(1_000)))
    write_task(
        place / "task", "task", train=[f"text {n}" for n in range(ROWS)], test=[f"test {n}" for n in range(150)]
    )
    task = str(place / "task")
    values = study(
        place, methods=["none", "mlm"], seeds=5, adapt_seeds=2, adapt={}, general=[], finetune={"batch_size": BATCH}
    )
    return {**values, "domains": [{"name": "cs", "corpus": str(place / "cs.txt"), "tasks": [task]}], "search": True}


def fitted(values, minutes, machine):
    return fit(values, minutes, machine.backend(), progress=False, clock=machine.clock)


def seconds_of(values, out, machine) -> float:
    before = machine.now
    compare(values, out, progress=False, backend=machine.backend())
    return machine.now - before


@pytest.mark.slow
@each("minutes", [90, 35, 14, 6, 3])
def test_a_study_that_was_made_to_fit_fits(large, tmp_path, machine, minutes):
    machine.now = 0.0
    machine.calls.clear()
    machine.arguments.clear()
    found = fitted(large, minutes, machine)
    assert machine.now < 0.1 * 60 * minutes, "timing takes a tenth of the time at most"
    assert machine.calls["finetune"] <= 4 and max(one.get("epochs", 0) for one in machine.arguments) <= 1
    taken = seconds_of(found.study, tmp_path / str(minutes), machine)
    assert 0.5 * minutes < taken / 60 <= minutes * (1 - RESERVE / 2)


def test_what_costs_the_least_evidence_is_changed_first(large, machine):
    seen = []
    for minutes in (90, 60, 45, 14, 9, 6, 3):
        made = fitted(large, minutes, machine).study
        task = made["domains"][0]["tasks"][0]
        task = {} if isinstance(task, str) else task
        found = {"epochs": task.get("epochs", 5), "seeds": made["seeds"], "rows": task.get("limit_train", ROWS)}
        found |= {"search": made["search"], "quick": made["evaluate"].get("quick", False)}
        seen.append(list(found.values()))
        assert made["adapt"].get("tokens", 10**9) >= (ENOUGH_TOKENS if found["search"] else FEWEST_TOKENS)
    assert seen == [
        [5, 5, ROWS, True, False],
        [5, 5, ROWS, True, False],  # an adaptation reads less
        [3, 5, ROWS, True, False],
        [1, 4, ROWS, True, False],
        [1, 4, 350, True, False],
        [1, 5, 350, False, False],
        [5, 3, ROWS, False, True],
    ]


def test_the_words_name_the_changes_and_the_command_makes_them(large, machine, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["acclimate", "compare", "--minutes", "20", "--task=t", "--dry-run", "--minutes=3"]
    )
    found = fitted(large, 20, machine)
    assert found.note.startswith("To fit into 20 minutes: 1 epoch of fine-tuning on task instead of 5")
    words = shlex.split(found.note.rpartition(": ")[2])
    assert words[:3] == ["acclimate", "compare", "--task=t"]
    given = dict(word.split("=", 1) for word in words[4::2])
    assert change_values(large, given) == found.study
    assert "minutes are enough for the whole study" in fitted(large, 900, machine).note


def test_where_nothing_fits_the_error_says_what_does(large, machine):
    machine.speed = 200.0
    with pytest.raises(
        UserError, match=r"^2 minutes are too short: with 1 epoch of .*3 seeds instead of 5.*"
    ) as caught:
        fitted(large, 2, machine)
    message = str(caught.value)
    enough, quick = (int(message.split(before)[1].split()[0]) for before in ("needs about ", "answer in "))
    assert quick < enough and message.endswith(f"--quick --minutes {quick}")
    assert not fitted(large, enough + 1, machine).study["evaluate"].get("quick")
    assert fitted(large, quick + 1, machine).study["evaluate"]["quick"]
    with pytest.raises(UserError, match="could not be timed: there was no time left to time it"):
        fitted(large, 0.1, machine)
    with pytest.raises(UserError, match="--minutes sets the budget"):
        fitted({**large, "adapt": {"tokens": 9}}, 3, machine)


def test_the_command_times_once_and_resumes(machine, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    machine.per_row = 4.8
    out = tmp_path / "out"
    command = ["compare", "--model", "model", "--corpus", "cs.txt", "--task", "intent", "--methods", "mlm"]
    command += ["--out", out]
    code, said, _ = call(monkeypatch, capsys, *command, "--minutes", 20, "--dry-run")
    assert code == 0 and "To fit into 20 minutes: " in " ".join(said.split()) and not out.exists()
    code, _, err = call(monkeypatch, capsys, *command, "--minutes", 20)
    assert code == 0, err
    assert "To fit into 20 minutes: " in err and "reads the corpus once" not in err
    done = machine.calls.total()
    assert call(monkeypatch, capsys, *command, "--minutes", 30)[0] == 0 and machine.calls.total() == done
    for arguments, message in (
        (["--minutes", 6, "--seeds", 3], "describes another study"),
        (["--minutes", 6, "--report-only", "--out", tmp_path / "new"], "--minutes runs a part of the study"),
        (["--minutes", 6, "--tokens", 9000, "--out", tmp_path / "new"], "--minutes sets the budget"),
    ):
        code, _, err = call(monkeypatch, capsys, *command, *arguments)
        assert code == 2 and message in err and len(err.splitlines()) == 1
    code, _, err = call(monkeypatch, capsys, "compare", out / "study.yaml", "--minutes", 9, "--out", out)
    assert code == 2 and "remove --minutes, or the file" in err


def test_a_quick_study_of_a_long_corpus_can_be_made_to_fit(machine, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "cs.txt").write_text("".join(f"{number:06d} {'x' * 592}\n" for number in range(2_100)))
    command = ["compare", "--model", "model", "--corpus", "cs.txt", "--task", "intent", "--quick", "--dry-run"]
    code, said, err = call(monkeypatch, capsys, *command, "--minutes", 20, "--out", tmp_path / "out")
    assert code == 0 and "20 minutes are enough for the whole study" in " ".join(said.split()), err
    code, said, err = call(monkeypatch, capsys, *command, "--minutes", 8, "--out", tmp_path / "out")
    assert code == 0 and re.search(r"To fit into 8 minutes: .*\d tokens", " ".join(said.split())), said


def test_a_quick_answer_says_so_and_the_full_one_follows_in_the_same_folder(
    machine, folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    out = tmp_path / "out"
    command = [
        "compare",
        "--model",
        "model",
        "--corpus",
        "cs.txt",
        "--task",
        "intent",
        "--methods",
        "mlm",
        "--out",
        out,
    ]
    code, said, err = call(monkeypatch, capsys, *command, "--quick")
    assert code == 0, err
    assert (
        said.splitlines()[-1]
        == f"Next, for the full answer, by fine-tuning: acclimate {shlex.join(map(str, command))}"
    )
    again = ["compare", out / "quick.yaml", "--out", out]
    code, said, err = call(monkeypatch, capsys, *again, "--report-only")
    full = shlex.join(map(str, [*again, "--set", "evaluate.quick=false"]))
    assert code == 0 and said.splitlines()[-1] == f"Next, for the full answer, by fine-tuning: acclimate {full}", err
    assert "A quick answer" in " ".join(said.split())
    assert (machine.calls["finetune"], machine.calls["adapt"], machine.calls["probe"]) == (0, 3, 6)
    results = compare(out / "quick.yaml", out, report_only=True, progress=False)
    assert results.notes[0].startswith("A quick answer") and len(results.scores) == 2
    assert results.scores[1].comparison.is_answered and not results.searches
    code, _, err = call(monkeypatch, capsys, *command)
    assert code == 0, err
    assert machine.calls["adapt"] == 3, "the adaptations are those of the quick answer"
    assert machine.calls["finetune"] == 3 + 10
    code, _, err = call(monkeypatch, capsys, *command, "--quick")
    assert code == 2 and "describes another study" in err


def test_a_quick_study_needs_tasks_and_no_search(large):
    with pytest.raises(UserError, match="remove 'search'"):
        StudyConfig.of({**large, "evaluate": {"quick": True}})
    values = {**large, "search": False, "evaluate": {"quick": True}}
    values["domains"] = [{key: value for key, value in large["domains"][0].items() if key != "tasks"}]
    with pytest.raises(UserError, match="there is no task"):
        StudyConfig.of(values)


def test_all_jobs_are_those_of_search_and_study(large, machine):
    names = [job.name for job in all_jobs(read(large, machine))]
    assert names.count("finetune") == 3 + 10 and names.count("adapt") == 2
