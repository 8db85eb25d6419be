"""The tables of the report, in Markdown and in a terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from acclimate.base.errors import UserError
from acclimate.cards.results import result_sections
from acclimate.evaluation.calibration import BINS
from acclimate.models.kinds import KINDS, MASKED
from acclimate.report import markdown, render, results_table, summarize, write_tables
from acclimate.report.score_figures import forest_plot
from acclimate.report.tables import overview, searches, tables
from acclimate.report.text import MAIN_TABLES, _csv, escape_latex
from acclimate.report.timing import preparation_time
from acclimate.results.adaptations import AdaptationRow
from acclimate.results.cells import bracket_text, mean_entry, signed
from acclimate.results.scores import (
    BETTER,
    VERDICTS,
    WORSE,
    Comparisons,
    MetricSummary,
    SearchRow,
    TrialRow,
    verdict_word,
)
from acclimate.results.study import ReportTable, StageName, StudyResults
from acclimate.study.summary import count_verdicts
from tests.cases import SOURCES
from tests.report.full import EVIL, parse, texts, titled, with_comparison

SCORES = "Scores on end tasks"
LOSSES = "Held-out loss and forgetting"
WINS = "Verdicts over tasks"


def test_wins_and_losses_are_counted(results):
    table = titled(results, WINS)
    rows = {row[0].text: [entry.text for entry in row] for row in table.rows}
    assert table.columns[:5] == ["method", "tasks", "helped", "no difference shown", "hurt"]
    assert rows["mlm"][1:] == ["2", "2", "0", "0", "2", "0", "0"]
    assert f"## {WINS}" in markdown(results)


def test_no_word_of_a_verdict_contradicts_the_corrected_p_value(results):
    """In every table, picture, text and export of a study whose differences are lost by correction."""
    lost = [with_comparison(row, p_holm=0.418) if row.comparison else row for row in results.scores]
    assert any(row.comparison and row.comparison.low > 0 for row in lost)
    stored = replace(results, scores=lost, verdict_counts=count_verdicts(lost)).to_dict()
    for row in stored["scores"]:  # as results were stored before verdicts followed the correction
        if row["method"] != results.baseline:
            row["difference"][row["metric"]]["verdict"] = "helped"
    found = StudyResults.from_dict(stored)
    verdicts = [row["verdict"] for row in texts(titled(found, SCORES))]
    assert set(verdicts) == {"baseline", *(verdict_word(row.comparison) for row in lost if row.comparison)}
    assert "no difference shown after correction" in verdicts
    rows = {row[0].text: [entry.text for entry in row] for row in titled(found, WINS).rows}
    assert rows["mlm"][1:5] == ["2", "0", "2", "0"] and rows["mlm"][5] == "2", "intervals above zero"
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(*results_table(replace(found, losses=[], rows={})))
    scored = replace(found, losses=[], forgetting=[], rows={}, means=[])
    lines = csv.DictReader(io.StringIO(_csv(scored)))
    assert {line["verdict"] for line in lines if line["p_holm"]} == {"no difference shown"}
    pictures = re.findall(r'style="fill: ([^;"]+)', forest_plot(found))
    assert pictures.count("var(--card)") > re.findall(r'style="fill: ([^;"]+)', forest_plot(results)).count(
        "var(--card)"
    )
    shown = [capture.get(), str(scored.describe()), str(scored.to_pandas()), summarize(scored).verdict]
    shown += [" ".join(entry.text for row in table.rows for entry in row) for table in (overview(scored),)]
    shown += [content for _, content in result_sections(scored, MASKED)]
    for text in shown:
        assert not re.search(
            r"\b(helped|hurt|win|loss)\b(?! and)", text.replace("domain loss", "").replace("LM loss", "")
        ), text


def test_the_groups_of_test_items_are_counted(results):
    grouped = [replace(row, test_units=191, test_items=5716, group_name="document") for row in results.scores]
    found = replace(results, scores=grouped)
    assert (
        "Units of intervals and p-values are the 191 documents (5,716 items) of intent" in titled(found, SCORES).note
    )
    assert "191 documents (5,716 items)" in str(results_table(found)[0].title)
    means = [replace(row, tasks=5, test_sets=1) for row in results.means]
    note = titled(replace(results, means=means), "Means over tasks").note
    assert "Results on one test set are not independent: 5 tasks have 1 test set." in note
    assert "test set" not in titled(results, "Means over tasks").note


def test_means_over_tasks(results):
    none, mlm, _ = texts(titled(results, "Means over tasks"))
    scores = [row for row in results.scores if row.method == "mlm"]
    mean = np.mean([row.summaries["macro_f1"].mean for row in scores])
    assert mlm["mean"].startswith(f"{100 * mean:.1f} ± ") and mlm["tasks"] == "2"
    assert mlm["difference"] == f"{sum(100 * row.comparison.difference for row in scores) / 2:+.1f}"
    (entry,) = [row.difference for row in results.means if row.method == "mlm"]
    assert mlm["95 % interval"] == f"{100 * entry.low:+.1f} to {100 * entry.high:+.1f}"
    assert entry.low < entry.difference < entry.high
    assert none["difference"] == none["95 % interval"] == none["standardized difference"] == "–"
    assert [mlm["rank"], none["rank"]] == ["1.00", "2.00"]
    gone = [replace(row, constant=["intent"]) for row in results.means]
    note = titled(replace(results, means=gone), "Means over tasks").note
    assert "all answers of the baseline count the same there: intent." in note


def test_probes(full):
    table = titled(full, "Learning from frozen states")
    first, *_, last = texts(table)
    assert first["labels per class"] == "8" and first["95 % interval of the score"] == "35.0 to 44.0"
    assert last["labels per class"] == "all" and last["verdict"] in VERDICTS
    assert f"intent at 64 ({EVIL}: 41)" in table.note


def test_a_student_retains_a_share_of_the_score_of_its_teacher(full):
    rows = texts(titled(full, "Distillation"))
    assert [row["retained"] for row in rows] == ["92.9"] * 6  # 65 of 70; two methods on two tasks, and their means
    assert [row["task"] for row in rows[-2:]] == ["mean over tasks"] * 2
    lost = replace(full, rows={"distill": [replace(row, teacher=0.0) for row in full.rows["distill"]]})
    assert {row["retained"] for row in texts(titled(lost, "Distillation"))} == {"–"}


def test_a_verdict_has_the_same_word_in_every_file_and_table(results, full, tmp_path):
    words = {*VERDICTS, *(f"{word} after correction" for word in VERDICTS), "baseline", "–", ""}
    shown = {row["verdict"] for table in tables(full) for row in texts(table) if "verdict" in table.columns}
    lines = csv.DictReader(io.StringIO(write_tables(full, tmp_path)[0].read_text()))
    frames = [full.to_pandas(name) for name in ("scores", "losses", "probe")]
    shown |= {line["verdict"] for line in lines} | {word for frame in frames for word in frame.verdict.dropna()}
    assert words >= shown >= {"helped", "hurt", "no difference shown"}
    assert {entry.mark for table in tables(full) for row in table.rows for entry in row} <= {*VERDICTS, ""}
    stored = set(re.findall(r'"verdict": "([^"]*)"', json.dumps(results.to_dict())))
    assert stored <= {*VERDICTS} and " ".join(in_terminal(results, 80).split()).count("no difference shown")


def test_no_source_spells_a_verdict_by_itself():
    """The words are constants of one module; an old or second spelling is a literal elsewhere."""
    other = "|".join(
        [*sorted({*VERDICTS} - {BETTER, WORSE}), "wins?", "tie", "withheld", "not_learned", "cannot be answered"]
    )
    found = {path.name: re.findall(rf"""["'](?:{other})["']""", path.read_text(encoding="utf-8")) for path in SOURCES}
    assert [name for name, literals in found.items() if literals] == ["scores.py"]


def test_one_task_needs_no_count(results):
    one = replace(results, verdict_counts=[replace(row, tasks=1) for row in results.verdict_counts])
    assert WINS not in [table.title for table in tables(one)]
    assert WINS not in [table.title for table in tables(replace(results, verdict_counts=[]))]
    unanswered = [replace(row, unanswered=row.tasks) for row in results.verdict_counts]
    assert WINS not in [table.title for table in tables(replace(results, verdict_counts=unanswered))]


def test_all_p_values_are_in_the_table(results):
    table = titled(results, SCORES)
    row = next(row for row in table.rows if "mlm" in [entry.text for entry in row])
    shown = dict(zip(table.columns, row, strict=True))
    entry = next(row for row in results.scores if row.method == "mlm").comparison
    assert shown["p"].value == entry.p and shown["p (Holm)"].value == entry.p_holm
    assert shown["p (t-test)"].value == entry.p_t and shown["p (these models)"].text == "–"  # no groups
    grouped = replace(results, scores=[replace(row, test_units=20, group_name="review") for row in results.scores])
    table = titled(grouped, SCORES)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert entry.p_models in [row["p (these models)"].value for row in rows]
    order = [table.columns.index(name) for name in ("difference", "95 % interval", "p")]
    assert order == sorted(order)  # effect and interval come first


def test_the_overview_has_gain_and_losses_side_by_side(results):
    table = overview(results)
    assert [heading for heading, _ in table.groups()] == ["cs · intent", "food · aspect"]
    rows = {(row["task"], row["method"]): row for row in texts(table)}
    mlm = rows["cs · intent", "mlm"]
    score = next(row for row in results.scores if (row.domain, row.method) == ("cs", "mlm"))
    assert mlm["difference, points of macro-F1"] == bracket_text(score.comparison, 100) and mlm["verdict"] == "helped"
    assert rows["cs · intent", "none"]["verdict"] == "baseline"
    for text in ("domain", "general"):
        loss = next(row for row in results.losses if (row.domain, row.method, row.text) == ("cs", "mlm", text))
        assert mlm[f"{text} loss"] == f"{signed(loss.percent)} %"
    only = overview(replace(results, scores=[]))
    assert only.columns == ["task", "method", "domain loss", "general loss"]
    assert [heading for heading, _ in only.groups()] == ["cs", "food"]


def test_micro_f1_is_not_shown_beside_the_same_accuracy(results):
    assert results.scores[0].metrics == ["macro_f1", "accuracy", "micro_f1"]
    assert "micro-F1" not in titled(results, SCORES).columns and "accuracy" in titled(results, SCORES).columns
    own = replace(results, scores=[replace(row, metric="micro_f1") for row in results.scores])
    assert "micro-F1" in titled(own, SCORES).columns
    labels = replace(results, scores=[replace(row, metrics=["macro_f1", "micro_f1"]) for row in results.scores])
    assert "micro-F1" in titled(labels, SCORES).columns


def test_tables_as_files(results, tmp_path):
    lines, tex = (path.read_text() for path in write_tables(replace(results, forgetting=[]), tmp_path))
    rows = list(csv.DictReader(io.StringIO(lines)))
    assert len(rows) == 2 * len(results.scores) + len(results.losses)  # two metrics are shown of each score
    score = next(row for row in results.scores if row.method == "mlm")
    row = next(row for row in rows if (row["method"], row["measure"]) == ("mlm", "macro_f1"))
    assert float(row["value"]) == score.summaries["macro_f1"].mean and row["seeds"] == "5"
    found = [float(row[name]) for name in ("difference", "low", "high", "p", "p_holm")]
    assert found == [getattr(score.comparison, name) for name in ("difference", "low", "high", "p", "p_holm")]
    row = next(row for row in rows if (row["method"], row["text"]) == ("mlm", "domain"))
    assert row["verdict"] == "helped" and float(row["difference"]) < 0  # a lower loss is better
    paper, tex = tex.split(r"\end{table}")
    assert paper.count(r" \\" + "\n") == 2 + len({row.method for row in results.scores}) and "± " not in paper
    bold = mean_entry(score.summaries["macro_f1"]).text.replace("±", r"$\pm$")
    assert f"mlm & \\textbf{{{bold}}} & " in paper and r"\caption{Scores of model in percent" in paper
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 3 and "% Means over tasks\n" in tex
    assert tex.count(r" \\" + "\n") == sum(1 + len(t.rows) for t in map(lambda n: titled(results, n), MAIN_TABLES[:3]))
    assert not re.search(r"(?<![\\%])%(?! )", tex) and "−" not in tex
    assert escape_latex(r"50 % of_a\b & {c}^2 −1 ± 2") == (
        r"50 \% of\_a\textbackslash{}b \& \{c\}\textasciicircum{}2 $-$1 $\pm$ 2"
    )


def test_calibration_errors(results):
    row, table = results.scores[0], titled(results, SCORES)
    assert f"{100 * row.summaries['ece'].mean:.1f} ± " in table.rows[0][table.columns.index("ECE")].text
    assert f"with {BINS} bins of equal width" in table.note
    assert (
        "bins"
        not in titled(replace(results, scores=[replace(r, reliability=[]) for r in results.scores]), SCORES).note
    )
    plain = [
        replace(row, summaries={name: one for name, one in row.summaries.items() if name != "ece"}, reliability=None)
        for row in results.scores
    ]
    found = replace(results, scores=plain)
    assert not any("ECE" in table.columns for table in tables(found)) and ">Calibration<" not in render(found)
    parse(render(found))


def test_tasks_of_different_kinds_share_a_table(results):
    first, second = results.scores[:2]
    difference = Comparisons(seeds=[0, 1], metrics={"document_f1": second.comparison})
    summaries = {"document_f1": MetricSummary(mean=0.5, sd=0.01, by_seed=[0.5])}
    metrics = {"metric": "document_f1", "metrics": ["micro_f1", "document_f1"]}
    found = replace(results, scores=[first, replace(second, **metrics, summaries=summaries, difference=difference)])
    row = texts(titled(found, SCORES))[1]
    assert row["document F1"] == "50.0 ± 1.0" and row["difference"].endswith(" (document F1)")
    assert "document F1" in str(summarize(found))
    assert "score" in [column.header for column in results_table(found)[0].columns]
    parse(render(found))


def test_what_was_known_before_training_is_above_the_figures(results):
    section = ReportTable(
        title="Before training", note="The domain is far.", columns=["words"], rows=[["12 %"]], first=True
    )
    found = replace(results, tables=[section])
    page, text = render(found), markdown(found)
    assert (
        page.index("<p>The domain is far.</p>") < page.index('class="figures"')
        and page.count("The domain is far.") == 1
    )
    assert text.index("## Before training") < text.index(f"## {SCORES}")
    unknown = replace(results, tables=[replace(section, rows=[])])
    assert "<p>The domain is far.</p>" in render(unknown) and "The domain is far.\n\n##" in markdown(unknown)


def test_a_kind_of_job_can_add_a_table(results):
    section = ReportTable(title="Perplexity", note="By hand.", columns=["model", "name", "value", "count"])
    section.rows = [["a", "x", 1.23456, 1200], ["b", "y", None, 3]]
    page = markdown(replace(results, tables=[section]))
    table = titled(replace(results, tables=[section]), "Perplexity")
    assert table.numeric == [False, False, True, True] and "## Perplexity\n\nBy hand." in page
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["a", "x", "1.235", "1,200"],
        ["b", "y", "–", "3"],
    ]


def trial(rate: float, score: float, ece: float | None = 0.1, chosen: bool = False) -> TrialRow:
    settings = {"learning_rate": rate, "epochs": 3}
    return TrialRow(settings=settings, state="done", chosen=chosen, score=score, by_seed=[score], ece=ece)


def search(trials: list[TrialRow]) -> StudyResults:
    chosen = next((one.settings for one in trials if one.chosen), None)
    place = {"stage": "method", "model": "bert", "domain": "cs", "task": "intent", "methods": ["none", "mlm"]}
    counts = {"metric": "macro_f1", "tolerance": 0.01, "seeds": [0, 1], "possible": 12, "tried": len(trials)}
    return StudyResults(name="s", searches=[SearchRow(**place, **counts, trials=trials, chosen=chosen)])


def test_a_search_has_its_chosen_settings_and_the_range_of_scores():
    failed = TrialRow(settings={"learning_rate": 1.0}, state="failed")
    trials = [trial(1e-5, 0.5), trial(2e-5, 0.71, 0.3), trial(3e-5, 0.705, 0.2, chosen=True), failed]
    table = searches(search(trials))
    (row,) = texts(table)
    assert row["method"] == "none, mlm" and row["combinations"] == "4 of 12, 1 failed"
    assert row["chosen"] == "learning_rate 3e-05, epochs 3"
    found = tuple(row[name] for name in ("dev, chosen", "dev, best", "dev, worst", "dev ECE"))
    assert found == ("70.5", "71.0", "50.0", "20.0")
    assert "(1 percentage points)" in table.note
    (row,) = texts(searches(search([replace(failed, state="missing")])))
    assert row["chosen"] == row["dev, chosen"] == row["dev ECE"] == "–"
    (row,) = texts(searches(search([trial(1e-5, 0.5, None, chosen=True)])))
    assert row["dev ECE"] == "–" and row["dev, chosen"] == "50.0"
    assert not searches(StudyResults(name="s")).rows


def test_minutes_of_every_stage_before_training():
    stages = {"finetune": {"minutes": 1.25, "f1": 0.8}, "annotate": {"minutes": 0.031}, "masking": {"share": 0.2}}
    run = AdaptationRow(model="bert", domain="cs", method="selective", task="mr", seed=0, seconds=90.0)
    plain = replace(run, method="mlm", task=None)
    prepared = replace(run, preparation={"selective.json": stages})
    assert texts(preparation_time(StudyResults(name="s", adaptations=[plain, prepared]))) == [
        {
            "model": "bert",
            "domain": "cs",
            "method": "selective, mr",
            "seed": "0",
            "fine-tuning": "1.2",
            "annotation": "0.03",
            "total": "1.3",
            "training": "1.5",
        }
    ]
    assert not preparation_time(StudyResults(name="s", adaptations=[plain])).rows


def unescaped(text):
    return text.replace("\\", "")


def test_markdown_has_every_table_with_its_rows(full):
    text = markdown(full)
    assert summarize(full).headline.split(",")[0] in unescaped(text)
    for table in tables(full):
        assert f"## {table.title}" in text
        for row in table.rows:
            assert "| " + " | ".join(" ".join(entry.text.split()) for entry in row) + " |" in unescaped(text)
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1


def test_names_cannot_break_a_markdown_table(results):
    evil = replace(results, scores=[replace(row, task="a|b\n# <b>c</b> [d](e)") for row in results.scores])
    line = next(line for line in markdown(evil).splitlines() if "a\\|b" in line)
    assert "a\\|b # \\<b\\>c\\</b\\> \\[d\\](e)" in line


def test_a_study_writes_markdown(small, tmp_path):
    small()
    text = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert text.startswith("# ") and "| none |" in text


def in_terminal(results, width):
    console = Console(width=width, record=True, file=io.StringIO())
    for table in results_table(results):
        console.print(table)
    return console.export_text()


def test_terminal_tables_fit_80_columns(results):
    text = in_terminal(results, 80)
    assert "…" not in text
    assert re.search(r"mlm +\d\d\.\d ± \d\.\d .*\[\+\d+\.\d, \+\d+\.\d\] +helped", text)
    assert results_table(replace(results, scores=[], losses=[])) == []


def test_brackets_in_a_name_are_not_terminal_markup(results):
    rows = [replace(row, method="mlm [/bold]") for row in results.scores]
    text = in_terminal(replace(results, baseline="none [/x]", scores=rows), 200)
    assert "none [/x]" in text and "mlm [/bold]" in text


def test_results_can_be_a_dictionary_from_json(results):
    assert markdown(results.to_dict(), Path("runs/x")) == markdown(results, Path("runs/x"))


def test_the_kind_of_the_model_names_the_loss(results, monkeypatch):
    causal = replace(
        MASKED, name="causal", loss_name="causal-LM loss", loss_unit="nats per token", targets=lambda ids, texts: ids
    )
    monkeypatch.setitem(KINDS, "causal", causal)
    found = replace(results, losses=[replace(row, kind="causal") for row in results.losses])
    assert titled(results, LOSSES).note.startswith("Masked-LM loss in nats per masked token, with 15 % of")
    assert titled(found, LOSSES).note.startswith("Causal-LM loss in nats per token; lower is better")
    assert "On general text the causal-LM loss changed by" in summarize(found).headline
    assert "masked-LM" not in markdown(found)


def test_a_loss_of_an_unknown_kind_is_an_error(results):
    found = replace(results, losses=[replace(row, kind="from another package") for row in results.losses])
    with pytest.raises(UserError, match="Unknown kind of language model 'from another package'"):
        markdown(found)


def test_a_kind_of_job_can_have_stages_of_its_own(results):
    spent = {"finetuning": 60.0, "cache": 120.0, "sum": 180.0}
    found = replace(results, scores=[replace(row, stage_seconds=spent) for row in results.scores])
    row = texts(titled(found, "Time per score"))[0]
    assert [row[name] for name in ("minutes", "fine-tuning", "cache")] == ["3.0", "1.0", "2.0"]
    stages = [*found.stages, StageName(stage="cache", name="filling the cache", note="Cache: once per task.")]
    table = titled(replace(found, stages=stages), "Time per score")
    assert table.columns[-2:] == ["fine-tuning", "filling the cache"] and "Cache: once per task." in table.note


FORMULAS = st.sampled_from(
    [
        "=1+1",
        "@SUM(1)",
        "+dom",
        "-x",
        "\ttab",
        "\r=1",
        " =1",
        "\n=1",
        "＝1",
        "\u00a0=1",
        "\u200b=1",
        "\ufeff+1",
        "plain",
        "3 %",
    ]
)


@given(name=FORMULAS, label=FORMULAS)
@settings(max_examples=30, deadline=None)
def test_cells_of_a_csv_are_no_formulas_and_numbers_stay(results, tmp_path_factory, name, label):
    named = [replace(row, task=name, method=label, domain=name) for row in results.scores]
    losses = [replace(row, method=label, model=name) for row in results.losses]
    folder = tmp_path_factory.getbasetemp()
    write_tables(replace(results, scores=named, losses=losses), folder)
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for text in row.values():
            with suppress(ValueError):
                float(text)
                continue
            assert not text.strip(" \u00a0\u200b\ufeff").startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝"))
    assert any(float(row["difference"] or 0) < 0 for row in rows)
