"""The low-rank adapter of a run: its options, its learning rate, and how it takes over the update rule of a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from acclimate.adaptation.method import Method
from acclimate.adaptation.run import Feature, Run
from acclimate.adaptation.tokenizer import sample_documents
from acclimate.base.device import choose_precision, default_device
from acclimate.base.errors import UserError
from acclimate.base.progress import print_message
from acclimate.base.registry import build_dataclass
from acclimate.data.documents import Corpus
from acclimate.data.tokenizing import tokenize
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.models.adapters import NO_FACTORS, NO_MASK, PROBE_TEXTS, Adapter
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.models.extensions import has_adapters
from acclimate.models.lora import LOW_RANK, LowRankAdapter
from acclimate.parts.masking import RandomMasking
from acclimate.parts.modules.deeper import DeeperAdapter
from acclimate.parts.modules.sparse_rank import SparseRankAdapter
from acclimate.parts.modules.wider import WiderAdapter
from acclimate.parts.objectives import LanguageModelling
from acclimate.parts.updates import CombinedRules, UpdateRule

ADAPTERS: dict[str, type[Adapter]] = {
    **dict.fromkeys(LOW_RANK, LowRankAdapter),
    "codyra": SparseRankAdapter,
    "wider": WiderAdapter,
    "deeper": DeeperAdapter,
}
"""The classes of adapters by name."""


def check_adapter(name: str, settings: Mapping[str, Any] | None, quantize: str | None = None) -> Any:
    """Return the settings of an adapter, all checked before a model is loaded.

    Args:
        name: A name of :data:`ADAPTERS`.
        settings: Values of its settings.
        quantize: How the base model is quantized; None if it is not.

    Raises:
        UserError: If a setting is unknown or wrong, a package is missing, or the variant cannot be used with a
            quantized base.
    """
    kind = ADAPTERS[name]
    made = build_dataclass(kind.settings_class, "adapter", name, settings or {})
    kind.check(name, made, quantize)
    return made


def resolve_adapter(
    method: Method, adapter: str | None, settings: Mapping[str, Any] | None, quantize: str | None
) -> Any:
    """Return the settings of an adapter, or None if the weights themselves train.

    Args:
        method: The method.
        adapter: Name of the adapter; None for none.
        settings: Its settings as given.
        quantize: How the weights are quantized, or None.

    Raises:
        UserError: If the method cannot train an adapter, a setting is wrong, or a package is missing.
    """
    if adapter is None:
        return None
    if method.without_adapter:
        raise UserError(
            f"Method '{method.name}' does not work with an adapter, since {method.without_adapter}. Remove 'adapter', "
            "or use another method, such as lm."
        )
    if method.protects_by == "gradient":
        raise UserError("An adapter can scale the update of weights, not their gradient; use mask_on=update.")
    if method.protects_by and ADAPTERS[adapter].mask is Adapter.mask:
        raise UserError(NO_MASK.format(adapter))
    return check_adapter(adapter, settings, quantize)


class AddedAdapter(Feature):
    """The adapter that trains instead of the weights.

    Attributes:
        settings: Its settings.
    """

    def __init__(self, run: Run) -> None:
        """Check the settings, and choose the learning rate: the user's, or a multiple of the method's."""
        given, method = run.options, run.method
        assert given.adapter is not None
        self.settings = resolve_adapter(method, given.adapter, given.adapter_settings, given.quantize)
        if given.refactor_every and ADAPTERS[given.adapter].factors is Adapter.factors:
            raise UserError(NO_FACTORS.format(given.adapter))
        if given.learning_rate is None:
            times = ADAPTERS[given.adapter].rate
            run.learning_rate = times * method.learning_rate
            print_message(
                f"Learning rate {run.learning_rate:g}: {times:g} times that of the method, since only an adapter "
                "trains.",
                enabled=given.progress,
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings, with a fingerprint of general text instead of its name."""
        found = asdict(self.settings)
        if found.get("general"):
            found["general"] = Corpus([found["general"]]).fingerprint
        return {"adapter_settings": found}

    def prepare(self, run: Run) -> None:
        """Refuse a model that has adapters."""
        if has_adapters(run.loaded.model):
            raise UserError("The model has adapters of its own; start from one without, or remove 'adapter'.")

    def rule(self, run: Run, rule: UpdateRule | None) -> UpdateRule | None:
        """Add the adapter to the model, to which the method has added what it needs, as ``loaded.adapter``.

        The exported model is compared with the trained one on the first rows of the text.

        Returns:
            The update rule that remains: none, if it scales the change of the weights, which the adapter then does.

        Raises:
            UserError: If the adapter does not fit the model.
        """
        options, loaded, settings = run.options, run.loaded, self.settings
        assert options.adapter is not None
        probe = [run.rows[number] for number in range(min(PROBE_TEXTS, len(run.rows)))]
        source = loaded.model.name_or_path if options.quantize else None
        general = GeneralLoss(run, settings) if getattr(settings, "general", "") else None
        shared: dict[str, Any] = {"seed": options.seed, "probe": probe, "source": source, "general": general}
        loaded.adapter = ADAPTERS[options.adapter](loaded.model, options.adapter, settings, **shared)
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
            settings: Settings with ``general``, the source of the text, and ``tokens``, how much of it is read.

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
