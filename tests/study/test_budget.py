"""The token budget that fits a study into a given time."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from acclimate.base.errors import UserError
from acclimate.study.config import StudyConfig
from acclimate.study.executor import JobStore
from acclimate.study.forecast import RESERVE, fit_budget, forecast
from tests.cases import each
from tests.study.fakes import World, study
from tests.test_cli import call

SPEED = 3_200.0
"""Tokens per second of the fake adaptation."""


class TimedWorld(World):
    """A world whose adaptations know the tokens of their corpus, as those of the package do."""

    corpus_tokens = 10_000_000

    def adapt(self, *args, **options):
        result = super().adapt(*args, **options)
        result.rows = SimpleNamespace(tokens=self.corpus_tokens)
        return result


@pytest.fixture
def world(monkeypatch, no_report):
    """Each fine-tuning takes 30 seconds and each loss 2, as the stored results say."""
    plain = JobStore.finish

    def finish(self, job, result, seconds):
        plain(self, job, result, {"finetune": 30.0, "lm_loss": 2.0}.get(job.name, seconds))

    monkeypatch.setattr(JobStore, "finish", finish)
    return TimedWorld()


def unlimited(folder, **changes):
    values = study(folder, adapt_seeds=2, methods=["none", "mlm"], seeds=4, **changes)
    return {**values, "adapt": {"max_length": 64}}


@each("minutes", [6, 10, 30])
def test_what_the_adaptations_read_takes_the_rest_of_the_time(world, folder, tmp_path, minutes):
    values, out = unlimited(folder), tmp_path / f"out-{minutes}"
    tokens, note = fit_budget(values, out, minutes, progress=False, backend=world.backend())
    left = forecast(StudyConfig.of(values), out, world.backend()).estimates
    fixed = sum(one.seconds for one in left if one.kind != "adapt" and one.done < one.jobs)
    assert fixed == 7 * 30 + 4 * 2  # three of none and four of mlm; domain and general loss of two adapted models
    expected = (60 * minutes * (1 - RESERVE) - fixed) * SPEED / 2
    assert 0.85 * expected < tokens <= expected
    assert f"{tokens:,} tokens, {tokens / world.corpus_tokens:.0%} of the corpus" in note and "2 adaptations" in note
    assert not list((out / "models").glob("*"))  # the pilot left no model behind


def test_a_corpus_that_fits_is_read_once(world, folder, tmp_path):
    world.corpus_tokens = 20_000
    tokens, note = fit_budget(unlimited(folder), tmp_path / "out", 10, progress=False, backend=world.backend())
    assert tokens is None and "enough for one pass" in note


def test_too_little_time_and_a_second_budget_are_refused(world, folder, tmp_path):
    with pytest.raises(
        UserError, match=r"3 minutes are too short: with 11 fine-tunings and measurements, .* than 5 min"
    ):
        fit_budget(unlimited(folder), tmp_path / "out", 3, progress=False, backend=world.backend())
    with pytest.raises(UserError, match="--minutes sets the budget"):
        fit_budget(study(folder), tmp_path / "out", 3, progress=False, backend=world.backend())


def test_the_command_times_once_and_resumes(world, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for module in ("compare", "forecast"):
        monkeypatch.setattr(sys.modules[f"acclimate.study.{module}"], "Backend", world.backend)
    out = tmp_path / "out"
    command = ["compare", "--model", "model", "--corpus", "cs.txt", "--task", "intent", "--methods", "mlm"]
    command += ["--seeds", 2, "--out", out]
    code, _, err = call(monkeypatch, capsys, *command, "--minutes", 10)
    assert code == 0, err
    assert "To fit into 10 minutes, an adaptation reads" in err and "reads the corpus once" not in err
    budget = StudyConfig.load(out / "study.yaml").adapt.tokens
    pilots = [one for one in world.arguments if one["kind"] == "adapt" and "max_minutes" in one]
    runs = [one for one in world.arguments if one["kind"] == "adapt" and one.get("tokens") == budget]
    assert (len(pilots), len(runs), world.calls["finetune"]) == (1, 2, 7)
    done = world.calls.total()
    assert call(monkeypatch, capsys, *command, "--minutes", 20)[0] == 0 and world.calls.total() == done
    for arguments, message in (
        (["--minutes", 10, "--seeds", 3], "describes another study"),
        (["--minutes", 10, "--report-only", "--out", tmp_path / "new"], "--minutes runs a part of the study"),
        (["--minutes", 10, "--tokens", 9000, "--out", tmp_path / "new"], "--minutes sets the budget"),
    ):
        code, _, err = call(monkeypatch, capsys, *command, *arguments)
        assert code == 2 and message in err and len(err.splitlines()) == 1
    code, _, err = call(monkeypatch, capsys, "compare", out / "study.yaml", "--minutes", 9, "--out", out)
    assert code == 2 and "remove --minutes, or the file" in err
