"""Signals: they first write a checkpoint; a second Ctrl-C stops at once."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import Stopped, check_stop, postpone_stop, stop_on_signals
from acclimate.base.progress import Progress
from acclimate.data.documents import Corpus
from acclimate.engine.callbacks import find_newest_checkpoint
from tests.cases import each
from tests.kills import before_steps, counted
from tests.tiny import TEXTS

SHORT = {"steps": 6, "batch_size": 4, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


def run(model, out, **options):
    return adapt(model, Corpus.of(TEXTS), "mlm", out, **SHORT, **options)


def send(number: int, step: int = 0):
    """Return a function that sends a signal to this process before a step."""
    return lambda state: os.kill(os.getpid(), number) if state.global_step == step else None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_checkpoint_is_written_first(tiny_bert, tmp_path, number):
    whole = run(tiny_bert, tmp_path / "whole")
    with stop_on_signals(), before_steps(send(number, 3)), pytest.raises(Stopped) as caught:
        run(tiny_bert, tmp_path / "out")
    assert caught.value.number == number and caught.value.saved
    kept = find_newest_checkpoint(tmp_path / ".out.work" / "steps")
    assert kept is not None and kept.name == "checkpoint-4"
    assert not (tmp_path / ".out.lock").exists()
    with counted() as steps:
        assert run(tiny_bert, tmp_path / "out").losses == whole.losses
    assert steps == [4, 5]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "out"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_signal_in_the_last_step_does_not_lose_the_result(tiny_bert, tmp_path):
    with stop_on_signals(), before_steps(send(signal.SIGTERM, 5)):
        assert run(tiny_bert, tmp_path / "out").steps == 6
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_second_ctrl_c_stops_at_once_even_if_a_library_swallows_it(tiny_bert, tmp_path, capfd):
    def send_and_swallow(state) -> None:
        for _ in range(2):
            with contextlib.suppress(Stopped):
                os.kill(os.getpid(), signal.SIGINT)

    with stop_on_signals(), before_steps(send_and_swallow), counted() as steps, pytest.raises(Stopped) as caught:
        run(tiny_bert, tmp_path / "out")
    assert steps == [0] and caught.value.saved is False
    assert "Stopping after this step; press Ctrl-C again to stop at once." in capfd.readouterr().err
    with stop_on_signals(), Progress("tokenize", 9, enabled=False) as bar:
        bar.update(1)
        send_and_swallow(None)
        with pytest.raises(Stopped):
            bar.update(2)


@each("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_that_are_ignored_stay_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stop_on_signals():
            os.kill(os.getpid(), number)
            check_stop()
    finally:
        signal.signal(number, before)
    with stop_on_signals(), pytest.raises(Stopped, match=signal.Signals(number).name):
        os.kill(os.getpid(), number)
    with stop_on_signals():  # an earlier signal is forgotten
        check_stop()
    assert signal.getsignal(number) == before


def test_signals_wait_for_the_end_of_the_step_and_a_second_ctrl_c_does_not():
    for first in (signal.SIGTERM, signal.SIGINT):
        with stop_on_signals():
            with postpone_stop():
                os.kill(os.getpid(), first)
                check_stop()
                with pytest.raises(Stopped, match="SIGINT"):
                    os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(Stopped):
                check_stop()
