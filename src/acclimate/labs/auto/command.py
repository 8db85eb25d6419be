"""``acclimate auto``."""

from __future__ import annotations

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import app, print_next
from acclimate.cli.options import command
from acclimate.labs.auto.options import AutoOptions


@command(
    app,
    AutoOptions,
    example="acclimate auto --model roberta-base --corpus reviews/ --task tasks/restaurant --general wiki.txt "
    "--minutes 120 --forget-at-most 0.05 --out runs/auto",
)
def auto(options: AutoOptions) -> None:
    """Race ways to adapt a model under a budget; return the best one with a proof, or the base model.

    Run it again to resume after an interruption.
    """
    from acclimate.labs.auto.auto import auto as run

    result = run(**values(options))
    echo("\n".join(result.describe()))
    if options.dry_run:
        return
    print_next(["acclimate", "finetune", "--model", result.model, "--task", "TASK"], "to train an end task")
