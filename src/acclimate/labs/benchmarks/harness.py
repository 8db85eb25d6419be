"""Benchmarks of ``lm-eval``, with paired differences per item between a model and its base model.

``lm-eval`` reports a standard error of each score. Two scores on the same items are correlated, so the interval of
their difference is narrower than these errors suggest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.verbs import show_place
from acclimate.base.version import __version__
from acclimate.data.documents import count_units
from acclimate.data.rows import RowError
from acclimate.evaluation.significance import number_groups, paired_difference
from acclimate.labs.benchmarks.options import InspectBenchmarksOptions
from acclimate.labs.judge.formats import lm_eval_item
from acclimate.labs.judge.logs import Items, Scores
from acclimate.models.loading import load_language_model, load_tokenizer, read_kind
from acclimate.results.study import Measurements

Scored = dict[tuple[str, str], Scores]
"""The values of the items, by name of the task and of the metric."""


def check_model(model: str | Path, chat_template: bool) -> None:
    """Check that benchmarks can be run on a model, before they are run on another.

    Raises:
        UserError: If there is no model, it is not causal, or the wanted chat template is missing.
    """
    kind = read_kind(model)
    if kind.uses_masking:
        raise UserError(f"'{model}' is a {kind.name} language model; lm-eval needs a causal one.")
    if chat_template and not load_tokenizer(model).chat_template:
        raise UserError(f"The tokenizer of '{model}' has no chat template; leave --chat-template out.")


def measure_items(model: str | Path, options: InspectBenchmarksOptions) -> Scored:
    """Run benchmarks on a model, in fp32, and return the metrics of each item.

    Raises:
        UserError: If ``lm-eval`` is not installed, a task does not exist, or a model cannot be used.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UserError(f"Benchmarks need lm-eval: pip install 'acclimate[lm-eval]' ({error})") from error
    folder = options.include_path
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"There is no folder '{folder}'; --include-path names one with tasks of lm-eval.")
    manager = TaskManager(include_path=None if folder is None else str(folder))
    if unknown := [name for name in options.tasks if not manager.match_tasks([name])]:
        raise UserError(
            f"lm-eval has no task '{unknown[0]}'. `lm-eval ls tasks` lists its tasks; --include-path adds a folder."
        )
    for each in (options.model, options.base):
        if each is not None:
            check_model(each, options.chat_template)
    loaded = load_language_model(model)
    found = simple_evaluate(
        HFLM(pretrained=to_device(loaded.model), tokenizer=loaded.tokenizer, batch_size=options.batch_size),
        tasks=list(options.tasks),
        task_manager=manager,
        num_fewshot=options.few_shot,
        limit=options.limit,
        apply_chat_template=options.chat_template,
        bootstrap_iters=0,  # intervals are computed here
    )
    return _read_samples(found["samples"])


def _read_samples(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Scored:
    """Return the scores of the items by task, with its filter, and metric."""
    tasks: dict[str, Items] = {}
    for name, own in samples.items():
        for sample in own:
            item = lm_eval_item(name, f"an item of '{name}'", sample)
            if isinstance(item, RowError):
                raise item
            tasks.setdefault(item.task, Items()).add(item)
    return {
        (task, metric): scores
        for task, items in tasks.items()
        for metric, scores in items.scores(f"The task '{task}'", "content", Counter()).items()
    }


@verb(InspectBenchmarksOptions)
def inspect_benchmarks(options: InspectBenchmarksOptions) -> Measurements:
    """Run benchmarks of ``lm-eval`` on a model, and compare it with its base model item by item.

    Returns:
        ``rows``: for each task and metric with a value per item ``task``, ``metric``, ``items``, ``after``, and with a
        base model ``before`` and ``difference`` with its paired 95 % interval. The interval is about these two models
        and other items. Items about the same passage or document are resampled together; ``groups`` counts these.

    Raises:
        UserError: If ``lm-eval`` is not installed, or a task or a model cannot be used.
    """
    check_report_file(options.out)
    after = measure_items(options.model, options)
    before = None if options.base is None else measure_items(options.base, options)
    rows: list[dict[str, Any]] = []
    for (task, metric), scores in after.items():
        groups = number_groups(scores.groups) if scores.groups else None
        row = {
            "task": task,
            "metric": metric,
            "items": len(scores.names),
            "groups": groups and max(groups) + 1,
            "group": scores.group_name,
            "after": float(np.average(scores.values, weights=scores.weights)),
        }
        if before is not None:
            old = before.get((task, metric))
            if old is None or old.names != scores.names:
                raise UserError(f"The task '{task}' gave the two models different items, so they cannot be compared.")
            row["before"] = float(np.average(old.values, weights=scores.weights))
            difference = paired_difference(scores.values, old.values, scores.weights, groups=groups)
            row["difference"] = difference.as_dict()
        rows.append(row)
    report = {"acclimate": __version__, "model": str(options.model), "rows": rows}
    if options.base is not None:
        report["base"] = str(options.base)
    if options.out is not None:
        write_json(options.out, report)
    flat = [{**row, **row.get("difference", {})} for row in rows]  # "difference" becomes a number
    lines = [
        f"{row['task']}, {row['metric']}: {row['after']:.4f} on "
        + count_units(row["items"], row["groups"], row["group"])
        for row in rows
    ]
    return Measurements(report, lines, "Benchmarks", flat)


def show_benchmarks(report: Any, options: InspectBenchmarksOptions) -> Iterator[str]:
    """Yield what ``acclimate inspect benchmarks`` prints."""
    for row in report["rows"]:
        text = f"{row['task']}, {row['metric']}: {row['after']:.4f} on {row['items']:,} items"
        if difference := row.get("difference"):
            low, high = (f"{difference[end]:+.4f}" for end in ("low", "high"))
            text += f"; base model {row['before']:.4f}, difference {difference['difference']:+.4f} [{low}, {high}]"
        yield text
    yield from show_place("Full report", options.out)
