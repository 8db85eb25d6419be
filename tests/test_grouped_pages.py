"""Published results whose test items have groups: what the groups change, computed from the stored cells."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from scripts.regroup_results import PAGES, differences, groups_of, read_cells, read_runs, regroup
from scripts.render_results import GROUPED, ROOT

from acclimate.evaluation.significance import bootstrap_weights, permutation_test, weighted_difference
from acclimate.results.study import StudyResults
from acclimate.study.summary import pair_by_seed, scoring_of

DATA = ROOT.parent / "shared" / "data"
CHANGED = sorted(path.parent.name for path in PAGES.glob(f"*/{GROUPED}"))


def test_no_page_says_that_a_method_helped_next_to_a_corrected_p_value_that_denies_it():
    found = 0
    for page in PAGES.glob("*/README.md"):
        lines = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
        for number, head in enumerate(lines):
            names = [name.strip("| ") for name in head]
            if {"verdict", "p (Holm)"} <= set(names):
                verdict, p = names.index("verdict"), names.index("p (Holm)")
                for cells in lines[number + 1 :]:
                    if len(cells) != len(head):
                        break
                    if re.fullmatch(r"\d\.\d{3}", cells[p].strip(" |")) and float(cells[p].strip(" |")) >= 0.05:
                        assert cells[verdict] not in ("helped", "hurt"), (page, cells)
                        found += 1
    assert found > 50


def test_the_published_groups_are_those_of_the_ids():
    if not DATA.is_dir():
        pytest.skip("needs the data of the studies")
    names = {
        "ddi": r"(.+)\.s\d+\.p\d+",
        "hoc": r"(\d+)_s\d+",
        "nicta_piboso": r"(.+)",
        "asc_restaurant": r"(.+#.+)#.+",
    }
    for task, pattern in names.items():
        rows = [json.loads(line) for line in (DATA / task / "test.jsonl").read_text(encoding="utf-8").splitlines()]
        ids = [re.fullmatch(pattern, str(row.get("id", row.get("abstract_id"))))[1] for row in rows]
        order = {name: number for number, name in enumerate(dict.fromkeys(ids))}
        assert groups_of("", task)["groups"] == [order[name] for name in ids]


@pytest.mark.slow
def test_items_of_a_document_are_no_independent_evidence_on_drug_interactions():
    """Their error is 4.2 to 4.8 times (macro-F1) and 5.9 to 8.6 times (accuracy) that of independent items."""
    cells = [cell for cell in read_cells(PAGES / "biomedical") if cell["place"].get("task") == "ddi"]
    ratios, p = {"macro_f1": [], "accuracy": []}, {}
    for method in ("lm", "dga"):
        errors = {name: [] for name in ratios}
        for grouped in (False, True):
            runs = read_runs(cells, "biomedical", range(5), grouped=grouped)
            pairs = pair_by_seed(runs[method, "ddi"], runs["none", "ddi"])
            gold, scoring = pairs[0][0].result.gold, scoring_of(pairs[0][0].result)
            sides = [[run.result.predicted for run in side] for side in zip(*pairs, strict=True)]
            for name, found in errors.items():
                units, score = weighted_difference(gold, *sides, name, scoring)
                assert units == (191 if grouped else 5716)
                resampled = [score(weights).mean(1) for weights in bootstrap_weights(units, 1000, 0)]
                found.append(np.concatenate(resampled).std(ddof=1))
            if method == "dga":
                p[grouped] = permutation_test(gold, *sides, "accuracy", scoring=scoring)
        for name, (alone, documents) in errors.items():
            ratios[name].append(documents / alone)
    assert sorted(ratios["macro_f1"]) == pytest.approx([4.2, 4.8], rel=0.05), ratios
    assert sorted(ratios["accuracy"]) == pytest.approx([5.9, 8.6], rel=0.05), ratios
    assert p[False] == pytest.approx(0.0005, abs=0.0005) and p[True] == pytest.approx(0.37, abs=0.03), p


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGED)
def test_the_changed_rows_are_computed_from_the_cells(name):
    """Without groups from the same cells comes what was published, and the difference itself does not change."""
    folder = PAGES / name
    for file, stored in json.loads((folder / GROUPED).read_text(encoding="utf-8")).items():
        published = dict(differences(StudyResults.load(folder / file).to_dict()))
        plain = dict(differences(regroup(folder, file, grouped=False)))
        assert plain == {place: published[place] for place in plain}
        changed = dict(differences(stored))
        assert changed.keys() == plain.keys()
        assert all(values[0] == pytest.approx(published[place][0]) for place, values in changed.items())
