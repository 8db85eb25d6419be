"""Running a study: every cell once, whatever happens to the others, and then the results and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from acclimate.errors import UserError
from acclimate.files import write_json
from acclimate.results import StudyResults
from acclimate.study.cells import Cell, CellStore
from acclimate.study.config import StudyConfig
from acclimate.study.leaks import look_for_leaks
from acclimate.study.model_cards import write_model_cards
from acclimate.study.parts import Parts
from acclimate.study.plan import Plan, survey
from acclimate.study.search import final_plan, search
from acclimate.study.shards import Shard
from acclimate.study.summary import summarise
from acclimate.study.working import Working

NAMED = 5
"""How many of the missing cells are named on the terminal."""


def compare(
    config: StudyConfig | dict[str, Any] | str | Path,
    out: str | Path,
    *,
    shard: str | None = None,
    report_only: bool = False,
    progress: bool = True,
    parts: Parts | None = None,
) -> StudyResults:
    """Compare models x methods x domains and tasks x seeds, and write what came out.

    Each cell is stored in ``out/cells`` when it is finished, under a key of everything that determines it. The same
    call after a kill, or with a method more, computes only what is not there yet. At the end ``out`` holds
    ``results.json``, ``results.md`` and ``report.html``.

    Several processes may work on one folder, also on several machines that share it: each claims a cell before it
    computes it, leaves alone what another has claimed, and takes over what a killed one left.

    Where the study searches settings, that comes first, on dev alone; test is read with the chosen ones. A shard that
    finds the search unfinished after its own share of it stops there; run the same command again.

    Args:
        config: The study, or plain values for one, or the path of a ``.yaml`` or ``.toml`` file.
        out: Folder of the study.
        shard: ``"i/n"``: compute the i-th of n shares (from 1) only, for job arrays. Results and report are written
            by the shard that finds the study complete, or by a call without ``shard``.
        report_only: Compute nothing; write results and report from what is there, naming what is missing.
        progress: Show a bar, a line per cell, and the table of results.
        parts: The functions to call; the default are acclimate's own.

    Returns:
        The results; they also read like ``results.json``: ``results["scores"]``. After a shard that left jobs to
        others they say how far the study is, and nothing was written.

    Raises:
        UserError: If the study cannot be run, or, after everything else was done and written, if cells failed.
    """
    share = Shard.parse(shard) if shard is not None else None
    if share and report_only:
        raise UserError("--shard computes and --report-only does not: give one of them.")
    config, parts, out = _opened(config), parts or Parts(), Path(out)
    if out.is_file():
        raise UserError(f"'{out}' is a file; give a folder for the study.")
    ground, store = survey(config, parts, progress), CellStore(out)
    work = Working(store, parts, progress, share, report_only)
    if config.leakage != "off":  # shards leave it to the one that writes the report
        look_for_leaks(ground.plan, config, parts, progress=progress, known_only=report_only or share is not None)
        if progress:
            _tell_leaks(ground.plan)
    found = search(ground, work)
    plan = final_plan(ground, found)
    outcomes = {**found.outcomes, **work(plan)}
    forgiven = found.forgiven - plan.cells.keys()
    left = [one.cell for key, one in outcomes.items() if one.result is None and key not in forgiven]
    if report_only and len(left) == len(outcomes):
        raise UserError(f"No cell of this study is finished in '{out}'. Run it without --report-only first.")
    if share and not left and config.leakage != "off":
        look_for_leaks(plan, config, parts, progress=progress)
    results = StudyResults.from_dict(summarise(config, plan, store, outcomes, searched=found.rows))
    results.jobs.left = len(left)  # a search did without those that it could not judge
    if not (share and left):
        _write(results, out, progress)
    if progress and left and (share or report_only):
        _tell_left(left, len(outcomes), share)
    work.check_failures(forgiven)
    return results


def _opened(config: StudyConfig | dict[str, Any] | str | Path) -> StudyConfig:
    if isinstance(config, str | Path):
        return StudyConfig.load(config)
    return StudyConfig.of(config) if isinstance(config, dict) else config


def _write(results: StudyResults, out: Path, progress: bool) -> None:
    write_json(out / "results.json", results.to_dict())

    from acclimate.report import results_table, write_markdown, write_report

    write_markdown(results, out / "results.md")
    write_report(results, out / "report.html")
    write_model_cards(results.to_dict(), out)
    if progress:
        console = Console()
        for table in results_table(results):
            console.print(table)


def _tell_leaks(plan: Plan) -> None:
    """Say at the start which corpora and train splits hold texts that a task is judged on."""
    console = Console(stderr=True)
    for domain, found in plan.leakage.items():
        if found["flagged"]:
            texts = sum(group["found"] for group in found["texts"])
            what = "are left out" if found["removed"] else "stay in: 'leakage: remove' leaves them out"
            line = f"! {found['flagged']:,} documents of {domain} hold {texts:,} dev or test texts; they {what}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    for found in plan.in_train.values():
        if texts := sum(group["found"] for group in found["texts"]):
            line = f"! the train split of {found['train_of']} holds {texts:,} dev or test texts of "
            line += f"{found['texts'][0]['task']}; they are learnt there with a label"
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _tell_left(left: list[Cell], total: int, share: Shard | None) -> None:
    """Say which cells have no result yet, and what writes the report."""
    lines = [f"{len(left)} of {total} cells of the study are left:"]
    lines += [f"  {cell.description}" for cell in left[:NAMED]]
    if len(left) > NAMED:
        lines.append(f"  and {len(left) - NAMED} more")
    if share:
        lines.append(f"Shard {share} is through. The last one writes the report, or the same command without a shard.")
    console = Console(stderr=True)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
