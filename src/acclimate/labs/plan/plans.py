"""Base of all plans: numbers with intervals, the reason for a refusal, a table, a figure, and a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, read_json_object, write_json
from acclimate.base.verbs import show_place
from acclimate.base.version import __version__
from acclimate.results.display import figure_style, save_figure, titled_table
from acclimate.results.study import Measurements

FILE, FIGURE = "plan.json", "plan"
FAR = 10
"""Multiple of what was measured beyond which an extrapolation is called unreliable."""
UNIFORM = math.log(1e6)
"""Loss of a uniform guess over the tokens of any vocabulary, in nats; what is predicted above it is no prediction."""
WIDE = 0.5
"""Share of the range beyond which the interval of an answer is too wide to answer."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; the value is None where there is no answer."""

    value: float | None
    low: float
    high: float

    def as_dict(self) -> dict[str, Any]:
        """Return the three numbers by name."""
        return asdict(self)


def in_words(found: Mapping[str, Any], digits: int = 3) -> str:
    """Return a number with its interval."""
    value, low, high = (f"{found[name]:,.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} (95 % interval {low} to {high})"


def is_too_wide(found: Estimate, low: float, high: float, *, logarithmic: bool = False) -> str:
    """Return why an answer is refused; empty if it is not.

    Args:
        found: The answer.
        low: The least that it could be.
        high: The most that it could be.
        logarithmic: Compare logarithms.
    """
    scale = math.log if logarithmic else float
    if scale(found.high) - scale(found.low) <= WIDE * (scale(high) - scale(low)):
        return ""
    return (
        f"its 95 % interval, {found.low:,.3g} to {found.high:,.3g}, spans more than half of the measured range. "
        "Measure more runs, or larger ones."
    )


def is_degenerate(measured: np.ndarray, predicted: np.ndarray, text: str) -> str:
    """Return why losses are not what a law can be fitted to, or predicted ones are no losses; empty if not.

    Args:
        measured: Measured losses, in nats per token.
        predicted: Predicted losses.
        text: Name of the text in the message.
    """
    if np.ptp(measured) <= 1e-9 * np.abs(measured).max():
        return f"the loss on {text} is the same in all measurements, so nothing can be learned from them."
    if np.isfinite(predicted).all() and predicted.min() > 0 and predicted.max() <= UNIFORM:
        return ""
    worst = predicted[np.argmax(np.abs(predicted))]
    return (
        f"the law predicts a loss on {text} of {worst:,.3g} nats, which is impossible or worse than a guess. Measure "
        "larger runs, or plan for fewer tokens."
    )


def describe_far(times: float, what: str) -> Iterator[str]:
    """Yield a warning if a plan is far beyond what was measured."""
    if times > FAR:
        yield f"The plan is for {times:,.0f} times the {what}: beyond {FAR} times, an extrapolation is unreliable."


class Plan(Measurements):
    """A plan, as a dictionary with a table and a figure."""

    def __init__(
        self,
        kind: str,
        values: Mapping[str, Any],
        lines: Sequence[str],
        title: str,
        rows: Sequence[Mapping[str, Any]],
        draw: Callable[[Any], None],
    ) -> None:
        """Make the plan.

        Args:
            kind: ``"ratio"``, ``"schedule"`` or ``"budget"``.
            values: Its numbers.
            lines: The answer and what it rests on, in a few lines.
            title: Title of the table.
            rows: Rows of the table.
            draw: Function that draws into a figure of ``matplotlib``.
        """
        made = {"acclimate": __version__, "plan": kind, **values, "rows": list(rows), "lines": list(lines)}
        super().__init__(made, lines, title, rows)
        self._draw = draw

    def figure(self) -> Any:
        """Return the figure, of ``matplotlib``."""
        from matplotlib.figure import Figure

        with figure_style():
            made = Figure(figsize=(7.5, 3.4), layout="constrained")
            self._draw(made)
        return made

    def save(self, out: str | Path) -> Path:
        """Write ``plan.json`` and the figure, ``plan.png`` and ``plan.svg``, into a folder, and return it."""
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, dict(self))
        with figure_style():
            save_figure(self.figure(), folder, FIGURE)
        return folder


def check_plan_folder(out: str | Path | None) -> None:
    """Check that a plan can be written into a folder.

    Raises:
        UserError: If it is a file, or holds another file of that name.
    """
    if out is None:
        return
    if Path(out).is_file():
        raise UserError(f"'{out}' is a file; give a folder for the plan.")
    check_report_file(Path(out) / FILE)


def read_plan(path: str | Path) -> dict[str, Any]:
    """Read a plan from its folder or file.

    Raises:
        UserError: If there is none.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    found = read_json_object(file)
    if not found or "plan" not in found or "lines" not in found:
        raise UserError(f"'{path}' is not a plan: give the {FILE} that `acclimate plan` wrote, or its folder.")
    return found


def show_plan(plan: Plan, options: Any) -> Iterator[Any]:
    """Yield the table of a plan, with the interval of a number next to it, and its lines."""
    rows = plan.to_pandas().to_dict("records")
    table = titled_table(plan.as_results().tables[0].title)
    names = [name for name in rows[0] if not name.endswith((", low", ", high"))]
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(_cell(row, name) for name in names))
    yield table
    yield from plan.describe()
    yield from show_place("All figures", options.out)


def _cell(row: Mapping[Any, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, float):
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    if math.isnan(value):
        return ""
    bounds = [f"{row[f'{name}, {end}']:,.3f}" for end in ("low", "high") if f"{name}, {end}" in row]
    return f"{value:,.3f}" + (f" [{', '.join(bounds)}]" if bounds else "")
