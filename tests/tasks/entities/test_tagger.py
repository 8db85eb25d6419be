"""Models that mark entities: alignment, windows, learning, saving, resuming and studies."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline
from typer.testing import CliRunner

from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.data.task_kinds import find_task_kind, load_task
from acclimate.evaluation.calibration import calibration_metrics
from acclimate.parts.masking import IGNORE_INDEX
from acclimate.study.compare import compare
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import resolve_options
from acclimate.tasks.kinds.entities.data import WORD, Entity, Sentence
from acclimate.tasks.kinds.entities.tagger import Windows, align_words, choose_window, mark_units, read_units
from acclimate.tasks.kinds.qa.windows import split_into_windows, tokenize_texts
from acclimate.tasks.options import FinetuneOptions
from acclimate.tasks.splits import limit_splits
from tests.tiny import save_tiny

PHRASES = {"food": ["fresh pasta", "cold pizza", "soup", "wine"], "place": ["kind service", "table", "menu"]}
FILLER = ["the", "a", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with"]
QUICK = {"progress": False, "precision": "fp32", "max_length": 24}


def rows(count, seed=0):
    """Sentences of words of the tiny vocabulary, in which foods and places are entities of one or two words."""
    chance, made = random.Random(seed), []
    for _ in range(count):
        tokens, tags = [], []
        for _ in range(chance.randint(2, 4)):
            kind = chance.choice([*PHRASES, None, None])
            words = chance.choice(PHRASES[kind]).split() if kind else [chance.choice(FILLER)]
            tokens += words
            tags += [f"B-{kind}", f"I-{kind}"][: len(words)] if kind else ["O"]
        made.append({"tokens": tokens, "tags": tags})
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("foods") / "foods"
    path.mkdir()
    for split, count, seed in (("train", 80, 0), ("dev", 20, 1), ("test", 30, 2)):
        made = rows(count, seed)
        (path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


texts = st.lists(
    st.sampled_from([*FILLER, "Pasta", "don't", "é", "日本", "x-ray", "\u200b", "🍝", " ", "\n"]), min_size=1
)


def sentence_of(text, entities=()):
    return Sentence(text, tuple(match.span() for match in WORD.finditer(text)), tuple(Entity(*e) for e in entities))


@settings(max_examples=50, deadline=None)
@given(texts, st.booleans(), st.sampled_from(["bert", "roberta", "llama"]), st.data())
def test_each_word_has_a_token_and_entities_of_words_come_back(encoders, decoders, words, last, kind, data):
    tokenizer = AutoTokenizer.from_pretrained((encoders | decoders)[kind])
    sentence = sentence_of(" ".join(words))
    (tokens,) = tokenize_texts([sentence.text], tokenizer)
    units = align_words(sentence, tokens, last=last)
    assert all(one.token < two.token and one.end <= two.start for one, two in pairwise(units))
    for unit in units:  # the token has a part of its word
        assert tokens.starts[unit.token] < unit.end and tokens.ends[unit.token] > unit.start
    if not units:
        return
    first = data.draw(st.integers(0, len(units) - 1))
    stop = data.draw(st.integers(first, len(units) - 1))
    entity = Entity(units[first].start, units[stop].end, "A")
    tags = mark_units(units, [entity])
    assert [tag[0] for tag in tags[first : stop + 1]] == ["B"] + ["I"] * (stop - first)
    assert tags.count("O") == len(tags) - (stop - first + 1)
    assert [found for found, _ in read_units(units, tags)] == [entity]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(2, 12), st.booleans())
def test_each_token_is_decided_where_its_context_is_longest(tokens, width, last):
    windows = split_into_windows(tokens, width, width // 4)
    for token in range(tokens):
        best = choose_window(token, windows, last=last)
        contexts = []
        for number, (first, stop) in enumerate(windows):
            inside = first <= token < stop
            left = token - first if first else 1000
            right = stop - 1 - token if stop < tokens else 1000
            contexts.append((-1 if not inside else left if last else min(left, right), -number))
        assert best == contexts.index(max(contexts))
        assert windows[best][0] <= token < windows[best][1]


def test_windows_decide_each_word_once_and_read_the_row_of_the_tokenizer(tiny_bert, tiny_llama):
    for folder, last in ((tiny_bert, False), (tiny_llama, True)):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        sentences = [sentence_of("the pasta was good"), sentence_of("it is cold . " * 20), sentence_of("\u200b")]
        whole = Windows(sentences, tokenizer, 500, last=last)
        assert list(whole.row(0, False)["input_ids"]) == tokenizer(sentences[0].text)["input_ids"]
        windows = Windows(sentences, tokenizer, 16, last=last)
        assert sum(window.sentence == 1 for window in windows.windows) > 3
        assert len({window.sentence for window in windows.windows}) <= 3
        decided = [
            (w.sentence, unit) for w, own in zip(windows.windows, windows.decided, strict=True) for unit, _ in own
        ]
        assert sorted(decided) == [(n, u) for n, units in enumerate(windows.units) for u in range(len(units))]
        for place, (window, own) in enumerate(zip(windows.windows, windows.decided, strict=True)):
            row = windows.row(place, False)["input_ids"]
            assert len(row) <= 16
            for unit, position in own:
                token = windows.units[window.sentence][unit].token
                assert row[position] == windows.tokens[window.sentence].ids[token]
        with pytest.raises(UserError, match="leaves no space"):
            Windows(sentences, tokenizer, windows.layout.special, last=last)


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A tiny BERT that has learned the task, with its folder."""
    place = tmp_path_factory.mktemp("tagger")
    options = {**QUICK, "epochs": 6, "learning_rate": 1e-2, "batch_size": 8, "select": "dev"}
    model = save_tiny("bert", place / "model")
    return finetune(model, folder, out=place / "out", **options), place / "out", model, options


def test_a_model_learns_and_the_saved_folder_gives_the_same_without_acclimate(trained, folder):
    result, out, model, options = trained
    assert result.metrics["micro_f1"] > 0.9 and result.kind == "entities" and result.labels == ["food", "place"]
    assert result.metrics["scheme"] == "IOB2" and result.dev_metrics["micro_f1"] > 0.9
    loaded = AutoModelForTokenClassification.from_pretrained(out).eval()
    tags = loaded.config.id2label
    assert list(tags.values()) == ["O", "B-food", "I-food", "B-place", "I-place"]
    tokenizer, task = AutoTokenizer.from_pretrained(out), load_task(folder)
    for sentence, found in zip(task.test, result.predicted, strict=True):
        inputs = tokenizer(sentence.text, return_tensors="pt")
        with torch.no_grad():
            probable = loaded(**inputs).logits[0].argmax(-1)[1:-1].tolist()
        units = align_words(sentence, tokenize_texts([sentence.text], tokenizer)[0], last=False)
        read = [entity for entity, _ in read_units(units, [tags[probable[unit.token]] for unit in units])]
        assert [(e.start, e.end, task.labels.index(e.type)) for e in read] == [tuple(entity[:3]) for entity in found]
    mark = pipeline("token-classification", model=str(out), aggregation_strategy="first")
    shown = [[(e["start"], e["end"], e["entity_group"]) for e in mark(sentence.text)] for sentence in task.test]
    assert shown == [[(e[0], e[1], result.labels[e[2]]) for e in found] for found in result.predicted]
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert lines[0]["gold"] == [{"start": s, "end": e, "type": t} for s, e, t in task.test[0].entities]
    assert all(0 < score <= 1 for line in lines for score in line["probabilities"])
    assert all(len(line["probabilities"]) == len(line["predicted"]) for line in lines)
    card = (out / "README.md").read_text()
    assert "pipeline_tag: token-classification" in card and "Mark words" in card
    assert result.metrics["notes"][0] in card
    assert finetune(model, folder, out=out, **options).predicted == result.predicted


def test_calibration_is_over_the_words(trained, folder):
    out = trained[1]
    task = load_task(folder)
    resolved, _ = resolve_options(FinetuneOptions(model=str(out), task=task, max_length=24), task)
    learner = find_task_kind(task).learner(out, task, resolved, torch.device("cpu"))
    found = learner.measure("test", "fp32")
    _, tables = learner.head.probabilities(task.test, "fp32")
    tags = [tag for row in rows(30, seed=2) for tag in row["tags"]]
    gold = [learner.head.tags.index(tag) for tag in tags]
    expected = calibration_metrics(np.concatenate(tables).tolist(), gold)
    assert {name: found.metrics[name] for name in expected} == expected
    assert sum(entry["count"] for entry in found.metrics["reliability"]) == len(tags)
    # A text in many windows: most entities are those of a single window.
    long = [sentence_of(" ".join(" ".join(row["tokens"]) for row in rows(30, seed=2)))]
    learner.head.max_length = 16
    windows, (probable,) = learner.head.probabilities(long, "fp32")
    assert len(windows.windows) > 5 and np.allclose(probable.sum(-1), 1)
    assert (probable.argmax(-1) == gold).mean() > 0.9


def test_only_deciding_tokens_have_tags(trained, folder):
    out = trained[1]
    task = load_task(
        [{"text": f"good pastas {n}", "spans": [{"start": 5, "end": 10, "label": "food"}]} for n in range(30)]
    )
    resolved, _ = resolve_options(FinetuneOptions(model=str(out), task=task, max_length=24), task)
    learner = find_task_kind(task).learner(out, task, resolved, torch.device("cpu"))
    row = learner.rows(task.train)[0]  # [CLS] good pasta ##s 1 [SEP]: the entity is "pasta", the word "pastas"
    kept = row["labels"][row["labels"] != IGNORE_INDEX]
    assert [learner.head.tags[n] for n in kept][:2] == ["O", "B-food"]
    assert len(kept) < len(row["input_ids"]) - 2


def test_decoders_learn_with_left_context(tiny_llama, folder, caplog, tmp_path):
    options = {**QUICK, "max_length": 64, "epochs": 6, "learning_rate": 1e-2, "batch_size": 8}
    result = finetune(tiny_llama, folder, out=tmp_path / "out", **options)
    assert result.metrics["micro_f1"] > 0.9
    assert "marks each word without having read the words after it" in caplog.text
    again = finetune(tmp_path / "out", folder, **{**options, "epochs": 1, "learning_rate": 1e-9})
    assert again.predicted == result.predicted


def test_what_does_not_apply_is_an_error(folder, tiny_bert, decoders):
    with pytest.raises(UserError, match="metric"):
        finetune(tiny_bert, folder, metric="accuracy", **QUICK)
    with pytest.raises(UserError, match="has no AutoModelForTokenClassification for OlmoConfig; choose"):
        finetune(decoders["olmo"], folder, **QUICK)
    assert [len(getattr(limit_splits(load_task(folder), train=9, test=5), s)) for s in ("train", "test")] == [9, 5]


def test_on_the_command_line(folder, tiny_bert):
    options = [
        "--model",
        tiny_bert,
        "--task",
        folder,
        "--epochs",
        1,
        "--max-length",
        24,
        "--seeds",
        1,
        "--few-shot",
        4,
    ]
    run = CliRunner().invoke(app, ["finetune", *map(str, options)])
    assert run.exit_code == 0, run.output
    for words in ("micro_f1", "macro_f1", "ece", "F1 food", "F1 place", "true entities", "that train has"):
        assert words in run.output


@pytest.mark.slow
def test_in_a_study(folder, tiny_bert, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(" ".join(row["tokens"]) + " ." for row in rows(60, seed=3)))
    study = {
        "name": "entities", "models": [str(tiny_bert)], "methods": ["none", "lm"], "seeds": 1,
        "domains": [{"name": "d", "corpus": str(corpus), "tasks": [str(folder)]}],
        "adapt": {"steps": 2, "batch_size": 4, "max_length": 16}, "evaluate": {"max_length": 16},
        "finetune": {"max_length": 24, "epochs": 1, "learning_rate": 3e-3},
    }  # fmt: skip
    (tmp_path / "study.json").write_text(json.dumps(study))
    results = compare(tmp_path / "study.json", tmp_path / "out", progress=False)
    assert not results.failures
    base, adapted = results.scores
    assert (base.metric, base.kind, base.test_items, base.labels) == ("micro_f1", "entities", 30, ["food", "place"])
    assert {"micro_f1", "macro_f1", "overlap_f1", "boundary_f1", "ece"} <= set(adapted.summaries)
    assert adapted.comparison is not None and base.reliability
    report = (tmp_path / "out" / "report.html").read_text()
    assert "overlap F1" in report
    (table,) = [table for table in results.tables if table.title == "Kinds of errors"]
    assert [row[3] for row in table.rows] == ["none", "lm"] and table.columns[4:6] == ["correct", "boundary"]
    total = sum(len(sentence.entities) for sentence in load_task(folder).test)
    assert all(sum(row[4:9]) == total for row in table.rows)
    leak = CliRunner().invoke(app, ["inspect", "leakage", "--corpus", str(corpus), "--task", str(folder)])
    assert leak.exit_code == 0, leak.output
