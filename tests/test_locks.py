"""A claim excludes other processes, names its owner, and ends with its process, even if that is killed."""

from __future__ import annotations

import errno
import multiprocessing
import socket
import time

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from acclimate.adaptation.adapt import adapt
from acclimate.base import locks, waiting
from acclimate.base.device import default_device
from acclimate.base.errors import UserError
from acclimate.base.locks import Claim, output_lock
from acclimate.data.documents import Corpus
from acclimate.engine.distributed import join_process_group
from acclimate.tasks.finetune import finetune
from acclimate.tasks.training_cache import cache_lock
from tests.cases import each
from tests.tiny import TEXTS

FORK = multiprocessing.get_context("fork")


class Holder:
    """A process that holds a lock until it is killed."""

    def __init__(self, hold, machine: str = ""):
        ready = FORK.Event()
        self._process = FORK.Process(target=self._run, args=(hold, machine, ready), daemon=True)
        self._process.start()
        assert ready.wait(30)
        self.pid = self._process.pid

    @staticmethod
    def _run(hold, machine, ready) -> None:
        if machine:
            socket.gethostname = lambda: machine
        with hold():
            ready.set()
            time.sleep(1000)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs" / "adapted"


def test_a_claim_is_exclusive_until_released(tmp_path):
    first, second = Claim(tmp_path / "a.claim"), Claim(tmp_path / "a.claim")
    assert first.owner() is None
    assert first.take() and not second.take()
    assert second.owner() == first.owner() and abs(first.owner().seen - time.time()) < 60
    assert Claim(tmp_path / "b.claim").take()
    first.release()
    assert not first.path.exists() and second.take()


def test_the_owner_is_named_and_its_end_is_detected(out):
    holder = Holder(lambda: output_lock(out))
    with pytest.raises(UserError) as caught, output_lock(out):
        pass
    message = str(caught.value)
    assert f"Another run is writing '{out}' (pid {holder.pid} on " in message and "choose another folder" in message
    assert "\n" not in message
    holder.kill()
    with output_lock(out):
        assert Claim(out.parent / ".adapted.lock").owner().pid != holder.pid
    assert list(out.parent.iterdir()) == []


@pytest.fixture
def no_grace_period(monkeypatch):
    """Abandoned lock files count as such at once."""
    monkeypatch.setattr(locks, "UNOWNED_SECONDS", 0.01)
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(waiting, "SAY_SECONDS", 0.0)
    monkeypatch.setattr("filelock._soft.MALFORMED_LOCK_AGE_THRESHOLD", 0.01)


def own_record(folder) -> bytes:
    claim = Claim(folder / "example")
    assert claim.take()
    record = claim.path.read_bytes()
    claim.release()
    return record


OTHER_RECORDS = [
    b"",
    b"\n",
    b"1\nnode7\n",
    b"filelock/2\npid=1\nhost=node7\nmode=exclusive\n",
    b"abandoned\n",
    b"\0" * 2000,
]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=100) | st.sampled_from(OTHER_RECORDS), share=st.none() | st.floats(0, 0.99))
def test_a_lock_file_of_any_bytes_is_taken_over(no_grace_period, tmp_path, content, share):
    """Also a record that is cut short anywhere, as by a kill while it is written."""
    if share is not None:
        record = own_record(tmp_path)
        content = record[: int(share * len(record))]
        assume(not content.endswith(b"duration=120.0\n"))  # a whole record without the start time of the process
    out = tmp_path / "out"
    (tmp_path / ".out.lock").write_bytes(content)
    with output_lock(out):
        assert Claim(tmp_path / ".out.lock").owner() is not None
    assert list(tmp_path.iterdir()) == []


def test_an_empty_claim_in_the_cache_is_named_and_taken_over(no_grace_period, tmp_path, caplog):
    claim = tmp_path / ".entry.claim"
    claim.touch()
    with cache_lock(tmp_path / "entry"):
        assert Claim(claim).owner() is not None
    assert not claim.exists() and f"the lock file is '{claim}'" in caplog.text


def test_a_lock_file_that_is_just_being_written_is_respected(tmp_path):
    (tmp_path / ".out.lock").touch()
    claim = Claim(tmp_path / ".out.lock")
    assert not claim.take() and not claim.take()
    assert (tmp_path / ".out.lock").read_bytes() == b""


@each("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_variables_of_launchers_that_are_no_numbers_are_one_line(out, monkeypatch, name):
    monkeypatch.setenv(name, "abc")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    message = f"{name} is 'abc'; set it to an integer"
    with pytest.raises(UserError, match=message):
        join_process_group()
    with pytest.raises(UserError, match=message), output_lock(out):
        join_process_group()
        default_device()


def test_an_error_releases_the_lock(out):
    with pytest.raises(KeyboardInterrupt), output_lock(out):
        raise KeyboardInterrupt
    with output_lock(out.parent / "." / "adapted"), pytest.raises(UserError, match="Another run"), output_lock(out):
        pass


@pytest.mark.slow
def test_a_claim_of_another_machine_expires_without_signs_of_life(out, monkeypatch):
    monkeypatch.setattr(locks, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.1)
    holder = Holder(lambda: output_lock(out), machine="node7")
    claim = Claim(out.parent / ".adapted.lock")
    end = time.monotonic() + 2.5
    while time.monotonic() < end:  # the owner is alive, so the claim does not expire
        assert not claim.take()
        time.sleep(0.1)
    with pytest.raises(UserError, match=rf"pid {holder.pid} on node7"), output_lock(out):
        pass
    holder.kill()
    assert not Claim(claim.path).take()  # not expired yet
    began = time.monotonic()
    with output_lock(out):
        assert 0.5 < time.monotonic() - began < 30


def test_the_end_of_a_child_process_does_not_release_the_claim(tmp_path):
    claim = Claim(tmp_path / "a.claim")
    assert claim.take()
    child = FORK.Process(target=lambda: None)
    child.start()
    child.join()
    assert claim.path.exists() and not Claim(claim.path).take()


def test_a_lock_file_with_other_settings_is_an_error(tmp_path, monkeypatch):
    holder = Claim(tmp_path / "a.claim")
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    assert holder.take()
    monkeypatch.undo()
    monkeypatch.setattr(locks, "LEASE_SECONDS", 7.0)
    with pytest.raises(UserError, match="another version of acclimate"):
        Claim(holder.path).take()


def test_read_only_folders_are_not_locked(out, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match=r"Cannot write next to.*Choose another folder"),
        output_lock(tmp_path / "file/x"),
    ):
        pass

    def refuse(self):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Claim, "take", refuse)
    with output_lock(out):
        pass


def test_one_lock_for_all_processes_of_a_distributed_run(out, monkeypatch):
    with output_lock(out):
        monkeypatch.setenv("RANK", "1")
        with output_lock(out):
            pass
        assert (out.parent / ".adapted.lock").exists()


def test_an_empty_rank_is_ignored(out, monkeypatch):
    monkeypatch.setenv("RANK", "")

    @locks.with_output_lock
    def write(out):
        return (out.parent / f".{out.name}.lock").exists()

    assert write(out)


def test_adapt_and_finetune_do_not_write_a_locked_folder(tiny_bert, tmp_path):
    out = tmp_path / "out"
    options = {"steps": 1, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}
    holder = Holder(lambda: output_lock(out))
    with pytest.raises(UserError, match=rf"Another run is writing '{out}' \(pid {holder.pid} on"):
        adapt(tiny_bert, Corpus.of(TEXTS), "mlm", out, **options)
    with pytest.raises(UserError, match="Another run is writing"):
        finetune(tiny_bert, tmp_path / "task", out=out)
    with pytest.raises(UserError, match="task"):  # without an output folder there is no lock
        finetune(tiny_bert, tmp_path / "task")
    assert [path.name for path in tmp_path.iterdir()] == [".out.lock"]
    holder.kill()
    assert adapt(tiny_bert, Corpus.of(TEXTS), "mlm", out=out, **options).steps == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
