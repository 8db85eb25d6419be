"""``kill -9`` at any moment, then the same command again: it resumes, with the result of an undisturbed run."""

from __future__ import annotations

import random
import signal

import pytest

from tests.robustness.killed_process import Failure, left_over, results, run, stamps

VERBS = ("adapt", "pretrain", "finetune", "distill", "compare")


def killed(command, folder, at: int) -> bool:
    """Run a command and kill it before its n-th change to the disk; return whether it got that far."""
    ended = run(command, folder, Failure(kill=at))
    assert ended.code in (-signal.SIGKILL, 0), ended.said
    return ended.code != 0


# In the quick suite, the test of seeds below stops and resumes fine-tuning, and tests of studies stop these.
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=() if verb == "adapt" else pytest.mark.slow) for verb in VERBS]
)
def test_a_command_that_is_killed_repeatedly_resumes_with_the_same_result(commands, undisturbed, tmp_path, verb):
    command, (whole, first) = commands[verb], undisturbed(verb)
    expected, folder = results(whole), tmp_path / "cut"
    assert any(name.endswith(".safetensors") for name in expected)
    assert [killed(command, folder, int(first.changes * share)) for share in (0.4, 0.3)] == [True, True]
    found = results(folder) if (folder / "out").exists() else {}
    assert found.items() <= expected.items(), "what is there after a kill is what it will be at the end"
    ended = run(command, folder)
    assert ended.code == 0, ended.said
    assert results(folder) == expected
    assert left_over(folder) == left_over(whole) == []
    before = stamps(folder)
    again = run(command, folder)
    assert again.code == 0 and again.changes < first.changes
    changed = [name for name, stamp in stamps(folder).items() if before[name] != stamp]
    written_anew = ("/out/results", "/out/report", "/out/study.yaml", "README.md")  # a study writes these again
    assert not [name for name in changed if not any(part in name for part in written_anew)]


def test_finished_seeds_are_not_repeated(commands, undisturbed, tmp_path):
    """The second seed is interrupted; the folder and the printed scores of the first do not change."""
    command, (_, first) = commands["finetune"], undisturbed("finetune")
    folder = tmp_path / "cut"
    assert killed(command, folder, int(first.changes * 0.8))
    before = stamps(folder)
    assert any("seed-0" in name for name in before)
    ended = run(command, folder)
    assert ended.code == 0 and ended.said == first.said
    assert {name: stamp for name, stamp in stamps(folder).items() if name in before} == before


@pytest.mark.slow
def test_a_signal_leaves_no_lock_and_a_study_resumes(commands, undisturbed, tmp_path):
    command, (whole, first) = commands["compare"], undisturbed("compare")
    folder = tmp_path / "stopped"
    ended = run(command, folder, Failure(kill=int(first.changes * 0.5), signal=signal.SIGTERM))
    assert ended.code == 128 + signal.SIGTERM and "Stopped by SIGTERM" in ended.said.splitlines()[-1]
    assert not [*folder.rglob("*.lock"), *folder.rglob("*.claim")]
    ended = run(command, folder)
    assert ended.code == 0, ended.said
    assert results(folder) == results(whole) and left_over(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_killed_at_every_change_to_the_disk(commands, undisturbed, tmp_path, verb):
    """Every moment that leaves a different state on the disk; a random forty for commands with many of them."""
    command, (whole, first) = commands[verb], undisturbed(verb)
    expected = results(whole)
    points = range(1, first.changes + 1)
    for at in points if first.changes <= 40 else sorted(random.Random(verb).sample(points, 40)):
        folder = tmp_path / str(at)
        killed(command, folder, at)
        ended = run(command, folder)
        assert ended.code == 0, (at, ended.said)
        assert results(folder) == expected, at
        assert left_over(folder) == [], at
