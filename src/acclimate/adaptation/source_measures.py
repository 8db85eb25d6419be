"""What a mix may ask about its sources: held-out losses, inner products of their gradients, and their excess loss.

The latter two are measured on samples of the training text that are drawn anew each time, in two halves per source.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from acclimate.adaptation.mixture import Measurement, MixCallback, Mixture, SharedStart
from acclimate.adaptation.run import Run
from acclimate.base.device import Precision, autocast, in_full, preserve_rng_state, to_device
from acclimate.base.errors import UserError
from acclimate.base.progress import print_message
from acclimate.data.mix.base import AdaptiveMix, Measure
from acclimate.engine.batches import Collator, SharedTexts
from acclimate.engine.distributed import ProcessGroup
from acclimate.engine.steps import Engine
from acclimate.engine.trainer import CallbackFactory
from acclimate.models.kinds import kind_of
from acclimate.models.loading import LanguageModel, load_language_model
from acclimate.models.probe import attach
from acclimate.parts.objectives import Batch, LanguageModelling, Objective, View
from acclimate.parts.objectives.vocabulary import cross_entropy

log = logging.getLogger(__name__)

Halves = tuple[list[Batch], list[Batch]]
"""The micro-batches of two halves of the sample of a source that this process reads."""


class SourceSampler:
    """Draws texts of each source, as a function of the seed and the number of the draw alone."""

    def __init__(self, texts: SharedTexts, sizes: Sequence[int], count: int, seed: int) -> None:
        """Prepare drawing.

        Args:
            texts: The texts of all sources, one source after the other.
            sizes: Texts per source.
            count: Texts per source and draw; all of a source if it has fewer.
            seed: Random seed.

        Raises:
            UserError: If a half would have fewer texts than there are processes.
        """
        self._texts, self._count, self._seed = texts, count, seed
        self._ranges = list(zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True))
        if min(*sizes, count) < 2 * texts.group.size:
            raise UserError(
                f"The mix measures two halves of at least {texts.group.size} text(s) of each source, and a source or "
                "its sample has fewer texts; give more text, or a mix that measures nothing, such as fixed."
            )

    def draw(self, number: int) -> list[Halves]:
        """Return the sample of each source."""
        rng = np.random.default_rng([self._seed, 6, number])
        found = []
        for source, (first, size) in enumerate(self._ranges):
            chosen = (first + rng.choice(size, min(size, self._count), replace=False)).tolist()
            middle = len(chosen) // 2
            place = 2 * (number * len(self._ranges) + source)
            found.append((self._texts.read(place, chosen[:middle]), self._texts.read(place + 1, chosen[middle:])))
        return found


class GradientProducts(NamedTuple):
    """Inner products of the gradients of the loss on each source.

    Attributes:
        products: (sources, sources), float64. On the diagonal it is the product of the gradients of two halves of the
            sample: an unbiased estimate, where the squared norm of a sampled gradient contains its sampling noise.
        norms: Norm of the gradient of each sample (sources,).
    """

    products: np.ndarray
    norms: np.ndarray


def measure_gradient_products(engine: Engine, samples: Sequence[Halves], seed: int = 0) -> GradientProducts:
    """Compute the gradient of the loss of a training on each source, and the products of all pairs.

    Each sample is read once, forward and backward, as a training step reads it (with dropout). One gradient per source
    is kept, as large as all trained weights. Afterwards no parameter has a gradient; the random state is unchanged.

    Args:
        engine: The engine in training, between two steps.
        samples: The two halves of each source.
        seed: Random seed of dropout.

    Raises:
        UserError: If the weights are sharded.
    """
    weights = [weight for weight in engine.model.parameters() if weight.requires_grad]
    if any(isinstance(weight, DTensor) for weight in weights):
        raise UserError("A mix that reads gradients needs whole weights; choose another mix, or leave out --fsdp.")
    products = np.zeros((len(samples), len(samples)))
    norms = np.zeros(len(samples))
    kept: list[Tensor] = []
    with preserve_rng_state():
        engine.group.seed_dropout(seed)
        for number, halves in enumerate(samples):
            first, second = (_gradient(engine, half, weights) for half in halves)
            products[number, number] = torch.dot(first, second)
            whole = first.add_(second).div_(2)
            norms[number] = torch.linalg.vector_norm(whole)
            for other, gradient in enumerate(kept):
                products[number, other] = products[other, number] = torch.dot(whole, gradient)
            kept.append(whole)
    return GradientProducts(products, norms)


def _gradient(engine: Engine, batches: list[Batch], weights: Sequence[nn.Parameter]) -> Tensor:
    """Return the gradient of the loss on some micro-batches with respect to all weights: float32 (values,)."""
    device, training = weights[0].device, engine.model.training
    engine.model.train()
    try:
        engine.step([batch.to(device) for batch in batches])
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in weights]
        return torch.cat([part.float().flatten() for part in parts]).div_(engine.loss_scale)
    finally:
        engine.model.zero_grad(set_to_none=True)
        engine.model.train(training)


class ExcessLoss(NamedTuple):
    """The language-model loss of the model in training and of a reference on a sample of each source: (sources,).

    Attributes:
        loss: Mean loss of the model in training.
        reference: Mean loss of the reference.
        excess: Mean over tokens of how much the loss of a token exceeds that of the reference, or 0.
    """

    loss: np.ndarray
    reference: np.ndarray
    excess: np.ndarray


def measure_excess_loss(engine: Engine, reference: Engine, samples: Sequence[Halves]) -> ExcessLoss:
    """Compare the model in training with a reference, token by token and without dropout (DoReMi, Xie et al., 2023).

    Args:
        engine: The engine in training.
        reference: An engine of the reference; only its model matters.
        samples: The two halves of each source.
    """
    sums = []
    for first, second in samples:
        mine, theirs = (_token_losses(one, [*first, *second]) for one in (engine, reference))
        excess = (mine - theirs).clamp(min=0)
        sums.append(torch.stack([mine.sum(), theirs.sum(), excess.sum(), torch.ones_like(mine).sum()]))
    (found,) = engine.group.add([torch.stack(sums)])
    values = found.cpu().numpy()
    return ExcessLoss(*(values[:, :3] / np.maximum(values[:, 3:], 1)).T)


@torch.no_grad()
def _token_losses(engine: Engine, batches: Sequence[Batch]) -> Tensor:
    """Return the language-model loss of each labelled token (tokens,), float64."""
    model, training = engine.model, engine.model.training
    view = View() if kind_of(model).uses_masking else View().unmasked
    found = [in_full(torch.zeros(0, device=model.device))]
    model.eval()
    try:
        with engine.step_context(), autocast(engine.precision, model.device):
            for batch in (batch.to(model.device) for batch in batches):
                outputs = engine.read(batch, [view])
                found.append(in_full(outputs.map_logits(cross_entropy, (view,), batch.targets)))
        return torch.cat(found)
    finally:
        model.train(training)


def load_reference(path: str, loaded: LanguageModel, precision: Precision, group: ProcessGroup) -> Engine:
    """Return an engine of the reference model of a mix.

    Args:
        path: Folder or name of the reference model.
        loaded: The model in training and its tokenizer.
        precision: Precision of the forward pass.
        group: The processes of the run.

    Raises:
        UserError: If there is no such model, or it has another kind or vocabulary.
    """
    found = load_language_model(path)
    if found.kind is not loaded.kind or found.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise UserError(
            f"The reference '{path}' of the mix reads other tokens than the model in training; give a model that was "
            "adapted from the same base model."
        )
    attach(to_device(found.model))
    return Engine(found.model.requires_grad_(False), [LanguageModelling()], precision, group=group)


@dataclass(frozen=True)
class SourceMeter:
    """Measures what a mix reads of samples of its sources.

    Attributes:
        engine: The engine in training.
        sampler: Draws the samples.
        reads: What the mix reads.
        reference: The engine of the reference model; None if the mix reads none of it.
        seed: Random seed of dropout.
    """

    engine: Engine
    sampler: SourceSampler
    reads: Sequence[Measure]
    reference: Engine | None
    seed: int

    def measure(self, number: int) -> dict[str, np.ndarray]:
        """Return the fields of :class:`~acclimate.data.mix.base.Round` that the mix reads.

        Args:
            number: Number of the round, which decides the sample.
        """
        samples = self.sampler.draw(number)
        found: dict[str, np.ndarray] = {}
        if "gradients" in self.reads:
            products = measure_gradient_products(self.engine, samples, self.seed + number)
            found |= {"gradients": products.products, "gradient_norms": products.norms}
        if self.reference is not None:
            found["excess_loss"] = measure_excess_loss(self.engine, self.reference, samples).excess
        return found


def watch_sources(run: Run) -> list[CallbackFactory]:
    """Let the engine of a run record the losses of its sources; return what makes the callback that asks the mix."""
    mixture, engine = run.mixture, run.engine
    if mixture is None or mixture.ledger is None:
        return []
    engine.ledger = mixture.ledger
    measure = make_measurement(mixture, engine, run.loaded, run.alike, run.options.seed)
    if measure is not None:
        print_message(describe_cost(mixture), enabled=run.progress)
    warn_of_delay(mixture)
    start = SharedStart.of(mixture, run.config) if engine.group.size == 1 else None
    if start is not None:
        start.use(run.work / "steps")
    return [lambda trainer: MixCallback(trainer, mixture, measure, start)]


def warn_of_delay(mixture: Mixture) -> None:
    """Warn if a training is too short for its mix to change the weights."""
    mix = mixture.mix
    if isinstance(mix, AdaptiveMix) and not mixture.timed and mixture.steps <= (first := mix.every * mix.delay):
        log.warning(
            "The mix '%s' changes no weight before step %s, and the training has %s; give a smaller 'every'.",
            *(mix.name, f"{first:,}", f"{mixture.steps:,}"),
        )


SAMPLE_TEXTS = 32
"""Texts of each source in a sample, where the mix does not say it."""


def describe_cost(mixture: Mixture) -> str:
    """Return how many texts a proposal of the mix reads, compared with the steps until the next one."""
    mix = mixture.mix
    assert mix is not None
    sample = sum(min(len(text.rows), getattr(mix, "texts", SAMPLE_TEXTS)) for text in mixture.weighted)
    held = sum(len(text.heldout) for text in mixture.weighted if text.heldout is not None)
    costs = {
        "gradients": f"{sample:,} texts forward and backward",
        "excess_loss": f"{sample:,} texts in the model and in the reference",
        "heldout_loss": f"{held:,} held-out texts",
    }
    read = " and ".join(cost for name, cost in costs.items() if name in mix.reads) or "nothing"
    if not isinstance(mix, AdaptiveMix):
        return f"Each proposal of the mix reads {read}."
    trained = mix.every * mixture.batch_size
    return f"Each proposal of the mix reads {read}; the {mix.every:,} steps until the next one read {trained:,} texts."


def make_measurement(
    mixture: Mixture, engine: Engine, loaded: LanguageModel, collator: Collator, seed: int
) -> Measurement | None:
    """Return the function that measures what a mix reads, given the number of the round; None if it reads nothing.

    Args:
        mixture: The texts and the mix.
        engine: The engine in training.
        loaded: The model and its tokenizer.
        collator: Makes micro-batches that are masked alike for all methods.
        seed: Random seed.

    Raises:
        UserError: If the mix reads the loss in training, and the method has no language-model loss; the reference
            does not fit the model; or a source has too few texts.
    """
    mix = mixture.mix
    if mix is None or len(mixture.weighted) < 2:
        return None
    reads = set(mix.reads)
    if "train_loss" in reads and all(type(term).token_losses is Objective.token_losses for term in engine.additive):
        raise UserError(
            f"The mix '{mix.name}' reads the language-model loss, which this method does not have; choose "
            "another mix, or one that reads the held-out loss."
        )
    if not reads - {"train_loss"}:
        return None
    reference, meter = None, None
    if reads & {"reference_loss", "excess_loss"}:
        name = getattr(mix, "reference", "") or str(loaded.model.name_or_path)
        reference = load_reference(name, loaded, engine.precision, engine.group)
    if reads & {"gradients", "excess_loss"}:
        texts = SharedTexts(mixture.rows, collator, (seed, 8), engine.group)
        count = getattr(mix, "texts", SAMPLE_TEXTS)
        sampler = SourceSampler(texts, [len(text.rows) for text in mixture.weighted], count, seed)
        meter = SourceMeter(engine, sampler, tuple(reads), reference if "excess_loss" in reads else None, seed)
    rows = [text.heldout for text in mixture.weighted if text.heldout is not None]
    rng = np.random.default_rng([seed, 9])
    heldout = [collator([np.asarray(row) for row in one], rng) for one in rows]

    def losses(of: Engine) -> np.ndarray:
        found = torch.stack([_token_losses(of, batches).mean() for batches in heldout])
        (total,) = of.group.add([found])  # alike in all processes, whatever their rounding
        return np.array(total.cpu() / of.group.size)

    base = losses(reference) if reference is not None and "reference_loss" in reads else None

    def measure(number: int) -> dict[str, np.ndarray]:
        ledger, engine.ledger = engine.ledger, None  # what is measured is not what the training reads
        try:
            found = {} if meter is None else meter.measure(number)
            if "heldout_loss" in reads:
                found["heldout_loss"] = losses(engine)
            return found if base is None else {**found, "reference_loss": base}
        finally:
            engine.ledger = ledger

    return measure
