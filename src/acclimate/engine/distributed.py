"""The processes of one run, started by ``torchrun`` or ``accelerate launch``; usually there is one.

Every process holds the whole model, unless it is sharded (:mod:`acclimate.engine.sharding`), and reads its share of
the micro-batches of each step. Gradients, and sums over the batch, are added up over the processes, so that loss,
gradients and negatives of a step are the same as with one process and the same batch. ``DistributedDataParallel`` is
not suitable: it averages over processes, which is another loss where they read different numbers of tokens, and it
requires every forward pass to go through its wrapper.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from acclimate.base.device import TRUE_VALUES, default_device, preserve_rng_state
from acclimate.base.errors import Stopped, UserError, environment_integer, first_line, warn_once
from acclimate.base.waiting import Wait
from acclimate.models.families import gradient_may_change

N = TypeVar("N", int, float)

TIMEOUT = timedelta(hours=12)
"""Maximum time that processes wait for one another, for example while the first one tokenizes a whole corpus.

It does not apply to their start, for which :data:`acclimate.base.waiting.SILENT_SECONDS` is the limit."""
CONNECT_SECONDS = 2.0
"""Maximum seconds of an attempt to reach the first process, during which no signal acts."""
SLOW_SECONDS = 10.0
"""Seconds after which a wait for a step of the others is reported."""
BLOCKED = timedelta(seconds=1)
"""Maximum time that a process waits for the others before it looks for signals."""
BUCKET_BYTES, MAX_RUNNING_BUCKETS = 25 * 2**20, 4
"""Bytes of gradients that are summed at a time, and sums that run at a time; their product is the extra memory."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that a launcher sets for each process."""
FSDP_VARIABLE, DEEPSPEED_VARIABLE = "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, as seen from this one.

    Attributes:
        rank: Index of this process, from 0.
        size: Number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.rank == 0

    def share(self, items: Sequence) -> list:
        """Return the items of this process: every ``size``-th one, from the ``rank``-th."""
        return list(items[self.rank :: self.size])

    def assign_balanced(self, items: Sequence, sizes: Sequence[float]) -> list:
        """Return the items of this process if each item, the largest first, goes to the process with the least load.

        Args:
            items: The items, the same in all processes.
            sizes: The load of each item.
        """
        loads = [0.0] * self.size
        mine = []
        for place in sorted(range(len(items)), key=lambda place: -sizes[place]):
            taker = loads.index(min(loads))
            loads[taker] += sizes[place]
            if taker == self.rank:
                mine.append(items[place])
        return mine

    def add(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of each tensor over the processes; all tensors have the same type and device."""
        if self.size == 1 or not values:
            return list(values)
        flat = torch.cat([value.detach().reshape(-1) for value in values])
        _finish(dist.all_reduce(flat, async_op=True))
        parts = flat.split([value.numel() for value in values])
        return [part.view_as(value) for part, value in zip(parts, values, strict=True)]

    def add_numbers(self, numbers: Sequence[N]) -> list[N]:
        """Return the sum of each number over the processes; nothing waits for an accelerator."""
        if self.size == 1 or not numbers:
            return list(numbers)
        total = torch.tensor(list(numbers), dtype=torch.float64 if float in map(type, numbers) else torch.int64)
        _finish(dist.all_reduce(total, group=_host_group(dist.group.WORLD), async_op=True), on_host=True)
        found: list[N] = total.tolist()
        return found

    def gather_numbers(self, number: int) -> list[int]:
        """Return the number of each process; nothing waits for an accelerator."""
        numbers = [0] * self.size
        numbers[self.rank] = number
        return self.add_numbers(numbers)

    @contextmanager
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> Iterator[LastPass]:
        """Return a context at whose end the gradients are summed over the processes, in place.

        A gradient that this process lacks counts as zero. The context yields another one, for the last backward pass:
        in it a sum begins as soon as its gradients are complete. No other communication may run in that pass.
        """
        if self.size == 1:
            yield nullcontext
            return
        sums = _GradientSums(parameters)
        yield sums.last_pass
        sums.finish()

    def before_loss(self) -> None:
        """Prepare the head of the model for the loss of a micro-batch; weights that are whole need nothing."""

    def gather_weights(self) -> None:
        """Make the weights of a model whole in the first process, to write it; weights that are whole need nothing."""

    def release_weights(self) -> None:
        """Free what :meth:`gather_weights` has gathered."""

    def align(self, batches: Sequence[Any]) -> Sequence[Any]:
        """Return the micro-batches that this process reads in a step, its own ones first.

        The others contribute nothing: they are there for passes that all processes have to run together.
        """
        return batches

    def least(self, number: int) -> int:
        """Return the minimum over the processes, where all have to do the same; else the number itself."""
        return number

    def copy_from_first(self, values: Iterable[Tensor]) -> None:
        """Overwrite tensors with the first process's."""
        for value in values if self.size > 1 else ():
            shared = value.detach().contiguous()
            _finish(dist.broadcast(shared, 0, async_op=True))
            if shared.data_ptr() != value.data_ptr():
                value.detach().copy_(shared)

    def gather(self, part: Tensor) -> tuple[Tensor, slice]:
        """Concatenate the parts of all processes along the first dimension.

        Args:
            part: (n, ...), where n may differ between processes; detached.

        Returns:
            (sum of n, ...), the same in all processes, and the slice that is the part of this process.
        """
        if self.size == 1:
            return part, slice(0, len(part))
        sizes = self.gather_numbers(len(part))
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        _finish(dist.all_gather(parts, padded, async_op=True))
        start = sum(sizes[: self.rank])
        joined = torch.cat([other[:size] for other, size in zip(parts, sizes, strict=True)])
        return joined, slice(start, start + len(part))

    @contextmanager
    def shared_random_state(self) -> Iterator[None]:
        """Give all processes the same random numbers inside the block; does nothing in a single process."""
        if self.size == 1:
            yield
            return
        seed = int(self.broadcast_value(float(torch.randint(2**31, (1,)))))
        with preserve_rng_state():
            torch.manual_seed(seed)
            yield

    def seed_dropout(self, seed: int) -> None:
        """Give each process its own random numbers."""
        torch.manual_seed(seed + 7_919 * self.rank)

    def continue_run(self, processes: int, seed: int) -> None:
        """Prepare for a run that had another number of processes before its interruption, and warn of it.

        A process without a saved generator state gets one from ``seed``.
        """
        if processes == self.size:
            return
        if self.first:
            log.warning(
                "This run had %d process(es) and continues with %d. Its texts and masks are the same, but the dropout "
                "of its steps and the rounding of sums are not.",
                processes,
                self.size,
            )
        self.seed_dropout(seed)

    def broadcast_value(self, value: float) -> float:
        """Return the value of the first process, for decisions that depend on a clock; waits for no accelerator."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        _finish(dist.broadcast(shared, 0, group=_host_group(dist.group.WORLD), async_op=True), on_host=True)
        return float(shared)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the first process run the block before the others, which then find its results in a cache."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def all(self, condition: bool) -> bool:
        """Return whether a condition holds in every process."""
        return self.add_numbers([int(condition)])[0] == self.size

    def wait(self) -> None:
        """Wait until every process has reached this point."""
        if self.size > 1:
            self.add_numbers([0])  # on the host, where a signal ends the wait


@lru_cache(maxsize=1)
def _host_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a group of all processes that exchanges numbers of the CPU, between which the host waits for no GPU."""
    if dist.get_backend(world) == "gloo":
        return world
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return group


def _finish(work: dist.Work | None, on_host: bool = False) -> None:
    """Wait for an operation of all processes.

    Args:
        work: The operation.
        on_host: Whether it is one of the host. On an accelerator it is only waited for by what follows there.

    Raises:
        Stopped: If a signal asks to end.
        UserError: If another process has ended.
    """
    assert work is not None
    wait = Wait("the other processes of this run", "see their output", TIMEOUT.total_seconds(), SLOW_SECONDS)
    interrupted = on_host or dist.get_backend() == "gloo"
    while True:
        try:
            work.wait(*[BLOCKED] * interrupted)
            return
        except RuntimeError as error:
            if not work.is_completed():  # only the wait has ended
                try:
                    wait.pause(0)
                except Stopped as stopped:
                    atexit.register(_exit_now, 128 + stopped.number)  # torch would wait for the others at the end
                    raise
                continue
            raise UserError(
                f"Another process of this run has ended or cannot be reached ({first_line(error)}); see its output, "
                "and run the same command again."
            ) from error


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    os._exit(code)


LastPass = Callable[[], AbstractContextManager[None]]


class _GradientSums:
    """The sums of the gradients of one step over the processes, in buckets.

    All processes sum the same buckets in the same order, that in which a backward pass usually completes them. Small
    gradients of a bucket are joined; one that is as large as a bucket is summed where it is.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._buckets = _make_buckets(trained[::-1])
        self._bucket = {id(one): number for number, bucket in enumerate(self._buckets) for one in bucket}
        self._missing = [len(bucket) for bucket in self._buckets]
        self._next = 0
        self._running: deque[tuple[dist.Work, Tensor, list[Tensor]]] = deque()

    @contextmanager
    def last_pass(self) -> Iterator[None]:
        """Return a context in which each bucket is summed when its gradients are complete."""
        parameters = [parameter for bucket in self._buckets for parameter in bucket]
        hooks = [parameter.register_post_accumulate_grad_hook(self._complete) for parameter in parameters]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def finish(self) -> None:
        """Sum the remaining buckets, and wait for all sums."""
        while self._next < len(self._buckets):
            self._start()
        while self._running:
            self._end_oldest()

    @torch.no_grad()
    def _complete(self, parameter: Tensor) -> None:
        if parameter.grad is None or gradient_may_change(parameter):
            return
        self._missing[self._bucket[id(parameter)]] -= 1
        while self._next < len(self._buckets) and not self._missing[self._next]:
            self._start()

    def _start(self) -> None:
        """Start the sum of the next bucket."""
        gradients = []
        for parameter in self._buckets[self._next]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        self._next += 1
        in_place = len(gradients) == 1 and gradients[0].is_contiguous()
        joined = gradients[0] if in_place else torch.cat([gradient.reshape(-1) for gradient in gradients])
        if len(self._running) == MAX_RUNNING_BUCKETS:
            self._end_oldest()
        work = dist.all_reduce(joined, async_op=True)
        assert work is not None
        self._running.append((work, joined, [] if in_place else gradients))

    def _end_oldest(self) -> None:
        work, joined, gradients = self._running.popleft()
        _finish(work)
        if gradients:
            for gradient, total in zip(gradients, joined.split([one.numel() for one in gradients]), strict=True):
                gradient.copy_(total.view_as(gradient))


def _make_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Divide parameters, in their order, into buckets of one type; a larger one is a bucket by itself."""
    buckets: list[list[nn.Parameter]] = []
    held = 0
    for parameter in parameters:
        if not buckets or held + parameter.nbytes > BUCKET_BYTES or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            held = 0
        buckets[-1].append(parameter)
        held += parameter.nbytes
    return buckets


def wants_sharding(fsdp: bool) -> bool:
    """Return whether the option or ``accelerate launch`` asks for sharded parameters (FSDP2).

    Args:
        fsdp: The option of the user.

    Raises:
        UserError: If another kind of sharding is asked for, or there is one process.
    """
    launched = os.environ.get(FSDP_VARIABLE, "").lower() in TRUE_VALUES
    if os.environ.get(DEEPSPEED_VARIABLE, "").lower() in TRUE_VALUES:
        raise UserError("DeepSpeed is not supported. Shard parameters with --fsdp, started with torchrun.")
    alone = environment_integer("WORLD_SIZE", 1) <= 1
    if alone and fsdp:
        raise UserError("--fsdp divides the model among several processes; start them with torchrun, or remove it.")
    if alone and launched:
        warn_once("FSDP has no effect on one process; start several to divide the model among them.")
    if alone or not (fsdp or launched):
        return False
    if launched and os.environ.get("FSDP_VERSION", "1") != "2":
        raise UserError("FSDP of version 1 is not supported; add --fsdp_version 2, or set fsdp_version: 2.")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "").lower() in TRUE_VALUES:
        raise UserError("Parameters cannot be offloaded to the CPU; set fsdp_offload_params to false.")
    if os.environ.get("FSDP_ACTIVATION_CHECKPOINTING", "").lower() in TRUE_VALUES:
        raise UserError("Use --gradient-checkpointing, and set fsdp_activation_checkpointing to false.")
    return True


@contextmanager
def hidden_sharding() -> Iterator[None]:
    """Return a context in which ``accelerate`` does not see that it was launched with FSDP.

    Otherwise the ``Trainer`` would shard the model itself, for a forward pass that the engine does not use.
    """
    value = os.environ.pop(FSDP_VARIABLE, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[FSDP_VARIABLE] = value


def join_process_group(fsdp: bool | None = None) -> ProcessGroup:
    """Return the processes of this run, and connect them if they are not connected yet.

    Args:
        fsdp: Whether the user asks for sharded parameters; None for a training that needs whole ones.

    Raises:
        UserError: If parameters would be sharded in a way that is not possible, or the variables of a launcher are
            wrong or incomplete.
    """
    for name in RANK_VARIABLES:
        environment_integer(name)
        if not os.environ.get(name, "0").strip():
            del os.environ[name]  # empty, as a file of settings may leave it, which other libraries take for a number
    if (
        (fsdp or {FSDP_VARIABLE, DEEPSPEED_VARIABLE} & os.environ.keys())
        and wants_sharding(bool(fsdp))
        and fsdp is None
    ):
        raise UserError(
            "Only adapt and pretrain can shard parameters (FSDP); here every process keeps the whole model. Start it "
            "with torchrun or accelerate launch --multi_gpu."
        )
    return ProcessGroup() if environment_integer("WORLD_SIZE", 1) <= 1 else _connect_processes()


def _connect_processes() -> ProcessGroup:
    from accelerate import PartialState  # chooses the same backend as the Trainer

    try:
        _store = None if dist.is_initialized() else _meet_processes(environment_integer("WORLD_SIZE"))
        state = PartialState(cpu=default_device().type == "cpu", timeout=TIMEOUT)
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(
            f"The processes of this run cannot be connected: {first_line(error).rstrip('.')}. Start it with torchrun, "
            "or unset WORLD_SIZE."
        ) from error
    return ProcessGroup(state.process_index, state.num_processes)


def _meet_processes(size: int) -> dist.Store | None:
    """Wait until all processes have started, and return the store where they meet; keep it until they connect.

    The connection itself waits in C++, where no signal acts.

    Args:
        size: Number of processes.

    Raises:
        Stopped: If a signal asks to end.
        UserError: If one is missing after ten minutes.
        RuntimeError: If this is the first process and its port is not free.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not address or not port.isdigit():
        return None  # what is missing is reported by the connection
    rank = environment_integer("RANK")
    with_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    keys = [f"acclimate/{attempt}/{number}" for number in range(size)]
    wait = Wait(f"{size} processes (WORLD_SIZE={size}) at {address}:{port}", "unset WORLD_SIZE to run alone")
    is_first = rank == 0 and not with_agent
    store, timeout = None, timedelta(seconds=CONNECT_SECONDS)
    while True:
        try:
            if store is None:
                if not is_first:  # torch prints a page for each attempt that fails
                    socket.create_connection((address, int(port)), CONNECT_SECONDS).close()
                store = dist.TCPStore(
                    address, int(port), size, is_first, timeout, wait_for_workers=False, multi_tenant=is_first
                )
                store.set(keys[rank], "")
            if store.check(keys):
                return store
        except (RuntimeError, OSError):
            if is_first:
                raise
            store = None
        wait.pause(0.1)


def leave_process_group() -> None:
    """Disconnect from the other processes at the end of a run; does nothing in a single process.

    Do not call it after an error: the others may be waiting in a collective operation until the launcher terminates
    them.
    """
    _host_group.cache_clear()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
