"""Running a study: read the inputs, run the jobs, write results and report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import follow_link, read_json_object
from acclimate.base.options import verb
from acclimate.base.registry import import_plugin, imported_plugins
from acclimate.base.terminal import SafeConsole
from acclimate.cards.writers import write_model_cards
from acclimate.engine.callbacks import check_trackers, report_summary
from acclimate.results.requirements import parse_requirements
from acclimate.results.study import PAGE, REPORT, RESULTS, StudyResults
from acclimate.study.backend import Backend
from acclimate.study.changes import load_study
from acclimate.study.clusters import launchers
from acclimate.study.config import StudyConfig
from acclimate.study.contamination import Contamination, check_contamination, remove_contamination
from acclimate.study.draft import STUDY_FILE, is_copy, keep_study
from acclimate.study.executor import Executor, JobStore, NothingToClaimError
from acclimate.study.graph import Shard, read_study
from acclimate.study.in_memory import CompareCall, find_study
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Job, RunContext, StudyView
from acclimate.study.keeping import keep_models, with_keep
from acclimate.study.requirements import check_study_names, decide_study
from acclimate.study.search import check_search, final_graph, run_search
from acclimate.study.summary import summarize, summarize_numbers
from acclimate.study.workers import LOGS, Pool

CLEAN = "No dev or test text was found in the corpus or in a train split."
NAMED = 5
"""Maximum number of missing jobs listed in the terminal."""


def check_study_folder(out: str | Path) -> Path:
    """Return the folder of a study, or the target of it if it is a link.

    Raises:
        UserError: If it is a file, a link that leads nowhere, or holds results that are not those of a study.
    """
    out = follow_link(out)
    if out.is_file():
        raise UserError(f"'{out}' is a file; give a folder for the study.")
    files = [out / name for name in (RESULTS, PAGE, REPORT) if (out / name).exists()]
    if files and "format" not in (read_json_object(out / RESULTS) or {}):
        names = ", ".join(file.name for file in files)
        hint = f"; if the study in '{out}' wrote it, it is damaged: delete {names}" * (out / "jobs").is_dir()
        raise UserError(f"'{files[0]}' is not the result of a study; give another folder{hint}.")
    return out


@verb(CompareCall)
def compare(options: CompareCall) -> StudyResults:
    """Compare a model with its adapted versions, or a grid of models, methods, domains with their tasks, and seeds.

    In one line: ``compare(model="roberta-base", corpus=texts, task=frame, out="runs/reviews")``. Texts and the task
    can be in memory; they are written to ``out/data``, and the study to ``out/study.yaml``, to change and go on with.

    The result of each job is stored in ``out/jobs`` under a hash of everything that determines it. After an
    interruption, or after methods are added, the same call computes only the missing jobs. At the end ``out`` contains
    ``results.json``, ``results.md``, ``report.html``, and the main tables as ``results.csv`` and ``results.tex``.

    With ``workers``, several processes on this machine or a cluster compute the jobs, and this one shows what they do.
    Several processes may share ``out``, also on several machines. Each claims a job before computing it, waits for
    jobs that others have claimed, and takes over the jobs of an interrupted process.

    A search for settings runs first and reads dev splits only; test splits are read afterwards, with the chosen
    settings. If the search is not complete when a shard has done its share, the shard stops; run the same command
    again once the other shards are done.

    With ``keep="best"`` the folder ``out/kept`` gets the fine-tuned model of the best method on each task, and of the
    baseline: see :mod:`acclimate.study.keeping`.

    Returns:
        The results. A notebook shows the table and the figure of the differences; ``to_pandas()`` returns the scores
        as a data frame, ``report()`` the report, and ``results["scores"]`` an entry of ``results.json``. If a shard
        ends before the study is complete, ``results.jobs.left`` is the number of unfinished jobs, and nothing is
        written. ``results.decision`` says whether what you ``require`` is met.

    Raises:
        UserError: If the study cannot be run, or if jobs failed; in the latter case all other jobs have been computed
            and the results have been written.
    """
    report_only, progress, trackers = options.report_only, options.progress, check_trackers(options.report_to)
    share = None if options.shard is None else Shard.parse(options.shard)
    if share and report_only:
        raise UserError("--shard and --report-only exclude each other; give one of them.")
    if not options.out:
        raise UserError("Give an output directory, such as out='runs/study'.")
    backend, out = options.backend or Backend(), check_study_folder(options.out)
    study, settings = find_study(options, out)
    settings = with_keep(settings, options.keep)
    read = read_study(load_study(study, settings, options.only), backend)
    requirements = parse_requirements(options.require)
    check_study_names(requirements, read)
    inputs, contamination = prepare(read, progress=progress, cached_only=report_only or share is not None)
    if progress:
        _print(*(contamination.warnings() or [CLEAN] * (inputs.config.evaluate.advice and bool(contamination.rows))))
    executor = Executor(JobStore(out), RunContext(backend, out, progress), share, report_only)
    if not report_only:
        keep_study(read.config, out)
    with start_workers(options, (study, settings, options.only), executor):
        search = run_search(inputs, executor.execute)
        graph = final_graph(inputs, search)
        outcomes = {**search.outcomes, **executor.execute(graph)}
    ignored = search.ignored - graph.jobs.keys()
    left = [one.job for key, one in outcomes.items() if one.result is None and key not in ignored]
    if report_only and len(left) == len(outcomes):
        raise UserError(f"No job of this study is finished in '{out}'. Run it without --report-only first.")
    if share and not left:
        contamination = check_contamination(read, progress=progress)
    results = summarize(inputs, graph, outcomes, out, searches=search.rows, contamination=contamination)
    results.jobs.left, results.folder = len(left), out
    results.settings = None if is_copy(out / STUDY_FILE) else dict(settings or {})
    if not (share and left):
        if read.config.keep:
            results.rows["kept"] = keep_models(StudyView(inputs, graph, outcomes, out), results.scores, executor)
        _write(results, out, progress)
        report_summary(trackers, out, summarize_numbers(results))
    if progress and left and (share or report_only):
        _print(*_describe_left(left, len(outcomes), share))
    executor.check_failures(ignored)
    results.decision = decide_study(requirements, read, results) if requirements else None
    return results


@contextmanager
def start_workers(options: CompareCall, study: tuple[Any, ...], executor: Executor) -> Iterator[None]:
    """Let workers compute the jobs in the block, if the options ask for more than one on this machine, or a cluster.

    Args:
        options: Options of ``compare``.
        study: What :func:`load_study` reads in a worker: the study, settings, and parts.
        executor: Executor of this process, which then watches the workers.

    Raises:
        UserError: If the options do not fit together, or to this machine.
    """
    if options.workers is None or options.report_only:
        given = {"--per-gpu": options.per_gpu, "--executor-set": options.executor_settings}
        needless = [flag for flag, value in given.items() if value is not None]
        needless += ["--workers"] * (options.workers is not None) + ["--executor"] * (options.executor != "local")
        if needless and options.report_only:
            raise UserError(f"--report-only runs no jobs; remove {', '.join(needless)}.")
        if needless:
            raise UserError(f"{', '.join(needless)}: give the number of workers as well, such as --workers 4.")
        yield
        return
    folder = executor.store.out / LOGS
    launcher = launchers()[options.executor](folder, options.workers, options.per_gpu, options.executor_settings)
    if options.executor == "local" and launcher.size == 1:
        yield
        return
    executor.failures = executor.store.failures()
    config, *changes = study
    # Sections of a study are classes made at run time, so that an object cannot be sent to another process.
    plain = config.resolved() if isinstance(config, StudyConfig) else config
    where = (executor.store.out.absolute(), executor.context.backend, executor.share)
    task = partial(compute_jobs, (plain, *changes), *where, executor.failures, imported_plugins())
    with Pool(launcher, folder, task) as executor.pool:
        yield
    executor.store.remove_stale_claims(executor.store.claimed())


def compute_jobs(
    study: tuple[Any, ...],
    out: Path,
    backend: Backend,
    share: Shard | None,
    failures: dict[str, dict[str, Any]],
    plugins: Sequence[str],
) -> None:
    """Compute jobs of a study until other processes have claimed all that are left.

    Args:
        study: The study, settings and parts, for :func:`load_study`.
        out: Its folder.
        backend: Functions that load models.
        share: Shard to compute; None for all jobs.
        failures: Records of jobs that failed earlier and may be tried again.
        plugins: Files to import first.
    """
    for file in plugins:
        import_plugin(file)
    inputs, _ = prepare(read_study(load_study(*study), backend), cached_only=True)
    executor = Executor(JobStore(out), RunContext(backend, out), share, is_worker=True, failures=failures)
    with suppress(NothingToClaimError):
        search = run_search(inputs, executor.execute)
        executor.execute(final_graph(inputs, search))


def prepare(
    inputs: StudyInputs, *, progress: bool = False, cached_only: bool = False
) -> tuple[StudyInputs, Contamination]:
    """Validate the search of a study, and search its texts for contamination.

    Args:
        inputs: Inputs of the study.
        progress: Show progress bars.
        cached_only: See :func:`acclimate.study.contamination.check_contamination`.

    Returns:
        The inputs, without contaminated documents if the study sets ``leakage: remove``, and the contamination found.

    Raises:
        UserError: If the search is invalid.
    """
    check_search(inputs)
    found = check_contamination(inputs, progress=progress, cached_only=cached_only)
    return remove_contamination(inputs, found), found


def _write(results: StudyResults, out: Path, progress: bool) -> None:
    from acclimate.report import results_table, write_results
    from acclimate.report import summarize as summarize_in_words

    write_results(results, out)
    write_model_cards(results, out)
    if progress:
        console = SafeConsole()
        for table in results_table(results):
            console.print(table)
        console.print(summarize_in_words(results).headline)


def _print(*lines: str) -> None:
    console = SafeConsole(stderr=True)
    for line in lines:
        console.print(line, soft_wrap=True)


def _describe_left(left: Sequence[Job], total: int, share: Shard | None) -> Iterator[str]:
    """Yield lines that list jobs without a result and say how the report gets written."""
    yield f"{len(left)} of {total} jobs of the study are left:"
    yield from (f"  {job.description}" for job in left[:NAMED])
    if len(left) > NAMED:
        yield f"  and {len(left) - NAMED} more"
    if share:
        yield f"Shard {share} is finished. The last shard writes the report, or the same command without --shard."
