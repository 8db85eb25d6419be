"""``acclimate merge``."""

from __future__ import annotations

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import app, print_next, print_tables
from acclimate.cli.options import command
from acclimate.merging.options import MergeOptions, check_options


@command(
    app,
    MergeOptions,
    example="acclimate merge --method chat-vector --model adapted/ --base Qwen/Qwen3-0.6B-Base --instruct "
    "Qwen/Qwen3-0.6B --out merged/",
)
def merge(options: MergeOptions) -> None:
    """Merge models of one base model: interpolation, chat vectors, soups, Fisher weights, TIES and more."""
    check_options(options)
    from acclimate.merging.merge import merge as run
    from acclimate.merging.path import path_tables

    result = run(**values(options))
    for note in result.notes:
        echo(note)
    print_tables(path_tables(result.path))
    if result.has_model:
        echo(f"{result.out}: {result.method}")
        if options.instruct is not None:
            command = ["acclimate", "inspect", "instructions", "--model", result.out, "--base", options.instruct]
            print_next(command, "to see which instructions it still follows")
        else:
            tune = ["acclimate", "finetune", "--model", result.out, "--task", "TASK", "--out", "DIRECTORY"]
            print_next(tune, "to train an end task")
        return
    echo(f"Figure and numbers: {result.out}")
    if options.memory is not None:
        return
    again = ["--method", "interpolation", "--model", *options.models]  # type: ignore[misc]
    again += [] if options.base is None else ["--base", options.base]
    print_next(
        ["acclimate", "merge", *again, "--alpha", "ALPHA", "--out", "DIRECTORY"], "with an alpha of your choice"
    )
