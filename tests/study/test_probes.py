"""Studies that also probe every model: which draws each model gets, rows, intervals, and the report."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.cards.results import result_sections
from acclimate.models.kinds import MASKED
from acclimate.results.study import ProbeResult, ProbeScore, StudyResults
from acclimate.study.backend import Backend
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from acclimate.study.summary import limit_notes
from tests.study.fakes import World, graph_of, of_kind, read, study, write_task
from tests.tiny import save_tiny

LEVELS = [2, "all"]


@pytest.fixture
def probed(folder):
    """A study of three adaptations whose task is also probed."""
    return study(folder, methods=["none", "mlm"], adapt_seeds=3, seeds=3, probe={"labels_per_class": LEVELS})


class Prober:
    """A fake probe: models that were adapted answer more test items correctly, by a little in each draw."""

    def __init__(self, items: int = 150):
        self.calls, self.items = [], items

    def __call__(self, model, task, *, draws, labels_per_class, states, **settings):
        self.calls.append((str(model), draws, settings))
        gold = np.random.default_rng(1).integers(3, size=self.items)
        better = 0.0 if str(model).endswith("model") else 0.25
        scores = []
        for probe in ("linear", "neighbors"):
            for labels in (2, None):
                for draw in draws if labels else draws[:1]:
                    rng = np.random.default_rng([draw, len(probe)])
                    right = rng.random(self.items) < 0.5 + better + 0.1 * (labels is None)
                    predicted = np.where(right, gold, (gold + 1) % 3)
                    metrics = {name: task.scoring().score(gold, predicted, name) for name in task.scoring().metrics}
                    scores.append(
                        ProbeScore(probe=probe, labels=labels, draw=draw if labels else 0, train_size=6,
                                   metrics=metrics, predicted=predicted.tolist())
                    )  # fmt: skip
        return ProbeResult(
            task=task.name, gold=gold.tolist(), labels=["a", "b", "c"], kind="single_label", unit="labels per class",
            scoring=task.scoring().details(), scores=scores, short={"2": {"c": 1}},
        )  # fmt: skip


def test_every_model_gets_the_same_draws_each_from_one_adaptation(probed):
    jobs = of_kind(graph_of(probed), "probe")
    base = [job for job in jobs if job.place.method == "none"]
    adapted = sorted((job for job in jobs if job.place.method == "mlm"), key=lambda job: job.place.adapt_seed)
    assert [job.draws for job in base] == [tuple(range(8))]
    assert [job.draws for job in adapted] == [(0, 3, 6), (1, 4, 7), (2, 5)]
    assert {job.settings["max_length"] for job in jobs} == {128} and "draws" not in jobs[0].settings
    more = of_kind(graph_of({**probed, "probe": {"draws": 2}}), "probe")
    assert sorted(job.draws for job in more) == [(0,), (0, 1, 2), (1,), (2,)]  # each adaptation has one
    assert not of_kind(graph_of({**probed, "probe": False}), "probe")
    assert len(of_kind(graph_of({**probed, "probe": True}), "probe")) == 4


def test_rows_have_paired_differences_and_are_shown(probed, tmp_path):
    prober = Prober()
    results = compare(probed, tmp_path / "out", progress=False, backend=World().backend(probe=prober))
    assert len(prober.calls) == 5  # the base model has a floor, too
    rows = {(row.probe, row.labels_per_class, row.method): row for row in results.rows["probe"]}
    assert len(rows) == 8
    base, ours = rows["linear", 2, "none"], rows["linear", 2, "mlm"]
    assert base.seeds == ours.seeds == list(range(8)) and base.difference is None
    entry = ours.comparison
    assert entry.difference == pytest.approx(
        np.mean(ours.summaries["macro_f1"].by_seed) - base.summaries["macro_f1"].mean
    )
    assert entry.low > 0 and entry.verdict == "helped" and entry.p_holm >= entry.p
    assert ours.interval.low < ours.interval.difference == pytest.approx(ours.summaries["macro_f1"].mean)
    assert ours.short == {"c": 1} and list(ours.difference.metrics) == ["macro_f1"]
    whole = rows["linear", None, "mlm"]
    assert whole.seeds == [0, 1, 2] and rows["linear", None, "none"].seeds == [0]
    assert whole.difference.seeds == [0, 1, 2] and whole.comparison.verdict == "helped"
    ((_, text),) = [part for part in result_sections(results, MASKED) if part[0] == "Learning from frozen states"]
    line = next(line for line in text.splitlines() if line.startswith("| intent | linear | all | +"))
    assert f"| macro-F1 | {100 * whole.summaries['macro_f1'].mean:.1f} |" in line
    assert "| helped |" in text and "| labels per class |" in text
    again = StudyResults.load(tmp_path / "out" / "results.json")
    assert again.rows["probe"] == results.rows["probe"]


def test_a_changed_section_computes_only_the_probes(probed, tmp_path, no_report):
    """Here with one adaptation, which gives no verdict."""
    probed |= {"adapt_seeds": [0], "seeds": 1}
    results = compare(probed, tmp_path, progress=False, backend=World().backend(probe=Prober()))
    assert {row.comparison.verdict for row in results.rows["probe"] if row.comparison} == {"no verdict"}
    world = World()
    probed["probe"]["neighbors"] = 3
    compare(probed, tmp_path, progress=False, backend=world.backend(probe=Prober()))
    assert not world.calls


@pytest.mark.needs("selective")
def test_few_labels_after_a_method_that_learned_all_have_a_note(probed):
    def notes(method, levels):
        return " ".join(limit_notes(read({**probed, "methods": [method], "probe": {"labels_per_class": levels}})))

    assert "'selective' learned all labels" in notes("selective", LEVELS)
    assert "learned" not in notes("selective", ["all"]) + notes("mlm", LEVELS)


@pytest.mark.parametrize(("section", "match"), [
    ({"labels_per_class": "8,some"}, r"probe\[0\].*must be integers"),
    ({"tasks": ["other"]}, "task under 'probe' 'other'"),
    ([{}, {}], "'probe' is a single section"),
    ({"label_per_class": 3}, "Did you mean 'labels_per_class'"),
])  # fmt: skip
def test_sections_that_are_refused(section, match, probed):
    with pytest.raises(UserError, match=match):
        graph_of({**probed, "probe": section})
    assert StudyConfig.of(probed).resolved()["probe"][0]["labels_per_class"] == LEVELS


def test_a_real_study(folder, tmp_path):
    save_tiny("bert", folder / "tiny")
    write_task(folder / "intent", "intent", test=[f"food {number} was good" for number in range(30)])
    config = study(folder, models=[str(folder / "tiny")], methods=["none"], adapt_seeds=1, seeds=1, probe={"draws": 2})
    del config["general"]
    config["probe"]["labels_per_class"] = [1, "all"]
    world = World()
    real = {"has_head": lambda *args: True, "probe": Backend().probe}
    results = compare(config, tmp_path, progress=False, backend=world.backend(**real))
    assert len(results.rows["probe"]) == 4 and {row.test_items for row in results.rows["probe"]} == {30}
    assert len(list((tmp_path / "states").iterdir())) == 1
