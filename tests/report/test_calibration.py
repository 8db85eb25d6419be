"""What the table of scores says of the calibration error."""

from __future__ import annotations

from acclimate.evaluation.calibration import BINS
from acclimate.report.table import tables
from acclimate.study import compare
from tests.study.fakes import World, files, study


def test_the_number_of_bins_is_said(tmp_path):
    results = compare(
        study(files(tmp_path / "data"), seeds=1), tmp_path / "out", progress=False, backend=World().backend()
    )

    def note(results):
        return next(table.note for table in tables(results) if table.title == "Scores on end tasks")

    assert f"over {BINS} bins of equal width" in note(results)
    assert "bins" not in note({**results, "scores": [{**row, "reliability": []} for row in results["scores"]]})
