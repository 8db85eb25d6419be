"""Items of finished evaluations as each tool logs them: lm-eval, lighteval, inspect_ai, tables, our predictions.

A log is read item by item, and of an item only its identity, its scores and the names of its groups are kept: logs of
prompts and answers take gigabytes. Texts become hashes.
"""

from __future__ import annotations

import json
import lzma
import math
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import pyarrow
import pyarrow.parquet

from acclimate.base.errors import DamagedFileError, UserError, first_line, printable, warn_once
from acclimate.base.files import check_regular_file, read_json_object
from acclimate.data.opening import MAX_LINE_BYTES, MAX_WINDOW_BYTES, TABLES, detect_format, suffixes_of
from acclimate.data.readers import BLANK, read_batches, read_json, read_json_rows
from acclimate.data.rows import RowError, is_missing, parse_json, read_rows
from acclimate.tasks.groups import GROUP_NAMES, group_text
from acclimate.tasks.values import read_number

GROUP_FIELDS = ("document", "article", "passage", "context", "paragraph", "story")
"""Fields in which items of benchmarks hold a text that several of them are about, the longest kind of text first."""
GROUPS = {**GROUP_NAMES, **{name: name for name in (*GROUP_FIELDS, "subject")}}
"""Fields and columns of groups, in lower case, the coarsest first, with what their groups are."""
ITEM_NAMES = ("item", "item_id", "id", "example_id", "sample_id", "question_id", "row", "doc_id", "index")
PROMPT_NAMES = ("prompt", "question", "query", "input", "text", "doc")
"""Columns that stand for the item where no column identifies it."""
SCORE_NAMES = ("score", "value")
METRIC_NAMES = (
    *("accuracy", "acc", "correct", "is_correct", "exact_match", "em", "f1", "reward", "loss", "perplexity"),
    *("bits_per_byte", "bleu", "rouge", "rougel", "chrf", "wer", "cer"),
)
METRIC_NAME = re.compile(rf"(?:^|_)(?:{'|'.join(METRIC_NAMES)})$", re.I)
"""Columns that are a score of their own where none has a name of ``SCORE_NAMES``, such as mmlu_acc."""
PREDICTED = {"predicted": "gold", "predicted_label": "label"}
"""Columns of predictions, with the column of the gold answer."""
LM_EVAL_FIELDS = (
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
    *("doc_hash", "prompt_hash", "target_hash"),
)
"""Fields of an item of lm-eval that are no metrics."""
DATED = re.compile(r"(?:samples|details)_(.+)_(\d{4}-\d\d-\d\dT[\d.:+-]+)\.(?:jsonl|parquet)")
"""Name of a file of lm-eval or lighteval: the task and the time of the evaluation."""
SUFFIXES = (*suffixes_of(TABLES), ".eval")
"""Endings of the names of files that can be logs."""
OWN_FILES = ("log.jsonl", "split.csv")
"""Other tables in a folder of a fine-tuned model."""
RESULTS = re.compile(r"results_.*\.json")
GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Grades of inspect_ai: correct, partial, incorrect, no answer."""
WORDS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
THINNED = "..."
"""End of a text that inspect_ai has cut in the summary of a sample."""
CUT = 5000
"""Characters of a text of an input that a summary of inspect_ai keeps, rounded down."""
ZSTD = 93
"""Number of zstd as a method of a zip, which Python reads from version 3.14 on."""
HEAD = 4096
"""Bytes at the start of a JSON file in a folder that say whether it can be a log."""
READ = (
    "the samples_*.jsonl of lm-eval (--log_samples), the details of lighteval (Parquet), the logs of inspect_ai "
    "(.eval, .json), the predictions.jsonl of acclimate, and CSV, JSON lines and Parquet with columns item and score"
)


class Item(NamedTuple):
    """An item of a log.

    Attributes:
        where: Its location, for messages.
        task: Name of its task.
        name: Its id, or the hash of its content.
        scores: Value in each metric, or the value and its weight in the mean; None if it is no finite number.
        groups: Names of its groups by field.
        order: Orders items of equal content.
        seed: Seed of the training; None if it is not logged.
        prompt: Hash of its prompt; empty if it is not logged.
        metric: The metric of its row; empty if a row has all metrics.
    """

    where: str
    task: str
    name: str
    scores: dict[str, float | tuple[float, float] | None]
    groups: dict[str, str]
    order: str = ""
    seed: str | None = None
    prompt: str = ""
    metric: str = ""


@dataclass
class Log:
    """A file of an evaluation.

    Attributes:
        path: The file.
        tool: What has written it.
        folder: Folder of the evaluation of one model.
        model: Name of the model.
        items: Its items, and errors for rows that are none.
        repeats: Meaning of several items of one name: items with the same content, generations for one item, or a
            mistake.
        settings: What must be equal for two logs of the task to be comparable.
        errors: Whether lower is better, by metric, where the log says so.
    """

    path: Path
    tool: str
    folder: Path
    model: str
    items: Iterator[Item | RowError]
    repeats: str = "mistake"
    settings: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, bool] = field(default_factory=dict)


class NoLogError(UserError):
    """A file that is no log of the scores of items."""


class UnfinishedError(NoLogError):
    """A log of an evaluation that did not end well."""


def digest(value: Any) -> str:
    """Return a hash of a text or of a JSON value."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a value that should be a dictionary; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _read_score(value: Any, grades: Mapping[str, float] | None = None) -> float | None:
    """Return a score as a number; None if it is not a finite one. True and yes are 1, false and no are 0."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        text = value.strip()
        found = (grades or {}).get(text, WORDS.get(text.lower()))
        if found is not None:
            return found
    return None if isinstance(value, bytes) else read_number(value)


def _find_groups(doc: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the groups of an item by field; a long text is named by its hash."""
    found = {}
    for name, value in doc.items():
        if name.lower() in GROUPS:
            with suppress(ValueError):
                if text := group_text(value):
                    found[name.lower()] = digest(text) if len(text) > 32 else text
    return found


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value not in (None, "", {}, [])}


def _joined(values: Mapping[str, Any], *names: str) -> str:
    return " ".join(str(values[name]) for name in names if values.get(name))


@contextmanager
def translate_damage(path: Path) -> Iterator[None]:
    """Turn what readers raise for a damaged file into a UserError that names the file."""
    try:
        yield
    except DamagedFileError as damage:
        raise UserError(f"'{path}' cannot be read: line {damage.line}: {damage.reason}.") from damage
    except (
        *(OSError, EOFError, lzma.LZMAError, zlib.error, struct.error, BadZipFile, NotImplementedError),
        *(RuntimeError, ValueError, LookupError, RecursionError, MemoryError, pyarrow.ArrowException),
    ) as error:
        system = error.strerror if isinstance(error, OSError) else None
        reason = system or f"it is damaged or cut off ({first_line(error)})"
        raise UserError(f"'{path}' cannot be read: {reason}.") from error


def _stream_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]] | RowError]:
    """Yield the rows of a table; a line that cannot be parsed, such as a half-written last one, is an error."""
    if detect_format(path) != ".jsonl":
        broken: list[RowError] = []
        yield from read_rows(path, broken=broken)
        yield from broken
        return
    for number, row in read_json_rows(path, parse_json):
        where = f"{path}:{number}"
        if isinstance(row, Exception):
            yield RowError(where, "that cannot be parsed", str(row))
        elif isinstance(row, dict):
            yield where, {str(name).strip(): value for name, value in row.items()}
        elif row is not BLANK:
            yield RowError(where, "that are no JSON objects")


def open_log(path: Path, is_named: bool) -> Log:
    """Open a log in the format that its name and content show.

    Args:
        path: The file.
        is_named: Whether the user named this file, and not its folder.

    Raises:
        NoLogError: If it is no log.
        UserError: If it is damaged, or its evaluation did not end well.
    """
    check_regular_file(path)
    form = detect_format(path)
    with translate_damage(path):
        if path.name.lower().endswith(".eval"):
            return _open_inspect_archive(path)
        if form not in TABLES:
            raise NoLogError(f"'{path}' is no log of an evaluation. Formats that are read: {READ}.")
        if form == ".json":
            if not is_named and not _can_be_log(path):
                raise NoLogError(f"'{path}' is JSON of another kind.")
            value = _as_dict(read_json(path, parse_json))
            if "eval" in value and "status" in value:
                return _open_inspect(path, value, iter(value.get("samples") or ()))
            if "results" in value and value.keys() & {"configs", "config_general"}:
                raise NoLogError(
                    f"'{path}' has means of tasks, not scores of items; give its folder, with the samples_*.jsonl of "
                    "lm-eval (--log_samples) or the details of lighteval (--save-details)."
                )
        if form == ".parquet" and (columns := _lighteval_columns(path)):
            return _open_lighteval(path, columns)
        rows = _stream_rows(path)
        first = next((row[1] for row in rows if not isinstance(row, RowError)), None)
        if first is None:
            raise UserError(f"'{path}' has no row that can be read. Formats that are read: {READ}.")
        if "doc_id" in first and first.keys() & {"doc", "doc_hash"}:
            return _open_lm_eval(path)
        return _open_table(path, first)


def _can_be_log(path: Path) -> bool:
    """Return whether the start of a JSON file has the keys of a log; others, as of a tokenizer, are not parsed."""
    with path.open("rb") as file:
        keys = re.findall(r'"(\w+)"', file.read(HEAD).decode("utf-8", "replace"))
    known = ("status", *SCORE_NAMES, *PREDICTED)
    return any(key in known or METRIC_NAME.search(key) for key in keys)


def _read_results(path: Path) -> dict[str, Any]:
    """Return the means and settings that lm-eval and lighteval write next to the items; empty if there are none."""
    found = read_json_object(path)
    if found is None and path.exists():
        warn_once(printable(f"'{path}' cannot be read, so the settings of the evaluation are not compared."))
    return found or {}


def _open_lm_eval(path: Path) -> Log:
    """Open the items of a task that lm-eval logs (``EvaluationTracker.save_results_samples``)."""
    match = DATED.fullmatch(path.name)
    task = match[1] if match else path.name.partition(".")[0]
    others = sorted(path.parent.glob(f"*_{match[2]}.json")) if match else []
    results = _read_results(others[0]) if others else {}
    sizes = _as_dict(_as_dict(results.get("n-samples")).get(task))
    config = _as_dict(_as_dict(results.get("configs")).get(task))
    found = {
        "dataset": _joined(config, "dataset_path", "dataset_name"),
        "split": config.get("test_split") or config.get("validation_split"),
        "version": _as_dict(results.get("versions")).get(task),
        "few-shot examples": _as_dict(results.get("n-shot")).get(task, config.get("num_fewshot")),
        "limit": sizes.get("effective") if sizes.get("effective") != sizes.get("original") else None,
        "generation": config.get("generation_kwargs"),
    }

    def items() -> Iterator[Item | RowError]:
        for row in _stream_rows(path):
            yield row if isinstance(row, RowError) else lm_eval_item(task, *row)

    higher = _as_dict(_as_dict(results.get("higher_is_better")).get(task))
    model = str(results.get("model_name") or path.resolve().parent.name)
    log = Log(path, "lm-eval", path.parent, model, items(), "content")
    log.settings = _known(found)
    log.errors = {metric: not better for metric, better in higher.items() if isinstance(better, bool)}
    return log


def lm_eval_item(task: str, where: str, sample: Mapping[str, Any]) -> Item | RowError:
    """Return an item of lm-eval; an item of several filters has the filter in the name of its task.

    The value of a perplexity is a pair of a log-likelihood and its number of words or bytes. Of these only bits per
    byte are means over items. For tokenizers that put a begin token before a text, ``lm-eval`` predicts that token as
    well, so they are higher than from :func:`acclimate.evaluation.lm_loss.language_model_loss`.

    ``doc_id`` is only a position, which a limit or a shuffle changes, so the hash of the document is the identity.
    """
    doc, name, kind = sample.get("doc"), sample.get("doc_hash"), sample.get("filter") or "none"
    if doc is None and not isinstance(name, str):
        return RowError(where, "without a document")
    metrics = sample.get("metrics")
    names = metrics if isinstance(metrics, list) else [name for name in sample if name not in LM_EVAL_FIELDS]
    scores: dict[str, float | tuple[float, float] | None] = {}
    for metric in map(str, names):
        value = sample.get(metric)
        pair = [_read_score(one) for one in value] if isinstance(value, list | tuple) and len(value) == 2 else []
        if metric != "bits_per_byte" or not pair:
            scores[metric] = _read_score(value)
        elif pair[0] is None or pair[1] is None or pair[1] < 0:
            scores[metric] = None
        else:
            scores[metric] = (-pair[0] / max(pair[1], 1) / math.log(2), pair[1])
    return Item(
        where,
        task if kind == "none" else f"{task} ({kind})",
        name[:16] if isinstance(name, str) and name else digest(doc),
        scores,
        _find_groups(_as_dict(doc)),
        str(sample.get("doc_id", "")).zfill(20),
        prompt=str(sample.get("prompt_hash") or "")[:16],
    )


def _lighteval_columns(path: Path) -> list[str]:
    """Return the columns to read of a file of lighteval; empty if it is none."""
    schema = pyarrow.parquet.read_schema(path)
    if "doc" in schema.names and "metric" in schema.names and pyarrow.types.is_struct(schema.field("doc").type):
        inner = {one.name for one in schema.field("doc").type}
        found = [f"doc.{name}" for name in ("query", "choices", "gold_index", "id", "specific") if name in inner]
        response = schema.field("model_response").type if "model_response" in schema.names else pyarrow.null()
        has_input = pyarrow.types.is_struct(response) and response.get_field_index("input") >= 0
        return [*found, "metric", *(["model_response.input"] if has_input else [])]
    return []


def _open_lighteval(path: Path, columns: list[str]) -> Log:
    """Open the items of a task that lighteval logs (``DetailsLogger``) in ``details/MODEL/TIME``."""
    match = DATED.fullmatch(path.name)
    task = match[1] if match else path.stem
    place = path.resolve()
    details = next((one for one in place.parents if one.name == "details"), None)
    folder = place.parent.parent if match and place.parent.name == match[2] else place.parent
    model = folder.relative_to(details).as_posix() if details and details in folder.parents else folder.name
    results = {}
    if details and match:
        results = _read_results(details.parent / "results" / model / f"results_{match[2]}.json")
    general, config = (_as_dict(results.get(name)) for name in ("config_general", "config_tasks"))
    config = _as_dict(config.get(task))
    found = {
        "dataset": _joined(config, "hf_repo", "hf_subset"),
        "split": config.get("evaluation_splits"),
        "version": config.get("version"),
        "few-shot examples": config.get("num_fewshots", config.get("num_fewshot")),
        "limit": general.get("max_samples"),
    }

    def items() -> Iterator[Item | RowError]:
        batches = (batch.to_pylist() for _, batch in read_batches(path, lambda _: columns))
        for number, row in enumerate(chain.from_iterable(batches), 1):
            yield _lighteval_item(task, f"{path}: row {number}", row)

    log = Log(path, "lighteval", folder, str(general.get("model_name") or model), items(), "content")
    log.settings = _known(found)
    for metric in map(_as_dict, config.get("metrics") or ()):
        better, names = metric.get("higher_is_better"), metric.get("metric_name")
        for name in names if isinstance(names, list) else [names]:
            value = better.get(name) if isinstance(better, dict) else better
            if isinstance(value, bool):
                log.errors[str(name)] = not value
    return log


def _lighteval_item(task: str, where: str, row: Mapping[str, Any]) -> Item | RowError:
    """Return an item of lighteval, which is named by the hash of its question: its id is only a position."""
    doc = _as_dict(row.get("doc"))
    query = doc.get("query")
    if not isinstance(query, str):
        return RowError(where, "without a document")
    prompt = _as_dict(row.get("model_response")).get("input")
    return Item(
        where,
        task,
        digest([query, doc.get("choices"), doc.get("gold_index")]),
        {str(name): _read_score(value) for name, value in _as_dict(row.get("metric")).items()},
        _find_groups(_as_dict(doc.get("specific"))),
        str(doc.get("id", "")).zfill(20),
        prompt="" if prompt is None else digest(prompt),
    )


def _open_inspect_archive(path: Path) -> Log:
    """Open an ``.eval`` of inspect_ai, a zip of JSON whose parts are read one by one.

    The summaries of the samples have all scores, but texts of more than 1,000 characters are cut there. If a group is
    such a text, the samples themselves are read.
    """
    with ZipFile(path) as archive:
        names = {*archive.namelist()}
        if "header.json" not in names:
            raise UnfinishedError(f"'{path}' is no log of inspect_ai, or of an evaluation that has not ended.")
        header = _as_dict(json.loads(_read_member(archive, "header.json")))
        summaries: Any = None
        if "summaries.json" in names and archive.getinfo("summaries.json").file_size <= MAX_LINE_BYTES:
            summaries = json.loads(_read_member(archive, "summaries.json"))
    if isinstance(summaries, list) and not _cuts_groups(summaries):
        return _open_inspect(path, header, iter(summaries))

    def samples() -> Iterator[Any]:
        with ZipFile(path) as archive:
            for name in archive.namelist():
                if name.startswith("samples/") and name.endswith(".json"):
                    yield json.loads(_read_member(archive, name))

    return _open_inspect(path, header, samples())


def _cuts_groups(samples: Sequence[Any]) -> bool:
    texts = (_as_dict(_as_dict(sample).get("metadata")).items() for sample in samples)
    return any(
        isinstance(value, str) and value.endswith(THINNED)
        for name, value in chain.from_iterable(texts)
        if name.lower() in GROUPS
    )


def _read_member(archive: ZipFile, name: str) -> bytes:
    """Return a part of a zip, in memory, also one that is compressed by zstd."""
    info = archive.getinfo(name)
    if info.file_size > MAX_LINE_BYTES:
        raise ValueError(f"'{name}' has more than {MAX_LINE_BYTES:,} bytes")
    if info.compress_type != ZSTD:
        return archive.read(info)
    import zstandard

    file = archive.fp
    assert file is not None
    file.seek(info.header_offset)
    header = file.read(30)
    file.seek(sum(struct.unpack("<HH", header[26:30])), 1)  # the name, and further fields
    decoder = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        with decoder.stream_reader(file.read(info.compress_size), read_across_frames=True) as stream:
            data = stream.read(info.file_size + 1)
    except zstandard.ZstdError as error:
        raise ValueError(f"'{name}': {first_line(error)}") from error
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise ValueError(f"'{name}' is not what was written")
    return bytes(data)


def _open_inspect(path: Path, header: Mapping[str, Any], samples: Iterator[Any]) -> Log:
    """Open a log of inspect_ai: an ``EvalLog``, and its samples or their summaries."""
    if header.get("status") != "success" or header.get("invalidated"):
        state = "was marked as invalid" if header.get("invalidated") else f"has the status '{header.get('status')}'"
        raise UnfinishedError(
            f"'{path}': the evaluation {state}, so its items are not all there; finish it with 'inspect eval-retry', "
            "or move the log away."
        )
    spec = _as_dict(header.get("eval"))
    task, model = (str(spec.get(name) or path.stem) for name in ("task", "model"))
    config, dataset = _as_dict(spec.get("config")), _as_dict(spec.get("dataset"))
    steps = _as_dict(header.get("plan")).get("steps")
    reducers = [str(name) for name in config.get("epochs_reducer") or () if name != "mean"]
    if reducers and config.get("epochs", 1) not in (None, 1):
        shown = ", ".join(reducers)
        warn_once(printable(f"'{path}': the score of an item is the mean over its epochs, not '{shown}' as there."))
    found = {
        "dataset": dataset.get("name"),
        "version": spec.get("task_version"),
        "arguments": spec.get("task_args"),
        "template": steps and digest([[_as_dict(step).get(key) for key in ("solver", "params")] for step in steps]),
        "limit": config.get("limit"),
    }
    is_position = bool(dataset.get("shuffled"))

    def items() -> Iterator[Item | RowError]:
        for number, sample in enumerate(samples, 1):
            yield _inspect_item(task, f"{path}: sample {number}", _as_dict(sample), is_position)

    log = Log(path, "inspect_ai", path.parent, model, items(), "epochs")
    log.settings = _known(found)
    return log


def _start_of(value: Any) -> Any:
    """Return the texts of an input up to where a summary cuts them, without the ids that differ from run to run."""
    if isinstance(value, list):
        return [_start_of(part) for part in value if _as_dict(part).get("type", "text") == "text"]
    if isinstance(value, dict):
        return [value.get("role"), _start_of(value.get("content", value.get("text")))]
    return value[:CUT] if isinstance(value, str) else None


def _inspect_item(task: str, where: str, sample: Mapping[str, Any], is_position: bool) -> Item | RowError:
    """Return a sample in one epoch; with ``is_position``, an id that is a number is only a position."""
    if sample.get("error"):
        return RowError(where, "that ended with an error")
    name, text = sample.get("id"), _start_of(sample.get("input"))
    if not isinstance(name, str | int) or (is_position and isinstance(name, int)):
        if not text:
            return RowError(where, "without an id")
        name = digest([text, sample.get("target")])
    scores: dict[str, float | tuple[float, float] | None] = {}
    for scorer, score in _as_dict(sample.get("scores")).items():
        value = _as_dict(score).get("value")
        parts = enumerate(value) if isinstance(value, list) else _as_dict(value).items()
        scores |= {f"{scorer}/{key}": _read_score(part, GRADES) for key, part in parts}
        if not isinstance(value, list | dict):
            scores[scorer] = _read_score(value, GRADES)
    groups = _find_groups(_as_dict(sample.get("metadata")))
    return Item(where, task, str(name), scores, groups, prompt=digest(text) if text else "")


def _pick(names: Collection[str], usual: Collection[str]) -> str | None:
    """Return the first column with a usual name, whatever its case, blanks and hyphens."""
    known = {re.sub(r"[ -]", "_", name.lower()): name for name in reversed(list(names))}
    return next((known[name] for name in usual if name in known), None)


class _Columns(NamedTuple):
    """The columns of a table of scores; None where there is no such column."""

    item: str
    is_id: bool
    metrics: list[str]
    answers: tuple[str, str] | None
    group: str | None
    task: str | None
    seed: str | None
    metric: str | None


def _find_columns(path: Path, names: Collection[str]) -> _Columns:
    """Return the columns of a table, and say which of them are not used."""
    item = _pick(names, ITEM_NAMES)
    score = _pick(names, SCORE_NAMES)
    metrics = [score] if score else [name for name in names if METRIC_NAME.search(name)]
    pairs = [(made, gold) for made, gold in PREDICTED.items() if made in names and gold in names]
    answers = pairs[0] if pairs and not metrics else None
    named = item or _pick(names, PROMPT_NAMES)
    if named is None or not (metrics or answers):
        raise NoLogError(
            f"'{path}' has the columns {', '.join(names):.200}, but no 'item' or no 'score'; rename the columns with "
            f"the id of an item and with its score. Formats that are read: {READ}."
        )
    others = [_pick(names, (name,)) for name in ("group", "task", "seed", "metric")]
    used = {named, *metrics, *others}
    if not answers and (
        unused := [name for name in names if name and name not in used and name.lower() not in GROUPS]
    ):
        warn_once(
            printable(
                f"'{path}' has its items in '{named}' and its scores in {', '.join(metrics)}; not used: "
                f"{', '.join(unused):.200}."
            )
        )
    return _Columns(named, item is not None, metrics, answers, *others)


def _open_table(path: Path, first: Mapping[str, Any]) -> Log:
    """Open a table with an item per row, or predictions with gold answers."""
    columns = _find_columns(path, list(first))
    summary = _as_dict(read_json_object(path.with_name("metrics.json"))) if columns.answers else {}

    def items() -> Iterator[Item | RowError]:
        for row in _stream_rows(path):
            yield row if isinstance(row, RowError) else _table_item(columns, summary, *row)

    model = path.resolve().parent.name if summary else path.name.partition(".")[0]
    tool, repeats = ("predictions" if columns.answers else "table"), ("mistake" if columns.is_id else "content")
    return Log(path, tool, path.parent, model, items(), repeats)


def _table_item(columns: _Columns, summary: Mapping[str, Any], where: str, row: Mapping[str, Any]) -> Item | RowError:
    """Return the item of a row; ``summary`` is the ``metrics.json`` next to predictions of acclimate."""
    cells: dict[str | None, str | None] = {}
    for column in (columns.item, columns.task, columns.seed, columns.metric):
        if column is not None:
            try:
                cells[column] = group_text(row.get(column))
            except ValueError:
                return RowError(where, f"whose '{column}' is neither a text nor a number")
            if cells[column] is None:
                return RowError(where, f"without a value in '{column}'")
    name = str(cells[columns.item])
    found = {metric: row.get(metric) for metric in columns.metrics}
    if columns.answers:
        made, gold = map(row.get, columns.answers)
        found = _compare_answers(made, gold, summary.get("kind") == "qa")
    groups = _find_groups({key: value for key, value in row.items() if key not in (columns.item, *columns.metrics)})
    if columns.group is not None:
        try:
            groups = {"group": group_text(row.get(columns.group)) or f"item {name}"}
        except ValueError:
            return RowError(where, f"whose '{columns.group}' is neither a text nor a number")
    return Item(
        where,
        str(cells.get(columns.task) or summary.get("task") or "all"),
        name if columns.is_id else digest(name),
        {str(cells.get(columns.metric) or metric): _read_score(value) for metric, value in found.items()},
        groups,
        seed=cells[columns.seed] if columns.seed else group_text(summary.get("seed")),
        metric=cells.get(columns.metric) or "",
    )


def _compare_answers(predicted: Any, gold: Any, is_question: bool) -> dict[str, Any]:
    """Return how good a prediction is: 0 or 1, or the absolute error of a number; None without a gold answer."""
    if isinstance(gold, float) and not is_missing(gold):
        number = _read_score(predicted)
        return {"absolute error": None if number is None else abs(number - gold)}
    if is_missing(gold) or predicted is None:
        return {"accuracy": None}
    if is_question and isinstance(gold, list):
        best = predicted[0] if isinstance(predicted, list) and predicted else predicted
        return {"exact match": best in gold}
    if isinstance(gold, list):
        pair = [sorted(map(digest, side)) if isinstance(side, list) else side for side in (predicted, gold)]
        return {"exact match": pair[0] == pair[1]}
    return {"accuracy": predicted == gold}
