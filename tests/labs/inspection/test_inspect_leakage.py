"""`acclimate inspect leakage` from files to its output."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.data.contamination import MatchRules
from acclimate.data.documents import Corpus
from acclimate.data.task_kinds import load_task, task_texts
from acclimate.data.writing import write_rows
from acclimate.labs.inspection.leakage import inspect_leakage
from acclimate.tasks.interfaces import evaluation_texts, item_texts
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.kinds.qa.data import QATask
from tests.data.test_contamination import oracle

LONG = "The waiter brought us a cold soup, and nobody at the table was surprised by that any more."


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "task").mkdir()
    texts = {"train": "a train text", "dev": "Only here.", "test": LONG}
    for split, text in texts.items():
        rows = [{"text": text, "text_pair": f"{split} pair {label}", "label": label} for label in ("a", "b")]
        (tmp_path / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [f"In the evening we went out. {LONG} That was all.", "a train text", "something else"]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return tmp_path


def test_texts_that_are_searched_for(folder):
    task = load_task(folder / "task")
    assert evaluation_texts(task) == {
        "dev": ["Only here.", "dev pair a", "dev pair b"],
        "test": [LONG, "test pair a", "test pair b"],
    }
    assert task_texts(task) == ["a train text", "train pair a", "train pair b"]
    assert item_texts(task)["train"] == ["a train text\ntrain pair a", "a train text\ntrain pair b"]
    assert item_texts(task)["dev"] == ["Only here.\ndev pair a", "Only here.\ndev pair b"]


def squad(**passages):
    asked = {
        passage: [{"id": f"{name}{number}", "question": "How was it?", "answers": [{"text": "It", "answer_start": 0}]}]
        for number, (name, passage) in enumerate(passages.items())
    }
    return {"data": [{"paragraphs": [{"context": passage, "qas": qas} for passage, qas in asked.items()]}]}


def test_train_splits_are_searched_by_item(folder):
    # An aspect with another sentence, or a question on another passage, is not a match.
    rows = {
        "train": [(LONG, "soup"), ("The wine was as warm as the day was long, sadly.", "wine")],
        "test": [(LONG, "soup"), ("Nobody had told them that their wine list was out of date.", "wine")],
    }
    pairs = Task.of("pairs", *([{"text": a, "text_pair": b, "label": b} for a, b in rows[s]] for s in rows))
    shared = f"It was warm. {LONG}"
    questions = QATask.of("asked", squad(a="It is somewhere else.", b=shared), squad(c=shared, d="It is new."))
    report = inspect_leakage([pairs, questions], progress=False)
    assert report.keys() == {"acclimate", "rules", "train"}
    counts = [
        (row["task"], row["split"], row["texts"], row["found"], row["exact"])
        for found in report["train"]
        for row in found["texts"]
    ]
    assert counts == [("pairs", "test", 2, 1, 1), ("asked", "test", 2, 1, 1)]
    assert [found["examples"][0]["text"] for found in report["train"]] == [f"{LONG}\nsoup", shared]


def test_in_python(folder):
    report = inspect_leakage([folder / "task"], folder / "corpus.jsonl", progress=False)
    assert (report["documents"], report["flagged"]) == (3, 1)
    test = next(row for row in report["texts"] if row["split"] == "test")
    assert test == {
        **{"task": "task", "split": "test", "texts": 3, "short": 2},
        **{"found": 1, "exact": 0, "near": 0, "contained": 1},
    }
    clean = Corpus(folder / "corpus.jsonl").without(report["digests"])
    assert list(clean) == ["a train text", "something else"]
    with pytest.raises(UserError, match="same name"):
        inspect_leakage([folder / "task"] * 2, folder / "corpus.jsonl", progress=False)


def test_on_the_command_line(folder, monkeypatch, capsys):
    arguments = ["acclimate", "inspect", "leakage", "--corpus", folder / "corpus.jsonl", "--task", folder / "task"]
    arguments += ["--out", folder / "leakage.json", "--quiet"]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert "1 of 3 documents contain a dev or test text." in shown
    assert "task, test: 1 of 3 texts (0 exact, 0 near, 1 contained); 2 are short" in shown
    assert "is in 'In the evening" in shown
    assert "task, test: 0 of 2 texts in its own train split (0 exact, 0 near, 0 contained)" in shown
    assert json.loads((folder / "leakage.json").read_text())["flagged"] == 1


def some_texts(rng):
    """Repetitive texts, of which many contain others."""
    return [" ".join(rng.choices(["aa", "bb", "cc"], k=rng.randint(1, 14))) for _ in range(rng.randint(1, 8))]


def gzipped(path, texts):
    with gzip.open(path.with_suffix(".jsonl.gz"), "wt") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return path.with_suffix(".jsonl.gz")


def in_folder(path, texts):
    path.mkdir()
    for number, text in enumerate(texts):
        (path / f"{number:04}.txt").write_text(text)
    return path


def written(ending):
    def write(path, texts):
        write_rows(path.with_suffix(ending), [{"text": text, "id": n} for n, text in enumerate(texts)])
        return path.with_suffix(ending)

    return write


FORMS = {
    **{"folder": in_folder, "gz": gzipped, "memory": lambda path, texts: Corpus.of(texts, dedup=False)},
    **{ending: written(ending) for ending in (".csv", ".parquet", ".json")},
}


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_form_of_corpus_and_benchmark_gives_what_a_comparison_of_all_pairs_gives(rng):
    corpora, questions, answers = [some_texts(rng) for _ in FORMS], some_texts(rng), some_texts(rng)
    rules = MatchRules(0.8, 0.7, 5)
    with TemporaryDirectory() as name:
        folder = Path(name)
        given = [
            form(folder / f"c{n}", own) for n, (form, own) in enumerate(zip(FORMS.values(), corpora, strict=True))
        ]
        rows = [{"doc": {"question": one, "other": [2]}} for one in questions]
        (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        more = {"benchmark_columns": "doc.question", "progress": False, "contained": 0.7, "fewest_words": 5}
        more |= {"write_clean": folder / "clean", "tables": folder / "tables"}
        report = inspect_leakage(corpus=given, benchmarks=[folder / "samples.jsonl"], **more)
        expected, counts = [], []
        for row, own in zip(report["corpora"], corpora, strict=True):
            found = {(d, i) for d, text in enumerate(own) for i, q in enumerate(questions) if oracle(text, q, rules)}
            flagged = {document for document, _ in found}
            expected += [[row["corpus"], str(d + 1), str(i + 1)] for d, i in sorted(found)]
            counts.append((len({item for _, item in found}), len(flagged)))
            assert (row["documents"], row["flagged"]) == (len(own), len(flagged))
            clean = [json.loads(line)["text"] for line in (folder / "clean" / f"{row['corpus']}.jsonl").open()]
            assert clean == [text for d, text in enumerate(own) if d not in flagged]
        with (folder / "tables/flagged.csv").open(newline="") as file:
            assert [[row[key] for key in ("corpus", "document", "item")] for row in csv.DictReader(file)] == expected
        assert [(row["contaminated"], row["documents"]) for row in report["benchmarks"][:-1]] == counts
        whole = report["benchmarks"][-1]
        assert (whole["corpus"], whole["items"], whole["documents"]) == ("all", len(questions), report["flagged"])
        assert whole["low"] <= whole["share"] <= whole["high"]
        # A benchmark in memory, and in another form.
        column = {"progress": False, "contained": 0.7, "fewest_words": 5}
        named = written(".csv")(folder / "answers", answers)
        found = [
            inspect_leakage(corpus=given, benchmarks=[one], **column)
            for one in (named, Corpus.of(answers, dedup=False))
        ]
        for one in found:
            pairs = [oracle(text, answer, rules) for own in corpora for text in own for answer in answers]
            assert bool(one["flagged"]) == any(pairs)
        assert [{**row, "benchmark": ""} for row in found[0]["benchmarks"]] == [
            {**row, "benchmark": ""} for row in found[1]["benchmarks"]
        ]


def test_texts_of_benchmarks_on_the_command_line(folder, monkeypatch, capsys):
    (folder / "bench.csv").write_text(f'question,id\n"{LONG}",1\nIs it somewhere else?,2\n')
    (folder / "other.txt").write_text("nothing\nto find\n")
    words = ["--benchmark", "bench.csv", "--corpus", "corpus.jsonl", "--corpus", "other.txt", "--write-clean", "clean"]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["acclimate", "inspect", "leakage", *words, "--tables", "tables", "--quiet"])
    for _ in range(2):  # the second run replaces what the first wrote
        with pytest.raises(SystemExit) as ended:
            cli.main()
            raise SystemExit(0)
        assert not ended.value.code
    shown = capsys.readouterr().out
    assert "1 of 5 documents contain a text of a benchmark." in shown and "bench: 1 of 2 texts" in shown
    assert "corpus: 1 of 3 documents" in shown and "Clean corpora, 4 documents: clean" in shown
    assert r"bench & all & 2 & 1 & 50.0 [9.5, 90.5] & 1 \\" in (folder / "tables/table.tex").read_text()
    assert "bench,,corpus,2,1,0.5," in (folder / "tables/table.csv").read_text()
    assert "corpus,corpus.jsonl,1,bench,,1,contained,1.0," in (folder / "tables/flagged.csv").read_text()


def test_clean_corpora_are_written_whole_or_not_at_all(folder):
    more = {"benchmarks": [[LONG, "another text"]], "write_clean": folder / "clean", "progress": False}
    inspect_leakage(corpus=folder / "corpus.jsonl", **more)
    before = {path.name: path.read_bytes() for path in (folder / "clean").iterdir()}
    (folder / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match="no usable document"):
        inspect_leakage(corpus=[folder / "corpus.jsonl", folder / "empty.txt"], **more)
    assert {path.name: path.read_bytes() for path in (folder / "clean").iterdir()} == before
    assert not list(folder.glob(".clean*"))
    for wrong, reason in (
        ({"corpus": None}, "no corpus"),
        ({"write_clean": folder / "task"}, "something other than clean corpora"),
        ({"benchmarks": ()}, "no texts to search for"),
        ({"benchmark_columns": "doc.question"}, "text without columns"),
        ({"benchmarks": [folder / "corpus.jsonl"], "benchmark_columns": "doc.question"}, "no column 'doc.question'"),
    ):
        with pytest.raises(UserError, match=reason):
            inspect_leakage(**({"corpus": folder / "corpus.jsonl"} | more | wrong))


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    def peak(count):
        text = "and more of it, as there always is more of everything, in the end " * 15
        rows = (json.dumps({"text": f"{number} {text}"}) + "\n" for number in range(count))
        (tmp_path / "corpus.jsonl").write_text("".join(rows))
        tracemalloc.start()
        more = {"write_clean": tmp_path / "clean", "tables": tmp_path / "tables", "progress": False}
        report = inspect_leakage(
            corpus=tmp_path / "corpus.jsonl", benchmarks=[["a text that is in none, not once"]], **more
        )
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert report["documents"] == count
        return size

    peak(300)  # tables that are made once
    assert abs(peak(1200) - peak(300)) < 200_000
