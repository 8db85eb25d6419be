"""Contrast of two dropout masks of the same text, as an added term and alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.evaluation.embeddings import load_encoder
from acclimate.models.encoding import encode
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.objectives import Outputs, TextContrast
from tests.cases import each
from tests.papers.terms import DOCUMENTS, HELD, run
from tests.papers.test_contract import SHORT
from tests.papers.vectors import ALONE, our_vectors
from tests.parts.objectives.layouts import padded
from tests.tiny import TEXTS, save_tiny, tiny_tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")


def test_the_added_term_falls_on_held_out_text(tiny_bert, tmp_path):
    run(tiny_bert, "simcse", tmp_path / "out", heldout=HELD, heldout_every=20)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["heldout"]["terms"]["simcse"] for line in lines if "heldout" in line]
    assert len(found) >= 3
    assert found[-1] < found[0] - 0.02


@pytest.mark.slow
def test_any_encoder_becomes_a_sentence_encoder(tiny_bert, tmp_path):
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), {"simcse": ALONE}, tmp_path / "out", **SHORT)
    assert list(result.losses) == ["simcse", "loss"]
    encoder = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module).__name__ for module in encoder] == ["Transformer", "Pooling"]
    vectors = encoder.encode(TEXTS)
    assert np.abs(vectors - our_vectors(tmp_path / "out", "mean")).max() < 1e-5
    assert np.abs(vectors - our_vectors(tmp_path / "out", "own")).max() < 1e-5
    assert np.abs(vectors - our_vectors(tiny_bert, "mean")).max() > 1e-4


def test_a_decoder_becomes_a_sentence_encoder(tiny_llama, tmp_path):
    adapt(tiny_llama, Corpus.of(DOCUMENTS), {"simcse": ALONE}, tmp_path / "out", dropout=0.1, **SHORT)
    assert load_encoder(tmp_path / "out").encode(TEXTS).shape == (len(TEXTS), 32)


def test_with_language_modelling_the_model_stays_what_it_was(tiny_bert, tmp_path):
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "simcse", tmp_path / "out", **SHORT)
    assert not (tmp_path / "out" / "modules.json").exists()


def test_a_sentence_encoder_is_trained_with_its_own_pooling(tmp_path):
    modules = sentence_transformers.sentence_transformer.modules
    transformer = modules.Transformer(str(save_tiny("bert", tmp_path / "plain")))
    encoder = sentence_transformers.SentenceTransformer(
        modules=[transformer, modules.Pooling(32, "max"), modules.Dense(32, 8)]
    )
    encoder.save(str(tmp_path / "encoder"), create_model_card=False)
    method = get("simcse", **ALONE)
    model = load_language_model(tmp_path / "encoder").model
    attach(model)
    method.prepare(type("Run", (), {"model": model, "device": model.device}))
    (term,) = method.objectives()
    assert isinstance(term, TextContrast)
    batch = padded()
    states = encode(model, batch.original, batch.text)
    found = term.represent(Outputs({view: states for view in term.views}, batch, {}))
    texts = [
        tiny_tokenizer().decode(ids[mask][1:-1]) for ids, mask in zip(batch.original, batch.text >= 0, strict=True)
    ]
    expected = encoder.encode([text.replace(" ##", "") for text in texts])
    assert found.shape == (batch.texts, 2, 8)
    assert np.abs(found[:, 0].detach().numpy() - expected).max() < 1e-5


@each(("settings", "words"), [
    ({"lm_weight": 0, "weight": 0}, "nothing would be learned"),
    ({"lm_weight": -1}, "lm-weight must be"),
])  # fmt: skip
def test_invalid_parameters_are_explained(settings, words):
    with pytest.raises(UserError, match=words):
        get("simcse", **settings)
