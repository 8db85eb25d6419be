"""The low-rank adapter of a run: its options, its learning rate, and how it takes over the update rule of a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from acclimate.adaptation.method import Method
from acclimate.adaptation.run import Feature, Run
from acclimate.adaptation.tokenizer import sample_documents
from acclimate.base.device import choose_precision, default_device
from acclimate.base.errors import UserError
from acclimate.base.progress import print_message
from acclimate.data.documents import Corpus
from acclimate.data.tokenizing import tokenize
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.models.adapters import ADAPTERS, NO_MASK, PROBE_TEXTS, Adapter
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.models.extensions import has_adapters
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling
from acclimate.parts.updates import CombinedRules, UpdateRule


def read_adapter(method: Method, given: Any) -> Adapter | None:
    """Return the adapter that a user gave, after a check that the method can train it; None for none.

    Raises:
        UserError: If it cannot, a name or a parameter is wrong, or a package is missing.
    """
    if given is None:
        return None
    if method.without_adapter:
        raise UserError(
            f"Method '{method.name}' does not work with an adapter, since {method.without_adapter}. Remove 'adapter', "
            "or use another method, such as lm."
        )
    if method.protects_by == "gradient":
        raise UserError("An adapter can scale the update of weights, not their gradient; use mask_on=update.")
    adapter = ADAPTERS.read(given)
    if method.protects_by and type(adapter).mask is Adapter.mask:
        raise UserError(NO_MASK.format(adapter.name))
    return adapter


class AddedAdapter(Feature):
    """The adapter that trains instead of the weights."""

    def __init__(self, run: Run) -> None:
        """Choose the learning rate: the user's, or a multiple of the method's."""
        given, method = run.options, run.method
        assert run.adapter is not None
        self.adapter: Adapter = run.adapter
        if given.learning_rate is None:
            times = self.adapter.rate
            run.learning_rate = times * method.learning_rate
            print_message(
                f"Learning rate {run.learning_rate:g}: {times:g} times that of the method, since only an adapter "
                "trains.",
                enabled=given.progress,
            )

    def identity(self) -> dict[str, Any]:
        """Return the name and the parameters."""
        return {"adapter": self.adapter.identity()}

    def prepare(self, run: Run) -> None:
        """Refuse a model that has adapters."""
        if has_adapters(run.loaded.model):
            raise UserError(
                "The model has adapters, prompts or entity vectors of its own; start from one without, or remove "
                "'adapter'."
            )

    def rule(self, run: Run, rule: UpdateRule | None) -> UpdateRule | None:
        """Add the adapter to the model, to which the method has added what it needs, as ``loaded.adapter``.

        The exported model is compared with the trained one on the first rows of the text.

        Returns:
            The update rule that remains: none, if it scales the change of the weights, which the adapter then does.

        Raises:
            UserError: If the adapter does not fit the model.
        """
        options, loaded, adapter = run.options, run.loaded, self.adapter
        probe = [run.rows[number] for number in range(min(PROBE_TEXTS, len(run.rows)))]
        source = loaded.model.name_or_path if adapter.quantization else None
        general = GeneralLoss(run, adapter) if getattr(adapter, "general", "") else None
        loaded.adapter = adapter.insert(loaded.model, seed=options.seed, probe=probe, source=source, general=general)
        print_message(loaded.adapter.describe(), enabled=options.progress)
        own = loaded.adapter.update_rule()
        if rule is None or not (factors := rule.delta_factors()):
            return CombinedRules([rule, own]) if rule and own else rule or own
        loaded.adapter.mask(factors)
        return own


class GeneralLoss:
    """The loss of a model on a sample of general text, with the same masks each time, and its gradients."""

    def __init__(self, run: Run, settings: Any) -> None:
        """Read the text.

        Args:
            run: The run, with its model.
            settings: The adapter, with ``general``, the source of the text, and ``tokens``, how much of it is read.

        Raises:
            UserError: If there is no text.
        """
        loaded, options = run.loaded, run.options
        sample, _ = sample_documents(Corpus([settings.general]), 20 * settings.tokens, progress=options.progress)
        rows = tokenize(Corpus.of(sample), loaded.tokenizer, run.max_length, progress=False)
        chosen = np.random.default_rng([options.seed, 5]).permutation(len(rows))
        sizes = np.cumsum([len(rows[index]) for index in chosen.tolist()])
        texts = [rows[index] for index in chosen[: int(np.searchsorted(sizes, settings.tokens)) + 1].tolist()]
        model = loaded.model
        limit = max(max(map(len, texts)), min(training_tokens(model), settings.tokens // 8))
        collator = Collator.of(loaded.tokenizer, RandomMasking(), loaded.kind, limit, policy=padding_policy(model))
        self._batches = [batch.to(model.device) for batch in collator(texts, np.random.default_rng(options.seed))]
        self._engine = Engine(model, [LanguageModelling()], choose_precision(options.precision, default_device()))
        self._model = model

    def loss(self) -> float:
        """Return the loss of the model."""
        with self._evaluated(), torch.no_grad():
            return float(self._engine.step(self._batches, backward=False)["loss"])

    def gradients(self) -> Iterator[None]:
        """Yield after each part of the text, when the parameters have its gradients."""
        with self._evaluated():
            for batch in self._batches:
                self._model.zero_grad(set_to_none=True)
                self._engine.step([batch])
                yield
        self._model.zero_grad(set_to_none=True)

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        training = self._model.training
        self._model.eval()
        try:
            yield
        finally:
            self._model.train(training)
