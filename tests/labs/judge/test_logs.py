"""Logs of evaluations in each format, whole and damaged: what is read, what is left out, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import random
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.labs.judge.logs import ERROR_NAMES, read_runs
from tests.cases import each

TIME = "2026-11-28T14-25-45.456770"
LATER = "2026-11-29T09-00-00.000001"


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def lm_eval_rows(items=6, filters=("none",), **fields):
    """Return items as ``lm-eval`` 0.4.13 logs them with ``--log_samples``."""
    return [
        {
            "doc_id": number,
            "doc": {"question": f"q{number}", "passage": f"the passage {number // 2}"},
            "target": "yes",
            "arguments": {"gen_args_0": {"arg_0": f"prompt {number}", "arg_1": " yes"}},
            "resps": [["-1.5", "False"]],
            "filtered_resps": ["-1.5"],
            "filter": kind,
            "metrics": ["acc", "bits_per_byte", "f1"],
            "doc_hash": f"{number:064x}"[::-1],
            "prompt_hash": f"{number + 100:064x}"[::-1],
            "target_hash": "t",
            "acc": float(number % 2),
            "bits_per_byte": [-8.0 * (number + 1), 4],
            "f1": [1, 0],
            **fields,
        }
        for number in range(items)
        for kind in filters
    ]


def write_lm_eval(folder, rows=None, task="quiz", time=TIME, **config):
    """Write the items and the results of a task as ``lm-eval`` does; return the file of the items."""
    path = write_lines(folder / f"samples_{task}_{time}.jsonl", lm_eval_rows() if rows is None else rows)
    results = {
        "results": {task: {"acc,none": 0.5}},
        "configs": {task: {"dataset_path": "json", "test_split": "test", "num_fewshot": 3, **config}},
        "versions": {task: 1.0},
        "n-shot": {task: 3},
        "higher_is_better": {task: {"acc": True, "bits_per_byte": False}},
        "n-samples": {task: {"original": 9, "effective": 6}},
        "model_name": "org/model",
    }
    (folder / f"results_{time}.json").write_text(json.dumps(results))
    return path


def write_lighteval(root, model="org/model", time=TIME, task="gsm8k|5", items=6):
    """Write details as ``lighteval`` 0.13 does."""
    folder = root / "details" / model / time
    folder.mkdir(parents=True)
    rows = [
        {
            "doc": {
                "query": f"q{number}",
                "choices": ["a", "b"],
                "gold_index": 0,
                "id": str(number),
                "specific": {"passage": f"p{number // 3}"},
            },
            "metric": {"em": float(number % 2), "f1": number / 10},
            "model_response": {"input": f"prompt {number}", "text": ["a"], "logits": None},
        }
        for number in range(items)
    ]
    path = folder / f"details_{task}_{time}.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    results = {
        "config_general": {"model_name": model, "max_samples": 6},
        "results": {},
        "config_tasks": {
            task: {
                "hf_repo": "gsm8k",
                "evaluation_splits": ["test"],
                "num_fewshots": 5,
                "metrics": [{"metric_name": ["em", "f1"], "higher_is_better": {"em": True, "f1": False}}],
            }
        },
    }
    (root / "results" / model).mkdir(parents=True, exist_ok=True)
    (root / "results" / model / f"results_{time}.json").write_text(json.dumps(results))
    return path


def inspect_samples(items=6, epochs=2, passage="the passage"):
    """Return samples as ``inspect_ai`` 0.3.285 logs them."""
    return [
        {
            "id": f"q{number}",
            "epoch": epoch,
            "input": [{"id": f"{random.random()}", "role": "user", "content": f"q{number}?"}],
            "target": "yes",
            "metadata": {"passage": f"{passage} {number // 3}"},
            "scores": {
                "match": {"value": "CIPN"[(number + epoch) % 4], "answer": "yes", "history": []},
                "rubric": {"value": {"tone": 1, "form": number / 4}, "history": []},
                "notes": {"value": "a free text", "history": []},
            },
        }
        for epoch in range(1, epochs + 1)
        for number in range(items)
    ]


def write_inspect(path, samples=None, status="success", **spec):
    """Write a log as ``inspect_ai`` does: JSON, or a zip whose parts are compressed by zstd."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = inspect_samples() if samples is None else samples
    eval_spec = {
        "task": "quiz",
        "task_version": 0,
        "task_args": {},
        "model": "org/model",
        "dataset": {"name": "quizzes", "shuffled": False},
        "config": {"epochs": 2, "epochs_reducer": ["mean"]},
        **spec,
    }
    header = {"version": 2, "status": status, "eval": eval_spec, "plan": {"steps": [{"solver": "generate"}]}}
    if path.suffix == ".json":
        path.write_text(json.dumps({**header, "samples": samples}))
        return path
    members = {f"samples/{one['id']}_epoch_{one['epoch']}.json": one for one in samples}
    summaries = []
    for one in samples:
        cut = {key: value[:1024] + "..." * (len(value) > 1024) for key, value in one["metadata"].items()}
        texts = [{**part, "content": part["content"][:5120]} for part in one["input"]]
        summaries.append({**one, "metadata": cut, "input": texts})
    write_zstd_zip(path, {**members, "summaries.json": summaries, "header.json": header})
    return path


def write_zstd_zip(path, members):
    """Write a zip of JSON by method 93, which ``zipfile`` of Python 3.11 does not write."""
    parts, directory = b"", b""
    for name, value in members.items():
        raw, key = json.dumps(value).encode(), name.encode()
        packed = zstandard.compress(raw)
        sizes = (zlib.crc32(raw), len(packed), len(raw), len(key))
        directory += (
            struct.pack("<4s6H3L5H2L", b"PK\1\2", 63, 63, 0, 93, 0, 33, *sizes, 0, 0, 0, 0, 0, len(parts)) + key
        )
        parts += struct.pack("<4s5H3L2H", b"PK\3\4", 63, 0, 93, 0, 33, *sizes, 0) + key + packed
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(parts), 0)
    path.write_bytes(parts + directory + end)


def content(runs):
    """Return runs as plain values."""
    return [
        (
            run.seed,
            run.left_out,
            run.settings,
            {key: (one.names, one.values.tolist(), one.groups, one.is_error) for key, one in run.scores.items()},
        )
        for run in runs
    ]


def test_items_of_lm_eval(tmp_path):
    path = write_lm_eval(tmp_path / "org__model")
    (run,) = read_runs(tmp_path)
    assert (run.place, run.seed, run.model, run.left_out) == (str(path), None, "org/model", {})
    assert run.scores.keys() == {("quiz", "acc"), ("quiz", "bits_per_byte")}, "f1 has no value per item"
    accuracy, bits = run.scores.values()
    assert accuracy.names == sorted(row["doc_hash"][:16] for row in lm_eval_rows())
    assert accuracy.values.tolist() == [0, 1, 0, 1, 0, 1] and not accuracy.is_error and accuracy.weights is None
    assert accuracy.groups == [f"the passage {n // 2}" for n in range(6)] and accuracy.group_name == "passage"
    np.testing.assert_allclose(bits.values, 2 * np.arange(1, 7) / np.log(2))
    assert bits.is_error and bits.weights.tolist() == [4] * 6
    expected = {"dataset": "json", "split": "test", "version": 1.0, "few-shot examples": 3, "limit": 6}
    assert run.settings["quiz"].items() > expected.items()


def test_order_of_lines_and_logged_prompts(tmp_path):
    rows = lm_eval_rows(filters=("strict", "flexible"))
    write_lm_eval(tmp_path / "a", rows)
    write_lm_eval(tmp_path / "b", random.Random(0).sample(rows, len(rows)))
    write_lm_eval(tmp_path / "c", [{**row, "prompt_hash": "another"} for row in rows])
    one, two, other = (read_runs(tmp_path / name) for name in "abc")
    assert content(one) == content(two)
    assert {task for task, _ in one[0].scores} == {"quiz (strict)", "quiz (flexible)"}
    assert other[0].settings["quiz (strict)"]["prompts"] != one[0].settings["quiz (strict)"]["prompts"]


def test_positions_do_not_identify_documents(tmp_path, caplog):
    rows = lm_eval_rows()
    write_lm_eval(tmp_path / "a", rows)
    write_lm_eval(tmp_path / "b", [{**row, "doc_id": 5 - row["doc_id"]} for row in rows])
    assert content(read_runs(tmp_path / "a")) == content(read_runs(tmp_path / "b"))
    same = [{**row, "doc_hash": "same"} for row in rows]
    write_lm_eval(tmp_path / "c", same)
    write_lm_eval(tmp_path / "d", same[::-1])
    runs = [read_runs(tmp_path / name) for name in "cd"]
    assert content(runs[0]) == content(runs[1])
    assert runs[0][0].scores["quiz", "acc"].names == ["same", *(f"same#{n}" for n in range(2, 7))]
    assert "5 items have the same content as another; they are numbered" in caplog.text
    plain = [{"doc_id": row["doc_id"], "doc": row["doc"], "acc": row["acc"]} for row in rows]
    old = write_lines(tmp_path / "old.jsonl", plain)
    assert read_runs(old)[0].scores["old", "acc"].values.sum() == 3, "without hashes"


def test_two_evaluations_in_one_folder_are_ambiguous(tmp_path):
    first, second = write_lm_eval(tmp_path / "m"), write_lm_eval(tmp_path / "m", time=LATER)
    with pytest.raises(UserError, match="are two evaluations of 'quiz' by one model") as error:
        read_runs(tmp_path)
    assert (
        first.name in str(error.value)
        and second.name in str(error.value)
        and "a folder of its own" in str(error.value)
    )
    assert len(read_runs(first)) == 1
    write_lm_eval(tmp_path / "n", task="other"), write_lm_eval(tmp_path / "n", time=LATER)
    (run,) = read_runs(tmp_path / "n")
    assert {task for task, _ in run.scores} == {"quiz", "other"} and run.place == str(tmp_path / "n")
    for seed in range(2):
        write_lm_eval(tmp_path / "seeds" / f"seed-{seed}")
    assert len(read_runs(tmp_path / "seeds")) == len(read_runs(f"{tmp_path}/seeds/*")) == 2
    write_lighteval(tmp_path / "l"), write_lighteval(tmp_path / "l", time=LATER)
    with pytest.raises(UserError, match=r"are two evaluations of 'gsm8k.5' by one model"):
        read_runs(tmp_path / "l")


def test_details_of_lighteval(tmp_path):
    path = write_lighteval(tmp_path)
    for source in (tmp_path, path):
        (run,) = read_runs(source)
        assert (run.model, run.scores.keys()) == ("org/model", {("gsm8k|5", "em"), ("gsm8k|5", "f1")})
        scores = run.scores["gsm8k|5", "em"]
        assert len(set(scores.names)) == 6 and scores.values.sum() == 3 and not scores.is_error
        assert sorted(scores.groups) == ["p0"] * 3 + ["p1"] * 3 and scores.group_name == "passage"
        assert run.scores["gsm8k|5", "f1"].is_error, "as its configuration says"
        assert run.settings["gsm8k|5"].items() > {"dataset": "gsm8k", "few-shot examples": 5, "limit": 6}.items()


def test_logs_of_inspect(tmp_path):
    write_inspect(tmp_path / "a" / "log.eval")
    write_inspect(tmp_path / "b" / "log.json")
    write_inspect(tmp_path / "c" / "log.eval", inspect_samples(passage="word " * 300))
    with zipfile.ZipFile(tmp_path / "d.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        log = json.loads((tmp_path / "b" / "log.json").read_text())
        archive.writestr("header.json", json.dumps({**log, "samples": None}))
        for number, sample in enumerate(log["samples"]):
            archive.writestr(f"samples/{number}.json", json.dumps(sample))
    runs = [read_runs(tmp_path / name) for name in ("a", "b", "d.eval", "c")]
    assert content(runs[0]) == content(runs[1]) == content(runs[2])
    scores = runs[0][0].scores
    assert scores.keys() == {("quiz", "match"), ("quiz", "rubric/tone"), ("quiz", "rubric/form")}, "no free texts"
    match = scores["quiz", "match"]
    assert match.names == [f"q{n}" for n in range(6)] and match.groups == [f"the passage {n // 3}" for n in range(6)]
    grades = [1, 0, 0.5, 0]
    assert match.values.tolist() == [(grades[(n + 1) % 4] + grades[(n + 2) % 4]) / 2 for n in range(6)]
    assert len(set(runs[3][0].scores["quiz", "match"].groups)) == 2, "of texts that the summaries cut"
    long = inspect_samples()
    for sample in long:
        sample["input"][0]["content"] = sample["id"] + "x" * 6000
    whole, cut = (write_inspect(tmp_path / name, long) for name in ("e.json", "f.eval"))
    assert content(read_runs(whole)) == content(read_runs(cut)), "the prompts are equal, too"


def test_samples_with_errors_and_evaluations_that_failed(tmp_path, caplog):
    samples = [{**one, "error": "rate limit"} if one["id"] == "q0" else one for one in inspect_samples(12)]
    samples[1]["scores"]["match"]["value"] = float("nan")
    for name in ("log.eval", "log.json"):
        (run,) = read_runs(write_inspect(tmp_path / name, samples))
        assert run.left_out == {"that ended with an error": 2}
        assert run.scores["quiz", "match"].names == sorted(f"q{n}" for n in range(1, 12))
    failed = write_inspect(tmp_path / "runs" / "failed.eval", status="error")
    with pytest.raises(UserError, match="has the status 'error', so its items are not all there"):
        read_runs(failed)
    with pytest.raises(UserError, match="no log of an evaluation"):
        read_runs(tmp_path / "runs")
    write_inspect(tmp_path / "runs" / "good.eval")
    assert len(read_runs(tmp_path / "runs")) == 1 and "It is left out" in caplog.text
    with pytest.raises(UserError, match=r"more than 20% of the rows.*that ended with an error"):
        read_runs(write_inspect(tmp_path / "many.eval", [{**one, "error": "x"} for one in inspect_samples()]))
    shuffled = [{**one, "id": n} for n, one in enumerate(inspect_samples(epochs=1))]
    kwargs = {"dataset": {"name": "quizzes", "shuffled": True}}
    (run,) = read_runs(write_inspect(tmp_path / "s.eval", shuffled, **kwargs))
    again = [{**one, "id": 9 - one["id"]} for one in shuffled]
    assert content([run]) == content(read_runs(write_inspect(tmp_path / "t.eval", again, **kwargs)))


ROWS = [{"item": n, "score": n / 8, "group": f"g{n // 2}", "seed": seed} for seed in (1, 2) for n in range(8)]


def test_tables_of_every_format_and_their_seeds(tmp_path, caplog):
    write_lines(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "b.json").write_text(json.dumps(ROWS))
    with (tmp_path / "c.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, ["Item", "score", "group", "Seed"])
        writer.writeheader()
        writer.writerows(
            {"Item": r["item"], "score": r["score"], "group": r["group"], "Seed": r["seed"]} for r in ROWS
        )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    write_lines(tmp_path / "e.jsonl", ROWS[::-1])
    found = [content(read_runs(tmp_path / name)) for name in ("a.jsonl", "b.json", "c.csv", "d.parquet", "e.jsonl")]
    assert found[1:] == [found[0]] * 4
    assert [run[0] for run in found[0]] == ["1", "2"]
    runs = read_runs(tmp_path / "a.jsonl")
    scores = runs[0].scores["all", "score"]
    assert scores.names == [str(n) for n in range(8)] and scores.groups == [f"g{n // 2}" for n in range(8)]
    assert runs[0].model == "a" and scores.group_name == "group"
    assert len(read_runs(tmp_path)) == 10, "several tables of one task are several runs"
    (run, _) = read_runs(write_lines(tmp_path / "f.jsonl", [row | {"group": "one"} for row in ROWS]))
    assert set(run.scores["all", "score"].groups) == {"one"}, "items of one group are not independent"


def test_a_new_process_reads_a_parquet_file(tmp_path):
    """Other imports can hide that a module is not imported."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    code = f"from acclimate.labs.judge.logs import read_runs; print(len(read_runs({str(tmp_path / 'd.parquet')!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2", done.stderr


@each("name", ["cross_entropy", "val_loss", "logloss", "Perplexity", "kl_divergence", "edit_distance", "error_rate"])
def test_losses_and_errors_are_known_by_name(name):
    assert ERROR_NAMES.search(name) and not ERROR_NAMES.search("acc_norm") and not ERROR_NAMES.search("cerebral_score")


def test_tasks_and_metrics_of_a_table(tmp_path, caplog):
    rows = [{"id": n, "value": n, "task": task, "metric": m} for n in range(3) for task in "ab" for m in ("f1", "wer")]
    (run,) = read_runs(write_lines(tmp_path / "x.jsonl", rows))
    assert {(*key, one.is_error) for key, one in run.scores.items()} == {
        (task, metric, metric == "wer") for task in "ab" for metric in ("f1", "wer")
    }
    wide = [{"question": f"q{n}", "correct": n > 1, "loss": 0.5, "who": "me"} for n in range(3)]
    (run,) = read_runs(write_lines(tmp_path / "wide.jsonl", wide))
    assert run.scores["all", "correct"].values.sum() == 1 and run.scores["all", "loss"].is_error
    assert "its items in 'question' and its scores in correct, loss; not used: who" in caplog.text
    for name in ("own.json", "own.jsonl"):
        rows = [{"item": n, "mmlu_acc": n % 2} for n in range(3)]
        text = json.dumps(rows) if name == "own.json" else "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name).write_text(text, encoding="utf-8")
        (run,) = read_runs(tmp_path / name)
        assert list(run.scores) == [("all", "mmlu_acc")]
    for task in "pq":
        write_lines(tmp_path / "parts" / f"{task}.jsonl", [{"id": n, "score": n, "task": task} for n in range(3)])
    (run,) = read_runs(tmp_path / "parts")
    assert run.scores.keys() == {("p", "score"), ("q", "score")}


def test_predictions_with_gold_answers(tmp_path):
    rows = [
        {"row": f"t.csv:{n}", "gold": "a", "predicted": "ab"[n % 2], "probabilities": {}, "group": n // 2}
        for n in range(4)
    ]
    for seed in (0, 1):
        folder = tmp_path / "out" / f"seed-{seed}"
        write_lines(folder / "predictions.jsonl", rows)
        write_lines(folder / "log.jsonl", [{"step": 1, "loss": 2.0}])
        (folder / "metrics.json").write_text(json.dumps({"task": "topics", "seed": seed, "kind": "single_label"}))
        (folder / "tokenizer.json").write_text("{" + " " * 5000)
    runs = read_runs(tmp_path / "out")
    assert [(run.seed, run.scores["topics", "accuracy"].values.tolist()) for run in runs] == [
        ("0", [1, 0, 1, 0]),
        ("1", [1, 0, 1, 0]),
    ]
    assert runs[0].scores["topics", "accuracy"].groups == ["0", "0", "1", "1"]
    scored = [{**row, "score": 0.5} for row in rows]
    assert read_runs(write_lines(tmp_path / "s.jsonl", scored))[0].scores.keys() == {("all", "score")}
    numbers = [{"row": n, "gold": 2.0, "predicted": 2.5} for n in range(3)]
    (run,) = read_runs(write_lines(tmp_path / "n.jsonl", numbers))
    assert run.scores["all", "absolute error"].values.tolist() == [0.5] * 3
    assert run.scores["all", "absolute error"].is_error
    lists = [{"row": n, "gold": ["x", "y"], "predicted": ["y", "x"]} for n in range(3)]
    assert (
        read_runs(write_lines(tmp_path / "l.jsonl", lists))[0].scores["all", "exact match"].values.tolist() == [1] * 3
    )
    (tmp_path / "metrics.json").write_text(json.dumps({"kind": "qa", "task": "questions"}))
    answers = [{"row": n, "gold": ["x", "y"], "predicted": ["y", "z"] if n else []} for n in range(3)]
    (run,) = read_runs(write_lines(tmp_path / "predictions.jsonl", answers))
    assert run.scores["questions", "exact match"].values.tolist() == [0, 1, 1]


def test_rows_that_repeat_an_item(tmp_path, caplog):
    path = write_lines(tmp_path / "x.jsonl", [*ROWS[:8], ROWS[3]])
    (run,) = read_runs(path)
    assert run.left_out == {"that repeat another": 1} and len(run.scores["all", "score"].names) == 8
    assert "1 row with the item and score of another left out" in caplog.text
    write_lines(path, [*ROWS[:8], {**ROWS[3], "score": 0.9}])
    with pytest.raises(UserError, match=r"1 rows repeat an item with another score, such as '3' with 0.375 and 0.9"):
        read_runs(path)


def test_rows_without_a_score_are_counted(tmp_path, caplog):
    odd = [None, "", float("nan"), "n/a"]
    rows = [{"item": n, "score": odd[n] if n < 4 else 1} for n in range(30)]
    path = write_lines(tmp_path / "x.jsonl", rows)
    path.write_text(path.read_text() + '{"item": 30, "sco')
    (run,) = read_runs(path)
    assert run.left_out == {"without a score": 4, "that cannot be parsed": 1}
    assert len(run.scores["all", "score"].names) == 26 and "leaves out 5 of 31 rows" in caplog.text
    rows = [{"item": n, "f1": 1 if n else None, "em": 1} for n in range(8)]
    (run,) = read_runs(write_lines(tmp_path / "y.jsonl", rows))
    assert run.left_out == {"without a number in 'f1'": 1}
    assert [len(one.names) for one in run.scores.values()] == [7, 8]


def test_what_is_no_log(tmp_path):
    results = write_lm_eval(tmp_path / "m").with_name(f"results_{TIME}.json")
    with pytest.raises(UserError, match=r"means of tasks, not scores of items.*--log_samples"):
        read_runs(results)
    for name, text, message in (
        ("a.csv", "text,label\nx,y\n", "has the columns text, label, but no 'item' or no 'score'"),
        ("b.jsonl", "", "no row that can be read"),
        ("c.parquet", "PAR1", "cannot be read"),
        ("d.eval", "PK", "cannot be read: it is damaged or cut off"),
        ("e.txt", "x", "Formats that are read"),
        ("f.json", "{", "cannot be read"),
        ("g.json", '{"x": 1}', "but no 'item'"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=message):
            read_runs(tmp_path / name)
    for source in (tmp_path / "nothing", f"{tmp_path}/*.nothing", "a\0b", "x" * 5000):
        with pytest.raises(UserError):
            read_runs(source)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no log of an evaluation. Formats that are read: the samples"):
        read_runs(tmp_path / "empty")


WRITERS = {
    "samples_quiz.jsonl": lambda path: path.write_bytes(
        write_lm_eval(path.parent / "m").read_bytes()
    ),
    "x.parquet": lambda path: pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path),
    "details.parquet": lambda path: path.write_bytes(write_lighteval(path.parent / "l").read_bytes()),
    "x.eval": write_inspect,
    "x.json": write_inspect,
    "x.csv": lambda path: path.write_text("item,score,seed\n" + "".join(f'"{n}",{n},1\n' for n in range(40))),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a log of each format by name."""
    found = {}
    for name, write in WRITERS.items():
        path = tmp_path_factory.mktemp("log") / name
        write(path)
        found[name] = path.read_bytes()
    return found


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=25, deadline=None)
@given(cut=st.floats(0, 1), flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), max_size=3))
def test_damaged_files(name, whole, tmp_path_factory, cut, flips):
    data = bytearray(whole[name][: int(cut * len(whole[name])) if not flips else None])
    for place, change in flips:
        data[int(place * len(data))] ^= change
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(data)
    check_reading(path)


def check_reading(path):
    """Check that a file gives an error of the user or whole runs; return the number of rows that are kept."""
    try:
        runs = read_runs(path)
    except UserError as error:
        assert "\n" not in str(error)
        return None
    for one in (scores for run in runs for scores in run.scores.values()):
        assert len(set(one.names)) == len(one.names) == len(one.values) and np.isfinite(one.values).all()
        assert one.groups is None or len(set(one.groups)) < len(one.groups) == len(one.names)
    return sum(len(one.names) for run in runs for one in run.scores.values()), sum(
        sum(run.left_out.values()) for run in runs
    )


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.lists(st.integers(), max_size=2),
    st.sampled_from(["", "nan", "1e999", "C", "\ud800", "\ufeff1", 10**400, -0.0]),
)  # fmt: skip
NAMES = st.one_of(st.integers(0, 30), st.text(max_size=3), ODD)


@settings(max_examples=100, deadline=None)
@given(
    good=st.integers(0, 30),
    odd=st.lists(
        st.one_of(
            st.fixed_dictionaries({"item": NAMES, "score": ODD}, optional={"group": ODD, "seed": ODD, "text": ODD}),
            ODD,
        ),
        max_size=5,
    ),
    bom=st.booleans(),
    cut=st.booleans(),
)
def test_odd_tables_lose_no_row(tmp_path_factory, good, odd, bom, cut):
    rows = [{"item": f"é{n}", "score": n % 3, "group": n // 2} for n in range(good)] + odd
    path = tmp_path_factory.getbasetemp() / "odd.jsonl"
    lines = [json.dumps(row) for row in rows] + ['{"item": "é'] * cut
    path.write_bytes(b"\xef\xbb\xbf" * bom + "\n".join(lines).encode()[: -1 if cut else None])
    found = check_reading(path)
    assert found is None or sum(found) == len(lines)
    columns = dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row)
    table = io.StringIO()
    writer = csv.DictWriter(table, columns)
    writer.writeheader()
    writer.writerows(row for row in rows if isinstance(row, dict))
    (path := path.with_suffix(".csv")).write_bytes(table.getvalue().encode(errors="replace"))
    check_reading(path)


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 19), st.sampled_from(list(lm_eval_rows(1)[0])), ODD), max_size=4
    ),
    samples=st.lists(
        st.tuples(st.integers(0, 19), st.sampled_from(["id", "input", "metadata", "scores", "error", "epoch"]), ODD),
        max_size=4,
    ),
)  # fmt: skip
def test_odd_fields_lose_no_item(tmp_path_factory, changes, samples):
    folder = tmp_path_factory.getbasetemp()
    rows = lm_eval_rows(20, metrics=["acc"])
    for place, name, value in changes:
        rows[place][name] = value
    found = check_reading(write_lines(folder / "samples_odd.jsonl", rows))
    if found is not None and not any(name in ("metrics", "filter") for _, name, _ in changes):
        assert sum(found) == 20
    own = inspect_samples(20, epochs=1)
    for one in own:
        one["scores"] = {"match": {"value": 1}}
    for place, name, value in samples:
        own[place][name] = value
    found = check_reading(write_inspect(folder / "odd.json", own))
    names = {str(one["id"]) for one in own}
    assert found is None or sum(found) == 20 or len(names) < 20


def test_large_logs_are_read_in_flat_memory(tmp_path):
    import tracemalloc

    row = lm_eval_rows(1)[0]
    path = tmp_path / f"samples_big_{TIME}.jsonl"
    with path.open("w") as file:
        for number in range(300):
            doc = {"doc_hash": f"{number:064x}"[::-1], "doc_id": number, "resps": [["x" * 20_000]]}
            file.write(json.dumps({**row, **doc}) + "\n")
    tracemalloc.start()
    (run,) = read_runs(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(run.scores["big", "acc"].names) == 300
    assert peak < 1.2e6 < path.stat().st_size / 5
