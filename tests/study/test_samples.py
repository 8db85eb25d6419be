"""Wins over tasks, masked texts and importance in the results of a study."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from acclimate.results.scores import NOT_LEARNED, WITHHELD, ScoreRow
from acclimate.study.compare import compare
from acclimate.study.job import JobResult, Place
from acclimate.study.jobs.adapt import masked_samples, read_importance
from acclimate.study.summary import count_verdicts
from tests.cases import each
from tests.report.full import importance
from tests.study.fakes import World, study

pytestmark = pytest.mark.usefixtures("no_report")


def row(method, verdict, difference, p_holm, model="m"):
    ends = {"helped": (0.01, 1), "hurt": (-1, -0.01)}.get(verdict, (-1, 1))
    entry = {"verdict": verdict, "difference": difference, "p_holm": p_holm, "low": ends[0], "high": ends[1], "p": 0}
    entry |= {"before": 0, "after": 0, "p_models": 0}
    values = {"model": model, "domain": "d", "task": "t", "method": method, "metric": "macro_f1"}
    return ScoreRow.from_dict({**values, "difference": {"seeds": [0], "macro_f1": entry}})


def test_verdicts_are_counted_for_each_model_and_method():
    rows = [
        row("a", "helped", 0.10, 0.01),
        row("a", "helped", 0.05, 0.20),
        row("a", "no difference shown", 0.01, 1.0),
        row("a", "hurt", -0.04, 0.04),
        row("b", "no difference shown", 0.0, 1.0),
        row("b", WITHHELD, 0.2, None),
        row("b", NOT_LEARNED, 0.0, None),
        row("a", "helped", 0.2, 0.001, model="n"),
        ScoreRow(model="m", domain="d", task="t", method="none", metric="macro_f1"),
    ]
    first, second, third = count_verdicts(rows)
    assert (first.tasks, first.above, first.below) == (4, 2, 1)
    assert (first.helped, first.hurt) == (1, 1)
    assert (second.method, second.tasks, second.above, second.unanswered) == ("b", 3, 0, 2)
    assert (third.model, third.above) == ("n", 1)


class Masks(World):
    """A backend whose adaptations return masked texts and, for dga, write importances."""

    def adapt(self, model, corpus, method="mlm", out=None, **options):
        result = super().adapt(model, corpus, method, out, **options)
        replacement = "mask" if result.method == "mlm" else "unchanged"
        pieces = [{"text": "cs", "space": False, "replacement": replacement, "replaced_by": ""}]
        other = [{"text": "more", "space": False, "replacement": "", "replaced_by": ""}]
        result.masked = {"masking": "random", "texts": [pieces, other]}
        if result.method == "dga":
            (result.out / "importance.json").write_text(json.dumps(importance()))
        return result


@pytest.mark.needs("dga")
def test_masked_texts_and_importances_reach_the_results(folder, tmp_path):
    methods = ["none", "mlm", "dga", {"name": "dga", "label": "dga 2", "contrast_weight": 0}]
    values = study(folder, methods=methods, evaluate={"documents": 20, "masked_texts": 3})
    found = compare(values, tmp_path / "out", progress=False, backend=Masks().backend())
    first, second = found["masked"]
    assert {label: pieces[0]["replacement"] for label, pieces in first["maskings"].items()} == {
        "mlm: random": "mask",
        "dga, dga 2: random": "unchanged",
    }
    assert list(second["maskings"]) == ["mlm, dga, dga 2: random"] and first["domain"] == "cs"
    assert [run["importance"] is not None for run in found["adaptations"]] == [False, True, True]
    assert json.loads((tmp_path / "out" / "results.json").read_text())["masked"] == found["masked"]
    quiet = {**values, "evaluate": {"documents": 20, "masked_texts": 0}}
    hidden = compare(quiet, tmp_path / "out", progress=False, backend=Masks().backend())
    assert hidden["masked"] == [] and hidden["jobs"]["done"] == 0


@each("content", [None, "{", "[]", '{"parts": 3}'])
def test_files_that_hold_no_importance(tmp_path, content):
    if content is not None:
        (tmp_path / "importance.json").write_text(content)
    assert read_importance(tmp_path) is None


def test_methods_of_a_task_are_beside_those_of_the_domain_on_the_same_text():
    def found(method, word, name, replacement, task=None):
        place = Place(domain="cs", method=method, adapted_for=task)
        pieces = [{"text": word, "space": False, "replacement": replacement, "replaced_by": ""}]
        return JobResult(SimpleNamespace(place=place), SimpleNamespace(masked={"masking": name, "texts": [pieces]}))

    entries = [
        found("mlm", "w", "random", "mask"),
        found("selective", "w", "selective", "", "t1"),
        found("selective", "w", "selective", "unchanged", "t2"),
        found("tapt", "v", "random", "", "t1"),
    ]
    first, second = masked_samples(entries, 3)
    assert list(first.maskings) == ["mlm: random", "selective, t1: selective", "selective, t2: selective"]
    assert list(second.maskings) == ["tapt, t1: random"]
    alone, _ = masked_samples([entries[0], entries[1], entries[3]], 3)
    assert list(alone.maskings) == ["mlm: random", "selective"]
