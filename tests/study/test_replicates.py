"""Seeds that start from the same adaptation, on either side of a comparison, are not independent replicates."""

from dataclasses import dataclass

import numpy as np
import pytest

from acclimate.rows import Comparison
from acclimate.study.jobs.base import HEAD, Job, JobResult, Place
from acclimate.study.summary import TaskResult, compare_runs, replicate_groups
from tests.cases import each


@dataclass(frozen=True, kw_only=True, eq=False)
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
