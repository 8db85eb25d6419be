"""The summary in words: headline, lines and caveats."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace

import pytest

from acclimate.labs.sequence.rows import SequenceOrder, SequenceRow, SequenceSpread
from acclimate.report import markdown, render, summarize
from acclimate.report.tables import overview
from acclimate.results.cells import bracket_text, plain, signed
from acclimate.results.scores import NO_DIFFERENCE, NOTHING_LEARNED, ForgettingRow, TaskScores
from acclimate.results.study import MethodRow, StudyResults
from acclimate.study.compare import compare
from tests.report.full import parse, with_comparison
from tests.study.fakes import World, files, study


def caveats_with(results, text):
    return [caveat for caveat in summarize(results).caveats if text in caveat]


@pytest.mark.needs("dga")
def test_headline_and_lines(results):
    summary = summarize(results)
    assert summary.headline.startswith("mlm: helped on 2 of 2 tasks")
    assert "On general text the masked-LM loss changed by +0." in summary.headline
    first, second = sorted(
        (row.comparison for row in results.scores if row.method == "mlm"), key=lambda row: -row.difference
    )
    assert summary.verdict.endswith(f"mlm helped: {bracket_text(second, 100)} points. No difference shown elsewhere.")
    assert f"mlm helped: {bracket_text(first, 100)} points; on " in summary.verdict
    assert caveats_with(results, "comparisons were made") and summary.reasons == []


@pytest.mark.needs("dga")
def test_the_verdict_is_one_or_two_short_sentences_with_numbers(results):
    one = replace(results, domains=["cs"], scores=[row for row in results.scores if row.domain == "cs"])
    scores = [row for row in one.scores if row.comparison]
    mlm, dga = (f"{bracket_text(row.comparison, 100)} points" for row in scores)

    def verdict(*verdicts, **changes):
        rows = [with_comparison(row, verdict=name, p_holm=None) for row, name in zip(scores, verdicts, strict=True)]
        return summarize(replace(one, scores=rows, **{"losses": [], **changes})).verdict

    assert verdict("helped", NO_DIFFERENCE) == (
        f"On intent, mlm helped: {mlm}. No difference shown for dga, no contrast."
    )
    assert verdict("helped", "hurt") == f"On intent, mlm helped: {mlm} and dga, no contrast hurt: {dga}."
    same = f"No difference shown on intent: mlm {mlm} and dga, no contrast {dga}."
    assert verdict(NO_DIFFERENCE, NO_DIFFERENCE) == same
    lower, higher = (
        replace(row, percent=percent, difference=replace(row.difference, verdict=name))
        for row, percent, name in zip(
            [row for row in results.losses if row.difference][:2], (-12.34, 3.0), ("helped", "hurt"), strict=True
        )
    )
    both = [replace(lower, text="domain"), replace(higher, text="general", method=lower.method)]
    assert verdict(NO_DIFFERENCE, NO_DIFFERENCE, losses=both).endswith(
        f"points. The loss fell on held-out domain text ({lower.method} −12.3 %). The loss rose on general text "
        f"({lower.method} +3.0 %)."
    )
    assert "loss" not in verdict(NO_DIFFERENCE, NO_DIFFERENCE, losses=[*both, replace(lower, method="dga")])
    assert verdict("not learned", "not learned") == NOTHING_LEARNED
    assert verdict("no verdict", "no verdict").startswith("No verdict: ")
    assert verdict("no verdict", "not learned").startswith("No verdict: ")
    changes = {"domain": "helped", "general": NO_DIFFERENCE}
    losses = [
        replace(row, difference=replace(row.difference, verdict=changes[row.text]))
        for row in results.losses
        if row.difference
    ]
    better = "All 2 methods predict held-out domain text better and "
    only = replace(results, scores=[], losses=losses)
    assert summarize(only).verdict == f"{better}no forgetting of general text is shown."
    forgot = [
        replace(row, difference=replace(row.difference, verdict="hurt"))
        if (row.text, row.method, row.domain) == ("general", "mlm", "food")
        else row
        for row in losses
    ]
    assert summarize(replace(only, losses=forgot)).verdict == f"{better}mlm forgot some general text."
    one = replace(only, losses=[row for row in losses if row.method == "mlm"])
    assert summarize(one).verdict.startswith("mlm predicts held-out domain text better and no forgetting")
    tie = [
        replace(row, model="second", difference=replace(row.difference, verdict="no difference shown"))
        for row in one.losses
    ]
    two = replace(one, models=[*one.models, "second"], losses=[*one.losses, *tie])
    assert summarize(two).verdict.startswith("mlm is not shown to predict held-out domain text better and no ")
    withheld = [replace(row, difference=row.difference.without_verdict("no verdict")) for row in losses]
    assert summarize(replace(only, losses=withheld)).verdict.startswith("No verdict: ")
    empty = replace(results, scores=[], losses=[])
    assert summarize(empty).verdict == summarize(empty).headline == "No job of this study has a result."


def test_models_that_learned_nothing_are_the_headline_everywhere(results):
    scores = [with_comparison(row, verdict="not learned") if row.comparison else row for row in results.scores]
    found = replace(results, scores=scores)
    summary = summarize(found)
    assert summary.headline.startswith(f"{NOTHING_LEARNED} On cs · intent and food · aspect, no model beats guessing")
    assert "Train longer" in summary.reasons[0]
    assert markdown(found).split("\n\n")[1].startswith(NOTHING_LEARNED)
    assert f'<p class="headline">{NOTHING_LEARNED}</p>' in render(found)
    some = replace(results, scores=[scores[1], *results.scores[2:]])
    assert NOTHING_LEARNED not in summarize(some).headline
    assert "Not learned on cs · intent, so whether mlm helped is unknown: no model beats" in summarize(some).headline


@pytest.mark.needs("dga")
def test_mixed_precisions_are_reported(results):
    def found(**precisions):
        rows = [replace(row, precisions=precisions.get(row.method, ["fp32"])) for row in results.scores]
        return caveats_with(replace(results, scores=rows), "precision")

    assert {tuple(row.precisions) for row in results.scores} == {()}
    assert not found() and not found(mlm=[])
    (text,) = found(mlm=["bf16"])
    assert "precisions: cs · intent (fp32: none and dga, no contrast; bf16: mlm), " in text
    assert " · aspect (fp32" in text
    (text,) = found(mlm=["bf16", "fp32"])
    assert "(fp32: none and dga, no contrast; bf16 and fp32: mlm)" in text
    (text,) = found(**{row.method: ["bf16", "fp32"] for row in results.scores})  # each differs between its seeds
    assert "(bf16 and fp32: " in text


def test_collapsed_models_are_named(results):
    assert {row.collapsed for row in results.scores} == {0} and not caveats_with(results, "same answer")
    counts = {("intent", "none"): 5, ("intent", "mlm"): 2}
    scores = [replace(row, collapsed=counts.get((row.task, row.method), 0)) for row in results.scores]
    (text,) = caveats_with(replace(results, scores=scores), "same answer")
    named = "the same answer for almost all test items: cs · intent (none and mlm in 2 of 5 seeds)."
    assert named in text and named in summarize(replace(results, scores=scores)).headline
    place = {"model": scores[0].model, "domain": "food", "task": "intent", "method": "mlm", "metric": "macro_f1"}
    other = ForgettingRow(**place, seeds=[0], collapsed=1)
    (text,) = caveats_with(replace(results, forgetting=[other]), "same answer")
    assert "items: food · intent (mlm)." in text  # the same task name in another domain is another task


def test_errors_are_in_the_headline_in_their_unit(results):
    entry = next(row.comparison for row in results.scores if row.comparison)

    def error(row, **changes):
        changed = replace(
            entry, **{"difference": -1234.5, "low": -2000.0, "high": -12.25, "verdict": "helped", **changes}
        )
        difference = replace(row.difference, metrics={**row.difference.metrics, "rmse": changed})
        return replace(row, errors=["rmse", "mae"], difference=difference)

    def headline(**changes):
        rows = [error(row, **changes) if row.comparison and row.task == "intent" else row for row in results.scores]
        return summarize(replace(results, scores=rows)).headline

    assert "RMSE" not in summarize(results).headline and "RMSE" not in headline(verdict="not learned")
    assert "lower is better: RMSE on cs · intent −1234 (−2000 to −12.2) with mlm and RMSE on" in headline()
    assert "RMSE on cs · intent 0 (−0.02 to +0.5) with mlm" in headline(difference=0.0, low=-0.02, high=0.5)


def test_the_headline_says_what_correction_takes_away(results):
    rows = [row for row in results.scores if row.method == "mlm"]
    doubtful = with_comparison(rows[0], p_holm=0.2)
    headline = summarize(replace(results, scores=[doubtful, rows[1]])).headline
    lost = f"{NO_DIFFERENCE} on 1 of 2 tasks (1 significant before correction for all comparisons)"
    assert f"mlm: helped on 1 of 2 tasks and {lost} (mean" in headline
    assert "correction" not in summarize(replace(results, scores=rows)).headline
    general = [row for row in results.losses if row.text == "general" and row.method == "mlm"]
    one = replace(results, domains=["cs"], scores=[doubtful], losses=general[:1])
    headline = summarize(one).headline
    assert f"mlm: {NO_DIFFERENCE} after correction for all comparisons (+" in headline
    entry = general[0].difference
    assert f"%; {signed(entry.low, 3)} to {signed(entry.high, 3)}) with mlm" in headline


def test_of_many_methods_the_headline_names_the_best_and_the_worst(results):
    def as_method(row, number):
        """The row of one more method; higher numbers have lower scores, and lose from the tenth on."""
        p_holm, verdict = 0.2 if number in (2, 3, 4) else 0.001, "hurt" if number > 9 else "helped"
        difference = row.comparison.difference - number / 100
        return replace(
            with_comparison(row, difference=difference, verdict=verdict, p_holm=p_holm), method=f"m{number}"
        )

    def as_loss(row, number):
        entry = replace(row.difference, difference=row.difference.difference + number)
        return replace(row, method=f"m{number}", difference=entry)

    numbers = range(1, 13)
    own = [row for row in results.scores if row.method == "mlm"]
    general = [row for row in results.losses if row.text == "general" and row.method == "mlm"]
    scores = [as_method(row, number) for row in own for number in numbers]
    many = replace(
        results,
        methods=[MethodRow(label=f"m{number}", name="mlm") for number in numbers],
        scores=scores,
        losses=[as_loss(row, number) for row in general for number in numbers],
        forgetting=[
            ForgettingRow(**{one.name: getattr(row, one.name) for one in fields(TaskScores)}) for row in scores
        ],
    )
    headline = summarize(many).headline
    lost = f"{NO_DIFFERENCE} in 6 (6 significant before correction for all comparisons)"
    counts = f"helped in 12, hurt in 6 and {lost}"
    assert headline.startswith(f"Overall, of 24 comparisons of 12 methods, {counts}. On average best: m1, helped on 2")
    assert "; worst: m12, hurt on 2 of 2 tasks (mean " in headline
    loss = r"masked-LM loss changed by between \S+ nats \([^)]+ %\) with m1 and \S+ nats \([^)]+ %\) with m12\."
    assert re.search(loss, headline)
    assert "On tasks of other domains, the worst and the best methods on average: m12 hurt on 2 of 2 (mean" in headline
    assert not any(f"m{number} " in headline for number in range(2, 12))
    one = replace(many, domains=["cs"], scores=[row for row in many.scores if row.domain == "cs"])
    headline = summarize(one).headline
    counts = rf"helped in 6, hurt in 3 and {NO_DIFFERENCE} in 3 \(3 .+\)"
    assert re.match(rf"On [^,]+, of 12 methods, {counts}\. On average best: m1, helped \(\+", headline)


@pytest.mark.slow
def test_one_seed_is_too_few(small):
    found = small(seeds=1)
    parse(render(found))
    assert "With one seed there are no verdicts and p-values" in summarize(found).headline


def test_without_a_verdict_the_headline_says_why(small, results):
    headline = summarize(results).headline
    assert "no verdict" not in headline and "not learned" not in headline.lower()
    found = small()
    headline = summarize(found).headline
    assert "mlm: no verdict (+" in headline and "With one adaptation of each method there are no" in headline
    assert "Set adapt_seeds to three seeds" in headline
    once = replace(found, scores=[], config={**found.config, "seeds": [0]})
    assert "With one seed there are no verdicts" in summarize(once).headline
    page = markdown(found)
    verdicts = ("helped", "hurt", "no difference", "p =", "p <", "forgetting:", "better on")
    assert not [word for word in verdicts if word in page]
    assert not caveats_with(found, "comparisons were made")
    assert summarize(found).verdict.startswith("No verdict: ")
    assert summarize(found).reasons[0].startswith("With one adaptation of each method")


@pytest.mark.slow
def test_without_general_text(small):
    found = small(general=None)
    page = render(found)
    parse(page)
    assert "Gain against forgetting" not in page
    assert "Forgetting of general text was not measured." in summarize(found).headline


def test_without_tasks(small, tmp_path):
    data = files(tmp_path / "more")
    found = small(domains=[{"name": "cs", "corpus": str(data / "cs.txt")}])
    page = render(found)
    parse(page)
    assert "decrease of the loss on domain text" in page
    assert summarize(found).headline.startswith("On held-out domain text the masked-LM loss changed by −0.")


def test_with_one_method_there_is_nothing_to_compare(small):
    found = small(methods=["none"], general=None)
    parse(render(found))
    assert "nothing to compare" in summarize(found).headline


def test_without_results_of_the_baseline(tmp_path):
    """A method lacks the scores of all its seeds, of all but one, or its loss on general text."""
    values = study(files(tmp_path / "data"))
    world = World()
    found = StudyResults.from_dict(compare(values, tmp_path / "out", progress=False, backend=world.backend()))
    base = next(row for row in found.scores if row.method == "none")
    (row,) = [row for row in found.scores if row.method == "mlm"]
    assert row.comparison.before == base.summaries["macro_f1"].mean
    stored = tmp_path / "out" / "jobs"

    def without(lost):
        for path in stored.glob("*.json"):
            if lost(json.loads(path.read_text())["description"]):
                path.unlink()
        again = compare(values, tmp_path / "out", progress=False, backend=world.backend(), report_only=True)
        return StudyResults.from_dict(again)

    some = without(lambda job: "none" in job and not job.endswith("0"))
    (base,) = [row for row in some.scores if row.method == "none"]
    assert base.seeds == [0]
    (row,) = [row for row in some.scores if row.method == "mlm"]
    assert row.comparison.before == base.summaries["macro_f1"].mean
    headline = summarize(without(lambda job: "none" in job or job == "lm_loss · model · cs · general")).headline
    assert "the baseline, none, has no scores" in headline
    assert "Forgetting of general text is unknown" in headline


def test_numbers():
    assert signed(-1.25) == "−1.2" and signed(0.04) == "0.0" and signed(-0.04) == "0.0" and signed(2) == "+2.0"
    assert plain(-0.5) == "−0.5" and plain(-0.01) == plain(0.0) == "0.0" and plain(0.0, 0) == plain(-0.2, 0) == "0"


@pytest.mark.needs("dga")
def test_tasks_with_different_measures_are_compared_by_rank_and_standardized(results):
    assert "mean rank" not in summarize(results).headline
    scores = [replace(row, metric="accuracy") if row.task == "aspect" else row for row in results.scores]
    mixed = replace(results, scores=scores)
    entry = next(row.standardized for row in results.means if row.method == "mlm")
    expected = (
        "Across tasks, each in its primary measure (macro-F1 (on intent) and accuracy (on aspect)), mlm has mean rank "
        f"1.0 ({signed(entry.difference, 2)}, {signed(entry.low, 2)} to {signed(entry.high, 2)}) and dga, no contrast "
    )
    headline = summarize(mixed).headline
    assert expected in headline and "in standard deviations of one test item." in headline
    assert [name for name, _ in overview(mixed).groups()] == ["cs · intent (macro-F1)", "food · aspect (accuracy)"]
    assert "primary measure: macro-F1 (on intent) and accuracy (on aspect)." in markdown(mixed)


def test_probes_with_the_fewest_labels_are_in_the_headline(full):
    words = "For a linear model on frozen states, with 8 labels per class, mlm: helped on 2 of 2 tasks (mean +"
    assert words in summarize(full).headline


def _sequence(method: str, ends: dict[str, tuple[float, float]], **more) -> SequenceRow:
    """A method whose differences to ``lm`` have these intervals, or without any."""
    spreads = {name: SequenceSpread(mean=sum(pair) / 2, seeds=list(pair), orders=None) for name, pair in ends.items()}
    means = {"average": 2.0, "gain": 0.5, "forgetting": 0.25}
    measures = {name: SequenceSpread(mean=mean, seeds=None, orders=None) for name, mean in means.items()}
    order = SequenceOrder(domains=["a", "b"], matrix=[[3.0, 3.0], [2.0, 3.0], [2.25, 2.0]])
    given = {"measure": "loss", "seeds": [0], "orders": [order], "reference": "lm" if ends else "", **more}
    return SequenceRow(model="model", method=method, measures=measures, differences=spreads, **given)


@pytest.mark.needs("das", "ewc", "kd", "dga")
def test_a_sequence_is_summed_up_by_what_its_intervals_show(results):
    rows = [
        _sequence("lm", {}),
        _sequence("das", {"average": (-0.3, -0.1), "forgetting": (-0.2, 0.1)}),
        _sequence("ewc", {"average": (0.1, 0.2), "forgetting": (-0.2, -0.1)}),
        _sequence("kd", {"average": (-0.3, -0.1), "forgetting": (0.1, 0.2)}),
        _sequence("das", {"average": (0.1, 0.2)}, measure="score"),
    ]
    found = summarize(replace(results, rows={"sequence": rows}))
    assert found.verdict == (
        "After the last domain, compared with lm: das and kd: a lower mean loss; ewc: a higher mean loss. On earlier "
        "domains, compared with lm: ewc: less forgetting; kd: more forgetting; das: no difference shown."
    )
    assert found.headline.startswith(found.verdict)
    one_seed = summarize(replace(results, rows={"sequence": [_sequence("lm", {}), _sequence("das", {})]})).verdict
    assert one_seed == (
        "After the last domain, the mean loss is 2.000 with lm and 2.000 with das. With one seed, no difference can "
        "be shown."
    )
    alone = summarize(replace(results, rows={"sequence": rows[:1]})).verdict
    assert alone == (
        "After the last domain, the mean loss of lm is 2.000, −0.500 from the base model; on earlier domains it has "
        "changed by +0.250 since it was lowest."
    )
