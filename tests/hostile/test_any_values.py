"""Any value of any option, any change to a study file and any output path: accepted, or a user error."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import acclimate.adaptation.options
import acclimate.merging.options
import acclimate.tasks.options
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.inputs import Budget
from acclimate.adaptation.method import get, lookup, names
from acclimate.adaptation.options import AdaptOptions, PretrainOptions
from acclimate.base.errors import UserError
from acclimate.base.options import MISSING, build, option_fields, recorded
from acclimate.base.records import fingerprint
from acclimate.cli import main as cli
from acclimate.data.documents import Corpus
from acclimate.study.forecast import forecast
from tests.hostile.runner import HALF_WRITTEN
from tests.study.fakes import World, distilling, files
from tests.tiny import TEXTS

CLASSES = {
    name: value
    for module in (acclimate.adaptation.options, acclimate.tasks.options, acclimate.merging.options)
    for name, value in vars(module).items()
    if inspect.isclass(value) and name.endswith("Options") and hasattr(value, "__dataclass_fields__")
}
PLACES = {
    **{verb: f"acclimate.adaptation.{verb}.{verb}" for verb in ("adapt", "pretrain")},
    **{"finetune": "acclimate.tasks.finetune.finetune", "distill": "acclimate.tasks.distillation.distill.distill"},
}
"""The functions that the commands call."""
IMPORTING = "acclimate.tasks.seeds", "acclimate.tasks.distillation.initial_models"
"""Modules that import one of them by name."""
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

# Without "/", "~", "*" and ":", which could make a generated text name a large folder or the network.
LETTERS = st.characters(exclude_characters="/~*?[:", exclude_categories=["Cs"])
NASTY_TEXT = ["1e4", "1e308", "1e-400", "9" * 400, "-0", "nan", "inf", "٣", "1_000", "0x10", "1:30", " ", "a\0b"]
NASTY_TEXT += ["\ud800", "x" * 5000, "true", "None", "[]", "a=b", "=", ",", "1,2", "-1", "--", "\u202e", "e\u0301\n\n"]
NASTY_NUMBERS = [0, -1, 2**31, 2**63, 2**64, 10**22, 10**400, -(10**400), 1e308, -1e308, 5e-324, 0.1 + 0.2]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(NASTY_NUMBERS),
    st.sampled_from(NASTY_TEXT),
    st.text(LETTERS, max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=5), inner, max_size=3),
    max_leaves=5,
)


def required(options) -> dict[str, str]:
    return {name: name for name, field in option_fields(options).items() if field.default is MISSING}


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_of_any_option_is_accepted_or_a_user_error(data):
    options = CLASSES[data.draw(st.sampled_from(sorted(CLASSES)))]
    name = data.draw(st.sampled_from(sorted(option_fields(options))))
    value = data.draw(VALUES)
    try:
        made = build(options, **{**required(options), name: value})
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 10_000
        return
    plain = json.loads(json.dumps(recorded(made), default=str))
    assert fingerprint(plain) == fingerprint(plain)
    if issubclass(options, AdaptOptions | PretrainOptions):
        Budget.of(made, 1)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_value_of_any_parameter_of_a_method_is_accepted_or_a_user_error(data):
    method = data.draw(st.sampled_from(sorted(names())))
    parameters = sorted(inspect.signature(lookup(method)).parameters)
    name = data.draw(st.sampled_from([*parameters, "nothing"]))
    try:
        made = get(method, **{name: data.draw(VALUES)})
        fingerprint(json.loads(json.dumps(made.settings(), default=str)))
    except UserError as error:
        assert "\n" not in str(error)


@settings(max_examples=12, deadline=None, suppress_health_check=SHARED)
@given(data=st.data())
def test_any_text_for_any_flag_is_accepted_or_a_user_error(tmp_path, monkeypatch, capsys, data):
    verb = data.draw(st.sampled_from(["adapt", "pretrain", "finetune", "distill"]))
    options = CLASSES[f"{verb.capitalize()}Options"]
    flags = {name: field.flag for name, field in option_fields(options).items() if field.option.cli}
    name = data.draw(st.sampled_from(sorted(flags)))
    text = data.draw(st.sampled_from([*NASTY_TEXT, "\udce9"]) | st.text(LETTERS, max_size=8))
    text = os.fsdecode(text.replace("\0", "").encode("utf-8", "surrogatepass"))  # as the system hands it over

    def reached(*_, **__):
        raise UserError("The training would begin.")

    for module in IMPORTING:  # else they would keep what stands for the function now
        importlib.import_module(module)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(PLACES[verb], reached)
        given = {**{one: one for one in required(options) if one in flags}, name: text}
        words = [part for one, value in given.items() for part in (flags[one], value)]
        patch.setattr(sys, "argv", ["acclimate", verb, *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2, (words, said)


def changed(value, data):
    """Return a copy of plain values in which one entry at any depth is deleted, doubled, renamed or replaced."""
    value = copy.deepcopy(value)
    holder = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and holder[key] and data.draw(st.booleans()):
            holder = holder[key]
            continue
        how = data.draw(st.sampled_from(["delete", "double", "rename", "replace", "replace"]))
        if how == "delete":
            del holder[key]
        elif how == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif how == "rename" and isinstance(holder, dict):
            holder[data.draw(SCALARS)] = holder.pop(key)
        else:
            holder[key] = data.draw(VALUES)
        return value


@settings(max_examples=12, deadline=None, suppress_health_check=SHARED)
@given(data=st.data())
def test_any_change_to_a_study_file_is_accepted_or_a_user_error(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("any")
    values = distilling(
        files(place),
        name="small",
        adapt_seeds=[0],
        other_tasks=[{"path": str(place / "aspect"), "limit_test": 2, "metric": "accuracy"}],
        search={"finetune": {"learning_rate": [1e-5, 2e-5]}, "combinations": "one-factor"},
        samples=[{"text": "good", "label": "a"}],
        baseline="none",
        leakage="off",
        title="Title",
    )
    values = changed(values, data)
    start = time.perf_counter()
    try:
        (place / "study.yaml").write_text(yaml.safe_dump(values), encoding="utf-8", errors="surrogatepass")
        forecast(place / "study.yaml", place / "out", World().backend())
    except UserError as error:
        assert "\n" not in str(error)
    assert time.perf_counter() - start < 20
    assert not (place / "out").exists()


PARTS = st.sampled_from(["a", "b c", "é", "日本", "..", ".", ".b", "a.lock", "x" * 250, "x" * 300, "-", "'", "{a}"])


@settings(max_examples=6, deadline=None, suppress_health_check=SHARED)
@given(parts=st.lists(PARTS, min_size=1, max_size=3))
@example(parts=["a", "..", "a"])
def test_any_output_path_gets_the_model_or_a_user_error(tiny_bert, tmp_path_factory, monkeypatch, parts):
    place = tmp_path_factory.mktemp("out") / "b" / "c"
    place.mkdir(parents=True)
    before = sorted(place.parent.rglob("*"))
    with monkeypatch.context() as patch:
        patch.chdir(place)
        out = Path(os.path.join(*parts))
        try:
            adapt(tiny_bert, Corpus.of(TEXTS), "none", out, max_length=16, progress=False)
        except UserError as error:
            assert "\n" not in str(error)
            assert [path for path in place.parent.rglob("*") if path.is_file()] == []
        else:
            assert (out / "config.json").is_file() and (out / "acclimate.json").is_file()
    left = [path for path in sorted(place.parent.rglob("*")) if path not in before]
    assert [path for path in left if HALF_WRITTEN.search(path.name) and path.name not in parts] == []
