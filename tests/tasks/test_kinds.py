"""A kind of task is registered in one place, which is enough for reading, training, task text and model cards."""

from __future__ import annotations

from pathlib import Path

import pytest

from acclimate.base.errors import UserError
from acclimate.data.task_kinds import TASK_KINDS, find_task_kind, load_task, task_texts
from acclimate.evaluation.scoring import find_scoring
from acclimate.tasks.finetune import finetune
from acclimate.tasks.interfaces import item_texts
from acclimate.tasks.kinds.classification.classifier import Classification
from acclimate.tasks.kinds.classification.data import Task


class ShoutedTask(Task):
    """A task of texts with one label each, in a file format of this test."""

    task_kind = "shouted"


class Shouted(Classification):
    """Reads ``train.shout`` and ``test.shout``: a label, a colon and a text per line."""

    fallback = False

    def matches(self, folder: Path) -> bool:
        return (folder / "train.shout").is_file()

    def read(self, folder: Path, name: str) -> ShoutedTask:
        splits = {}
        for split in ("train", "test"):
            pairs = [line.split(":", 1) for line in (folder / f"{split}.shout").read_text().splitlines()]
            splits[split] = [{"label": label, "text": text} for label, text in pairs]
        task = Task.of(name, **splits)
        return ShoutedTask(task.name, task.train, task.test, task.labels)

    def texts(self, example):
        return [example.text.upper()]

    def item_text(self, example):
        return example.text.lower()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    TASK_KINDS.names()  # the kinds of the package are discovered first
    monkeypatch.setattr(TASK_KINDS, "entries", dict(TASK_KINDS.entries))
    TASK_KINDS.register("shouted")(Shouted)
    for split in ("train", "test"):
        (tmp_path / f"{split}.shout").write_text("yes:the food is good\nno:the food is bad\n" * 4)
    return tmp_path


def test_a_new_kind_needs_no_edit_elsewhere(folder, tiny_bert):
    task = load_task(folder, name="cries")
    assert isinstance(find_task_kind(task), Shouted)
    assert task_texts(task) == ["THE FOOD IS GOOD", "THE FOOD IS BAD"]
    assert item_texts(task)["train"] == ["the food is good", "the food is bad"]
    result = finetune(tiny_bert, folder, out=folder / "out", epochs=1, max_length=24, precision="fp32", progress=False)
    assert result.labels == ["no", "yes"] and len(result.predicted) == 8
    assert "pipeline_tag: text-classification" in (folder / "out" / "README.md").read_text()


def test_unknown_kinds_are_reported(folder):
    task = load_task(folder)
    object.__setattr__(task, "task_kind", "shooted")
    with pytest.raises(UserError, match=r"kind of task 'shooted'.*Did you mean 'shouted'"):
        find_task_kind(task)
    with pytest.raises(
        UserError,
        match=r"Unknown scoring 'tags'.*: choice, entities, generation, multi_label, qa, regression, retrieval",
    ):
        find_scoring("tags")
