"""The Markdown beside the report: the same words and tables, and nothing of the data is read as markup."""

from __future__ import annotations

import copy

from acclimate.report import answer, markdown
from acclimate.report.table import tables
from tests.report.test_report import results, small  # noqa: F401  (a fixture)


def unescaped(text):
    return text.replace("\\", "")


def test_every_table_is_there_with_its_rows(results, tmp_path):  # noqa: F811
    text = markdown(results)
    assert answer(results)["headline"].split(",")[0] in unescaped(text)
    for table in tables(results):
        assert f"## {table.title}" in text
        for row in table.rows:
            assert "| " + " | ".join(" ".join(entry.text.split()) for entry in row) + " |" in unescaped(text)
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1


def test_names_cannot_break_a_table(results):  # noqa: F811
    evil = copy.deepcopy(results)
    for row in evil["scores"]:
        row.task = "a|b\n# <b>c</b> [d](e)"
    line = next(line for line in markdown(evil).splitlines() if "a\\|b" in line)
    assert "a\\|b # \\<b\\>c\\</b\\> \\[d\\](e)" in line


def test_a_study_writes_it(tmp_path):
    small(tmp_path)
    text = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "| none |" in text
