"""An adapted sentence encoder is one: pooling, further modules, prompts and length are those of the base model."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.base.progress import Progress
from acclimate.cli.main import app
from acclimate.data.documents import Corpus
from acclimate.evaluation import embeddings
from acclimate.evaluation.embeddings import (
    SentencePairs,
    compare_encoders,
    describe_change,
    is_sentence_encoder,
    load_encoder,
    neighbor_pairs,
    similarity_warning,
)
from acclimate.evaluation.significance import paired_difference
from acclimate.merging.merge import merge
from acclimate.study.compare import compare
from tests.cases import each
from tests.tiny import TEXTS, WORDS, save_tiny

sentence_transformers = pytest.importorskip("sentence_transformers")

SENTENCES = ["the food was good", "a rude waiter and cold soup", "the model and the data", "it was cheap"]
QUICK = {"steps": 1, "batch_size": 4, "max_length": 16, "progress": False, "precision": "fp32"}
RNG = np.random.default_rng(0)
DOCUMENTS = [
    " ".join(" ".join(RNG.choice(WORDS[:60], 6)) + "." for _ in range(4)) + f" {number} was it for the table."
    for number in range(24)
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny sentence encoder with pooling over maxima, a dense layer, normalization and prompts."""
    folder = tmp_path_factory.mktemp("encoder")
    from sentence_transformers.sentence_transformer import modules

    transformer = modules.Transformer(str(save_tiny("bert", folder / "plain")), max_seq_length=40)
    made = sentence_transformers.SentenceTransformer(
        modules=[transformer, modules.Pooling(32, "max"), modules.Dense(32, 8), modules.Normalize()],
        prompts={"query": "the question : "},
        similarity_fn_name="dot",
    )
    made.save(str(folder / "encoder"), create_model_card=False)
    return folder / "encoder"


def vectors(folder, **options):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(SENTENCES, **options)


def test_unmodified_weights_give_the_same_embeddings(encoder, tmp_path):
    adapt(encoder, Corpus.of(TEXTS), "none", tmp_path / "out", progress=False, head_tokens=500, max_length=16)
    before, after = (sentence_transformers.SentenceTransformer(str(f)) for f in (encoder, tmp_path / "out"))
    assert [type(module) for module in after] == [type(module) for module in before] and len(after) == 4
    assert after.max_seq_length == before.max_seq_length == 40
    assert (after.prompts["query"], after.similarity_fn_name) == ("the question : ", "dot")
    for options in ({}, {"prompt_name": "query"}):
        assert np.abs(after.encode(SENTENCES, **options) - before.encode(SENTENCES, **options)).max() < 1e-6
    merge([tmp_path / "out", encoder], "soup", tmp_path / "merged", progress=False)
    assert np.abs(vectors(tmp_path / "merged") - vectors(encoder)).max() < 1e-6


def test_the_modules_read_the_adapted_weights(encoder, tmp_path):
    pytest.importorskip("peft")
    options = {**QUICK, "learning_rate": 0.01, "head_tokens": 500, "similarity": "none"}
    adapt(encoder, Corpus.of(TEXTS), "lm", tmp_path / "full", keep_steps=(0, 1), **options)
    adapt(encoder, Corpus.of(TEXTS), "lm", tmp_path / "lora", adapter="lora", **options)
    base = vectors(encoder)
    assert np.abs(vectors(tmp_path / "full" / "step-000000") - base).max() < 1e-6
    assert np.abs(vectors(tmp_path / "full" / "step-000001") - vectors(tmp_path / "full")).max() < 1e-6
    for out in (tmp_path / "full", tmp_path / "lora"):
        model = sentence_transformers.SentenceTransformer(str(out))
        same = sentence_transformers.SentenceTransformer(str(encoder))
        assert np.abs(model.encode(SENTENCES) - base).max() > 1e-4
        same[0].load_state_dict(model[0].state_dict())
        assert np.abs(model.encode(SENTENCES) - same.encode(SENTENCES)).max() < 1e-6


def test_the_layout_of_the_first_versions(encoder, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(encoder, old / "0_Transformer", ignore=shutil.ignore_patterns("[1-9]_*", "modules.json"))
    for path in ("1_Pooling", "2_Dense", "3_Normalize"):
        shutil.copytree(encoder / path, old / path)
    modules = read_json(encoder / "modules.json")
    (old / "modules.json").write_text(json.dumps([{**modules[0], "path": "0_Transformer"}, *modules[1:]]))
    out = tmp_path / "out"
    adapt(old / "0_Transformer", Corpus.of(TEXTS), "none", out, progress=False, head_tokens=500, max_length=16)
    assert np.abs(vectors(out) - vectors(old)).max() < 1e-6


def test_modules_that_are_not_carried_over_are_named(encoder, tmp_path, caplog):
    start = shutil.copytree(encoder, tmp_path / "start")
    modules = read_json(start / "modules.json")
    modules[2]["path"] = "../2_Dense"
    (start / "modules.json").write_text(json.dumps(modules))
    adapt(start, Corpus.of(TEXTS), "none", tmp_path / "out", progress=False, head_tokens=500, max_length=16)
    assert "not carried over" in caplog.text and "../2_Dense" in caplog.text


def test_a_drop_of_similarity_is_reported_everywhere(encoder, tmp_path, caplog):
    heldout = tmp_path / "heldout.jsonl"
    heldout.write_text("".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS))
    command = ["adapt", "--model", encoder, "--corpus", heldout, "--heldout", heldout, "--steps", 3, "--out"]
    options = [tmp_path / "out", "--learning-rate", 0.3, "--max-length", 16, "--batch-size", 8, "--head-tokens", 500]
    run = CliRunner().invoke(app, [str(part) for part in (*command, *options)])
    assert run.exit_code == 0, run.output
    manifest = read_json(tmp_path / "out" / "acclimate.json")
    (change,) = manifest["result"]["similarity"]
    assert change["name"] == "held-out text" and change["metric"] == "mrr" and change["pairs"] >= 20
    before, after = (load_encoder(folder) for folder in (encoder, tmp_path / "out"))
    pairs = neighbor_pairs("held-out text", DOCUMENTS)
    assert change["after"] == pytest.approx(pairs.score(pairs.measure(after))["mrr"], abs=1e-6)
    assert change["before"] == pytest.approx(pairs.score(pairs.measure(before))["mrr"], abs=1e-6)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "library_name: sentence-transformers" in card and "SentenceTransformer(" in card
    assert "Sentence similarity" in card and f"{change['after']:.3f}" in card
    assert f"{change['before']:.3f} before, {change['after']:.3f} after" in run.output
    assert ("show similarity worse" in card) == ("show similarity worse" in caplog.text) == (change["high"] < 0)
    again = adapt(encoder, heldout, "lm", tmp_path / "out", heldout=heldout, steps=3, learning_rate=0.3, max_length=16,
                  batch_size=8, head_tokens=500, progress=False)  # fmt: skip
    assert again.similarity[0].to_dict() == change


class Fixed:
    """An encoder with given vectors."""

    def __init__(self, table):
        self.table = table

    def encode(self, texts, **_):
        return torch.tensor(np.array([self.table[text] for text in texts]), dtype=torch.float)

    def similarity(self, a, b):
        return a @ b.T

    def similarity_pairwise(self, a, b):
        return (a * b).sum(1)


def test_ranks_and_correlations_agree_with_slow_computations():
    names = [f"t{n}" for n in range(24)]
    table = {name: RNG.normal(size=4) for name in names}
    pairs = SentencePairs("x", names[:12], names[12:])
    ranks = pairs.measure(Fixed(table))
    for first, second, rank in zip(names[:12], names[12:], ranks, strict=True):
        scores = sorted((table[first] @ table[other] for other in names[12:]), reverse=True)
        assert scores.index(table[first] @ table[second]) + 1 == rank
    assert pairs.score(ranks) == {
        "mrr": pytest.approx(np.mean([1 / rank for rank in ranks])),
        "recall@1": np.mean([rank == 1 for rank in ranks]),
    }
    constant = Fixed({name: [1.0, 0.0] for name in names})
    assert pairs.measure(constant) == [12] * 12
    better = paired_difference(1 / np.array(ranks), np.full(12, 1 / 12))
    assert describe_change(pairs, [12] * 12, ranks).low == pytest.approx(better.low)
    scored = SentencePairs("y", names[:12], names[12:], list(range(12)))
    values = scored.measure(Fixed(table))
    assert values == pytest.approx(
        [table[a] @ table[b] for a, b in zip(names[:12], names[12:], strict=True)], abs=1e-5
    )
    assert scored.score(scored.measure(constant)) == {"spearman": 0.0}


def test_neighbors_are_sentences_of_one_document_and_used_once():
    pairs = neighbor_pairs("x", [*DOCUMENTS, *DOCUMENTS, "One sentence only, without any neighbor.", "Short. Too."])
    used = [*pairs.first, *pairs.second]
    assert len(used) == len(set(used)) >= 40
    for first, second in zip(pairs.first, pairs.second, strict=True):
        assert any(f"{first} {second}" in document for document in DOCUMENTS)
    assert sorted(set(pairs.groups)) == list(range(max(pairs.groups) + 1)) and len(pairs.groups) == len(pairs.first)
    assert len(set(pairs.groups)) < len(pairs.first), "pairs of one document are one unit"
    ranks = np.arange(len(pairs.first)) % 3 + 1
    alone = replace(pairs, groups=None).compare(ranks, [ranks[::-1]])
    assert pairs.compare(ranks, [ranks[::-1]]).freedom == max(pairs.groups) < alone.freedom
    assert neighbor_pairs("x", DOCUMENTS[:2]) is None
    assert len(neighbor_pairs("x", DOCUMENTS, limit=20).first) == 20
    assert neighbor_pairs("x", DOCUMENTS).fingerprint() == neighbor_pairs("x", DOCUMENTS).fingerprint()


def test_given_pairs(encoder, tmp_path):
    rows = [{"sentence1": text, "sentence2": SENTENCES[n % 4], "score": n / 4} for n, text in enumerate(TEXTS[:30])]
    file = tmp_path / "pairs.tsv"
    file.write_text("\n".join(["sentence1\tsentence2\tscore", *("\t".join(map(str, row.values())) for row in rows)]))
    result = adapt(encoder, Corpus.of(TEXTS), "lm", tmp_path / "out", similarity=file, head_tokens=500, **QUICK)
    (change,) = result.similarity
    assert (change.name, change.metric, change.pairs) == ("pairs", "spearman", len(rows))


@each(
    ("case", "words"),
    [
        ("plain", "no modules.json"),
        ("classes", "no pairs of sentences"),
        ("missing", "pip install 'acclimate\\[embeddings\\]'"),
    ],
)
def test_what_cannot_be_measured_is_an_error_before_training(case, words, encoder, tiny_bert, tmp_path, monkeypatch):
    rows = [{"text": text, "text_pair": text, "label": n + 0.5} for n, text in enumerate(TEXTS[:20])]
    if case == "classes":
        rows = [{"text": text, "label": n % 2} for n, text in enumerate(TEXTS[:20])]
    if case == "missing":
        monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(UserError, match=words):
        adapt(
            tiny_bert if case == "plain" else encoder, Corpus.of(TEXTS), "lm", tmp_path / "out", similarity=rows,
            **QUICK,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_without_the_library_the_files_are_kept_and_the_rest_is_a_warning(encoder, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    result = adapt(encoder, Corpus.of(DOCUMENTS), "lm", tmp_path / "out", head_tokens=500, **QUICK)
    assert result.similarity == [] and "is not measured" in caplog.text
    assert (tmp_path / "out" / "2_Dense" / "model.safetensors").is_file()


def test_an_encoder_that_cannot_be_loaded_keeps_the_result(encoder, tmp_path, monkeypatch, caplog):
    def fail(folder):
        raise UserError(f"'{folder}' cannot be loaded as a sentence encoder: it is broken.")

    monkeypatch.setattr(embeddings, "load_encoder", fail)
    result = adapt(encoder, Corpus.of(DOCUMENTS), "lm", tmp_path / "out", head_tokens=500, **QUICK)
    assert result.similarity == [] and "was not measured" in caplog.text and is_sentence_encoder(tmp_path / "out")


def test_only_drops_are_warned_of(caplog):
    pairs = SentencePairs("x", ["a"] * 30, ["b"] * 30)
    changes = [
        describe_change(pairs, before, after) for before, after in (([1] * 30, [2] * 29 + [3]), ([2] * 30, [1] * 30))
    ]
    with caplog.at_level(logging.WARNING):
        warning = similarity_warning(changes)
    assert "MRR 1.000 before" in warning and warning.count("before") == 1 and warning in caplog.text
    assert similarity_warning(changes[1:]) == ""


def test_the_same_model_changes_nothing_and_its_texts_are_counted(encoder, monkeypatch):
    pairs, shown = neighbor_pairs("x", DOCUMENTS), []
    monkeypatch.setattr(Progress, "update", lambda self, count, note="": shown.append((count, self._total)))
    (change,) = compare_encoders(encoder, encoder, [pairs])
    assert (change.difference, change.verdict) == (0.0, "no difference shown")
    assert shown[-1] == (4 * len(pairs.first), 4 * len(pairs.first)) and shown == sorted(shown)


@pytest.mark.slow
def test_a_study_compares_the_embeddings_with_those_of_the_base_model(encoder, tmp_path):
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("corpus", "heldout", "general")}
    for name, file in files.items():
        text = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)
        Path(file).write_text(text.replace("table", name))
    study = {
        "name": "encoders", "models": [{"name": "enc", "path": str(encoder)}], "methods": ["none", "lm"], "seeds": 1,
        "domains": [{"name": "d", "corpus": files["corpus"], "heldout": files["heldout"]}],
        "general": files["general"], "evaluate": {"max_length": 16},
        "adapt": {"steps": 2, "batch_size": 4, "max_length": 16, "learning_rate": 0.1, "head_tokens": 500},
    }  # fmt: skip
    (tmp_path / "study.json").write_text(json.dumps(study))
    results = compare(tmp_path / "study.json", tmp_path / "out", progress=False)
    assert not results.failures
    (table,) = [table for table in results.tables if "Similarity" in table.title]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["text"], row["method"]) for row in rows] == [("domain", "lm"), ("general", "lm")]
    (run,) = [run for run in results.adaptations if run.method == "lm"]
    pairs = neighbor_pairs("x", (json.loads(line)["text"] for line in Path(files["heldout"]).read_text().splitlines()))
    after = pairs.score(pairs.measure(load_encoder(tmp_path / "out" / run.folder)))
    before = pairs.score(pairs.measure(load_encoder(encoder)))
    assert rows[0]["MRR after"] == pytest.approx(after["mrr"], abs=1e-6)
    assert rows[0]["MRR before"] == pytest.approx(before["mrr"], abs=1e-6)
    assert rows[0]["difference"] == pytest.approx(after["mrr"] - before["mrr"], abs=1e-6)
    assert rows[0]["recall@1 after"] == pytest.approx(after["recall@1"]) and rows[0]["verdict"] == "–"
    assert table.title in (tmp_path / "out" / "report.html").read_text()
