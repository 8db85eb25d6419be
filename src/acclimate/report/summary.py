"""The results of a study in words: a headline and caveats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.report.caveats import caveats, collapsed_models
from acclimate.report.formatting import describe_learning, loss_name, metric_name, primary_measures, row_place
from acclimate.results.cells import bracket_text, interval_text, joined, plain, rounded, rounded_interval, signed
from acclimate.results.scores import (
    HELPED,
    HURT,
    NO_DIFFERENCE,
    NOT_LEARNED,
    NOTHING_LEARNED,
    TOO_FEW_GROUPS,
    UNANSWERED,
    VERDICTS,
    WITHHELD,
    Comparison,
    LossRow,
    ScoreRow,
    TaskScores,
)
from acclimate.results.study import QUICK_NOTE, StudyResults

NO_VERDICT = "No verdict: one training run cannot tell an effect from chance."
NO_GROUPS = "No verdict: there are too few groups of items."
NO_RESULT = "No job of this study has a result."
MAX_METHODS = 5
"""Maximum number of methods that the headline describes one by one; of more, it names the best and the worst."""
MAX_SHOWN = 3
"""Maximum number of comparisons whose difference the sentence of the answer has."""


@dataclass
class Summary:
    """The results of a study in words.

    Attributes:
        verdict: The answer in one or two sentences.
        reasons: Why there is no answer, or what was not measured, in full sentences.
        headline: Everything in one paragraph, with numbers and intervals.
        caveats: Limits of the results.
    """

    verdict: str
    reasons: list[str]
    headline: str
    caveats: list[str]


def summarize(results: StudyResults) -> Summary:
    """Describe the results of a study in words."""
    results = StudyResults.from_dict(results)
    compared = [row for row in results.scores if row.comparison]
    missing = _missing_verdicts(results, compared)
    unknown = _unknown_forgetting(results)
    return Summary(
        verdict=_verdict(results, compared),
        reasons=missing + unknown,
        headline=" ".join(_headline(results, compared, missing) + unknown) or NO_RESULT,
        caveats=caveats(results, compared),
    )


def _verdict(results: StudyResults, compared: list[ScoreRow]) -> str:
    """Return the answer in one or two sentences."""
    verdicts = {_comparison(row).verdict for row in compared}
    for kind in results.kinds:
        if answer := kind.verdict(results):
            return answer
    answers = results.evaluations.answers if results.evaluations else []
    if not compared:
        return " ".join(answers) or _loss_verdict(results) or _nothing_to_compare(results) or NO_RESULT
    if verdicts == {NOT_LEARNED}:
        return NOTHING_LEARNED
    if verdicts <= set(UNANSWERED):
        return " ".join([NO_GROUPS if results.evaluations else NO_VERDICT, *answers])
    answered = [row for row in compared if _comparison(row).is_answered]
    return " ".join([*_answers(results, answered), *_loss_changes(results), *answers])


def _answers(results: StudyResults, answered: list[ScoreRow]) -> list[str]:
    """Say where which method helped and hurt, with numbers, and that no difference is shown elsewhere."""
    shown = [row for row in answered if _comparison(row).verdict != NO_DIFFERENCE]
    shown.sort(key=lambda row: -_comparison(row).difference)
    places = dict.fromkeys(row_place(results, row) for row in answered)
    groups: dict[str, list[ScoreRow]] = {}
    for row in answered:
        groups.setdefault(row.method, []).append(row)
    if len(shown) > MAX_SHOWN and len(groups) > MAX_METHODS:
        unit = "methods" if len(places) == 1 else "comparisons"
        return [f"Of {len(answered)} {unit}, {_count_verdicts(list(map(_comparison, answered)))}."]
    if len(shown) > MAX_SHOWN:
        means = {(row.model, row.method): row.difference for row in results.means if len(results.models) == 1}
        words = []
        for method, rows in groups.items():
            mean = means.get((rows[0].model, method))
            points = f"{signed(mean_points(rows))} points" if mean is None else f"{bracket_text(mean, 100)} points"
            words.append(f"{method}: {_describe_counts(rows)}, mean {points}")
        return [f"{'; '.join(words)}."]
    found: dict[str, list[str]] = {}
    for row in shown or answered[:MAX_SHOWN]:
        said = f" {_comparison(row).verdict}:" if shown else ""
        text = f"{row.method}{said} {bracket_text(_comparison(row), 100)} points"
        found.setdefault(row_place(results, row), []).append(text)
    if not shown:
        numbers = "; ".join(f"on {place}: {joined(words)}" for place, words in found.items())
        return [f"No difference shown {numbers if len(answered) <= MAX_SHOWN else f'in {len(answered)} comparisons'}."]
    numbers = "; ".join(f"on {place}, {joined(words)}" for place, words in found.items())
    rest = joined([row.method for row in answered if row not in shown])
    where = "elsewhere" if len(places) > 1 else f"for {rest}"
    return [f"{numbers[0].upper()}{numbers[1:]}.", *([f"No difference shown {where}."] if rest else [])]


def _loss_changes(results: StudyResults) -> list[str]:
    """Say on which texts the loss of which methods fell and rose, in a sentence each; of a single method."""
    if len({(row.model, row.domain, row.method) for row in results.losses}) > 1:
        return []
    sentences = []
    for word, verdict in (("fell", HELPED), ("rose", HURT)):
        parts = []
        for text, place in (("domain", "held-out domain text"), ("general", "general text")):
            rows = [row for row in results.losses if row.text == text and row.percent is not None]
            changed = [
                f"{row.method} {signed(row.percent or 0.0)} %"
                for row in rows
                if row.difference and row.difference.verdict == verdict
            ]
            parts += [f"on {place} ({', '.join(changed)})"] if changed else []
        sentences += [f"The loss {word} {joined(parts)}."] if parts else []
    return sentences


def _loss_verdict(results: StudyResults) -> str:
    """Return which methods predict text of the domain better, and which forgot; empty without losses."""
    verdicts: dict[str, dict[str, list[str]]] = {"domain": {}, "general": {}}
    for row in results.losses:
        if entry := row.difference or row.bits_per_byte_difference:
            verdicts[row.text].setdefault(row.method, []).append(entry.verdict)
    found = {verdict for methods in verdicts.values() for own in methods.values() for verdict in own}
    if found == {WITHHELD}:
        return NO_VERDICT
    better = [all(verdict == HELPED for verdict in own) for own in verdicts["domain"].values()]
    forgot = [any(verdict == HURT for verdict in own) for own in verdicts["general"].values()]
    parts = []
    if len(better) == 1:
        (name,) = verdicts["domain"]
        word = "predicts" if better[0] else "is not shown to predict"
        parts.append(f"{name} {word} held-out domain text better")
    elif better:
        some = "all" if all(better) else f"{sum(better)} of" if any(better) else "none of"
        parts.append(f"{some} {len(better)} methods predict held-out domain text better")
    if any(forgot):
        who = joined([name for name, lost in zip(verdicts["general"], forgot, strict=True) if lost])
        who = who if sum(forgot) <= 2 else f"{sum(forgot)} of {len(forgot)} methods"
        parts.append(f"{who} forgot some general text")
    elif forgot:
        parts.append("no forgetting of general text is shown")
    text = f"{joined(parts)}."
    starts_with_name = len(better) == 1 or (not better and any(forgot))
    return "" if not parts else text if starts_with_name else text[0].upper() + text[1:]


def _nothing_to_compare(results: StudyResults) -> str:
    if not results.scores:
        return ""
    why = "only one method has scores"
    if len({row.method for row in results.scores}) > 1:
        why = f"the baseline, {results.baseline}, has no scores"
    return f"There is nothing to compare: {why}."


def _unknown_forgetting(results: StudyResults) -> list[str]:
    if not results.losses or any(row.text == "general" and row.difference for row in results.losses):
        return []
    if any(row.text == "general" for row in results.losses):
        return [
            "Forgetting of general text is unknown: the base model has no loss, or there are fewer than two documents."
        ]
    return ["Forgetting of general text was not measured."]


def _headline(results: StudyResults, compared: list[ScoreRow], missing: list[str]) -> list[str]:
    """Return the sentences of the headline; ``missing`` says why there are comparisons without a verdict."""
    sentences = [*([QUICK_NOTE] if QUICK_NOTE in results.notes else [])]
    sentences += [answer for kind in results.kinds if (answer := kind.verdict(results))]
    methods = [method.label for method in results.methods]
    answered = [row for row in compared if _comparison(row).verdict not in (NOT_LEARNED, TOO_FEW_GROUPS)]
    places = {row_place(results, row) for row in answered}
    if answered:
        rows = {method: [row for row in answered if row.method == method] for method in methods}
        rows = {method: own for method, own in rows.items() if own}
        where = f"On {next(iter(places))}, " if len(places) == 1 else ""
        if len(rows) > MAX_METHODS:
            sentences.append(f"{where or 'Overall, '}{_describe_many(rows, len(places))}")
        else:
            words = [f"{method}: {describe_method(own, len(places))}" for method, own in rows.items()]
            sentences.append(f"{where}{'; '.join(words)}.")
    elif compared:
        sentences.append(NO_GROUPS if results.evaluations else NOTHING_LEARNED)
    elif nothing := _nothing_to_compare(results):
        sentences.append(nothing)
    sentences += results.evaluations.answers if results.evaluations else []
    sentences += _across_kinds(results) + (missing if compared else []) + _describe_errors(results, methods)
    sentences += [line.partition(". ")[0] + "." for line in collapsed_models(results)]
    sentences += [sentence for kind in results.kinds for sentence in kind.sentences(results)]
    general = [row for row in results.losses if row.text == "general" and row.difference]
    loss = loss_name(results.losses)
    domain = [row for row in results.losses if row.text == "domain" and row.difference]
    sentences += _describe_losses(domain, methods, f"On held-out domain text the {loss} changed by")
    sentences += _describe_losses(general, methods, f"On general text the {loss} changed by")
    sentences += _describe_other_tasks(results, methods)
    return sentences + ([] if compared else missing)


def _across_kinds(results: StudyResults) -> list[str]:
    """Compare methods across tasks with different measures, by rank and by standardized difference."""
    words, several = {}, len({row.metric for row in results.scores}) > 1
    for row in results.means if several else ():
        if entry := row.standardized:
            name = f"{row.model} · {row.method}" if len(results.models) > 1 else row.method
            shown = f"{plain(row.rank or 0.0)} ({signed(entry.difference, 2)}, {interval_text(entry, 1, 2)})"
            words[f"{name} has mean rank {shown}"] = entry.difference
    start = f"Across tasks, each in its primary measure ({primary_measures(results)}), "
    legend = "; in parentheses, the mean difference in standard deviations of one test item."
    return [f"{start}{all_or_extremes(words, 'from {} to {}')}{legend}"] if words else []


def _missing_verdicts(results: StudyResults, compared: list[ScoreRow]) -> list[str]:
    found = []
    if missed := [row for row in compared if _comparison(row).verdict == NOT_LEARNED]:
        methods = joined(list(dict.fromkeys(row.method for row in missed)))
        places = joined(list(dict.fromkeys(row_place(results, row) for row in missed)))
        why = joined(list(dict.fromkeys(_why_not_learned(results, row) for row in missed)))
        start = f"Not learned on {places}, so whether {methods} helped is unknown: {why}"
        start = start if len(missed) < len(compared) else f"On {places}, {why}"
        found.append(
            f"{start}. Train longer, with another learning rate or with more examples; 'search' tunes this on dev."
        )
    entries: list[Any] = [*(row.comparison for row in compared), *(row.difference for row in results.losses)]
    if any(entry and entry.verdict == WITHHELD for entry in entries):
        seeds = max(
            (len(row.difference.seeds) for row in compared if row.difference),
            default=len(results.config.get("seeds") or (0, 1)),
        )
        cause, remedy = "adaptation of each method", "Set adapt_seeds to three seeds, or remove it."
        if seeds == 1:
            cause, remedy = "seed", "Set seeds to at least three."
        found.append(
            f"With one {cause} there are no verdicts and p-values, since the intervals do not include the variance "
            f"between trainings. {remedy}"
        )
    return found


def _why_not_learned(results: StudyResults, row: ScoreRow) -> str:
    place = (row.model, row.domain, row.task)
    bases = [one for one in results.scores if one.learning and (one.model, one.domain, one.task) == place]
    for base in bases:
        if base.learning and not base.learning.has_learned:
            where = f" on {row_place(results, row)}" if len({one.task for one in results.scores}) > 1 else ""
            return describe_learning(base.learning, base.metric, where)
    return "no model beats guessing and the most frequent answer"


def describe_method(rows: Sequence[TaskScores], places: int) -> str:
    """Describe where one method helped and where it hurt."""
    entries = [_comparison(row) for row in rows]
    if places == 1 and len(rows) == 1:
        (entry,) = entries
        doubt = " after correction for all comparisons" if entry.is_lost_by_correction else ""
        points = f"{signed(100 * entry.difference)} percentage points of {metric_name(rows[0].metric)}"
        return f"{entry.verdict}{doubt} ({points}, {interval_text(entry, 100)})"
    return f"{_describe_counts(rows)} (mean {signed(mean_points(rows))} percentage points)"


def _describe_counts(rows: Sequence[TaskScores]) -> str:
    """Count the tasks with each verdict on one method."""
    unit = "comparisons" if len({row.model for row in rows}) > 1 else "tasks"
    return _count_verdicts([_comparison(row) for row in rows], f"on {{}} of {len(rows)} {unit}")


def _count_verdicts(entries: list[Comparison], template: str = "in {}") -> str:
    """Count each verdict, with a note on how many differences are lost by correction."""
    found = []
    for verdict in VERDICTS:
        lost = [entry.is_lost_by_correction for entry in entries if entry.verdict == verdict]
        note = f" ({sum(lost)} significant before correction for all comparisons)" if any(lost) else ""
        found += [f"{verdict} {template.format(len(lost))}{note}"] if lost else []
    return joined(found)


def _describe_many(rows: dict[str, list[ScoreRow]], places: int) -> str:
    """Describe many methods by the number of each verdict, and by the best and the worst on average."""
    entries = [_comparison(row) for own in rows.values() for row in own]
    unit = "methods" if len(entries) == len(rows) else f"comparisons of {len(rows)} methods"
    best, worst = (pick(rows, key=lambda method: mean_points(rows[method])) for pick in (max, min))
    ends = [f"{end}: {method}, {describe_method(rows[method], places)}" for end, method in
            (("best", best), ("worst", worst))]  # fmt: skip
    return f"of {len(entries)} {unit}, {_count_verdicts(entries)}. On average {'; '.join(ends)}."


def _comparison(row: TaskScores) -> Comparison:
    entry = row.comparison
    assert entry is not None
    return entry


def mean_points(rows: Sequence[TaskScores]) -> float:
    """Return the mean difference to the baseline in percentage points."""
    return sum(100 * _comparison(row).difference for row in rows) / len(rows)


def _describe_losses(rows: list[LossRow], methods: list[str], start: str) -> list[str]:
    words = {}
    for method in methods:
        own = [row for row in rows if row.method == method]
        differences = [row.difference for row in own if row.difference]
        if differences:
            nats = sum(entry.difference for entry in differences) / len(own)
            percent = sum(row.percent or 0.0 for row in own) / len(own)
            interval = f"; {interval_text(differences[0], 1, 3)}" if len(own) == 1 else ""
            words[f"{signed(nats, 3)} nats ({signed(percent)} %{interval}) with {method}"] = nats
    return [f"{start} {all_or_extremes(words, 'between {} and {}')}."] if words else []


def _describe_errors(results: StudyResults, methods: list[str]) -> list[str]:
    """Describe the change of the first error of each task of numbers in one sentence."""
    words = {}
    for row in results.scores:
        entry = row.difference.metrics.get(row.errors[0]) if row.difference and row.errors else None
        if entry and entry.verdict != NOT_LEARNED and row.method in methods:
            change = f"{rounded(entry.difference, signed=True)} ({rounded_interval(entry)}) with {row.method}"
            words[f"{metric_name(row.errors[0])} on {row_place(results, row)} {change}"] = entry.difference
    text = all_or_extremes(words, "between {} and {}")
    return [f"Changes of errors, of which lower is better: {text}."] if words else []


def all_or_extremes(words: dict[str, float], template: str) -> str:
    """Join the texts if they are few; of many, insert those with the lowest and highest value into ``template``."""
    if len(words) <= MAX_METHODS:
        return joined(list(words))
    return template.format(min(words, key=words.__getitem__), max(words, key=words.__getitem__))


def _describe_other_tasks(results: StudyResults, methods: list[str]) -> list[str]:
    """Describe forgetting on tasks of other domains in one sentence, if it was measured."""
    words = {}
    for method in methods:
        rows = [row for row in results.forgetting if row.method == method and row.comparison]
        if rows:
            verdicts = [entry.verdict for row in rows if (entry := _comparison(row)).is_answered]
            hurt = f"{HURT} on {verdicts.count(HURT)} of {len(verdicts)}" if verdicts else f"has {WITHHELD}"
            mean = mean_points(rows)
            words[f"{method} {hurt} (mean {signed(mean)} percentage points)"] = mean
    text = all_or_extremes(words, "the worst and the best methods on average: {} and {}")
    return [f"On tasks of other domains, {text}."] if words else []
