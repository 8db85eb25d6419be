"""How a run executes: tracked, compiled, or with its weights divided among processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from acclimate.adaptation.run import Feature, Run
from acclimate.base.errors import UserError
from acclimate.engine.callbacks import check_trackers, tensorboard_folder
from acclimate.engine.micro_batches import check_optimizer
from acclimate.models.compiling import compiled_layers


class Tracking(Feature):
    """Experiment trackers that receive the log."""

    def __init__(self, run: Run) -> None:
        """Check the trackers."""
        self.names = check_trackers(run.options.report_to)

    def around(self, run: Run) -> AbstractContextManager[None]:
        """Return a context in which TensorBoard writes next to the output directory."""
        return tensorboard_folder(self.names, run.out)

    def arguments(self, run: Run) -> dict[str, Any]:
        """Return the trackers."""
        return {"report_to": self.names}


class LowMemory(Feature):
    """Optimizers and types of weights that need ``torchao``."""

    def __init__(self, run: Run) -> None:
        """Check that it is installed."""
        check_optimizer(run.options.optimizer, run.options.weights)

    def arguments(self, run: Run) -> dict[str, Any]:
        """Return the optimizer."""
        return {"optimizer": run.options.optimizer}


class Compiled(Feature):
    """Layers that ``torch.compile`` compiles."""

    def around(self, run: Run) -> AbstractContextManager[None]:
        """Return a context in which the layers of all models that read are compiled."""
        return compiled_layers(run.engine.readers.values(), progress=run.progress)


class Sharding(Feature):
    """Weights that are divided among the processes, if the user or the launcher asks for it."""

    def __init__(self, run: Run) -> None:
        """Check that the weights can be divided."""
        from acclimate.engine.sharding import check_sharding

        run.sharded = check_sharding(run.options, run.method, run.adapter, run.precision)

    def prepare(self, run: Run) -> None:
        """Refuse an encoder-decoder, whose two stacks share the embeddings that the whole model would gather."""
        if run.sharded and run.kind.pairs:
            raise UserError(f"Parameters cannot be sharded (FSDP): {type(run.loaded.model).__name__} has two stacks.")

    def arguments(self, run: Run) -> dict[str, Any]:
        """Divide the weights, and return the class of the trainer."""
        if not run.sharded:
            return {}
        from acclimate.engine.sharding import shard

        return {"trainer_class": shard(run.engine, run.loaded, run.update_rule, run.progress)}
