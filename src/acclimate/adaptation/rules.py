"""The update rule of a run: that of its method, and those that options add."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from acclimate.adaptation.method import AdaptContext
from acclimate.adaptation.run import Feature, Run
from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder
from acclimate.base.progress import Progress, print_message
from acclimate.data.documents import as_corpus
from acclimate.data.tokenizing import tokenize
from acclimate.models.batching import training_tokens
from acclimate.parts.masking import Strategy
from acclimate.parts.updates import (
    CombinedRules,
    LayerwiseDecay,
    PullToStart,
    Refactorization,
    StaticSparsity,
    UpdateRule,
    freeze,
    summed_fisher,
)

FISHER_TOKENS = 200_000
"""Maximum tokens of general text from which the Fisher information is estimated."""
FISHER_BATCH = 2_000
"""Maximum tokens per backward pass of this estimate, whose error falls with the number of passes."""


class UpdateRules(Feature):
    """The update rules that options add to that of the method, and the weights that they freeze."""

    def __init__(self, run: Run) -> None:
        """Open the text of EWC.

        Raises:
            UserError: If EWC has no text, or a text has no EWC.
        """
        given = run.options
        if bool(given.ewc) != (given.ewc_text is not None):
            missing = (
                "general text to measure importance on; give it with --ewc-text" if given.ewc else "--ewc above 0"
            )
            raise UserError(f"'{'ewc' if given.ewc else 'ewc_text'}' needs {missing}.")
        self.text = as_corpus(given.ewc_text, given.text_column, given.encoding) if given.ewc else None

    def identity(self) -> dict[str, Any]:
        """Return the hash of the text of EWC."""
        return {"ewc_text": self.text and self.text.fingerprint}

    def rule(self, run: Run, rule: UpdateRule | None) -> UpdateRule | None:
        """Freeze the weights that the options name, and add the update rules; that of the method is applied last.

        Raises:
            UserError: If an option does not fit the model.
        """
        given, model, adapter = run.options, run.loaded.model, run.loaded.adapter
        added: list[UpdateRule] = []
        if given.freeze:
            print_message(freeze(model, given.freeze), enabled=run.progress)
        if given.sparsity:  # before other rules copy the weights
            sparsity = StaticSparsity(model, given.sparsity, given.sparsity_choice, given.seed)
            print_message(sparsity.describe(), enabled=run.progress)
            added.append(sparsity)
        if given.layer_decay < 1:
            added.append(LayerwiseDecay(model, given.layer_decay))
        if given.l2_sp:
            added.append(PullToStart(model, given.l2_sp))
        if self.text is not None:
            cut = partial(tokenize, self.text, run.loaded.tokenizer, run.length, framing=run.framing)
            with run.group.main_process_first():
                rows = cut(cache=cache_folder() / "rows", progress=run.progress)
            added.append(PullToStart(model, given.ewc, measure_fisher(replace(run.context, rows=rows))))
        if given.refactor_every and adapter is not None:
            added.append(Refactorization(adapter.factors(), given.refactor_every))
        rules = added if rule is None else [*added, rule]
        return CombinedRules(rules) if len(rules) > 1 else next(iter(rules), None)


def measure_fisher(context: AdaptContext, tokens: int = FISHER_TOKENS, cached: bool = True) -> dict[str, Tensor]:
    """Return the diagonal of the Fisher information per predicted token of a text, by weight.

    Args:
        context: The adaptation, with the text as its rows.
        tokens: Maximum tokens of the text to read.
        cached: Whether it is stored in the cache; it is as large as the model.

    Raises:
        UserError: As :func:`acclimate.parts.updates.summed_fisher`.
    """
    if not cached:
        return context.seeded(partial(_measure_fisher, context, tokens))
    masking = context.masking.identity() if isinstance(context.masking, Strategy) else repr(context.masking)
    names = [name for name, weight in context.model.named_parameters() if weight.requires_grad]
    options = {"tokens": tokens, "masking": masking, "weights": names}
    return context.cached("fisher", options, partial(_measure_fisher, context, tokens))


def _measure_fisher(context: AdaptContext, tokens: int) -> dict[str, Tensor]:
    size, read = context.group.size, 0
    most = min(tokens, int(getattr(context.rows, "tokens", tokens)))
    with Progress("Fisher information", most, unit="tokens", enabled=context.progress) as bar:

        def batches() -> Any:
            nonlocal read
            for batch in context.sample(tokens, readings=max(1, training_tokens(context.model) // FISHER_BATCH)):
                yield batch
                read += batch.tokens * size
                bar.update(read)

        predicted, sums = summed_fisher(context.model, batches(), precision=context.precision)
    count, *totals = context.group.add([torch.tensor(float(predicted), device=context.device), *sums.values()])
    return {name: total / count for name, total in zip(sums, totals, strict=True)}
