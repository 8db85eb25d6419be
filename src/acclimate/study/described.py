"""Studies that options describe instead of a file: ``acclimate compare`` and ``acclimate init``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acclimate.base.errors import UserError
from acclimate.base.files import write_json
from acclimate.base.options import values, verb
from acclimate.base.terminal import echo
from acclimate.base.verbs import Next, given_words
from acclimate.results.study import QUICK_NOTE, StudyResults
from acclimate.study.changes import load_study
from acclimate.study.compare import check_study_folder, compare
from acclimate.study.draft import (
    FITTED_FILE,
    ONE_PASS,
    QUICK_FILE,
    check_files,
    copy_recipe,
    draft_study,
    find_fitted,
    given,
    removed_if_nothing_ran,
    study_path,
    write_study,
)
from acclimate.study.fitting import Fit, fit
from acclimate.study.forecast import Forecast, forecast
from acclimate.study.keeping import with_keep
from acclimate.study.options import CompareCommand, CompareOptions, InitOptions

NEGATED = {"advice": "no-advice", "tune": "no-tune"}
"""Flags of the options that are on by default, so that they are given only to turn them off."""


@verb(InitOptions)
def init(options: InitOptions) -> Path:
    """Write a study file to start from.

    Returns:
        The path of the file.

    Raises:
        UserError: If an option is wrong, or the file describes another study already.
    """
    if options.recipe is not None:
        if described := given(options):
            raise UserError(f"A recipe is a whole study: remove {', '.join(described)}, and change the file.")
        return copy_recipe(options.recipe, Path(options.file))
    study = draft_study(options)
    check_files(options)
    return write_study(study, options.file)


def show_study(path: Path, options: InitOptions) -> Iterator[Any]:
    """Yield what ``acclimate init`` prints."""
    if options.recipe is None:
        yield from draft_study(options).get("notes", [])
        yield f"Study: {path}"
    else:
        yield f"Study: {path}; put the names of your files into it."
    words = ["compare", path, "--out", Path("runs") / path.stem]
    yield Next([*words, "--dry-run"], "to estimate the time")
    yield Next(words, "to run it")


def compare_from_options(options: CompareCommand) -> StudyResults | Forecast:
    """Do what ``acclimate compare`` does: run the study of a file or of options, or estimate the time.

    Raises:
        UserError: If options exclude each other, or the study cannot be run.
    """
    if options.dry_run and (options.shard or options.report_only):
        raise UserError("--dry-run computes nothing and writes nothing; remove --shard and --report-only.")
    existed = study_path(options, Path(options.out)).exists()
    study, settings = _find_study(options)
    if options.dry_run:
        more: dict[str, Any] = {"timed": True, "progress": options.progress, "require": options.require}
        if isinstance(fitted := study, Fit):
            study, more["durations"], more["note"] = fitted.study, fitted.durations, fitted.note
        config = load_study(study, with_keep(settings, options.keep), options.only)
        return forecast(config, options.out, **more)
    chosen = {**values(options, CompareOptions), "config": study, "settings": settings}
    with removed_if_nothing_ran(Path(options.out), written=options.config is None and not existed):
        return compare(**chosen)


def show_comparison(result: Any, options: CompareCommand) -> Iterator[Any]:
    """Yield what ``acclimate compare`` prints."""
    from acclimate.report.next_steps import learning_words, predict_words  # with the report

    if options.dry_run:
        yield from result.show()
        return
    jobs = result.jobs
    if options.shard and jobs.left:
        yield f"Shard {options.shard} is finished; {jobs.left} of {jobs.total} jobs are left."
    else:
        yield f"Report: {Path(options.out) / 'report.html'}"
    if QUICK_NOTE in result.notes:
        flags = options.quick or (options.minutes and "evaluate.quick" not in (options.settings or {}))
        more = [] if flags else ["--set", "evaluate.quick=false"]  # the study file says quick
        words = given_words("--quick", "--report-only", valued=("--minutes",))
        yield Next([*words, *more], "for the full answer, by fine-tuning")
    elif words := learning_words(result, Path(options.out)):
        yield Next(words, "since models have not learned their task")
    elif words := predict_words(result, Path(options.out)):
        yield Next(words, "to use the model")
    elif options.config is None:
        study = study_path(options, check_study_folder(options.out))
        keep = ["--keep", "best"] * bool(result.scores)
        purpose = "to keep the fine-tuned models" if keep else "after changing the study file"
        yield Next(["compare", study, "--out", options.out, *keep], purpose)


def _find_study(options: CompareCommand) -> tuple[Any, dict[str, Any] | None]:
    """Return the study to run, and the changes to make to it; a study without a file is written to the output."""
    described = [*given(options), *(["minutes"] if options.minutes else [])]
    if options.config is not None:
        if described:
            flags = ", ".join(f"--{NEGATED.get(name, name).replace('_', '-')}" for name in described)
            raise UserError(
                f"The study file already describes the study: remove {flags}, or the file. --set changes a value of "
                "the file, and --only runs a part of it."
            )
        return options.config, options.settings
    if not described:
        raise UserError(
            "STUDY is required: YAML or TOML file that describes the study. Or describe it with --model and --corpus."
        )
    study = draft_study(options, options.settings, timed=bool(options.minutes))
    path = study_path(options, check_study_folder(options.out))
    if options.minutes and (before := find_fitted(study, path)):
        return before, None
    if options.minutes and (options.shard or options.report_only):
        raise UserError("--minutes runs a part of the study: first run it without --shard and --report-only.")
    fitted = fit(study, options.minutes, progress=options.progress) if options.minutes else None
    if options.dry_run:
        return fitted or study, None
    if fitted:
        path = path.with_name(QUICK_FILE) if fitted.study["evaluate"].get("quick") else path
        write_json(path.parent / FITTED_FILE, {"file": path.name, "study": study})
        study = {**fitted.study, "notes": [*(note for note in study["notes"] if note != ONE_PASS), fitted.note]}
    write_study(study, path)
    if options.progress:
        echo("\n".join(study.get("notes", [])), err=True)
    return path, None
