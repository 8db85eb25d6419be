"""What the report shows beside scores: counts of wins, importance, masked texts; and all p-values."""

from __future__ import annotations

import re

import pytest

from acclimate.report import markdown, render
from acclimate.report.html import FIGURES
from acclimate.report.masked_text import masked_samples
from acclimate.report.tables import tables
from acclimate.report.training_figures import (
    agreement,
    agreement_numbers,
    heat_map,
    heat_numbers,
    layer_numbers,
    layers,
    panels,
)
from tests.report.full import EVIL, crowded, everything, importance
from tests.report.test_report import read, results  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def full(results):  # noqa: F811
    return everything(results)


def named(found, title):
    return next(table for table in tables(found) if table.title == title)


def test_wins_and_losses_are_counted(results):  # noqa: F811
    table = named(results, "Wins, ties and losses over tasks")
    rows = {row[0].text: [entry.text for entry in row] for row in table.rows}
    assert table.columns[:5] == ["method", "tasks", "helped", "no difference shown", "hurt"]
    assert rows["mlm"][1:7] == ["2", "2", "0", "0", "2", "0"]
    scores = [row for row in results["scores"] if row["method"] == "mlm"]
    mean = sum(100 * row["difference"]["macro_f1"]["difference"] for row in scores) / 2
    assert rows["mlm"][7] == f"{mean:+.1f}"
    assert "## Wins, ties and losses over tasks" in markdown(results)


def test_one_task_needs_no_count(results):  # noqa: F811
    one = {**results, "tally": [{**row, "tasks": 1} for row in results["tally"]]}
    assert "Wins, ties and losses over tasks" not in [table.title for table in tables(one)]
    older = {name: value for name, value in results.items() if name not in ("tally", "masked")}
    read(render(older))


def test_every_p_value_is_in_the_table(results):  # noqa: F811
    table = named(results, "Scores on end tasks")
    row = next(row for row in table.rows if "mlm" in [entry.text for entry in row])
    shown = dict(zip(table.columns, row, strict=True))
    entry = next(row for row in results["scores"] if row["method"] == "mlm")["difference"]["macro_f1"]
    for column, name in (("p", "p"), ("p (Holm)", "p_holm"), ("p (t-test)", "p_t"), ("p (these models)", "p_models")):
        assert shown[column].value == entry[name]
    order = [table.columns.index(name) for name in ("difference", "95 % interval", "p")]
    assert order == sorted(order)  # the effect and its interval first


def test_equal_importances_share_a_panel(full):
    runs = [run for run in full["adaptations"] if run.get("importance")]
    assert len(runs) == 2  # of two domains
    shown = panels(full)
    assert len(shown) == 4 and {one["sorted"] for one in shown} == {False, True}
    other = {**runs[0], "method": "dga-2"}
    again = panels({**full, "adaptations": [runs[0], other]})
    assert [one["methods"] for one in again] == [[runs[0]["method"], "dga-2"]] * 2


def test_the_heat_map_has_a_cell_for_each_head(full):
    one = {**full, "adaptations": full["adaptations"][:]}
    one["adaptations"] = [next(run for run in full["adaptations"] if run.get("importance"))]
    drawn = heat_map(one)
    cells = drawn.count("var(--warm)") + drawn.count("var(--cool)") - 2  # two of the legend
    values = [value for part in importance()["parts"].values() for row in part["protection"] for value in row]
    assert cells == sum(value > 0 for value in values)  # what is not protected at all has no colour
    assert ">.40<" in drawn and "attention heads" in drawn
    table = heat_numbers(one)
    assert len(table.rows) == 6 and len(table.columns) == 14
    assert [entry.value for entry in table.rows[2][2:]] == importance()["parts"]["H"]["protection"][2]


def test_without_importance_there_is_no_heat_map(results):  # noqa: F811
    assert heat_map(results) == "" and heat_numbers(results) is None
    assert ">Importance<" not in render(results)


def test_how_far_each_layer_moved_is_drawn_and_told(full):
    drawn, table = layers(full), layer_numbers(full)
    lines = [
        points for points in drawn.split('id="movement-line2d_') if "clip-path" in points and points.count("L ") >= 6
    ]
    assert len(lines) >= len(full["moved"]) and drawn.count(">CKA with before<") == 2  # a panel for each domain
    assert len(table.rows) == 7 * len(full["moved"]) and table.columns[3] == "CKA"
    assert [row[3].value for row in table.rows[:7]] == [layer["cka"] for layer in full["moved"][0]["layers"]]
    assert [row[2].value for row in table.rows[:7]] == list(range(7))
    first = full["moved"][0]["layers"][3]
    assert [entry.value for entry in table.rows[3][4:]] == [first["distance"], 100 * first["share"], first["cosine"]]


def test_next_to_no_movement_does_not_look_like_much(full):
    def heights(change):
        still = [{"cka": 1.0 - change * number, "distance": 0.0, "share": 0.0, "cosine": 1.0} for number in range(3)]
        return layers({**full, "moved": [{**full["moved"][0], "layers": still}]})

    assert ">0.95<" in heights(1e-6) or ">0.96<" in heights(1e-6)
    assert ">0.4<" in heights(0.35)


def test_without_movement_there_is_no_figure_of_it(results):  # noqa: F811
    older = {name: value for name, value in results.items() if name != "moved"}
    assert layers(results) == "" and layers(older) == "" and layer_numbers(older).rows == []
    assert "How far each layer moved" not in render(older)


def test_masked_texts_are_shown_with_what_is_important(full):
    shown = masked_samples(full)
    assert [kind for kind, _ in shown["legend"]] == ["mask", "random", "kept", "important"]
    (_, random), (_, selective) = shown["texts"][0]["maskings"]
    assert '<mark class="mask" title="hidden' in random and "important" not in random
    assert selective.count('class="mask important"') == 3 and selective.count('class="important"') == 1
    text = render(full)
    assert EVIL not in text and "&lt;script&gt;window.evil" in text
    read(text)


def test_a_study_may_keep_its_text_to_itself(full):
    assert masked_samples({**full, "masked": []}) is None
    assert "What is masked" not in render({**full, "masked": []})


def test_every_figure_can_be_focused_and_says_what_it_shows(full):
    text = render(full)
    for figure in FIGURES:
        assert f'<figure tabindex="0" aria-labelledby="figure-{figure.name}">' in text
        assert f'id="figure-{figure.name}">{figure.title}</h2>' in text
    assert text.count("<figcaption") == len(FIGURES)


def test_how_students_come_to_agree_is_drawn_and_told(full):
    drawn, table = agreement(full), agreement_numbers(full)
    rows = full["distillations"]
    assert len(rows) == 4 and drawn.count(">epoch<") == 2 and drawn.count(">units that differ, %<") == 1
    for row in rows:
        assert f">{row['domain']} · {row['task']}<" in drawn and f">{row['method']}<" in drawn
    # after each epoch with the teacher a filled marker, after that of refinement a hollow one
    assert drawn.count("fill: var(--card)") == len(rows)
    path = max(re.findall(r'd="(M [^"]*)"\s+clip-path', drawn), key=lambda d: d.count("L "))
    heights = [float(point.split()[1]) for point in re.split(r"[ML] ", path)[1:]]
    shares = [100 * count / 64 for count in rows[0]["disagreement"]]
    slopes = [(y - heights[0]) / (share - shares[0]) for y, share in zip(heights[1:], shares[1:], strict=True)]
    assert slopes == pytest.approx([slopes[0]] * 3, rel=1e-3) and slopes[0] < 0
    assert [row[4].value for row in table.rows[:4]] == rows[0]["disagreement"]
    assert [row[6].value for row in table.rows[:4]] == shares
    assert [row[3].text for row in table.rows[:4]] == ["before", "distillation", "distillation", "refinement"]


def test_without_distillation_there_is_no_figure_of_it(results):  # noqa: F811
    older = {name: value for name, value in results.items() if name != "distillations"}
    assert agreement(results) == "" and agreement(older) == "" and agreement_numbers(older).rows == []
    assert "Agreement with the teacher" not in render(older)


def test_methods_have_room_and_colours_of_their_own(results, recwarn):  # noqa: F811
    page = render(crowded(results, 20))
    assert [str(warning.message) for warning in recwarn] == []  # matplotlib warns where nothing is left for axes
    for number in range(20):
        assert f"--c{number}:" in page and f"var(--c{number})" in page
    heights = [
        [float(box.split()[3]) for box in re.findall(r'<svg viewBox="([^"]*)"', drawn)]
        for drawn in (render(everything(results)), page)
    ]
    assert len(heights[0]) == len(heights[1])
    assert max(many - few for few, many in zip(*heights, strict=True)) > 200
