"""Cards of adapted, pre-trained, fine-tuned and distilled models, from the training records in their folders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import MANIFEST_FILE, read_json, read_json_object
from acclimate.cards.card import (
    Card,
    adapter_section,
    describe_references,
    display_name,
    encodes_sentences,
    escape_markdown,
    find_origin,
    format_bytes,
    markdown_table,
    settings_table,
    similarity_section,
)
from acclimate.cards.results import HUB_METRICS, eval_results, result_sections
from acclimate.data.documents import Corpus, count_units
from acclimate.data.operations import find_accounts
from acclimate.data.sources import parse_hub_name
from acclimate.data.token_dataset import RowAccount
from acclimate.evaluation.scoring import find_scoring, make_scoring
from acclimate.evaluation.significance import bootstrap_intervals
from acclimate.models.checkpoints import has_chat_template
from acclimate.models.kinds import CAUSAL, SEQ2SEQ, ModelKind, kind_of_checkpoint
from acclimate.results.adaptations import AdaptationRow, Change
from acclimate.results.scores import ForgettingRow
from acclimate.results.study import ReportTable, StudyResults

TRAINING_KEYS = (
    "seed batch_size max_length learning_rate warmup weight_decay max_gradient_norm precision layout".split()
)
TASK_STEPS = {
    "text-classification": """Classify texts:

```python
from transformers import pipeline

classify = pipeline("text-classification", model='{name}')
print(classify({input}, truncation=True, max_length={length}))
```""",
    "token-classification": """Mark words, in windows of {length} tokens:

```python
from transformers import pipeline

mark = pipeline("token-classification", model='{name}', aggregation_strategy="simple", stride={stride})
print(mark("A text with names."))
```""",
    "question-answering": """Answer questions, in windows of {length} tokens:

```python
import torch

question, passage = "What is asked?", "A passage with the answer."
read = tokenizer(
    question, passage, truncation="only_second", max_length={length}, stride={stride}, padding=True,
    return_overflowing_tokens=True, return_offsets_mapping=True, return_tensors="pt",
)
with torch.no_grad():
    output = model(input_ids=read["input_ids"], attention_mask=read["attention_mask"])
spans = []
for window, places in enumerate(read["offset_mapping"].tolist()):
    found = [token for token, text in enumerate(read.sequence_ids(window)) if text == 1]
    starts, ends = output.start_logits[window].tolist(), output.end_logits[window].tolist()
    spans += [
        (starts[first] + ends[last], places[first][0], places[last][1])
        for first in found for last in found if first <= last < first + 30
    ]
_, start, end = max(spans)
print(passage[start:end])
```""",
    "multiple-choice": """Choose:

```python
import torch

question, choices = "A question.", ["A choice.", "Another choice."]
tokenizer.truncation_side = "left"
read = tokenizer(
    [question] * len(choices), choices, truncation="longest_first", max_length={length}, padding=True,
    return_tensors="pt",
)
with torch.no_grad():
    scores = model(**{name: values[None] for name, values in read.items()}).logits[0]
print(choices[scores.argmax()])
```""",
    "text-ranking": """Score documents for a query:

```python
from sentence_transformers import CrossEncoder

print(CrossEncoder('{name}').rank("A query.", ["A document.", "Another document."]))
```""",
}
"""Next step with a model of an end task, by its pipeline tag."""
PREDICT = """For the rows of a table:

```console
$ acclimate predict --model {name} --data DATA --out predictions.csv
```"""
ALL_LABELS = (
    "Trained on the rows of all splits, dev and test included, with settings that were chosen before. So this model "
    "has no score; the score of the same training without these rows is a cautious estimate."
)
CHAT_STEP = """Ask it:

```python
from transformers import pipeline

chat = pipeline("text-generation", model='{name}')
turns = [{"role": "user", "content": "What can you tell me about this domain?"}]
print(chat(turns, max_new_tokens=100)[0]["generated_text"][-1]["content"])
```

or serve it:

```console
$ vllm serve {name}
```"""
"""Next step with a model that has a chat template."""
NOT_MEASURED = (
    "Not evaluated. `acclimate compare` measures such a model and its base model on held-out text, general text and "
    "end tasks, with several seeds, and writes the differences with intervals here."
)
LIMITS = "The model reproduces errors and biases of its training text. It was not evaluated beyond the results above."


def write_adapted_card(
    folder: str | Path, name: str, results: StudyResults | None = None, load_name: str = ""
) -> Path:
    """Write ``README.md`` to the folder of a model written by ``adapt`` or ``pretrain``.

    Args:
        folder: Folder of the model, with its ``acclimate.json``.
        name: Name of the model.
        results: Results of a study, restricted to the rows of this model; None if there are none.
        load_name: Name to load the model by; by default ``name``.

    Returns:
        The path of the card.
    """
    folder = Path(folder)
    if (manifest := read_json_object(folder / MANIFEST_FILE)) is None:
        raise UserError(f"'{folder / MANIFEST_FILE}' is missing or damaged; make the model again.")
    method, about, result = manifest["method"], manifest.get("about", {}), manifest["result"]
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
        origin=find_origin(base),
        tags=[method],
        datasets=[name for part in _parts(manifest) for name in _files(part)["datasets"]],
        results=eval_results(results, kind) if results else [],
        next_step=CHAT_STEP if has_chat_template(folder) else kind.next_step,
        load_name=load_name,
    )
    card.sections = [
        *_warning(result.get("warning")),
        *(result_sections(results, kind) if results else [("Results", NOT_MEASURED)]),
        *([_changes_section(result["changes"])] if result.get("changes") else []),
        *(similarity_section(result["similarity"]) if result.get("similarity") else []),
        ("Method", settings_table({"method": method + paper, **_method_settings(manifest.get("settings", {}))})),
        ("Training", settings_table(_training_settings(manifest, kind))),
        *(adapter_section(result["adapter"], bool(manifest.get("stages"))) if result.get("adapter") else []),
        ("Data", _data_section(manifest)),
        *([_replay_section(manifest)] if any(part["result"].get("mix") for part in _parts(manifest)) else []),
        ("Limits", LIMITS),
    ]
    return card.write(folder)


def _changes_section(changes: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Say what an adaptation changed."""
    found = [Change.from_dict(change) for change in changes]
    rows = [(f"{one.name}, {one.unit}", f"{one.count:,}", *one.shown()) for one in found]
    columns = ("measured on", "items", "before", "after", "difference", "from", "to")
    return "Before and after", f"Differences with 95 % intervals over items.\n\n{markdown_table(columns, rows)}"


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
            name = _model_name(results, run)
            written.append(write_adapted_card(folder, name, _results_of(results, run), load_name(folder)))
    return written


def _model_name(results: StudyResults, run: AdaptationRow) -> str:
    """Name an adapted model by base model, method, domain and task, and by seed of adaptation if there are several."""
    parts = [run.model, run.method, run.domain, run.task]
    if len(results.adapt_seeds) > 1:
        parts.append(f"seed {run.seed}")
    return re.sub(r"[^\w.]+", "-", " ".join(str(part) for part in parts if part)).strip("-.")


def _results_of(results: StudyResults, run: AdaptationRow) -> StudyResults:
    """Return the results restricted to one model: all tasks of its domain, or the task that it was adapted for."""

    def is_of_model(row: Any) -> bool:
        task = row.adapted_for if isinstance(row, ForgettingRow) else row.get("task")
        same = all(row.get(name) == getattr(run, name) for name in ("model", "domain", "method"))
        return same and run.task in (None, task)

    notes = []
    if (seeds := len(results.adapt_seeds)) > 1:
        notes.append(
            f"The results are means over {seeds} adaptations with this method; this model has seed {run.seed}."
        )
    elif results.shared_adaptation:
        notes.append(
            "The intervals include the variance of fine-tuning and of test items, not the variance of the adaptation, "
            "so they allow no verdict."
        )
    return replace(
        results,
        notes=notes,
        scores=list(filter(is_of_model, results.scores)),
        losses=list(filter(is_of_model, results.losses)),
        forgetting=list(filter(is_of_model, results.forgetting)),
        rows={name: list(filter(is_of_model, rows)) for name, rows in results.rows.items()},
        tables=[replace(table, rows=_rows_of(table, run)) for table in results.tables],
    )


def _rows_of(table: ReportTable, run: AdaptationRow) -> list[list[Any]]:
    """Return the rows about a model; none of a table that does not name models and methods, which may name files."""
    if not {"model", "method"} <= set(table.columns):
        return []
    wanted: dict[str, list[Any]] = {
        "model": [run.model],
        "domain": [run.domain],
        "method": [run.method, f"{run.method}, {run.task}"],
    }
    wanted |= {"task": [run.task]} if run.task else {}
    places = [(table.columns.index(name), values) for name, values in wanted.items() if name in table.columns]
    return [row for row in table.rows if all(row[place] in values for place, values in places)]


def _method_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method, with local paths reduced to their last part."""
    return {name: _strip_folders(value) if isinstance(value, str) else value for name, value in given.items()}


def _strip_folders(name: str) -> str:
    return name if name.startswith("hf:") else Path(name).name or name


def _training_settings(manifest: Mapping[str, Any], kind: ModelKind) -> dict[str, Any]:
    result = manifest["result"]
    losses = ", ".join(f"{name} {value:.3f}" for name, value in result.get("losses", {}).items() if name != "loss")
    masking = (manifest.get("masking") or {}).get("name")
    return {
        "steps": f"{result['steps']:,}",
        "tokens read": f"{result['tokens']:,}",
        **{name.replace("_", " "): result.get(name, manifest.get(name)) for name in TRAINING_KEYS},
        "mask rate": manifest.get("mask_rate") if kind.uses_masking and not kind.pairs else None,
        "masking": None if masking == "random" else masking,  # recorded also where nothing is masked, or by a method
        "final loss, nats": losses or None,
        "acclimate": manifest.get("acclimate"),
    }


def _parts(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the manifests of the stages of an adaptation, or the manifest itself."""
    return manifest.get("stages") or [manifest]


def _files(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of files of the text, their bytes and the public datasets among them."""
    text = manifest.get("text") or {}
    found = {"files": 0, "bytes": None, **(text.get("files") or {})}
    datasets = [*found.get("datasets", []), *(name for one in text.get("selections", ()) for name in one["datasets"])]
    return {**found, "datasets": list(dict.fromkeys(datasets))}


def summarize_text(text: Corpus) -> dict[str, Any]:
    """Return what a manifest keeps of a text, so that a model can be traced back to it: numbers, no private names."""
    summary = {**text.report.as_dict(), "files": summarize_sources(text.contents())}
    del summary["sources"]  # names of files can be private
    accounts = [account.public() for account in find_accounts(text)]
    return {**summary, "selections": accounts} if accounts else summary


def summarize_sources(contents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a manifest keeps of the sources of a text: no names of files, which can be private.

    Args:
        contents: See :meth:`acclimate.data.Corpus.contents`.

    Returns:
        The number of ``files``, their ``bytes`` in total or None if unknown, and the names of ``datasets`` of the Hub.
    """
    datasets = [str(source["name"]) for source in contents if str(source["name"]).startswith("hf:")]
    sizes = [source.get("bytes") for source in contents if not str(source["name"]).startswith("hf:")]
    return {
        "files": len(contents) - len(datasets),
        "bytes": None if None in sizes else sum(sizes),
        "datasets": list(dict.fromkeys(name.removeprefix("hf:").split(":")[0] for name in datasets)),
    }


def _data_section(manifest: Mapping[str, Any]) -> str:
    totals = []
    for part in _parts(manifest):
        text, files = part.get("text") or {}, _files(part)
        counts = [f"{files['files']:,} {'file' if files['files'] == 1 else 'files'}"] if files["files"] else []
        counts += [str(format_bytes(files["bytes"]))] if counts and files["bytes"] is not None else []
        counts += [f"`{name}`" for name in files["datasets"]] + [f"{text.get('documents', 0):,} documents"]
        counts += [f"{text[name]:,} {word}" for name, word in _EXCLUDED_COUNTS.items() if text.get(name)]
        counts += [f"{number:,} {name} masked" for name, number in (text.get("masked") or {}).items()]
        counts += [RowAccount(**text["rows"]).summary()] if text.get("rows") else []
        totals.append(f"{', '.join(counts)}; hash of all: `{part.get('corpus')}`.")
        totals += [_describe_selection(account) for account in text.get("selections", ())]
    return "\n\n".join(dict.fromkeys(totals))


def _describe_selection(account: Mapping[str, Any]) -> str:
    settings = {name: value for name, value in account["settings"].items() if type(value) in (int, float)}
    given = "".join(f", {name} {value:g}" for name, value in settings.items())
    verb, word = ("Transformed", "from") if account.get("kind") == "transform" else ("Selected", "of")
    documents, tokens = (
        f"{account[f'{name}_out']:,} {word} {account[f'{name}_in']:,}" for name in ("documents", "tokens")
    )
    said = f"{verb} with `{account['operation']}`{given}: {documents} documents, {tokens} {account['counted_by']}."
    prompts = ", ".join(f"`{name}` {digest}" for name, digest in account.get("prompts", {}).items())
    return f"{said} Written by `{account['generator']}`, prompts {prompts}." if prompts else said


def _replay_section(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Return the table of the texts that were mixed, with their shares of the tokens."""
    parts = [part["result"].get("mix") or [] for part in _parts(manifest)]
    rows = [
        (
            _public_name(text, number),
            f"{text['share']:.1%}",
            f"{text['realized']:.1%}",
            f"{text['tokens']:,}",
            text["epochs"],
            f"{text['loss']:.3f}" if "loss" in text else "",
        )
        for part in parts
        for number, text in enumerate(part)
    ]
    columns = ("text", "share of tokens", "realized", "tokens", "epochs", "loss at the end")
    mix = manifest.get("mix")
    told = f"The mix `{mix['name']}` divided the training among the texts.\n\n" if mix else ""
    return "Mix" if mix else "Replay", told + markdown_table(columns, rows)


def _public_name(text: Mapping[str, Any], number: int) -> str:
    """Return the name of a text of a mix: one that the user chose, but none of a file."""
    name = str(text["name"])
    own = name in ("self", "self (chat)")  # written by the model
    return name if not number or own or "source" in text or name.startswith("hf:") else f"replayed text {number}"


_EXCLUDED_COUNTS = {
    "duplicates": "duplicates removed",
    "empty": "empty records skipped",
    "broken": "unreadable records skipped",
    "elsewhere": "held out",
}


def write_task_model_card(
    folder: str | Path,
    out: Path,
    verb: str,
    models: Mapping[str, str],
    task: Any,
    options: Mapping[str, Any],
    result: Any,
    length: int,
) -> Path:
    """Write ``README.md`` to the folder of a model written by ``finetune`` or ``distill``.

    Args:
        folder: Folder of the model.
        out: Its final place.
        verb: ``"finetune"`` or ``"distill"``.
        models: The models that it was made from, by role: ``model``, or ``teacher`` and ``student``.
        task: The loaded end task.
        options: Training options.
        result: A :class:`acclimate.tasks.result.FinetuneResult`.
        length: Maximum tokens per text of its training.

    Returns:
        The path of the card.
    """
    pipeline, _ = find_scoring(task.scoring().name).hub_task
    if pipeline == CAUSAL.pipeline_tag and (read_json_object(Path(folder) / "config.json") or {}).get(
        "is_encoder_decoder"
    ):
        pipeline = SEQ2SEQ.pipeline_tag
    named = {role: display_name(model) for role, model in models.items() if role in options}
    if pipeline == "sentence-similarity" and not encodes_sentences(Path(folder)):
        pipeline = "text-ranking"
    start = models.get("model") or models["student"]
    teacher = f", with the teacher `{display_name(models['teacher'])}`" if "teacher" in models else ""
    done = "distilled" if verb == "distill" else "fine-tuned"
    summary = f"`{describe_start(start)}`, {done} on the task `{task.name}`{teacher}."
    sizes = [(split, f"{len(getattr(task, split)):,}") for split in ("train", "dev", "test") if getattr(task, split)]
    scores, found = _task_scores(pipeline, task, result) if result.metrics else (ALL_LABELS, [])
    card = Card(
        task_model_name(start, task.name, out.name),
        pipeline,
        summary,
        origin=find_origin(start),
        tags=[verb],
        next_step=_task_step(pipeline, Path(folder), task, length),
        load_name=load_name(out),
        length=length,
        results=found,
    )
    card.sections = [
        *_warning(result.warning),
        ("Results", scores),
        *(similarity_section(result.metrics["similarity"]) if "similarity" in result.metrics else []),
        ("Training", settings_table({**options, **named, "examples": f"{result.train_size:,}"})),
        ("Data", markdown_table(("split", "items"), sizes) + f"\n\nHash of the task: `{task.fingerprint()}`."),
        ("Limits", LIMITS),
    ]
    return card.write(Path(folder))


def _task_step(pipeline: str, folder: Path, task: Any, length: int) -> str:
    """Return the next step with a model of an end task, at the length of its training."""
    heads = (read_json_object(folder / "config.json") or {}).get("architectures") or [""]
    has_pipeline = pipeline != "multiple-choice" or heads[0].endswith("MultipleChoice")  # not a decoder
    pair = getattr((task.train or task.test)[0], "text_pair", None) is not None
    text = '{"text": "A text.", "text_pair": "Its second text."}' if pair else '"A text to classify."'
    step = TASK_STEPS.get(pipeline, "") if has_pipeline else ""
    for name, value in (("input", text), ("length", length), ("stride", length // 4)):
        step = step.replace(f"{{{name}}}", str(value))
    notes = []
    if getattr(task, "auxiliary_labels", None):
        notes = [
            "`acclimate predict` also predicts the auxiliary label, with a layer that `transformers` does not load."
        ]
        if task.context:
            notes.append(f"The second text is the {task.context} texts before, a line each, the last one first.")
    return "\n\n".join(filter(None, (step, PREDICT, " ".join(notes))))


def _task_scores(pipeline: str, task: Any, result: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the scores of a model on the test split with their intervals, as Markdown and as results for the Hub."""
    scoring = make_scoring(result.kind, result.scoring)
    metrics = [name for name in (*scoring.metrics, *scoring.errors) if name in result.metrics]
    intervals = bootstrap_intervals(scoring, result.gold, result.predicted, metrics)
    others = describe_references(result.metrics.get("references", {}))
    values = [(name, *(scoring.show(name, x) for x in (result.metrics[name], *intervals[name]))) for name in metrics]
    units = None if scoring.groups is None else max(scoring.groups) + 1
    drawn = "test items" if units is None else f"whole {scoring.group_name}s"
    tested = count_units(len(task.test), units, scoring.group_name)
    intro = (
        f"Scores in percent{', errors in the unit of the target,' * bool(scoring.errors)} on the {tested} of the test "
        f"split, for one model with seed {result.seed}. The intervals are a bootstrap over {drawn} and do not include "
        "the variance between training runs; "
        "`acclimate compare` runs several seeds and includes both."
    )
    hidden = "micro_f1" if "accuracy" in metrics else ""  # then the two are equal
    table = markdown_table(
        ("metric", "value", "95 % interval: from", "to"), [row for row in values if row[0] != hidden]
    )
    text = "\n\n".join([intro, table, *result.metrics.get("notes", ()), *others])
    return text, [_eval_result(pipeline, task, metric, result, intervals[metric]) for metric in metrics]


def load_name(out: Path) -> str:
    """Return the name by which a card loads a model: its folder as it was given, or the last part of a full path.

    A full path would name folders of this machine.
    """
    return out.name if out.is_absolute() else str(out)


def describe_start(model: str) -> str:
    """Return the name of the model that a training started from; of an adapted one also its method."""
    made = (read_json_object(Path(model) / MANIFEST_FILE) or {}) if Path(model).is_dir() else {}
    method = made.get("method", "pretrain")
    return display_name(model) if method == "pretrain" else f"{display_name(str(made['model']))}-{method}"


def task_model_name(start: str, task: str, folder: str) -> str:
    """Name a model of an end task by what it is, with the seed if its folder is named after one of several seeds."""
    seed = f"-{folder}" if re.fullmatch(r"seed-\d+", folder) else ""
    return re.sub(r"[^\w.]+", "-", f"{describe_start(start).split('/')[-1]}-{task}").strip("-.") + seed


def _eval_result(pipeline: str, task: Any, metric: str, result: Any, interval: tuple[float, float]) -> dict[str, Any]:
    low, high = (round(end, 4) for end in interval)
    source = getattr(task, "reading", {}).get("source")
    dataset, config = parse_hub_name(source)[:2] if source else (task.name, None)
    return {
        "task_type": pipeline,
        "dataset_type": dataset,
        "dataset_name": task.name,
        "dataset_config": config,
        "dataset_split": "test",
        "metric_type": HUB_METRICS.get(metric, metric),
        "metric_name": metric.replace("_", " "),
        "metric_value": round(float(result.metrics[metric]), 4),
        "metric_args": {"seed": result.seed, "test_items": len(task.test), "low": low, "high": high},
    }
