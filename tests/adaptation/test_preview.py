"""Previews of masked texts: the same for all strategies, correct, and never written next to the model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.importance_measures import MAX_LISTED_UNITS, THINNED_UNITS, summarize_importance
from acclimate.adaptation.method import get
from acclimate.adaptation.result import describe_masked_texts, sample_masked_texts
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import get as masking
from acclimate.parts.masking.preview import find_importance_store
from acclimate.parts.masking.selective import SelectiveMasking
from acclimate.parts.masking.token_importance_store import TokenImportanceStore
from acclimate.parts.masking.wrappers import RandomSameCount, StaticMasking
from tests.tiny import TEXTS, tiny_tokenizer

OPTIONS = {"steps": 2, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}
LONG = [text for text in TEXTS if len(text.split()) > 9]


def rows():
    return [np.array(tiny_tokenizer()(f"{text} {number}")["input_ids"]) for text in LONG for number in range(3)]


def spelled(pieces):
    return "".join(" " * piece["space"] + piece["text"] for piece in pieces)


def shown(how):
    return sample_masked_texts(rows(), Collator.of(tiny_tokenizer(), how, MASKED, 500))


def test_all_strategies_are_shown_on_the_same_texts():
    plain, words = shown(masking("random", 0.3)), shown(masking("whole-word", 0.3))
    assert [spelled(text) for text in plain] == [spelled(text) for text in words]
    assert len(plain) == 3 and len({spelled(text) for text in plain}) == 3
    assert any(piece["replacement"] for text in plain for piece in text)
    assert shown(masking("random", 0.3)) == plain


@pytest.mark.parametrize("static", [True, False])
def test_important_and_masked_tokens_are_distinguished(tmp_path, static):
    found = []
    for ids in rows():
        ranks = np.zeros(len(ids), dtype=np.int64)
        ranks[1:5] = np.arange(1, 5)
        found.append((ids, ranks, len(ids) - 2))
    TokenImportanceStore.write(tmp_path, found)
    selective = SelectiveMasking(store=TokenImportanceStore.load(tmp_path), cap=0.1)  # one or two of the four tokens
    for how in (selective, RandomSameCount.matching(selective)):
        how = StaticMasking(how, 0) if static else how
        assert find_importance_store(how) is selective.store
        for pieces in shown(how):
            important = [number for number, piece in enumerate(pieces) if piece.get("important")]
            masked = [number for number, piece in enumerate(pieces) if piece["replacement"]]
            assert important == [0, 1, 2, 3] and 1 <= len(masked) <= 2
            if how in (selective, StaticMasking(selective, 0)):
                assert set(masked) <= set(important)
    assert find_importance_store(masking("random", 0.15)) is None


def test_previews_name_the_strategy():
    assert describe_masked_texts([], masking("span", 0.15))["masking"] == "span"
    assert describe_masked_texts([], StaticMasking(masking("whole-word", 0.15), 0))["masking"] == "whole-word"


def test_previews_are_returned_but_not_written_beside_the_model(tiny_bert, tmp_path, monkeypatch):
    secret = "the waiter was kind and the soup was cold"
    texts = Corpus.of([secret, *(f"{secret} {number}" for number in range(9))])
    result = adapt(tiny_bert, texts, "mlm", tmp_path / "o", **OPTIONS)
    assert result.masked["masking"] == "random" and "waiter was kind" in spelled(result.masked["texts"][0])
    for file in (tmp_path / "o").iterdir():
        if file.suffix in (".json", ".md", ".jsonl") and not file.name.startswith("tokenizer"):
            assert "waiter" not in file.read_text()
    # The run is already finished, so this returns the cached previews.
    assert adapt(tiny_bert, texts, "mlm", tmp_path / "o", **OPTIONS).masked == result.masked
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "another"))
    assert adapt(tiny_bert, texts, "mlm", tmp_path / "o", **OPTIONS).masked is None


@pytest.mark.needs("dga")
def test_a_method_that_measures_importance_writes_a_summary(tiny_bert, tmp_path):
    method = get("dga", importance_tokens=100, parts="H,I")
    adapt(tiny_bert, Corpus.of(TEXTS), method, tmp_path / "out", **OPTIONS)
    found = json.loads((tmp_path / "out" / "importance.json").read_text())
    heads, units = found["parts"]["H"], found["parts"]["I"]
    assert (heads["layers"], heads["units"], heads["sorted"]) == (2, 4, False)
    assert heads["name"] == "attention heads" and found["measured"] == "dropout"
    assert torch.allclose(torch.tensor(heads["protection"]), method._importance["H"].cpu(), rtol=1e-3)
    assert units["sorted"] and len(units["raw"][0]) == THINNED_UNITS


def test_many_units_are_sampled_in_order_of_importance():
    raw = {"I": torch.rand(3, 1000, generator=torch.Generator().manual_seed(0))}
    found = summarize_importance(raw, {"I": raw["I"] / 2})["parts"]["I"]
    for layer, values, halves in zip(raw["I"].tolist(), found["raw"], found["protection"], strict=True):
        assert len(values) == THINNED_UNITS and values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(max(layer), rel=1e-3) and values[-1] == pytest.approx(min(layer), rel=1e-2)
        assert halves == pytest.approx([value / 2 for value in values], rel=1e-3)
    few = {"H": torch.rand(2, MAX_LISTED_UNITS)}
    assert summarize_importance(few, few)["parts"]["H"]["raw"][0] == pytest.approx(few["H"][0].tolist(), rel=1e-3)
