"""The report renders whatever a study can leave behind, escapes all of it, and needs nothing else."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import pytest

from acclimate.report import answer, render, results_table, write_report
from acclimate.report.forest import forest
from acclimate.report.reliability import reliability
from acclimate.report.table import tables
from acclimate.report.words import p_text, plain, signed
from acclimate.study import compare
from tests.study.fakes import World, files, study

EVIL = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    data = files(folder / "data")
    domains = [
        {"name": "cs", "corpus": str(data / "cs.txt"), "tasks": [str(data / "intent")]},
        {"name": "food", "corpus": str(data / "food.txt"), "tasks": [str(data / "aspect")]},
    ]
    world = World(items=600, gain=0.25)
    return compare(study(data, domains=domains, seeds=5), folder / "out", progress=False, backend=world.backend())


def small(tmp_path, **changes):
    values = study(files(tmp_path / "data"), **changes)
    values = {key: value for key, value in values.items() if value is not None}
    return compare(values, tmp_path / "out", progress=False, backend=World().backend())


class Page(HTMLParser):
    """Collects ids and addresses, and checks that tags close."""

    def __init__(self):
        super().__init__()
        self.ids, self.addresses, self.open, self.scripts = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in ("meta", "br"):
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(text) -> Page:
    page = Page()
    page.feed(text)
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith("#") for address in page.addresses)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    return page


def test_the_page_is_whole_and_needs_nothing_else(results):
    text = render(results)
    page = read(text)
    assert page.scripts == 1
    assert text.count("<svg") == 4
    assert "prefers-color-scheme: dark" in text and "currentColor" in text
    assert "#00000" not in text  # every stand-in for a colour was replaced
    assert "Settings of the study" in text and "torch" in text


def test_the_answer_in_words(results):
    said = answer(results)
    assert said["headline"].startswith("mlm helped on 2 of 2 tasks")
    assert "On general text the masked-LM loss changed by +0." in said["headline"]
    lines = {(place["name"], line["method"]): line for place in said["places"] for line in place["lines"]}
    assert lines["cs · intent", "mlm"]["verdict"] == "win"
    assert "95 % interval" in lines["cs · intent", "mlm"]["text"]
    assert any("comparisons were made" in caveat for caveat in said["caveats"])
    assert len(said["details"]) == 4


def test_two_precisions_in_one_comparison_are_told(results):
    def told(**precisions):
        rows = [{**row, "precisions": precisions.get(row["method"], ["fp32"])} for row in results["scores"]]
        return [text for text in answer({**results, "scores": rows})["caveats"] if "precision" in text]

    assert {tuple(row["precisions"]) for row in results["scores"]} == {()}  # cells from before they were kept
    assert not told() and not told(mlm=[])
    (said,) = told(mlm=["bf16"])
    assert "precision: cs · intent (fp32: none and dga, no contrast; bf16: mlm), " in said
    assert " · aspect (fp32" in said
    (said,) = told(mlm=["bf16", "fp32"])
    assert "(fp32: none and dga, no contrast; bf16 and fp32: mlm)" in said
    (said,) = told(**{row["method"]: ["bf16", "fp32"] for row in results["scores"]})  # all alike, seed by seed
    assert "(bf16 and fp32: " in said


def test_models_that_have_one_answer_are_named(results):
    assert {row["one_answer"] for row in results["scores"]} == {0}
    assert not any("one and the same answer" in caveat for caveat in answer(results)["caveats"])
    counts = {("intent", "none"): 5, ("intent", "mlm"): 2}
    scores = [{**row, "one_answer": counts.get((row["task"], row["method"]), 0)} for row in results["scores"]]
    (said,) = [text for text in answer({**results, "scores": scores})["caveats"] if "one and the same" in text]
    assert "answer: cs · intent (none and mlm in 2 of 5 seeds)." in said
    kept = {
        "model": scores[0]["model"],
        "domain": "food",
        "task": "intent",
        "method": "mlm",
        "seeds": [0],
        "one_answer": 1,
    }
    (said,) = [text for text in answer({**results, "kept": [kept]})["caveats"] if "one and the same" in text]
    assert "answer: food · intent (mlm)." in said  # the same name in another domain is another task
    older = [{key: value for key, value in row.items() if key != "one_answer"} for row in results["scores"]]
    assert answer({**results, "scores": older})["caveats"] == answer(results)["caveats"]


def test_everything_from_outside_is_escaped(results, tmp_path):
    evil = {
        **results,
        "title": EVIL,
        "notes": [EVIL],
        "samples": [{"text": EVIL, "label": EVIL}],
        "models": [EVIL],
        "failures": [{"cell": EVIL, "error": EVIL, "state": "failed"}],
        "config": {"name": EVIL},
        "environment": {EVIL: EVIL},
        "baseline": EVIL,
    }
    for name in ("scores", "losses", "adaptations"):
        evil[name] = [
            {**row, "domain": EVIL, "method": f"{EVIL} $x_1$", **({"task": EVIL} if "task" in row else {})}
            for row in results[name]
        ]
    evil["domains"] = [EVIL]
    evil["methods"] = [{"label": f"{EVIL} $x_1$", "name": "dga", "parameters": {EVIL: EVIL}}]
    text = write_report(evil, tmp_path / "r.html").read_text()
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert read(text).scripts == 1


def test_what_corrections_and_intervals_take_away_is_in_the_headline(results):
    def doubtful(row, p):
        entry = {**row["difference"]["macro_f1"], "p_holm": p}
        return {**row, "difference": {**row["difference"], "macro_f1": entry}}

    rows = [row for row in results["scores"] if row["method"] == "mlm"]
    found = {**results, "scores": [doubtful(rows[0], 0.2), rows[1]]}
    assert "mlm helped on 2 of 2 tasks (1 once corrected for all comparisons) (mean" in answer(found)["headline"]
    assert "corrected for" not in answer({**results, "scores": rows})["headline"]
    general = [row for row in results["losses"] if row["text"] == "general" and row["method"] == "mlm"]
    one = {**results, "domains": ["cs"], "scores": [doubtful(rows[0], 0.2)], "losses": general[:1]}
    said = answer(one)["headline"]
    assert "mlm helped, but not once corrected for all comparisons (+" in said
    entry = general[0]["difference"]
    assert f"%; {signed(entry['low'], 3)} to {signed(entry['high'], 3)}) with mlm" in said


def test_of_many_methods_the_headline_counts_and_names_the_best_and_the_worst(results):
    def as_method(row, number):
        """Let a row be that of a further method, the worse the higher its number, and lost from the tenth on."""
        entry = row["difference"]["macro_f1"]
        entry = {**entry, "difference": entry["difference"] - number / 100, "verdict": "loss" if number > 9 else "win"}
        entry["p_holm"] = 0.2 if number in (2, 3, 4) else 0.001
        return {**row, "method": f"m{number}", "difference": {**row["difference"], "macro_f1": entry}}

    def as_text(row, number):
        entry = {**row["difference"], "difference": row["difference"]["difference"] + number}
        return {**row, "method": f"m{number}", "difference": entry}

    numbers = range(1, 13)
    own = [row for row in results["scores"] if row["method"] == "mlm"]
    general = [row for row in results["losses"] if row["text"] == "general" and row["method"] == "mlm"]
    many = {
        **results,
        "methods": [{"label": f"m{number}"} for number in numbers],
        "scores": [as_method(row, number) for row in own for number in numbers],
        "losses": [as_text(row, number) for row in general for number in numbers],
        "kept": [as_method(row, number) for row in own for number in numbers],
    }
    said = answer(many)["headline"]
    counts = "18 helped (12 once corrected for all comparisons) and 6 hurt"
    assert said.startswith(f"Over all, of 24 comparisons of 12 methods {counts}. On average best: m1 helped on 2 of 2")
    assert "; worst: m12 hurt on 2 of 2 tasks (mean " in said
    assert re.search(
        r"masked-LM loss changed by \S+ nats \([^)]+ %\) with m1 to \S+ nats \([^)]+ %\) with m12\.", said
    )
    assert "On tasks of other domains, at worst and at best m12 lost on 2 of 2 (mean " in said
    assert not any(f"m{number} " in said for number in range(2, 12))
    one = {**many, "domains": ["cs"], "scores": [row for row in many["scores"] if row["domain"] == "cs"]}
    said = answer(one)["headline"]
    assert re.match(
        r"On [^,]+, of 12 methods 9 helped \(6 once .+\) and 3 hurt\. On average best: m1 helped \(\+", said
    )


def test_one_seed_is_said_to_be_too_few(tmp_path):
    found = small(tmp_path, seeds=1)
    read(render(found))
    assert any("Only one seed" in caveat for caveat in answer(found)["caveats"])


def test_the_calibration_of_each_task_is_shown(results):
    row = results["scores"][0]
    assert sum(entry["count"] for entry in row["reliability"]) == 5 * 600
    drawn = reliability(results)
    assert "cs · intent" in drawn and "food · aspect" in drawn and "confidence, %" in drawn
    assert drawn.count('id="reliability-PathCollection') == 2 * 3
    scores = next(table for table in tables(results) if table.title == "Scores on end tasks")
    assert f"{100 * row['ece']['mean']:.1f} ± " in scores.rows[0][scores.columns.index("ECE")].text


def test_results_without_calibration_are_shown_without_it(results):
    older = [
        {key: value for key, value in row.items() if key not in ("ece", "reliability")} for row in results["scores"]
    ]
    found = {**results, "scores": older}
    assert reliability(found) == ""
    assert not any("ECE" in table.columns for table in tables(found))
    read(render(found))


def test_tasks_of_several_kinds_stand_in_one_table(results):
    first, *others = results["scores"]
    score = {"mean": 0.5, "sd": 0.01, "values": [0.5]}
    other = {"metric": "document_f1", "metrics": ["micro_f1", "document_f1"], "document_f1": score}
    other["difference"] = {"document_f1": others[0]["difference"]["macro_f1"], "seeds": [0, 1]}
    found = {**results, "scores": [first, {**others[0], **other}]}
    table = next(table for table in tables(found) if table.title == "Scores on end tasks")
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["document F1"].text == "50.0 ± 1.0" and row["difference"].text.endswith(" (document F1)")
    assert "document F1" in answer(found)["headline"] + str(answer(found)["places"])
    assert "score" in [column.header for column in results_table(found)[0].columns]
    read(render(found))


def test_without_general_text(tmp_path):
    found = small(tmp_path, general=None)
    text = render(found)
    read(text)
    assert "Gain against forgetting" not in text
    assert "What was forgotten of general text was not measured." in answer(found)["headline"]


def test_without_tasks(tmp_path):
    data = files(tmp_path / "more")
    found = small(tmp_path, domains=[{"name": "cs", "corpus": str(data / "cs.txt")}])
    text = render(found)
    read(text)
    assert "fall of the loss on domain text" in text
    assert answer(found)["headline"].startswith("On held-out text of the domain the masked-LM loss changed by −0.")


def test_with_one_method_there_is_nothing_to_compare(tmp_path):
    found = small(tmp_path, methods=["none"], general=None)
    read(render(found))
    assert "nothing to compare" in answer(found)["headline"]


def test_where_the_baseline_failed_the_words_say_so(tmp_path):
    """All seeds of the model as it came, its loss on general text, or all seeds but the first."""
    values = study(files(tmp_path / "data"))
    world = World()
    found = compare(values, tmp_path / "out", progress=False, backend=world.backend())
    base = [row for row in found["scores"] if row["method"] == "none"]
    line = answer(found)["places"][0]["lines"][0]["text"]
    assert f"macro-F1 {plain(100 * base[0]['macro_f1']['mean'])} → " in line
    cells = tmp_path / "out" / "cells"

    def lose(lost):
        for path in cells.glob("*.json"):
            if lost(json.loads(path.read_text())["description"]):
                path.unlink()
        return compare(values, tmp_path / "out", progress=False, backend=world.backend(), report_only=True)

    some = lose(lambda cell: "none" in cell and not cell.endswith("0"))
    (kept,) = [row for row in some["scores"] if row["method"] == "none"]
    assert kept["seeds"] == [0]
    (text,) = [line["text"] for line in answer(some)["places"][0]["lines"] if line["method"] == "mlm"]
    assert f"macro-F1 {plain(100 * kept['macro_f1']['mean'])} → " in text
    told = answer(lose(lambda cell: "none" in cell or cell == "loss · model · cs · general"))["headline"]
    assert "the baseline, none, has no scores for it" in told
    assert "What was forgotten of general text cannot be said" in told


def test_an_adaptation_that_is_not_there_is_not_told(results):
    assert any("adapted once" in text for text in answer(results)["caveats"])
    assert not any("adapted once" in text for text in answer({**results, "shared_adaptation": False})["caveats"])


def test_without_any_result(results):
    empty = {**results, "scores": [], "losses": [], "adaptations": []}
    read(render(empty))
    assert answer(empty)["headline"] == "No cell of this study has a result."
    assert results_table(empty) == []


def test_tables_of_the_terminal_fit_80_columns(results):
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    for table in results_table(results):
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    assert re.search(r"mlm +\d\d\.\d ± \d\.\d .*\[\+\d+\.\d, \+\d+\.\d\] +win", text)


def test_brackets_in_a_name_are_no_markup_in_the_terminal(results):
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    rows = [{**row, "method": "mlm [/bold]"} for row in results["scores"]]
    for table in results_table({**results, "baseline": "none [/x]", "scores": rows}):
        console.print(table)
    text = console.export_text()
    assert "none [/x]" in text and "mlm [/bold]" in text


def test_numbers():
    assert signed(-1.25) == "−1.2" and signed(0.04) == "0.0" and signed(-0.04) == "0.0" and signed(2) == "+2.0"
    assert plain(-0.5) == "−0.5" and plain(-0.01) == plain(0.0) == "0.0" and plain(0.0, 0) == plain(-0.2, 0) == "0"
    assert p_text(0.0004) == "p < 0.001" and p_text(0.04321) == "p = 0.043" and p_text(0.5) == "p = 0.50"


def test_text_in_a_figure_is_as_it_is(results):
    name = '#000001 font: 9px id="a"'
    rows = [{**row, "method": name} if row["method"] == "mlm" else row for row in results["scores"]]
    methods = [{**method, "label": name} if method["label"] == "mlm" else method for method in results["methods"]]
    drawn = forest({**results, "scores": rows, "methods": methods})
    assert f">{name}</text>" in drawn and drawn.count("#00000") == drawn.count(f">{name}</text>")
