"""Benchmarks of ``lm-eval``, with paired differences per item between a model and its base model.

``lm-eval`` reports a standard error of each score. Two scores on the same items are correlated, so the interval of
their difference is narrower than these errors suggest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.base.files import check_report_file, write_json
from acclimate.base.options import verb
from acclimate.base.verbs import show_place
from acclimate.base.version import __version__
from acclimate.data.documents import count_units
from acclimate.evaluation.significance import number_groups, paired_difference
from acclimate.labs.benchmarks.options import InspectBenchmarksOptions
from acclimate.models.loading import load_language_model, load_tokenizer, read_kind
from acclimate.results.study import Measurements

GROUP_FIELDS = ("document", "article", "passage", "context", "paragraph", "story")
"""Fields in which items of ``lm-eval`` hold a text that several of them are about, the longest kind of text first."""


class ItemValues(NamedTuple):
    """The values of a metric.

    Attributes:
        names: Identity of each item.
        values: Value of each item (items,).
        weights: Weight of each item in the mean (items,).
        groups: Number of the text that an item is about (items,); None if no two items share one.
        group_name: What such a text is.
    """

    names: list[str]
    values: np.ndarray
    weights: np.ndarray
    groups: list[int] | None = None
    group_name: str = "item"


Items = dict[tuple[str, str], ItemValues]
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


def measure_items(model: str | Path, options: InspectBenchmarksOptions) -> Items:
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
    return {
        (f"{task}" if filter_name == "none" else f"{task} ({filter_name})", metric): values
        for task, samples in found["samples"].items()
        for filter_name in dict.fromkeys(sample["filter"] for sample in samples)
        for metric, values in _read_metrics([one for one in samples if one["filter"] == filter_name]).items()
    }


def _find_groups(samples: Sequence[dict[str, Any]]) -> tuple[list[int] | None, str]:
    """Return the number of the text that each item is about, and what it is; None if no two items share one."""
    for field in GROUP_FIELDS:
        texts = [sample["doc"].get(field) if isinstance(sample.get("doc"), dict) else None for sample in samples]
        if all(isinstance(text, str) and text for text in texts) and len(set(texts)) < len(texts):
            return number_groups(texts), field
    return None, "item"


def _read_metrics(samples: Sequence[dict[str, Any]]) -> dict[str, ItemValues]:
    """Return the values of the items by metric; a metric without a value per item is left out.

    The value of a perplexity is a pair of a log-likelihood and its number of words or bytes. Of these only bits per
    byte are means over items. For tokenizers that put a begin token before a text, ``lm-eval`` predicts that token as
    well, so they are higher than from :func:`acclimate.evaluation.lm_loss.language_model_loss`.
    """
    found = {}
    groups = _find_groups(samples)
    names = [f"{sample['doc_id']}/{sample['doc_hash']}" for sample in samples]
    for metric in samples[0]["metrics"]:
        values = [sample[metric] for sample in samples]
        if all(isinstance(value, bool | int | float) for value in values):
            found[metric] = ItemValues(names, np.array(values, dtype=float), np.ones(len(values)), *groups)
        elif metric == "bits_per_byte":
            likelihood, size = np.array(values, dtype=float).T
            found[metric] = ItemValues(names, -likelihood / np.maximum(size, 1) / math.log(2), size, *groups)
    return found


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
    for (task, metric), (names, values, weights, groups, group_name) in after.items():
        row = {
            "task": task,
            "metric": metric,
            "items": len(names),
            "groups": groups and max(groups) + 1,
            "group": group_name,
            "after": float(np.average(values, weights=weights)),
        }
        if before is not None:
            others, old, *_ = before[task, metric]
            if others != names:
                raise UserError(f"The task '{task}' gave the two models different items, so they cannot be compared.")
            row["before"] = float(np.average(old, weights=weights))
            row["difference"] = paired_difference(values, old, weights, groups=groups).as_dict()
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
