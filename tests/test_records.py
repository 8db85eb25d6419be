"""Files that acclimate wrote and somebody edited or cut: each is read, or one error names it and the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.errors import UserError
from acclimate.base.files import RECORD_FILE, write_json
from acclimate.base.options import build
from acclimate.base.records import Record, read_kept
from acclimate.data.operations import read_accounts
from acclimate.data.reading import ReadingOptions
from acclimate.data.sources import FileSource
from acclimate.data.task_kinds import READ_ALIKE
from acclimate.labs.plan.logs import read_rows
from acclimate.results.study import StudyResults
from acclimate.study.executor import JobStore
from acclimate.study.forecast import Durations
from acclimate.study.job import FORMAT
from acclimate.tasks.record import read_training
from acclimate.tasks.result import FinetuneResult, RunFolder
from tests.cases import each

DELETE = object()
WRONG = st.sampled_from(
    [5, -5, 1e300, float("inf"), 10**400, "abc", "", [], [1], [[1]], {}, {"a": 1}, None, True, DELETE]
)
PAGES = Path(__file__).parents[1] / "docs" / "results"


def places(value, place=()):
    """Yield the place of each value in nested lists and objects, without the whole."""
    if place:
        yield place
    for key, entry in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(entry, (*place, key))


def replaced(value, place, new):
    """Return a copy of nested values with a new value at a place."""
    if not place:
        return new
    copy = value.copy()
    if new is DELETE and len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = replaced(copy[place[0]], place[1:], new)
    return copy


def mutated(data, value):
    """Draw a copy of nested values with a wrong value somewhere."""
    return replaced(value, data.draw(st.sampled_from([*places(value)])), data.draw(WRONG))


@pytest.fixture(scope="module")
def results() -> dict:
    """The results of a study with losses on domain and general text, each list cut to two rows."""
    found = json.loads((PAGES / "demo" / "results.json").read_text())
    return {key: value[:2] if isinstance(value, list) else value for key, value in found.items()}


@each("kind", ["losses", "scores"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_results_of_any_form_give_points_or_an_error(results, tmp_path_factory, kind, data):
    file = tmp_path_factory.getbasetemp() / "results.json"
    file.write_text(json.dumps(mutated(data, results)))
    try:
        read_rows([file], kind, ())
    except UserError as error:
        assert str(file) in str(error)


LOG = [
    {"step": 1, "tokens": 10, "loss": 2.0, "learning_rate": 1e-4, "terms": {"mlm": 2.0}},
    {"step": 1, "heldout": {"loss": 2.5, "terms": {"mlm": 2.5}}, "general": {"loss": 2.5, "terms": {}}},
]


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_logs_of_any_form_give_points_or_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    lines = mutated(data, LOG)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "trainer_state.json").write_text(json.dumps(mutated(data, {"log_history": LOG})))
    for name in ("log.jsonl", "trainer_state.json"):
        try:
            read_rows([folder / name], "curves", ())
        except UserError as error:
            assert name in str(error)


@each(
    ("name", "text", "words"),
    [
        ("results.json", '{"format": 4, "name": "a", "methods": 5}', "methods must be a list, not 5"),
        ("results.json", '{"format": 4, "name": "a", "scores": [5]}', r"scores\[0\] must be an object, not 5"),
        (
            "results.json",
            '{"format": 4, "name": "a", "rows": {"probe": [5]}}',
            r"rows\.probe\[0\] must be an object, not 5",
        ),
        ("results.json", '{"format": 4, "name": "a", "config": {"methods": 5}}', "another form"),
        ("results.json", "[" * 100_000, "too deeply nested"),
        ("log.jsonl", "[" * 100_000, "cannot be read"),
        ("log.jsonl", "9" * 5000, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words) as error:
        read_rows([tmp_path / name], "curves" if name == "log.jsonl" else "losses", ())
    assert name in str(error.value)


class Small(Record):
    """A result without entries."""


class FakeJob:
    """What a store reads of a job."""

    key, result_type = "0123", Small


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_job_file_of_any_form_is_used_or_counts_as_missing(tmp_path_factory, data):
    place = {"model": "m", "domain": "d", "seed": 1}
    valid = {"format": FORMAT, "kind": "adapt", "status": "done", "seconds": 1.5, "place": place, "result": {}}
    store = JobStore(tmp_path_factory.getbasetemp() / "study")
    file = store.out / "jobs" / "0123.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(mutated(data, valid)))
    store.outcome(FakeJob)
    assert store.seconds(FakeJob) >= 0
    Durations(store.finished())
    store.failures()


def test_a_place_in_a_record_names_each_key():
    with pytest.raises(UserError, match=r"scores\[0\]\.(.*) is missing"):
        StudyResults.from_dict({"name": "a", "scores": [{"model": "m"}]})


RUN = {
    **{"task": "t", "seed": 0, "metrics": {"macro_f1": 0.5}, "dev_metrics": None, "gold": [0], "predicted": [1]},
    **{"probabilities": [[0.5, 0.5]], "labels": ["a", "b"], "seconds": 1.5, "train_size": 3, "steps": 1, "epoch": 1},
    **{"train_loss": 0.7, "precision": "fp32", "kind": "single_label", "scoring": {}, "first": None, "warning": ""},
}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_record_of_a_run_of_any_form_is_used_or_counts_as_missing(tmp_path_factory, data):
    """A result that is used can be shown."""
    folder = tmp_path_factory.getbasetemp() / "run"
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"identity": {}, "result": RUN, "checksums": {}}))
    assert RunFolder(folder, {}).load_finished(FinetuneResult) is not None
    (folder / "run.json").write_text(json.dumps(mutated(data, {"identity": {}, "result": RUN, "checksums": {}})))
    try:
        found = RunFolder(folder, {}).load_finished(FinetuneResult)
    except UserError as error:
        assert "run.json" in str(error)
        return
    assert found is None or (isinstance(found.labels, list) and found.seconds + found.steps + found.train_loss)


TRAINED = {
    "identity": {"options": {"max_length": 64, "seed": 0}},
    "result": {"kind": "single_label", "reading": {"text_column": "review", "pair_column": None, "replace": ["a=b"]}},
}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_record_of_a_training_of_any_form_is_read_or_named(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / RECORD_FILE
    write_json(file, mutated(data, TRAINED))
    try:
        found = read_training(file.parent)
    except UserError as error:
        assert str(file) in str(error)
    else:
        assert isinstance(found.result.kind, str) and (found.identity.options.max_length or 1) >= 1
        reading = found.result.reading
        build(ReadingOptions, **{name: reading[name] for name in READ_ALIKE if name in reading})


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_accounts_of_a_text_of_any_form_are_read_or_named(tmp_path_factory, data):
    source = FileSource(tmp_path_factory.getbasetemp() / "text.jsonl")
    source.path.write_text('{"text": "a"}\n')
    counts = dict.fromkeys(("documents_in", "documents_out", "tokens_in", "tokens_out"), 1)
    account = {"operation": "duplicates", "name": "duplicates", **counts, "kept": ["a"], "notes": {"near": 1}}
    write_json(source.account, mutated(data, {"text": source.fingerprint(), "accounts": [account]}))
    try:
        assert all(isinstance(one.summary(), str) for one in read_accounts(source.path))
    except UserError as error:
        assert str(source.account) in str(error)


@each("hint", [list[str], dict[str, list[int]], Small])
@given(
    text=st.text(max_size=5)
    | st.builds(json.dumps, st.recursive(WRONG.filter(lambda one: one is not DELETE), st.lists))
)
def test_what_is_kept_has_the_form_or_counts_as_missing(tmp_path_factory, hint, text):
    file = tmp_path_factory.getbasetemp() / "kept.json"
    file.write_text(text, encoding="utf-8")
    found = read_kept(file, hint)
    assert found is None or isinstance(found, (list, dict, Small))
    assert hint != list[str] or found is None or all(isinstance(one, str) for one in found)
