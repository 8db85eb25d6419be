"""Pages of results: each is what its results.json gives, and no number comes from anywhere else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from scripts.render_results import PAGES, ROOT, relative, render

from acclimate.study import StudyConfig

STUDIES = sorted(path.parent.name for path in PAGES.glob("*/results.json"))
CITATIONS = r"95 %|Eq\. \d+|Tables? \d( and \d)?|F1|EMNLP \d+|ACL \d+"


def prose(text: str) -> str:
    """Return the text of a page or template without expressions, code, links and citations."""
    for pattern in (r"\{\{.*?\}\}", r"\{%.*?%\}", r"<!--.*?-->", r"`[^`]*`", r"\]\([^)]*\)", CITATIONS):
        text = re.sub(pattern, "", text, flags=re.S)
    return text


def test_there_are_pages():
    assert STUDIES and len(STUDIES) == len(list(PAGES.glob("*/README.md")))


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_is_rendered_from_its_results(name):
    assert (PAGES / name / "README.md").read_text(encoding="utf-8") == render(PAGES / name), "run `make docs`"


def test_every_number_of_a_page_comes_from_its_results():
    templates = list(PAGES.glob("*/page.md.j2"))
    written = [page for page in PAGES.glob("*.md") if page.name != "README.md"]
    found = {
        path.relative_to(PAGES).as_posix(): numbers
        for path in (*templates, *written)
        if (numbers := re.findall(r"\d[\d.,]*", prose(path.read_text(encoding="utf-8"))))
    }
    assert templates and written and not found


@pytest.mark.parametrize("name", STUDIES)
def test_the_results_are_those_of_the_study_file(name):
    used = json.loads((PAGES / name / "results.json").read_text(encoding="utf-8"))["config"]
    file = PAGES / name / "study.yaml"
    given = relative(StudyConfig.load(file).resolved())
    for key in yaml.safe_load(file.read_text(encoding="utf-8")):
        now = given[key]
        if isinstance(now, dict):  # options that are newer than the results
            now = {name: value for name, value in now.items() if name in used[key]}
        assert used[key] == now, key
    assert str(ROOT) not in json.dumps(used) and str(Path.home()) not in json.dumps(used)
