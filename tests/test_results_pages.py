"""Pages of results: each is what its results.json gives, and no number comes from anywhere else."""

from __future__ import annotations

import json
import re
import tarfile
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from scripts.regroup_results import read_cells
from scripts.render_results import PAGES, ROOT, above_curve, read_results, relative, render, template_values
from sklearn.metrics import f1_score

from acclimate.results.study import StudyResults
from acclimate.study.config import StudyConfig
from tests.docs.blocks import GENERATED_TABLE
from tests.study_files import skip_if_parts_are_missing, spelled_today

RESULTS = sorted(path.parent.name for path in PAGES.glob("*/results.json"))
STUDIES = [name for name in RESULTS if (PAGES / name / "study.yaml").exists()]
CITATIONS = r"L2-SP|95 %|Eq\. \d+|Tables? \d( and \d)?|F1|BM25|nDCG@10|EMNLP \d+|ACL \d+"


def prose(text: str) -> str:
    """Return the text of a page or template without expressions, generated tables, code, links and citations."""
    for pattern in (
        GENERATED_TABLE,
        r"\{\{.*?\}\}",
        r"\{%.*?%\}",
        r"<!--.*?-->",
        r"`[^`]*`",
        r"\]\([^)]*\)",
        CITATIONS,
    ):
        text = re.sub(pattern, "", text, flags=re.S)
    return text


def without_newer(now, used):
    """Return a part of a study without the options that are newer than the results."""
    if isinstance(now, dict) and isinstance(used, dict):
        return {name: without_newer(value, used[name]) for name, value in now.items() if name in used}
    if isinstance(now, list) and isinstance(used, list):
        return [without_newer(*pair) for pair in zip(now, used, strict=True)]
    return now


def test_there_are_pages():
    assert STUDIES and set(RESULTS) - set(STUDIES) == {"auto", "recipe"}  # a simulation, and runs that are no study
    assert len(RESULTS) == len(list(PAGES.glob("*/README.md")))


@pytest.mark.parametrize("name", RESULTS)
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
    assert templates and not found


@pytest.mark.parametrize("name", STUDIES)
def test_the_results_are_those_of_the_study_file(name):
    skip_if_parts_are_missing(PAGES / name / "study.yaml")
    stored = (PAGES / name / "results.json").read_text(encoding="utf-8")
    used = json.loads(stored)["config"]
    if name == "dga":  # methods had a prefix
        used["methods"] = [{**row, "name": row["name"].removeprefix("mlm-")} for row in used["methods"]]
    file = PAGES / name / "study.yaml"
    given = relative(StudyConfig.load(file).resolved())
    for part in (used, *used["methods"]):
        part["adapt"] = spelled_today(part.get("adapt") or {})
    for row, old in zip(given.get("merges", ()), used.get("merges", ()), strict=True):
        if old["method"] == row["method"]:
            continue
        (merge,) = row.pop("method").items()
        row |= dict(zip(("method", "alpha"), merge, strict=True))  # as they were written
    for key in yaml.safe_load(file.read_text(encoding="utf-8")):
        assert used[key] == without_newer(given[key], used[key]), key
    assert str(ROOT) not in json.dumps(used) and str(Path.home()) not in json.dumps(used)


def gain_of_one_passage(gold, predicted):
    """The mean nDCG@10 of queries with one relevant passage each, whose best possible gain is 1."""
    ranks = [[*ranked, *relevant].index(*relevant) + 1 for relevant, ranked in zip(gold, predicted, strict=True)]
    return np.mean([1 / np.log2(rank + 1) if rank <= 10 else 0 for rank in ranks])


def test_cells_of_two_versions_of_a_study_are_an_error(tmp_path):
    """Otherwise rows would be computed from both, and differ from the page."""
    for name, seeds in (("one", (0, 1)), ("two", (0, 0))):
        with tarfile.open(tmp_path / "cells.tar.xz", "w:xz") as archive:
            for number, seed in enumerate(seeds):
                (tmp_path / "job").write_text(json.dumps({"kind": "finetune", "place": {"seed": seed}}))
                archive.add(tmp_path / "job", f"jobs/{number}.json")
        if name == "one":
            assert len(read_cells(tmp_path)) == 2
    with pytest.raises(ValueError, match="two versions of 1 jobs"):
        read_cells(tmp_path)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in PAGES.glob("*/cells.tar.xz")))
def test_results_can_be_computed_from_the_cells(name):
    """A score, its difference to the base model and changes of loss, with scikit-learn and sums."""
    file = PAGES / name / "cells.tar.xz"
    assert file.stat().st_size < 2e6
    cells = read_cells(PAGES / name)
    results = StudyResults.load(PAGES / name / "results.json")
    method = next(row.method for row in results.adaptations if row.method != results.baseline and not row.head)
    measures = {"macro_f1": partial(f1_score, average="macro", zero_division=0), "ndcg@10": gain_of_one_passage}
    compared = [row for row in results.scores if row.method == method and row.metric in measures and row.comparison]
    row = next(iter(compared), None)
    model = row.model if row else results.models[0]
    cells = [cell for cell in cells if cell["place"].get("model") in (None, model)]

    def score(method, seed):
        (cell,) = [
            cell["result"]
            for cell in cells
            if cell["kind"] in ("finetune", "distill", "quick")
            and (cell["place"]["method"], cell["place"]["task"], cell["place"]["seed"]) == (method, row.task, seed)
        ]
        return measures[row.metric](cell["gold"], cell["predicted"])

    if row is not None:
        ours, base = ([score(which, seed) for seed in row.seeds] for which in (method, results.baseline))
        assert np.mean(ours) == pytest.approx(row.summaries[row.metric].mean, abs=1e-9)
        assert np.mean(ours) - np.mean(base) == pytest.approx(row.comparison.difference, abs=1e-9)
    assert row is not None or not results.scores
    for text in dict.fromkeys(loss.text for loss in results.losses):
        rows = [row for row in results.losses if row.method == method and row.model == model]
        change = next(row for row in rows if row.text == text)
        domains = [change.domain] if text == "domain" else [change.domain, None]  # measured once before
        losses = [
            cell
            for cell in cells
            if cell["kind"] == "lm_loss"
            and cell["place"]["text"] == text
            and cell["place"].get("domain") in domains
            and cell["place"].get("role") in (None, f"sequence {change.domain}")
        ]

        def loss(which, losses=losses):
            found = [cell["result"] for cell in losses if cell["place"].get("method") == which]
            return np.mean([sum(one["per_text"]) / sum(one["per_text_masked"]) for one in found])

        assert loss(method) - loss(None) == pytest.approx(change.difference.difference, abs=1e-9)


def entity_f1(cell):
    """Micro-F1 of entities that have the right boundaries and type."""
    gold, found = ([{tuple(span[:3]) for span in text} for text in cell[side]] for side in ("gold", "predicted"))
    correct = sum(len(one & other) for one, other in zip(gold, found, strict=True))
    return 2 * correct / (sum(map(len, gold)) + sum(map(len, found)))


def test_the_gain_and_its_control_can_be_computed_from_the_cells():
    folder = PAGES / "few-labels"
    with tarfile.open(folder / "cells.tar.xz") as archive:
        cells = [json.load(archive.extractfile(member)) for member in archive if member.isfile()]
    scores: dict[str, dict[int, float]] = {}
    for cell in cells:
        if cell["kind"] == "finetune" and cell["place"]["task"] == "bc5cdr":
            place = cell["place"]
            scores.setdefault(place["method"], {})[place["seed"]] = entity_f1(cell["result"])
    for file, baseline in (("results.json", "none"), ("control.json", "general text")):
        results = StudyResults.load(folder / file)
        row = next(row for row in results.scores if (row.method, row.task) == ("biomedical text", "bc5cdr"))
        differences = [scores["biomedical text"][seed] - scores[baseline][seed] for seed in row.seeds]
        assert results.baseline == baseline and len(row.seeds) == 6
        assert np.mean(differences) == pytest.approx(row.comparison.difference, abs=1e-9)
        assert row.comparison.low > 0 and row.comparison.p_holm < 0.05


def test_differences_from_rivals_are_those_of_the_published_means():
    """They were computed from stored predictions; means over seeds of the same rows are published, too."""
    checked = 0
    for study, rows in json.loads((PAGES / "rivals.json").read_text(encoding="utf-8")).items():
        results = StudyResults.load(PAGES / study / "results.json")
        scores = {(row.task, row.method): row for row in results.scores}
        losses = {(row.domain, row.text, row.method): row.nats for row in results.losses}
        losses |= {(row.domain, row.text, "none"): row.before for row in results.losses}
        for method, found in rows.items():
            assert found["differences"], (study, method)
            for row in found["differences"]:
                sides = method, found["rival"]
                if "task" in row:
                    ours, theirs = (scores[row["task"], label] for label in sides)
                    if ours.seeds != theirs.seeds:
                        continue
                    before, after = (one.summaries[row["metric"]].mean for one in (theirs, ours))
                else:
                    after, before = (losses[row["domain"], row["text"], label] for label in sides)
                assert row["difference"] == pytest.approx(after - before, abs=2e-5), (study, method, row)
                assert row["low"] <= row["difference"] <= row["high"]
                checked += 1
    assert checked > 80


def test_a_row_is_compared_with_the_curve_at_the_same_forgetting():
    at, of = np.array([[[1.0, 2.0]], [[3.0, 4.0]]]), np.array([[[4.0, 2.0]], [[2.0, 8.0]]])
    for forgot, on_curve in (
        ([0.5, 1.0], [2.0, 1.0]),
        ([2.0, 3.0], [3.0, 5.0]),
        ([9.0, 9.0], [2.0, 8.0]),
        ([-1, 0], [0, 0]),
    ):
        found = above_curve(np.array([forgot]), np.array([[7.0, 7.0]]), at, of)
        assert found == pytest.approx(7 - np.array([on_curve]))
    with pytest.raises(AssertionError, match="not ordered"):
        above_curve(np.array([[1.0, 1.0]]), np.array([[7.0, 7.0]]), at[::-1], of)


@pytest.mark.parametrize("file", ["results.json", "decoder.json"])
def test_what_a_row_learns_beyond_the_curve_follows_from_the_losses_of_each_adaptation(file):
    results = read_results(PAGES / "forgetting" / file)
    curve = ["lm a quarter", "lm half way", "lm three quarters", "lm"]
    losses = {(row.method, row.domain, row.text): row for row in results.losses}
    for method in ("lower rate", "lssd"):
        found = template_values(results)["beyond"](method, *curve)
        values = []
        for seed in range(3):
            values.append(0.0)
            for domain in results.domains:

                def change(name, text, seed=seed, domain=domain):
                    return losses[name, domain, text].by_seed[seed] - losses[name, domain, text].before

                points = [(0, 0), *((change(name, "general"), -change(name, "domain")) for name in curve)]
                x = change(method, "general")
                (x0, y0), (x1, y1) = next(pair for pair in pairwise(points) if pair[0][0] <= x <= pair[1][0])
                on_curve = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
                values[-1] += (-change(method, "domain") - on_curve) / len(results.domains)
        assert found.difference == pytest.approx(np.mean(values), abs=1e-9)
        half = 4.302652729911275 * np.std(values, ddof=1) / 3**0.5  # Student, two degrees of freedom
        assert (found.low, found.high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=1e-9)
