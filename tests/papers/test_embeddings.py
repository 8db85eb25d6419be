"""Methods that learn sentence embeddings: their results are sentence encoders, and show what the text is about."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.adaptation.similarity import open_pairs
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.evaluation.embeddings import SentencePairs, load_encoder, load_pooling_head
from acclimate.models.encoding import encode
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.objectives import Outputs, TextContrast, View
from acclimate.study.compare import compare
from tests.cases import each
from tests.papers.test_contract import SHORT
from tests.parts.objectives.layouts import packed, padded
from tests.tiny import TEXTS, WORDS, save_tiny, tiny_tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")
ALONE = {"lm_weight": 0}
DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]


def our_vectors(folder, pooling):
    """Return the vectors that a method would train for some texts, in packed rows."""
    model = load_language_model(folder).model
    attach(model)
    batch = packed(padded([tiny_tokenizer()(text)["input_ids"] for text in TEXTS]))
    view = View("original")
    with torch.no_grad():
        outputs = Outputs({view: encode(model, batch.original, batch.text)}, batch, {})
        vectors = outputs.pooled(view, load_pooling_head(folder, model.device) if pooling == "own" else None)
        if pooling == "cls":
            vectors = torch.stack([outputs.hidden(view)[batch.text == n][0] for n in range(batch.texts)])
    order = [tiny_tokenizer().decode(batch.original[batch.text == n]) for n in range(batch.texts)]
    texts = [tiny_tokenizer().decode(tiny_tokenizer()(text)["input_ids"]) for text in TEXTS]
    return vectors[[order.index(text) for text in texts]].numpy()


@pytest.mark.slow
@each(("method", "settings", "pooling"), [
    ("tsdae", {}, "mean"),
    ("tsdae", {"pooling": "cls"}, "cls"),
    ("simcse", ALONE, "mean"),
])  # fmt: skip
def test_any_encoder_becomes_a_sentence_encoder(method, settings, pooling, tiny_bert, tmp_path):
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), method, tmp_path / "out", settings=settings, **SHORT)
    assert list(result.losses) == [method, "loss"]
    encoder = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module).__name__ for module in encoder] == ["Transformer", "Pooling"]
    vectors = encoder.encode(TEXTS)
    assert np.abs(vectors - our_vectors(tmp_path / "out", pooling)).max() < 1e-5
    assert np.abs(vectors - our_vectors(tmp_path / "out", "own")).max() < 1e-5
    assert np.abs(vectors - our_vectors(tiny_bert, pooling)).max() > 1e-4


def test_a_decoder_becomes_a_sentence_encoder(tiny_llama, tmp_path):
    adapt(tiny_llama, Corpus.of(DOCUMENTS), "simcse", tmp_path / "out", settings=ALONE, dropout=0.1, **SHORT)
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
    head = {"head_tokens": 300, "similarity": "none"}
    with pytest.raises(UserError, match="vectors of the sentence encoder have 8 dimensions and its hidden states 32"):
        adapt(tmp_path / "encoder", Corpus.of(DOCUMENTS), "tsdae", tmp_path / "out", **SHORT, **head)
    with pytest.raises(UserError, match="remove the parameter 'pooling'"):
        adapt(
            tmp_path / "encoder",
            Corpus.of(DOCUMENTS),
            "tsdae",
            tmp_path / "b",
            settings={"pooling": "cls"},
            **SHORT,
            **head,
        )


@each(("method", "settings", "words"), [
    ("simcse", {"lm_weight": 0, "weight": 0}, "nothing would be learned"),
    ("simcse", {"lm_weight": -1}, "lm-weight must be"),
    ("tsdae", {"deletion": 1}, "below 1"),
])  # fmt: skip
def test_invalid_parameters_are_explained(method, settings, words):
    with pytest.raises(UserError, match=words):
        get(method, **settings)


TOPICS = [WORDS[24 + 4 * number : 28 + 4 * number] for number in range(9)]


def planted(seed=0):
    """Return documents about topics, and pairs of texts about the same topic that have no word in common."""
    chance = random.Random(seed)
    documents = [" ".join(chance.choices(TOPICS[number % len(TOPICS)], k=6)) for number in range(360)]
    halves = [[" ".join(2 * topic[part]) for topic in TOPICS] for part in (slice(0, 2), slice(2, 4))]
    return documents, SentencePairs("topics", *halves)


def test_tsdae_learns_which_words_go_together(tmp_path):
    documents, pairs = planted()
    base = save_tiny("bert", tmp_path / "base")
    options = {**SHORT, "steps": 40, "batch_size": 36, "learning_rate": 5e-3, "similarity": "none"}
    adapt(base, Corpus.of(documents), "tsdae", tmp_path / "out", settings={"deletion": 0.5}, **options)
    before, after = (pairs.score(pairs.measure(load_encoder(folder)))["mrr"] for folder in (base, tmp_path / "out"))
    assert before < 0.5
    assert after > 0.9


@pytest.mark.slow
def test_a_study_measures_pairs_and_neighbours(tiny_bert, tmp_path):
    """With pairs on these, of every model; without, on neighbours if a method makes a sentence encoder."""
    chance = random.Random(0)
    documents = [". ".join(" ".join(chance.choices(WORDS[:60], k=6)) for _ in range(4)) for _ in range(24)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    scored = [{"text": a, "text_pair": b, "score": n + 0.5} for n, (a, b) in enumerate(itertools.pairwise(TEXTS))]
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in 3 * scored))
    study = {
        "models": [{"name": "tiny", "path": str(tiny_bert)}], "methods": ["none", "tsdae", "lm"], "seeds": 1,
        "domains": [{"name": "d", "corpus": "text.jsonl", "heldout": "text.jsonl"}], "evaluate": {"max_length": 24},
        "adapt": {"steps": 2, "batch_size": 8, "max_length": 24, "learning_rate": 0.01},
    }  # fmt: skip
    for name, more in (("pairs", {"similarity": [{"path": "scored.jsonl", "name": "mine"}]}), ("neighbours", {})):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**study, **more}))
        results = compare(tmp_path / f"{name}.yaml", tmp_path / name, progress=False)
        assert not results.failures
        (table,) = [table for table in results.tables if "Similarity" in table.title]
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        assert [row["method"] for row in rows] == ["tsdae", "lm"]
        before, after = (f"MRR {when}" if name == "neighbours" else when for when in ("before", "after"))
        assert all(abs(row[after] - row[before] - row["difference"]) < 1e-6 for row in rows)
    run = next(run for run in results.adaptations if run.method == "tsdae")
    found = load_encoder(tmp_path / "neighbours" / run.folder)
    pairs = open_pairs(tmp_path / "scored.jsonl")
    saved = json.loads((tmp_path / "pairs" / "results.json").read_text())
    (table,) = [table for table in saved["tables"] if table["title"] == "Similarity on pairs"]
    assert table["rows"][0][:6] == ["tiny", "d", "mine", "tsdae", len(pairs.first), "Spearman"]
    assert table["rows"][0][7] == pytest.approx(pairs.score(pairs.measure(found))["spearman"], abs=1e-6)
    with pytest.raises(UserError, match=r"study: similarity: .*nowhere"):
        compare({**study, "similarity": "nowhere.csv"}, tmp_path / "other", progress=False)
