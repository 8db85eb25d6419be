from __future__ import annotations

import pytest

from acclimate import progress
from acclimate.progress import Progress, ProgressLines, format_duration
from acclimate.training.progress import TrainingBar


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_short_work_shows_nothing(capfd):
    with Progress("Working", 3) as bar:
        for i in range(3):
            bar.at(i)
    with Progress("Working", None, enabled=False, patience=0) as bar:
        bar.at(1)
    assert capfd.readouterr() == ("", "")


def test_long_work_shows_on_stderr(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for total in (10, None):
        with Progress("Working", total, unit="tokens", patience=0) as bar:
            bar.at(4)
        captured = capfd.readouterr()
        assert captured.out == "" and "Working" in captured.err


def test_a_log_gets_lines(capfd, clock):
    with Progress("Working", 1_000_000, unit="tokens") as bar:
        for clock[0], count in ((0, 0), (5, 50_000), (10, 100_000), (12, 120_000), (20, 200_000)):
            bar.at(count)
        clock[0] = 100
        bar.at(950_000)
        clock[0] = 101
        bar.at(1_000_000)
    assert capfd.readouterr().err.splitlines() == [
        "Working: 100,000 of 1,000,000 tokens, 10 %, 0:10 min, about 1:30 min left",
        "Working: 200,000 of 1,000,000 tokens, 20 %, 0:20 min, about 1:20 min left",
        "Working: 950,000 of 1,000,000 tokens, 95 %, 1:40 min, about 0:05 min left",
        "Working: 1,000,000 of 1,000,000 tokens, 100 %, 1:41 min",
    ]


def test_the_last_line_is_not_said_twice_and_the_end_may_move(capfd, clock):
    with Progress("Working", 100, unit="steps") as bar:
        bar.at(0)
        bar.expect(50)
        clock[0] = 10
        bar.at(50)
    assert capfd.readouterr().err == "Working: 50 of 50 steps, 100 %, 0:10 min\n"


def test_a_bar_moves_its_end(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress("Working", 10, unit="tokens", patience=0) as bar:
        bar.at(4)
        bar.expect(8)
        bar.at(5)
    assert "5/8" in capfd.readouterr().err


def test_lines_become_rare_but_never_stop(capfd, clock):
    lines = ProgressLines("Working", None, unit="documents")
    for clock[0] in range(0, 4 * 3600):
        lines.at(clock[0])
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "Working: 10 documents, 0:10 min"
    assert 4 * 3600 / 300 <= len(said) <= 4 * 3600 / 300 + 12
    assert said[-1].endswith("h")


def test_what_a_resumed_run_found_done_does_not_count_as_speed(capfd, clock):
    lines = ProgressLines("Working", 100, unit="steps")
    clock[0] = 2
    lines.at(80)
    clock[0] = 12
    lines.at(90)
    assert capfd.readouterr().err == "Working: 90 of 100 steps, 90 %, 0:12 min, about 0:10 min left\n"


def test_a_log_of_training_says_how_it_ended(capfd):
    with TrainingBar("mlm"):
        pass
    assert capfd.readouterr().err == "mlm: 0 %, 0:00 min\n"
    with TrainingBar("mlm", enabled=False):
        pass
    assert capfd.readouterr().err == ""


def test_spans():
    assert [format_duration(seconds) for seconds in (0, 59.6, 3599, 3600, 36_061)] == [
        "0:00 min", "1:00 min", "59:59 min", "1:00 h", "10:01 h",
    ]  # fmt: skip
