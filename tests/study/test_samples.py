"""What a study counts and keeps to show: wins over tasks, masked texts, importances."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from acclimate.study import compare
from acclimate.study.samples import masked_texts, read_importance
from acclimate.study.tally import tally
from tests.cases import each
from tests.report.full import importance
from tests.study.fakes import World, study


def row(method, verdict, difference, p_holm, model="m"):
    entry = {"verdict": verdict, "difference": difference, "p_holm": p_holm}
    return {"model": model, "method": method, "metric": "macro_f1", "difference": {"macro_f1": entry}}


def test_tally_counts_verdicts_for_each_model_and_method():
    rows = [
        row("a", "win", 0.10, 0.01),
        row("a", "win", 0.05, 0.20),
        row("a", "tie", 0.01, 1.0),
        row("a", "loss", -0.04, 0.04),
        row("b", "tie", 0.0, 1.0),
        row("a", "win", 0.2, 0.001, model="n"),
        {"model": "m", "method": "none", "metric": "macro_f1"},
    ]
    first, second, third = tally(rows)
    assert (first["tasks"], first["win"], first["tie"], first["loss"]) == (4, 2, 1, 1)
    assert (first["win_holm"], first["loss_holm"]) == (1, 1)
    assert first["mean"] == pytest.approx(0.03)
    assert (second["method"], second["tie"]) == ("b", 1) and (third["model"], third["win"]) == ("n", 1)


class Masks(World):
    """Adaptations that leave a masked text and, in part, importances."""

    def adapt(self, model, corpus, method="mlm", out=None, **options):
        result = super().adapt(model, corpus, method, out, **options)
        fate = "mask" if method == "mlm" else "kept"
        pieces = [{"text": "cs", "space": False, "fate": fate, "became": ""}]
        other = [{"text": "more", "space": False, "fate": "", "became": ""}]
        result.masked = {"masking": "random", "texts": [pieces, other]}
        if method == "dga":
            (result.out / "importance.json").write_text(json.dumps(importance()))
        return result


def test_masked_texts_and_importances_reach_the_results(folder, tmp_path):
    methods = ["none", "mlm", "dga", {"name": "dga", "label": "dga 2", "contrast_weight": 0}]
    values = study(folder, methods=methods)
    found = compare(values, tmp_path / "out", progress=False, parts=Masks().parts())
    first, second = found["masked"]
    assert {label: pieces[0]["fate"] for label, pieces in first["maskings"].items()} == {
        "mlm: random": "mask",
        "dga, dga 2: random": "kept",
    }
    assert list(second["maskings"]) == ["mlm, dga, dga 2: random"] and first["place"] == "cs"
    assert [run["importance"] is not None for run in found["adaptations"]] == [False, True, True]
    assert json.loads((tmp_path / "out" / "results.json").read_text())["masked"] == found["masked"]
    quiet = {**values, "evaluate": {"documents": 20, "masked_texts": 0}}
    hidden = compare(quiet, tmp_path / "out", progress=False, parts=Masks().parts())
    assert hidden["masked"] == [] and hidden["cells"]["done"] == 0


@each("content", [None, "{", "[]", '{"parts": 3}'])
def test_what_is_no_account_of_importance_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "importance.json").write_text(content)
    assert read_importance(tmp_path) is None


def test_methods_of_a_task_stand_beside_those_of_the_domain_on_the_same_text():
    def cell(key, method, task=None):
        return SimpleNamespace(key=key, kind="adapt", labels={"domain": "cs", "method": method, "task": task})

    def outcome(word, name, fate):
        piece = {"text": word, "space": False, "fate": fate, "became": ""}
        return SimpleNamespace(result={"masked": {"masking": name, "texts": [[piece]]}})

    cells = [cell("a", "mlm"), cell("b", "selective", "t1"), cell("c", "selective", "t2"), cell("d", "tapt", "t1")]
    found = [outcome("w", "random", "mask"), outcome("w", "selective", ""), outcome("w", "selective", "kept")]
    outcomes = dict(zip("abcd", [*found, outcome("v", "random", "")], strict=True))
    first, second = masked_texts(SimpleNamespace(entries=cells), outcomes, 3)
    assert list(first["maskings"]) == ["mlm: random", "selective, t1: selective", "selective, t2: selective"]
    assert list(second["maskings"]) == ["tapt, t1: random"]
    alone, _ = masked_texts(SimpleNamespace(entries=[cells[0], cells[1], cells[3]]), outcomes, 3)
    assert list(alone["maskings"]) == ["mlm: random", "selective"]
