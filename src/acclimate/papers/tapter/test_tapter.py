"""TAPTER end to end on a tiny model."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.papers.tapter import target_vectors
from acclimate.papers.tapter.method import TAPTER
from acclimate.papers.tapter.objective import EmbeddingProjection
from tests.cases import each
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tiny import VOCABULARY

pytest.importorskip("gensim")
TABLE = "bert.embeddings.word_embeddings.weight"
SETTINGS = {"dimension": 8, "epochs": 2, "min_count": 2, "buckets": 5_000}


def run(model, out, method="tapter", steps=6, **settings):
    settings = {**SETTINGS, **settings} if method == "tapter" else None
    options = {**SHORT, "steps": steps, "learning_rate": 1e-2, "warmup": 0.0}
    for name in {"precision", "seed"} & set(settings or ()):
        options[name] = settings.pop(name)
    return adapt(model, Corpus.of(DOCUMENTS), {method: settings}, out, **options)


@pytest.mark.slow
def test_the_embedding_loss_falls_and_the_projection_is_not_saved(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "mlm", "mlm")
    result = run(tiny_bert, tmp_path / "tapter", weight=50.0)
    start, mlm, tapter = (
        load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "mlm", tmp_path / "tapter")
    )
    assert tapter.keys() == start.keys()
    assert not torch.allclose(tapter[TABLE], mlm[TABLE], atol=1e-3)
    longer = run(tiny_bert, tmp_path / "longer", steps=60, weight=50.0)
    assert longer.losses["embedding"] < result.losses["embedding"]


def test_given_target_vectors_skip_fasttext_and_their_norm_is_saved(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(target_vectors, "train_fasttext", None)
    tokens = len(VOCABULARY)
    np.save(tmp_path / "f.npy", np.full((tokens, 4), 2.0))
    result = run(tiny_bert, tmp_path / "out", vectors=str(tmp_path / "f.npy"), stop_words="none", precision="bf16")
    summary = {"tokens": tokens - 5, "dimension": 4, "mean_norm": 4.0}  # all but the five special tokens
    assert result.preparation["fasttext.json"] == summary
    assert json.loads((tmp_path / "out" / "fasttext.json").read_text()) == summary


def test_the_projection_is_trained(tiny_bert, tmp_path, monkeypatch):
    kept = []
    finish = TAPTER.finish
    monkeypatch.setattr(TAPTER, "finish", lambda self, run: kept.append(self._regularizer) or finish(self, run))
    run(tiny_bert, tmp_path / "out")
    ((term,),) = (kept,)
    fresh = EmbeddingProjection(*term.projection.linear.weight.shape[::-1])
    assert not torch.equal(term.projection.norm.weight.cpu(), fresh.norm.weight)
    assert not torch.equal(term.projection.norm.bias, fresh.norm.bias)
    assert term.projection.linear.bias.any()


@pytest.fixture
def trainings(monkeypatch):
    """The options of each fastText training."""
    made = []
    train = target_vectors.train_fasttext
    monkeypatch.setattr(
        target_vectors, "train_fasttext", lambda texts, **options: made.append(options) or train(texts, **options)
    )
    return made


@pytest.fixture
def general(tmp_path):
    file = tmp_path / "general.txt"
    file.write_text("\n\n".join(f"soup and wine on the table {number}" for number in range(20)))
    return str(file)


def test_the_cache_key_of_the_vectors_covers_their_options(tiny_bert, tmp_path, trainings):
    run(tiny_bert, tmp_path / "a", epochs=1)
    run(tiny_bert, tmp_path / "b", epochs=1, weight=2.0)
    assert len(trainings) == 1
    run(tiny_bert, tmp_path / "c", epochs=3)
    run(tiny_bert, tmp_path / "d", epochs=1, boundary="aware")
    assert len(trainings) == 3


def test_fasttext_trains_on_the_general_text_first_and_only_once(tiny_bert, tmp_path, trainings, general):
    run(tiny_bert, tmp_path / "plain")
    trainings.clear()
    options = {"general": general, "general_epochs": 3}
    run(tiny_bert, tmp_path / "general", **options)
    run(tiny_bert, tmp_path / "longer", epochs=4, **options)
    assert [(made["start"] is None, made["epochs"]) for made in trainings] == [(True, 3), (False, 2), (False, 4)]
    plain, after = (load_file(tmp_path / name / "model.safetensors")[TABLE] for name in ("plain", "general"))
    assert not torch.equal(plain, after)


def test_all_seeds_share_the_vectors_of_the_general_text(tiny_bert, tmp_path, trainings, general):
    for seed in (3, 4):
        run(tiny_bert, tmp_path / f"{seed}", seed=seed, general=general, general_epochs=1)
    assert [(made["start"] is None, made["seed"]) for made in trainings] == [(True, 0), (False, 3), (False, 4)]


@pytest.fixture
def read(monkeypatch):
    """The texts of each fastText training."""
    found = []
    train = target_vectors.train_fasttext
    monkeypatch.setattr(
        target_vectors, "train_fasttext", lambda texts, **options: found.append([*texts]) or train(texts, **options)
    )
    return found


def with_tokenizer_parts(model, folder, **parts):
    """Copy a model and give its tokenizer another normalizer or decoder."""
    shutil.copytree(model, folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    return folder


def test_general_text_is_normalized_like_the_vocabulary(tiny_bert, tmp_path, trainings, read):
    """The tokenizer is uncased, so a vector for "Soup" would be missing for its token "soup"."""
    (tmp_path / "general.txt").write_text("\n\n".join(f"Soup and Wine on the café Table {n}" for n in range(20)))
    settings = {"general": str(tmp_path / "general.txt"), "general_epochs": 1, "steps": 1}
    run(tiny_bert, tmp_path / "out", **settings)
    assert read[0][3] == "soup and wine on the cafe table 3"
    run(with_tokenizer_parts(tiny_bert, tmp_path / "cased", normalizer=None), tmp_path / "other", **settings)
    assert read[2][3] == "Soup and Wine on the café Table 3"
    assert [made["start"] is None for made in trainings] == [True, False, True, False]


def test_the_rows_of_a_long_document_are_joined(tiny_bert, tmp_path, read):
    """Rows may be split within a word, and a row alone would begin with a continuation piece."""
    whole = "xyzzy plugh grue " * 20  # words of several pieces
    model = with_tokenizer_parts(
        tiny_bert, tmp_path / "model", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}
    )
    options = {**SHORT, "steps": 1, "max_length": 12}
    adapt(model, Corpus.of([whole, *DOCUMENTS]), {"tapter": SETTINGS}, tmp_path / "out", **options)
    assert whole.strip() in read[0]
    assert len(read[0]) == len(DOCUMENTS) + 1


@pytest.mark.parametrize("form", ["folder", "folder/*.txt", "folder/a.txt"])
def test_the_identity_of_a_run_covers_the_content_of_the_general_text(tiny_bert, tmp_path, form):
    (tmp_path / "folder").mkdir()
    text = tmp_path / "folder" / "a.txt"
    text.write_text("soup and wine on the table\n\nsoup and wine on the menu")
    settings = {"general": str(tmp_path / form), "general_epochs": 1, "steps": 1}
    first = TAPTER(general=settings["general"]).file_contents()
    assert first.keys() == {"general"}
    run(tiny_bert, tmp_path / "out", **settings)
    text.write_text("cold pasta and wine on the table\n\ncold pasta and wine on the menu")
    assert TAPTER(general=settings["general"]).file_contents() != first
    with pytest.raises(UserError, match="out"):  # it contains another run
        run(tiny_bert, tmp_path / "out", **settings)


def test_a_long_list_of_stop_words_is_no_file():
    assert TAPTER(stop_words=",".join(["the"] * 300)).file_contents() == {}


def test_a_missing_general_text_has_no_content_hash(tmp_path):
    assert TAPTER(general=str(tmp_path / "gone")).file_contents() == {}


@each(
    ("setting", "message"),
    [
        *(
            ({name: value}, f"{name.replace('_', '-')} must be more than zero, not {value}")
            for name in ("general_epochs", "dimension", "min_count", "epochs", "buckets")
            for value in (0, -3)
        ),
        ({"weight": -1}, "weight must be zero or more, not -1"),
        ({"weight": "nan"}, "'weight': Input should be a finite number"),
        ({"weight": "inf"}, "'weight': Input should be a finite number"),
    ],
)
def test_numbers_out_of_range_are_errors(setting, message):
    with pytest.raises(UserError, match=message):
        get("tapter", **setting)


def test_vectors_and_a_general_text_exclude_each_other():
    with pytest.raises(UserError, match="not both"):
        TAPTER(vectors="wiki.bin", general="wiki.jsonl.gz")
