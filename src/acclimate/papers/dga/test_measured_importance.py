"""Importance is measured until it is precise enough."""

from __future__ import annotations

import json
import math
from unittest.mock import patch

import pytest
import torch

import acclimate.adaptation.importance_measures as measuring
import acclimate.adaptation.method as running
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models import batching
from acclimate.parts.objectives import vocabulary
from acclimate.parts.updates import normalize_importance
from tests.papers.test_contract import SHORT
from tests.tiny import TEXTS

GROUP = 60
"""Tokens per group in these tests."""
MANY = [f"{text} {number}" for text in TEXTS for number in range(40)]


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(running, "SAMPLE_GROUP_TOKENS", GROUP)


def measured(tiny_bert, out, **settings):
    """The importance record that an adaptation wrote, and the method with its importances."""
    method = get("dga", **settings)
    adapt(tiny_bert, Corpus.of(MANY), method, out, **SHORT)
    return json.loads((out / "importance.json").read_text()), method


@pytest.mark.slow
def test_without_a_target_error_all_text_is_read(tiny_bert, tmp_path):
    summary, _ = measured(tiny_bert, tmp_path / "all", importance_error=0, importance_tokens=1_500)
    assert 1_400 < summary["tokens"] <= 1_500
    assert 0 < summary["standard_error"] < 1


@pytest.mark.slow
def test_measuring_stops_at_the_target_error(tiny_bert, tmp_path):
    whole, exact = measured(tiny_bert, tmp_path / "a", importance_error=0)
    error = 1.5 * whole["standard_error"]
    summary, _ = measured(tiny_bert, tmp_path / "b", importance_error=error)
    assert 4 * GROUP < summary["tokens"] < whole["tokens"]
    assert summary["standard_error"] <= error
    off = normalize_importance(torch.tensor(summary["parts"]["H"]["raw"])) - exact._importance["H"].cpu()
    assert 0 < float(off.square().mean().sqrt()) < 3 * error
    soon, _ = measured(tiny_bert, tmp_path / "c", importance_error=1.0)
    assert 4 * GROUP < soon["tokens"] <= 4 * GROUP + 4 * SHORT["max_length"]
    again, _ = measured(tiny_bert, tmp_path / "d", importance_error=1.0)
    assert again == soon, "from the cache"


def test_measuring_continues_after_a_kill_and_for_a_smaller_error(tiny_bert, tmp_path, monkeypatch):
    """With bit-identical values."""
    measure, calls = measuring.summed_importance, []

    def counted(*args, **kwargs):
        if len(calls) == 5:
            raise KeyboardInterrupt
        calls.append(1)
        return measure(*args, **kwargs)

    options = {"importance_error": 0, "importance_tokens": 9 * GROUP}
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "one"))
    whole, first = measured(tiny_bert, tmp_path / "whole", **options)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(measuring, "summed_importance", counted)
    with pytest.raises(KeyboardInterrupt):
        measured(tiny_bert, tmp_path / "out", **options)
    calls[:] = [1, 1, 1, 1]
    measured(tiny_bert, tmp_path / "soon", importance_error=1.0)
    assert len(calls) == 4, "four of the five groups that were kept are enough"
    calls.clear()
    monkeypatch.setattr(measuring, "summed_importance", lambda *a, **k: calls.append(1) or measure(*a, **k))
    again, second = measured(tiny_bert, tmp_path / "out", **options)
    assert again == whole
    assert torch.equal(first._importance["H"], second._importance["H"])
    assert len(calls) == len(list((tmp_path / "one").glob("importance/*/*"))) - 5 > 0


def test_too_little_text_has_no_error_estimate(tiny_bert, tmp_path):
    summary, _ = measured(tiny_bert, tmp_path / "few", importance_tokens=100)
    assert summary["standard_error"] is None
    assert summary["tokens"] <= 100
    summary, _ = measured(tiny_bert, tmp_path / "random", importance="random")
    assert summary["measured"] == "random" and "tokens" not in summary


def test_non_finite_values_are_reported_at_the_first_group(tiny_bert, tmp_path, monkeypatch):
    calls = []

    def broken(model, units, batches, **_):
        calls.append(len(list(batches)))
        return 3, {"H": torch.full((2, 4), math.nan)}

    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "summed_importance", broken)
    with pytest.raises(UserError, match="not finite; try --precision fp32"):
        measured(tiny_bert, tmp_path / "out", importance_tokens=1_000)
    assert len(calls) == 1
    assert not list(tmp_path.glob("cache/importance/*/*")), "and not kept"


def test_a_damaged_group_is_measured_again(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    options = {"importance_error": 0, "importance_tokens": 3 * GROUP}
    whole, _ = measured(tiny_bert, tmp_path / "a", **options)
    files = sorted((tmp_path / "cache").glob("importance/*/*/*.safetensors"))
    before = [file.read_bytes() for file in files]
    files[0].write_bytes(before[0][:50])
    files[1].unlink()
    assert measured(tiny_bert, tmp_path / "b", **options)[0] == whole
    assert [file.read_bytes() for file in files] == before


def test_a_read_only_cache_does_not_stop_the_run(tiny_bert, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("acclimate.adaptation.method.save_file", full)
    summary, _ = measured(tiny_bert, tmp_path / "a", importance_tokens=100)
    assert summary["parts"]["H"]["raw"] and "Cannot store measured values" in caplog.text
    assert not list((tmp_path / "cache").glob("importance/*/*"))


def test_the_cache_key_covers_what_decides_the_random_numbers(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    for number, (name, value) in enumerate([("__version__", "0"), ("training_tokens", lambda *_, **__: 50)]):
        measured(tiny_bert, tmp_path / f"a{number}", importance_tokens=100)
        monkeypatch.setattr(running, name, value)
    measured(tiny_bert, tmp_path / "b", importance_tokens=100)
    assert len(list((tmp_path / "cache").glob("importance/*"))) == 3


def test_logits_are_computed_some_positions_at_a_time(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    options = {"importance_tokens": 200, "importance_reads": "logits"}
    whole, _ = measured(tiny_bert, tmp_path / "a", **options)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "other"))
    monkeypatch.setitem(batching.LOGITS_AT_ONCE, "cpu", 1)
    with patch.object(vocabulary, "checkpoint", wraps=vocabulary.checkpoint) as chunk:
        parts, _ = measured(tiny_bert, tmp_path / "b", **options)
    assert chunk.call_count > 2
    for found, expected in zip(parts["parts"]["H"]["raw"], whole["parts"]["H"]["raw"], strict=True):
        assert found == pytest.approx(expected, rel=1e-3)


def test_a_negative_error_is_refused():
    with pytest.raises(UserError, match="importance-error must be zero or more"):
        get("dga", importance_error=-0.1)
