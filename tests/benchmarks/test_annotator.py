"""The benchmark of the annotator runs, and both orders agree."""

from __future__ import annotations

import json

from benchmarks import annotator


def test_both_orders_give_the_same_labels(tmp_path, capsys):
    file = tmp_path / "result.json"
    assert annotator.main(["--shape", "tiny", "--texts", "8", "--rounds", "1", "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    assert result["differing"] == 0
    assert 0.05 < result["share"] < 0.95
    assert "0 labels differ" in capsys.readouterr().out
