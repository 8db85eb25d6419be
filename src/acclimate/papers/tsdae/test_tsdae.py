"""TSDAE makes a sentence encoder that knows which words go together."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.adaptation.similarity import open_pairs
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.evaluation.embeddings import SentencePairs, load_encoder
from acclimate.study.compare import compare
from tests.cases import each
from tests.papers.test_contract import SHORT
from tests.papers.vectors import DOCUMENTS, our_vectors
from tests.tiny import TEXTS, WORDS, save_tiny

sentence_transformers = pytest.importorskip("sentence_transformers")


@pytest.mark.slow
@each(("settings", "pooling"), [({}, "mean"), ({"pooling": "cls"}, "cls")])
def test_any_encoder_becomes_a_sentence_encoder(settings, pooling, tiny_bert, tmp_path):
    result = adapt(tiny_bert, Corpus.of(DOCUMENTS), {"tsdae": settings}, tmp_path / "out", **SHORT)
    assert list(result.losses) == ["tsdae", "loss"]
    encoder = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module).__name__ for module in encoder] == ["Transformer", "Pooling"]
    vectors = encoder.encode(TEXTS)
    assert np.abs(vectors - our_vectors(tmp_path / "out", pooling)).max() < 1e-5
    assert np.abs(vectors - our_vectors(tmp_path / "out", "own")).max() < 1e-5
    assert np.abs(vectors - our_vectors(tiny_bert, pooling)).max() > 1e-4


def test_invalid_parameters_are_explained():
    with pytest.raises(UserError, match="below 1"):
        get("tsdae", deletion=1)


def test_a_pooling_head_is_refused(tmp_path):
    modules = sentence_transformers.sentence_transformer.modules
    transformer = modules.Transformer(str(save_tiny("bert", tmp_path / "plain")))
    encoder = sentence_transformers.SentenceTransformer(
        modules=[transformer, modules.Pooling(32, "max"), modules.Dense(32, 8)]
    )
    encoder.save(str(tmp_path / "encoder"), create_model_card=False)
    head = {"head_tokens": 300, "similarity": "none"}
    for settings, words in (
        ({}, "vectors of the sentence encoder have 8 dimensions and its hidden states 32"),
        ({"pooling": "cls"}, "remove the parameter 'pooling'"),
    ):
        with pytest.raises(UserError, match=words):
            adapt(
                tmp_path / "encoder",
                Corpus.of(DOCUMENTS),
                {"tsdae": settings},
                tmp_path / "out",
                **SHORT,
                **head,
            )


TOPICS = [WORDS[24 + 4 * number : 28 + 4 * number] for number in range(9)]


def planted(seed=0):
    """Return documents about topics, and pairs of texts about the same topic that have no word in common."""
    chance = random.Random(seed)
    documents = [" ".join(chance.choices(TOPICS[number % len(TOPICS)], k=6)) for number in range(360)]
    halves = [[" ".join(2 * topic[part]) for topic in TOPICS] for part in (slice(0, 2), slice(2, 4))]
    return documents, SentencePairs("topics", *halves)


@pytest.mark.slow
def test_tsdae_learns_which_words_go_together(tmp_path):
    documents, pairs = planted()
    base = save_tiny("bert", tmp_path / "base")
    options = {**SHORT, "steps": 40, "batch_size": 36, "learning_rate": 5e-3, "similarity": "none"}
    adapt(base, Corpus.of(documents), {"tsdae": {"deletion": 0.5}}, tmp_path / "out", **options)
    before, after = (pairs.score(pairs.measure(load_encoder(folder)))["mrr"] for folder in (base, tmp_path / "out"))
    assert before < 0.5
    assert after > 0.9


@pytest.mark.slow
def test_a_study_measures_pairs_and_neighbours(tiny_bert, tmp_path, caplog):
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
        own = [
            json.loads((tmp_path / name / run.folder / "acclimate.json").read_text()) for run in results.adaptations
        ]
        assert not any(record["result"].get("similarity") for record in own), "all seeds are measured together"
        assert caplog.text.count("show similarity worse") <= 1
        caplog.clear()
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
