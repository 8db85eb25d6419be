"""Generated pages of the documentation site. `make docs` builds all of it; a broken link is an error there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from scripts import site_hooks

import acclimate
from acclimate.adaptation.method import lookup, names
from acclimate.cli.main import app
from tests.cases import SOURCES, each

ROOT = Path(__file__).resolve().parents[1]


def built_in() -> list[str]:
    return [name for name in names() if lookup(name).__module__.startswith("acclimate.")]


def relinked(place: str, text: str, known: set[str]) -> str:
    files = SimpleNamespace(get_file_from_path=lambda path: path if path in known else None)
    return site_hooks.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=place)), {}, files)


@each("name", built_in())
def test_a_method_has_a_page_that_explains_every_parameter(name):
    page = site_hooks.method_page(name)
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| ([^|]*) \|$", page.replace("\\|", "/"), flags=re.M))
    assert set(rows) == {field.name for field in fields(lookup(name))}
    assert all(len(text.strip()) > 3 for text in rows.values())
    assert ("acclimate adapt" in page) == lookup(name).trains


def test_every_method_is_in_the_navigation_once():
    entries = [entry for group in site_hooks.methods_by_purpose().values() for entry in group]
    assert sorted(name for entry in entries for name in entry) == names()


@pytest.mark.needs("dga", "pivots")
def test_the_findings_of_a_method_are_those_of_the_first_row_with_it():
    text = "\n".join(site_hooks.findings("dga"))
    results = site_hooks.studies()["dga"]
    row = next(row.label for row in results.methods if row.name == "dga")
    assert f"row “{row}”" in text and "(../results/dga/README.md)" in text
    scores = [score for score in results.scores if score.method == row and score.comparison]
    assert scores and all(f"| {100 * score.summaries[score.metric].mean:.1f} ±" in text for score in scores)
    assert site_hooks.findings("pivots") == []  # in no study


def test_the_reference_has_every_command_option_and_function():
    page = site_hooks.commands_page()
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        part = page.partition(f"\n## acclimate {name}\n")[2].partition("\n## ")[0]
        for child in getattr(command, "commands", {name: command}).values():
            flags = {flag for option in child.params for flag in option.opts if not option.hidden}
            assert flags - {"--help"} and all(f"`{flag}`" in part for flag in flags), name
    assert all(f"`acclimate.{name}`" in site_hooks.python_page() for name in acclimate.__all__ if name[0] != "_")


def test_the_gallery_begins_with_gains_and_leaves_out_what_has_no_scores():
    shown = re.findall(r"^## (.*)$", site_hooks.gallery_page(), flags=re.M)
    found = site_hooks.studies()
    gains = {found[name].title for name in ("few-labels", "search")}
    assert set(shown[:2]) == gains and shown.index(found["demo"].title) > 2
    assert found["auto"].title not in shown and found["retention"].title in shown


def test_the_search_works_from_a_folder_and_loads_nothing_from_elsewhere():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (script,) = re.findall(r"polyfills: \[(assets/iframe-worker\.js)\]", settings)
    assert "\n  - offline " in settings and "://" not in (ROOT / "docs" / script).read_text(encoding="utf-8")


@each(
    ("place", "text", "expected"),
    [
        ("guides/a.md", "[x](../../examples/dga/paper.yaml)", "[x](../examples/dga/paper.yaml)"),
        ("study.md", "[x](../CONTRIBUTING.md#packages)", "[x](dev/contributing.md#packages)"),
        ("dev/contributing.md", "[x](docs/study.md) [y](CHANGELOG.md)", "[x](../study.md) [y](changelog.md)"),
        ("study.md", "[x](../Makefile)", "x"),
        ("study.md", "[x](results) ![y](images/y.png) [z](#z)", "[x](results/README.md) ![y](images/y.png) [z](#z)"),
        ("study.md", "[x](missing.md)", "[x](missing.md)"),
    ],
)
def test_links_that_leave_the_pages_lead_to_their_place_on_the_site(place, text, expected):
    known = {"examples/dga/paper.yaml", "dev/contributing.md", "dev/changelog.md", "study.md", "results/README.md"}
    assert relinked(place, text, known) == expected


def test_the_start_page_is_the_readme_and_language_models_find_the_pages():
    text = site_hooks.llms_page()
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\.html\): .*\.$", text, flags=re.M)
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md")]
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in pages)
    assert "acclimate compare" in text and not (ROOT / "docs" / "README.md").exists()
    assert relinked("README.md", "[x](docs/study.md#a)", {"study.md"}) == "[x](study.md#a)"


def test_pages_that_the_code_names_exist():
    named = {
        page: file for file in SOURCES for page in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert {page: file for page, file in named.items() if not (ROOT / page).exists()} == {}
