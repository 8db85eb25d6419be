"""Plan of ``acclimate auto`` for a budget: entrants that fit the model and the text, and rungs of the race."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.records import Record, optional
from acclimate.study.settings import UNADAPTED
from acclimate.tasks.groups import FEW_GROUPS

BASE, CHEAPEST = UNADAPTED, "lm"
"""Labels of the base model and of the entrant that is cheapest to train; both reach the end of every race."""
MOST_ENTRANTS = 12
"""Maximum number of entrants that are trained, the base model included."""
ETA = 3
"""Tokens of a rung divided by the tokens of the rung below it."""
RUNGS = 3
"""Number of rungs; two if the budget has no tokens for the lowest one."""
RACE_SEEDS = 2
"""Adaptations and fine-tunings of each entrant in a rung; the racing test needs more than one."""
CLAIM_SEEDS, MOST_CLAIM_SEEDS = 3, 10
"""Minimum and maximum number of fresh seeds of the claim."""
CLAIM_SHARE = 0.4
"""Share of the time that is kept for the claim."""
RESERVE = 0.1
"""Share of the time that is kept for what was not timed, such as reading the texts and the report."""
FEWEST_TOKENS = 20_000
"""Tokens of the shortest adaptation from which anything can be learned about a method."""
ENOUGH_TOKENS = 300_000
"""Tokens of the longest adaptation below which entrants are left out rather than trained for less."""
FEWEST_DEV_ITEMS, FEWEST_DEV_GROUPS = 400, 2 * FEW_GROUPS
"""Dev items, or groups of items that are not independent, below which there is no race: half of them could not tell a
good entrant from a bad one."""
BROAD = 10
"""Minimum documents per train row for corpus selection to be worthwhile."""
LOW_RATE = 3e-5
INTERPOLATION = 0.5
"""Share of the adapted model in the interpolation with the base model."""
HEAVY_MINUTES = 180
"""Minutes from which methods with long preparations are tried."""


class Entrant(Record):
    """A candidate.

    Attributes:
        label: Row label.
        reason: Why it takes part, a sentence.
        method: Entry of ``methods`` in a study file.
        merge: Entry of ``merges``, for a model that is made of the model of the method without further training.
    """

    label: str
    reason: str
    method: dict[str, Any]
    merge: dict[str, Any] | None = optional()

    @property
    def trained(self) -> str:
        """Label of the entrant whose training it needs: its own, or the training of the one that it is made of."""
        return self.label if self.merge is None else str(self.merge["of"])


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts that the choice of entrants depends on.

    Attributes:
        kind: Name of the kind of the model.
        embeds: Whether it is a sentence encoder.
        documents: Documents of the domain text.
        train_rows: Train rows of all tasks.
        replayable: Whether there is general text that no loss is measured on.
        replays: Whether adaptations replay it by default.
        minutes: The time for everything.
        instruct: The instruction-tuned model of the same base, for a chat vector; None for none.
        usable: Returns why a method cannot adapt the model; None if it can.
        rates: What a search of the learning rate of fine-tuning tries, see :class:`Plan`.
    """

    kind: str
    embeds: bool = False
    documents: int
    train_rows: int
    replayable: bool
    replays: bool = False
    minutes: float
    instruct: str | None = None
    usable: Callable[[str], str | None] = lambda name: None
    rates: list[list[float | None]] = field(default_factory=list)


class Skipped(Record):
    """An entrant that does not take part, and why."""

    label: str
    reason: str


def choose_entrants(facts: Facts) -> tuple[list[Entrant], list[Skipped]]:
    """Return the entrants that fit, the most promising first, and those that do not, with reasons.

    The base model is the first and plain training the second. Settings are the defaults of the methods.
    """
    broad = facts.documents >= BROAD * facts.train_rows
    heavy = facts.minutes >= HEAVY_MINUTES
    replay = "General text among the domain text is the best-tested way to forget less."
    no_replay = (
        None if facts.replayable else "it needs general text other than the text that forgetting is measured on"
    )
    short = f"its preparation takes long: give {HEAVY_MINUTES} minutes"
    candidates: list[tuple[str, dict[str, Any], str, str | None]] = [
        ("lm, low rate", {"name": "lm", "adapt": {"learning_rate": LOW_RATE}}, "A low rate forgets less.", None),
        (
            ("lm, no replay", {"name": "lm", "adapt": {"replay": 0.0}}, "All tokens are of the domain.", None)
            if facts.replayable and facts.replays
            else ("lm + replay", {"name": "lm", "adapt": {"replay": 0.1}}, replay, no_replay)
        ),
        ("tapt", {"name": "tapt"}, "The text of the task is the closest to the task.", None),
        (
            "lm, nearest text",
            {"name": "lm", "select": {"nearest": {}}},
            "The text is broad, so its documents near the task may be enough.",
            None if broad else f"the text has fewer than {BROAD} documents per train row, too few to choose from",
        ),
        ("lssd", {"name": "lssd"}, "Its soft targets keep what the model knows, at little cost.", None),
        (
            "lm, LoRA",
            {"name": "lm", "adapt": {"adapter": "lora"}},
            "A low-rank adapter changes little of the model.",
            None,
        ),
        ("dga", {"name": "dga"}, "It protects the heads that matter for general knowledge.", None),
        ("kd", {"name": "kd"}, "The base model is a teacher on general knowledge.", None),
        ("self-distill", {"name": "self-distill"}, "It suits small corpora.", None if heavy else short),
        ("selective", {"name": "selective"}, "It masks what matters for the task.", None if heavy else short),
    ]
    plain = Entrant(label=CHEAPEST, reason="Plain training costs least and reaches the end.", method={"name": "lm"})
    if facts.embeds:
        denoising = ("tsdae", {"name": "tsdae"}, "It trains the embedding of the whole text.", None)
        contrast = ("simcse", {"name": "simcse"}, "It spreads out the embeddings of different texts.", None)
        candidates = [denoising, contrast, *candidates]
    found = [Entrant(label=BASE, reason="The base model is in every race.", method={"name": BASE}), plain]
    skipped = []
    for label, method, reason, why in candidates:
        why = why or facts.usable(str(method["name"]))
        if why is None and len(found) == MOST_ENTRANTS:
            why = f"there are {MOST_ENTRANTS} entrants already"
        if why is None:
            found.append(Entrant(label=label, reason=reason, method={"label": label, **method}))
        else:
            skipped.append(Skipped(label=label, reason=why))
    return found, skipped


def afterwards(entrant: Entrant, instruct: str | None) -> list[Entrant]:
    """Return the entrants that are made of a trained one without further training."""
    label = entrant.label
    made = [
        Entrant(
            label=f"{label}, half-way",
            reason=f"{label} averaged with the base model.",
            method=entrant.method,
            merge={"of": label, "method": {"interpolation": INTERPOLATION}, "label": f"{label}, half-way"},
        )
    ]
    if instruct is not None:
        made.append(
            Entrant(
                label=f"{label}, chat vector",
                reason=f"{label} with the difference that instruction tuning made.",
                method=entrant.method,
                merge={"of": label, "method": {"chat-vector": instruct}, "label": f"{label}, chat vector"},
            )
        )
    return made


class Price(Record):
    """Cost of one adaptation in seconds: fixed and per token."""

    overhead: float
    per_token: float

    def seconds(self, tokens: float) -> float:
        """Return the duration of an adaptation."""
        return self.overhead + self.per_token * tokens


class Prices(Record):
    """Durations measured on this machine.

    Attributes:
        scoring: Seconds of one fine-tuning on every task, with its evaluation.
        measuring: Seconds of measuring the losses of one model.
        adapting: Price of an adaptation, by label.
        timing: Seconds that the timing took.
    """

    scoring: float
    measuring: float
    adapting: dict[str, Price] = field(default_factory=dict)
    timing: float = 0.0

    def model(self, label: str, tokens: float) -> float:
        """Return the seconds of one model: adapted, measured, fine-tuned and scored."""
        return self.adapting[label].seconds(tokens) + self.measuring + self.scoring


class Rung(Record):
    """One rung of the race.

    Attributes:
        tokens: Tokens per adaptation.
        width: Maximum number of trained entrants besides the base model.
    """

    tokens: int
    width: int


class Plan(Record):
    """The plan of a tournament.

    Attributes:
        entrants: The entrants, base and cheapest first.
        skipped: Entrants that do not take part, with reasons.
        prices: What was timed.
        rungs: The rungs, with ascending tokens. Without a race there is one, and nothing is run in it.
        race_seconds: Expected seconds of the race, if no entrant is dropped before it has to be.
        claim_seconds: Expected seconds of the claim, with its minimum number of seeds and its most expensive entrant.
        budget: Seconds for both, of all processes together.
        extras: Entrants that are made of each survivor in the last rung.
        parallel: Jobs that run at the same time.
        searching: Expected seconds of the search of the learning rate; 0 without one.
        rates: Learning rates of fine-tuning that are tried, by trial and task; None where a task has its own.
        races: Whether there is a race.
        settings: Changes of the study that make it fit into the time, by dotted path.
        notes: What the user should know, in sentences.
    """

    entrants: list[Entrant]
    skipped: list[Skipped]
    prices: Prices
    rungs: list[Rung]
    race_seconds: float
    claim_seconds: float
    budget: float
    extras: int = 1
    parallel: int = 1
    searching: float = 0.0
    rates: list[list[float | None]] = field(default_factory=list)
    races: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of an adaptation in the last rung and in the claim."""
        return self.rungs[-1].tokens


def widths(entrants: int, rungs: int) -> list[int]:
    """Return the maximum number of trained entrants in each rung: about half of them go on, and at least two."""
    return [max(min(2, entrants), math.ceil(entrants / 2**number)) for number in range(rungs)]


def race_seconds(labels: Sequence[str], rungs: Sequence[Rung], prices: Prices, extras: int) -> float:
    """Return the seconds of a race in which the most expensive entrants survive: no race takes longer at these prices.

    Args:
        labels: Labels of the trained entrants.
        rungs: The rungs.
        prices: The prices.
        extras: Entrants that are made of each survivor in the last rung.
    """
    total = RACE_SEEDS * prices.scoring + prices.measuring
    for rung in rungs:
        costs = sorted((prices.model(label, rung.tokens) for label in labels), reverse=True)[: rung.width]
        more = extras * len(costs) * (prices.measuring + prices.scoring) if rung is rungs[-1] else 0.0
        total += RACE_SEEDS * (sum(costs) + more)
    return total


def claim_seconds(labels: Sequence[str], tokens: float, prices: Prices, seeds: int) -> float:
    """Return the seconds of a claim about the most expensive of some entrants."""
    costly = max(prices.model(label, tokens) for label in labels)
    return seeds * (costly + prices.scoring) + prices.measuring


def idle_seconds(labels: Sequence[str], tokens: float, prices: Prices, parallel: int) -> float:
    """Return how long the other processes may wait for the last model of a stage (Graham, 1969)."""
    return (parallel - 1) * max(prices.model(label, tokens) for label in labels)


def why_no_race(dev_items: int, dev_groups: int | None, drawn: float | None = None) -> str:
    """Return why there is no race, and what would allow one; empty if there are enough dev items and groups.

    Args:
        dev_items: Items of the dev splits.
        dev_groups: Groups of these, such as documents; None if each item is independent.
        drawn: Share of the rows that the dev splits are; None if they were not drawn.
    """
    if dev_items < FEWEST_DEV_ITEMS:
        held, fewest, more = f"{dev_items} items", FEWEST_DEV_ITEMS, FEWEST_DEV_ITEMS - dev_items
        needed = f"{more:,} more dev rows"
    elif dev_groups is not None and dev_groups < FEWEST_DEV_GROUPS:
        held, fewest = f"{dev_items} items of {dev_groups} groups that are independent", FEWEST_DEV_GROUPS
        more = FEWEST_DEV_GROUPS - dev_groups
        needed = f"dev rows of {more:,} more groups"
    else:
        return ""
    how = (
        ""
        if drawn is None
        else f": dev was drawn, so give {math.ceil(more / drawn):,} more labelled rows or groups, or"
    )
    return (
        f"The dev splits have {held}. Half of fewer than {fewest} cannot tell a good entrant from a bad one, so there "
        f"is no race: {CHEAPEST} is compared with the base model on all of them. {needed} would allow a race{how}"
        f"{' a folder with files of train, dev and test' if how else ''}."
    )


def make_plan(
    entrants: Sequence[Entrant],
    skipped: Sequence[Skipped],
    prices: Prices,
    *,
    minutes: float,
    corpus_tokens: float,
    dev_items: int,
    dev_groups: int | None = None,
    drawn: float | None = None,
    most_tokens: int | None = None,
    parallel: int = 1,
    extras: int = 1,
    searching: float = 0.0,
) -> Plan:
    """Return the plan that makes the most of the time.

    Adaptations get as many tokens as there is time for, at most one pass over the text. Where that is too little,
    entrants are left out, the last ones first.

    Args:
        entrants: Entrants, base and cheapest first, then the most promising first.
        skipped: Entrants that were left out before.
        prices: What was timed, with an entry for each entrant that trains.
        minutes: The time for everything.
        corpus_tokens: Tokens of the domain text.
        dev_items: Items of the dev splits.
        dev_groups: Groups of these that are independent, such as documents; None if each item is.
        drawn: See :func:`why_no_race`.
        most_tokens: Maximum tokens per adaptation; None for one pass over the text.
        parallel: Jobs that run at the same time at the speed that was timed.
        extras: Entrants that are made of each survivor in the last rung.
        searching: Seconds of the search of the learning rate.

    Raises:
        UserError: If the budget cannot fill two rungs and the claim; it says what would.
    """
    budget = (60 * minutes * (1 - RESERVE) - prices.timing - searching) * parallel
    most = float(most_tokens or max(corpus_tokens, ETA * FEWEST_TOKENS))
    own, left_out = list(entrants), list(skipped)
    why = why_no_race(dev_items, dev_groups, drawn)
    races, notes = not why, [why] if why else []
    if why:
        left_out += [Skipped(label=one.label, reason="there are too few dev items to choose by") for one in own[2:]]
        del own[2:]
    while True:
        labels = [one.label for one in own if one.label != BASE]
        needed = partial(_needed, labels, prices=prices, races=races, extras=extras, parallel=parallel)
        tokens, fewest = _longest(needed, budget, most), _fewest(most, races)
        enough = min(most, ENOUGH_TOKENS) if len(labels) > 2 else fewest
        if tokens >= enough:
            break
        if len(labels) == 1:
            total = math.ceil((needed(fewest) / parallel + prices.timing + searching) / 60 / (1 - RESERVE) + 1e-9)
            raise UserError(
                f"{minutes:g} minutes are too short for {'two rungs and the claim' if races else 'the claim'}: with "
                f"{labels[0]} alone, adaptations of {fewest:,.0f} tokens and {CLAIM_SEEDS} fresh seeds, this machine "
                f"needs about {total} minutes. Give them, a smaller task or a smaller model."
            )
        gone = own.pop()
        left_out.append(Skipped(label=gone.label, reason=f"there is no time for it in {minutes:g} minutes"))
    rungs = _rungs(tokens, len(labels), races)
    return Plan(
        entrants=own,
        skipped=left_out,
        prices=prices,
        rungs=rungs,
        race_seconds=race_seconds(labels, rungs, prices, extras) if races else 0.0,
        claim_seconds=claim_seconds(labels, rungs[-1].tokens, prices, CLAIM_SEEDS),
        budget=budget,
        extras=extras,
        parallel=parallel,
        searching=searching,
        races=races,
        notes=notes,
    )


def _fewest(most: float, races: bool) -> float:
    """Return the fewest tokens of the longest adaptation: two rungs need the minimum in the lower one."""
    return min(most, float(ETA * FEWEST_TOKENS if races else FEWEST_TOKENS))


def _rungs(tokens: float, entrants: int, races: bool) -> list[Rung]:
    """Return the rungs of a race whose last rung has so many tokens, rounded down to two digits."""
    count = 1
    if races:
        count = next((n for n in range(RUNGS, 2, -1) if tokens / ETA ** (n - 1) >= FEWEST_TOKENS), 2)
    sizes = [_round_down(tokens / ETA ** (count - 1 - number)) for number in range(count)]
    return [Rung(tokens=size, width=width) for size, width in zip(sizes, widths(entrants, count), strict=True)]


def _round_down(number: float) -> int:
    unit = 10 ** max(0, int(math.log10(max(1.0, number))) - 1)
    return max(1, int(number // unit * unit))


def _needed(labels: Sequence[str], tokens: float, prices: Prices, races: bool, extras: int, parallel: int) -> float:
    """Return the budget that race and claim need, with so many tokens in the longest adaptations."""
    claim = claim_seconds(labels, tokens, prices, CLAIM_SEEDS) + idle_seconds(labels, tokens, prices, parallel)
    if not races:
        return claim
    rungs = _rungs(tokens, len(labels), races)
    idle = sum(idle_seconds(labels, rung.tokens, prices, parallel) for rung in rungs)
    return max(claim / CLAIM_SHARE, (race_seconds(labels, rungs, prices, extras) + idle) / (1 - CLAIM_SHARE))


def _longest(needed: Callable[[float], float], budget: float, most: float) -> float:
    """Return the most tokens of the longest adaptation that fit into the budget; about 0 if none do."""
    if needed(most) <= budget:
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) <= budget else (low, middle)
    return low


def reprice(prices: Prices, label: str, tokens: float, seconds: float) -> Prices:
    """Return the prices with the speed of an adaptation replaced by what it took in a rung.

    Args:
        prices: The prices.
        label: The entrant.
        tokens: Tokens of its adaptations in the rung.
        seconds: Their mean duration.
    """
    old = prices.adapting[label]
    overhead = min(old.overhead, seconds)
    found = Price(overhead=overhead, per_token=(seconds - overhead) / max(1.0, tokens))
    return replace(prices, adapting={**prices.adapting, label: found})
