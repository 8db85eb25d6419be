"""Computing the end of the last layer only for the tokens that somebody reads.

What follows the attention in a layer (its output projection, the feed-forward, two normalisations) works token by
token and has three quarters of the weights. In the last layer nobody reads the tokens that no loss looks at: all but
the masked ones in masked language modelling, all but the first in classification. Leaving them out changes neither the
loss nor a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
"""Types of models whose layers hand context vectors and residual stream to one module, ``attention.output``."""
LIBRARY = "transformers.models."


def can_cut_last_layer(model: PreTrainedModel) -> bool:
    """Say whether the end of the last layer can be left out for some tokens; other models compute all of it."""
    return bool(_last_outputs(model))


def _last_outputs(model: PreTrainedModel) -> list[nn.Module]:
    """Find where the tokens of the last layer part company; of an ensemble there are two places."""
    if model.config.model_type not in BERT_LIKE or model.config.chunk_size_feed_forward:
        return []
    layers: list[Any] = [module[-1] for name, module in model.named_modules() if name.endswith("encoder.layer")]
    if not all(type(layer).__module__.startswith(LIBRARY) for layer in layers):  # code of its own, or sharded
        return []
    return [layer.attention.output for layer in layers]


@contextmanager
def cut_last_layer(model: PreTrainedModel, choose: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Return a context in which the last layer of a model ends with a choice of its tokens.

    Args:
        model: One that :func:`ends_by_token`.
        choose: From states (rows, tokens, width) to those to go on with: (rows, chosen, width) or (1, chosen, width).
    """

    def chosen(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(choose(states) for states in inputs)

    hooks = [end.register_forward_pre_hook(chosen) for end in _last_outputs(model)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
