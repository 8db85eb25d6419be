"""What to do next: each outcome of a study has steps, and their commands are valid."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from acclimate.base.version import docs_page
from acclimate.cli.main import app
from acclimate.report import markdown, render
from acclimate.report.next_steps import learning_words, next_steps
from acclimate.results.study import Failure
from acclimate.study.changes import change_values
from acclimate.study.config import StudyConfig
from tests.report.full import with_comparison

FOLDER = Path("runs/a study")


def with_verdicts(results, verdict, **changes):
    changed = {"verdict": verdict, "p_holm": 0.01}  # else the verdict follows the corrected p
    rows = [with_comparison(row, **changed) if row.comparison else row for row in results.scores]
    return replace(results, scores=rows, **changes)


def check(results, *found):
    """Return the texts of the steps; every command parses and is complete, and every change leads to a valid study."""
    steps = next_steps(results, FOLDER)
    group = typer.main.get_command(app)
    for step in steps:
        assert not step.page or Path(docs_page(step.page)).is_file()
        for command in step.commands:
            program, verb, *arguments = shlex.split(command)
            assert program == "acclimate"
            context = group.commands[verb].make_context(verb, list(arguments), resilient_parsing=False)
            if verb == "advise":  # what it needs is checked after the parsing
                assert {"--model", "--corpus", "--general"} <= set(arguments)
            values = [arguments[place + 1] for place, word in enumerate(arguments) if word == "--set"]
            changes = dict(value.split("=", 1) for value in values)
            assert StudyConfig.of(change_values(results.config, changes), "the study")
            needed = {option.name for option in context.command.params if "(required)" in (option.help or "")}
            assert all(context.params[name] for name in needed), command
    return [step.text for step in steps]


@pytest.mark.needs("dga")
def test_each_outcome_has_steps(results):
    commands = "\n".join(command for step in next_steps(results, FOLDER) for command in step.commands)
    run = next(run for run in results.adaptations if run.method == "mlm")
    assert f"--model '{FOLDER / run.folder}'" in commands and "acclimate push" in commands
    assert re.search(r"--task \S*/(intent|aspect) ", commands)
    helped = check(results)
    assert helped[0].startswith("Use the model adapted with mlm") and "forgot some general text" in helped[1]
    (learn,) = check(with_verdicts(results, "not learned"))
    same = with_verdicts(results, "no difference shown")
    first, *others = check(replace(same, scores=[replace(row, collapsed=1) for row in same.scores]))
    assert first == learn and not others, "as the first caveat says"
    assert learn.startswith("Fine-tuning has to work")
    given = {"seeds": "3", "finetune.epochs": "1", "keep": "best"}
    changed = replace(with_verdicts(results, "not learned"), settings=given)
    command = next_steps(changed, FOLDER)[0].commands[0]
    assert "--set seeds=3" in command and command.count("finetune.epochs") == 1 and "keep" not in command
    assert learning_words(changed, FOLDER) == shlex.split(command)[1:] and not learning_words(results, FOLDER)
    (repeat,) = check(with_verdicts(results, "no verdict"))
    assert "variance" in repeat
    tie, far = check(with_verdicts(results, "no difference shown"))
    assert "cannot be seen here" in tie and "how far" in far
    (keep,) = check(with_verdicts(results, "hurt"))
    assert keep.startswith("Keep the base model rather than the one adapted with mlm and dga, no contrast")
    (task,) = check(replace(results, scores=[]))
    assert "a task with labels" in task
    higher = [
        replace(row, difference=replace(row.difference, verdict="no difference shown"))
        for row in results.losses
        if row.difference
    ]
    (longer,) = check(replace(results, scores=[], losses=higher))
    assert "Train longer" in longer
    once = [
        replace(row, difference=replace(row.difference, verdict="no verdict"))
        for row in results.losses
        if row.difference
    ]
    (repeat,) = check(replace(results, scores=[], losses=once))
    assert "variance" in repeat
    assert check(replace(results, scores=[], losses=[])) == []
    failed = replace(results, failures=[Failure(job="x", error="y", state="failed")])
    assert check(failed)[0].startswith("Some jobs have no result")


def test_the_steps_are_in_the_page_and_in_markdown(results, monkeypatch):
    monkeypatch.setattr("acclimate.report.page.FIGURES", ())  # they take seconds
    command = next_steps(results, FOLDER)[0].commands[0]
    assert f"    {command}\n" in markdown(results, FOLDER)
    assert "Next steps" in render(results, FOLDER) and f"{results.folder}/models/" in render(results)
    assert "runs/small/models/" in render(replace(results, folder=None))
    empty = replace(results, scores=[], losses=[])
    assert "Next steps" not in render(empty) + markdown(empty)


def test_commands_read_text_and_tasks_as_the_study_does(results):
    domain = results.config["domains"][0]
    sources = [{"path": "old.csv", "text_column": "body", "encoding": "cp1252"}]
    tasks = [{**task, "label_column": "queue", "split_seed": 3} for task in domain["tasks"]]
    domains = [{**domain, "corpus": sources, "tasks": tasks}, *results.config["domains"][1:]]
    read = replace(results, config={**results.config, "domains": domains, "general": ["general.txt"]})
    win = next(step for step in next_steps(read, FOLDER) if "Use the model" in step.text)
    assert "--label-column queue --split-seed 3 --all-labels" in win.commands[0]
    tie = next_steps(with_verdicts(read, "no difference shown"), FOLDER)
    assert "--corpus old.csv:body --encoding cp1252 --general general.txt" in tie[-1].commands[0]
    same = [
        with_comparison(row, verdict="no difference shown", low=0.0, high=0.0) if row.comparison else row
        for row in read.scores
    ]
    assert next_steps(replace(read, scores=same), FOLDER)[0].text.startswith("The scores are equal")
