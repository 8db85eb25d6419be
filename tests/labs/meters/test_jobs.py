"""Meters and the recovery probe in a study, and the rank correlation of meters with forgetting."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from acclimate.base.errors import UserError
from acclimate.labs.meters.jobs import MeterJob, MeterRow, _correlations
from acclimate.report import markdown
from acclimate.results.study import StudyResults
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from tests.study.fakes import World, files, graph_of, of_kind, study

ON = {"documents": 20, "meters": True, "recovery": 30}


class Probed(World):
    """After the probe, the base model is as before, and an adapted model is as one that forgets less."""

    def adapt(self, model, corpus, method="mlm", out=None, **options):
        found = super().adapt(model, corpus, method, out, **options)
        if method == "lm":
            kind = "none" if self._kind(model) == "none" else "dga"
            (Path(out) / "config.json").write_text(json.dumps({"method": kind}))
        return found

    def meters(self, base, adapted, texts, *, max_length):
        self._called("meters", base=base, model=adapted, texts={name: list(own) for name, own in texts.items()})
        return {"kl": {"domain": 0.5, "general": None}, "distance": 0.25}


@pytest.mark.needs("dga")
def test_meters_of_every_adaptation(tmp_path, monkeypatch):
    monkeypatch.setattr("acclimate.report.write_report", lambda results, path: path)
    folder = files(tmp_path / "data")
    values, world = study(folder, evaluate=ON, adapt_seeds=[0, 1]), Probed()
    plain = graph_of(study(folder, adapt_seeds=[0, 1]))
    graph = graph_of(values)
    assert not of_kind(plain, "meters") and len(of_kind(graph, "meters")) == 5
    assert {job.key for job in plain.jobs.values()} == {job.key for job in graph.jobs.values() if job.name != "meters"}
    backend = world.backend(others={"meters": world.meters})
    results = compare(values, tmp_path / "out", progress=False, backend=backend)
    (measured,) = {tuple(one["texts"]["general"]) for one in world.arguments if one["kind"] == "meters"}
    general = [one for one in world.arguments if one["kind"] == "lm_loss" and tuple(one["texts"]) == measured]
    assert len(general) == 10, "of each model once, before and after the probe"
    probes = [one for one in world.arguments if one["kind"] == "adapt" and one["method"] == "lm"]
    assert len(probes) == 5 and all(one["steps"] == 30 for one in probes)
    assert all(one["documents"] and not set(one["documents"]) & set(measured) for one in probes)
    models = {name: tmp_path / name for name in ("none", "mlm", "dga")}
    for name, path in models.items():
        path.mkdir()
        (path / "config.json").write_text(json.dumps({"method": name}))
    losses = {name: world.lm_loss(path, list(measured), max_length=8)["nats"] for name, path in models.items()}
    rows = results["rows"]["meters"]
    assert [(row["method"], row["adapt_seed"]) for row in rows] == [
        (method, seed) for method in ("mlm", "dga, no contrast") for seed in (0, 1)
    ]
    for row in rows:
        after = losses[row["method"][:3]] - losses["none"]
        assert row["forgotten"] == pytest.approx(after)
        expected = 1 - (losses["dga"] - losses["none"]) / after if after >= 0.01 else None
        assert row.recovered == (None if expected is None else pytest.approx(expected))
        assert (row["kl_domain"], row["distance"]) == (0.5, 0.25)
    assert "## Forgetting meters" in markdown(results) and "## Rank correlation of meters" in markdown(results)
    for name in ("meters", "recovery"):
        with pytest.raises(UserError, match=rf"evaluate\.{name} measures on general text"):
            StudyConfig.of(study(folder, evaluate={name: 1 if name == "recovery" else True}, general=None))


def test_shares_of_little_are_said_and_do_not_dominate_the_mean():
    place = {"model": "m", "domain": "d", "method": "a"}
    pairs = [(1.0, 0.5), (0.011, -40.0), (0.001, None)]
    rows = [MeterRow(**place, adapt_seed=n, forgotten=lost, recovered=own) for n, (lost, own) in enumerate(pairs)]
    table = MeterJob.tables(StudyResults(name="s", rows={"meters": rows}))[0]
    assert "1 of 3 adaptations forgot less than 0.01 nats and have none" in table.note
    assert table.rows[0][table.columns.index("share recovered")].value == pytest.approx((0.5 - 0.44) / 1.011)


def test_rank_correlations_are_those_of_scipy():
    rng = random.Random(0)
    rows = [
        MeterRow(
            **{"model": "m", "domain": "d", "method": str(number % 9), "adapt_seed": number // 9},
            **{"kl_domain": number**2, "distance": rng.choice([1.0, 2.0, 3.0]), "forgotten": float(number)},
        )
        for number in range(27)
    ]
    found = {row[0].text: row for row in _correlations(rows)}
    assert found.keys() == {"KL, domain text", "distance of weights"}
    exact, distance = found.values()
    assert [entry.text for entry in exact[1:4]] == ["27", "9", "+1.00 [+1.00, +1.00]"]
    expected = spearmanr([row.distance for row in rows], [row.forgotten for row in rows]).statistic
    assert distance[3].value == pytest.approx(expected) and distance[4].text == "–"
    assert exact[4].value == pytest.approx(1 - abs(expected))
    rows = [row for row in rows if row.method in "012"]
    assert next(row[3].text for row in _correlations(rows)) == "+1.00"  # too few rows for an interval
