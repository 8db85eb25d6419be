"""A task of a study at the prevalence in use: probabilities of the label are kept, and rankings compared."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.evaluation.review import RankedItems, measure_review
from acclimate.study.compare import compare
from tests.cases import each
from tests.study.fakes import World, graph_of, of_kind, study

REVIEW = {"positive": "b", "prevalence": 0.01, "budgets": [0.05]}
GOLD = np.arange(240) % 3


def finetune(model, task, *, seed=0, progress=True, **options):
    """Predict with probabilities; those of adapted models rank the texts of b better."""
    adapted = not str(model).endswith("model")
    rng = np.random.default_rng([seed, adapted])
    table = rng.random((len(GOLD), 3))
    table[np.arange(len(GOLD)), GOLD] += 0.2
    table[GOLD == 1, 1] += 2 * adapted
    predicted = table.argmax(1)
    score = float((predicted == GOLD).mean())
    return SimpleNamespace(
        task=task.name,
        seed=seed,
        metrics=dict.fromkeys(("accuracy", "macro_f1", "micro_f1"), score),
        gold=GOLD.tolist(),
        predicted=predicted.tolist(),
        probabilities=table.tolist(),
        labels=["a", "b", "c"],
        seconds=1.0,
        train_size=9,
        scoring=task.scoring().details(),
    )


def reviewed(folder, **review):
    task = {"path": str(folder / "intent"), "review": {**REVIEW, **review}}
    domain = {"name": "cs", "corpus": str(folder / "cs.txt"), "tasks": [task]}
    return study(folder, methods=["none", "lm"], domains=[domain], adapt_seeds=3, leakage="off")


def test_a_study_compares_at_the_prevalence_in_use(folder, tmp_path, no_report):
    world = World()
    world._kind = lambda model: "mlm"
    backend = world.backend(finetune=finetune)
    results = compare(reviewed(folder), tmp_path / "out", progress=False, backend=backend)
    (table,) = (table for table in results.tables if table.title == "At the prevalence in use")
    rows = {(row[3], row[4]): row[5:] for row in table.rows}
    assert list(rows)[:2] == [("none", "precision"), ("none", "recall")] and len(rows) == 2 * 5
    expected = []
    for seed in range(3):
        made = finetune("model", SimpleNamespace(name="", scoring=lambda: SimpleNamespace(details=dict)), seed=seed)
        scores, shown = np.array(made.probabilities)[:, 1], np.array(made.predicted) == 1
        expected.append(measure_review(RankedItems(scores, GOLD == 1, shown), 0.01, "found at 0.05"))
    assert rows["none", "found at 0.05"] == [pytest.approx(100 * np.mean(expected)), None, None, None, None]
    mean, difference, low, _, verdict = rows["lm", "found at 0.05"]
    assert difference == pytest.approx(mean - 100 * np.mean(expected)) and low > 0 and verdict == "helped"
    again = compare(reviewed(folder, budgets=[0.2]), tmp_path / "out", progress=False, backend=backend)
    assert not again.jobs.done, "another budget trains nothing"


def test_the_documents_of_items_are_the_units_of_the_comparison(folder, tmp_path, no_report):
    """Eight copies of each item in one document: the interval is that of single items, not narrower."""

    def copies(count, known):
        def run(model, task, **options):
            made = finetune(
                model, SimpleNamespace(name="intent", scoring=lambda: SimpleNamespace(details=dict)), **options
            )
            for name in ("gold", "predicted", "probabilities"):
                setattr(made, name, [value for value in getattr(made, name) for _ in range(count)])
            groups = [number for number in range(len(GOLD)) for _ in range(count)]
            made.scoring = {"groups": groups, "group_name": "document"} if known else {}
            return made

        return run

    ends = []
    for number, given in enumerate(((1, False), (8, True), (8, False))):
        world = World()
        world._kind = lambda model: "mlm"
        backend = world.backend(finetune=copies(*given))
        results = compare(reviewed(folder), tmp_path / str(number), progress=False, backend=backend)
        (table,) = (table for table in results.tables if table.title == "At the prevalence in use")
        ends.append({row[4]: row[7:9] for row in table.rows if row[3] == "lm"})
    for measure, (low, high) in ends[0].items():
        assert ends[1][measure] == pytest.approx([low, high]), measure
    assert any(one != pytest.approx(other) for one, other in zip(ends[1].values(), ends[2].values(), strict=True))


def test_the_label_that_is_kept_is_part_of_the_identity(folder):
    keys = [{job.key for job in of_kind(graph_of(values), "finetune")} for values in (reviewed(folder), study(folder))]
    jobs = of_kind(graph_of(study(folder)), "finetune")
    assert not keys[0] & keys[1] and all(job.identity["positive"] is None for job in jobs)


@each(
    ("review", "message"),
    [
        ({"positive": "d"}, "'review' of the task 'intent'.*label 'd'"),
        ({"prevalence": 5}, "prevalence"),
        ({"budgets": []}, "budgets"),
    ],
)
def test_mistakes_are_found_before_training(folder, review, message):
    with pytest.raises(UserError, match=message):
        graph_of(reviewed(folder, **review))
