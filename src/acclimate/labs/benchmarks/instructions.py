"""Instruction-following of a chat model, compared with its base model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.verbs import show_place
from acclimate.base.version import __version__
from acclimate.evaluation.instructions import check_answers, measure_instructions, read_instructions
from acclimate.evaluation.significance import paired_bootstrap
from acclimate.labs.benchmarks.options import InspectInstructionsOptions
from acclimate.results.study import Measurements


@verb(InspectInstructionsOptions)
def inspect_instructions(options: InspectInstructionsOptions) -> Measurements:
    """Measure the share of instructions that a model follows, and compare it with its base model.

    Returns:
        ``after`` and, with a base model, ``before``: see :func:`measure_instructions`; ``difference``: with a paired
        95 % interval over the instructions, for these two models.

    Raises:
        UserError: If a model cannot be measured, or the file of instructions is invalid.
    """
    check_report_file(options.out)
    instructions = read_instructions(options.prompts)
    for model in (options.model, options.base):
        if model is not None:
            check_answers(model)
    report: dict[str, Any] = {"acclimate": __version__, "model": str(options.model)}
    report["after"] = after = measure_instructions(options.model, instructions, max_tokens=options.max_tokens)
    if options.base is not None:
        before = measure_instructions(options.base, instructions, max_tokens=options.max_tokens)
        new, old = ([list(map(int, side["followed"]))] for side in (after, before))
        difference = paired_bootstrap([1] * len(instructions), new, old, "accuracy")
        report |= {"base": str(options.base), "before": before, "difference": difference.as_dict()}
    if options.out is not None:
        write_json(options.out, report)
    sides = {name: report[name] for name in ("before", "after") if name in report}
    rows = [
        {"prompt": prompt, **{name: side["followed"][number] for name, side in sides.items()}}
        for number, prompt in enumerate(after["prompts"])
    ]
    lines = [
        f"{name}: follows {sum(side['followed'])} of {len(rows)} instructions ({100 * side['share']:.1f} %)"
        for name, side in sides.items()
    ]
    return Measurements(report, lines, "Instructions that were followed", rows)


def show_instructions(report: Any, options: InspectInstructionsOptions) -> Iterator[str]:
    """Yield what ``acclimate inspect instructions`` prints."""
    for name, side in (("base model", report.get("before")), ("model", report["after"])):
        if side:
            followed, count = sum(side["followed"]), len(side["followed"])
            cut = f"; {side['unfinished']} answers were cut" if side["unfinished"] else ""
            yield f"{name}: follows {followed} of {count} instructions ({100 * side['share']:.1f} %){cut}"
    if difference := report.get("difference"):
        low, high = (f"{100 * difference[end]:+.1f}" for end in ("low", "high"))
        yield f"difference: {100 * difference['difference']:+.1f} percentage points, 95 % interval {low} to {high}"
    yield from show_place("Answers", options.out)
