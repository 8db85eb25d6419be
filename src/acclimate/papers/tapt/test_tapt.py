"""DAPT followed by TAPT: equal to two separate adaptations, also after an interruption in either stage."""

from __future__ import annotations

import json
import shutil
from unittest.mock import patch

import pytest
import torch
import transformers
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.tasks.kinds.classification.data import Task
from tests.adaptation.test_task_text import rows
from tests.cases import each
from tests.kills import counted, killed
from tests.papers.test_contract import DOCUMENTS, SHORT

TASK = Task.of("small", rows([f"the wine was good {number}" for number in range(10)]), rows(["a test"]))
OPTIONS = {**SHORT, "steps": 4}


def both(model, out, **settings):
    return adapt(
        model, Corpus.of(DOCUMENTS), {"dapt+tapt": {"task_steps": 3, **settings}}, out, task=TASK, save_every=2,
        **OPTIONS,
    )  # fmt: skip


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    one, other = weights(one), weights(other)
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(tiny_bert, tmp_path_factory):
    out = tmp_path_factory.mktemp("stages") / "out"
    return out, both(tiny_bert, out)


def test_equals_two_separate_adaptations(tiny_bert, whole, tmp_path):
    out, result = whole
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "lm", tmp_path / "domain", **OPTIONS)
    second = adapt(tmp_path / "domain", None, "tapt", tmp_path / "task", task=TASK, **{**OPTIONS, "steps": 3})
    assert same(out, tmp_path / "task")
    assert result.steps == 7 and result.losses == second.losses
    assert not list(out.parent.glob(".out*"))
    assert transformers.AutoModelForMaskedLM.from_pretrained(out).config.model_type == "bert"
    card = json.loads((out / "acclimate.json").read_text())
    assert card["method"] == "dapt+tapt" and card["result"]["steps"] == 7 and card["model"] == str(tiny_bert)
    assert [stage["method"] for stage in card["stages"]] == ["lm", "tapt"]
    assert [stage["text"]["documents"] for stage in card["stages"]] == [len(DOCUMENTS), 10]
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [(line["stage"], line["step"]) for line in lines] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (1, 4),
        (2, 5),
        (2, 6),
        (2, 7),
    ]
    assert lines[-1]["tokens"] == result.tokens == sum(stage["result"]["tokens"] for stage in card["stages"])
    assert both(tiny_bert, out).tokens == result.tokens  # already finished, so nothing is computed
    with pytest.raises(UserError, match="another adaptation"):
        both(tiny_bert, out, task_learning_rate=1e-4)


@pytest.mark.parametrize(("at", "again"), [((4, 3), [2, 3, 0, 1, 2]), ((3, 2), [2])])
def test_an_interrupted_run_resumes_in_either_stage(tiny_bert, whole, tmp_path, at, again):
    """``at`` is a stage, identified by its number of steps (first 4, second 3), and the step of the kill."""
    with killed(lambda state: (state.max_steps, state.global_step) == at):
        both(tiny_bert, tmp_path / "cut")
    assert not (tmp_path / "cut").exists()
    with counted() as steps:
        result = both(tiny_bert, tmp_path / "cut")
    assert steps == again
    assert same(tmp_path / "cut", whole[0]) and result.tokens == whole[1].tokens
    assert not list(tmp_path.glob(".cut*"))


def test_leftovers_of_a_kill_during_cleanup_are_removed_by_the_next_call(tiny_bert, tmp_path):
    """The kill comes after the result was written, while the stages are being deleted."""
    left = tmp_path / ".cut.stages"

    def keep(path, **options):
        if path == left:
            raise KeyboardInterrupt
        remove(path, **options)

    remove = shutil.rmtree
    with patch("acclimate.adaptation.stages.shutil.rmtree", keep), pytest.raises(KeyboardInterrupt):
        both(tiny_bert, tmp_path / "cut")
    assert left.is_dir() and (tmp_path / "cut").is_dir()
    with counted() as steps:
        both(tiny_bert, tmp_path / "cut")
    assert not steps and not left.exists()


def test_stages_of_a_killed_run_with_other_settings_are_not_reused(tiny_bert, whole, tmp_path):
    with killed(lambda state: state.max_steps == 3):
        adapt(
            tiny_bert, Corpus.of(DOCUMENTS), "dapt+tapt task_steps=3", tmp_path / "out", task=TASK, seed=1,
            **OPTIONS,
        )  # fmt: skip
    assert (tmp_path / ".out.stages" / "1-domain").is_dir()
    both(tiny_bert, tmp_path / "out")
    assert same(tmp_path / "out", whole[0])


def test_two_limits_for_the_second_stage_are_an_error(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="only one of task_epochs"):
        both(tiny_bert, tmp_path / "out", task_tokens=100)


@each(
    ("settings", "message"),
    [
        ({"task_steps": 0}, "task-steps must be more than zero"),
        ({"task_steps": None, "task_epochs": -1}, "task-epochs must be more than zero"),
        ({"task_learning_rate": 0.0}, "task-learning-rate must be more than zero"),
        ({"task_steps": 3, "task_tokens": 9}, "Give only one of"),
    ],
)
def test_invalid_settings_of_the_second_stage_fail_before_the_first(tiny_bert, tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        both(tiny_bert, tmp_path / "out", **settings)
    assert not list(tmp_path.glob(".out*"))
