"""Methods that read labelled tasks or a second text."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.parts.masking import Drawing
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each, installed
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
    return adapt(model, Corpus.of(TARGET), {method: settings}, out, task=task, **options)


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
    for method, task, given, message in installed(REGISTRY, cases):
        with pytest.raises(UserError, match=message):
            run(tiny_bert, tmp_path.parent / "out", method, task, **given)


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
    every = [("dann", {}), ("muppet", {}), ("similarity-kd", {}), ("relations", relations)]
    for method, settings in installed(REGISTRY, every):
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
    installed(
        REGISTRY,
        [
            ("relations", {"taxonomy": "no.jsonl"}),
            ("fastdoc", {"taxonomy": "no.jsonl"}),
            ("pairs", {"table": "no.jsonl"}),
            ("similarity-kd", {"teacher": "./no"}),
        ],
    ),
)
def test_a_second_text_or_model_is_refused_before_the_text_is_tokenized(
    tiny_bert, tmp_path, monkeypatch, method, settings
):
    module = sys.modules["acclimate.adaptation.adapt"]
    monkeypatch.setattr(module, "tokenize_documents", lambda *_: pytest.fail("the text is tokenized"))
    with pytest.raises(UserError, match="no"):
        run(tiny_bert, tmp_path / "out", method, TASK, **settings)
