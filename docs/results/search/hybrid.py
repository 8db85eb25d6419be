"""Compare the rankings of the study, fused with BM25, with the fused ranking of the encoder as it is and with BM25.

    PYTHONPATH=. python docs/results/search/hybrid.py

The rankings are those in cells.tar.xz; the result is hybrid.json, next to this file. The p-values of a column are
corrected with Holm's method over its rows.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scripts.regroup_results import read_cells, read_runs, rounded

from acclimate.base.files import write_json
from acclimate.data.task_kinds import load_task
from acclimate.evaluation.retrieval import fuse_rankings, rank_with_bm25
from acclimate.results.study import StudyResults
from acclimate.study.summary import compare_runs, correct_for_multiple_comparisons

HERE = Path(__file__).resolve().parent
TASK, METRIC = "retrieval_restaurant", "ndcg@10"

if __name__ == "__main__":
    task: Any = load_task(HERE.parents[3] / "shared" / "data" / TASK)
    seeds = StudyResults.load(HERE / "results.json").seeds
    runs = {
        method: found for (method, _), found in read_runs(read_cells(HERE), HERE.name, seeds, grouped=True).items()
    }
    words = rank_with_bm25(dict(task.documents), [query.text for query in task.test])
    gold = [{passage.id: passage.grade for passage in query.relevant} for query in task.test]
    assert gold == runs["none"][0].result.gold

    def fused(method: str) -> list[Any]:
        """Return the runs of a method with their rankings fused."""
        made = []
        for run in runs[method]:
            ranked = [list(sums) for sums in fuse_rankings(run.result.predicted, words)]
            made.append(run._replace(result=replace(run.result, predicted=ranked)))
        return made

    hybrids = {method: fused(method) for method in runs}
    alone = [run._replace(result=replace(run.result, predicted=words)) for run in runs["none"]]
    compared = {
        method: {
            "fused, from none fused": (hybrids[method], hybrids["none"]),
            "fused, from bm25": (hybrids[method], alone),
            "alone, from bm25": (runs[method], alone),
        }
        for method in runs
    }
    found = {
        method: {name: compare_runs(*sides, metrics=[METRIC]).metrics[METRIC] for name, sides in own.items()}
        for method, own in compared.items()
    }
    for name in compared["none"]:
        correct_for_multiple_comparisons([SimpleNamespace(comparison=own[name]) for own in found.values()])
    rows = {
        method: {name: {**rounded(one), "p_holm": one.p_holm} for name, one in own.items()}
        for method, own in found.items()
    }
    write_json(HERE / "hybrid.json", rows)
