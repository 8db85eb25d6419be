"""Models of periods, the text that they find surprising, and the dates that follow; dated questions for decoders."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import acclimate
import acclimate.labs.periods.surprisal
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.labs.periods.surprisal import date_texts
from tests.cases import each

LETTERS = "abcdefghijklmnop"


def drifting(years=(2010, 2011, 2013), each_year=120, days=True):
    """Return texts whose letters move on with the year; two texts per day."""
    rng = random.Random(1)
    rows = []
    for place, year in enumerate(years):
        for n in range(each_year):
            words = rng.choices(LETTERS[3 * place : 3 * place + 7], k=12)
            date = f"{year}-{n // 2 % 12 + 1:02d}-{n // 24 + 1:02d}" if days else f"{year}"
            rows.append({"text": " ".join([*words, str(len(rows))]), "date": date})
    return rows


def letters_of(text):
    return text.split()[:12]


@pytest.fixture
def unigrams(monkeypatch):
    """Replace adaptation and loss by those of models that count letters; yield the texts of each adaptation."""
    adapted = {}

    def adapt(model, corpus, method, out, **options):
        adapted[out.name] = list(corpus)
        out.mkdir(parents=True)
        (out / "counts.json").write_text(json.dumps(Counter(w for text in corpus for w in letters_of(text))))

    def loss(model, texts, *, max_length):
        place = Path(model) / "counts.json"
        counts = json.loads(place.read_text()) if place.is_file() else {}
        total = sum(counts.values()) + len(LETTERS)
        nats = [-sum(math.log((counts.get(w, 0) + 1) / total) for w in letters_of(text)) for text in texts]
        # As of a masked model: of each text some tokens are predicted, and these cost as much as the others.
        predicted = [2 + len(text) % 7 for text in texts]
        return {
            "per_text": [total * count / 12 for total, count in zip(nats, predicted, strict=True)],
            "per_text_masked": predicted, "per_text_tokens": [12] * len(texts),
            "per_text_bytes": [len(text) for text in texts],
        }  # fmt: skip

    monkeypatch.setattr(acclimate.labs.periods.surprisal, "adapt", adapt)
    monkeypatch.setattr(acclimate.labs.periods.surprisal, "language_model_loss", loss)
    return adapted


def test_every_text_is_measured_under_the_model_of_every_period(unigrams, tmp_path):
    rows = drifting()
    report = acclimate.periods_surprisal("base", rows, tmp_path / "out", heldout=0.2, progress=False)
    day = {row["text"]: row["date"] for row in rows}
    measured = [json.loads(line) for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    trained = {name: {day[text] for text in texts} for name, texts in unigrams.items()}
    assert sorted(trained) == ["2010", "2011", "2013"]
    assert len({len(texts) for texts in unigrams.values()}) == 1  # as many documents of each period
    assert not {day[line["text"]] for line in measured} & set().union(*trained.values())  # whole days are held out
    for name in trained:
        counts = Counter(w for text in unigrams[name] for w in letters_of(text))
        for row in report["matrix"]:
            texts = [line["text"] for line in measured if line["period"] == row["model"]]
            bits = [math.log2((counts[w] + 1) / (counts.total() + len(LETTERS))) for t in texts for w in letters_of(t)]
            expected = -sum(bits) / sum(len(text) for text in texts)
            mine = next(one for one in report["matrix"] if one["model"] == name)
            assert mine[row["model"]] == pytest.approx(expected)
    assert report["base"]["2010"] == pytest.approx(
        12 * 4 / np.mean([len(line["text"]) for line in measured if line["period"] == "2010"])
    )
    rows_by_distance = {row["distance"]: row for row in report["by_distance"]}
    assert sorted(rows_by_distance) == [-3, -2, -1, 0, 1, 2, 3]
    assert rows_by_distance[3]["verdict"] == "hurt" and report["loss_per_unit"]["low"] > 0
    assert report["dating"]["accuracy"] > 0.9 > report["dating"]["chance"]
    guessed = sum(line["guess"] == line["period"] for line in measured)
    assert report["dating"]["accuracy"] == pytest.approx(guessed / len(measured))


def test_single_documents_are_held_out_where_only_the_year_is_known(unigrams, tmp_path):
    report = acclimate.periods_surprisal(
        "base", drifting(days=False), tmp_path / "out", heldout=0.3, documents=20, measured=10, progress=False
    )
    measured = [json.loads(line)["text"] for line in (tmp_path / "out" / "texts.jsonl").read_text().splitlines()]
    assert "single documents" in repr(report) and len(measured) == 30
    assert [len(texts) for texts in unigrams.values()] == [20] * 3
    assert not set(measured) & {text for texts in unigrams.values() for text in texts}


def test_models_that_exist_are_compared_without_training(unigrams, tmp_path):
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        counts = dict.fromkeys(LETTERS[3 * number : 3 * number + 7], 50)
        (tmp_path / name / "counts.json").write_text(json.dumps(counts))
    models = {"before-2011": tmp_path / "a", "2012": tmp_path / "b"}
    report = acclimate.periods_surprisal(
        models, drifting((2010, 2012)), tmp_path / "out", by="2011", progress=False, measured=40
    )
    assert not unigrams and report["base"] is None and "Base model" not in repr(report)
    assert [row["model"] for row in report["matrix"]] == ["before-2011", "from-2011"]
    assert report["dating"]["accuracy"] > 0.9


@each(
    ("models", "rows", "options", "message"),
    [
        ({"a": "x", "2011": "y"}, drifting(), {}, "'a' does not name its period"),
        ({"2010-01": "x", "2010": "y"}, drifting(), {}, "are both models of 2010"),
        ({"2010": "x", "1999": "y"}, drifting(), {}, "no text of 1999"),
        ("base", drifting((2010,)), {}, "2 periods of at least 50 documents are needed, but there is 1"),
        ("base", drifting(), {"documents": 5000}, "fewer than 5,000"),
        ("base", ["no dates"], {}, "without columns"),
    ],
)
def test_a_comparison_that_is_not_possible_is_one_line(models, rows, options, message, unigrams, tmp_path):
    with pytest.raises(UserError, match=message):
        acclimate.periods_surprisal(models, rows, tmp_path / "out", progress=False, **options)


def test_dating_equals_a_slow_computation():
    rng = np.random.default_rng(0)
    losses, own, places = rng.random((3, 50)), rng.integers(3, size=50), [5, 6, 9]
    guesses = [min(range(3), key=lambda model: losses[model, text]) for text in range(50)]
    errors = [abs(places[guess] - places[true]) for guess, true in zip(guesses, own, strict=True)]
    middle = sorted(places[true] for true in own)[24]
    found = date_texts(losses, own, places)
    assert found["accuracy"] == np.mean([guess == true for guess, true in zip(guesses, own, strict=True)])
    assert found["low"] < found["accuracy"] < found["high"]
    assert found["error"] == np.mean(errors)
    assert found["error_of_median"] == np.mean([abs(places[true] - middle) for true in own])
    assert found["difference"]["difference"] == pytest.approx(found["error"] - found["error_of_median"])
    assert found["confusion"][1][2] == sum(t == 1 and g == 2 for t, g in zip(own, guesses, strict=True))
    assert found["chance"] == max(Counter(own.tolist()).values()) / 50


def test_tokens_and_bytes_of_each_text_give_the_bits_per_byte_of_all(tiny_bert):
    texts = ["the food is good", "the waiter is rude and the pizza is cold", ""]
    found = language_model_loss(tiny_bert, texts, max_length=8)
    assert found["per_text_tokens"][2] == 0 and sum(found["per_text_tokens"]) == found["tokens"]
    assert sum(found["per_text_bytes"]) == found["bytes"]


def test_the_command_adapts_and_measures(tiny_bert, tmp_path):
    corpus = tmp_path / "posts.jsonl"
    rows = [{"text": f"the food is good {n}", "created_at": f"{2010 + n % 2}-03-{n // 2 + 1:02d}"} for n in range(40)]
    corpus.write_text("\n".join(map(json.dumps, rows)))
    words = ["periods", "surprisal", "--model", tiny_bert, "--corpus", corpus, "--least", 5, "--max-length", 12]
    result = CliRunner().invoke(app, [str(word) for word in [*words, "--out", tmp_path / "out", "--quiet"]])
    assert result.exit_code == 0, result.exception
    assert "Dating by the least surprised model" in result.output and "Base model: 2010" in result.output
    assert f"acclimate finetune --model {tmp_path / 'out' / 'models' / '2011'}" in result.output.splitlines()[-1]


def questions():
    return [
        {
            "question": f"The {n // 2}. cat sat on the",
            "choices": ["mat", "moon"],
            "answer": ["mat", "moon"][n % 2],  # the answer to the same question changes
            "date": 2020 + n % 2,
        }
        for n in range(40)
    ]


def test_questions_are_answered_by_period(tmp_path, shared):
    model = shared / "models" / "stories260k"
    report = acclimate.periods_questions({"base": model, "new": model}, questions(), tmp_path / "q", least=5)
    rows = {(row["period"], row["model"]): row for row in report["rows"]}
    assert sorted({period for period, _ in rows}) == ["2020", "2021", "all"]
    assert rows["2020", "base"]["accuracy"] == pytest.approx(1 - rows["2021", "base"]["accuracy"])
    assert rows["all", "base"]["questions"] == 40 and rows["all", "base"]["chance"] == 0.5
    assert rows["all", "new"]["difference"] == 0 and rows["all", "base"]["difference"] is None
    assert "difference to base +0.0 percentage points" in repr(report)


def test_questions_without_choices_or_dates_are_refused(tiny_bert):
    table = [{"text": f"text {n}", "label": "ab"[n % 2], "date": 2020} for n in range(60)]
    with pytest.raises(UserError, match="give questions with choices"):
        acclimate.periods_questions({"a": tiny_bert}, table)
    with pytest.raises(UserError, match="epochs"):  # an encoder cannot answer as it is
        acclimate.periods_questions({"a": tiny_bert}, questions(), least=5, progress=False)
    undated = [{name: value for name, value in row.items() if name != "date"} for row in questions()]
    with pytest.raises(UserError, match="no column of dates"):
        acclimate.periods_questions({"a": tiny_bert}, undated)
