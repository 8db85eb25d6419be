"""Prompts of decoders: templates and numbers of solved examples, of which each model gets the one that is best for it.

How well a model answers depends on the prompt, and two models prefer different ones. With one prompt for both, or one
that suits one side, a difference between prompts looks like a difference between models (Jeong et al., EMNLP 2024). So
each model chooses on dev, among the same prompts. The solved examples are from train, the same for all models.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.records import Record, optional
from acclimate.evaluation.significance import number_groups

ExampleT = TypeVar("ExampleT")
SHOTS = (0, 4)
"""Default numbers of solved examples in a prompt."""
LEAST_UNITS = 20
"""A seed chooses on a part of dev of its own, if that has at least so many items, or groups of them."""


class AskedPrompt(Record):
    """A prompt, and what a model answers to it.

    Attributes:
        template: The text, with names in braces that are replaced.
        shots: Number of solved examples before each item; None for the usual number of a benchmark.
        dev: Mean score on the items of dev that the model chose on.
        predicted: The predictions for the test split; None where it was not asked with this prompt.
        metrics: The metrics of these predictions.
    """

    template: str
    shots: int | None = 0
    dev: float | None = optional()
    predicted: list[Any] | None = optional()
    metrics: dict[str, Any] | None = optional()


def list_prompts(
    template: str | Sequence[str] | None, shots: int | Sequence[int] | None, usual: Sequence[str], has_dev: bool
) -> list[AskedPrompt]:
    """Return a prompt for each template and number of solved examples.

    Args:
        template: The templates that a user gave.
        shots: The numbers of solved examples that a user gave.
        usual: The templates of the kind of task.
        has_dev: Whether there is a dev split to choose on; without, the first of the usual prompts is used.
    """
    templates = [template] if isinstance(template, str) else template or usual[: None if has_dev else 1]
    several = has_dev and template is None and len(usual) > 1
    counts = [shots] if isinstance(shots, int) else shots or (SHOTS if several else (0,))
    return [AskedPrompt(template=one, shots=count) for one in templates for count in counts]


def choose_prompts(
    prompts: Sequence[AskedPrompt],
    ask: Callable[[AskedPrompt, Sequence[int]], Sequence[float]],
    groups: Sequence[Hashable],
    seeds: Sequence[int],
    all_seeds: Sequence[int],
) -> dict[int, int]:
    """Return the number of the prompt with the best mean score on dev for each seed, of equals the first.

    It sets ``dev`` of each prompt, the mean over the items of all these seeds.

    Args:
        prompts: The prompts.
        ask: Asks a model with a prompt, and returns the score of each of some items of dev. It must not read test.
        groups: The group of each item of dev.
        seeds: The seeds that choose.
        all_seeds: All seeds of the comparison, each of which chooses on its own part of dev; see :func:`part_of_dev`.
    """
    parts = {seed: part_of_dev(groups, all_seeds.index(seed), len(all_seeds)) for seed in seeds}
    places = sorted({place for part in parts.values() for place in part})
    table = np.array([ask(prompt, places) for prompt in prompts], dtype=float)
    for prompt, scores in zip(prompts, table, strict=True):
        prompt.dev = float(scores.mean())
    return {seed: int(table[:, np.searchsorted(places, part)].mean(1).argmax()) for seed, part in parts.items()}


def part_of_dev(groups: Sequence[Hashable], part: int, parts: int) -> list[int]:
    """Return the items of dev that a seed chooses a prompt on.

    One choice for all seeds would be a chance that they share, which no interval over seeds contains: with 20 prompts,
    3 seeds and 60 items, 12 % of the differences between equal models would be called true. Parts make the choices of
    the seeds independent. A dev split with too few items for parts of :data:`LEAST_UNITS` is used whole.

    Args:
        groups: The group of each item; items of one group stay together.
        part: Number of the seed among those of the study.
        parts: Number of seeds.
    """
    units = number_groups(groups)
    order = list(range(max(units, default=-1) + 1))
    random.Random("parts of dev").shuffle(order)
    if len(order) < parts * LEAST_UNITS:
        return list(range(len(units)))
    mine = set(order[part::parts])
    return [place for place, unit in enumerate(units) if unit in mine]


def solved_examples(train: Sequence[ExampleT], count: int | None, classes: Sequence[Hashable]) -> list[ExampleT]:
    """Return train examples for a prompt, drawn at random with each class in turn; more begin with the same ones.

    Args:
        train: The train split.
        count: Number of examples, or all if there are fewer; None for none.
        classes: The class of each example; empty for tasks without classes.
    """
    order = random.Random("solved examples").sample(range(len(train)), len(train))
    waiting: dict[Hashable, deque[int]] = {}
    for place in order:
        waiting.setdefault(classes[place] if classes else None, deque()).append(place)
    drawn = list[ExampleT]()
    while waiting and len(drawn) < (count or 0):
        drawn += [train[places.popleft()] for places in waiting.values()]
        waiting = {key: places for key, places in waiting.items() if places}
    return drawn[: count or 0]


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return a template with values for the names in braces that it has; braces in values stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template).strip("\n ")


def check_fields(template: str, needed: Sequence[str], allowed: Sequence[str] = ()) -> None:
    """Check that a template has the names in braces that it needs, and no others.

    Raises:
        UserError: If not.
    """
    found = re.findall(r"\{(\w+)\}", template)
    if missing := [name for name in needed if name not in found]:
        raise UserError(f"The prompt {template!r} has no place for the text; write {{{missing[0]}}} where it belongs.")
    if unknown := [name for name in found if name not in (*needed, *allowed)]:
        raise UserError(f"The prompt {template!r} has {{{unknown[0]}}}, which the task does not have; remove it.")
