from __future__ import annotations

import pytest

from acclimate.base import progress
from acclimate.base.progress import Progress, format_duration


@pytest.fixture
def clock(monkeypatch):
    """A clock whose time changes only when it is set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_short_work_shows_nothing(capfd):
    with Progress("Working", 3) as bar:
        for i in range(3):
            bar.update(i)
    with Progress("Working", None, enabled=False, delay=0, persistent=True) as bar:
        bar.update(1)
        bar.print("hidden")
    assert capfd.readouterr() == ("", "")


def test_long_work_shows_a_bar_on_stderr(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for total in (10, None):
        with Progress("Working", total, unit="tokens", delay=0) as bar:
            bar.update(4)
        captured = capfd.readouterr()
        assert captured.out == "" and "Working" in captured.err


def test_a_log_gets_lines(capfd, clock):
    with Progress("Working", 1_000_000, unit="tokens") as bar:
        for clock[0], count in ((0, 0), (5, 50_000), (10, 100_000), (12, 120_000), (20, 200_000)):
            bar.update(count)
        clock[0] = 100
        bar.update(950_000)
        clock[0] = 101
        bar.update(1_000_000)
    assert capfd.readouterr().err.splitlines() == [
        "Working: 100,000 of 1,000,000 tokens, 10 %, 0:10 min, about 1:30 min left",
        "Working: 200,000 of 1,000,000 tokens, 20 %, 0:20 min, about 1:20 min left",
        "Working: 950,000 of 1,000,000 tokens, 95 %, 1:40 min, about 0:05 min left",
        "Working: 1,000,000 of 1,000,000 tokens, 100 %, 1:41 min",
    ]


def test_the_last_line_is_not_repeated_and_the_total_may_change(capfd, clock):
    with Progress("Working", 100, unit="steps") as bar:
        bar.update(0)
        bar.set_total(50)
        clock[0] = 10
        bar.update(50)
    assert capfd.readouterr().err == "Working: 50 of 50 steps, 100 %, 0:10 min\n"


def test_a_bar_shows_a_new_total_and_notes(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with Progress("Working", 10, unit="tokens", delay=0) as bar:
        bar.update(4)
        bar.set_total(8)
        bar.update(5, "loss 2.5")
    shown = capfd.readouterr().err
    assert "5/8" in shown and "loss 2.5" in shown
    with Progress("Working", 10, unit="jobs", delay=0) as bar:
        bar.set_note("first job")
    assert "first job" in capfd.readouterr().err


def test_a_paused_bar_comes_back(capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress("Working", 10, unit="jobs", delay=0) as bar:
        bar.update(1)
        bar.pause()
        capfd.readouterr()
        bar.update(2)
        bar.print("[a message]")
    shown = capfd.readouterr().err
    assert "2/10" in shown and "[a message]" in shown


def test_lines_become_rare_but_never_stop(capfd, clock):
    bar = Progress("Working", None, unit="documents")
    for clock[0] in range(0, 4 * 3600):
        bar.update(clock[0])
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Working: 10 documents, 0:10 min"
    assert 4 * 3600 / 300 <= len(lines) <= 4 * 3600 / 300 + 12
    assert lines[-1].endswith("h")


def test_work_done_before_a_resume_does_not_count_as_speed(capfd, clock):
    bar = Progress("Working", 100, unit="steps")
    clock[0] = 2
    bar.update(80)
    clock[0] = 12
    bar.update(90)
    assert capfd.readouterr().err == "Working: 90 of 100 steps, 90 %, 0:12 min, about 0:10 min left\n"


def test_a_persistent_log_gets_a_last_line_unless_the_work_failed(capfd):
    with Progress("mlm", 1.0, persistent=True) as bar:
        bar.update(0.5, "loss 2.5")
    assert capfd.readouterr().err == "mlm: 50 %, loss 2.5, 0:00 min\n"
    with pytest.raises(ValueError), Progress("mlm", 1.0, persistent=True) as bar:
        raise ValueError
    assert capfd.readouterr().err == ""


def test_durations():
    assert [format_duration(seconds) for seconds in (0, 59.6, 3599, 3600, 36_061)] == [
        "0:00 min", "1:00 min", "59:59 min", "1:00 h", "10:01 h",
    ]  # fmt: skip


def test_a_study_in_a_log_shows_the_share_of_each_job_every_half_minute_and_guesses_no_time(capfd, clock):
    with Progress("study", 3, unit="jobs", delay=0, estimated=False) as bar:
        for number, name in enumerate(("finetune · a", "finetune · b")):
            with bar.job(name), Progress("fine-tune", 1.0, enabled=False) as inner:
                for _ in range(100):
                    clock[0] += 1
                    inner.update((clock[0] - 100 * number) / 100)
            bar.update(number + 1)
        with Progress("outside", 1.0, enabled=False) as inner:
            inner.update(0.5)
    lines = capfd.readouterr().err.splitlines()
    assert lines.pop() == "study: 2 of 3 jobs, 67 %, 3:20 min"
    assert lines == [
        f"study: {done} of 3 jobs, {share} %, finetune · {name}: {part} %, {minutes}"
        for done, share, name, times in ((0, 0, "a", ("0:30", "1:00", "1:30")), (1, 33, "b", ("2:10", "2:40", "3:10")))
        for part, minutes in zip((30, 60, 90), (f"{time} min" for time in times), strict=True)
    ]
