"""Minutes of the selective-masking stages: from the adaptation they reach the report of a study."""

from __future__ import annotations

import json

import pytest

from acclimate.study.compare import compare
from acclimate.study.executor import JobStore
from tests.study.test_real import folder, write_study  # noqa: F401
from tests.tiny import save_tiny

pytestmark = pytest.mark.usefixtures("no_report")

QUICK = "{name: selective, delta: 1.0, finetune_epochs: 1, token_epochs: 3, token_learning_rate: 1e-2}"


@pytest.mark.slow
@pytest.mark.needs("selective")
def test_they_reach_the_results_after_an_interruption(folder, monkeypatch):  # noqa: F811
    save_tiny("bert", folder / "model")
    path = write_study(folder, f"[none, mlm, {QUICK}]")
    finish = JobStore.finish

    def killed(self, job, result, seconds):
        if job.name == "adapt" and job.method == "selective":
            raise KeyboardInterrupt
        finish(self, job, result, seconds)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(JobStore, "finish", killed)
        compare(path, folder / "out", progress=False)
    results = compare(path, folder / "out", progress=False)
    plain, selective = results["adaptations"]
    assert plain["preparation"] == {}
    summary = selective["preparation"]["selective.json"]
    assert all(summary[stage]["minutes"] > 0 for stage in ("finetune", "annotate", "train", "mark"))
    assert summary == json.loads((folder / "out" / selective["folder"] / "selective.json").read_text())
    page = (folder / "out" / "results.md").read_text()
    assert "Preparation before training" in page and "token classifier" in page
