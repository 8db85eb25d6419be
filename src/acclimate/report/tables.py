"""The tables of results, shown in the HTML report and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from acclimate.data.documents import format_count
from acclimate.report.formatting import (
    grouped_tests,
    loss_kinds,
    loss_title,
    method_name,
    metric_name,
    place_with_measure,
    primary_measures,
    shown_metrics,
)
from acclimate.report.timing import adaptation_runs, mixtures, preparation_time, score_time
from acclimate.results.cells import (
    DASH,
    Entry,
    Table,
    bracket_text,
    count_entry,
    interval_entry,
    joined,
    mean_entry,
    number_entry,
    p_entry,
    signed,
    signed_entry,
    verdict_entry,
)
from acclimate.results.scores import (
    HELPED,
    HURT,
    NO_DIFFERENCE,
    ContaminatedTexts,
    Interval,
    LossRow,
    MeanRow,
    ScoreRow,
    VerdictCount,
)
from acclimate.results.study import StudyResults

MATCHES = ("exact", "near", "contained")


def tables(results: StudyResults) -> list[Table]:
    """Return the tables of a study that have rows."""
    results = StudyResults.from_dict(results)
    first, later = ([table for kind in results.kinds if kind.on_top == whether for table in kind.tables(results)]
                    for whether in (True, False))  # fmt: skip
    every = [*first, verdict_counts(results), means(results), scores(results), losses(results)]
    every += [forgetting(results), *later]
    every += [corpus_contamination(results), train_contamination(results)]
    every += [score_time(results), adaptation_runs(results), preparation_time(results), mixtures(results)]
    every += [*(table.table() for table in results.tables), searches(results)]
    return [without_constant_columns(table) for table in every if table.rows or table.first]


def overview(results: StudyResults) -> Table:
    """Return the main results in one table: by task and method, the gain and the change of the losses."""
    results = StudyResults.from_dict(results)
    losses = {(row.model, row.domain, row.method, row.task, row.text): row for row in results.losses}
    scored = {(row.model, row.domain, row.method) for row in results.scores}
    alone = {(row.model, row.domain, row.method, row.task): row for row in results.losses if row.before is not None}
    rows: list[ScoreRow | LossRow] = [*results.scores, *(row for key, row in alone.items() if key[:3] not in scored)]
    metrics = {metric_name(row.metric) for row in results.scores}
    unit = f"difference, points of {metrics.pop()}" if len(metrics) == 1 else "difference, percentage points"
    side = "model" if results.evaluations else "method"
    names = ["task", side, "verdict", unit, "score", "domain loss", "general loss"]
    note = (
        f"Differences are to the baseline ({results.baseline}), with 95 % intervals. Losses on held-out text change "
        "by the percentage shown: lower is better, and a higher loss on general text is forgetting."
    )
    if results.evaluations:
        note = f"Differences are to {results.baseline}, with 95 % intervals."
    table = Table("Overview", note, names, minor=names[4:6] if results.scores else (), grouped=True)
    for row in rows:
        cells = [Entry(place_with_measure(results, row)), Entry(row.method), DASH, DASH, DASH]
        if isinstance(row, ScoreRow):
            cells[4] = mean_entry(row.summaries[row.metric])
            if entry := row.comparison:
                cells[2:4] = [verdict_entry(entry), Entry(bracket_text(entry, 100), entry.difference)]
            elif row.method == results.baseline:
                cells[2] = Entry("reference" if results.evaluations else "baseline")
        for text in ("domain", "general"):
            own = (row.model, row.domain, row.method, row.task, text)
            cells.append(_relative_change(losses.get(own) or losses.get((*own[:3], None, text))))
        table.rows.append(cells)
    shown = [place for place in range(len(names)) if place < 2 or any(cells[place] != DASH for cells in table.rows)]
    return with_columns(table, shown)


def _relative_change(row: LossRow | None) -> Entry:
    """Return the change of a loss in percent, or in bits per byte where the tokenizers differ."""
    entry = row and (row.difference or row.bits_per_byte_difference)
    if not row or not entry:
        return DASH
    text = f"{signed(row.percent)} %" if row.percent is not None else f"{signed(entry.difference, 3)} bits per byte"
    return Entry(text, entry.difference, entry.verdict)


def verdict_counts(results: StudyResults) -> Table:
    """Return the verdicts over tasks; without rows for a study of one task, or without verdicts."""
    names = ["model", "method", "tasks", HELPED, NO_DIFFERENCE, HURT, "interval above zero", "below zero"]
    note = (
        f"Number of tasks on which a method is significantly better or worse than the baseline ({results.baseline}) "
        "after Holm's correction for all comparisons of the study; then the number of 95 % intervals above and below "
        "zero, before the correction. Not answered: no model learned the task, or the variance between trainings is "
        "unknown."
    )
    names.append("not answered")
    table = Table("Verdicts over tasks", note, names, minor=["tasks", *names[6:]])
    rows = results.verdict_counts
    if any(row.tasks > 1 for row in rows) and any(row.tasks > row.unanswered for row in rows):
        table.note += shared_tests(rows)
        for row in rows:
            same = row.tasks - row.unanswered - row.helped - row.hurt
            counts = [row.tasks, row.helped, same, row.hurt, row.above, row.below, row.unanswered]
            table.rows.append([Entry(row.model), Entry(row.method), *map(count_entry, counts)])
    return table


def shared_tests(rows: Sequence[VerdictCount | MeanRow]) -> str:
    """Say how many test sets the tasks have, if some have one in common."""
    counts = {(row.tasks, row.test_sets): None for row in rows if 0 < row.test_sets < row.tasks}
    shown = joined([f"{tasks} tasks have {format_count(sets, 'test set')}" for tasks, sets in counts])
    return f" Results on one test set are not independent: {shown}." if shown else ""


def means(results: StudyResults) -> Table:
    """Return the means of each method over tasks; without rows for a study of one task."""
    points, standardized = ["difference", "95 % interval"], ["standardized difference", "its 95 % interval"]
    note = (
        f"Each task counts equally, in its primary measure: {primary_measures(results)}. Rank: of the mean score, "
        f"1 is the best. Difference: to the baseline ({results.baseline}) in percentage points. Standardized: on "
        "each task divided by the standard deviation that the score of the baseline has with one test item, so that "
        "measures can be averaged. Mean: in percent ± standard deviation over seeds. Intervals are about these tasks."
    )
    if constant := list(dict.fromkeys(name for row in results.means for name in row.constant or ())):
        note += f" Not standardized, since all answers of the baseline count the same there: {joined(constant)}."
    note += shared_tests(results.means)
    names = ["model", "method", "rank", *points, *standardized, "mean", "tasks"]
    table = Table("Means over tasks", note, names)
    table.minor = ["mean", "tasks", *(points if len({row.metric for row in results.scores}) > 1 else standardized)]
    for row in results.means:
        cells = [Entry(row.model), Entry(row.method), number_entry(row.rank, 2)]
        for entry, scale, digits in ((row.difference, 100, 1), (row.standardized, 1, 3)):
            shown = entry and [signed_entry(entry.difference, digits, scale), interval_entry(entry, scale, digits)]
            cells += shown or [DASH, DASH]
        table.rows.append([*cells, mean_entry(row.score), count_entry(row.tasks)])
    return table


def scores(results: StudyResults) -> Table:
    """Return the scores on end tasks, with comparisons to the baseline."""
    metrics = shown_metrics(results.scores)
    calibrated = any("ece" in row.summaries for row in results.scores)
    primary = metric_name(metrics[0]) if metrics else ""
    names = ["model", "domain", "task", "model" if results.evaluations else "method", "verdict", "difference"]
    minor = ["95 % interval", primary, "p", "p (Holm)", *map(metric_name, metrics[1:])]
    minor += [] if results.evaluations else ["p (t-test)", "p (these models)"]
    minor += ["ECE"] if calibrated else []
    names += minor
    note = (
        f"Scores: mean ± standard deviation over seeds, in percent. Difference: to the baseline ({results.baseline}), "
        f"paired by seed and test item, in percentage points of the primary metric of the task ({primary} unless "
        "stated otherwise). Interval and p: bootstrap over test items combined with the variance over seeds, where "
        "the seeds of one adaptation count as one. Not learned: no model is better than guessing. p "
        "(Holm): corrected for all comparisons of the study. p (t-test): paired t-test over seeds, which ignores the "
        "variance between test items. p (these models): permutation of groups of test items, which ignores the "
        "variance between seeds; absent without groups. Verdict: by p (Holm)."
    )
    note = (results.evaluations.note if results.evaluations else note) + grouped_tests(results.scores)
    if calibrated:
        bins = sorted(
            {round(1 / (entry.high - entry.low)) for row in results.scores for entry in row.reliability or []}
        )
        over = f" with {' or '.join(map(str, bins))} bins of equal width" if bins else ""
        note += f" ECE: expected calibration error{over}, in percentage points; lower is better."
    table = Table("Scores on end tasks", note, names, minor=minor)
    for row in results.scores:
        summaries = row.summaries
        cells = [Entry(row.model), Entry(row.domain), Entry(row.task), Entry(row.method)]
        cells += _comparison_cells(results, row, metrics[0])
        cells += [mean_entry(summaries.get(metric)) for metric in metrics[1:]]
        entry = row.comparison
        # Without known groups items may depend on each other, and no variance of training makes up for it.
        more = [p_entry(entry.p_t), p_entry(entry.p_models) if row.test_units else DASH] if entry else [DASH, DASH]
        cells += [] if results.evaluations else more
        table.rows.append(cells + ([mean_entry(summaries.get("ece"))] if calibrated else []))
    return table


def _comparison_cells(results: StudyResults, row: ScoreRow, default_metric: str) -> list[Entry]:
    entry, score = row.comparison, mean_entry(row.summaries.get(default_metric))
    if entry is None:
        first = "reference" if results.evaluations else "baseline"
        return [Entry(first) if row.method == results.baseline else DASH, DASH, DASH, score, DASH, DASH]
    unit = "" if row.metric == default_metric else f" ({metric_name(row.metric)})"
    difference = Entry(signed(100 * entry.difference) + unit, entry.difference)
    return [verdict_entry(entry), difference, interval_entry(entry), score, p_entry(entry.p), p_entry(entry.p_holm)]


def losses(results: StudyResults) -> Table:
    """Return the held-out loss on domain and general text, before and after adaptation."""
    names = ["model", "domain", "text", "method", "verdict", "change", "%", "95 % interval", "before", "after"]
    kinds = loss_kinds(results.losses)
    is_masked = any(kind.uses_masking and not kind.pairs for kind in kinds)
    masks = ", with 15 % of the tokens masked, the same for all methods of a model" if is_masked else ""
    if any(kind.pairs for kind in kinds):
        masks += ", of an encoder-decoder on the same corrupted texts for all methods of a model"
    note = (
        f"{loss_title(results.losses)}{masks}; lower is better. An increase on general text is forgetting. Interval: "
        "paired bootstrap over documents."
    )
    per_byte = any(row.bits_per_byte is not None for row in results.losses)
    is_code_length = any(row.bits_per_byte_difference for row in results.losses)
    if is_code_length:
        names += [f"bits per byte: {name}" for name in ("before", "after", "change", "95 % interval")]
        note += (
            " Bits per byte: the loss on all tokens read, divided by their UTF-8 bytes, which is comparable across "
            "tokenizers. Where the tokenizers differ, the verdict is about bits per byte."
        )
    elif per_byte:
        names += ["bits per byte: before", "after"]
        note += (
            " Bits per byte: the same loss, extrapolated to all tokens read and divided by their UTF-8 bytes, which "
            "is comparable across vocabularies; not a code length, since each token is predicted from both sides. For "
            "an encoder-decoder: of the target and the text in it."
        )
    table = Table("Held-out loss and forgetting", note, names, minor=["change", *names[7:]])
    for row in results.losses:
        cells = [Entry(name) for name in (row.model, row.domain, row.text, method_name(row))]
        entry = row.difference
        shown = entry or row.bits_per_byte_difference
        cells.append(verdict_entry(shown) if shown else DASH)
        change, interval = _change_cells(entry)
        cells += [change, signed_entry(row.percent), interval]
        cells += [number_entry(row.before, 3), number_entry(row.nats, 3)]
        if per_byte:
            cells += [number_entry(row.bits_per_byte_before, 3), number_entry(row.bits_per_byte, 3)]
        if is_code_length:
            cells += _change_cells(row.bits_per_byte_difference)
        table.rows.append(cells)
    return table


def _change_cells(entry: Interval | None) -> list[Entry]:
    if entry is None:
        return [DASH, DASH]
    return [signed_entry(entry.difference, 3), interval_entry(entry, 1, 3)]


def forgetting(results: StudyResults) -> Table:
    """Return the scores of adapted models on end tasks of other domains, compared with the base model."""
    names = ["model", "domain", "method", "other task", "verdict", "difference"]
    minor = ["95 % interval", "metric", "before", "after", "p (Holm)"]
    note = (
        "End tasks of other domains, fine-tuned from the base model (before) and from each adapted model (after): "
        "mean ± standard deviation over seeds, in percent. Difference and interval as in the scores; p (Holm) is "
        "corrected for the comparisons of this table alone. “No difference shown” does not prove that nothing was "
        "forgotten: the interval shows how much could have been."
    )
    table = Table("Forgetting on other tasks", note, [*names, *minor], minor=minor)
    for row in results.forgetting:
        method = f"{row.method}, {row.adapted_for}" if row.adapted_for else row.method
        cells = [Entry(row.model), Entry(row.domain), Entry(method), Entry(row.task)]
        metric, after = Entry(metric_name(row.metric)), mean_entry(row.summaries[row.metric])
        if entry := row.comparison:
            cells += [verdict_entry(entry), signed_entry(entry.difference, scale=100), interval_entry(entry)]
            cells += [metric, number_entry(row.before, scale=100), after, p_entry(entry.p_holm)]
        else:
            cells += [*[DASH] * 3, metric, DASH, after, DASH]
        table.rows.append(cells)
    return table


def corpus_contamination(results: StudyResults) -> Table:
    """Return how many dev and test texts occur in the adaptation text."""
    names = ["domain", "task", "split", "texts", "short", "in the corpus", "%", *MATCHES]
    corpora = [row for row in results.contamination if row.train_of is None]
    removed = any(row.removed for row in corpora)
    note = (
        "Distinct dev and test texts, and how many of them occur in the corpus: as a document (exact), as a near "
        "duplicate (Jaccard similarity of character 5-grams of at least 0.8), or inside a document (at least 80 % of "
        "the word 5-grams of the text). Short texts of fewer than eight words are compared with whole documents only. "
        + ("Documents with such texts were excluded from adaptation." if removed else "They were not excluded.")
    )
    table = Table("Test texts in the corpus", note, names, minor=["short", *MATCHES])
    for corpus in corpora:
        for row in corpus.texts:
            table.rows.append([Entry(corpus.domain), Entry(row.task), Entry(row.split), *_match_cells(row)])
    return table


def train_contamination(results: StudyResults) -> Table:
    """Return how many dev and test texts of each task occur in the train splits that its models learn from."""
    names = ["task", "split", "train split of", "texts", "short", "in train", "%", *MATCHES, "groups in train"]
    note = (
        "Distinct dev and test texts, and how many of them occur in the train split of their task, or of a task "
        "trained on before it. The two texts of a pair count as one, and a question counts as its passage. Matching "
        "rules as for corpora. Models train on these texts with a label (with few_shot on those that are drawn), and "
        "methods that read the text of the task adapt to them, so scores on them do not measure generalization. They "
        "are not removed: train splits are used unchanged. A short text of fewer than eight words may match by "
        "chance. Groups in train: documents, patients or passages of the split that also have rows in train; if "
        "their names are numbers that start again in each file, this means nothing."
    )
    minor = ["train split of", "short", *MATCHES]
    table = Table("Test texts in train splits", note, names, minor=minor)
    for split in results.contamination:
        for row in split.texts if split.train_of is not None else []:
            cells = [*_match_cells(row), Entry(row.shared_groups)]
            table.rows.append([Entry(row.task), Entry(row.split), Entry(split.train_of or ""), *cells])
    return table


def _match_cells(row: ContaminatedTexts) -> list[Entry]:
    percent = 100 * row.found / row.texts if row.texts else 0.0
    counts = [count_entry(value) for value in (row.texts, row.short, row.found)]
    return [*counts, number_entry(percent), *(count_entry(value) for value in (row.exact, row.near, row.contained))]


def searches(results: StudyResults) -> Table:
    """Return the hyper-parameter searches; every trial is in ``results.json``."""
    names = ["model", "domain", "task", "method", "settings of", "combinations", "seeds", "chosen", "metric"]
    names += ["dev, chosen", "dev, best", "dev, worst", "dev ECE"]
    tolerances = ", ".join(f"{100 * value:g}" for value in sorted({row.tolerance for row in results.searches}))
    note = (
        "Settings are chosen by the mean over seeds on the dev split, before the test split is read. Among "
        f"combinations within a tolerance ({tolerances} percentage points) of the best score, the one with the lowest "
        "expected calibration error is chosen. Combinations: tried, of all possible ones. Scores in percent; the dev "
        "score of the chosen combination is biased upwards by the selection."
    )
    table = Table("Hyper-parameter search", note, names)
    for row in results.searches:
        done = [trial for trial in row.trials if trial.state == "done"]
        failed = sum(trial.state == "failed" for trial in row.trials)
        chosen = next((trial for trial in done if trial.chosen), None)
        dev = [trial.score for trial in done if trial.score is not None]
        count = f"{row.tried} of {row.possible}" + (f", {failed} failed" if failed else "")
        settings = ", ".join(f"{name} {_setting(value)}" for name, value in (row.chosen or {}).items())
        cells = [Entry(row.model), Entry(row.domain), Entry(row.task), Entry(", ".join(row.methods)), Entry(row.stage)]
        cells += [Entry(count, row.tried), count_entry(len(row.seeds)), Entry(settings) if settings else DASH]
        cells.append(Entry(metric_name(row.metric)))
        own = (chosen.score, chosen.ece) if chosen else (None, None)
        shown = (own[0], max(dev, default=None), min(dev, default=None), own[1])
        table.rows.append([*cells, *(number_entry(value, scale=100) for value in shown)])
    return table


def _setting(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def without_constant_columns(table: Table) -> Table:
    """Drop the columns for model, domain and seed that have the same value in all rows."""
    shown = [
        position
        for position, name in enumerate(table.columns)
        if name not in ("model", "domain", "seed") or len({row[position].text for row in table.rows}) > 1
    ]
    return with_columns(table, shown)


def with_columns(table: Table, shown: Sequence[int]) -> Table:
    """Return some of the columns of a table."""
    return replace(
        table,
        columns=[table.columns[position] for position in shown],
        rows=[[row[position] for position in shown] for row in table.rows],
    )
