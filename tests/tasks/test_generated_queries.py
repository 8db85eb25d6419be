"""Retrieval tasks with queries that a function generates."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import acclimate
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.data.task_kinds import load_task
from acclimate.tasks.finetune import finetune
from acclimate.tasks.kinds.retrieval.generation import generate_queries
from acclimate.tasks.kinds.retrieval.model import _scaled_cosine
from tests.cases import each
from tests.servers import completion, serve
from tests.tiny import WORDS

sentence_transformers = pytest.importorskip("sentence_transformers")
TOPICS = [word for word in WORDS if len(word) > 3][:24]
PASSAGES = [f"the {topic} and a {TOPICS[place - 1]} of it ." for place, topic in enumerate(TOPICS)]


def write(passage):
    topic = passage.split()[1]
    return [f"which {topic} ?", f"is the {topic} good ?", "what is it ?", ""]


def overlap(query, text):
    return 4.0 * len({*query.split()} & {*text.split()})


def read(folder):
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_the_folder_is_a_retrieval_task(tmp_path):
    result = generate_queries([*PASSAGES, PASSAGES[0], "  "], write, tmp_path / "out", progress=False, scorer=overlap)
    assert (result.passages, result.queries, result.without) == (24, 2 * 24 + 1, 0)
    assert result.dropped["generated before"] == 23 and result.dropped["empty"] == 0  # a fourth query is not read
    assert "49 queries for 24 of 24 passages" in result.describe() and "23 generated before" in result.describe()
    for row in read(tmp_path / "out"):
        assert row["passage"] in PASSAGES and row["negative"] in PASSAGES and row["negative"] != row["passage"]
        assert row["margin"] == overlap(row["query"], row["passage"]) - overlap(row["query"], row["negative"])
    task = load_task(tmp_path / "out")
    assert task.task_kind == "retrieval" and len(task.documents) == 24 and task.drawn
    assert all(query.margins for query in task.train)
    with pytest.raises(UserError, match="is not empty"):
        generate_queries(PASSAGES, write, tmp_path / "out", progress=False)
    with pytest.raises(UserError, match="is a file; give a folder"):
        generate_queries(PASSAGES, write, next((tmp_path / "out").iterdir()), progress=False)
    again = generate_queries(PASSAGES, write, tmp_path / "out", progress=False, overwrite=True, negatives="none")
    assert again.rows == 49 and "negative" not in read(tmp_path / "out")[0]


def test_queries_whose_passage_is_not_found_are_left_out(tiny_bert, tmp_path):
    passages = [f"{word}{word} {word}x of it" for word in TOPICS]
    lost = {passages[0]: f"about {passages[5]}", passages[7]: "xyzzy"}  # which find another passage, and none

    def used(**options):
        ask = {text: lost.get(text, text[:-6]) for text in passages}.__getitem__
        result = generate_queries(passages, ask, tmp_path / "out", overwrite=True, progress=False, **options)
        return result, {row["passage"] for row in read(tmp_path / "out")}

    result, kept = used(consistent=1, negatives="none")
    assert kept == {*passages} - lost.keys() and result.dropped["whose passage is not found"] == 2
    assert "2 whose passage is not found" in result.describe() and used()[1] == {*passages}
    assert used(consistent=len(passages))[1] == {*passages} - lost.keys()
    assert used(consistent=len(passages), negatives=str(tiny_bert))[1] == {*passages}


@pytest.mark.slow
def test_margins_are_learned(tiny_bert, tmp_path):
    generate_queries(PASSAGES, write, tmp_path / "out", progress=False, scorer=overlap, negatives=str(tiny_bert))
    options = {"progress": False, "precision": "fp32", "max_length": 24, "learning_rate": 3e-3, "batch_size": 8}
    result = finetune(tiny_bert, tmp_path / "out", out=tmp_path / "tuned", epochs=6, **options)
    task, encoder = load_task(tmp_path / "out"), sentence_transformers.SentenceTransformer(str(tmp_path / "tuned"))
    triples = [(query.text, *margin) for query in task.train for margin in query.margins]
    asked, passages, negatives = (
        encoder.encode([triple[side] for triple in triples], convert_to_tensor=True) for side in range(3)
    )
    found = (_scaled_cosine(asked, passages) - _scaled_cosine(asked, negatives)).cpu().numpy()
    wanted = np.array([margin for *_, margin in triples])
    assert np.square(found - wanted).mean() < 0.5 * np.square(wanted).mean()
    log = [json.loads(line) for line in (tmp_path / "tuned" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < log[0]["loss"] and result.steps > 0
    scale = torch.randn(3, 4)
    torch.testing.assert_close(_scaled_cosine(scale, 2 * scale), torch.full((3,), 20.0))


def test_the_command_takes_a_function_of_a_file(tmp_path):
    (tmp_path / "passages.txt").write_text("\n".join(PASSAGES))
    (tmp_path / "mine_queries.py").write_text("def write(passage):\n    return 'about ' + passage.split()[1]\n")
    function = f"{tmp_path / 'mine_queries.py'}:write"
    command = ["generate-queries", "--corpus", tmp_path / "passages.txt", "--generator", function, "--passages", 10]
    found = CliRunner().invoke(app, [*map(str, command), "--out", str(tmp_path / "out"), "--quiet"])
    assert found.exit_code == 0, found.output
    assert "10 queries for 10 of 10 passages" in found.output and "acclimate finetune" in found.output
    rows = read(tmp_path / "out")
    assert len(rows) == 10 and all(row["query"].split()[1] in row["passage"] for row in rows)
    assert acclimate.generate_queries is generate_queries


def test_models_behind_endpoints_write_and_score_queries(tmp_path):
    def answer(prompt, number):
        topic = next(one for one in PASSAGES if one in prompt).split()[1]
        queries = f"1. which {topic} ?\n- is the {topic} good ?"
        return completion(f"{len(topic)} points" if "from 0" in prompt else queries)

    with serve(answer) as server:
        by = f"{server.url} model=m concurrency=4"
        result = generate_queries(PASSAGES, by, tmp_path / "out", progress=False, queries=2, scorer=by)
    assert (result.queries, result.without) == (2 * len(PASSAGES), 0)
    for row in read(tmp_path / "out"):
        topic = row["passage"].split()[1]
        assert row["query"] in (f"which {topic} ?", f"is the {topic} good ?")
        assert row["margin"] == len(topic) - len(row["negative"].split()[1])


def test_a_dry_run_counts_the_calls_and_makes_none(tmp_path):
    (tmp_path / "passages.txt").write_text("\n".join(PASSAGES))
    (tmp_path / "no_queries.py").write_text("def write(passage):\n    raise SystemExit\n")
    command = ["generate-queries", "--corpus", tmp_path / "passages.txt", "--out", tmp_path / "out", "--dry-run"]
    with serve() as server:
        for by in (f"{tmp_path / 'no_queries.py'}:write", f"{server.url} model=m max_tokens=7"):
            found = CliRunner().invoke(app, [*map(str, command), "--generator", by, "--passages", "10"])
            assert found.exit_code == 0, found.output
            assert "10 calls" in found.output and f"prompt: {PASSAGES[0][:3]}" in found.output
    assert "at most 70 to write" in found.output and "--dry-run" not in found.output
    assert not server.bodies and not (tmp_path / "out").exists()


@each(("options", "words"), [
    ({"generator": "nowhere"}, "names no function"),
    ({"generator": "nowhere.py:write"}, "no Python file"),
    ({"generator": f"{__file__}:nothing"}, "has no function 'nothing'"),
    ({"generator": lambda text: 3}, "must return a string or a list of strings"),
    ({"generator": lambda text: 1 / 0}, "generator failed on .*ZeroDivisionError"),
    ({"generator": lambda text: "one"}, "returned 1 queries"),
    ({"scorer": lambda query, text: None}, "must return a finite number"),
    ({"scorer": lambda query, text: 1, "negatives": "none"}, "leave negatives at bm25"),
])  # fmt: skip
def test_errors_are_explained(options, words, tmp_path):
    given = {"generator": write, "progress": False, **options}
    with pytest.raises(UserError, match=words):
        generate_queries(PASSAGES, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
