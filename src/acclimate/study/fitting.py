"""Making a study fit into a time, by the changes that cost the least evidence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.adaptation.options import BUDGETS
from acclimate.base.errors import UserError
from acclimate.base.verbs import Next, given_words
from acclimate.results.cells import joined
from acclimate.study.backend import Backend
from acclimate.study.changes import change_values
from acclimate.study.compare import prepare
from acclimate.study.config import StudyConfig
from acclimate.study.graph import read_study
from acclimate.study.inputs import StudyInputs
from acclimate.study.job import Job, JobGraph, Outcome, used_kinds
from acclimate.study.jobs.adapt import AdaptJob
from acclimate.study.jobs.finetune import FinetuneJob
from acclimate.study.pricing import Durations
from acclimate.study.search import SearchOutcome, final_graph, run_search
from acclimate.tasks.interfaces import count_train_rows
from acclimate.tasks.recipe import STEPS

RESERVE = 0.1
"""Share of the time that is kept for what was not measured, such as the report."""
ENOUGH_TOKENS, FEWEST_TOKENS = 300_000, 20_000
"""Tokens per adaptation that are kept as long as other changes are enough, and that are kept in any case."""
FEWEST_SEEDS = 3
QUICK: dict[str, Any] = {"evaluate.quick": True, "search": False, "seeds": FEWEST_SEEDS}
"""Settings of a study that answers by linear probes."""


@dataclass(frozen=True)
class Change:
    """A change of a study that makes it shorter.

    Attributes:
        settings: Values by dotted path, see :func:`acclimate.study.changes.change_values`.
        words: What it is, after "with".
    """

    settings: Mapping[str, Any]
    words: str


def merge_settings(chosen: Iterable[Change]) -> dict[str, Any]:
    """Return the settings of several changes; later ones take precedence."""
    return {path: value for one in chosen for path, value in one.settings.items()}


@dataclass(frozen=True)
class Fit:
    """A study that fits into a time.

    Attributes:
        study: The study, as plain values.
        note: What was changed, and how long it takes, in sentences.
        durations: The prices that say so.
    """

    study: dict[str, Any]
    note: str
    durations: Durations


def plan_jobs(
    inputs: StudyInputs, look_up: Callable[[JobGraph], Mapping[str, Outcome]]
) -> tuple[SearchOutcome, JobGraph]:
    """Return the searches of a study and its final graph; unfinished searches choose their first settings."""
    found = run_search(inputs, look_up, guess=True)
    complete, found.complete = found.complete, True
    graph = final_graph(inputs, found)
    found.complete = complete
    return found, graph


def all_jobs(inputs: StudyInputs) -> list[Job]:
    """Return all jobs of a study, of which none counts as finished."""
    jobs: dict[str, Job] = {}

    def look_up(graph: JobGraph) -> dict[str, Outcome]:
        jobs.update(graph.jobs)
        return {key: Outcome(job, "missing") for key, job in graph.jobs.items()}

    _, graph = plan_jobs(inputs, look_up)
    return list({**jobs, **graph.jobs}.values())


def smaller_tasks(study: Mapping[str, Any], jobs: Sequence[Job]) -> tuple[list[Change], list[Change]]:
    """Return fewer epochs, and fewer train rows, that leave :data:`acclimate.tasks.recipe.STEPS` steps of fine-tuning.

    Args:
        study: The study, of one domain.
        jobs: Its jobs.

    Returns:
        Numbers of epochs and numbers of rows, each descending.
    """
    tuned = {job.place.task: job for job in jobs if isinstance(job, FinetuneJob)}
    epochs: dict[int, dict[str, tuple[int, str]]] = {}
    rows: dict[int, dict[str, tuple[int, str]]] = {}
    for number, task in enumerate(StudyConfig.of(study).domains[0].tasks):
        if (job := tuned.get(task.name)) is None:
            continue
        path, shots = f"domains.0.tasks.{number}", job.settings.get("few_shot")
        size, batch = count_train_rows(job.task, shots), int(job.settings["batch_size"])
        least, most = math.ceil(STEPS / max(1, math.ceil(size / batch))), STEPS * batch
        if "epochs" not in job.options:
            for level, count in enumerate(range(job.epochs - 1, least - 1, -1)):
                words = f"{count} epoch{'s' * (count > 1)} of fine-tuning on {task.name} instead of {job.epochs}"
                epochs.setdefault(level, {})[f"{path}.epochs"] = (count, words)
        if shots is None:
            for level in range(math.ceil(math.log2(max(1.0, size / most)))):
                count = max(most, size >> (level + 1))
                words = f"{count:,} of the {size:,} train rows of {task.name}"
                rows.setdefault(level, {})[f"{path}.limit_train"] = (count, words)
    return _levels(epochs), _levels(rows)


def _levels(found: Mapping[int, Mapping[str, tuple[int, str]]]) -> list[Change]:
    """Return a change for each level; a task without a further level keeps its last one."""
    made, known = list[Change](), dict[str, tuple[int, str]]()
    for level in sorted(found):
        known = {**known, **found[level]}
        settings = {path: count for path, (count, _) in known.items()}
        made.append(Change(settings, ", ".join(words for _, words in known.values())))
    return made


def changes(study: Mapping[str, Any], jobs: Sequence[Job]) -> list[list[Change]]:
    """Return what may be changed for a study to be shorter, that which costs the least evidence first.

    Fewer epochs than the recipe's, as long as each task still takes the steps that it is learned in; then fewer seeds,
    which widen the intervals; then fewer train rows, which change the question to one about fewer labels; then the
    default learning rate, which may suit a task less. docs/study.md says so to users.

    Returns:
        Kinds of changes, each with its levels, the smallest change first.
    """
    config = StudyConfig.of(study)
    epochs, rows = smaller_tasks(study, jobs)
    counts = range(len(config.seeds) - 1, FEWEST_SEEDS - 1, -1)
    seeds = [Change({"seeds": count}, f"{count} seeds instead of {len(config.seeds)}") for count in counts]
    rate = [Change({"search": False}, "the default learning rate instead of a search")] if config.search else []
    return [levels for levels in (epochs, seeds, rows, rate) if levels]


class _Candidates:
    """The study with any of the changes, each planned once; the inputs are read once for all of them."""

    def __init__(self, study: Mapping[str, Any], backend: Backend) -> None:
        self.study, self._jobs = study, dict[str, list[Job]]()
        self._inputs = prepare(read_study(StudyConfig.of(study), backend), cached_only=True)[0]

    def change(self, chosen: Sequence[Change]) -> dict[str, Any]:
        """Return the study with changes."""
        return change_values(self.study, merge_settings(chosen))

    def jobs(self, chosen: Sequence[Change] = ()) -> list[Job]:
        """Return the jobs of the study with changes."""
        key = str([one.words for one in chosen])
        if key not in self._jobs:
            inputs = self._inputs.with_config(StudyConfig.of(self.change(chosen))) if chosen else self._inputs
            for kind in used_kinds(inputs.config):
                kind.check(inputs)
            self._jobs[key] = all_jobs(inputs)
        return self._jobs[key]

    def seconds(self, chosen: Sequence[Change], durations: Durations, least: float) -> tuple[float, float, float]:
        """Return the seconds with the fewest tokens per adaptation, those per token, and the tokens of the corpus."""
        jobs = self.jobs(chosen)
        prices = [durations.price(job) for job in jobs if isinstance(job, AdaptJob) and job.reads_budget]
        most = max((price.corpus_tokens for price in prices), default=0.0)
        fixed = durations.total([job for job in jobs if not job.reads_budget])
        per_token = sum(price.per_token for price in prices)
        return fixed + sum(price.overhead for price in prices) + per_token * min(least, most), per_token, most


def fit(
    study: Mapping[str, Any],
    minutes: float,
    backend: Backend | None = None,
    *,
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Fit:
    """Return a study with the changes that make it fit into a time: those of :func:`changes`, and fewer tokens.

    An adaptation reads as many tokens as there is time for, but other changes come before fewer than
    :data:`ENOUGH_TOKENS`. Of the changes only those are kept that are needed. Where none of them is enough, linear
    probes of frozen states replace fine-tuning.

    Args:
        study: The study, as plain values with absolute paths, of one domain and without a budget.
        minutes: The time, for one process on this machine, which is timed for a tenth of it at most.
        backend: The expensive functions; by default those of this package.
        progress: Print a line on each kind of job that is timed.
        clock: Returns the current time in seconds.

    Raises:
        UserError: If the time is too short, with the time that is enough; or the study has a budget or cannot be run.
    """
    if any(name in (study.get("adapt") or {}) for name in BUDGETS):
        raise UserError(f"--minutes sets the budget of the adaptations: remove it, or {', '.join(BUDGETS)}.")
    candidates, durations = _Candidates(study, backend or Backend()), Durations()
    durations.time(candidates.jobs(), backend or Backend(), minutes, progress=progress, clock=clock)
    durations.check(candidates.jobs())
    budget = 60 * minutes * (1 - RESERVE) - durations.spent
    quick = [] if _is_quick(study) else [Change(QUICK, "linear probes of frozen states instead of fine-tuning")]
    possible = changes(study, candidates.jobs()) if quick else []
    answers = quick if _has_probes(candidates, quick) else []
    tried: list[tuple[list[Change], int]] = [([], ENOUGH_TOKENS)]
    for number, levels in enumerate(possible):
        before = [earlier[-1] for earlier in possible[:number]]
        tried += [([*before, level], ENOUGH_TOKENS) for level in levels]
    strongest = [levels[-1] for levels in possible]
    tried.append((strongest, FEWEST_TOKENS))
    tried += [(answers, least) for least in (ENOUGH_TOKENS, FEWEST_TOKENS) if answers]

    def fits(chosen: Sequence[Change], least: int) -> bool:
        return candidates.seconds(chosen, durations, least)[0] <= budget

    chosen, least = next((one for one in tried if fits(*one)), (None, 0))
    if chosen is None:
        raise _too_short(minutes, candidates, durations, strongest, answers)
    for number in range(len(chosen) - 2, -1, -1):  # the last one is needed
        milder = (
            [*chosen[:number], *level, *chosen[number + 1 :]] for level in ([], *([one] for one in possible[number]))
        )
        chosen = next(one for one in milder if fits(one, least))
    return _fitted(minutes, budget, candidates, durations, chosen, least)


def _fitted(
    minutes: float,
    budget: float,
    candidates: _Candidates,
    durations: Durations,
    chosen: Sequence[Change],
    least: float,
) -> Fit:
    """Return the study with the changes, whose adaptations read as much as there is time for."""
    used, per_token, most = candidates.seconds(chosen, durations, least)
    tokens = min(least, most) + (budget - used) / per_token if per_token else math.inf
    whole = durations.total(candidates.jobs(chosen))
    words, settings = [one.words for one in chosen], merge_settings(chosen)
    if most and whole > budget and tokens < 10 * most:
        unit = 10 ** max(0, int(math.log10(tokens)) - 1)
        kept = int(tokens // unit * unit)  # two digits
        settings["adapt.tokens"] = kept
        words.append(f"{kept:,} tokens per adaptation, {kept / most:.0%} of the corpus")
        whole = used + per_token * (kept - min(least, most))
    taken = f"This takes about {max(1, round(whole / 60))} minutes on this machine"
    if not settings:
        return Fit(dict(candidates.study), f"{minutes:g} minutes are enough for the whole study. {taken}.", durations)
    changed = (word for pair in settings.items() for word in _set(*pair))
    command = Next([*given_words("--dry-run", valued=("--minutes",)), *changed])
    note = f"To fit into {minutes:g} minutes: {joined(words)}. {taken}. The same without timing: {command.command}"
    return Fit(change_values(candidates.study, settings), note, durations)


def _set(name: str, value: Any) -> list[str]:
    return ["--set", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]


def _is_quick(study: Mapping[str, Any]) -> bool:
    return StudyConfig.of(study).evaluate.quick


def _has_probes(candidates: _Candidates, quick: Sequence[Change]) -> bool:
    """Return whether the study has tasks, and all of them can be probed."""
    try:
        return bool(quick) and any(job.counts_as_score for job in candidates.jobs(quick))
    except UserError:
        return False


def _too_short(
    minutes: float,
    candidates: _Candidates,
    durations: Durations,
    possible: Sequence[Change],
    answers: Sequence[Change],
) -> UserError:
    """Return the error for a time in which nothing fits, with the times that are enough."""

    def needed(chosen: Sequence[Change]) -> int:
        seconds = candidates.seconds(chosen, durations, FEWEST_TOKENS)[0] + durations.spent
        return math.ceil(seconds / 60 / (1 - RESERVE) + 1e-9)

    words = joined([*(one.words for one in possible), f"{FEWEST_TOKENS:,} tokens per adaptation"])
    message = f"{minutes:g} minutes are too short: with {words}, this machine needs about {needed(possible)} minutes."
    if not answers:
        return UserError(f"{message} Give them, or fewer --methods, --model or --task.")
    quick = Next([*given_words("--dry-run", valued=("--minutes",)), "--quick", "--minutes", needed(answers)])
    return UserError(
        f"{message} Give them, or fewer --methods, --model or --task; or let linear probes answer in "
        f"{needed(answers)} minutes: {quick.command}"
    )
