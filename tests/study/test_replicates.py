"""Seeds that start from the same adaptation, on either side of a comparison, are not independent replicates."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.evaluation.scoring import SingleLabel
from acclimate.results.scores import NOT_LEARNED, WITHHELD, Comparison, ScoreRow
from acclimate.study.job import HEAD, Job, JobResult, Place
from acclimate.study.jobs.finetune import average_over_tasks, mean_ranks
from acclimate.study.summary import (
    TaskResult,
    compare_runs,
    count_verdicts,
    is_replicated,
    replicate_groups,
    summarize_scores,
)
from tests.cases import each

pytestmark = pytest.mark.usefixtures("no_report")


class Step(Job):
    """A job that belongs to no study."""

    label: tuple
    model: Job | None = None

    name = "step"

    def run(self, context):
        raise NotImplementedError


def step(*label, needs=None, method="mlm"):
    return Step(
        place=Place(method=method, seed=label[-1] if isinstance(label[-1], int) else None), label=label, model=needs
    )


def runs(name, origins):
    """One job per seed, from an adaptation of that name, or from the base model."""
    made = {origin: step("adapt", name, origin) for origin in origins if origin is not None}
    return [step(name, seed, needs=made.get(origin)) for seed, origin in enumerate(origins)]


@each(
    ("ours", "theirs", "expected"),
    [
        ("abab", [None] * 4, [0, 1, 0, 1]),
        ([None] * 4, "abab", [0, 1, 0, 1]),
        ("abab", "abab", [0, 1, 0, 1]),
        ("aaaa", [None] * 4, [0, 1, 2, 3]),  # one adaptation for all: its variance cannot be estimated
        ("aaaa", "abab", [0, 1, 0, 1]),
        ("abcd", "aabb", [0, 0, 2, 2]),
        ("aabc", "abbc", [0, 0, 0, 3]),  # 0 and 1 share our adaptation, 1 and 2 theirs
        (["a", None, "a", None], [None] * 4, [0, 1, 0, 3]),
    ],
)
def test_which_seeds_share_a_group(ours, theirs, expected):
    found = replicate_groups(list(zip(runs("ours", ours), runs("theirs", theirs), strict=True)))
    assert [[one == other for other in found] for one in found] == [
        [one == other for other in expected] for one in expected
    ]


def test_a_warm_up_joins_no_seeds_and_a_teacher_joins_those_of_its_adaptation():
    head = step("head", method=HEAD)
    adapted = [step("adapted", number, needs=head) for number in range(2)]
    taught = [step("teacher", seed, needs=adapted[seed % 2]) for seed in range(4)]
    students = [step("student", seed, needs=taught[seed]) for seed in range(4)]
    plain = [step("plain", seed, needs=head) for seed in range(4)]
    found = replicate_groups(list(zip(students, plain, strict=True)))
    assert found[0] == found[2] != found[1] == found[3]
    assert len(set(replicate_groups(list(zip(plain, plain, strict=True))))) == 4


def test_swapping_the_sides_mirrors_the_interval():
    rng = np.random.default_rng(0)
    gold = [0, 1, 2] * 40
    adapted, plain = runs("mlm", "ababab"), runs("none", [None] * 6)

    def results(jobs, effect):
        for number, job in enumerate(jobs):
            wrong = rng.random(len(gold)) < 0.3 + effect[number % 2]
            predicted = [(label + int(miss)) % 3 for label, miss in zip(gold, wrong, strict=True)]
            accuracy = float(np.mean(np.equal(gold, predicted)))
            metrics = dict.fromkeys(("macro_f1", "micro_f1", "accuracy"), accuracy)
            yield JobResult(job, TaskResult(gold=gold, predicted=predicted, metrics=metrics))

    one, other = list(results(adapted, (0.0, 0.3))), list(results(plain, (0.0, 0.0)))
    there, back = compare_runs(one, other).metrics, compare_runs(other, one).metrics
    for metric in ("macro_f1", "accuracy"):
        assert isinstance(there[metric], Comparison)
        assert there[metric].low == pytest.approx(-back[metric].high)
        assert there[metric].p == pytest.approx(back[metric].p)
    assert there["macro_f1"].high - there["macro_f1"].low > 0.2  # two replicates, not six


def simulated(rng, origins, effects, gold, ease):
    """Runs of a method on one task; ``effects`` are those of its adaptations on the logit of a right answer."""
    for seed, job in enumerate(runs("mlm", origins)):
        logit = ease + effects.get(origins[seed], 0.0) + rng.normal(0, 0.1)
        right = rng.random(len(gold)) < 1 / (1 + np.exp(-logit))
        predicted = np.where(right, gold, (gold + rng.integers(1, 3, len(gold))) % 3)
        accuracy = float(np.mean(predicted == gold))
        metrics = dict.fromkeys(("macro_f1", "accuracy", "micro_f1"), accuracy)
        yield JobResult(job, TaskResult(gold=gold.tolist(), predicted=predicted.tolist(), metrics=metrics))


def coverage(studies, origins, tasks=1, items=200, adapted_baseline=False):
    """Share of simulated studies without a true difference whose 95 % interval contains zero.

    The effect of an adaptation has a standard deviation of 0.2 on the logit, twice that of a fine-tuning.
    """
    rng, inside = np.random.default_rng(3), 0
    for _ in range(studies):
        sides = ([], [])
        effects = [dict(zip("abc", rng.normal(0, 0.2, 3), strict=True)) for _ in sides]
        for _ in range(tasks):
            gold, ease = rng.integers(3, size=items), rng.normal(1, 1.5, items)
            sides[0].append(list(simulated(rng, origins, effects[0], gold, ease)))
            sides[1].append(list(simulated(rng, origins if adapted_baseline else [None] * 5, effects[1], gold, ease)))
        if tasks == 1:
            found = compare_runs(sides[0][0], sides[1][0], n=200).metrics["accuracy"]
        else:
            found = average_over_tasks(*sides, ["accuracy"] * tasks, n=200).difference
        inside += found.low <= 0 <= found.high
    return inside / studies


@pytest.mark.slow
@each("options", [{}, {"adapted_baseline": True}, {"tasks": 2}])
def test_intervals_cover_the_variance_between_adaptations(options):
    assert 0.92 <= coverage(60, "abcab", **options) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"adapted_baseline": True}, {"tasks": 2}, {"items": 1000}])
def test_coverage_is_95_percent_with_three_adaptations(options):
    assert 0.93 <= coverage(1000, "abcab", **options) <= 0.97
    assert coverage(300, "aaaaa", **options) < 0.85  # which is why one adaptation gets no verdict


def learned(jobs, score=0.8):
    """The runs of jobs on a task that they learned."""
    gold = [0, 1, 2] * 20
    rng = np.random.default_rng(len(jobs))
    for job in jobs:
        predicted = [label if rng.random() < score else (label + 1) % 3 for label in gold]
        metrics = {name: SingleLabel().score(gold, predicted, name) for name in SingleLabel().metrics}
        yield JobResult(job, TaskResult(gold=gold, predicted=predicted, metrics=metrics))


ORIGINS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=5, max_size=5)


@settings(max_examples=40, deadline=None)
@given(ORIGINS, ORIGINS, st.integers(1, 5))
def test_a_verdict_needs_two_adaptations_of_each_adapted_side(ours, theirs, seeds):
    sides = runs("ours", ours[:seeds]), runs("theirs", theirs[:seeds])
    pairs = list(zip(*sides, strict=True))
    groups = replicate_groups(pairs)
    single = any(len(set(side[:seeds])) == 1 and side[0] for side in (ours, theirs))
    assert is_replicated(pairs) == (len(set(groups)) > 1 and not single)
    if is_replicated(pairs):
        for side in (ours, theirs):
            for first, second in itertools.combinations(range(seeds), 2):
                assert groups[first] == groups[second] or side[first] is None or side[first] != side[second]
    entry = compare_runs(*(list(learned(jobs)) for jobs in sides), n=20).metrics["accuracy"]
    assert (entry.verdict == WITHHELD) == (entry.p is None) == (not is_replicated(pairs))
    assert entry.low <= entry.difference <= entry.high  # the interval stays


def test_only_one_side_has_to_learn():
    origins = "abcab"
    for score, expected in ((0.8, False), (1 / 3, True)):
        entry = compare_runs(list(learned(runs("a", origins), score)), list(learned(runs("b", origins), 1 / 3)))
        assert (entry.metrics["accuracy"].verdict == NOT_LEARNED) == expected


def test_the_mean_over_tasks_uses_the_seeds_of_all_tasks():
    one, two = (list(learned(runs("a", "abcab"))), list(learned(runs("a", "abcab"), 0.6)))
    base = [list(learned(runs("none", [None] * 5))) for _ in range(2)]
    row = average_over_tasks([one, two[1:]], base, ["accuracy", "macro_f1"])
    metrics = ([run.result.metrics["accuracy"] for run in one], [run.result.metrics["macro_f1"] for run in two])
    expected = np.mean(metrics, axis=0)[1:].tolist()
    assert row.score.by_seed == pytest.approx(expected) and row.score.mean == pytest.approx(np.mean(expected))
    assert row.difference.verdict in ("helped", "hurt", "no difference shown")
    assert average_over_tasks([one, two], [], ["accuracy"] * 2).difference is None
    assert average_over_tasks([one[:1], two[1:]], [], ["accuracy"] * 2) is None
    alone = [list(learned(runs("a", "aaaaa"))) for _ in range(2)]
    assert average_over_tasks(alone, base, ["accuracy"] * 2).difference.verdict == WITHHELD
    shared = average_over_tasks([one, two], base, ["accuracy"] * 2)
    ours, theirs = ([[run.result for run in side] for side in sides] for sides in ([one, two], base))
    expected = []
    for mine, reference in zip(ours, theirs, strict=True):
        means = [np.mean([result.metrics["accuracy"] for result in side]) for side in (mine, reference)]
        spread = np.sqrt(np.mean([np.var(np.equal(r.gold, r.predicted)) for r in reference]))
        expected.append((means[0] - means[1]) / spread)
    assert shared.standardized.difference == pytest.approx(np.mean(expected), rel=0.05)  # the spread is resampled
    assert shared.standardized.verdict == shared.difference.verdict
    perfect = [list(learned(runs("none", [None] * 5), 1.0)) for _ in range(2)]
    row = average_over_tasks([one, two], perfect, ["accuracy"] * 2)
    assert row.standardized is None and len(row.constant) == 2  # no item varies
    row = average_over_tasks([one, two], [perfect[0], base[1]], ["accuracy"] * 2)
    alone = average_over_tasks([two], base[1:], ["accuracy"])
    assert row.standardized.difference == pytest.approx(alone.standardized.difference, rel=0.05)


def test_rows_of_a_study_know_their_units_and_their_test_set():
    """Sentences of ten documents, which a method gets right or wrong as a whole; the same test set at two levels."""
    rng, gold = np.random.default_rng(5), [0, 1, 2] * 20
    documents = [place // 6 for place in range(60)]

    def made(jobs, scoring):
        for job in jobs:
            right = rng.random(10) < 0.6
            predicted = [
                label if right[group] else (label + 1) % 3 for label, group in zip(gold, documents, strict=True)
            ]
            metrics = {name: SingleLabel().score(gold, predicted, name) for name in SingleLabel().metrics}
            yield JobResult(job, TaskResult(gold=gold, predicted=predicted, metrics=metrics, scoring=scoring))

    known = {"groups": documents, "group_name": "abstract"}
    ours, theirs = (list(made(runs(name, "abcab"), known)) for name in ("a", "b"))
    apart = [[JobResult(run.job, replace(run.result, scoring={})) for run in side] for side in (ours, theirs)]
    row = summarize_scores(ours, "accuracy", ScoreRow)
    assert (row.test_items, row.test_units, row.group_name) == (60, 10, "abstract")
    assert summarize_scores(apart[0], "accuracy", ScoreRow).test_units is None
    p = [compare_runs(*sides, n=400).metrics["accuracy"].p_models for sides in ((ours, theirs), apart)]
    assert p[0] > 2 * p[1]
    levels = average_over_tasks([ours, ours], [theirs, theirs], ["accuracy"] * 2)
    assert (levels.tasks, levels.test_sets) == (2, 1)
    one = average_over_tasks([ours], [theirs], ["accuracy"])
    assert (levels.difference.low, levels.difference.high) == pytest.approx((one.difference.low, one.difference.high))
    row = replace(row, difference=compare_runs(ours, theirs, n=20))
    (count,) = count_verdicts([replace(row, task=task) for task in ("five labels", "fifty labels")])
    assert (count.tasks, count.test_sets) == (2, 1)


def test_mean_ranks():
    def of(*scores):
        return [JobResult(None, TaskResult(gold=[], predicted=[], metrics={"f1": score})) for score in scores]

    methods = [[of(0.5, 0.7), of(0.9)], [of(0.6), of(0.2)], [of(0.1), of(0.3)]]
    metrics = ["f1", "f1"]
    assert mean_ranks(methods, metrics, ["one", "other"]) == [(1.5 + 1) / 2, (1.5 + 3) / 2, (3 + 2) / 2]
    again = [[first, second, second, second] for first, second in methods]
    ranks = mean_ranks(again, metrics * 2, ["one", "other", "other", "other"])  # one test set counts once
    assert ranks == pytest.approx(mean_ranks(methods, metrics, ["one", "other"]))
    assert mean_ranks([], [], []) == []
