"""Fully sharded training (FSDP2): each process keeps a part of the weights, the gradients and the optimizer state.

The model is prepared whole, and sharded right before the first step. From then on its parameters are ``DTensor``
shards along the first dimension. Each layer is gathered while it runs; embeddings and head stay gathered between the
forward and the backward pass, because the engine runs the encoder and the head in separate calls.

Gradients are sums over the processes, reduced after every micro-batch: to defer that to the last one would keep whole
gradients in every process. Checkpoints hold the whole state, in the format of a single process, so that a run resumes
with any number of processes, sharded or not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from acclimate.base.device import TYPES, Precision
from acclimate.base.errors import UserError
from acclimate.base.progress import print_message
from acclimate.engine.callbacks import check_weight_names
from acclimate.engine.distributed import LastPass, ProcessGroup, wants_sharding
from acclimate.engine.steps import Engine
from acclimate.engine.trainer import StepTrainer
from acclimate.models.adapters import adapter_weights, share_weights
from acclimate.models.batching import training_bytes
from acclimate.models.compiling import layers_of
from acclimate.models.families import probe_of
from acclimate.models.loading import LanguageModel
from acclimate.models.saving import find_non_finite
from acclimate.parts.updates import UpdateRule

KEEPS_LAYERS = ("false", "0", "no_shard", "shard_grad_op")
"""Values of ``FSDP_RESHARD_AFTER_FORWARD`` with which layers stay gathered until the backward pass."""


@dataclass(frozen=True)
class ShardedGroup(ProcessGroup):
    """The processes of a run that share the weights, too.

    Every forward and backward pass gathers weights, so all processes run the same passes in the same order.

    Attributes:
        model: The sharded model.
        shell: A copy without weights, which :meth:`gather_weights` fills in the first process.
        shell_device: Device of these weights.
    """

    model: Any = None
    shell: Any = None
    shell_device: torch.device | str = "cpu"

    @contextmanager
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> Iterator[LastPass]:
        """Return a context that does nothing: each backward pass sums its gradients."""
        yield nullcontext

    def before_loss(self) -> None:
        """Gather the head, which the backward pass of another micro-batch may have freed since the forward pass."""
        self.model.unshard()

    def align(self, batches: Sequence[Any]) -> list[Any]:
        """Return the micro-batches, the last one repeated as often as other processes have more."""
        most = max(self.gather_numbers(len(batches)))
        return [*batches, *([batches[-1]] * (most - len(batches)))]

    def least(self, number: int) -> int:
        """Return the minimum over the processes."""
        return min(self.gather_numbers(number))

    def copy_from_first(self, values: Iterable[Tensor]) -> None:
        """Overwrite tensors with the first process's; weights were the same before they were sharded."""
        super().copy_from_first(value for value in values if not isinstance(value, DTensor))

    def gather_weights(self) -> None:
        """Copy the trained weights into the shell, in the first process."""
        empty = dict(self.shell.named_parameters())
        for name, weight in _gather(_state(self.model, all_weights=True)):
            if self.first and name in empty:
                empty[name].data = weight.to(self.shell_device)

    def release_weights(self) -> None:
        """Free the weights of the shell."""
        for weight in self.shell.parameters():
            weight.data = weight.new_empty(0)


class ShardedTrainer(StepTrainer):
    """A trainer of a sharded model: whole state is gathered when it is written, and divided when it is read."""

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Leave the shards where they are."""

    def _clip_grad_norm(self, model: Any) -> Tensor:
        return _whole(super()._clip_grad_norm(model))

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the norm of the gradients of all processes, also where it is not clipped."""
        if grad_norm is None:
            grad_norm = _whole(self.accelerator.clip_grad_norm_(model.parameters(), math.inf))
        return super()._get_grad_norm(model, grad_norm=grad_norm)

    def check_weights(self) -> None:
        """Check the shards of all processes after a step.

        Raises:
            UserError: If a weight is not finite.
        """
        if self._terms and not self.engine.group.all(not find_non_finite(self.engine.model)):
            raise self._divergence_error(self._terms, taken=1)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights of a checkpoint: the adapter's alone if there is one."""
        whole = {}
        for name, value in _gather(_state(self.engine.model)):
            if self.args.should_save:
                whole[name] = value.cpu().contiguous()
        if self.args.should_save:
            folder = Path(str(output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            save_file(whole, folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write the whole state of the optimizer, as a single process does, and the schedule."""
        optimizer, schedule = cast(Any, self.optimizer), cast(Any, self.lr_scheduler)
        state = optimizer.state_dict()
        whole: dict[int, dict[str, Any]] = {}
        for index, values in state["state"].items():
            gathered = {name: _whole(value) for name, value in values.items()}
            if self.args.should_save:
                whole[index] = {name: value.cpu() for name, value in gathered.items()}
        if self.args.should_save:
            torch.save({**state, "state": whole}, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(schedule.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Read the local shards of the weights of a checkpoint, whatever the number of processes that wrote it.

        Raises:
            UserError: If the checkpoint is not one of this model.
        """
        own = _state(self.engine.model)
        names: dict[int, set[str]] = {}  # tied weights have several
        for name, value in own.items():
            names.setdefault(id(value), set()).add(name)
        with safe_open(Path(resume_from_checkpoint) / SAFE_WEIGHTS_NAME, "pt") as stored, torch.no_grad():
            found = sorted(stored.keys())
            lost = [min(tied) for tied in names.values() if tied.isdisjoint(found)]
            check_weight_names(resume_from_checkpoint, [*lost, *(set(found) - own.keys())])
            for name in found:  # one at a time, since every process reads all of them
                own[name].copy_(_shard_like(own[name], stored.get_tensor(name)))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Read the local shards of the state of the optimizer, and the schedule."""
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        state = torch.load(folder / OPTIMIZER_NAME, mmap=True, map_location="cpu", weights_only=True)
        optimizer, schedule = cast(Any, self.optimizer), cast(Any, self.lr_scheduler)
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for index, values in state["state"].items():
            like = weights[index]
            values.update(
                {name: _shard_like(like, value) for name, value in values.items() if value.shape == like.shape}
            )
        optimizer.load_state_dict(state)
        schedule.load_state_dict(torch.load(folder / SCHEDULER_NAME, map_location="cpu", weights_only=True))


def _state(model: nn.Module, all_weights: bool = False) -> dict[str, Tensor]:
    """Return what trains of a model with an adapter, else all its weights and buffers; tied weights by each name."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)  # also shards what is still gathered
    trained = None if all_weights else adapter_weights(model, state)
    return state if trained is None else trained


def _gather(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield whole tensors by name, tied ones once; all processes have to ask for all of them."""
    seen: set[int] = set()
    for name, value in state.items():
        if id(value) not in seen:
            seen.add(id(value))
            yield name, _whole(value)


def _whole(value: Tensor) -> Tensor:
    """Gather a sharded tensor; other tensors are returned unchanged."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach()


def _shard_like(like: Tensor, whole: Tensor) -> Tensor:
    """Return a tensor that every process has, sharded as another one; no process sends anything."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def check_sharding(options: Any, method: Any, adapter: Any, precision: Precision) -> bool:
    """Return whether the user asks for sharded parameters, after a check, before a model is loaded.

    Raises:
        UserError: If it cannot; the message says what to do.
    """
    if not wants_sharding(options.fsdp):
        return False
    obstacle = ""
    if method.changes_result:
        obstacle = f"method '{method.name}' changes the whole model after its training; use another method, such as lm"
    elif adapter is not None and adapter.quantization:
        obstacle = "quantized weights cannot be divided; remove 'quantize'"
    elif (options.optimizer, options.weights) != ("adamw", "fp32"):
        obstacle = "optimizer and weights of torchao have not been tested with it; use adamw and fp32"
    elif options.compile:
        obstacle = "compiled layers cannot gather weights; remove --compile"
    elif precision == "fp16":
        obstacle = "sums of scaled gradients could overflow in fp16; use --precision bf16 or fp32"
    _refuse(obstacle)
    return True


def shard(
    engine: Engine, loaded: LanguageModel, rule: UpdateRule | None = None, progress: bool = False
) -> type[ShardedTrainer]:
    """Shard the models of an engine; the model of ``loaded`` then has its weights only while it is written.

    Args:
        engine: The engine, with the same model in all processes.
        loaded: The model in training.
        rule: Update rule, called around each optimizer step.
        progress: Whether to print what each process holds.

    Returns:
        The class of the trainer of such an engine.

    Raises:
        UserError: If the update rule or the model needs whole weights.
    """
    model, group = engine.model, engine.group
    probe = probe_of(model)
    if rule is not None and rule.needs_whole_weights:
        _refuse("the update rule of this method, or 'refactor', needs whole weights; use another method, such as lm")
    if probe is not None and not probe.pads:
        _refuse(f"{type(model).__name__} reads texts of each length by themselves, as {probe.obstacles['padding']}")
    if loaded.adapter is not None and not loaded.adapter.shards:
        _refuse(f"the adapter '{loaded.adapter.name}' needs whole weights of this model")
    group.copy_from_first([*model.parameters(), *model.buffers()])
    size = training_bytes(model)
    print_message(
        f"FSDP: each of the {group.size} processes holds {size / group.size / 1e9:,.3g} of the "
        f"{size / 1e9:,.3g} GB of weights, gradients and optimizer state.",
        enabled=progress,
    )
    shell = share_weights(model)
    for reader in engine.readers.values():
        _shard_model(reader, group.size, engine.precision)
    # The export of an adapter reads the model; without one, it is only written.
    device = "cpu" if loaded.adapter is None else model.device
    engine.group = ShardedGroup(group.rank, group.size, model, shell, device)
    engine.group.release_weights()
    torch.cuda.empty_cache()  # without effect where there is no GPU
    loaded.model = shell
    if loaded.adapter is not None:
        loaded.adapter.model = shell
    return ShardedTrainer


def _refuse(obstacle: str) -> None:
    if obstacle:
        raise UserError(f"Parameters cannot be sharded (FSDP): {obstacle}.")


def _shard_model(model: PreTrainedModel, processes: int, precision: Precision) -> None:
    """Shard each layer by itself, and the rest of the model together."""
    # Autocast would keep a copy of all whole weights in half precision for the backward pass.
    policy = MixedPrecisionPolicy(TYPES.get(precision), torch.float32, cast_forward_inputs=False)
    mesh = init_device_mesh(model.device.type, (processes,))
    free = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower() not in KEEPS_LAYERS
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=free)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # with the next line: sums, not means
            module.set_force_sum_reduction_for_comms(True)
    # The engine calls the encoder and the head by themselves, not the model.
    root: Any = model
    base, forward = root.base_model, root.base_model.forward
    root.gathered_forward = forward
    register_fsdp_forward_method(root, "gathered_forward")
    base.forward = wraps(forward)(lambda *args, **options: root.gathered_forward(*args, **options))
