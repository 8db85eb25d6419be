"""The limits of the results of a study, in words."""

from __future__ import annotations

from acclimate.evaluation.scoring import find_scoring
from acclimate.report.formatting import row_place
from acclimate.results.cells import joined
from acclimate.results.scores import ContaminatedTexts, ScoreRow
from acclimate.results.study import QUICK_NOTE, StudyResults


def caveats(results: StudyResults, compared: list[ScoreRow]) -> list[str]:
    """Return the limits of the results, in one or two sentences each.

    Args:
        results: Results of the study.
        compared: The score rows that were compared with the baseline.
    """
    found = [QUICK_NOTE] if QUICK_NOTE in results.notes else []
    found += results.evaluations.caveats if results.evaluations else []
    if results.failures:
        count = len(results.failures)
        found.append(f"{count} {'job has' if count == 1 else 'jobs have'} no result; see the end of the report.")
    found += collapsed_models(results) + _mixed_precision(results) + _unreadable_records(results)
    found += [caveat for kind in results.kinds for caveat in kind.caveats(results)]
    found += _contaminated_corpora(results) + _contaminated_train_splits(results)
    if results.unchecked:
        found.append(
            f"{joined(results.unchecked)} {'was' if len(results.unchecked) == 1 else 'were'} not searched for dev and "
            "test texts of the tasks; run the same command without '--report-only' to search."
        )
    if compared:
        seeds = min(len(row.difference.seeds) for row in compared if row.difference)
        if seeds == 2:
            found.append("Two seeds give an unreliable estimate of the variance between training runs.")
        tested = sum(bool(row.comparison and row.comparison.is_answered) for row in compared)
        tested += len(results.evaluations.answers) if results.evaluations else 0
        if tested > 1:
            found.append(
                f"{tested} comparisons were made. Without any true difference, about one in twenty is "
                "significant by chance; p (Holm) corrects for that."
            )
    return found


def _mixed_precision(results: StudyResults) -> list[str]:
    """Warn of tasks whose models were trained in different precisions, across methods or seeds."""
    places: dict[str, dict[str, list[str]]] = {}
    for row in results.scores:
        place = places.setdefault(row_place(results, row), {})
        if row.precisions:
            place.setdefault(" and ".join(row.precisions), []).append(row.method)
    mixed = []
    for name, found in places.items():
        if len(found) > 1 or any(" and " in precisions for precisions in found):
            parts = (f"{precision}: {joined(methods)}" for precision, methods in found.items())
            mixed.append(f"{name} ({'; '.join(parts)})")
    if not mixed:
        return []
    return [
        f"Models of the same task were trained in different precisions: {', '.join(mixed)}. Differences between them "
        "may be numerical. 'precision: auto', the default, chooses the fastest on each machine; set 'fp32' or 'bf16'."
    ]


def _unreadable_records(results: StudyResults) -> list[str]:
    found = {}
    for run in results.adaptations:
        if broken := run.broken:
            text = f"the text of {run.domain}" if run.domain else "the text"
            found[broken.first] = (
                f"{broken.records:,} records of {text} could not be read and were skipped "
                f"({broken.documents:,} documents were read); the first: {broken.first}."
            )
    return list(found.values())


def _contaminated_corpora(results: StudyResults) -> list[str]:
    found = []
    for corpus in results.contamination:
        parts = [_found_texts(row) for row in corpus.texts if row.found]
        if parts and corpus.train_of is None and not corpus.removed:
            found.append(
                f"The adaptation text of {corpus.domain} contains {joined(parts)}, without labels. Gains may come "
                "from having seen these texts; 'leakage: remove' excludes the documents."
            )
    return found


def _found_texts(row: ContaminatedTexts) -> str:
    return f"{row.found:,} of the {row.texts:,} {row.split} texts of {row.task}"


def _contaminated_train_splits(results: StudyResults) -> list[str]:
    """Warn of train splits that contain dev or test texts, or rows of their groups."""
    parts = []
    for split in results.contamination:
        for row in split.texts if split.train_of is not None else []:
            if row.groups_in_train:
                parts.append(f"rows of {row.shared_groups} of the {row.split} split of {row.task}")
            if row.found:
                where = "" if split.train_of == row.task else f" (in {split.train_of}, its first task)"
                parts.append(f"{_found_texts(row)}{where}")
    if not parts:
        return []
    return [
        f"Train splits contain {joined(parts)}. All methods train on the same texts with a label, so scores on them "
        "do not measure generalization. They were not removed: train splits are used unchanged."
    ]


def collapsed_models(results: StudyResults) -> list[str]:
    """Warn of models that have not learned a task, such as those with the same answer for almost all test items."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in [*results.scores, *results.forgetting]:
        if row.collapsed:
            seeds = len(row.seeds)
            where = "" if row.collapsed == seeds else f" in {row.collapsed} of {seeds} seeds"
            places = found.setdefault(find_scoring(row.kind).failure, {})
            places.setdefault(row_place(results, row), []).append(row.method + where)
    return [
        f"These models {failure}: {'; '.join(f'{place} ({joined(methods)})' for place, methods in places.items())}. "
        "They did not learn the task, so their scores say nothing about adaptation. Train longer, with another "
        "learning rate or with more examples; 'search' tunes this on dev."
        for failure, places in found.items()
    ]
