"""Benchmarks of lm-eval with several ways to ask, of which each model chooses on dev, and its other backend."""

from __future__ import annotations

import json
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.labs.benchmarks import harness
from acclimate.labs.benchmarks.harness import inspect_benchmarks, measure_items
from acclimate.labs.benchmarks.options import InspectBenchmarksOptions


def package(monkeypatch, split_of=lambda task: task.config.test_split, splits=None):
    """Replace lm-eval by a fake whose models answer better with two examples; return the calls of its evaluation."""
    calls = []
    splits = {"test_split": "test", "validation_split": "dev", "training_split": None, **(splits or {})}

    def evaluate(runner, *, tasks, num_fewshot, apply_chat_template, limit, **_):
        (task,) = tasks
        split = "test" if isinstance(task, str) else split_of(task)
        calls.append((runner, split, num_fewshot, apply_chat_template))
        right = {None: 3, 0: 4, 2: 6}[num_fewshot] + apply_chat_template
        samples = [
            {"doc_id": n, "doc_hash": split, "filter": "none", "metrics": ["acc"], "acc": n < right} for n in range(10)
        ]
        return {"samples": {"quiz": samples}}

    class Manager:
        def __init__(self, include_path):
            pass

        def match_tasks(self, names):
            return names

        def load(self, names):
            config = SimpleNamespace(task=names[0], **splits)
            return {"tasks": {names[0]: SimpleNamespace(config=config)}}

    root, tasks = ModuleType("lm_eval"), ModuleType("lm_eval.tasks")
    root.simple_evaluate, tasks.TaskManager = evaluate, Manager
    for name, module in (("lm_eval", root), ("lm_eval.tasks", tasks)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(harness, "check_model", lambda model, chat: None)
    monkeypatch.setattr(harness, "load_tokenizer", lambda m: SimpleNamespace(chat_template="x" if m == "chat" else ""))
    monkeypatch.setattr(harness, "_open_model", lambda model, options: model)
    return calls


def test_each_model_is_asked_in_the_way_that_is_best_on_dev(monkeypatch, tmp_path):
    calls = package(monkeypatch)
    report = inspect_benchmarks("chat", "quiz", "plain", tmp_path / "out.json", few_shot="0,2", chat_template="choose")
    ways = [(shots, chat) for chat in (False, True) for shots in (0, 2)]
    assert calls == [
        *(("chat", "dev", *way) for way in ways),
        ("chat", "test", 2, True),
        *(("plain", "dev", shots, False) for shots in (0, 2)),
        ("plain", "test", 2, False),
    ]
    (row,) = report["rows"]
    assert (row["after"], row["before"]) == (0.7, 0.6)
    assert row["prompt"] == "with chat template, 2 examples; 0.7000 on dev, all 4 ways 0.4000 to 0.7000"
    assert row["base_prompt"].startswith("without chat template, 2 examples; 0.6000 on dev, all 2 ways")
    assert "the model was asked with chat template" in "\n".join(
        harness.show_benchmarks(report, build(InspectBenchmarksOptions, "chat", "quiz"))
    )
    calls.clear()
    inspect_benchmarks("chat", "quiz", few_shot=2, chat_template=True)
    assert calls == [("chat", "test", 2, True)]


def test_a_benchmark_without_another_split_leaves_no_choice(monkeypatch):
    package(monkeypatch, splits={"test_split": None})
    with pytest.raises(UserError, match="has no split to choose on besides the one that is scored"):
        inspect_benchmarks("plain", "quiz", few_shot="0,2")
    calls = package(monkeypatch, splits={"test_split": None, "training_split": "train"})
    inspect_benchmarks("plain", "quiz", few_shot="0,2")
    assert [split for _, split, *_ in calls] == ["train", "train", "test"]


def test_vllm_is_passed_to_lm_eval(monkeypatch):
    options = build(InspectBenchmarksOptions, "model", "quiz", backend="vllm")
    monkeypatch.setattr(harness, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'acclimate\[vllm\]'"):
        harness._open_model("model", options)
    module = ModuleType("lm_eval.models.vllm_causallms")
    module.VLLM = lambda **given: given
    for name in ("lm_eval", "lm_eval.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(harness, "find_spec", lambda name: name)
    assert harness._open_model("model", options) == {"pretrained": "model", "dtype": "float32", "batch_size": "auto"}


def test_the_choice_of_lm_eval_reads_another_split(tmp_path, decoders):
    pytest.importorskip("lm_eval")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    for split in ("train", "dev", "test"):
        rows = [{"text": f"{split} {n}", "choices": ["good", "bad"], "gold": n % 2} for n in range(8)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ", ".join(f"{split}: {tmp_path}/{split}.jsonl" for split in ("train", "dev", "test"))
    (tmp_path / "choice.yaml").write_text(
        f"task: quiz_of_three\ndataset_path: json\ndataset_kwargs: {{data_files: {{{files}}}}}\ntest_split: test\n"
        "validation_split: dev\ntraining_split: train\nfewshot_split: train\noutput_type: multiple_choice\n"
        "doc_to_text: '{{text}}'\ndoc_to_choice: '{{choices}}'\ndoc_to_target: gold\nmetric_list: [{metric: acc}]\n"
    )
    options = build(
        InspectBenchmarksOptions, decoders["smollm3"], "quiz_of_three", include_path=tmp_path, few_shot=(0, 2)
    )
    found = measure_items(decoders["smollm3"], options)["quiz_of_three", "acc"]
    best = found.prompts[found.chosen]
    assert [prompt.shots for prompt in found.prompts] == [0, 2] and best.dev == max(p.dev for p in found.prompts)
    one = build(InspectBenchmarksOptions, options.model, options.tasks, include_path=tmp_path, few_shot=best.shots)
    alone = measure_items(options.model, one)["quiz_of_three", "acc"]
    assert (
        found.values.tolist() == alone.values.tolist() and found.names == alone.names and not hasattr(alone, "prompts")
    )
    (task,) = harness._on_dev(harness._open_tasks(options)[1], "quiz_of_three")
    assert {doc["text"].split()[0] for doc in task.eval_docs} == {"dev"}
    assert {doc["text"].split()[0] for doc in task.fewshot_docs()} == {"train"}
