"""What cannot work is refused before the text is tokenized, which may take hours."""

from __future__ import annotations

import importlib

import pytest

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.mix.base import MIXES
from tests.cases import each, installed
from tests.tiny import TEXTS

MIX = {"mix": "fixed", "sources": {"law": Corpus.of(TEXTS)}}
LENGTHS = "lengths" in MIXES.names()


@each(("method", "options", "message"), installed(REGISTRY, [
    ("dga", {"adapter": "wider"}, "protects units of the model, which the adapter 'wider' cannot"),
    ("das", {"adapter": "deeper"}, "protects units of the model, which the adapter 'deeper' cannot"),
    ("dga mask_on=gradient", {"adapter": "lora"}, "not their gradient"),
    ("mixda", {"adapter": "lora"}, "does not work with an adapter"),
    ("lm", {"adapter": "wider", "rules": "refactor every=2"}, "The adapter 'wider' has no low-rank factors"),
    ("teachers teachers=laws=a", MIX, "Did you mean 'law'"),
    *[("teachers teachers=laws=a", {**MIX, "mix": "lengths"}, r"law \(short\)")] * LENGTHS,
    ("none", MIX, "does not train, so nothing can be mixed in"),
    ("das", {"keep_steps": (1,)}, "has no intermediate models"),
    ("lm", {"keep_steps": (9,)}, "the training has only 1 steps"),
    ("lm", {"rules": "ewc strength=1"}, "needs general text"),
    ("lm", {"rules": "sparsity choice=random"}, "needs the parameter 'share'"),
    ("lm", {"monitor": True}, "needs held-out text"),
    ("lm", {"similarity": "pairs.csv"}, "has no modules.json"),
]))  # fmt: skip
def test_refused_before_any_text_is_tokenized(tiny_bert, tmp_path, monkeypatch, method, options, message):
    monkeypatch.setattr(importlib.import_module("acclimate.adaptation.inputs"), "tokenize", None)
    with pytest.raises(UserError, match=message):
        adapt(tiny_bert, Corpus.of(TEXTS), method, tmp_path / "out", steps=1, max_length=24, progress=False, **options)
    assert not (tmp_path / "out").exists()
