"""Methods that learn labelled tasks: dann and muppet."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.parts.masking import Drawing
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.papers.test_contract import SHORT, TASK
from tests.tiny import save_tiny, tiny_tokenizer

FOOD, MODEL = "the food was {} and the {} was on the table", "the model is {} and the {} is in the paper"
WORDS = ["pasta", "soup", "wine", "menu", "price", "waiter"], ["loss", "layer", "token", "data", "text", "score"]
SOURCE = [(FOOD.format(mark, word), mark) for word in WORDS[0] for mark in ("good", "bad")]
TARGET = [MODEL.format(mark, word) for word in WORDS[1] for mark in ("good", "bad")]
ROWS = [{"text": text, "label": label} for text, label in SOURCE]
FOODS = Task.of("foods", ROWS, ROWS[:4], ROWS[:4])
OPTIONS = {**SHORT, "steps": 40, "batch_size": 12, "learning_rate": 4e-3, "dropout": 0.0}


def run(model, out, method="dann", task=FOODS, **settings):
    options = {**OPTIONS, **settings.pop("options", {})}
    return adapt(model, Corpus.of(TARGET), method, out, task=task, settings=settings, **options)


@pytest.mark.slow
def test_labels_are_learned_beside_the_adversary(tiny_bert, tmp_path):
    result = run(tiny_bert, tmp_path / "out", lm_weight=0, adversary_weight=0.3)
    assert set(result.losses) == {"classification", "adversary", "loss"}
    assert result.losses["classification"] < 0.35 < np.log(2)


def test_the_language_model_is_learned_by_default(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out", options={"steps": 4})
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert set(lines[0]["terms"]) == {"mlm", "classification", "adversary"}


def test_muppet_reads_a_folder_of_tasks(tiny_bert, tmp_path, capsys):
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, labels in (("a", ["good", "bad"]), ("b", ["x", "y", "z", "good"])):
        rows = [{"text": f"{text} {n}", "label": labels[n % len(labels)]} for n, (text, _) in enumerate(SOURCE * 3)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before = get("muppet", tasks=str(folder)).file_contents()
    result = run(
        tiny_bert,
        tmp_path / "out",
        "muppet",
        None,
        tasks=str(folder),
        lm_weight=0,
        r3f=0.1,
        options={"progress": True},
    )
    shown = capsys.readouterr().err
    assert "Task 'b'" in shown and "with 4 classes" in shown and "2 tasks; the paper found gains" in shown
    assert 0 < result.losses["classification"] < 1.05, "in units of a uniform guess"
    assert set(result.losses) == {"classification", "r3f", "loss"}
    (folder / "b.jsonl").write_text("\n".join(map(json.dumps, rows[:-1])))
    assert get("muppet", tasks=str(folder)).file_contents() != before


def test_long_examples_are_cut_and_counted(tiny_bert, tmp_path, capsys):
    """The message may be wrapped."""
    rows = [*ROWS, {"text": "the food " * 60, "label": "bad"}]
    run(tiny_bert, tmp_path / "out", task=Task.of("long", rows, ROWS[:4]), options={"steps": 1, "progress": True})
    assert "cut to 24 tokens: 1" in " ".join(capsys.readouterr().err.split())


def test_mistakes_are_explained(tiny_bert, tmp_path):
    several = Task.of("several", [{"text": "good food", "label": ["a", "b"]}] * 3, [{"text": "bad", "label": ["a"]}])
    cases = [
        ("dann", several, {}, "one label per text, and 'several' is another"),
        ("dann", None, {}, "needs a labelled task"),
        ("muppet", None, {}, "tasks=FOLDER"),
        ("muppet", None, {"tasks": str(tmp_path / "no")}, "There is no folder"),
        ("muppet", None, {"tasks": str(tmp_path)}, "holds no task"),
        ("dann", TASK, {"lm_weight": 0, "task_weight": 0}, "only the adversary"),
        (
            "similarity-kd",
            TASK,
            dict.fromkeys(("lm_weight", "label_weight", "similarity_weight"), 0),
            "All weights are 0",
        ),
        ("dann", TASK, {"rate": 0}, "rate must be more than zero"),
    ]
    for method, task, given, message in cases:
        with pytest.raises(UserError, match=message):
            run(tiny_bert, tmp_path.parent / "out", method, task, **given)


@pytest.mark.slow
def test_relations_are_learned(tiny_bert, tmp_path, capsys):
    """Which of four entries are in a pair shows its relation."""
    texts = {"good food": "F.1", "fresh soup": "F.1", "cold wine": "F.2", "the loss of the model": "M.1"}
    entries = [{"text": text, "code": code} for text, code in texts.items()]
    file = tmp_path / "taxonomy.jsonl"
    file.write_text("\n".join(map(json.dumps, [*entries, entries[0]])))
    given = {"taxonomy": str(file), "level": 1, "separator": ".", "weight": 3}
    run(tiny_bert, tmp_path / "out", "relations", None, **given, options={"steps": 40, "progress": True})
    shown = " ".join(capsys.readouterr().err.split())
    assert (
        "4 entries with pairs: 6 random, 2 linked, 4 grouped; left out because the text occurred before: 1." in shown
    )
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["terms"]["relations"] for line in lines]
    assert abs(found[0] - np.log(3)) < 0.1 and np.mean(found[-5:]) < 0.5


def test_a_taxonomy_that_cannot_be_used_is_refused(tiny_bert, tmp_path):
    cases = [
        ("", None, "needs a taxonomy"),
        ("", str(tmp_path / "no.csv"), "There is no file"),
        ("text,code\ngood food,\n", None, "'code' must not be empty"),
        ("text,code\n", None, "has no rows"),
        ("text,code\ngood food,AA1\nbad food,AA1\n", None, r"one relation only \(linked\)"),
    ]
    for number, (content, path, message) in enumerate(cases):
        file = tmp_path / f"{number}.csv"
        file.write_text(content)
        given = {"taxonomy": path or str(file)} if content or path else {}
        with pytest.raises(UserError, match=message):
            run(tiny_bert, tmp_path / "out", "relations", None, **given)


@pytest.mark.slow
def test_similarities_of_a_teacher_are_kept(tiny_bert, tmp_path):
    """The distance to the similarities of a wider teacher falls further than without its weight."""
    teacher = save_tiny("bert", tmp_path / "teacher", seed=4, hidden_size=48, initializer_range=0.2)
    found = []
    for weight in (0.0, 300.0):
        given = {"teacher": str(teacher), "similarity_weight": weight, "lm_weight": 0}
        options = {"steps": 12, "learning_rate": 3e-3}
        found.append(run(tiny_bert, tmp_path / str(weight), "similarity-kd", **given, options=options).losses)
    assert found[1]["similarity"] < 0.7 * found[0]["similarity"]
    assert set(found[1]) == {"classification", "similarity", "loss"}


PAIRS = [{"text": a, "text_pair": b, "label": mark} for (a, mark), b in zip(SOURCE, TARGET, strict=True)]


class Stop(Exception):
    """Ends a training at its first step."""


@pytest.mark.parametrize(("kind", "segments"), [("bert", True), ("roberta", False)])
def test_pairs_have_the_segments_of_fine_tuning(kind, segments, tmp_path, monkeypatch):
    """In every method that draws pairs; models without segments read the same tokens without them."""
    found, model = [], []

    def stop(engine, batches, **_):
        view = next(view for view in engine.views if isinstance(view.tokens, Drawing))
        engine.model.eval()
        with torch.no_grad():
            for batch in batches:
                states = engine.read(batch, engine.views, all_tokens=True).hidden(view)
                found.append((batch.view_input(view.tokens), states))
        model.append(engine.model)
        raise Stop

    monkeypatch.setattr(Engine, "step", stop)
    start, tokenizer = save_tiny(kind, tmp_path / kind, type_vocab_size=1 + segments), tiny_tokenizer()
    task = Task.of("pairs", PAIRS, PAIRS[:4], PAIRS[:4])
    texts = {text for row in PAIRS for text in (row["text"], row["text_pair"])}
    (tmp_path / "codes.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "code": f"{n % 2}{n % 3}"}) for n, text in enumerate(sorted(texts)))
    )
    relations = {"taxonomy": str(tmp_path / "codes.jsonl"), "level": 1}
    for method, settings in (("dann", {}), ("muppet", {}), ("similarity-kd", {}), ("relations", relations)):
        found.clear()
        with pytest.raises(Stop):
            run(start, tmp_path / method, method, task, **settings, options={"steps": 1, "max_length": 60})
        for read, states in found:
            assert (read.segments is not None) == segments
            for row, text in enumerate(read.text):
                ids = read.ids[row][text >= 0]
                end = (ids == tokenizer.sep_token_id).nonzero()[0, 0] + 1
                kinds = (torch.arange(len(ids)) >= end).long()
                assert kinds.any(), f"{method} reads no pair"
                if segments:
                    assert torch.equal(read.segments[row][text >= 0], kinds)
                given = {"input_ids": ids[None]} | ({"token_type_ids": kinds[None]} if segments else {})
                with torch.no_grad():
                    expected = model[-1].base_model(**given).last_hidden_state[0]
                torch.testing.assert_close(states[row][text >= 0], expected, atol=1e-5, rtol=1e-4)


@each(
    ("method", "settings"),
    [
        ("relations", {"taxonomy": "no.jsonl"}),
        ("fastdoc", {"taxonomy": "no.jsonl"}),
        ("pairs", {"table": "no.jsonl"}),
        ("similarity-kd", {"teacher": "./no"}),
    ],
)
def test_a_second_text_or_model_is_refused_before_the_text_is_tokenized(
    tiny_bert, tmp_path, monkeypatch, method, settings
):
    module = sys.modules["acclimate.adaptation.adapt"]
    monkeypatch.setattr(module, "tokenize_documents", lambda *_: pytest.fail("the text is tokenized"))
    with pytest.raises(UserError, match="no"):
        run(tiny_bert, tmp_path / "out", method, TASK, **settings)
