"""Retrieval: reading BEIR folders, pairs and triplets; metrics against a library; training, saving and reloading."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.cli.main import app
from acclimate.data.task_kinds import find_task_kind, load_task, task_texts
from acclimate.engine.distributed import ProcessGroup
from acclimate.evaluation.retrieval import (
    Bm25,
    compare_rankings,
    fuse_rankings,
    rank_with_bm25,
    ranking_scores,
    retrieval_metrics,
)
from acclimate.merging.merge import merge
from acclimate.models.attention import prepare_for_device
from acclimate.models.encoding import skip_unread_tokens
from acclimate.study.compare import compare
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import ResolvedOptions, item_texts
from acclimate.tasks.kinds.retrieval import encoder as encoder_module
from acclimate.tasks.kinds.retrieval.data import Passage, Query, RetrievalTask
from acclimate.tasks.kinds.retrieval.encoder import (
    BiEncoder,
    EncoderTraining,
    MatryoshkaLoss,
    PairEngine,
    PairSteps,
    load_bi_encoder,
)
from acclimate.tasks.kinds.retrieval.model import load_reranking, mine_negatives
from acclimate.tasks.kinds.retrieval.reranker import QueryPair, load_reranker
from acclimate.tasks.kinds.retrieval.sets import SearchSets
from acclimate.tasks.prediction import predict
from acclimate.tasks.splits import limit_splits
from tests.cases import each
from tests.tiny import WORDS, save_tiny

sentence_transformers = pytest.importorskip("sentence_transformers")
QUICK = {"progress": False, "precision": "fp32", "max_length": 24}
TOPICS = [word for word in WORDS if len(word) > 3][:30]


def query_of(topic, chance):
    return f"which {topic} was {chance.choice(['good', 'bad', 'fresh'])} ?"


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """Each query names the topic of its document, and BM25 finds most of them."""
    folder, chance = tmp_path_factory.mktemp("beir"), random.Random(0)
    documents = {f"p{n}": f"the {topic} and a {TOPICS[n - 1]} of it ." for n, topic in enumerate(TOPICS)}
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": key, "title": "", "text": text}) + "\n" for key, text in documents.items())
    )
    queries, qrels = [], {"train": [], "dev": [], "test": []}
    for number in range(60):
        split = ("train", "train", "train", "dev", "test")[number % 5]
        queries.append({"_id": f"q{number}", "text": query_of(TOPICS[number % 30], chance)})
        qrels[split].append(f"q{number}\tp{number % 30}\t1")
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels").mkdir()
    for split, lines in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def test_a_folder_in_the_layout_of_beir(beir):
    task = load_task(beir)
    assert isinstance(task, RetrievalTask)
    assert (len(task.train), len(task.dev), len(task.test), len(task.documents)) == (36, 12, 12, 30)
    assert task.test[0].relevant[0].text == task.documents[task.test[0].relevant[0].id]
    assert find_task_kind(task).answer(task.test[0], task) == task.test[0].relevant[0].text
    assert task.train[0].text in task_texts(task) and item_texts(task)["test"][0] == task.test[0].text
    assert len(limit_splits(task, test=5).test) == 5 and len(task.few_shot(4, 0)) == 4
    assert task.fingerprint() == load_task(beir).fingerprint()
    pairs = find_task_kind(task).sentence_pairs(task)
    assert len(set(pairs.second)) == len(pairs.second) and pairs.scores is None
    with pytest.raises(UserError, match="cannot be named"):
        load_task(beir, text_column="text")
    for wrong in (lambda: task.few_shot(1, 0), lambda: task.scoring(negative=["a"])):
        with pytest.raises(UserError):
            wrong()


@each(("file", "text", "words"), [
    ("corpus.jsonl", '{"text": "a"}', "needs '_id' and 'text'"),
    ("corpus.jsonl", '{"_id": "p1", "text": "a"}\n{"_id": "p1", "text": "b"}', "'p1' is duplicated"),
    ("corpus.jsonl", '{"_id": "p1", "text": ["a"]}', "needs '_id' and 'text'"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq4\tp4\tnan", "score nan must be a number"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq4\tp4\tinf", "score inf must be a number"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq4\tp4\t1\nq4\tp4\t2", "'p4' has another score for 'q4' above"),
    ("queries.jsonl", '{"_id": "q1", "text": "\\ud800"}', "surrogate"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq4\tp99\t1", "no document with the id 'p99'"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nx\tp4\t1", "no query with the id 'x'"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq4\tp4\tyes", "a number 'score'"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq4\tp4\t0", "no test.tsv with a relevant document"),
])  # fmt: skip
def test_files_that_cannot_be_used_are_named(file, text, words, beir, tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "qrels").mkdir()
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (folder / name).write_text((beir / name).read_text())
    (folder / file).write_text(text)
    with pytest.raises(UserError, match=words):
        load_task(folder)


def test_grades_and_documents_that_are_not_relevant(beir, tmp_path, caplog):
    (tmp_path / "qrels").mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / name).write_text((beir / name).read_text())
    lines = ["query-id\tcorpus-id\tscore", "q1\tp1\t2", "q1\tp2\t1", "q1\tp3\t0", "q2\tp3\t0"]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines))
    task = load_task(tmp_path)
    (query,) = task.test
    assert [(passage.id, passage.grade) for passage in query.relevant] == [("p1", 2.0), ("p2", 1.0)]
    assert query.negatives == (task.documents["p3"],) and "1 test queries without text or a relevant" in caplog.text


def test_documents_and_queries_without_text_are_counted(beir, tmp_path, caplog):
    (tmp_path / "qrels").mkdir()
    for name, empty in (("corpus.jsonl", "p1"), ("queries.jsonl", "q2")):
        rows = [json.loads(line) for line in (beir / name).read_text().splitlines()]
        lines = [json.dumps({**row, "text": " " if row["_id"] == empty else row["text"]}) for row in rows]
        (tmp_path / name).write_text("\n".join(lines))
    lines = ["query-id\tcorpus-id\tscore", "q1\tp1\t1", "q1\tp3\t1", "q2\tp3\t1", "q3\tp1\t1", "q1\tp3\t1"]
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(lines))
    task = load_task(tmp_path)
    assert len(task.documents) == 29 and "p1" not in task.documents
    assert [[passage.id for passage in query.relevant] for query in task.test] == [["p3"]]
    for words in (
        "documents without text",
        "queries without text, which are not used",
        "2 test queries without text or a relevant document",
    ):
        assert words in caplog.text


def test_pairs_and_triplets(caplog):
    chance = random.Random(1)
    rows = [{"question": query_of(topic, chance), "answer": f"the {topic} of it", "negative": f"no {topic}"}
            for topic in TOPICS for _ in range(2)]  # fmt: skip
    task = load_task(rows)
    assert task.task_kind == "retrieval" and task.drawn in caplog.text and "query in 'question'" in caplog.text
    passages = [{query.relevant[0].id for query in split} for split in (task.train, task.dev, task.test)]
    assert not passages[0] & passages[1] and not passages[0] & passages[2] and not passages[1] & passages[2]
    assert all(query.negatives for query in task.train) and len(task.documents) == 60
    same = load_task([{"anchor": "a", "positive": text} for text in "bcd"] * 2 + [{"anchor": "e", "positive": "f"}] * 9
                     + [{"anchor": f"g{n}", "positive": f"h{n}"} for n in range(20)])  # fmt: skip
    queries = [*same.train, *same.dev, *same.test]
    assert len(queries) == 22 and max(len(query.relevant) for query in queries) == 3
    own = load_task(rows, text_column="answer", pair_column="question")
    assert own.test[0].text.startswith("the ")
    with pytest.raises(UserError, match=r"1 without a passage .first: task: row 61"):
        load_task([*rows, {"question": "a", "answer": ""}], strict=True)
    with pytest.raises(UserError, match="pairs need a column"):
        load_task([{"a": "b", "c": "d"}], task_kind="retrieval")


def test_columns_are_passages_only_if_their_values_can_be(tmp_path):
    """The hints of the message lead to a task."""
    rows = [{"id": n, "text": f"the waiter of day {n}", "answer": ("yes", "no")[n % 2]} for n in range(60)]
    with pytest.raises(
        UserError, match=r"'answer' has 2 values of 1.0 words for 60 of 'text'. If it is a label, give"
    ):
        load_task(rows)
    assert load_task(rows, label_column="answer").task_kind == "classification"
    assert load_task([{**row, "answer": f"that was on day {row['id'] // 3}"} for row in rows]).task_kind == "retrieval"
    assert load_task({"train": rows, "test": rows}, task_kind="retrieval").task_kind == "retrieval"
    words = [{"Word": f"w{n}", "POS": f"{n}"} for n in range(60)]
    with pytest.raises(UserError, match="no column 'label'"):
        load_task(words, text_column="Word")
    assert load_task([{"anchor": row["Word"], "pos": row["POS"]} for row in words]).task_kind == "retrieval"


ids = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(st.lists(ids, min_size=2, max_size=4, unique=True), st.sampled_from(["beir", "trec", "trec, tabs"]))
def test_any_id_is_the_same_in_all_files(keys, form):
    if form != "beir":
        keys = [key for key in keys if not {" ", "\t", "\n", "\r", "\ufeff"} & set(key)] or ["a"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "qrels").mkdir()
        for file in ("corpus", "queries"):
            rows = [{"_id": key, "text": f"{file} {number}"} for number, key in enumerate(keys)]
            (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        answers = [(key, keys[number - 1], 1) for number, key in enumerate(keys)]
        with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8", newline="") as file:
            if form == "beir":
                csv.writer(file, delimiter="\t").writerows([("query-id", "corpus-id", "score"), *answers])
            else:
                mark = "\t" if "tabs" in form else " "
                file.writelines(f"{query}{mark}0{mark}{document}{mark}{grade}\n" for query, document, grade in answers)
        task = load_task(folder)
    assert [(query.id, query.relevant[0].id, 1) for query in task.test] == answers


def test_judgements_without_a_header_are_named(beir, tmp_path, caplog):
    (tmp_path / "qrels").mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / name).write_text((beir / name).read_text())
    (tmp_path / "qrels" / "test.qrels").write_text("q1 0 p1 2\nq1 0 p2 0\n\nq3  0  p3  1\n")
    assert [query.id for query in load_task(tmp_path).test] == ["q1", "q3"] and "form of TREC" in caplog.text
    (tmp_path / "qrels" / "test.qrels").write_text("q1\tp1\t1\n")
    with pytest.raises(UserError, match=r"test.qrels:1: 3 columns; judgements have a header \(query-id, corpus-id"):
        load_task(tmp_path)
    (tmp_path / "corpus.jsonl").write_text('{"_id": "p1", "text": " "}\n')
    with pytest.raises(UserError, match=r"corpus.jsonl': no row has a text in 'text' or 'title'"):
        load_task(tmp_path)


@each(("row", "kind"), [
    ({"text": "a {}", "text_pair": "b is in {}"}, "retrieval"),
    ({"sentence1": "a {}", "sentence2": "b is in {}"}, "retrieval"),
    ({"query": "a {}", "positive": "b {}", "negative": "c {}"}, "retrieval"),
    ({"text": "a {}", "text_pair": "b {}", "label": "yes"}, "classification"),
])  # fmt: skip
def test_pairs_are_found_by_their_columns(row, kind):
    rows = [{name: value.format(n) for name, value in row.items()} for n in range(40)]
    if "label" in row:
        rows[::2] = [{**entry, "label": "no"} for entry in rows[::2]]
    assert load_task(rows).task_kind == kind


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(st.integers(0, 2), min_size=3, max_size=25).filter(any), st.integers(0, 999))
def test_metrics_are_those_of_slow_computations(grades, seed):
    scores = np.random.default_rng(seed).permutation(len(grades)).astype(float)
    relevant = {f"d{n}": float(grade) for n, grade in enumerate(grades) if grade}
    ranked = [f"d{n}" for n in np.argsort(-scores)]
    found = ranking_scores(relevant, ranked)
    assert found["ndcg@10"] == pytest.approx(ndcg_score([grades], [scores], k=10))
    first = min(ranked.index(document) for document in relevant) + 1
    assert found["mrr@10"] == (1 / first if first <= 10 else 0) and found["recall@100"] == 1.0
    assert ranking_scores(relevant, ranked[:1])["recall@100"] == (ranked[0] in relevant) / len(relevant)


def test_the_best_ranking_of_more_than_ten_relevant_documents_scores_one():
    relevant = {f"d{n}": float(15 - n) for n in range(15)}
    assert ranking_scores(relevant, [*relevant])["ndcg@10"] == pytest.approx(1)


def test_metrics_are_those_of_sentence_transformers(beir, tmp_path):
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    task, out = load_task(beir), tmp_path / "out"
    result = finetune(save_tiny("bert", tmp_path / "model"), task, out=out, epochs=0, **QUICK)
    model = sentence_transformers.SentenceTransformer(str(out))
    relevant = {query.id: {passage.id for passage in query.relevant} for query in task.test}
    queries = {query.id: query.text for query in task.test}
    theirs = InformationRetrievalEvaluator(queries, dict(task.documents), relevant, precision_recall_at_k=[100])(model)
    assert result.steps == 0 and set(result.metrics["references"]) == {"bm25", "hybrid"}
    for ours, name in (("ndcg@10", "ndcg@10"), ("mrr@10", "mrr@10"), ("recall@100", "recall@100")):
        assert result.metrics[ours] == pytest.approx(theirs[f"cosine_{name}"])


def test_documents_are_embedded_once_for_all_splits_and_again_after_a_step(beir, tiny_bert, monkeypatch):
    encoder, read = sentence_transformers.SentenceTransformer, []
    embed = encoder.encode_document
    monkeypatch.setattr(
        encoder,
        "encode_document",
        lambda self, texts, **options: read.append(len(texts)) or embed(self, texts, **options),
    )
    finetune(tiny_bert, beir, epochs=0, **QUICK)
    assert read == [30]
    finetune(tiny_bert, beir, epochs=2, learning_rate=1e-3, select="dev", **QUICK)
    assert read == [30] * 5  # before training, after two epochs, and the selected weights


def test_rankings_are_fused_by_reciprocal_ranks():
    """b: 1/62 + 1/61 > a: 1/61 + 1/63 > d: 1/62 > c: 1/63; neither sums of ranks nor counts give this order."""
    fused = fuse_rankings([["a", "b", "c"], []], [["b", "d", "a"], ["z"]])
    assert [*map(list, fused)] == [["b", "a", "d", "c"], ["z"]] and fused[0]["a"] == pytest.approx(1 / 61 + 1 / 63)
    assert [*map(list, fuse_rankings([["a", "b"]], [["b", "a"]], depth=1))] == [["a"]]  # a tie
    # third in both is better than first in one: 2/63 > 1/61, with a small constant it is not
    assert fuse_rankings([["a", "b", "c"]], [["d", "e", "c"]])[0]["c"] == 2 / 63
    assert next(iter(fuse_rankings([["a", "b", "c"]], [["d", "e", "c"]])[0])) == "c"
    with pytest.raises(ValueError, match="shorter"):
        fuse_rankings([["a"]], [])


def test_bm25_finds_rare_words():
    documents = {"a": "the soup was cold", "b": "the waiter was rude", "c": "soup soup and soup"}
    ranked = rank_with_bm25(documents, ["rude waiter", "cold soup", "zebra"])
    assert ranked[0] == ["b"] and ranked[1][0] == "a" and ranked[2] == []
    gold = [{"b": 1.0}, {"a": 1.0}, {"c": 1.0}] * 10
    found = compare_rankings(gold, [["b"], ["a"], ["c"]] * 10, ranked * 10)
    assert found["recall@100"] == pytest.approx(2 / 3) and found["difference"]["verdict"] == "helped"
    with pytest.raises(ValueError, match="do not match"):
        retrieval_metrics([], [])


@each(("kind", "select", "gain"), [("bert", "last", 0.1), ("llama", "dev", 0.1)])
def test_training_improves_the_ranking_and_the_folder_gives_the_same(kind, select, gain, beir, tmp_path):
    out, task = tmp_path / "out", load_task(beir)
    task = dataclasses.replace(task, test=task.train)  # what a tiny model can learn
    model = save_tiny(kind, tmp_path / "model")
    pairs = [{"sentence1": f"the {a} of it", "sentence2": f"a {b} in it", "score": n % 7 / 2}
             for n, (a, b) in enumerate(zip(TOPICS, WORDS, strict=False))]  # fmt: skip
    options = {
        **QUICK,
        "epochs": 4,
        "learning_rate": 3e-3,
        "batch_size": 8,
        "select": select,
        "similarity": pairs,
        "max_length": 20,
    }
    result = finetune(model, task, out=out, **options)
    before = result.metrics["references"]["before training"]
    assert result.metrics["ndcg@10"] > before["ndcg@10"] + gain
    assert before["difference"]["difference"] == pytest.approx(result.metrics["ndcg@10"] - before["ndcg@10"])
    assert f"before training {before['ndcg@10']:.4f} (this model +" in "".join(result.describe()), "with an interval"
    assert result.kind == "retrieval" and result.steps and result.metrics["references"]["bm25"]["ndcg@10"] > 0.3
    loaded, kept = sentence_transformers.SentenceTransformer(str(out)), result.metrics["similarity"][0]
    general = find_task_kind(load_task(pairs)).sentence_pairs(load_task(pairs))
    assert (kept["metric"], kept["pairs"]) == ("spearman", 30)
    assert kept["after"] == pytest.approx(general.score(general.measure(loaded))["spearman"], abs=1e-6)
    assert f"{kept['before']:.3f}" in (out / "README.md").read_text()
    assert "SentenceTransformer('out')" in (out / "README.md").read_text()
    assert ("show similarity worse" in result.warning) == (kept["verdict"] == "hurt")
    assert loaded.max_seq_length == 20
    vectors = [loaded.encode(texts) for texts in ([query.text for query in task.test], list(task.documents.values()))]
    best = (vectors[0] @ vectors[1].T).argmax(1)
    assert [list(task.documents)[place] for place in best] == [ranked[0] for ranked in result.predicted]
    assert np.allclose(np.linalg.norm(vectors[0], axis=1), 1, atol=1e-5)
    assert read_json(out / "metrics.json")["metrics"]["ndcg@10"] == result.metrics["ndcg@10"]
    assert "ndcg@10" in (out / "README.md").read_text() and "bm25" in (out / "README.md").read_text()
    assert finetune(model, task, out=out, **options).predicted == result.predicted
    again = finetune(out, task, **{**QUICK, "epochs": 0, "max_length": 20})
    assert again.metrics["ndcg@10"] == pytest.approx(result.metrics["ndcg@10"])


def test_a_row_that_is_a_passage_is_left_out_of_its_own_ranking(tiny_bert, tmp_path, caplog):
    load_bi_encoder(tiny_bert, 32).save(tmp_path / "encoder")
    passages = [{"_id": f"d{n}", "title": f"part {n}", "text": f"{WORDS[n]} {WORDS[n + 1]} food"} for n in range(8)]
    same = [{name: row[name] for name in ("_id", "text")} for row in passages[:3]]
    rows = [*same, {"_id": "d4", "text": "another text"}, {"_id": "q", "text": passages[5]["text"]}, {"text": "food"}]
    ranked = predict(tmp_path / "encoder", rows, None, passages=passages, progress=False).rows
    found = [{entry["id"] for entry in row["ranking"]} for row in ranked]
    every = {row["_id"] for row in passages}
    assert found == [every - {f"d{n}"} for n in range(3)] + [every] * 3
    assert "3 of 6 rows are passages" in caplog.text


def test_predictions_are_ranked_as_the_hybrid_that_is_measured(beir, tiny_bert, tmp_path, monkeypatch, caplog):
    """The fused scores of `predict --hybrid` in small batches, next to what fine-tuning measures."""
    result = finetune(tiny_bert, beir, out=tmp_path / "out", epochs=0, **QUICK)
    task = load_task(beir)
    passages = [{"id": key, "text": text} for key, text in task.documents.items()]
    rows, built = [{"text": query.text} for query in task.test], []
    build = Bm25.__init__
    monkeypatch.setattr(Bm25, "__init__", lambda self, documents: built.append(1) or build(self, documents))
    given = {"passages": passages, "top": 100, "progress": False}
    found = predict(tmp_path / "out", rows, None, hybrid=True, **given).rows
    assert built == [1]  # once for all batches
    gold = [{passage.id: passage.grade for passage in query.relevant} for query in task.test]
    ranked = [[entry["id"] for entry in row["ranking"]] for row in found]
    measured = result.metrics["references"]["hybrid"]["ndcg@10"]
    assert retrieval_metrics(gold, ranked)["ndcg@10"] == pytest.approx(measured) != result.metrics["ndcg@10"]
    scores = [[entry["score"] for entry in row["ranking"]] for row in found]
    assert all(list(row) == sorted(row, reverse=True) and row[0] <= 2 / 61 for row in scores)
    alone = predict(tmp_path / "out", rows, None, **given).rows
    assert [[entry["id"] for entry in row["ranking"]] for row in alone] != ranked
    other = predict(tmp_path / "out", [{"text": "qqq"}], None, passages=[{"id": "a", "text": "the of"}], hybrid=True)
    assert [entry["id"] for entry in other.rows[0]["ranking"]] == ["a"] and "BM25 finds no passage" in caplog.text
    with pytest.raises(UserError, match="'hybrid' ranks passages"):
        predict(tmp_path / "out", rows, None, hybrid=True, progress=False)


def test_what_does_not_apply_is_an_error(beir, tiny_bert, tmp_path, monkeypatch):
    cases = [
        ({"first": beir}, "'first' does not apply"),
        ({"confidence_penalty": 0.1}, "no classes"),
        ({"metric": "f1", "select": "dev"}, "metric"),
    ]
    for options, words in cases:
        with pytest.raises(UserError, match=words):
            finetune(tiny_bert, beir, **QUICK, **options)
    classes = [{"text": f"a {n}", "label": n % 2} for n in range(40)]
    with pytest.raises(UserError, match="'similarity' is for retrieval models"):
        finetune(tiny_bert, classes, similarity=beir, **QUICK)
    with pytest.raises(UserError, match="'epochs' must be at least 1"):
        finetune(tiny_bert, classes, epochs=0, **QUICK)
    task = load_task(beir)
    object.__setattr__(task, "train", [])
    with pytest.raises(UserError, match="epochs=0"):
        finetune(tiny_bert, task, **QUICK)
    for library in ("bm25s", "sentence_transformers"):
        monkeypatch.setitem(__import__("sys").modules, library, None)
        with pytest.raises(UserError, match="acclimate\\[embeddings\\]"):
            finetune(tiny_bert, beir, epochs=0, **QUICK)


def test_on_the_command_line(beir, tiny_bert):
    options = ["--model", str(tiny_bert), "--task", str(beir), "--epochs", "0", "--max-length", "24"]
    options += ["--dimensions", "16,8"]
    run = CliRunner().invoke(app, ["finetune", *options])
    assert run.exit_code == 0, run.output
    assert run.output.count("bm25") == run.output.count("16 dimensions") == run.output.count("8 dimensions") == 1
    assert "ndcg@10" in run.output and "One seed" not in run.output
    assert "--dimensions 16,8 --out finetuned" in " ".join(run.output.split())
    run = CliRunner().invoke(app, ["finetune", *options[:-2], "--sparse"])
    assert run.exit_code == 0 and "Next" not in run.output  # a sparse encoder cannot be trained


def test_a_set_without_train_queries_is_measured_and_kept(beir, tiny_bert, tmp_path):
    shutil.copytree(beir, tmp_path / "set")
    for split in ("train", "dev"):
        (tmp_path / "set" / "qrels" / f"{split}.tsv").unlink()
    options = ["--model", str(tiny_bert), "--task", str(tmp_path / "set"), "--epochs", "0", "--max-length", "24"]
    run = CliRunner().invoke(app, ["finetune", *options, "--out", str(tmp_path / "out")])
    assert run.exit_code == 0 and "ndcg@10" in run.output and "to train it" not in run.output, run.output
    assert [*(tmp_path / "out").rglob("README.md")]


def test_in_a_study(beir, tiny_bert, sets, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "\n".join(f"the {topic} was {n} . it is a {topic} for the table" for n in "123456" for topic in TOPICS)
    )
    study = {
        "name": "search", "models": [str(tiny_bert)], "methods": ["none", "lm"], "seeds": 1,
        "domains": [{"name": "d", "corpus": str(corpus), "tasks": [str(beir)]}],
        "adapt": {"steps": 2, "batch_size": 4, "max_length": 16}, "evaluate": {"max_length": 16},
        "finetune": {"max_length": 16, "epochs": 0}, "similarity": [str(sets)],
    }  # fmt: skip
    for wrong, words in (
        ({"matryoshka": True}, "'matryoshka' trains at several 'dimensions'"),
        ({"sparse": True, "epochs": 1}, "set epochs to 0"),
        ({"rerank": True, "dimensions": [8]}, "'dimensions' is for dense vectors"),
    ):
        (tmp_path / "study.json").write_text(json.dumps({**study, "finetune": wrong}))
        with pytest.raises(UserError, match=words):
            compare(tmp_path / "study.json", tmp_path / "out", progress=False)
    (tmp_path / "study.json").write_text(json.dumps(study))
    results = compare(tmp_path / "study.json", tmp_path / "out", progress=False)
    assert not results.failures
    base, adapted = results.scores
    assert (base.metric, base.kind, base.test_items) == ("ndcg@10", "retrieval", 12)
    assert set(adapted.summaries) == {"ndcg@10", "mrr@10", "recall@100"} and adapted.comparison is not None
    assert "ndcg@10" in (tmp_path / "out" / "report.html").read_text().lower()
    (table,) = [table for table in results.tables if table.title == "Comparison with other answers"]
    assert [(row[3], row[4]) for row in table.rows] == [
        (method, other) for method in ("none", "lm") for other in ("bm25", "hybrid")
    ]
    assert table.rows[0][7] == pytest.approx(100 * base.summaries["ndcg@10"].mean)
    (general,) = [table for table in results.tables if table.title == "Similarity on pairs"]
    assert [row[2:6] for row in general.rows] == [
        ["nano", "lm", 30, "nDCG@10"], ["nano: one", "lm", 20, "nDCG@10"], ["nano: two", "lm", 10, "nDCG@10"],
    ]  # fmt: skip
    whole, *parts = general.rows
    assert whole[7] == pytest.approx(np.mean([part[7] for part in parts]))
    leak = CliRunner().invoke(app, ["inspect", "leakage", "--corpus", str(corpus), "--task", str(beir)])
    assert leak.exit_code == 0, leak.output


def test_timing_reads_few_documents_and_counts_all(beir):
    task = load_task(beir)
    kind = find_task_kind(task)
    small = kind.shrink(limit_splits(task, train=4, dev=2, test=2))
    wanted = {passage.id for query in (*small.train, *small.dev, *small.test) for passage in query.relevant}
    assert (
        set(small.documents) == wanted
        and kind.read_items(small, {}) == (1, len(wanted))
        and kind.read_items(task, {}) == (1, 30)
    )
    assert kind.read_items(task, {"rerank": True}) == (30, 0)


def test_a_decoder_is_read_at_its_last_token(tmp_path):
    folder = save_tiny("llama", tmp_path / "model")
    encoder, texts = (
        load_bi_encoder(folder, 40),
        ["the food was good .", "a rude waiter", "cold soup and a slow one ."],
    )
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(texts, encoder.model.encode(texts), strict=True):
        with torch.inference_mode():
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            last = model(input_ids=ids).last_hidden_state[0, -1]
        assert np.allclose(vector, last / last.norm(), atol=1e-5)


@each("source", ["bm25", "model"])
def test_hard_negatives_are_similar_documents_that_are_not_relevant(source, beir, tiny_bert):
    task = load_task(beir)
    learner = find_task_kind(task).learner(tiny_bert, task, ResolvedOptions(max_length=24, metric="ndcg@10"), None)
    assert learner._mine(task.train, None) is task.train
    learner.hard_negatives = source
    options = ResolvedOptions(max_length=24, metric="ndcg@10", seed=3)
    mined = learner._mine(task.train, options)
    assert [query.text for query in mined] == [
        query.text for query in task.train if query.text in {q.text for q in mined}
    ]
    ranked = (
        rank_with_bm25(task.documents, [query.text for query in mined])
        if source == "bm25"
        else learner._rank(mined)[0]
    )
    for query, ranking in zip(mined, ranked, strict=True):
        (negative,) = query.negatives
        relevant = {passage.id for passage in query.relevant}
        assert negative in [task.documents[key] for key in ranking if key not in relevant]
    if source == "bm25":  # the other document that names the topic is among the first
        hits = [query.text.split()[1] in query.negatives[0] for query in mined]
        assert np.mean(hits) > 2 / len(task.documents)
    assert learner._mine(task.train, options) == mined
    assert all("negative" in row for row in learner.rows(mined))


@pytest.fixture
def same_ids(tmp_path):
    """Six documents, each a query under its own id; the other of a pair is relevant."""
    (tmp_path / "qrels").mkdir()
    texts = {f"p{n}": f"waiter{n} brought soup{n // 2} soup{n // 2}" for n in range(6)}
    lines = "".join(json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / name).write_text(lines)
    rows = "".join(f"p{n}\tp{n ^ 1}\t1\n" for n in range(6))
    for split in ("train", "test"):
        (tmp_path / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return tmp_path


def test_a_query_that_is_a_document_does_not_find_itself(same_ids, tiny_bert, caplog):
    task = load_task(same_ids)
    assert f"12 of the 12 queries of the task '{task.name}' are documents" in caplog.text
    learner = find_task_kind(task).learner(tiny_bert, task, ResolvedOptions(max_length=24, metric="ndcg@10"), None)
    measured = learner.measure("test", "fp32")
    assert measured.metrics["references"]["bm25"]["ndcg@10"] == 1.0
    assert all(len(ranking) == 5 and query.id not in ranking
               for query, ranking in zip(task.test, measured.predicted, strict=True))  # fmt: skip
    texts = {query.text: query for query in task.train}
    for source in ("bm25", "model"):
        learner.hard_negatives = source
        for query in learner._mine(task.train, ResolvedOptions(max_length=24, metric="ndcg@10", seed=1)):
            assert query.negatives and not {query.text, query.relevant[0].text} & set(query.negatives)
    at_random = mine_negatives(list(texts.values()) * 20, task.documents, [[]] * 120, 0)
    assert all(query.negatives and query.text not in query.negatives for query in at_random)
    with_own = (same_ids / "qrels" / "test.tsv").read_text() + "p1\tp1\t1\n"  # its own document is an answer
    (same_ids / "qrels" / "test.tsv").write_text(with_own)
    task = load_task(same_ids)
    assert task.own_documents(task.test) == ["p0", None, *(f"p{n}" for n in range(2, 6))]
    print_of = task.fingerprint()
    for file in (same_ids / "queries.jsonl", *(same_ids / "qrels").iterdir()):  # the same texts, with ids of their own
        text = file.read_text().replace('"_id": "', '"_id": "q')
        file.write_text("\n".join(line if line[0] != "p" else f"q{line}" for line in text.splitlines()))
    task = load_task(same_ids)
    assert not any(task.own_documents(task.test)) and task.fingerprint() != print_of


def test_a_query_of_a_pair_that_is_also_a_passage_does_not_find_itself(caplog):
    pairs = [{"anchor": f"{one} {n}", "positive": f"{two} {n}"}
             for n in range(6) for one, two in (("soup", "broth"), ("broth", "soup"))]  # fmt: skip
    task = load_task({"train": [{"anchor": "new", "positive": "news"}], "test": pairs}, name="pairs")
    found = [task.documents.get(key) for key in task.own_documents(task.test)]
    assert found == [query.text for query in task.test] and task.own_documents(task.train) == [None]
    assert "12 of the 13 queries of the task 'pairs' are documents" in caplog.text


def test_what_a_model_finds_as_similar_as_a_relevant_document_is_no_negative(beir):
    task = load_task(beir)
    query = task.train[0]
    (relevant,) = query.relevant
    ranking = [*[other for other in task.documents if other != relevant.id][:4], relevant.id]

    def mined(*scores):
        ranked = ([ranking] * 40, [list(scores)] * 40)
        found = mine_negatives([query] * 40, task.documents, ranked, 0)
        return {negative for each in found for negative in each.negatives}

    assert mined(0.99, 0.96, 0.94, 0.5, 1.0) == {task.documents[key] for key in ranking[2:4]}
    assert mined(0.99, 0.96, 0.98, 0.97, 1.0) == {task.documents[key] for key in ranking[:4]}
    found = mine_negatives([query] * 99, task.documents, [[relevant.id]] * 99, 0)  # at random
    assert len({negative for each in found for negative in each.negatives} - {relevant.text}) > 20


def test_an_adapter_is_trained_merged_and_is_a_skill(beir, tiny_bert, tmp_path):
    pytest.importorskip("peft")
    options = {**QUICK, "epochs": 4, "learning_rate": 1e-2, "batch_size": 8}
    result = finetune(tiny_bert, beir, out=tmp_path / "skill", adapter="lora", hard_negatives="bm25", **options)
    assert result.metrics["ndcg@10"] > result.metrics["references"]["before training"]["ndcg@10"] + 0.05
    base, skill = (AutoModel.from_pretrained(folder).state_dict() for folder in (tiny_bert, tmp_path / "skill"))
    changed = {name for name in base if not torch.equal(base[name], skill[name]) and "pooler" not in name}
    assert changed and all(name.endswith("weight") and "LayerNorm" not in name for name in changed)
    difference = (
        skill["encoder.layer.0.attention.self.query.weight"] - base["encoder.layer.0.attention.self.query.weight"]
    )
    assert torch.linalg.matrix_rank(difference, rtol=1e-3) <= 16
    adapted = save_tiny("bert", tmp_path / "adapted", seed=0, initializer_range=0.02)
    merge(adapted, {"skill": {"skill": tmp_path / "skill"}}, tmp_path / "out", base=tiny_bert, progress=False)
    assert finetune(tmp_path / "out", beir, epochs=0, **QUICK).metrics["ndcg@10"] > 0
    with pytest.raises(UserError, match="'adapter' is for retrieval models, which 'task' does not train"):
        finetune(tiny_bert, [{"text": f"t {n}", "label": n % 2} for n in range(20)], adapter="lora", **QUICK)


def pair_loss(name, encoder):
    losses = sentence_transformers.sentence_transformer.losses
    return getattr(losses, name)(encoder)


def training(head, rows, size, **given):
    options = ResolvedOptions(epochs=1, learning_rate=1e-3, batch_size=size, max_length=24, metric="ndcg@10")
    fixed = {"work": None, "title": "", "score": None, "report_to": (), "run_name": None, "group": ProcessGroup()}
    return EncoderTraining(head, rows, None, options, "fp32", **fixed, **given)


@each(("name", "prompt"), [
    ("MultipleNegativesRankingLoss", None), ("MultipleNegativesRankingLoss", "the "), ("MarginMSELoss", None),
])  # fmt: skip
def test_a_step_has_the_loss_and_gradients_of_sentence_transformers(name, prompt, tmp_path, monkeypatch):
    """However it is cut, and whether graphs fit into memory or texts are read twice; with dropout in the latter."""
    head, chance = load_bi_encoder(save_tiny("bert", tmp_path / "model"), 24), random.Random(0)
    labels = [{"label": chance.random()} if name == "MarginMSELoss" else {} for _ in TOPICS]
    rows = [{"anchor": query_of(topic, chance), "positive": f"the {topic} " * chance.randint(1, 5),
             "negative": f"no {topic}", **label} for topic, label in zip(TOPICS, labels, strict=True)]  # fmt: skip
    encoder, loss = head.model, pair_loss(name, head.model)
    data = PairSteps(training(head, rows, 20, prompts={"anchor": prompt} if prompt else None), 1)

    def gradients(run):
        encoder.zero_grad()
        value = run()
        every = [one.grad.flatten() for one in encoder.parameters() if one.grad is not None and one.grad.any()]
        return float(value), torch.cat(every), torch.rand(1)

    def theirs():
        mine = [rows[place] for place in data.indices(0)]
        texts = [[row[column] for row in mine] for column in data.columns]
        given = [
            encoder.preprocess(one, prompt=data.prompts.get(c)) for one, c in zip(texts, data.columns, strict=True)
        ]
        value = loss(given, torch.tensor([row["label"] for row in mine]) if "label" in rows[0] else None)
        value.backward()
        return value.detach()

    def ours():
        with skip_unread_tokens(head.body):
            return PairEngine(head, loss, "fp32").step(data[0])["loss"]

    encoder.eval()
    expected, found, dropped = gradients(theirs), [], []
    prepare_for_device(head.body, torch.device("cpu"))
    for limit, kept in ((10**9, 10**9), (60, 10**9), (60, 100), (60, 0)):
        monkeypatch.setattr(encoder_module, "training_tokens", lambda *_, limit=limit, **__: limit)
        monkeypatch.setattr(encoder_module, "max_graph_tokens", lambda *_, kept=kept: kept)
        found.append(gradients(ours))
        if limit == 60:
            encoder.train()
            torch.manual_seed(0)
            dropped.append(gradients(ours))
            encoder.eval()
    assert len(data[0]) > 5
    for one in found:
        assert one[0] == pytest.approx(expected[0], rel=1e-6)
        torch.testing.assert_close(one[1], expected[1], atol=1e-5, rtol=1e-4)
    for one in dropped[1:]:
        torch.testing.assert_close(one, dropped[0], atol=1e-5, rtol=1e-4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=30), st.integers(1, 8))
def test_no_step_has_a_text_twice_and_each_row_is_read_once_at_most(pairs, size):
    rows = [{"anchor": f"q{one}", "positive": f"p{other}"} for one, other in pairs]
    data = PairSteps(training(None, rows, size), 2)
    for epoch in range(2):
        steps = [data.indices(epoch * data.epoch_steps + step) for step in range(data.epoch_steps)]
        read = [place for step in steps for place in step]
        assert len(read) == len(set(read)) and (len({*pairs}) < len(pairs) or len(steps[0]) <= size)
        for step in steps:
            texts = [text for place in step for text in rows[place].values()]
            assert len(texts) == len(set(texts)) and len(step) <= size
    data = PairSteps(training(None, rows, size, distinct=False), 1)
    every = [data.indices(step) for step in range(data.epoch_steps)]
    assert sorted(place for step in every for place in step) == list(range(len(rows)))


def test_the_loss_at_several_dimensions_is_that_of_sentence_transformers(tiny_bert):
    head, chance = load_bi_encoder(tiny_bert, 24), random.Random(0)
    losses, head.model = sentence_transformers.sentence_transformer.losses, head.model.eval()
    rows = [(query_of(topic, chance), f"the {topic} of it", f"no {topic}", chance.random()) for topic in TOPICS[:9]]
    *columns, margins = zip(*rows, strict=True)
    given = [head.model.preprocess(list(texts)) for texts in columns]
    for name, labels in (("MultipleNegativesRankingLoss", None), ("MarginMSELoss", torch.tensor(margins))):
        theirs = losses.MatryoshkaLoss(head.model, pair_loss(name, head.model), [32, 16, 5])(given, labels)
        embedded = [head.model(dict(features))["sentence_embedding"] for features in given]
        ours = MatryoshkaLoss(pair_loss(name, head.model), (5, 32, 16))
        found = ours.compute_loss_from_embeddings(embedded, labels)
        assert float(found) == pytest.approx(float(theirs), rel=1e-6)
        gradients = []
        for value in (found, theirs):
            head.model.zero_grad()
            value.backward()
            every = [one.grad.flatten() for one in head.model.parameters() if one.grad is not None]
            gradients.append(torch.cat(every))
        torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_cut_vectors_are_measured_and_those_of_the_saved_folder(beir, tiny_bert, tmp_path):
    task = load_task(beir)
    task = dataclasses.replace(task, test=task.train)
    options = {**QUICK, "epochs": 4, "learning_rate": 3e-3, "batch_size": 8, "dimensions": "16,4"}
    usual = finetune(tiny_bert, task, **options)
    result = finetune(tiny_bert, task, out=tmp_path / "out", matryoshka=True, **options)
    assert result.steps == usual.steps and result.metrics["ndcg@10"] != usual.metrics["ndcg@10"]
    lost = [found.metrics["references"]["4 dimensions"]["difference"]["difference"] for found in (usual, result)]
    assert lost[0] > lost[1] > 0 and list(result.metrics["references"])[3:] == ["16 dimensions", "4 dimensions"]
    gold = [{passage.id: passage.grade for passage in query.relevant} for query in task.test]
    for size in (16, 4):
        encoder = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), truncate_dim=size)
        assert encoder.encode("a").shape == (size,)
        ranked, _ = BiEncoder(encoder).rank(dict(task.documents), [query.text for query in task.test])
        found = result.metrics["references"][f"{size} dimensions"]
        assert found["ndcg@10"] == pytest.approx(retrieval_metrics(gold, ranked)["ndcg@10"])
        assert {"low", "high"} <= found["difference"].keys() and f"{size} dimensions" in "".join(result.describe())
    with pytest.raises(UserError, match="have 32 dimensions; give fewer than 32"):
        finetune(tiny_bert, task, **{**options, "dimensions": [64, 8]})
    with pytest.raises(UserError, match="'matryoshka' is a way to train"):
        finetune(tiny_bert, task, **{**options, "epochs": 0}, matryoshka=True)
    with pytest.raises(UserError, match="'matryoshka' trains at several 'dimensions': give them"):
        finetune(tiny_bert, task, matryoshka=True, **QUICK)
    with pytest.raises(UserError, match="'dimensions' is for retrieval models, which 'task' does not train"):
        finetune(tiny_bert, [{"text": f"t {n}", "label": n % 2} for n in range(20)], dimensions=8, **QUICK)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    """A reranker of what BM25 finds, its folder, and its task: of two documents on a topic, one is good."""
    folder = tmp_path_factory.mktemp("reranker")
    rows = [{"query": f"which {topic} ?", "passage": f"the {topic} was good ."} for topic in TOPICS[:15]]
    task = load_task({"train": rows, "test": rows}, task_kind="retrieval")
    others = {f"n{number}": f"the {topic} was bad ." for number, topic in enumerate(TOPICS[:15])}
    task = dataclasses.replace(task, documents={**others, **task.documents})
    options = {**QUICK, "epochs": 16, "learning_rate": 3e-3, "batch_size": 8}
    result = finetune(save_tiny("bert", folder / "model"), task, out=folder / "out", rerank=True, **options)
    return result, folder / "out", task


def test_a_reranker_improves_what_its_first_stage_finds(reranker, tmp_path, monkeypatch):
    result, out, task = reranker
    (bm25,) = result.metrics["references"].values()
    assert result.metrics["ndcg@10"] > bm25["ndcg@10"] + 0.1 and bm25["difference"]["low"] > 0
    load_bi_encoder(out.parent / "model", 24).save(tmp_path / "first")
    options = {**QUICK, "epochs": 0, "rerank": True}
    assert finetune(out, task, **options).predicted == result.predicted
    monkeypatch.chdir(tmp_path)
    result = finetune(out, task, first_stage="first", out="again", **options)
    monkeypatch.chdir(out)  # the first stage is found from anywhere
    assert set(result.metrics["references"]) == {"bm25", "first stage"}
    out = tmp_path / "again"
    model = sentence_transformers.CrossEncoder(str(out))
    for query, ranked, scores in zip(task.test[:3], result.predicted, result.probabilities, strict=False):
        texts = [(query.text, task.documents[key]) for key in ranked]
        theirs = model.predict(texts, activation_fn=torch.nn.Identity())
        assert np.allclose(theirs, scores, atol=2e-5) and len(ranked) == 30
    with pytest.raises(UserError, match=r"again' is a CrossEncoder.*with another first stage"):
        finetune(tmp_path / "first", task, first_stage=out, **{**options, "epochs": 1})
    assert "CrossEncoder('again')" in (out / "README.md").read_text()
    card = (out / "README.md").read_text()
    assert "pipeline_tag: text-ranking" in card and str(tmp_path) not in card
    passages = [{"_id": key, "text": text} for key, text in task.documents.items()]
    rows = [{"query": query.text} for query in task.test]
    found = predict(out, rows, None, passages=passages, text_column="query", progress=False).rows
    assert [[one["id"] for one in row["ranking"]] for row in found] == [ranked[:10] for ranked in result.predicted]
    with pytest.raises(UserError, match="'hybrid' is for encoders"):
        predict(out, rows, None, passages=passages, text_column="query", hybrid=True, progress=False)
    pairs = [{"query": query.text, "passage": query.relevant[0].text} for query in task.test[:3]]
    scores = [row["score"] for row in predict(out, pairs, None, progress=False).rows]
    theirs = model.predict([(row["query"], row["passage"]) for row in pairs])
    assert np.allclose(scores, theirs, atol=1e-5)


def test_the_loss_of_a_reranker_is_that_of_sentence_transformers(reranker):
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    _, out, task = reranker
    head = load_reranker(out, 24, torch.device("cpu"))
    pairs = [QueryPair(query.text, text, relevant) for query in task.train[:8]
             for text, relevant in ((query.relevant[0].text, True), ("the food was bad .", False))]  # fmt: skip
    ours = head.run(head.model, head.collate(head.features(pairs))).loss
    columns = [[pair.text for pair in pairs], [pair.text_pair for pair in pairs]]
    theirs = BinaryCrossEntropyLoss(sentence_transformers.CrossEncoder(str(out)).eval())
    assert float(ours) == pytest.approx(float(theirs(columns, torch.tensor([p.relevant for p in pairs]))), rel=1e-6)


def test_a_reranker_reads_only_what_bm25_finds(beir, tiny_bert):
    task = load_task(beir)
    learner = load_reranking(
        tiny_bert, task, ResolvedOptions(max_length=24, metric="ndcg@10", epochs=1), torch.device("cpu"), None
    )
    measured = learner.measure("test", "fp32")
    found = rank_with_bm25(task.documents, [query.text for query in task.test])
    assert [set(ranked) for ranked in measured.predicted] == [set(ranked) for ranked in found]
    assert set(measured.metrics["references"]) == {"bm25"} and learner.head.rerank({"a": "b"}, ["c"], [[]])[0] == [[]]
    mined = mine_negatives(task.train, task.documents, [[*task.documents]] * 36, 0, 4)
    assert all(len({*query.negatives} - {query.relevant[0].text}) == 4 for query in mined)


@each(("given", "words"), [
    ({"rerank": True, "epochs": 0}, "is no cross-encoder, so it has to be trained first"),
    ({"first_stage": "x"}, "'first_stage' finds documents to 'rerank'"),
    ({"rerank": True, "hard_negatives": "bm25"}, "'hard_negatives' is for dense vectors"),
    ({"rerank": True, "dimensions": 8}, "'dimensions' is for dense vectors"),
    ({"rerank": True, "first_stage": "nowhere"}, "nowhere"),
])  # fmt: skip
def test_what_a_reranker_cannot_do_is_refused(given, words, beir, tiny_bert):
    with pytest.raises(UserError, match=words):
        finetune(tiny_bert, beir, **QUICK, **given)


@pytest.fixture
def sets(tmp_path):
    """A folder of two sets, of 20 and 10 test queries, each about topics of its own."""
    for name, first, queries in (("one", 0, 20), ("two", 20, 10)):
        folder = tmp_path / "nano" / name
        (folder / "qrels").mkdir(parents=True)
        topics = [(f"{name}{number}", topic) for number, topic in enumerate(TOPICS[first : first + 10])]
        rows = [{"_id": key, "text": f"the {topic} and what is in it"} for key, topic in topics]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        asked = [(f"q{number}", *topics[number % 10]) for number in range(queries)]
        rows = [{"_id": key, "text": f"a {topic} of day {key}"} for key, _, topic in asked]
        (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = ["query-id\tcorpus-id\tscore", *(f"{key}\t{document}\t1" for key, document, _ in asked)]
        (folder / "qrels" / "test.tsv").write_text("\n".join(lines))
    (tmp_path / "nano" / "README.md").write_text("two sets")
    return tmp_path / "nano"


def test_a_folder_of_sets_shows_what_training_changes_in_general(sets, beir, tiny_bert, tmp_path):
    options = {**QUICK, "epochs": 1, "learning_rate": 3e-3, "batch_size": 8, "similarity": sets}
    result = finetune(tiny_bert, beir, out=tmp_path / "out", **options)
    whole, *parts = result.metrics["similarity"]
    assert [(one["name"], one["part_of"], one["pairs"]) for one in parts] == [("one", "nano", 20), ("two", "nano", 10)]
    assert (whole["name"], whole["metric"], whole["pairs"], "part_of" in whole) == ("nano", "ndcg@10", 30, False)
    for side, model in (("before", tiny_bert), ("after", tmp_path / "out")):
        for part in parts:
            scored = finetune(model, sets / part["name"], epochs=0, **QUICK)
            assert part[side] == pytest.approx(scored.metrics["ndcg@10"], abs=1e-6)
        assert whole[side] == pytest.approx(np.mean([part[side] for part in parts]))
    assert whole["difference"] == pytest.approx(whole["after"] - whole["before"])
    assert "nDCG@10 of retrieval" in (tmp_path / "out" / "README.md").read_text()
    (sets / "two" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(UserError, match=r"two/qrels' has no test.tsv with a relevant document"):
        finetune(tiny_bert, beir, **options)
    for part in ("qrels", "corpus.jsonl"):  # a set is not left out silently
        (sets / "two" / part).rename(tmp_path / part)
        with pytest.raises(UserError, match="two' is no whole retrieval task"):
            finetune(tiny_bert, beir, **options)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 99))
def test_each_set_counts_the_same_whatever_its_size(sizes, seed):
    query = Query("q", "a", (Passage("p", "b"),), group="g")
    tasks = [dataclasses.replace(RetrievalTask(f"t{number}", [], [query] * size, documents={"p": "b"}))
             for number, size in enumerate(sizes)]  # fmt: skip
    pairs, chance = SearchSets.of("all", tasks), np.random.default_rng(seed)
    before, after = chance.random(sum(sizes)), chance.random(sum(sizes))
    places = [place for _, place in pairs.parts()] or [slice(0, sum(sizes))]
    means = [[values[place].mean() for place in places] for values in (before, after)]
    assert pairs.score(after)["ndcg@10"] == pytest.approx(np.mean(means[1]))
    assert pairs.compare(before, [after]).difference == pytest.approx(np.mean(means[1]) - np.mean(means[0]))
    assert max(pairs.groups) + 1 == len(sizes), "a group of one task is not that of another"


def test_words_with_weights_rank_as_a_sparse_encoder_of_sentence_transformers(beir, tmp_path):
    from sentence_transformers.sparse_encoder.evaluation import SparseInformationRetrievalEvaluator

    task, model = load_task(beir), save_tiny("bert", tmp_path / "model")
    result = finetune(model, task, sparse=True, epochs=0, out=tmp_path / "out", **QUICK)
    theirs = sentence_transformers.SparseEncoder(str(model))
    relevant = {query.id: {passage.id for passage in query.relevant} for query in task.test}
    queries = {query.id: query.text for query in task.test}
    found = SparseInformationRetrievalEvaluator(queries, dict(task.documents), relevant)(theirs)
    assert result.metrics["ndcg@10"] == pytest.approx(found["dot_ndcg@10"])
    loaded = sentence_transformers.SparseEncoder(str(tmp_path / "out"))
    assert torch.equal(loaded.encode("the food").to_dense(), theirs.encode("the food").to_dense())
    assert "SparseEncoder('out')" in (tmp_path / "out" / "README.md").read_text()
    with torch.no_grad():
        ids = theirs.tokenizer("the food", return_tensors="pt")
        logits = AutoModelForMaskedLM.from_pretrained(model)(**ids).logits[0]
    weights = logits.relu().log1p().amax(0)
    torch.testing.assert_close(loaded.encode("the food").to_dense(), weights, atol=1e-5, rtol=1e-4)
    passages = [{"_id": key, "text": text} for key, text in task.documents.items()]
    rows = [{"query": query.text} for query in task.test]
    ranked = predict(tmp_path / "out", rows, None, passages=passages, text_column="query", progress=False).rows
    assert [[one["id"] for one in row["ranking"]] for row in ranked] == [ids[:10] for ids in result.predicted]
    for wrong, words in (
        ({"epochs": 1, "sparse": True}, "'sparse' measures a model as it is: set epochs to 0"),
        ({"epochs": 0, "sparse": True, "dimensions": 4}, "'dimensions' is for dense vectors"),
        ({"epochs": 0}, "is a SparseEncoder, which gives words weights .* add sparse and epochs=0"),
    ):
        with pytest.raises(UserError, match=words):
            finetune(tmp_path / "out", task, **{**QUICK, **wrong})
    save_tiny("llama", tmp_path / "decoder")
    with pytest.raises(UserError, match="has no head of a masked language model"):
        finetune(tmp_path / "decoder", task, sparse=True, epochs=0, **QUICK)
