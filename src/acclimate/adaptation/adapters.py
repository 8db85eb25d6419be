"""The low-rank adapter of a run: its options, its learning rate, and how it takes over the update rule of a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from acclimate.adaptation.method import Method
from acclimate.adaptation.options import AdaptOptions
from acclimate.adaptation.tokenizer import sample_documents
from acclimate.base.device import choose_precision, default_device
from acclimate.base.errors import UserError
from acclimate.base.progress import print_message
from acclimate.base.registry import build_dataclass
from acclimate.data.documents import Corpus
from acclimate.data.token_dataset import TokenDataset
from acclimate.data.tokenizing import tokenize
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.models.adapters import PROBE_TEXTS, Adapter
from acclimate.models.batching import padding_policy, training_tokens
from acclimate.models.extensions import has_adapters
from acclimate.models.loading import LanguageModel
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
    return check_adapter(adapter, settings, quantize)


def identify_adapter(settings: Any) -> dict[str, Any] | None:
    """Return the settings of an adapter, with a fingerprint of general text in place of its name."""
    found = None if settings is None else asdict(settings)
    if found and found.get("general"):
        found["general"] = Corpus([found["general"]]).fingerprint
    return found


def choose_learning_rate(options: AdaptOptions, method: Method) -> float:
    """Return the peak learning rate: the user's, or the method's, or for an adapter a multiple of the method's."""
    if options.learning_rate is not None or options.adapter is None:
        return method.learning_rate if options.learning_rate is None else options.learning_rate
    times = ADAPTERS[options.adapter].rate
    rate = times * method.learning_rate
    print_message(
        f"Learning rate {rate:g}: {times:g} times that of the method, since only an adapter trains.",
        enabled=options.progress,
    )
    return rate


def add_adapter(
    options: AdaptOptions,
    settings: Any,
    loaded: LanguageModel,
    rows: TokenDataset,
    rule: UpdateRule | None,
) -> UpdateRule | None:
    """Add the adapter that the options ask for to a model, as ``loaded.adapter``.

    Args:
        options: Options of the run.
        settings: From :func:`resolve_adapter`; None for no adapter.
        loaded: The model, to which the method has added what it needs.
        rows: The training text; the exported model is compared with the trained one on the first of it.
        rule: The update rule of the method.

    Returns:
        The update rule that remains: none, if it scales the change of the weights, which the adapter then does.

    Raises:
        UserError: If the adapter does not fit the model or the method.
    """
    if settings is None or options.adapter is None:
        return rule
    if has_adapters(loaded.model):
        raise UserError("The model has adapters of its own; start from one without, or remove 'adapter'.")
    probe = [rows[number] for number in range(min(PROBE_TEXTS, len(rows)))]
    source = loaded.model.name_or_path if options.quantize else None
    kind = ADAPTERS[options.adapter]
    general = GeneralLoss(loaded, settings, options) if getattr(settings, "general", "") else None
    shared: dict[str, Any] = {"seed": options.seed, "probe": probe, "source": source, "general": general}
    loaded.adapter = kind(loaded.model, options.adapter, settings, **shared)
    print_message(loaded.adapter.describe(), enabled=options.progress)
    own = loaded.adapter.update_rule()
    if rule is None or not (factors := rule.delta_factors()):
        return CombinedRules([rule, own]) if rule and own else rule or own
    loaded.adapter.mask(factors)
    return own


class GeneralLoss:
    """The loss of a model on a sample of general text, with the same masks each time, and its gradients."""

    def __init__(self, loaded: LanguageModel, settings: Any, options: AdaptOptions) -> None:
        """Read the text.

        Args:
            loaded: The model, and its tokenizer.
            settings: Settings with ``general``, the source of the text, and ``tokens``, how much of it is read.
            options: The other options of the run.

        Raises:
            UserError: If there is no text.
        """
        sample, _ = sample_documents(Corpus([settings.general]), 20 * settings.tokens, progress=options.progress)
        assert options.max_length
        rows = tokenize(Corpus.of(sample), loaded.tokenizer, options.max_length, progress=False)
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
