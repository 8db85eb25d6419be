"""The processes of one run, started by ``torchrun`` or ``accelerate launch``; usually there is one.

Every process holds the whole model and reads its share of the micro-batches of each step. Gradients, and sums over the
batch, are added up over the processes, so that loss, gradients and negatives of a step are those of a single process
with the same batch. ``DistributedDataParallel`` is not suitable: it averages over processes, which is another loss
where they read different numbers of tokens, and it requires every forward pass to go through its wrapper.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from acclimate.device import default_device, preserve_rng_state
from acclimate.errors import UserError, environment_integer, first_line

TIMEOUT = timedelta(hours=12)
"""How long processes wait for one another, for example while the first one tokenizes a whole corpus."""
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_SHARDING_VARIABLES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")


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
        dist.all_reduce(flat)
        parts = flat.split([value.numel() for value in values])
        return [part.view_as(value) for part, value in zip(parts, values, strict=True)]

    def add_numbers(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Return the sum of each number over the processes; with one process, nothing waits for the device."""
        if self.size == 1 or not numbers:
            return list(numbers)
        total: list[int] = self.add([torch.tensor(list(numbers), device=device)])[0].tolist()
        return total

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over the processes, in place; a gradient that this process lacks counts as zero."""
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        for gradient, total in zip(gradients, self.add(gradients), strict=True):
            gradient.copy_(total)

    def gather(self, part: Tensor) -> tuple[Tensor, slice]:
        """Concatenate the parts of all processes along the first dimension.

        Args:
            part: (n, ...), where n may differ between processes; detached.

        Returns:
            (sum of n, ...), the same in all processes, and the slice that is the part of this process.
        """
        if self.size == 1:
            return part, slice(0, len(part))
        counts = [torch.zeros(1, dtype=torch.long, device=part.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(part)], device=part.device))
        sizes = [int(count) for count in counts]
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        start = sum(sizes[: self.rank])
        joined = torch.cat([other[:size] for other, size in zip(parts, sizes, strict=True)])
        return joined, slice(start, start + len(part))

    @contextmanager
    def shared_random_state(self, device: torch.device) -> Iterator[None]:
        """Give all processes the same random numbers inside the block; does nothing in a single process."""
        if self.size == 1:
            yield
            return
        seed = int(self.broadcast_value(float(torch.randint(2**31, (1,))), device))
        with preserve_rng_state():
            torch.manual_seed(seed)
            yield

    def broadcast_value(self, value: float, device: torch.device) -> float:
        """Return the value of the first process, for decisions that depend on a clock."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the first process run the block before the others, which then find its results in a cache."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def all(self, condition: bool, device: torch.device) -> bool:
        """Return whether a condition holds in every process."""
        return int(self.add([torch.tensor(int(condition), device=device)])[0]) == self.size

    def wait(self) -> None:
        """Wait until every process has reached this point."""
        if self.size > 1:
            dist.barrier()


def join_process_group() -> ProcessGroup:
    """Return the processes of this run, and connect them if they are not connected yet.

    Raises:
        UserError: If parameters would be sharded (FSDP, DeepSpeed), since gates and soft masks need whole weights, or
            the variables of a launcher are wrong or incomplete.
    """
    for name in _RANK_VARIABLES:
        environment_integer(name)
    if environment_integer("WORLD_SIZE", 1) <= 1:
        return ProcessGroup()
    for name in _SHARDING_VARIABLES:
        if os.environ.get(name, "").lower() in ("1", "true"):
            raise UserError(
                "Training keeps the whole model in every process; sharded parameters (FSDP, DeepSpeed) are not "
                "supported, since soft masks and gates need whole weights. Start it with torchrun or "
                "accelerate launch --multi_gpu."
            )
    from accelerate import PartialState  # chooses the same backend as the Trainer

    try:
        state = PartialState(cpu=default_device().type == "cpu", timeout=TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"The processes of this run cannot be connected: {first_line(error).rstrip('.')}. Start it with torchrun, "
            "or unset WORLD_SIZE."
        ) from error
    return ProcessGroup(state.process_index, state.num_processes)


def leave_process_group() -> None:
    """Disconnect from the other processes at the end of a run; does nothing in a single process.

    Do not call it after an error: the others may be waiting in a collective operation until the launcher terminates
    them.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
