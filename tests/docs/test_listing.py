"""The listing of papers: what it names exists, its study files plan, and no paper is missing."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest
import typer

from acclimate.adaptation.method import REGISTRY as METHODS
from acclimate.adaptation.rules import RULES
from acclimate.cli.main import app
from acclimate.data.mix.base import MIXES
from acclimate.data.operations import SELECTIONS, TRANSFORMS
from acclimate.data.task_kinds import TASK_KINDS
from acclimate.merging.base import MERGES
from acclimate.models.adapters import ADAPTERS
from acclimate.parts.masking.base import REGISTRY as MASKINGS
from acclimate.study.backend import Backend
from acclimate.study.config import StudyConfig
from acclimate.study.graph import plan, read_study
from tests.cases import each
from tests.docs.blocks import ROOT
from tests.study_files import skip_if_parts_are_missing

PAGE = ROOT / "docs" / "listing.md"
FOLDER = ROOT / "src" / "acclimate" / "study" / "recipes"
STARTS = {"sentiment.yaml", "chat-model.yaml", "embeddings.yaml"}
"""Recipes that are no paper's."""
RECIPES = sorted(path.name for path in FOLDER.glob("*.yaml"))
PAPERS = 119
STUDY_FILE = re.compile(r"\[[\w-]+\.yaml\]\(\.\./([^)]*)\)")


@cache
def known() -> dict[str, set[str]]:
    """Return all names by kind, as the page calls it."""
    commands = typer.main.get_command(app).commands
    return {
        "method": set(METHODS.names()),
        "masking": set(MASKINGS.names()),
        "selection": set(SELECTIONS.names()),
        "transform": set(TRANSFORMS.names()),
        "mix": set(MIXES.names()),
        "merging": set(MERGES.names()),
        "adapter": set(ADAPTERS.names()),
        "rule": set(RULES.names()),
        "task kind": set(TASK_KINDS.names()),
        "command": set(commands),
        "inspection": set(commands["inspect"].commands),
        "option": {flag for command in commands.values() for option in command.params for flag in option.opts},
    }


def table(*header: str) -> list[list[str]]:
    """Return the rows of the table with a header, as cells."""
    text = PAGE.read_text(encoding="utf-8")
    start = re.search(r"^\| " + r" \| ".join(header) + r" \|\n\|[-:|]+\|\n", text, flags=re.M)
    assert start, f"no table {header}"
    lines = text[start.end() :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


ROWS = {int(number): (paper, runs) for number, paper, runs in table("number", "paper", "name or study file")}
OFF_TOPIC = {why: [int(one) for one in re.findall(r"\d+", cell)] for why, cell in table("why", "numbers")}


def names_in(cell: str) -> list[tuple[str, str]]:
    """Return the names in a cell with their kinds: ``method [`tapt`](..), method `lm` `` has two."""
    found, rest = [], re.sub(r"\[(`[^`]+`)\]\([^)]*\)", r"\1", cell)
    while part := re.match(r"(?:, )?(task kind|[a-z]+?)s? ((?:`[^`]+`(?:, | and )?)+)", rest):
        kind, names = part.groups()
        found += [(kind, name) for name in re.findall(r"`([^`]+)`", names)]
        rest = rest[part.end() :]
    assert not rest, f"not a name: {rest}"
    return found


def test_every_paper_is_listed_or_off_topic():
    given = Counter([*ROWS, *(number for numbers in OFF_TOPIC.values() for number in numbers)])
    assert sorted(given) == list(range(1, PAPERS + 1))
    assert [number for number, count in given.items() if count > 1] == []
    assert list(ROWS) == sorted(ROWS) and all(OFF_TOPIC)


@each(("number", "paper"), [(number, paper) for number, (paper, _) in ROWS.items()])
def test_a_paper_has_a_title_authors_a_year_and_a_link(number, paper):
    assert re.fullmatch(r"\[.+\]\(https://arxiv\.org/abs/\d{4}\.\d{5}\), [^\d]+, (19|20)\d\d", paper)


# Without the folder of a paper, its row says "not yet".
@each(("number", "runs"), [(number, runs) for number, (_, runs) in ROWS.items() if runs != "not yet"])
def test_a_row_names_what_exists(number, runs):
    names, studies = STUDY_FILE.sub("", runs).strip(", "), STUDY_FILE.findall(runs)
    assert names or studies
    for kind, name in names_in(names):
        assert name.split()[0] in known()[kind], f"there is no {kind} '{name}'"
    for study in studies:
        assert (ROOT / study).is_file()


def test_rows_are_read_as_written():
    assert names_in("methods `lm`, `tapt` and `tsdae`, task kind `qa`") == [
        *(("method", name) for name in ("lm", "tapt", "tsdae")),
        ("task kind", "qa"),
    ]


def test_every_recipe_belongs_to_a_paper():
    used = {study.rpartition("/")[2] for _, runs in ROWS.values() for study in STUDY_FILE.findall(runs)}
    assert set(RECIPES) - used == STARTS


def test_a_recipe_cites_its_papers():
    for paper, runs in ROWS.values():
        for study in STUDY_FILE.findall(runs):
            if "/recipes/" in study:
                link = re.search(r"\((https:[^)]+)\)", paper)
                assert link and link[1] in (ROOT / study).read_text(encoding="utf-8"), study


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_plans(name, workspace):
    skip_if_parts_are_missing(FOLDER / name)
    recipe = workspace / name
    recipe.write_text((FOLDER / name).read_text(encoding="utf-8"), encoding="utf-8")
    config = StudyConfig.load(recipe)
    inputs = read_study(config, Backend())
    counts = Counter(job.name for job in plan(inputs).entries)
    tasks = sum(len(domain.tasks) for domain in config.domains)
    assert counts["lm_loss"] and inputs.general.texts
    assert counts["adapt"] and bool(counts["finetune"]) == bool(tasks or config.search)
    assert f"acclimate compare {name}" in recipe.read_text(encoding="utf-8")
