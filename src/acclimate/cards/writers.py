"""Cards of adapted, pre-trained, fine-tuned and distilled models, from the training records in their folders.

The results of a study are added as Markdown, and as ``model-index`` for the Hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from acclimate.adaptation_rows import AdaptationRow
from acclimate.cards.card import (
    Card,
    adapter_section,
    describe_references,
    display_name,
    escape_markdown,
    format_bytes,
    hub_name,
    markdown_table,
    settings_table,
    similarity_section,
)
from acclimate.corpus.token_dataset import RowAccount
from acclimate.errors import UserError
from acclimate.evaluation.scoring import find_hub_task, make_scoring
from acclimate.evaluation.statistics import bootstrap_intervals
from acclimate.files import MANIFEST_FILE, read_json, read_json_object
from acclimate.model_kinds import ModelKind, kind_of_checkpoint
from acclimate.results import StudyResults
from acclimate.rows import VERDICTS, Comparison, ForgettingRow, Interval, LossRow, MetricSummary, TaskScores

HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "positive_micro_f1": "f1", "document_f1": "f1", "em": "exact_match"}
"""Hub names of metrics, where they differ from the names in this package."""


def result_sections(results: StudyResults, model_kind: ModelKind) -> list[tuple[str, str]]:
    """Return pairs of title and Markdown for the result sections.

    Args:
        results: Results of a study, with the rows of one model.
        model_kind: The kind of the model, for the name and unit of its loss.
    """
    sections = []
    if results.scores:
        intro = (
            f"Fine-tuned on end tasks in the study “{escape_markdown(results.title)}” and compared with "
            f"`{escape_markdown(results.baseline)}` on the same data, budget and seeds. Scores in percent; "
            "differences in percentage points, with 95 % intervals over seeds and test items."
        )
        columns = ("task", "metric", "mean ± sd", "seeds", "difference", "95 % interval", "verdict", "p (Holm)")
        table = markdown_table(columns, [_score_row(row) for row in results.scores])
        sections.append(("Results", "\n\n".join([intro, table, *results.notes])))
    parts = []
    if losses := [_loss_row(row, row.difference) for row in results.losses if row.difference]:
        loss_name = f"{model_kind.loss_name[0].upper()}{model_kind.loss_name[1:]}"
        intro = f"{loss_name} on held-out text in {model_kind.loss_unit}, before and after; lower is better."
        parts += [intro, markdown_table(("text", "before", "after", "change", "95 % interval"), losses)]
    if bits := [
        _bits_row(row, row.bits_per_byte_difference) for row in results.losses if row.bits_per_byte_difference
    ]:
        intro = "The same in bits per byte, which is comparable across tokenizers."
        parts += [intro, markdown_table(("text", "before", "after", "change", "95 % interval"), bits)]
    if others := [_other_task_row(row, row.comparison) for row in results.forgetting if row.comparison]:
        names = ("task of another domain", "metric", "before", "after", "difference", "95 % interval", "verdict")
        intro = "Fine-tuned on tasks of other domains; scores in percent, differences in percentage points."
        parts += [intro, markdown_table(names, others)]
    if not any(row.text == "general" for row in results.losses):
        parts.append("Forgetting of general text was not measured.")
    sections.append(("Held-out loss and forgetting", "\n\n".join(parts)))
    return sections


def _score(row: TaskScores) -> MetricSummary:
    return row.summaries[row.metric]


def _score_row(row: TaskScores) -> tuple[Any, ...]:
    score, entry = _score(row), row.comparison
    spread = "" if score.sd is None else f" ± {100 * score.sd:.1f}"
    p = entry and (entry.p if entry.p_holm is None else entry.p_holm)
    compared = (*_difference(entry), None if p is None else f"{p:.3f}") if entry else (None,) * 4
    return (row.task, row.metric, f"{100 * score.mean:.1f}{spread}", len(score.by_seed), *compared)


def _difference(entry: Comparison) -> tuple[str, str, str]:
    """Return difference, interval and verdict."""
    return (f"{100 * entry.difference:+.1f}", _format_interval(entry, 100, 1), VERDICTS[entry.verdict])


def _loss_row(row: LossRow, entry: Interval) -> tuple[Any, ...]:
    return _loss_cells(row, row.before, row.nats, entry)


def _bits_row(row: LossRow, entry: Interval) -> tuple[Any, ...]:
    return _loss_cells(row, row.bits_per_byte_before, row.bits_per_byte, entry)


def _loss_cells(row: LossRow, before: float | None, after: float | None, entry: Interval) -> tuple[Any, ...]:
    change = (f"{before:.3f}", f"{after:.3f}", f"{entry.difference:+.3f}", _format_interval(entry, 1, 3))
    return ("general text" if row.text == "general" else f"{row.domain}, held out", *change)


def _other_task_row(row: ForgettingRow, entry: Comparison) -> tuple[Any, ...]:
    before = None if row.before is None else f"{100 * row.before:.1f}"
    return (row.task, row.metric, before, f"{100 * _score(row).mean:.1f}", *_difference(entry))


def _format_interval(entry: Interval, scale: float, digits: int) -> str:
    return f"{scale * entry.low:+.{digits}f} to {scale * entry.high:+.{digits}f}"


def eval_results(results: StudyResults, model_kind: ModelKind) -> list[dict[str, Any]]:
    """Return arguments of ``huggingface_hub.EvalResult``, with intervals in ``metric_args``.

    Args:
        results: Results of a study, with the rows of one model.
        model_kind: The kind of the model, for the name and unit of its loss.
    """
    found = []
    for row in results.scores:
        task_type, task_name = find_hub_task(row.kind)
        score = _score(row)
        details: dict[str, Any] = {"seeds": len(score.by_seed), "test_items": row.test_items}
        if score.sd is not None:
            details["sd"] = round(score.sd, 4)
        if entry := row.comparison:
            details |= {"difference_to": results.baseline, **_rounded(entry)}
        found.append(
            {
                "task_type": task_type,
                "task_name": task_name,
                "dataset_type": _slug(row.task),
                "dataset_name": row.task,
                "dataset_split": "test",
                "metric_type": HUB_METRICS.get(row.metric, row.metric),
                "metric_name": f"{row.metric.replace('_', ' ')}, mean over seeds",
                "metric_value": round(score.mean, 4),
                "metric_args": details,
            }
        )
    for loss in results.losses:
        name = "general text" if loss.text == "general" else f"{loss.domain}, held-out text"
        measured: list[tuple[str, str, float, float | None, Interval | None]] = [
            ("loss", f"{model_kind.loss_name}, {model_kind.loss_unit}", loss.nats, loss.before, loss.difference)
        ]
        if per_byte := loss.bits_per_byte_difference:
            before = loss.bits_per_byte_before
            measured.append(("bits_per_byte", "bits per byte", loss.bits_per_byte or 0.0, before, per_byte))
        for metric, metric_name, value, before, difference in measured:
            details = {"texts": loss.texts}
            if difference and before is not None:
                details |= {"before": round(before, 4), **_rounded(difference)}
            found.append(
                {
                    "task_type": model_kind.pipeline_tag,
                    "task_name": model_kind.task_name,
                    "dataset_type": _slug(name),
                    "dataset_name": name,
                    "metric_type": metric,
                    "metric_name": metric_name,
                    "metric_value": round(value, 4),
                    "metric_args": details,
                }
            )
    return found


def _rounded(entry: Interval) -> dict[str, float]:
    return {key: round(entry[key], 4) for key in ("difference", "low", "high")}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "data"


TRAINING_KEYS = (
    "seed batch_size max_length learning_rate warmup weight_decay max_gradient_norm precision layout".split()
)
NOT_MEASURED = (
    "Not evaluated. `acclimate compare` measures such a model and its base model on held-out text, general text and "
    "end tasks, with several seeds, and writes the differences with intervals here."
)
LIMITS = "The model reproduces errors and biases of its training text. It was not evaluated beyond the results above."


def write_adapted_card(folder: str | Path, name: str, results: StudyResults | None = None) -> Path:
    """Write ``README.md`` to the folder of a model written by ``adapt`` or ``pretrain``.

    Args:
        folder: Folder of the model, with its ``acclimate.json``.
        name: Name of the model.
        results: Results of a study, restricted to the rows of this model; None if there are none.

    Returns:
        The path of the card.
    """
    folder = Path(folder)
    if (manifest := read_json_object(folder / MANIFEST_FILE)) is None:
        raise UserError(f"'{folder / MANIFEST_FILE}' is missing or damaged; make the model again.")
    method, about = manifest["method"], manifest.get("about", {})
    kind = kind_of_checkpoint(read_json(folder / "config.json").get("architectures"), folder)
    scratch = method == "pretrain"
    base = None if scratch else str(manifest["model"])
    paper = f" ({about['paper']})" if about.get("paper") else ""
    if scratch:
        summary = f"A {kind.name} language model trained from scratch."
    else:
        done = "unchanged" if method == "none" else f"adapted to the text below with the method `{method}`{paper}"
        summary = f"`{display_name(str(base))}`, {done}."
    if about.get("summary") and not scratch:
        summary += f" In short: {about['summary']}."
    card = Card(
        name,
        kind.pipeline_tag,
        summary,
        base=hub_name(base) if base else None,
        tags=[method],
        results=eval_results(results, kind) if results else [],
    )
    card.sections = [
        *_warning(manifest["result"].get("warning")),
        *(result_sections(results, kind) if results else [("Results", NOT_MEASURED)]),
        *similarity_section(manifest["result"].get("similarity")),
        ("Method", settings_table({"method": method + paper, **_method_settings(manifest.get("settings", {}))})),
        ("Training", settings_table(_training_settings(manifest, kind))),
        *adapter_section(manifest["result"].get("adapter"), bool(manifest.get("stages"))),
        ("Data", _data_section(manifest)),
        *_replay_section(manifest),
        ("Limits", LIMITS),
    ]
    return card.write(folder)


def _warning(text: str | None) -> list[tuple[str, str]]:
    return [("Warning", escape_markdown(text))] if text else []


def write_model_cards(results: StudyResults, out: Path) -> list[Path]:
    """Write ``README.md`` with the results of a study to the folder of every adapted model; return the paths.

    Models that differ only in the seed of adaptation share the results of their method over all seeds; a note in the
    card says so.

    Args:
        results: Results of the study.
        out: Folder of the study.
    """
    written = []
    for run in results.adaptations:
        folder = out / run.folder
        if not run.head and (folder / MANIFEST_FILE).is_file() and (folder / "config.json").is_file():
            written.append(write_adapted_card(folder, _model_name(results, run), _results_of(results, run)))
    return written


def _model_name(results: StudyResults, run: AdaptationRow) -> str:
    """Name an adapted model by base model, method, domain and task, and by seed of adaptation if there are several."""
    parts = [run.model, run.method, run.domain, run.task]
    if len(results.adapt_seeds) > 1:
        parts.append(f"seed {run.seed}")
    return re.sub(r"[^\w.]+", "-", " ".join(str(part) for part in parts if part)).strip("-.")


def _results_of(results: StudyResults, run: AdaptationRow) -> StudyResults:
    """Return the results restricted to one model: all tasks of its domain, or the task that it was adapted for."""

    def is_of_model(row: TaskScores | LossRow) -> bool:
        task = row.adapted_for if isinstance(row, ForgettingRow) else row.task
        same = (row.model, row.domain, row.method) == (run.model, run.domain, run.method)
        return same and run.task in (None, task)

    notes = []
    if (seeds := len(results.adapt_seeds)) > 1:
        notes.append(
            f"The results are means over {seeds} adaptations with this method; this model is that of seed {run.seed}."
        )
    elif results.shared_adaptation:
        notes.append(
            "The intervals include the variance of fine-tuning and of test items, not that of the adaptation, so they "
            "allow no verdict."
        )
    return replace(
        results,
        notes=notes,
        scores=list(filter(is_of_model, results.scores)),
        losses=list(filter(is_of_model, results.losses)),
        forgetting=list(filter(is_of_model, results.forgetting)),
    )


def _method_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method, with local paths reduced to their last part."""
    return {name: _strip_folders(value) if isinstance(value, str) else value for name, value in given.items()}


def _strip_folders(name: str) -> str:
    return name if name.startswith("hf:") else Path(name).name or name


def _training_settings(manifest: Mapping[str, Any], kind: ModelKind) -> dict[str, Any]:
    result = manifest["result"]
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.get("losses", {}).items() if name != "loss")
    masking = manifest.get("masking") or {}
    return {
        "steps": f"{result['steps']:,}",
        "tokens read": f"{result['tokens']:,}",
        **{name.replace("_", " "): manifest.get(name) for name in TRAINING_KEYS},
        "mask rate": manifest.get("mask_rate") if kind.uses_masking else None,
        "masking": masking.get("name") if isinstance(masking, dict) else masking,
        "final loss, nats": losses or None,
        "acclimate": manifest.get("acclimate"),
    }


def _data_section(manifest: Mapping[str, Any]) -> str:
    """List the sources, with local paths reduced to their last part."""
    rows, totals = [], []
    for part in manifest.get("stages") or [manifest]:
        text = part.get("text") or {}
        sources = text.get("contents") or [{"name": name} for name in text.get("sources", [])]
        for source in sources:
            row = (_strip_folders(source["name"]), format_bytes(source.get("bytes")), source.get("hash"))
            if row not in rows:
                rows.append(row)
        counts = [f"{text.get('documents', 0):,} documents"]
        counts += [f"{text[name]:,} {word}" for name, word in _EXCLUDED_COUNTS.items() if text.get(name)]
        counts += [RowAccount(**text["rows"]).summary()] if text.get("rows") else []
        totals.append(f"{', '.join(counts)}; hash of all: `{part.get('corpus')}`.")
    shown = markdown_table(("source", "size", "hash"), rows[:MAX_SOURCES])
    more = f"\n\nand {len(rows) - MAX_SOURCES:,} more" if len(rows) > MAX_SOURCES else ""
    return shown + more + "\n\n" + "\n\n".join(dict.fromkeys(totals))


def _replay_section(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the table of the texts of a mix with their shares of the tokens; nothing if there is only one text."""
    parts = [part.get("result", {}).get("mix") or [] for part in manifest.get("stages") or [manifest]]
    rows = [
        (text["name"], f"{text['share']:.1%}", f"{text['realized']:.1%}", f"{text['tokens']:,}", text["epochs"])
        for part in parts
        for text in part
    ]
    columns = ("text", "share of tokens", "realized", "tokens", "epochs")
    return [("Replay", markdown_table(columns, rows))] if rows else []


MAX_SOURCES = 50
"""Maximum number of sources listed."""
_EXCLUDED_COUNTS = {
    "duplicates": "duplicates removed",
    "empty": "empty records skipped",
    "broken": "unreadable records skipped",
    "elsewhere": "held out",
}


def write_task_model_card(
    folder: str | Path,
    name: str,
    verb: str,
    models: Mapping[str, str],
    task: Any,
    options: Mapping[str, Any],
    result: Any,
) -> Path:
    """Write ``README.md`` to the folder of a model written by ``finetune`` or ``distill``.

    Args:
        folder: Folder of the model.
        name: Name of the model.
        verb: ``"finetune"`` or ``"distill"``.
        models: The models that it was made from, by role: ``model``, or ``teacher`` and ``student``.
        task: The loaded end task.
        options: Training options.
        result: A :class:`acclimate.tasks.result.FinetuneResult`.

    Returns:
        The path of the card.
    """
    pipeline, _ = find_hub_task(task.scoring().kind)
    start = models.get("model") or models["student"]
    teacher = f", with the teacher `{display_name(models['teacher'])}`" if "teacher" in models else ""
    done = "distilled" if verb == "distill" else "fine-tuned"
    summary = f"`{display_name(start)}`, {done} on the task `{task.name}`{teacher}."
    sizes = [(split, f"{len(getattr(task, split)):,}") for split in ("train", "dev", "test") if getattr(task, split)]
    scoring = make_scoring(result.kind, result.scoring)
    metrics = [name for name in (*scoring.metrics, *scoring.errors) if name in result.metrics]
    intervals = bootstrap_intervals(scoring, result.gold, result.predicted, metrics)
    others = describe_references(result.metrics.get("references", {}))
    values = [(name, *(scoring.show(name, x) for x in (result.metrics[name], *intervals[name]))) for name in metrics]
    table = markdown_table(("metric", "value", "95 % interval: from", "to"), values)
    intro = (
        f"Scores in percent{', errors in the unit of the target,' * bool(scoring.errors)} on the {len(task.test):,} "
        f"items of the test split, for one model with seed {result.seed}. "
        "The intervals are a bootstrap over test items and do not include the variance between training runs; "
        "`acclimate compare` runs several seeds and includes both."
    )
    card = Card(
        name,
        pipeline,
        summary,
        base=hub_name(start),
        tags=[verb],
        results=[_eval_result(pipeline, task, metric, result, intervals[metric]) for metric in metrics],
    )
    card.sections = [
        *_warning(result.warning),
        ("Results", "\n\n".join([intro, table, *others])),
        *similarity_section([result.metrics["similarity"]] if "similarity" in result.metrics else []),
        ("Training", settings_table({**options, "examples": f"{result.train_size:,}"})),
        ("Data", markdown_table(("split", "items"), sizes) + f"\n\nHash of the task: `{task.fingerprint()}`."),
        ("Limits", LIMITS),
    ]
    return card.write(Path(folder))


def _eval_result(pipeline: str, task: Any, metric: str, result: Any, interval: tuple[float, float]) -> dict[str, Any]:
    low, high = (round(end, 4) for end in interval)
    return {
        "task_type": pipeline,
        "dataset_type": task.name,
        "dataset_name": task.name,
        "dataset_split": "test",
        "metric_type": HUB_METRICS.get(metric, metric),
        "metric_name": metric.replace("_", " "),
        "metric_value": round(float(result.metrics[metric]), 4),
        "metric_args": {"seed": result.seed, "test_items": len(task.test), "low": low, "high": high},
    }
