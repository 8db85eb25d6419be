"""Incremental self-training: what is learned and labelled, and that it follows a drift that fine-tuning cannot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import acclimate
import acclimate.labs.periods.dated_tasks
import acclimate.labs.periods.self_training
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.data.operations import Transform
from acclimate.data.pool import Document
from tests.cases import each
from tests.labs.periods.test_gap import dated_rows

YEARS = (2010, 2011, 2012, 2013)


def drifting_rows(years=YEARS, each_year=40):
    """Return texts of two words: one that the year shares with the last, and one that it shares with the next."""
    return [
        {"text": f"{label}{year} {label}{year + 1} {n}", "label": label, "year": year}
        for year in years
        for n in range(each_year)
        for label in (("good", "bad")[n % 2],)
    ]


class Words:
    """A classifier that knows words: it is sure of a text if it knows a word of it, and else says the first label."""

    def __init__(self, known):
        self.known = known

    def predict(self, text):
        votes = Counter(self.known[word] for word in text.split()[:2] if word in self.known)
        return (votes.most_common(1)[0][0], 1.0) if votes else (0, 0.5)


@pytest.fixture
def words(monkeypatch):
    """Replace fine-tuning and labelling by those of :class:`Words`; yield the trainings."""
    trained = []

    def finetune(model, task, *, seed, out=None, **options):
        start = Path(model) / "words.json"
        known = json.loads(start.read_text()) if start.is_file() else {}
        known |= {word: example.label for example in task.train for word in example.text.split()[:2]}
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / "words.json").write_text(json.dumps(known))
        texts = [example.text for example in task.train]
        trained.append(SimpleNamespace(start=Path(model).name, texts=texts, labels=[one.label for one in task.train]))
        learned = Words(known)
        predicted = [learned.predict(example.text)[0] for example in task.test]
        return SimpleNamespace(gold=[example.label for example in task.test], predicted=predicted)

    @dataclass(frozen=True)
    class Labels(Transform):
        model: str = ""
        confidence: float = 0.0
        max_length: int = 0

        def apply(self, documents, context) -> Iterator[Document]:
            learned = Words(json.loads((Path(self.model) / "words.json").read_text()))
            for text in documents:
                label, sure = learned.predict(text)
                if sure >= self.confidence:
                    yield Document(text, {"label": ["bad", "good"][label], "confidence": sure})

    monkeypatch.setattr(acclimate.labs.periods.dated_tasks, "finetune", finetune)
    monkeypatch.setattr(
        acclimate.labs.periods.self_training, "TRANSFORMS", SimpleNamespace(lookup=lambda name: Labels)
    )
    return trained


def test_labels_cross_a_drift_one_period_at_a_time(words, tiny_bert, tmp_path):
    options = {"metric": "accuracy", "least": 20, "seeds": 2, "progress": False, "out": tmp_path / "updated"}
    report = acclimate.periods_self_train(tiny_bert, drifting_rows(), **options)
    assert [row["period"] for row in report["rows"]] == ["2011", "2012", "2013"]
    assert [row["after"] for row in report["rows"]] == [1.0, 1.0, 1.0]
    assert [row["before"] for row in report["rows"]] == [1.0, 0.5, 0.5]  # 2010 shares words with 2011 only
    assert [row["right"] for row in report["labelled"]] == [1.0, 1.0, 1.0]
    assert report["mean"]["difference"] == pytest.approx(1 / 3) and report["mean"]["low"] > 0.1
    assert [row["once"] for row in report["rows"]] == [1.0, 1.0, 0.5]  # 2011, labelled at once, leads to 2012
    assert [row["over_once"] for row in report["rows"]] == [0.0, 0.0, 0.5]
    assert report["mean_over_once"]["difference"] == pytest.approx(1 / 6)
    assert [run.start for run in words[4:5]] == ["2010"] and len(words[4].texts) == 28 + 28
    assert [run.start for run in words[:4]] == [tiny_bert.name, "2010", "2011", "2012"]
    sizes = [len(run.texts) for run in words[:4]]
    assert sizes == [28, 56, 84, 112]  # learn="all": of each period all but the test rows
    assert [path.name for path in sorted((tmp_path / "updated" / "models" / "seed-1").iterdir())] == ["2013"]
    done = len(words)
    assert done == 2 * 5
    assert acclimate.periods_self_train(tiny_bert, drifting_rows(), **options) == report and len(words) == done


def test_what_is_learned_is_chosen_and_test_rows_never_are(words, tiny_bert, tmp_path):
    rows = drifting_rows()
    corpus = [{"text": row["text"] + " extra", "date": f"{row['year']}-05-01"} for row in rows]
    corpus += [{"text": row["text"], "date": row["year"]} for row in rows] + [{"text": "other", "date": "1999"}]
    report = acclimate.periods_self_train(
        tiny_bert, rows, tmp_path / "out", corpus=corpus, learn="new", start="base", least=20, seeds=1, progress=False,
        date_column=None, documents=30,
    )  # fmt: skip
    assert [run.start for run in words] == [tiny_bert.name] * 5
    assert [len(run.texts) for run in words[:4]] == [28, 30, 30, 30]
    learned = {text for run in words[1:] for text in run.texts}
    assert any(text.endswith("extra") for text in learned)
    assert not learned & {row["text"] for row in rows if row["year"] == 2010}
    said = repr(report)
    assert "36 texts not used, being test rows" in said and "Corpus: Periods left out for too few" in said


def test_a_model_that_is_sure_of_nothing_stays_and_says_so(words, tiny_bert, tmp_path):
    rows = drifting_rows((2010, 2013))
    report = acclimate.periods_self_train(tiny_bert, rows, tmp_path / "o", least=20, seeds=1, progress=False)
    assert report["rows"][0]["difference"] == 0 and report["labelled"][0]["labelled"] == 0
    assert "nothing was learned; lower it" in repr(report) and len(words) == 1


def test_a_corpus_carries_labels_beyond_the_last_labelled_period(words, tiny_bert, tmp_path):
    corpus = [{"text": row["text"] + " extra", "date": row["year"]} for row in drifting_rows((2011, 2012, 2013))]
    labelled = [{"text": row["text"], "label": row["label"], "date": row["year"]} for row in drifting_rows()]
    given = {"corpus": corpus, "least": 20, "seeds": 1, "progress": False, "metric": "accuracy"}
    only_first = [row for row in labelled if row["date"] == 2010]
    report = acclimate.periods_self_train(tiny_bert, only_first, tmp_path / "a", **given)
    assert [path.name for path in (tmp_path / "a" / "models" / "seed-0").iterdir()] == ["2013"]
    assert report["rows"] == [] and report["mean"] is None and "not tested on later text" in repr(report)
    assert [row["labelled"] for row in report["labelled"]] == [40, 40, 40]
    ends = [row for row in labelled if row["date"] in (2010, 2013)]
    report = acclimate.periods_self_train(tiny_bert, ends, tmp_path / "b", **given)
    assert [(row["period"], row["before"], row["after"]) for row in report["rows"]] == [("2013", 0.5, 1.0)]
    with pytest.raises(UserError, match="no period after 2010"):
        acclimate.periods_self_train(
            tiny_bert, only_first, tmp_path / "c", **given | {"corpus": [row | {"date": 2010} for row in corpus]}
        )


@pytest.mark.slow
def test_a_killed_loop_repeats_no_training_that_is_finished(tiny_bert, tmp_path, monkeypatch):
    """It continues with the next period, and ends with the report of a run that was not interrupted."""
    train, trained = acclimate.labs.periods.dated_tasks.finetune, []
    options = {"least": 8, "seeds": 1, "epochs": 1, "max_length": 16, "confidence": 0.3, "progress": False}
    rows = dated_rows((2010, 2011, 2012), 12)

    def stop(model, task, **given):
        files = given["out"] / "model.safetensors"
        before = files.stat().st_mtime_ns if files.is_file() else None
        if len(trained) == 2 and before is None:
            trained.append("killed")
            raise KeyboardInterrupt
        made = train(model, task, **given)
        trained.append(files.stat().st_mtime_ns == before)
        return made

    whole = acclimate.periods_self_train(tiny_bert, rows, tmp_path / "whole", **options)
    monkeypatch.setattr(acclimate.labs.periods.dated_tasks, "finetune", stop)
    with pytest.raises(KeyboardInterrupt):
        acclimate.periods_self_train(tiny_bert, rows, tmp_path / "cut", **options)
    report = acclimate.periods_self_train(tiny_bert, rows, tmp_path / "cut", **options)
    assert trained == [False, False, "killed", True, True, False, False] and report == whole


@each(
    ("rows", "message"),
    [
        ([row | {"text_pair": "b"} for row in drifting_rows()], "does not give classes to single texts"),
        ([row | {"label": n + 0.5} for n, row in enumerate(drifting_rows())], "does not give classes"),
        (drifting_rows((2010,)), "2 periods of at least 20 rows are needed, but there is 1"),
    ],
)
def test_tasks_that_cannot_be_labelled_are_refused(rows, message, tiny_bert, tmp_path):
    with pytest.raises(UserError, match=message):
        acclimate.periods_self_train(tiny_bert, rows, tmp_path / "out", least=20, progress=False)


def test_the_command_trains_and_labels_with_a_model(tiny_bert, tmp_path):
    table = tmp_path / "task.csv"
    lines = [f"{row['text']},{row['label']},{row['year']}" for row in dated_rows((2010, 2011), 12)]
    table.write_text("\n".join(["text,label,year", *lines]))
    command = [
        "periods",
        "self-train",
        "--model",
        tiny_bert,
        "--task",
        table,
        "--least",
        8,
        "--seeds",
        1,
        "--epochs",
        1,
    ]
    command += ["--max-length", 16, "--confidence", 0.5, "--out", tmp_path / "out", "--quiet"]
    result = CliRunner().invoke(app, [str(word) for word in command])
    assert result.exit_code == 0, result.exception
    assert "8 of 8 texts labelled" in result.output and "Mean difference" in result.output
    folder = tmp_path / "out" / "models" / "seed-0" / "2011"
    assert (folder / "model.safetensors").is_file() and f"acclimate push {folder}" in result.output
