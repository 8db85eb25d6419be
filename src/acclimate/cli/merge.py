"""``acclimate merge``."""

from __future__ import annotations

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import app, print_next, print_tables
from acclimate.cli.options import command
from acclimate.merging.base import MERGES
from acclimate.merging.options import MergeOptions


@command(
    app,
    MergeOptions,
    example="acclimate merge --method 'chat-vector instruct=Qwen/Qwen3-0.6B' --model adapted/ "
    "--base Qwen/Qwen3-0.6B-Base --out merged/",
)
def merge(options: MergeOptions) -> None:
    """Merge models of one base model: interpolation, chat vectors, soups, Fisher weights, TIES and more."""
    from acclimate.merging.merge import merge as run
    from acclimate.merging.path import path_tables

    result, method = run(**values(options)), MERGES.read(options.method)
    for note in result.notes:
        echo(note)
    print_tables(path_tables(result.path))
    if result.has_model:
        echo(f"{result.out}: {result.method}")
        print_next(*method.next_command(str(result.out)))
        return
    echo(f"Figure and numbers: {result.out}")
    if method.merges_weights:
        models = ["--model", *options.models]  # type: ignore[misc]
        models += [] if options.base is None else ["--base", options.base]
        print_next(
            ["acclimate", "merge", "--method", f"{method.name} alpha=ALPHA", *models, "--out", "DIRECTORY"],
            "with an alpha of your choice",
        )
