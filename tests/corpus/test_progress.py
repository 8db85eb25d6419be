from __future__ import annotations

from acclimate.corpus.progress import Progress


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
