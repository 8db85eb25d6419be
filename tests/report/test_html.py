"""The HTML page: it is well-formed, self-contained, escaped, and shows each figure."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from acclimate.labs.inspection.jobs import layer_drift, layer_drift_table
from acclimate.report import render, summarize, write_report
from acclimate.report.masked_text import masked_examples
from acclimate.report.page import all_figures
from acclimate.report.score_figures import forest_plot, reliability_diagram, tradeoff_plot
from acclimate.report.training_figures import (
    curve_values,
    importance_heat_map,
    importance_panels,
    importance_table,
    learning_curves,
    stability,
    stability_table,
)
from acclimate.results.adaptations import CurvePoint
from acclimate.results.scores import Comparisons
from acclimate.results.study import Failure, MethodRow
from acclimate.study.jobs.distill import teacher_agreement, teacher_agreement_table
from tests.report.full import EVIL, crowded, importance, monitored, parse, texts


def test_the_page_is_complete_and_self_contained(results):
    text = render(results)
    assert parse(text).scripts == 1
    assert text.count("<svg") == 4
    assert "prefers-color-scheme: dark" in text and "currentColor" in text
    assert "#00000" not in text  # every colour placeholder was replaced
    assert "Settings of the study" in text and "torch" in text
    assert "3 adaptation seeds · 5 fine-tuning seeds" in text


@pytest.mark.needs("dga")
def test_text_from_outside_is_escaped(results, tmp_path):
    method = f"{EVIL} $x_1$"

    def evil(rows):
        named = [replace(row, domain=EVIL, method=method) for row in rows]
        return [replace(row, task=EVIL) if row.task else row for row in named]

    found = replace(
        results,
        title=EVIL,
        notes=[EVIL],
        samples=[{"text": EVIL, "label": EVIL}],
        models=[EVIL],
        domains=[EVIL],
        failures=[Failure(job=EVIL, error=EVIL, state="failed")],
        config={"name": EVIL},
        environment={EVIL: EVIL},
        baseline=EVIL,
        scores=evil(results.scores),
        losses=evil(results.losses),
        adaptations=evil(results.adaptations),
        methods=[MethodRow(label=method, name="dga", parameters={EVIL: EVIL})],
    )
    text = write_report(found, tmp_path / "r.html").read_text()
    assert EVIL not in text and "&lt;script&gt;window.evil" in text
    assert parse(text).scripts == 1


def test_without_any_result(results):
    empty = replace(results, scores=[], losses=[], adaptations=[])
    parse(render(empty))
    assert summarize(empty).headline == "No job of this study has a result."


def test_text_in_a_figure_is_unchanged(results):
    name = '#000001 font: 9px id="a"'
    scores = [replace(row, method=name) if row.method == "mlm" else row for row in results.scores]
    methods = [replace(method, label=name) if method.label == "mlm" else method for method in results.methods]
    drawn = forest_plot(replace(results, scores=scores, methods=methods))
    assert f">{name}</text>" in drawn and drawn.count("#00000") == drawn.count(f">{name}</text>")


def test_every_figure_can_be_focused_and_has_a_caption(full_page, full):
    for figure in all_figures(full):
        assert f'<figure tabindex="0" aria-labelledby="figure-{figure.name}">' in full_page
        assert f'id="figure-{figure.name}">{figure.title}</h2>' in full_page
    assert full_page.count("<figcaption") == len(all_figures(full))


def kept_figures(monkeypatch):
    """A list to which each figure that is written is added."""
    drawn, save = [], Figure.savefig

    def keep(figure, *args, **more):
        drawn.append(figure)
        save(figure, *args, **more)

    monkeypatch.setattr(Figure, "savefig", keep)
    return drawn


def outside(figures):
    """Labels of axes that are longer than their axes (y), or that leave the figure or meet another label (x)."""
    found = []
    for figure in figures:
        figure.draw_without_rendering()
        shown = [axes for axes in figure.axes if axes.get_visible()]
        for axes in shown:
            label, box, own = axes.yaxis.label, axes.get_window_extent(), axes.xaxis.label.get_window_extent()
            found += [label.get_text()] if label.get_window_extent().height > 1.02 * box.height else []
            others = [other.xaxis.label for other in shown if other is not axes and other.get_xlabel()]
            meets = axes.get_xlabel() and any(own.overlaps(other.get_window_extent()) for other in others)
            found += [axes.get_xlabel()] if own.x0 < 0 or own.x1 > figure.bbox.width or meets else []
    return found


def test_labels_of_axes_are_inside_the_figure(results, monkeypatch):
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **more: [drawn.append(figure), save(figure, *args, **more)]
    )
    names = dict(zip(("cs", "food"), ("positive_micro_f1", "accuracy_of_the_whole_answer"), strict=True))
    mixed = [
        replace(
            row,
            metric=names[row.domain],
            summaries={names[row.domain]: row.summaries[row.metric]},
            difference=row.comparison and Comparisons(seeds=[0], metrics={names[row.domain]: row.comparison}),
        )
        for row in results.scores
    ]
    for draw in (forest_plot, tradeoff_plot):
        draw(replace(results, scores=mixed, baseline="a baseline with a long name " * 2))
    assert len(drawn) == 2 and outside(drawn) == []


@pytest.mark.slow
def test_labels_of_all_figures_are_inside(full, results, monkeypatch):
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **more: [drawn.append(figure), save(figure, *args, **more)]
    )
    for found in (full, crowded(results)):
        for figure in all_figures(found):
            figure.draw(found)
    assert len(drawn) > 12 and outside(drawn) == []


def test_figures_without_data_are_left_out(results):
    assert importance_heat_map(results) == layer_drift(results) == teacher_agreement(results) == ""
    assert importance_table(results) is None
    assert layer_drift_table(results).rows == teacher_agreement_table(results).rows == []
    text = render(results)
    assert not any(f">{title}<" in text for title in ("Importance", "Drift by layer", "Agreement with the teacher"))


def test_calibration_has_a_panel_per_task(results):
    assert sum(entry.count for entry in results.scores[0].reliability) == 5 * 300
    drawn = reliability_diagram(results)
    assert "cs · intent" in drawn and "food · aspect" in drawn and "confidence, %" in drawn
    assert drawn.count('id="reliability-PathCollection') == 2 * 3


def test_learning_curves_have_a_panel_per_term_and_dashed_held_out_losses(results):
    one = replace(results, adaptations=[run for run in results.adaptations if run.domain == "cs"])
    drawn = learning_curves(one)
    assert "held-out" not in drawn and drawn.count("stroke-dasharray") == 0
    assert 'id="curves-axes_2"' in drawn and 'id="curves-axes_3"' not in drawn  # the common term, and dga's contrast
    assert drawn.index("masked-LM loss, nats") < drawn.index(">contrast<")
    runs = [replace(run, heldout_curve=run.curve[::10]) for run in one.adaptations]
    drawn = learning_curves(replace(one, adaptations=runs))
    assert drawn.count("stroke-dasharray") >= 3  # mlm of both methods, and the contrast of dga
    assert 'id="curves-axes_2"' in drawn and 'id="curves-axes_3"' not in drawn
    first, *others = one.adaptations
    half = len(first.curve) // 2
    causal = [replace(point, terms={"clm": 3.0}) for point in first.curve[:half]]
    phases = learning_curves(replace(one, adaptations=[replace(first, curve=causal + first.curve[half:]), *others]))
    assert 'id="curves-axes_3"' in phases and 'id="curves-axes_4"' not in phases  # a term of some steps is shared too
    points = [CurvePoint(tokens=1000, loss=2.5, terms={"mlm": 2.0}), CurvePoint(tokens=2000, loss=1.5, terms={"x": 1})]
    assert curve_values(points, "mlm") == ([1.0], [2.0])
    assert curve_values(points, "loss") == ([1.0, 2.0], [2.5, 1.5])


def test_stability_shows_each_monitored_loss_as_a_change_from_the_base_model(results):
    assert stability(results) == "" and not stability_table(results).rows
    one = replace(results, adaptations=monitored([results.adaptations[0]]))
    drawn = stability(one)
    assert ">held-out text</text>" in drawn and ">general text</text>" in drawn and "change of the loss" in drawn
    first, second = texts(stability_table(one))
    assert (first["text"], first["largest rise"], first["step"], first["at the end"]) == (
        "held-out",
        "0.000",
        "–",
        "−1.600",
    )
    found = {name: second[name] for name in ("largest rise", "step", "half gone", "gone", "at the end")}
    assert found == {"largest rise": "0.750", "step": "3", "half gone": "6", "gone": "11", "at the end": "0.062"}


def test_equal_importance_shares_a_panel(full):
    runs = [run for run in full.adaptations if run.importance]
    assert len(runs) == 2  # of two domains
    shown = importance_panels(full)
    assert len(shown) == 4 and {panel.part["sorted"] for panel in shown} == {False, True}
    other = replace(runs[0], method="dga-2")
    later = replace(runs[1], seed=1)  # only the first adaptation of a method has panels
    again = importance_panels(replace(full, adaptations=[runs[0], other, later]))
    assert [panel.methods for panel in again] == [[runs[0].method, "dga-2"]] * 2


def test_the_heat_map_has_a_square_for_each_head(full):
    one = replace(full, adaptations=[next(run for run in full.adaptations if run.importance)])
    drawn = importance_heat_map(one)
    squares = drawn.count("var(--warm)") + drawn.count("var(--cool)") - 2  # two in the legend
    values = [value for part in importance()["parts"].values() for row in part["protection"] for value in row]
    assert squares == sum(value > 0 for value in values)  # unprotected units have no colour
    assert ">.40<" in drawn and "attention heads" in drawn
    table = importance_table(one)
    assert len(table.rows) == 6 and len(table.columns) == 14
    assert [entry.value for entry in table.rows[2][2:]] == importance()["parts"]["H"]["protection"][2]


def test_layer_drift(full):
    drawn, table = layer_drift(full), layer_drift_table(full)
    lines = [
        points for points in drawn.split('id="drift-line2d_') if "clip-path" in points and points.count("L ") >= 6
    ]
    assert (
        len(lines) >= len(full.rows["drift"]) and drawn.count(">CKA with base model<") == 2
    )  # a panel for each domain
    assert len(table.rows) == 7 * len(full.rows["drift"]) and table.columns[3] == "CKA"
    assert [row[3].value for row in table.rows[:7]] == [layer["cka"] for layer in full.rows["drift"][0].layers]
    assert [row[2].value for row in table.rows[:7]] == list(range(7))
    layer = full.rows["drift"][0].layers[3]
    assert [entry.value for entry in table.rows[3][4:]] == [layer["distance"], 100 * layer["share"], layer["cosine"]]


def test_small_drift_does_not_look_large(full):
    def drawn(change):
        layers = [{"cka": 1.0 - change * number, "distance": 0.0, "share": 0.0, "cosine": 1.0} for number in range(3)]
        return layer_drift(replace(full, rows={"drift": [replace(full.rows["drift"][0], layers=layers)]}))

    assert ">0.95<" in drawn(1e-6) or ">0.96<" in drawn(1e-6)
    assert ">0.4<" in drawn(0.35)


def test_agreement_with_the_teacher(full):
    drawn, table = teacher_agreement(full), teacher_agreement_table(full)
    rows = full.rows["distill"]
    assert len(rows) == 4 and drawn.count(">epoch<") == 2 and drawn.count(">disagreement, % of units<") == 1
    for row in rows:
        assert f">{row.domain} · {row.task}<" in drawn and f">{row.method}<" in drawn
    # filled markers during distillation, hollow ones during refinement
    assert drawn.count("fill: var(--card)") == len(rows)
    path = max(re.findall(r'd="(M [^"]*)"\s+clip-path', drawn), key=lambda d: d.count("L "))
    heights = [float(point.split()[1]) for point in re.split(r"[ML] ", path)[1:]]
    shares = [100 * count / 64 for count in rows[0].disagreement]
    slopes = [(y - heights[0]) / (share - shares[0]) for y, share in zip(heights[1:], shares[1:], strict=True)]
    assert slopes == pytest.approx([slopes[0]] * 3, rel=1e-3) and slopes[0] < 0
    assert [row[4].value for row in table.rows[:4]] == rows[0].disagreement
    assert [row[6].value for row in table.rows[:4]] == shares
    assert [row[3].text for row in table.rows[:4]] == ["before", "distillation", "distillation", "refinement"]


def test_masked_text_marks_what_is_important(full, full_page):
    shown = masked_examples(full)
    assert [kind for kind, _ in shown.legend] == ["mask", "random", "unchanged", "important"]
    (_, random), (_, selective) = shown.texts[0][1]
    assert '<mark class="mask" title="replaced by the mask' in random and "important" not in random
    assert selective.count('class="mask important"') == 3 and selective.count('class="important"') == 1
    assert EVIL not in full_page and "&lt;script&gt;window.evil" in full_page
    parse(full_page)


def test_a_study_can_leave_out_its_text(full, monkeypatch):
    monkeypatch.setattr("acclimate.report.page.FIGURES", ())  # they take seconds
    assert masked_examples(replace(full, masked=[])) is None
    assert "Masked text" not in render(replace(full, masked=[]))


@pytest.mark.slow
def test_many_methods_have_space_and_different_colours(results, full_page, recwarn):
    page = render(crowded(results, 20))
    assert [str(warning.message) for warning in recwarn] == []  # matplotlib warns if no space is left for axes
    for number in range(20):
        assert f"--c{number}:" in page and f"var(--c{number})" in page
    heights = [
        [float(box.split()[3]) for box in re.findall(r'<svg viewBox="([^"]*)"', drawn)] for drawn in (full_page, page)
    ]
    assert len(heights[0]) == len(heights[1])
    assert max(many - few for few, many in zip(*heights, strict=True)) > 200
