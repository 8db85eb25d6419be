"""The update rule of a run: that of its method, and those that options add."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from acclimate.adaptation.method import AdaptContext, cache_folder
from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.step_options import STEP_OPTIONS
from acclimate.base.errors import UserError
from acclimate.base.options import defaults
from acclimate.base.progress import Progress, print_message
from acclimate.data.documents import as_corpus
from acclimate.data.tokenizing import Framing, tokenize
from acclimate.models.adapters import Adapter
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


def check_rules(options: AdaptOptions) -> dict[str, Any]:
    """Check the options of update rules; return their entries of the configuration that is recorded.

    An option with its default is None there, as in results of versions without it.

    Raises:
        UserError: If EWC has no text, a text has no EWC, or a choice of weights has no sparsity.
    """
    if options.sparsity_choice == "random" and not options.sparsity:
        raise UserError("'sparsity_choice' needs a share of weights that are zero; give it with --sparsity.")
    if bool(options.ewc) != (options.ewc_text is not None):
        missing = "general text to measure importance on; give it with --ewc-text" if options.ewc else "--ewc above 0"
        raise UserError(f"'{'ewc' if options.ewc else 'ewc_text'}' needs {missing}.")
    usual = defaults(AdaptOptions)
    found = {name: getattr(options, name) for name in STEP_OPTIONS}
    text = None if options.ewc_text is None else as_corpus(options.ewc_text, options.text_column, options.encoding)
    return {
        **{name: None if value == usual[name] else value for name, value in found.items()},
        "ewc_text": text and text.fingerprint,
    }


def add_update_rules(
    options: AdaptOptions,
    context: AdaptContext,
    adapter: Adapter | None,
    rule: UpdateRule | None,
    length: int,
    framing: Framing,
) -> UpdateRule | None:
    """Freeze the weights that the options name, and add the update rules that they ask for.

    Args:
        options: Options of the run.
        context: The adaptation; its model has all that the method and an adapter add to it.
        adapter: The adapter that trains in place of the weights, or None.
        rule: The update rule of the method, which stays the nearest to the optimizer.
        length: Maximum tokens per text.
        framing: Where special tokens are added to documents.

    Raises:
        UserError: If an option does not fit the model.
    """
    added: list[UpdateRule] = []
    if options.freeze:
        print_message(freeze(context.model, options.freeze), enabled=context.progress)
    if options.sparsity:  # before other rules copy the weights
        sparsity = StaticSparsity(context.model, options.sparsity, options.sparsity_choice, options.seed)
        print_message(sparsity.describe(), enabled=context.progress)
        added.append(sparsity)
    if options.layer_decay < 1:
        added.append(LayerwiseDecay(context.model, options.layer_decay))
    if options.l2_sp:
        added.append(PullToStart(context.model, options.l2_sp))
    if options.ewc:
        corpus, folder = as_corpus(options.ewc_text, options.text_column, options.encoding), cache_folder() / "rows"
        with context.group.main_process_first():
            rows = tokenize(
                corpus, context.tokenizer, length, framing=framing, cache=folder, progress=context.progress
            )
        added.append(PullToStart(context.model, options.ewc, measure_fisher(replace(context, rows=rows))))
    if options.refactor_every and adapter is not None:
        added.append(Refactorization(adapter.factors(), options.refactor_every))
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
