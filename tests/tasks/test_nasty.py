"""Odd data of every kind of task: read with the same meaning everywhere, or refused in one line; never a crash."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import find_task_kind, load_task, task_texts
from acclimate.tasks.interfaces import EVALUATION_SPLITS, item_texts, resolve_options
from acclimate.tasks.options import FinetuneOptions
from tests.tasks.test_contract import SAMPLES, splits_of
from tests.tiny import save_tiny

TEXTS = [
    *("", " ", "\n\t", "\0", "\u200b", "\u200f\u202eabc\u202c", "\ufeff", "\ud83d", "\udfff\ud800", "\u2028", "\x85a"),
    *("\u0301", "e\u0301" * 40, "x" * 400, "a " * 200, "nan", "inf", "1e400", "-0", "١٢", "1_000", "true", "null"),
    *("[CLS]", "[SEP]", "<s>", "</s>", "𝔘🍝", "日本語", "a,b", '"', "'", "[", "{}", "B-food", "O", "0", "2"),
]
VALUES = [None, True, False, 0, -1, 10**400, 1e308, -1e308, 1e-320, float("nan"), float("inf"), [], {}, [None], [[]]]
nasty = st.sampled_from([*TEXTS, *VALUES]) | st.text(max_size=6) | st.integers() | st.floats()


def places_of(value, path=()):
    """The paths of a value and of everything in it."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inside for place in places_of(part, (*path, key)))]


def changed(rows, path, value):
    rows = copy.deepcopy(rows)
    *parents, last = path
    inside = rows
    for key in parents:
        inside = inside[key]
    inside[last] = value
    return rows


@pytest.mark.parametrize("kind", sorted(SAMPLES))
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_one_odd_value_is_read_or_refused_in_one_line(kind, data):
    rows = splits_of(kind)
    places = [path for path in places_of({"train": rows["train"][:8], "test": rows["test"][:4]}) if len(path) > 2]
    made = {"train": rows["train"][:8], "dev": rows["dev"][:4], "test": rows["test"][:4]}
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places))
        try:
            made = changed(made, path, data.draw(nasty))
        except (TypeError, KeyError, IndexError):  # a change before has removed the place
            continue
    if data.draw(st.booleans()):  # duplicates
        made["test"] = [*made["test"], *made["test"], *made["train"][:2]]
    try:
        task = load_task(made, task_kind=data.draw(st.sampled_from([None, kind])))
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return
    assert task.fingerprint() == load_task(copy.deepcopy(made), task_kind=task.task_kind).fingerprint()
    found = find_task_kind(task)
    for text in [*task_texts(task), *(text for texts in item_texts(task).values() for text in texts)]:
        text.encode("utf-8")
    for split in ("train", *EVALUATION_SPLITS):
        assert all(isinstance(found.answer(example, task), str) for example in getattr(task, split))
    json.dumps(task.scoring().details())


def odd_task(kind):
    """A task in which every text that a kind accepts occurs, in train and test."""
    rows, kept = splits_of(kind), []
    for text in TEXTS:
        row = copy.deepcopy(rows["train"][len(kept) % len(rows["train"])])
        row |= {"id": f"odd {len(kept)}"} if "id" in row else {}
        for path in places_of(row):
            if path[-1:] and path[0] in ("text", "tokens", "question", "query", "positive", "choices", "context"):
                value = row
                for key in path:
                    value = value[key]
                if isinstance(value, str):
                    row = changed(row, path, f"{value} {text}" if path[0] == "context" else text)
        try:
            load_task({"train": [*rows["train"], row], "test": rows["test"]}, task_kind=kind)
        except UserError:
            continue
        kept.append(row)
    return load_task({"train": [*rows["train"], *kept], "test": [*kept, *rows["test"]]}, task_kind=kind), len(kept)


@pytest.mark.parametrize("kind", sorted(SAMPLES))
@pytest.mark.parametrize("model", ["bert", pytest.param("llama", marks=pytest.mark.slow)])
def test_every_text_that_is_accepted_can_be_learned_and_predicted(kind, model, tmp_path):
    """In windows as short as can be."""
    task, count = odd_task(kind)
    assert count > 3
    if model == SAMPLES[kind].model != "bert":
        pytest.skip("its usual model")
    model = SAMPLES[kind].model if model == "bert" else model
    folder = save_tiny(model, tmp_path / model)
    short = {"max_length": 40, "max_new_tokens": 4} if kind == "generation" else {"max_length": 12}
    options = FinetuneOptions(str(folder), task, **short)
    resolved, scoring = resolve_options(options, task)
    torch.manual_seed(0)
    learner = find_task_kind(task).learner(folder, task, resolved, torch.device("cpu"))
    learner.configure(options)
    assert len(learner.rows(task.train)) >= len(SAMPLES)
    found = learner.measure("test", "fp32")
    assert len(found.predicted) == len(found.gold)
    assert all(0 <= abs(scoring.score(found.gold, found.predicted, name)) <= 1 for name in scoring.metrics)
    json.dumps([found.gold, found.predicted, found.probabilities], allow_nan=False)
