"""Compilation of the layers of a model with ``torch.compile``.

Each layer is compiled by itself. All layers of a kind then share one graph, so compiling takes as long for one layer
as for eighty, and what is around the layers, such as sharding and the removal of padding, runs as always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from acclimate.base.errors import first_line, warn_once
from acclimate.base.progress import print_message
from acclimate.models.attention import LAYER_INDEX, LAYER_INDEX_TENSOR
from acclimate.models.families import COMPILED_ATTRIBUTE

Backend = str | Callable[..., Any]
MAX_GRAPHS = 64
"""Graphs per kind of layer. Training, evaluation, padded and unpadded rows, gates, and the cut of the last layer make
several; shapes do not."""


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the repeated layers of a model: the entries of its outermost lists of modules."""
    found: list[nn.Module] = []
    for child in module.children():
        found += child if isinstance(child, nn.ModuleList) else layers_of(child)
    return found


@contextmanager
def compiled_layers(
    models: Iterable[PreTrainedModel], backend: Backend = "inductor", progress: bool = False
) -> Iterator[None]:
    """Return a context in which the layers of models are compiled when they first run.

    Layers that cannot be compiled run as they are, and a warning names them.

    Args:
        models: The models; models of one architecture share their graphs.
        backend: A backend of ``torch.compile``.
        progress: Whether to print which layers will be compiled.
    """
    import torch._dynamo
    from torch.fx.experimental import _config as shapes

    with ExitStack() as stack:
        # Hooks differ between layers that share a graph, and the sizes of their gates between steps. Sizes that are
        # equal in one step need not be equal in the next.
        stack.enter_context(
            torch._dynamo.config.patch(
                skip_nnmodule_hook_guards=False,
                force_nn_module_property_static_shapes=False,
                cache_size_limit=MAX_GRAPHS,
            )
        )
        stack.enter_context(shapes.patch(use_duck_shape=False))  # type: ignore[attr-defined]
        for model in models:
            layers = layers_of(model.base_model)
            names = ", ".join(dict.fromkeys(type(layer).__name__ for layer in layers))
            if layers:
                print_message(
                    f"Compiling {len(layers)} layers ({names}) in the first steps, which takes a minute or more.",
                    enabled=progress,
                )
            else:
                warn_once(f"{type(model).__name__} has no list of layers, so nothing of it is compiled.")
            stack.enter_context(_tensor_indices(model))
            setattr(model, COMPILED_ATTRIBUTE, True)
            stack.callback(delattr, model, COMPILED_ATTRIBUTE)
            for layer in layers:
                layer._compiled_call_impl = _CompiledLayer(layer, backend)
                stack.callback(_run_eagerly, layer)
        yield


class _CompiledLayer:
    """Calls a layer compiled, or as it is once compiling has failed."""

    def __init__(self, layer: nn.Module, backend: Backend) -> None:
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor import exc

        own = getattr(exc, "InductorError", TorchDynamoException)  # versions of torch without it wrap all errors
        self.layer, self.failures = layer, (TorchDynamoException, own)
        self.compiled = torch.compile(layer._call_impl, backend=backend, fullgraph=True, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.compiled(*args, **kwargs)
        except self.failures as failure:
            name = type(self.layer).__name__
            warn_once(f"{name} cannot be compiled and runs as it is: {first_line(failure)}")
            _run_eagerly(self.layer)
            return self.layer(*args, **kwargs)


def _run_eagerly(layer: nn.Module) -> None:
    """Undo the compilation of a layer, and forget its graphs."""
    from torch._dynamo.eval_frame import remove_from_cache

    layer._compiled_call_impl = None
    remove_from_cache(type(layer).forward)


@contextmanager
def _tensor_indices(model: PreTrainedModel) -> Iterator[None]:
    """Let attention modules know their index as a tensor too, for which no graph is compiled again."""
    modules = [module for module in model.modules() if hasattr(module, LAYER_INDEX)]
    for module in modules:
        index = torch.tensor([getattr(module, LAYER_INDEX)], device=model.device)
        module.register_buffer(LAYER_INDEX_TENSOR, index, persistent=False)
    yield
    for module in modules:
        delattr(module, LAYER_INDEX_TENSOR)
