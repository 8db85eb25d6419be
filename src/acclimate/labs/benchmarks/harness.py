"""Benchmarks of ``lm-eval``, with paired differences per item between a model and its base model.

``lm-eval`` reports a standard error of each score. Two scores on the same items are correlated, so the interval of
their difference is narrower than these errors suggest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
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
from acclimate.evaluation.prompts import AskedPrompt
from acclimate.evaluation.significance import number_groups, paired_difference
from acclimate.labs.benchmarks.options import InspectBenchmarksOptions
from acclimate.labs.judge.formats import lm_eval_item
from acclimate.labs.judge.logs import Items, Scores
from acclimate.models.loading import load_language_model, load_tokenizer, read_kind
from acclimate.results.study import Measurements

Scored = dict[tuple[str, str], Scores]
"""The values of the items, by name of the task and of the metric."""
PLAIN, CHAT = "without chat template", "with chat template"


@dataclass(frozen=True, kw_only=True)
class ChosenScores(Scores):
    """The values of a model that chose on dev how it is asked.

    Attributes:
        prompts: The ways to ask, with their scores on dev.
        chosen: Number of the one that it chose.
    """

    prompts: Sequence[AskedPrompt]
    chosen: int


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


def _open_tasks(options: InspectBenchmarksOptions) -> tuple[Any, Any]:
    """Return the function of ``lm-eval`` that runs tasks, and its manager of tasks, after checks of all models.

    Raises:
        UserError: If ``lm-eval`` is not installed, a task does not exist, or a model cannot be used.
    """
    try:
        from lm_eval import simple_evaluate
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
            check_model(each, options.chat_template == "yes")
    return simple_evaluate, manager


def measure_items(model: str | Path, options: InspectBenchmarksOptions) -> Scored:
    """Run benchmarks on a model, in fp32, and return the metrics of each item.

    Of several ways to ask, the model gets for each benchmark the one with the best mean of its first metric on dev.

    Raises:
        UserError: If ``lm-eval`` is not installed, a task does not exist or has no split that a choice needs, or a
            model cannot be used.
    """
    evaluate, manager = _open_tasks(options)
    runner = _open_model(model, options)
    chats = {"no": [PLAIN], "yes": [CHAT], "choose": [PLAIN, CHAT]}[options.chat_template]
    if options.chat_template == "choose" and not load_tokenizer(model).chat_template:
        chats = [PLAIN]

    def ask(tasks: list[Any], prompt: AskedPrompt) -> dict[str, list[dict[str, Any]]]:
        samples: dict[str, list[dict[str, Any]]] = evaluate(
            runner,
            tasks=tasks,
            task_manager=manager,
            num_fewshot=prompt.shots,
            limit=options.limit,
            apply_chat_template=prompt.template == CHAT,
            bootstrap_iters=0,  # intervals are computed here
        )["samples"]
        return samples

    items: Scored = {}
    for name in options.tasks:
        prompts = [AskedPrompt(template=chat, shots=shots) for chat in chats for shots in options.few_shot or (None,)]
        for prompt in prompts if len(prompts) > 1 else ():
            prompt.dev = _first_mean(_read_samples(ask(_on_dev(manager, name), prompt)))
        chosen = int(np.argmax([prompt.dev or 0.0 for prompt in prompts]))
        found = _read_samples(ask([name], prompts[chosen]))
        if len(prompts) > 1:
            found = {
                key: ChosenScores(**vars(scores), prompts=prompts, chosen=chosen) for key, scores in found.items()
            }
        items |= found
    return items


def _open_model(model: str | Path, options: InspectBenchmarksOptions) -> Any:
    """Return a model for ``lm-eval``; vLLM loads it by its name, in fp32, too.

    Raises:
        UserError: If vLLM is not installed.
    """
    if options.backend == "vllm":
        if find_spec("vllm") is None:
            raise UserError("The backend vllm needs vLLM and a GPU: pip install 'acclimate[vllm]'")
        from lm_eval.models.vllm_causallms import VLLM

        return VLLM(pretrained=str(model), dtype="float32", batch_size="auto")
    from lm_eval.models.huggingface import HFLM

    loaded = load_language_model(model)
    return HFLM(pretrained=to_device(loaded.model), tokenizer=loaded.tokenizer, batch_size=options.batch_size)


def _on_dev(manager: Any, name: str) -> list[Any]:
    """Return the tasks of a benchmark, whose items are those of a split that the benchmark does not score.

    Raises:
        UserError: If there is none.
    """
    tasks = list(manager.load([name])["tasks"].values())
    for task in tasks:
        config = task.config
        splits = [config.validation_split, config.training_split] if config.test_split else [config.training_split]
        scored = config.test_split or config.validation_split
        other = next((split for split in splits if split not in (None, scored)), None)
        if other is None:
            raise UserError(
                f"The task '{config.task}' of lm-eval has no split to choose on besides the one that is scored; give "
                "one number with --few-shot, and --chat-template yes or no."
            )
        config.test_split = other  # which lm-eval scores, and whose items it leaves out of the solved examples
    return tasks


def _first_mean(scored: Scored) -> float:
    """Return the mean of the first metric of each task over all items.

    Raises:
        UserError: If it is not one that is higher for better answers.
    """
    first: dict[str, Scores] = {}
    for (task, _), scores in scored.items():
        first.setdefault(task, scores)
    if not first or any(scores.is_error for scores in first.values()):
        raise UserError("A benchmark without answers has no score to choose by; give one number with --few-shot.")
    return float(np.mean(np.concatenate([scores.values for scores in first.values()])))


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
        row: dict[str, Any] = {
            "task": task,
            "metric": metric,
            "items": len(scores.names),
            "groups": groups and max(groups) + 1,
            "group": scores.group_name,
            "after": float(np.average(scores.values, weights=scores.weights)),
        }
        row |= _describe(scores, "prompt")
        if before is not None:
            old = before.get((task, metric))
            if old is None or old.names != scores.names:
                raise UserError(f"The task '{task}' gave the two models different items, so they cannot be compared.")
            row |= _describe(old, "base_prompt")
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


def _describe(scores: Scores, name: str) -> dict[str, str]:
    """Return how a model was asked, with its score on dev and those of the other ways, under a name."""
    if not isinstance(scores, ChosenScores):
        return {}
    mine, dev = scores.prompts[scores.chosen], [prompt.dev or 0.0 for prompt in scores.prompts]
    shots = "the usual number of" if mine.shots is None else mine.shots
    ways = f"all {len(dev)} ways {min(dev):.4f} to {max(dev):.4f}"
    return {name: f"{mine.template}, {shots} examples; {mine.dev or 0.0:.4f} on dev, {ways}"}


def show_benchmarks(report: Any, options: InspectBenchmarksOptions) -> Iterator[str]:
    """Yield what ``acclimate inspect benchmarks`` prints."""
    for row in report["rows"]:
        text = f"{row['task']}, {row['metric']}: {row['after']:.4f} on {row['items']:,} items"
        if difference := row.get("difference"):
            low, high = (f"{difference[end]:+.4f}" for end in ("low", "high"))
            text += f"; base model {row['before']:.4f}, difference {difference['difference']:+.4f} [{low}, {high}]"
        yield text
        for side, name in (("the model", "prompt"), ("the base model", "base_prompt")):
            if name in row:
                yield f"  {side} was asked {row[name]}"
    yield from show_place("Full report", options.out)
