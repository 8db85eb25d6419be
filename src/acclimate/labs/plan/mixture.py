"""`acclimate plan mixture`: the weights of several texts in a mixture, from one adaptation to each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import as_corpus, subsample_documents
from acclimate.data.mix.base import DOMAIN
from acclimate.evaluation.significance import paired_difference
from acclimate.labs.plan.options import MixtureOptions
from acclimate.labs.plan.plans import Estimate, Plan, in_words
from acclimate.merging.merger import Merger, Source
from acclimate.merging.path import merged_model
from acclimate.merging.rules import linear
from acclimate.study.inputs import HELDOUT_SHARE, SPLIT_SEED

LEAST_TOKENS, LEAST_DOCUMENTS, SHOWN, DIGITS = 1_000, 10, 10, 4
"""Minimum tokens of each adaptation and held-out documents of each text; mixtures shown, and decimals of weights."""
STEPS = (0.25, 0.12, 0.06)
"""Steps of the search towards a single text, from the best mixture so far."""
CHOOSE, CONFIRM = slice(0, None, 2), slice(1, None, 2)
"""The held-out documents that choose the mixture, and the others, on which its gain is measured."""
Weights = tuple[float, ...]


class Simulator:
    """Models that stand for trainings on mixtures: weighted sums of what adaptations to single texts have changed.

    With weights w the model is base + sum of w_k (adapted_k - base) (OP-Mix, Hu et al., 2026). As the w_k sum to 1,
    that is the weighted mean of the adapted models, and a weight of 1 is that model bit by bit.
    """

    def __init__(self, models: Sequence[Path], texts: Sequence[Sequence[str]], max_length: int) -> None:
        """Open models that were adapted from one base model; ``texts`` are the documents that they are measured on."""
        sources = [Source("model", str(model)) for model in models]
        self._merger = Merger(sources, 1e3, False, False, lambda *_: None)
        self._texts, self._max_length = texts, max_length
        self._measured: dict[Weights, list[tuple[np.ndarray, np.ndarray]]] = {}

    def write(self, folder: Path, weights: Weights) -> None:
        """Write the model of a mixture into an existing folder."""
        self._merger.write(folder, linear(weights))

    def measure(self, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return for each text the loss of each document in nats, and its predicted tokens: both (documents,)."""
        if weights not in self._measured:
            with (
                TemporaryDirectory() as work,
                merged_model(lambda folder: self.write(folder, weights), Path(work) / "model", self._max_length) as of,
            ):
                found = [of(texts) for texts in self._texts]
            self._measured[weights] = [
                (np.array(one["per_text"], dtype=float), np.array(one["per_text_masked"], dtype=float))
                for one in found
            ]
        return self._measured[weights]

    def losses(self, weights: Weights, places: slice) -> np.ndarray:
        """Return the mean loss on some documents of each text, in nats per predicted token (texts,)."""
        return np.array([nats[places].sum() / counts[places].sum() for nats, counts in self.measure(weights)])

    def difference(self, one: Weights, other: Weights, goal: np.ndarray) -> Estimate:
        """Return the difference of the goal, a weighted mean of losses, on documents that chose no mixture."""
        parts = []
        for (new, counts), (old, _) in zip(self.measure(one), self.measure(other), strict=True):
            weights, used = counts[CONFIRM], counts[CONFIRM] > 0
            after, before = (nats[CONFIRM][used] / weights[used] for nats in (new, old))
            parts.append(paired_difference(after, before, weights[used]))
        value = float(goal @ [part.difference for part in parts])
        reach = float(np.linalg.norm(goal * [(part.high - part.low) / 2 for part in parts]))
        return Estimate(value, value - reach, value + reach)


def search(score: Callable[[Weights], float], count: int, mixtures: int, seed: int = 0) -> dict[Weights, float]:
    """Return the mixtures of ``count`` texts that were tried, with their scores; lower is better.

    Equal weights, the single texts and random mixtures are tried first, ``mixtures`` in all; then, from the best one,
    steps towards each text and away from it, ever smaller ones.
    """
    tried = dict[Weights, float]()

    def attempt(weights: np.ndarray) -> None:
        inside = np.clip(weights, 0, None)
        rounded = (inside / inside.sum()).round(DIGITS)
        rounded[rounded.argmax()] += 1 - rounded.sum()
        key = tuple(rounded.round(DIGITS).tolist())
        if key not in tried:
            tried[key] = score(key)

    corners = np.eye(count)
    random = np.random.default_rng(seed).dirichlet(np.ones(count), max(0, mixtures - count - 1))
    for weights in [np.full(count, 1 / count), *corners, *random]:
        attempt(weights)
    for step in STEPS:
        best: Weights = ()
        while best != (best := min(tried, key=tried.__getitem__)):
            for corner in corners:
                for side in (step, -step):
                    attempt(np.array(best) + side * (corner - np.array(best)))
    return tried


def make_mixture_plan(options: MixtureOptions) -> Plan:
    """Adapt the model to each text, and search the mixture whose simulated model has the lowest loss."""
    texts = _check(options)
    share = 1 / len(texts) if options.domain_weight is None else options.domain_weight
    goal = np.array([share, *[(1 - share) / (len(texts) - 1)] * (len(texts) - 1)])
    simulator = _adapt_to_each(texts, options)
    tried = search(
        lambda weights: float(goal @ simulator.losses(weights, CHOOSE)), len(texts), options.mixtures, options.seed
    )
    ranked = sorted(tried, key=tried.__getitem__)
    best, equal = ranked[0], next(iter(tried))
    gain = simulator.difference(best, equal, goal)
    refused = "" if gain.high < 0 or best == equal else "it is not shown to be better than equal weights."
    rows = [
        {
            **{f"share of {name}": part for name, part in zip(texts, weights, strict=True)},
            "goal": tried[weights],
            **{f"loss on {n}": float(loss) for n, loss in zip(texts, simulator.losses(weights, CONFIRM), strict=True)},
        }
        for weights in ranked[:SHOWN]
    ]
    found = ", ".join(f"{part:.2f} {name}" for name, part in zip(texts, best, strict=True))
    lines = [
        f"No mixture is recommended; of the best one, {found}: {refused}" if refused else f"Mixture: {found}.",
        f"Simulated, its loss differs from the loss with equal weights by {in_words(gain.as_dict(), 4)} nats, on "
        f"documents that did not choose it; {len(tried)} mixtures were tried.",
        "A simulated mixture is no training on it: the more the adaptations change, the less they are alike.",
    ]
    values: dict[str, Any] = {
        "weights": dict(zip(texts, best, strict=True)),
        "goal": dict(zip(texts, goal.tolist(), strict=True)),
    }
    values |= {"gain": gain.as_dict(), "tried": len(tried), "refused": refused}

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(texts), sharey=True)
        for number, (axes, name) in enumerate(zip(panels, texts, strict=True)):
            axes.plot([weights[number] for weights in tried], list(tried.values()), "o", ms=3)
            axes.set(xlabel=f"share of {name}")
        panels[0].set_ylabel("goal, nats per token")

    return Plan("mixture", values, lines, "Simulated mixtures, the best first", rows, draw)


def _check(options: MixtureOptions) -> dict[str, Any]:
    """Return the texts by name, the domain text first."""
    names = {"--model": "model", "--corpus": "corpus", "--source": "sources", "--out": "out", "--tokens": "tokens"}
    if lacking := [flag for flag, name in names.items() if not getattr(options, name)]:
        raise UserError(f"A plan of a mixture needs {', '.join(names)}; give {' and '.join(lacking)}.")
    sources = options.sources or {}
    if DOMAIN in sources:
        raise UserError(f"'{DOMAIN}' is the name of the domain text; give the source another name.")
    if options.documents < LEAST_DOCUMENTS:
        raise UserError(f"--documents must be at least {LEAST_DOCUMENTS}: half of them choose, the others confirm.")
    if given := {"model", "corpus", "out"} & (options.settings or {}).keys():
        raise UserError(f"--set takes options of the adaptations, and the plan sets '{min(given)}'; remove it.")
    count = 1 + len(sources)
    if (options.tokens or 0) < LEAST_TOKENS * count:
        raise UserError(f"Adaptations to {count} texts need at least {LEAST_TOKENS * count:,} tokens; give more.")
    return {DOMAIN: options.corpus, **sources}


def _adapt_to_each(given: dict[str, Any], options: MixtureOptions) -> Simulator:
    """Adapt the model to each text with equal tokens, without the documents that are held out."""
    assert options.out is not None and options.tokens is not None and options.model is not None
    parts = {name: as_corpus(text, options).split(HELDOUT_SHARE, SPLIT_SEED) for name, text in given.items()}
    texts = [subsample_documents(heldout, options.documents) for _, heldout in parts.values()]
    for name, some in zip(parts, texts, strict=True):
        if len(some) < LEAST_DOCUMENTS:
            raise UserError(
                f"Of '{name}', {len(some)} documents are held out ({HELDOUT_SHARE:.0%}), and {LEAST_DOCUMENTS} are "
                "needed. Give more documents."
            )
    folders = [Path(options.out) / "adapters" / str(number) for number in range(len(parts))]
    usual = {"adapter": "lora", "max_length": options.max_length, "seed": options.seed, "progress": options.progress}
    for folder, (train, _) in zip(folders, parts.values(), strict=True):
        tokens = options.tokens // len(parts)
        adapt(options.model, train, out=folder, **{**usual, "tokens": tokens, **(options.settings or {})})
    return Simulator(folders, texts, options.max_length)
