"""The mean of the last checkpoints of a training as its model, which can replace the fall of the learning rate.

See Tian et al., "WSM: Decay-free learning rate schedule via checkpoint merging", ICLR 2026.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from acclimate.adaptation.run import Feature, Run
from acclimate.base.errors import UserError
from acclimate.base.files import read_json, write_json
from acclimate.base.progress import print_message
from acclimate.engine.callbacks import ResumableCallback
from acclimate.engine.trainer import CallbackFactory, StepTrainer

AVERAGE_FILE, SUMS_FILE = "average.json", "average.safetensors"


class Averaging(Feature):
    """The mean of the weights after evenly spaced steps, the last step included."""

    def __init__(self, run: Run) -> None:
        options, method = run.options, run.method
        self.count, self.share, self.steps = int(options.average_last or 0), run.schedule.decay, list[int]()
        wrong = {
            f"method {method.name}": method.changes_result or method.stages() or not method.trains,
            "adapter: the mean of its factors is not the mean of their products": run.adapter is not None,
            "keep_best or patience, which choose the model": options.keep_best or options.patience is not None,
            "fsdp": run.sharded,
        }
        for name in (name for name, found in wrong.items() if found):
            raise UserError(f"'average_last' does not work with {name}; keep models and merge them with soup.")

    def warm_up(self, run: Run) -> None:
        """Check that there are enough steps."""
        if (steps := round(run.steps * self.share)) < self.count:
            raise UserError(
                f"'average_last' is {self.count}, but the last {self.share:g} of the training are {steps} steps; "
                "average fewer, or train for longer."
            )

    def callbacks(self, run: Run) -> list[CallbackFactory]:
        """Return what sums the weights."""
        return [lambda trainer: _AverageCallback(trainer, self.count, self.share, self.steps)]

    def close(self, run: Run) -> None:
        """Record the steps."""
        run.result.preparation[AVERAGE_FILE] = {"steps": self.steps}
        print_message(f"The model is the mean of the weights after steps {self.steps}.", enabled=run.progress)


class _AverageCallback(ResumableCallback):
    """Sums the weights that train in fp64 in the memory of the host; their mean is the model after the last step.

    The ``steps`` are spread over a ``share`` of the training. One that ends by time may jump over some.
    """

    def __init__(self, trainer: StepTrainer, count: int, share: float, steps: list[int]) -> None:
        self.trainer, self.count, self.share, self.steps = trainer, count, share, steps
        self.sums, self._due = dict[str, Tensor](), 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        done = min(1.0, max(state.global_step / state.max_steps, self.trainer.clock.spent))
        due = int((done - 1 + self.share) / self.share * self.count + 1e-6)
        if due > self._due:
            self._due = due
            self.steps.append(state.global_step)
            for name, weight in self._weights().items():
                value = weight.detach().to("cpu", torch.float64)
                self.sums[name] = self.sums[name].add_(value) if name in self.sums else value
        if state.global_step >= state.max_steps or control.should_training_stop:  # before held-out text is measured
            for name, weight in self._weights().items():
                weight.data.copy_(self.sums[name] / len(self.steps))

    def save(self, checkpoint: Path) -> None:
        write_json(checkpoint / AVERAGE_FILE, {"steps": self.steps, "due": self._due})
        save_file(self.sums, checkpoint / SUMS_FILE)

    def load(self, checkpoint: Path) -> None:
        found = read_json(checkpoint / AVERAGE_FILE)
        self.steps[:], self._due, self.sums = found["steps"], found["due"], load_file(checkpoint / SUMS_FILE)

    def _weights(self) -> dict[str, Tensor]:
        named = self.trainer.engine.model.named_parameters()
        return {name: weight for name, weight in named if weight.requires_grad}
