"""``acclimate sequence``."""

from __future__ import annotations

from pathlib import Path

import typer

from acclimate.cli.app import app, print_next
from acclimate.cli.options import command
from acclimate.options import values
from acclimate.options.sequence import SequenceOptions


@command(
    app,
    SequenceOptions,
    plugins=True,
    example="acclimate sequence --model roberta-base --domain law=law/ --domain food=food.jsonl --methods das,lm "
    "--general wiki.txt --out runs/sequence",
)
def sequence(options: SequenceOptions) -> None:
    """Adapt a model to several domains, one after the other; show what it gains, keeps and forgets.

    Run it again to resume after an interruption, or with a further --domain, and only that one is trained.
    """
    from acclimate.study.run_sequence import sequence as run

    results = run(**values(options))
    out = Path(options.out)
    last = {row.method: out / row.orders[0].folders[0] for row in reversed(results.sequences) if row.orders}
    for method, folder in reversed(last.items()):
        typer.echo(f"Model after the last domain, {method}: {folder}")
    typer.echo(f"Report: {out / 'report.html'}")
    model = next(iter(reversed(last.values())), "MODEL")
    print_next(["acclimate", "finetune", "--model", model, "--task", "TASK"], "to train an end task")
