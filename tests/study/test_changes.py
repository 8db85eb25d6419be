"""Changes to a study from the command line: ``--set`` and ``--only``."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.study.changes import change_values, keep_only, load_study
from acclimate.study.compare import compare
from acclimate.study.config import StudyConfig
from tests.cases import each
from tests.study.fakes import World, study
from tests.test_cli import call

VALUES = {
    "models": "bert-base-uncased",
    "methods": [
        "none",
        {"name": "dga", "contrast_weight": 0.5},
        {"name": "dga", "label": "plain", "contrast_weight": 0},
    ],
    "domains": [
        {"name": "cs", "corpus": "cs.txt", "tasks": ["tasks/intent", {"path": "tasks/aspect", "name": "second"}]},
        {"name": "food", "corpus": "food.txt", "tasks": ["tasks/reviews"]},
    ],
    "other_tasks": ["tasks/topics"],
    "adapt": {"tokens": 1000},
    "checkpoints": ["other/model"],
    "seeds": 2,
}


@each(
    ("path", "text", "found"),
    [
        ("adapt.batch_size", "8", lambda study: study.adapt.batch_size == 8 and study.adapt.tokens == 1000),
        ("adapt.learning_rate", "1e-4", lambda study: study.adapt.learning_rate == 1e-4),
        ("seeds", "[3, 4]", lambda study: study.seeds == [3, 4]),
        ("evaluate.documents", "9", lambda study: study.evaluate.documents == 9),
        ("general", "[a.txt, b.txt]", lambda study: study.general == ["a.txt", "b.txt"]),
        ("methods.1.adapt.epochs", "2", lambda study: study.methods[1].adapt == {"epochs": 2.0}),
        ("methods.dga.contrast_weight", "1", lambda study: study.methods[1].parameters == {"contrast_weight": 1}),
        ("methods.plain.contrast_weight", "1", lambda study: study.methods[2].parameters == {"contrast_weight": 1}),
        ("methods.0.label", "base", lambda study: (study.methods[0].name, study.methods[0].label) == ("none", "base")),
        ("models.0.name", "small", lambda study: (study.models[0].name, study.models[0].path)
         == ("small", "bert-base-uncased")),
        ("domains.food.tasks.reviews.epochs", "2", lambda study: study.domains[1].tasks[0].epochs == 2),
        ("domains.0.tasks.second.limit_train", "5", lambda study: study.domains[0].tasks[1].limit_train == 5),
        ("checkpoints.0.label", "theirs", lambda study: study.sections["checkpoints"][0].label == "theirs"),
        ("adapt", "{steps: 3}", lambda study: study.adapt.given() == {"steps": 3, "seed": 0}),
    ],
)  # fmt: skip
def test_one_value_is_changed_and_the_others_stay(path, text, found):
    before = json.dumps(VALUES)
    changed = change_values(VALUES, {path: text})
    assert found(StudyConfig.of(changed))
    assert json.dumps(VALUES) == before
    untouched = {key: value for key, value in changed.items() if key != path.split(".")[0]}
    assert untouched == {key: VALUES[key] for key in untouched}


@each(
    ("path", "text", "message"),
    [
        ("adpat.steps", "1", "unknown key 'adpat'. Did you mean 'adapt'?"),
        ("adapt.stpes", "1", "unknown key 'adapt.stpes'. Did you mean 'steps'?"),
        ("domains.0.adapt.steps", "1", "unknown key 'domains[0].adapt'"),
        ("domains.foood.corpus", "x", "Unknown entry in 'domains': 'foood'. Did you mean 'food'?"),
        ("domains.7.corpus", "x", "Unknown entry in 'domains': '7'."),
        ("seeds.0", "1", "'seeds.0' cannot be set, as 'seeds' is 2"),
        ("adapt..steps", "1", "'adapt..steps' is not a path"),
        ("adapt.steps", "a: b: c", "Cannot parse the value 'a: b: c'"),
        ("adapt.steps", "many", "adapt.steps"),
        ("adapt.steps", " ", "'adapt.steps=' has no value; write adapt.steps=null"),
    ],
)
def test_mistakes_in_a_change_are_one_line(path, text, message):
    with pytest.raises(UserError) as error:
        load_study(VALUES, {path: text})
    assert message in str(error.value)


PARTS = st.sampled_from(
    [*VALUES, "0", "1", "9" * 5000, "none", "cs", "tasks", "corpus", "name", "path", "search", "steps"]
)
PATHS = st.lists(PARTS | st.text(max_size=4), min_size=1, max_size=4).map(".".join)
TEXTS = st.sampled_from(["1", "{a: [1]}", "[x]", "", "null", "1e400", "*a", "!!python/x 1", "yes"]) | st.text(
    max_size=9
)


@settings(max_examples=100, deadline=None)
@given(PATHS, TEXTS)
def test_any_change_gives_a_study_or_one_line(path, text):
    try:
        load_study(VALUES, {path: text})
    except UserError as error:
        assert "\n" not in str(error)


def test_an_entry_with_the_name_of_another_needs_its_number():
    values = {**VALUES, "methods": [{"name": "dga", "contrast_weight": 1}, {"name": "dga", "contrast_weight": 0}]}
    with pytest.raises(UserError, match="several entries 'dga'; give the number of one, such as 0"):
        change_values(values, {"methods.dga.contrast_weight": "2"})


def test_changes_of_a_file_are_relative_to_it_and_objects_are_not_changed(tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(VALUES))
    found = load_study(tmp_path / "study.yaml", {"domains.cs.heldout": "held.txt"})
    assert found.domains[0].heldout == [str(tmp_path / "held.txt")] and found.name == "study"
    with pytest.raises(UserError, match=r"study\.yaml with --set: unknown key 'adapt\.stpes'"):
        load_study(tmp_path / "study.yaml", {"adapt.stpes": "1"})
    with pytest.raises(UserError, match="change the object itself"):
        load_study(found, {"seeds": "1"})


def rows(config: StudyConfig) -> tuple:
    tasks = [[task.name for task in domain.tasks] for domain in config.domains]
    return [domain.name for domain in config.domains], tasks, config.row_labels


@each(
    ("only", "domains", "tasks", "labels"),
    [
        ([], ["cs", "food"], [["intent", "second"], ["reviews"]], ["none", "dga (contrast_weight=0.5)", "plain"]),
        (["domain=food"], ["food"], [["reviews"]], ["none", "dga (contrast_weight=0.5)", "plain"]),
        (["method=plain"], ["cs", "food"], [["intent", "second"], ["reviews"]], ["none", "plain"]),
        (["task=second"], ["cs"], [["second"]], ["none", "dga (contrast_weight=0.5)", "plain"]),
        (["task=second", "task=reviews", "method=none"], ["cs", "food"], [["second"], ["reviews"]], ["none"]),
    ],
)
def test_parts_are_kept_with_the_baseline(only, domains, tasks, labels):
    kept = keep_only(StudyConfig.of({key: value for key, value in VALUES.items() if key != "checkpoints"}), only)
    assert rows(kept) == (domains, tasks, labels)
    assert [task.name for task in kept.other_tasks] == ([] if any("task" in item for item in only) else ["topics"])


def test_entries_of_sections_apply_to_what_is_left():
    teacher = {"path": "teacher"}
    rows = [
        {"teacher": teacher, "label": "both", "domains": ["cs", "food"], "students": ["bert-base-uncased"]},
        {"teacher": teacher, "label": "food only", "domains": ["food"]},
        {"teacher": teacher, "label": "all"},
    ]
    kept = keep_only(StudyConfig.of({**VALUES, "distill": rows}), ["domain=cs"]).sections["distill"]
    assert [(row.label, row.domains, row.students) for row in kept] == [
        ("both", ["cs"], ["bert-base-uncased"]),
        ("all", None, None),
    ]


@each(
    ("only", "message"),
    [
        (["domain=foood"], "Unknown domain 'foood'. Did you mean 'food'? Available: cs, food."),
        (["methods=plain"], "--only expects one of model=NAME, domain=NAME, method=NAME, task=NAME, not 'methods="),
        (["plain"], "not 'plain'"),
        (["domain=food", "task=intent"], "No part of the study is left with --only domain=food --only task=intent"),
    ],
)
def test_mistakes_in_the_parts_are_one_line(only, message):
    with pytest.raises(UserError) as error:
        keep_only(StudyConfig.of(VALUES), only)
    assert message in str(error.value)


def test_the_jobs_of_a_part_are_those_of_the_whole_study(folder, tmp_path, no_report):
    values, out = study(folder), tmp_path / "out"
    world = World()
    compare(values, out, only=["method=mlm"], progress=False, backend=world.backend())
    assert world.calls["adapt"] == 1
    made = {file.name for file in (out / "jobs").glob("*.json")}
    compare(values, out, progress=False, backend=world.backend())
    assert world.calls["adapt"] == 2 and made < {file.name for file in (out / "jobs").glob("*.json")}


def test_a_dry_run_counts_the_jobs_of_the_changed_study(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study(folder)))
    monkeypatch.setattr("acclimate.study.forecast.Backend", lambda: World().backend())
    command = ["compare", tmp_path / "study.yaml", "--out", tmp_path / "out", "--dry-run"]
    code, out, _ = call(monkeypatch, capsys, *command)
    assert code == 0 and "0 of 17 jobs" in out
    code, out, _ = call(monkeypatch, capsys, *command, "--set", "seeds=1", "--only", "method=mlm")
    assert code == 0 and "0 of 7 jobs" in out  # two fine-tunings, an adaptation, four losses
