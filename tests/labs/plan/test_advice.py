"""Advice: overlap and fragmentation by hand, projections by simulation, and complete reports."""

from __future__ import annotations

import json
import math
import random
import sys
from functools import partial

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer

from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.data.documents import with_usual_column
from acclimate.data.reading import TextOptions
from acclimate.data.stop_words import read_stop_words
from acclimate.labs.advise.advice import advise, measure_distance, project
from acclimate.labs.advise.advice_text import verdict
from acclimate.labs.advise.recommendation import recommend
from acclimate.labs.advise.vocabulary import count_words, fragmentation, overlap
from tests.cases import each
from tests.tiny import WORDS, tiny_tokenizer

ENGLISH = read_stop_words("english")


def texts(seed: int, words: list[str], count: int = 60) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(5, 14))) for _ in range(count)]


CS = texts(0, "model data train test loss layer token word text gradient method result the of and a was".split())
FOOD = texts(1, "good bad food service waiter pasta pizza fresh cold slow table menu the of and a was text".split())


def test_jaccard_against_the_published_code():
    names = []
    for some in (CS, FOOD):
        vectorizer = CountVectorizer(min_df=3, stop_words="english")
        vectorizer.fit(some)
        names.append(set(vectorizer.get_feature_names_out()))
    found = overlap(count_words(CS), count_words(FOOD), ENGLISH)
    assert found["jaccard"] == pytest.approx(len(names[0] & names[1]) / len(names[0] | names[1]))
    assert found["jaccard_words"] == len(names[0] | names[1])


def test_top_words_by_hand(monkeypatch):
    monkeypatch.setattr("acclimate.labs.advise.vocabulary.TOP", 3)
    one = count_words(["the model model model layer layer token token word"])
    other = count_words(["The MODEL model token, token soup soup soup. layer"])
    found = overlap(one, other, ENGLISH)
    assert found["top_words"] == 3 and found["top"] == pytest.approx(2 / 3)  # model and token, but not layer
    small = overlap(count_words(["soup"]), count_words(["soup soup and salad"]), ENGLISH)
    assert (small["top"], small["top_words"]) == (1.0, 1)


def test_counting_stops_after_enough_words():
    found = count_words(["one two three"] * 100, most=10)
    assert found.words == 12 and found.documents["one"] == 4


def test_fragmentation_by_hand():
    counts = count_words(["good soup soup zoo", "zoo zoo 42 漢"])
    found = fragmentation(tiny_tokenizer(), counts)
    # good: 1; soup: 1, twice; zoo: z ##o ##o, three times; an unknown letter: 1
    assert found["pieces"] == pytest.approx((1 + 2 + 9 + 1) / 7)
    assert found["split"] == pytest.approx(3 / 7) and found["unknown"] == pytest.approx(1 / 7)
    assert found["examples"] == ["zoo"]
    assert fragmentation(tiny_tokenizer(), count_words(["42"]))["pieces"] == 0


def test_projections_of_exact_curves():
    steps = [0, 10, 20, 40, 80, 160]
    found = project(steps, [9, *(3 * t**-0.2 for t in steps[1:])], 5000)["power law"]
    assert all(found[name] == pytest.approx(3 * 5000**-0.2) for name in ("value", "low", "high"))
    found = project(steps, [9, *(4 - 0.3 * math.log(t) for t in steps[1:])], 320)
    assert found["log-linear"]["value"] == pytest.approx(4 - 0.3 * math.log(320))
    assert found["beyond"] == 2
    assert project(steps, range(6), 160) == {} == project([0, 1, 2, 3], [1, 1, 1, 1], 9)
    assert "power law" not in project([1, 2, 3, 4], [1.0, 0.5, 0.2, -0.1], 9)


def test_coverage_of_the_prediction_intervals():
    """95 % of the intervals contain a new point with normal noise, up to 1.4 percentage points (2 sd)."""
    rng = np.random.default_rng(0)
    steps = np.arange(20, 201, 20)
    covered = 0
    for _ in range(1000):
        line = 4 - 0.3 * np.log([*steps, 1000]) + rng.normal(0, 0.05, len(steps) + 1)
        found = project(steps, line[:-1], 1000)["log-linear"]
        covered += found["low"] <= line[-1] <= found["high"]
    assert 936 <= covered <= 964


@pytest.fixture
def folder(tmp_path):
    words = [word for word in WORDS if word.isalpha() and len(word) > 1]
    for name, some in (("cs", CS), ("general", texts(2, words))):
        (tmp_path / f"{name}.txt").write_text("".join(f"{text} {i}\n" for i, text in enumerate(some)))
    (tmp_path / "task").mkdir()
    for split in ("train", "test"):
        rows = [{"text": text, "label": ("no", "yes")[i % 2]} for i, text in enumerate(CS[:20])]
        (tmp_path / "task" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_general_text_may_have_another_column_than_the_domain(folder, caplog):
    rows = [{"note": text} for text in CS]
    (folder / "cs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "wiki.jsonl").write_text("".join(json.dumps({"text": row["note"]}) + "\n" for row in rows))

    def read(name, column):
        return list(with_usual_column(folder / name, TextOptions(text_column=column)))

    assert read("wiki.jsonl", "note") == read("wiki.jsonl", "text") == read("cs.jsonl", "note")
    assert "has no column 'note', so its usual text column is read" in caplog.text
    with pytest.raises(UserError, match="has no column 'body'"):
        read("cs.jsonl", "body")


def test_the_quick_measurement_agrees_with_the_whole_advice(tiny_bert, folder):
    from acclimate.data.documents import Corpus

    general = (folder / "general.txt").read_text().splitlines()
    train, held_out = Corpus(folder / "cs.txt").split(0.1, 0)
    whole = advise(tiny_bert, folder / "cs.txt", folder / "general.txt", pilot_steps=0, max_length=16, progress=False)
    quick = measure_distance(tiny_bert, train, list(held_out), general, max_length=16)
    assert quick["documents"] == len(list(train))
    rows = tiny_tokenizer()(list(train), add_special_tokens=False)["input_ids"]
    assert quick["tokens"] == pytest.approx(sum(map(len, rows)))
    assert quick["vocabulary"] == whole["vocabulary"] and quick["fragmentation"] == whole["fragmentation"]
    assert quick["loss"]["domain"]["nats"] == pytest.approx(whole["loss"]["domain"]["nats"])
    assert "share" in verdict(quick) and "little text" in verdict(quick)
    alone = measure_distance(tiny_bert, train, list(held_out), None, max_length=16)
    assert alone["loss"].keys() == {"domain"} and "above_general" not in alone["loss"]["domain"]
    assert verdict(alone).endswith("No general text is given, so the distance to it is not measured.")


@each(
    ("low", "high", "tokens", "expected"),
    [
        (0.2, 0.6, 5e5, "little text. The base model predicts the domain worse than general text (+0.400 nats"),
        (-0.6, -0.2, 2e6, "a moderate amount of text. The base model predicts the domain better than general text"),
        (-0.1, 0.3, 3e8, "much text. The base model predicts the domain about as well as general text"),
    ],
)
def test_the_verdict_follows_the_interval_and_the_amount(low, high, tokens, expected):
    above = {"difference": (low + high) / 2, "low": low, "high": high, "unit": "nats"}
    found = {
        "documents": 10,
        "tokens": tokens,
        "loss": {"domain": {"above_general": above}},
        "vocabulary": {},
        "fragmentation": {},
    }
    assert expected in verdict(found)


def test_all_measurements_and_their_explanations(tiny_bert, folder):
    report = advise(
        tiny_bert,
        folder / "cs.txt",
        folder / "general.txt",
        folder / "task",
        folder / "advice.json",
        pilot_steps=5,
        batch_size=4,
        learning_rate=1e-3,
        documents=10,
        max_length=16,
        progress=False,
    )
    assert json.loads((folder / "advice.json").read_text()) == json.loads(json.dumps(report))
    assert set(report["vocabulary"]) == {"domain, general", "task, domain"}
    assert set(report["loss"]) == {"domain", "general", "task"}
    above = report["loss"]["domain"]["above_general"]
    difference = report["loss"]["domain"]["nats"] - report["loss"]["general"]["nats"]
    assert above["difference"] == pytest.approx(difference) and above["low"] <= difference <= above["high"]
    pilot = report["pilot"]
    assert [step for step, _ in pilot["curve"]] == [0, 1, 2, 3, 4, 5]
    change = pilot["change"]["domain"]
    assert change["after"] - change["before"] == pytest.approx(change["difference"])
    assert change["before"] == report["loss"]["domain"]["nats"] and change["difference"] != 0
    projected = pilot["projection"]
    assert projected["steps"] > 5 and projected["beyond"] == projected["steps"] / 5
    about = [part["about"] for part in report["words"]]
    assert about == [
        "vocabulary overlap",
        "fragmentation",
        "masked-LM loss of the base model",
        "pilot",
        "forgetting after the pilot",
        "recommendation",
    ]
    task = pilot["change"]["task"]
    found = report["recommendation"]
    assert found["expected_gain"]["value"] == -task["difference"] and found["says"] in report["words"][-1]["says"]
    gains = [pilot["change"][name]["before"] - pilot["change"][name]["after"] for name in ("task", "general")]
    assert pilot["specificity"]["difference"] == pytest.approx(gains[0] - gains[1], abs=1e-6)
    assert report["labels"] == 20 and report["tokens"] > 0 and report["parameters"] > 0
    assert all(part["says"] and part["does_not_say"] for part in report["words"])
    assert "Only a comparison on the task" in report["words"][3]["does_not_say"]


def change(low, high):
    return {"difference": (low + high) / 2, "low": low, "high": high}


FALLS, RISES, SAME = change(-0.4, -0.2), change(0.2, 0.4), change(-0.1, 0.1)
RATIO = {
    "plan": "ratio",
    "refused": "",
    "share": {"value": 0.7},
    "target_tokens": 4000,
    "lines": ["Domain share: 0.7"],
}
BUDGET = {"plan": "budget", "budgets": [{"decision": "annotate"}], "lines": ["Below 80, spend it on labels."]}
SCHEDULE = {
    **{"plan": "schedule", "refused": "", "difference": {"low": 0.1, "high": 0.2}, "lines": ["Lowest loss: linear."]},
    "best": "linear steps=900 peak=0.0003 warmup=0.1",
    "loss": "heldout",
}


@each(
    ("domain", "general", "task", "plans", "action", "chosen"),
    [
        (FALLS, SAME, FALLS, (), "adapt", {}),
        (FALLS, RISES, FALLS, (), "adapt", {"replay": 0.05}),
        (FALLS, RISES, None, (RATIO,), "adapt", {"replay": 0.3, "tokens": 4000}),
        (FALLS, RISES, None, ({**RATIO, "refused": "too wide"},), "adapt", {"replay": 0.05}),
        (FALLS, SAME, None, ({**RATIO, "share": {"value": None}},), "adapt", {}),
        (FALLS, SAME, FALLS, (RATIO, SCHEDULE), "adapt", {"replay": 0.3, "steps": 900, "learning_rate": 3e-4}),
        (
            *(FALLS, SAME, FALLS, ({**SCHEDULE, "best": "wsd steps=900 peak=0.0003 warmup=0.1 decay=0.2"},), "adapt"),
            {"steps": 900, "learning_rate": 3e-4, "schedule": "wsd decay=0.2"},
        ),
        (FALLS, SAME, FALLS, ({**SCHEDULE, "difference": {"low": -0.1, "high": 0.2}},), "adapt", {}),
        (FALLS, SAME, FALLS, ({**SCHEDULE, "loss": "general"},), "adapt", {}),
        (FALLS, SAME, FALLS, (BUDGET,), "label more", {}),
        (FALLS, SAME, FALLS, ({**BUDGET, "budgets": [{"decision": "adapt"}]},), "adapt", {}),
        (FALLS, SAME, SAME, (), "task text", {}),
        (SAME, SAME, FALLS, (), "label more", {}),
        (RISES, SAME, None, (BUDGET,), "lower the learning rate", {}),
        (None, None, None, (), "run a pilot", {}),
        (None, None, None, (BUDGET,), "label more", {}),
    ],
)
def test_there_is_one_recommendation(domain, general, task, plans, action, chosen):
    changes = {"domain": domain, "general": general, **({} if task is None else {"task": task})}
    report = {"plans": plans, "tokens": 3e5, "labels": 20_000, "parameters": 2e9}
    made = recommend(report if domain is None else {**report, "pilot": {"change": changes}})
    assert (made.action, made.options) == (action, chosen) and made.says.endswith(".")
    reasons = " ".join(made.reasons)
    assert all(plan["lines"][0] in reasons for plan in plans)
    assert ("expect a small gain" in reasons) == ("refactor every=" in reasons) == (action == "adapt")
    if domain is not None:
        assert made.expected_gain["value"] == -(task or domain)["difference"] and "95 % interval" in reasons


def test_a_plan_that_is_not_one(tiny_bert, folder):
    (folder / "plan.json").write_text("{}")
    with pytest.raises(UserError, match="is not a plan"):
        advise(tiny_bert, folder / "cs.txt", folder / "general.txt", plans=folder / "plan.json", progress=False)


def test_texts_are_compared_in_bits_per_byte_where_these_are_a_code_length(tiny_llama, folder):
    report = advise(tiny_llama, folder / "cs.txt", folder / "general.txt", pilot_steps=0, progress=False)
    found = report["loss"]
    above = found["domain"]["above_general"]
    assert found["domain"]["kind"] == "causal" and above["unit"] == "bits per byte"
    difference = found["domain"]["bits_per_byte"] - found["general"]["bits_per_byte"]
    assert above["difference"] == pytest.approx(difference) and above["low"] < difference < above["high"]


def test_a_missing_head_is_trained_first(folder, tmp_path, monkeypatch):
    import transformers

    from tests.tiny import save_tiny

    whole = save_tiny("bert", tmp_path / "whole")
    transformers.BertModel.from_pretrained(whole).save_pretrained(tmp_path / "bare")
    tiny_tokenizer().save_pretrained(tmp_path / "bare")
    module = sys.modules["acclimate.labs.advise.advice"]
    monkeypatch.setattr(module, "adapt", partial(module.adapt, head_tokens=2_000))  # a short warm-up
    report = advise(
        tmp_path / "bare",
        folder / "cs.txt",
        folder / "general.txt",
        pilot_steps=0,
        documents=5,
        max_length=16,
        progress=False,
    )
    assert report["loss"]["general"]["nats"] > 0 and "pilot" not in report


def test_one_document_is_an_error(tiny_bert, folder):
    with pytest.raises(UserError, match="held-out domain text needs at least two documents"):
        advise(
            tiny_bert,
            folder / "cs.txt",
            folder / "general.txt",
            pilot_steps=0,
            documents=1,
            max_length=16,
            progress=False,
        )


def test_on_the_command_line(tiny_bert, folder, monkeypatch, capsys):
    common = ["acclimate", "advise", "--model", tiny_bert, "--corpus", folder / "cs.txt", "--general"]
    arguments = [*common, folder / "general.txt", "--pilot-steps", 0, "--documents", 5, "--quiet"]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    assert not ended.value.code
    shown = " ".join(capsys.readouterr().out.split())
    assert "Vocabulary overlap" in shown and "It does not say:" in shown and "No pilot was run" in shown


@pytest.mark.needs("selective", "tapt")
def test_invalid_arguments(tiny_bert, folder):
    for method, message in (
        ("none", "has no training to run a pilot of"),
        ("dapt+tapt", "has several stages"),
        ("selective", "needs a labelled task"),
        ("mml", "Did you mean 'mlm'"),
    ):
        with pytest.raises(UserError, match=message):
            advise(tiny_bert, folder / "cs.txt", folder / "general.txt", method=method, progress=False)
    with pytest.raises(UserError, match="'seed' must be"):
        advise(tiny_bert, folder / "cs.txt", folder / "general.txt", seed=-1, progress=False)
    with pytest.raises(UserError, match="pilot_steps"):
        advise(tiny_bert, folder / "cs.txt", folder / "general.txt", pilot_steps=-1, progress=False)
    with pytest.raises(UserError, match="no file"):
        advise(tiny_bert, folder / "csx.txt", folder / "general.txt", progress=False)
