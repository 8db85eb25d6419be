"""Token rows and micro-batches over the tiny vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from acclimate.data.token_dataset import TokenDataset
from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import Batch
from tests.tiny import TEXTS, tiny_tokenizer


def rows(copies: int = 1) -> TokenDataset:
    """The texts of the tiny vocabulary as token rows."""
    tokenizer = tiny_tokenizer()
    return TokenDataset.of([tokenizer(f"{text} {copy}")["input_ids"] for copy in range(copies) for text in TEXTS])


def assert_clipping_is_that_of_torch(train: Callable[[float], object]) -> None:
    """Check the gradients of the first step of a training, which is a function of ``max_gradient_norm``."""

    def gradients(norm: float) -> list[torch.Tensor]:
        steps = []

        def record(optimizer, args, kwargs):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            steps.append([one.grad.clone() for one in parameters if one.grad is not None])

        handle = register_optimizer_step_pre_hook(record)
        try:
            train(norm)
        finally:
            handle.remove()
        return steps[0]

    free = gradients(0)
    total = float(torch.nn.utils.get_total_norm(free))
    assert total > 0
    for norm in (total / 3, 3 * total):
        expected = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in free]
        for parameter, gradient in zip(expected, free, strict=True):
            parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_(expected, norm)
        for parameter, found in zip(expected, gradients(norm), strict=True):
            torch.testing.assert_close(found, parameter.grad, atol=1e-7, rtol=1e-5)


def micro_batches(tokens: int = 64, rate: float = 0.3, layout: str = "padded", seed: int = 0) -> list[Batch]:
    """All texts, split into micro-batches of so many tokens."""
    collator = Collator.of(tiny_tokenizer(), RandomMasking(rate), MASKED, tokens, layout)
    return collator([np.asarray(row) for row in rows()], np.random.default_rng(seed))
