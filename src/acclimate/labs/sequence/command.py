"""``acclimate sequence``."""

from __future__ import annotations

import sys
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from acclimate.base.options import OUTPUT, Option, options, values
from acclimate.base.terminal import echo
from acclimate.cli.app import app, print_next
from acclimate.cli.compare import print_forecast
from acclimate.cli.options import command
from acclimate.labs.sequence.options import SequenceOptions


@options
class SequenceCommand(SequenceOptions):
    """Options of ``acclimate sequence``; Python has :func:`acclimate.study.forecast.forecast` for a dry run."""

    _: KW_ONLY
    dry_run: Annotated[bool, Option("Train nothing; print the remaining jobs and the estimated time.", OUTPUT)] = False


@command(
    app,
    SequenceCommand,
    plugins=True,
    example="acclimate sequence --model roberta-base --domain law=law/ --domain food=food.jsonl --methods das,lm "
    "--general wiki.txt --out runs/sequence",
)
def sequence(options: SequenceCommand) -> None:
    """Adapt a model to several domains, one after the other; show what it gains, keeps and forgets.

    Run it again to resume after an interruption, or with a further --domain, and only that one is trained.
    """
    from acclimate.labs.sequence.run import draft_sequence
    from acclimate.labs.sequence.run import sequence as run

    out = Path(options.out)
    if options.dry_run:
        from acclimate.study.config import StudyConfig

        print_forecast(StudyConfig.of(draft_sequence(options, out)), out, progress=options.progress)
        print_next(["acclimate", *(word for word in sys.argv[1:] if word != "--dry-run")], "to run it")
        return
    results = run(**values(options, SequenceOptions))
    last = {row.method: out / row.orders[0].folders[0] for row in reversed(results.rows["sequence"]) if row.orders}
    for method, folder in reversed(last.items()):
        echo(f"Model after the last domain, {method}: {folder}")
    echo(f"Report: {out / 'report.html'}")
    model = next(iter(reversed(last.values())), "MODEL")
    print_next(["acclimate", "finetune", "--model", model, "--task", "TASK"], "to train an end task")
