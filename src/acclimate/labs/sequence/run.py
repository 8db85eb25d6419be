"""A sequence of domains without a study file: the study that options describe, written to the output and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.options import values, verb
from acclimate.base.verbs import Next
from acclimate.labs.sequence.options import SequenceCommand, SequenceOptions
from acclimate.results.study import StudyResults
from acclimate.study.changes import change_values
from acclimate.study.compare import check_study_folder, compare
from acclimate.study.config import StudyConfig, read_study_file
from acclimate.study.draft import STUDY_FILE, adapt_reading, describe_source, removed_if_nothing_ran, write_study
from acclimate.study.forecast import Forecast, forecast
from acclimate.study.in_memory import DATA_FOLDER, place_text
from acclimate.study.paths import locate_model, locate_text
from acclimate.study.settings import UNADAPTED


@verb(SequenceOptions)
def sequence(options: SequenceOptions) -> StudyResults:
    """Adapt a model to several domains, one after the other, and measure what it gains, keeps and forgets.

    The base of each stage is the model of the stage before. What a method carries, such as the importance of units
    for earlier domains or texts to replay, is in the model folders. After each domain the loss is measured on the
    held-out text of every domain, and, with tasks, the model is fine-tuned on the tasks of the domains so far.

    The study is written to ``out/study.yaml`` and run by :func:`acclimate.compare`, so an interrupted call resumes,
    and a further domain at the end of ``domains`` trains nothing again.

    Returns:
        The results; ``results.rows["sequence"]`` has a row for each method and measure, with the folders of the last
        models.

    Raises:
        UserError: If an option or a text is invalid, ``out`` holds another study, or a job fails.
    """
    out = check_study_folder(options.out)
    study = draft_sequence(options, out)
    path = out / STUDY_FILE
    existed = path.exists()
    if existed and is_extended(read_study_file(path), {"name": path.stem, **study}):
        path.unlink()
    config = write_study(study, path)
    given: dict[str, Any] = {name: getattr(options, name) for name in ("workers", "per_gpu", "backend", "report_to")}
    with removed_if_nothing_ran(out, written=not existed):
        return compare(config, out, progress=options.progress, **given)


def sequence_or_forecast(options: SequenceCommand) -> StudyResults | Forecast:
    """Do what ``acclimate sequence`` does: train, or estimate the time."""
    if not options.dry_run:
        return sequence(**values(options, SequenceOptions))
    study = StudyConfig.of(draft_sequence(options, Path(options.out)))
    return forecast(study, options.out, timed=True, progress=options.progress)


def show_sequence(result: Any, options: SequenceCommand) -> Iterator[Any]:
    """Yield what ``acclimate sequence`` prints."""
    if options.dry_run:
        yield from result.show()
        return
    out = Path(options.out)
    last = {row.method: out / row.orders[0].folders[0] for row in reversed(result.rows["sequence"]) if row.orders}
    for method, folder in reversed(last.items()):
        yield f"Model after the last domain, {method}: {folder}"
    yield f"Report: {out / 'report.html'}"
    model = next(iter(reversed(last.values())), "MODEL")
    tasks = [task["path"] for domain in result.config["domains"] for task in domain.get("tasks") or ()]
    task = ["--task", tasks[-1] if tasks else "TASK"]
    yield Next(["finetune", "--model", model, *task, "--out", "finetuned"], "to train an end task")


def draft_sequence(options: SequenceOptions, out: Path) -> dict[str, Any]:
    """Return the study that the options describe; texts in memory are written to ``out``.

    Raises:
        UserError: If a domain of a task does not exist, or the study is invalid.
    """
    here, tasks, heldout = Path.cwd(), dict(options.tasks or {}), dict(options.heldout or {})
    if lost := next((name for name in (*tasks, *heldout) if name not in options.domains), None):
        what = "a task" if lost in tasks else "held-out text"
        raise UserError(f"There is no domain '{lost}', which {what} names; give its text with --domain {lost}=TEXT.")

    reading = adapt_reading(options)

    def locate(text: Any, file: str) -> list[Any]:
        placed = place_text(text, out / DATA_FOLDER / file, options.text_column)
        sources = [placed] if isinstance(placed, str | Path) else list(placed)
        return [describe_source(str(source), here, options) for source in sources]

    domains: list[dict[str, Any]] = []
    for number, (name, text) in enumerate(options.domains.items()):
        domains.append({"name": name, "corpus": locate(text, f"{number}.jsonl")})
        if name in heldout:
            domains[-1]["heldout"] = locate(heldout[name], f"{number}-heldout.jsonl")
        if name in tasks:
            several = tasks[name] if isinstance(tasks[name], list | tuple) else [tasks[name]]
            more = reading | ({} if options.encoding is None else {"encoding": options.encoding})
            places = [locate_text(str(task), here) for task in several]
            domains[-1]["tasks"] = [{"path": place, **more} if more else place for place in places]
    methods = [name for name in options.methods if name != UNADAPTED]
    if not methods:
        raise UserError("Give at least one method that adapts, such as lm.")
    section = {"methods": methods, "orders": read_orders(options.orders), "seed": options.order_seed}
    section |= {"separate": methods[:1] if options.separate else [], "joint": methods[:1] if options.joint else []}
    study = {
        "title": f"{Path(str(options.model)).name} adapted to {', '.join(options.domains)}, one after the other",
        "models": [locate_model(str(options.model), here)],
        "methods": [UNADAPTED, *methods],
        "domains": domains,
        "general": [describe_source(text, here, options) for text in options.general],
        "sequence": section,
        "adapt": reading | ({} if options.tokens is None else {"tokens": options.tokens}),
        "adapt_seeds": options.seeds,
        "seeds": options.seeds,
    }
    study = change_values({key: value for key, value in study.items() if value}, options.settings or {})
    StudyConfig.of(study, "study of the command line")
    return study


def read_orders(given: Any) -> Any:
    """Return the orders as in a study: a word, a number, or lists of names."""
    if len(given) == 1 and given[0] in ("given", "similarity"):
        return given[0]
    if len(given) == 1 and str(given[0]).isdecimal():
        return int(given[0])
    return [[name.strip() for name in one.split(",")] if isinstance(one, str) else list(one) for one in given]


def is_extended(old: Any, new: Mapping[str, Any]) -> bool:
    """Return whether a study differs from an older one by further domains only, with the orders of all of them."""

    def rest(study: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in study.items() if key not in ("title", "notes", "domains")}
        return kept | {"sequence": {key: one for key, one in kept["sequence"].items() if key != "orders"}}

    known = [old, new] if isinstance(old, Mapping) else []
    if len(known) < 2 or not all(isinstance(study.get("sequence"), Mapping) for study in known):
        return False
    before, after = (list(study["domains"]) for study in known)
    return rest(old) == rest(new) and len(before) < len(after) and all(domain in after for domain in before)
