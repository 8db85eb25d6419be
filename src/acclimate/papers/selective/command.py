"""``acclimate annotate`` and ``acclimate inspect cost``."""

from __future__ import annotations

from acclimate.base.options import values
from acclimate.base.terminal import echo
from acclimate.cli.app import app, inspection, print_next, print_place
from acclimate.cli.options import command
from acclimate.papers.selective.command_options import AnnotateOptions, InspectCostOptions


@command(app, AnnotateOptions, example="acclimate annotate --model bert-base-uncased --task reviews/ --out annotated/")
def annotate(options: AnnotateOptions) -> None:
    """Find the tokens of a task's train split that its labels depend on (Gu et al., EMNLP 2020)."""
    from acclimate.papers.selective.annotation import annotate_task

    result = annotate_task(**values(options))
    found = result.summary["annotate"]
    echo(
        f"{found['important']:,} of {found['tokens']:,} tokens are important ({found['share']:.1%}); "
        f"{found['share_first_half']:.1%} in the first halves of the texts, "
        f"{found['share_second_half']:.1%} in the second halves."
    )
    echo(
        f"{found['misclassified']:,} of {found['units']:,} texts are misclassified, {found['units_without']:,} have "
        f"no important token; {found['near_threshold']:,} tokens lie within 0.001 of the threshold."
    )
    for line in result.samples:
        echo(f"  {line}")
    echo(f"{options.out}: annotated.jsonl, summary.json")
    words = ["--model", options.model, "--task", options.task, "--corpus", "TEXT", "--method", "selective"]
    print_next(["acclimate", "adapt", *words, "--out", "adapted"], "to mask such tokens")


@command(
    inspection,
    InspectCostOptions,
    name="cost",
    example="acclimate inspect cost --adapted selective/ --pretrained pretrained/ --finetuned tuned/",
)
def inspect_cost(options: InspectCostOptions) -> None:
    """Compare the time that task-guided pre-training takes with the time that stopping early saves."""
    from acclimate.papers.selective.cost import cost_table
    from acclimate.papers.selective.cost_table import inspect_cost as run

    echo(cost_table(run(**values(options))))
    print_place("Full report", options.out)
