"""Requirements on results, such as ``"reviews > 0"``: met, not met or undecided, each with an exit code.

A requirement is a name, one of ``>``, ``>=``, ``<``, ``<=``, and a number in the unit that results are shown in:
percentage points for differences of scores, percent for scores, nats per token for losses, else the unit of what is
measured. The name is everything before the sign, so it may hold blanks, commas and slashes. Further metrics of a task
are named ``TASK:METRIC``.

It is met if the whole 95 % interval satisfies it, not met if the whole interval violates it, and undecided if the
interval has values of both kinds, or if there is none. At equality the sign decides: an interval that ends at 0
satisfies ``>= 0`` and violates ``> 0`` there.

If several things are compared, a requirement has to hold for each: a gate that passes because one of ten methods
passes would be a claim about the best of ten, which needs a correction. Here all requirements have to hold, for
everything they name, so each can be tested at the full level (intersection-union test, Berger, 1982): the probability
that a gate opens although a requirement does not hold is at most that of this one error, nominally 2.5 %. This is
true of requirements that were written down before the results were seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from acclimate.base.errors import UserError, shorten, unknown_name_error
from acclimate.base.records import Record
from acclimate.results.cells import plain, rounded, signed
from acclimate.results.scores import NOT_LEARNED, WITHHELD, Interval

MET, NOT_MET, UNDECIDED = "met", "not met", "undecided"
EXIT_CODES = {NOT_MET: 1, UNDECIDED: 3, MET: 0}
"""Exit codes by state, the worst state first."""
MAX_SHOWN = 3
"""Maximum results that the line of a requirement has."""
WHY = {
    WITHHELD: "one seed or adaptation, so the variance between trainings is unknown",
    NOT_LEARNED: "the models have not learned the task",
}
"""Why there is no verdict, by what stands instead of it."""
FORM = re.compile(r"(.*[^\s<>=!])\s*(>=|<=|>|<)\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", re.DOTALL)


class Requirement(NamedTuple):
    """A requirement.

    Attributes:
        name: What it is about.
        sign: ``">"``, ``">="``, ``"<"`` or ``"<="``.
        bound: The number, in the unit that the result is shown in.
    """

    name: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {str(self.bound).removesuffix('.0')}"

    def holds(self, value: float) -> bool:
        """Return whether a value satisfies it; NaN never does."""
        within = value >= self.bound if ">" in self.sign else value <= self.bound
        return within and ("=" in self.sign or value != self.bound)


class Bounds(Record):
    """An estimate with its interval.

    Attributes:
        of: What it is of, if there are several of one name, such as the method.
        low, high: Ends of the 95 % interval; infinite if they are unknown.
        why: Why there is no verdict, such as "too few groups"; empty if there is one.
        scale: Factor from the numbers to those that are shown and required.
        unit: Unit of these.
        is_error: Whether lower values are better.
        is_difference: Whether it is a difference, which is shown with its sign.
    """

    of: str = ""
    estimate: float
    low: float
    high: float
    why: str = ""
    scale: float = 100.0
    unit: str = "points"
    is_error: bool = False
    is_difference: bool = True

    @classmethod
    def of_interval(cls, entry: Interval, **more: Any) -> Self:
        """Return the bounds of a paired difference, with further attributes."""
        why = "" if entry.is_answered else WHY[entry.verdict]
        return cls(estimate=entry.difference, low=entry.low, high=entry.high, why=why, **more)

    @classmethod
    def missing(cls, why: str, **more: Any) -> Self:
        """Return the bounds of what has no estimate, for the reason ``why``."""
        return cls(**{"estimate": math.nan, "low": math.nan, "high": math.nan, **more, "why": why})

    def state(self, requirement: Requirement) -> str:
        """Return whether a requirement is met."""
        low, high = (float(f"{self.scale * end:.12g}") for end in (self.low, self.high))  # 100 * 0.07 is more than 7
        if self.why or not low <= high:
            return UNDECIDED
        ends = {requirement.holds(low), requirement.holds(high)}
        return UNDECIDED if len(ends) > 1 else MET if True in ends else NOT_MET

    def describe(self, requirement: Requirement) -> str:
        """Return the estimate with its interval, and why a requirement is undecided."""
        estimate, low, high = (self._show(value) for value in (self.estimate, self.low, self.high))
        parts = [self.of, *([estimate, self.unit, f"[{low}, {high}]"] if math.isfinite(self.estimate) else [])]
        text = " ".join(filter(None, parts))
        spans = f"the interval contains {str(requirement.bound).removesuffix('.0')}"
        why = self.why or spans * (self.state(requirement) == UNDECIDED)
        return ": ".join(filter(None, (text, why)))

    def _show(self, value: float) -> str:
        if not math.isfinite(value):
            return f"{value:+}".replace("-", "−").replace("inf", "∞")
        digits = 1 if self.unit in ("points", "%") else 3
        shown = signed if self.is_difference else plain
        return (
            shown(self.scale * value, digits) if self.unit else rounded(self.scale * value, signed=self.is_difference)
        )


class Outcome(Record):
    """A requirement with its state, and the results that it is about."""

    requirement: str
    state: str
    results: list[Bounds]
    text: str

    def describe(self) -> str:
        """Return one line."""
        return f"Requirement {self.state}: {self.requirement} ({self.text})"


class Decision(Record):
    """Whether all requirements are met.

    Attributes:
        state: ``"met"`` if all are met, ``"not met"`` if one is not, else ``"undecided"``.
        exit_code: The exit code of a command: 0, 1 or 3.
        requirements: The requirements, in the order in which they were given.
    """

    state: str
    exit_code: int
    requirements: list[Outcome]

    def describe(self) -> list[str]:
        """Return a line for each requirement."""
        return [one.describe() for one in self.requirements]


def read_requirement(text: Any) -> Requirement:
    """Read one requirement.

    Raises:
        ValueError: If it is none; the message is the predicate of a sentence.
    """
    found = FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or not math.isfinite(bound := float(found[3])):
        wanted = "must be a name, one of >, >=, < and <=, and a finite number, such as 'reviews > 0'"
        raise ValueError(f"{wanted}, not {shorten(text)}")
    return Requirement(found[1], found[2], bound)


def parse_requirements(texts: Iterable[str]) -> list[Requirement]:
    """Read requirements such as ``"reviews > 0"``.

    Raises:
        UserError: If one cannot be read.
    """
    try:
        return [read_requirement(text) for text in ([texts] if isinstance(texts, str) else texts)]
    except ValueError as error:
        raise UserError(f"A requirement {error}.") from error


def check_names(requirements: Iterable[Requirement], names: Collection[str], errors: Collection[str] = ()) -> None:
    """Check what requirements are about, which is possible before anything is measured.

    Args:
        requirements: The requirements.
        names: The names that there are.
        errors: Names of which lower values are better; to require a high one would be a mistake.

    Raises:
        UserError: If a name is unknown, or the sign has the wrong direction.
    """
    for one in requirements:
        if one.name not in names:
            raise unknown_name_error("name in a requirement:", one.name, names)
        if one.name in errors and ">" in one.sign:
            turned = one._replace(sign=one.sign.replace(">", "<"))
            raise UserError(f"Lower values of '{one.name}' are better, so require '{turned}', not '{one}'.")


def decide(requirements: Sequence[Requirement], named: Mapping[str, Sequence[Bounds]]) -> Decision:
    """Decide whether requirements are met: see the module.

    Args:
        requirements: The requirements.
        named: The results by name; a requirement has to hold for each of its name. Without any it is undecided.

    Raises:
        UserError: As :func:`check_names`.
    """
    check_names(requirements, named, [name for name, own in named.items() if any(one.is_error for one in own)])
    found = [_decide(one, named[one.name]) for one in requirements]
    state = _worst([one.state for one in found])
    return Decision(state=state, exit_code=EXIT_CODES[state], requirements=found)


def _worst(states: Collection[str]) -> str:
    return next((state for state in EXIT_CODES if state in states), MET)


def _decide(requirement: Requirement, results: Sequence[Bounds]) -> Outcome:
    states = [one.state(requirement) for one in results]
    state = _worst(states) if states else UNDECIDED
    decisive = [one.describe(requirement) for one, own in zip(results, states, strict=True) if own == state]
    more = [f"and {len(decisive) - MAX_SHOWN} more"] if len(decisive) > MAX_SHOWN else []
    text = "; ".join([*decisive[:MAX_SHOWN], *more]) or "there is no result"
    return Outcome(requirement=str(requirement), state=state, results=list(results), text=text)
