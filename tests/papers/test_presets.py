"""Presets: published values replace the defaults of parameters that are not given, on every way in."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get, lookup, names
from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.base.registry import preset_names, preset_values, published
from acclimate.data.documents import Corpus
from acclimate.parts.masking.lexicon import LexiconFirst
from acclimate.study.config import MethodSpec, StudyConfig
from acclimate.study.jobs.distill import _split_settings
from acclimate.study.method_inputs import read_method
from acclimate.tasks.kinds.classification.data import Task
from acclimate.tasks.options import DistillOptions
from tests.cases import each
from tests.papers.test_contract import SHORT
from tests.test_cli import call
from tests.tiny import TEXTS

WITH_PRESETS = [name for name in names() if hasattr(lookup(name), "preset")]
VALUES = {
    "dann": {"lm_weight": {"paper": 0.0}},
    "der++": {"top": {"paper": 0}},
    "infoword": {
        "span": {"released-code": "masked"},
        "similarity": {"paper": "dot"},
        "pooling": {"paper": "first"},
    },
    "kd": {"divergence": {"released-code": "reverse"}},
    "mixda": {"weighs": {"released-code": "all"}},
    "muppet": {"lm_weight": {"paper": 0.0}, "r3f": {"paper": 1.0}},
    "prompt": {"start": {"released-code": "uniform"}},
    "self-distill": {"pooling": {"released-code": "cls"}},
    "tacl": {"similarity": {"released-code": "dot"}, "positions": {"released-code": "unmasked"}},
    "taco": {"tokens": {"released-code": "original"}},
    "tsdae": {"pooling": {"paper": "cls"}},
}
"""Published values that are not the defaults; those of papers with presets for many are tested on their own."""
WORD = re.compile(r"``\"?(\w+)\"?``[^`();]*\((?:paper|(?:released )?code)\b")
NUMBER = re.compile(r"\((?:paper|(?:released )?code)[^:()]*: ([\d.,]*\d)(?=\)|, | million)")
"""A value with ``(paper)`` or ``(released code)`` after it; and ``(paper: 0.5)``."""
TEACHER = {"teacher": "a", "student": "b", "task": "c"}


@pytest.mark.needs("dga", "tapter")
def test_the_methods_of_the_four_papers_have_presets():
    assert "preset" in {field.name for field in dataclasses.fields(DistillOptions)}
    assert preset_values(lookup("dga"), "paper") == {
        "contrast_tokens": "original",
        "importance_error": 0.0,
        "mask_on": "gradient",
    }
    assert preset_values(lookup("tapter"), "paper-squad") == {"min_count": 5, "epochs": 5}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(WITH_PRESETS))
def test_given_values_win_then_the_preset_then_the_defaults(data, name):
    """Whether a method is made by name or directly, and again when its settings make another one."""
    method = lookup(name)
    preset = data.draw(st.sampled_from(preset_names(method)))
    candidates = {key: {getattr(method, key), *mark.values.values()} for key, mark in published(method).items()}
    chosen = data.draw(st.sets(st.sampled_from(sorted(candidates))))
    explicit = {key: data.draw(st.sampled_from(sorted(candidates[key], key=str))) for key in sorted(chosen)}
    expected = {**get(name).settings(), **preset_values(method, preset), **explicit, "preset": preset}
    for made in (get(name, preset=preset, **explicit), method(preset=preset, **explicit)):
        assert made.settings() == expected
        assert get(name, **made.settings()).settings() == expected
    study = MethodSpec.model_validate({"name": name, "preset": preset, **explicit})
    assert read_method(study).parameters == expected


@each("name", WITH_PRESETS)
def test_an_unknown_preset_is_refused_on_every_way_in(name):
    for make in (get, lambda name, **given: lookup(name)(**given)):
        with pytest.raises(UserError, match="Did you mean 'paper'"):
            make(name, preset="papr")


def test_published_values_that_are_not_defaults_are_declared():
    """Those of the table, and every value that a docstring calls that of the paper or the released code."""
    found = {name: {key: dict(mark.values) for key, mark in published(lookup(name)).items()} for name in names()}
    assert {name: found[name] for name in VALUES if name in found} == {
        name: values for name, values in VALUES.items() if name in found
    }
    assert published(LexiconFirst)["order"].values == {"released-code": "text"}
    mentioned, missing = 0, []
    for name in names():
        fields = {field.name: field.default for field in dataclasses.fields(lookup(name))}
        parts = re.split(r"\n {8}(\w+): ", "\n" + (lookup(name).__doc__ or "").partition("Attributes:\n")[2])
        for key, text in zip(parts[1::2], parts[2::2], strict=True):
            text = " ".join(text.split())
            values = [*WORD.findall(text), *(float(number.replace(",", "")) for number in NUMBER.findall(text))]
            for value in values if key in fields else []:
                mentioned += 1
                known = [fields[key], *found[name].get(key, {}).values()]
                known = [float(one) if isinstance(value, float) else str(one) for one in known]
                scale = 1e6 if "million" in text else 1
                if (value * scale if scale > 1 else value) not in known:
                    missing.append((name, key, value))
    assert not missing and mentioned >= 15


@each("name", [*WITH_PRESETS, "distill"])
def test_every_departure_from_a_paper_has_a_reason(name):
    cls: Any = DistillOptions if name == "distill" else lookup(name)
    for key, mark in published(cls).items():
        default = next(field.default for field in dataclasses.fields(cls) if field.name == key)
        departs = any(value != default for preset, value in mark.values.items() if preset == "paper")
        assert bool(mark.reason) == departs, key


@pytest.mark.needs("dga", "simcse")
def test_dga_and_simcse_contrast_the_same_text():
    for chosen in ({}, {"preset": "paper"}):
        assert get("dga", **chosen).settings()["contrast_tokens"] == get("simcse", **chosen).settings()["tokens"]


@settings(max_examples=20, deadline=None)
@given(preset=st.sampled_from([None, "paper", "released-code"]), scale=st.none() | st.floats(0.1, 9))
def test_distillation_takes_presets_in_python_and_in_a_study(preset, scale):
    explicit = {} if scale is None else {"scale": scale}
    expected = scale or {"paper": 1.0}.get(preset, 1e-3)
    assert build(DistillOptions, **TEACHER, preset=preset, **explicit).scale == expected
    row = {"teacher": "t", "preset": preset, **explicit}
    config = StudyConfig.of({"models": ["a"], "methods": ["none"], "domains": [DOMAIN], "distill": [row]})
    split = _split_settings({}, config.sections["distill"][0].settings, INPUT, {"scale": 1e-3, "objective": "auto"})
    assert split.settings["scale"] == expected
    assert build(DistillOptions, **TEACHER, **split.options).scale == expected


LABELLED = Task.of("t", *[[{"text": text, "label": text[:1]} for text in ("a b", "b a")]] * 2)
INPUT = SimpleNamespace(task=LABELLED, metric="macro_f1")
DOMAIN = {"name": "d", "corpus": "c", "tasks": ["t"]}


def test_an_unknown_preset_of_a_distillation_is_refused():
    with pytest.raises(UserError, match="'preset' must be 'paper' or 'released-code', not 'papr'"):
        build(DistillOptions, **TEACHER, preset="papr")


@pytest.mark.needs("dga")
def test_the_command_line_and_python_adapt_with_a_preset(tiny_bert, tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    shared = [
        "--model",
        tiny_bert,
        "--corpus",
        tmp_path / "text.txt",
        "--steps",
        1,
        "--batch-size",
        2,
        "--max-length",
        24,
    ]
    flags = ["--method", "dga preset=paper mask_on=update importance_tokens=40"]
    common = ["--precision", "fp32", "--quiet", "--out", tmp_path / "a"]
    code, _, error = call(monkeypatch, capsys, "adapt", *shared, *flags, *common)
    assert code == 0, error
    adapt(
        tiny_bert,
        Corpus.of(TEXTS),
        "dga preset=paper importance_tokens=40",
        tmp_path / "b",
        **{**SHORT, "steps": 1},
    )
    for folder, mask_on in (("a", "update"), ("b", "gradient")):
        used = json.loads((tmp_path / folder / "acclimate.json").read_text())["settings"]
        assert (used["contrast_tokens"], used["importance_error"], used["mask_on"]) == ("original", 0.0, mask_on)


@pytest.mark.needs("dga")
def test_the_command_lists_departures_and_the_options_of_the_paper(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "methods", "dga")
    assert code == 0
    shown = " ".join(out.split())
    for key, mark in published(lookup("dga")).items():
        value = mark.values["paper"]
        assert (
            f"{key} = {getattr(lookup('dga'), key)!r} (paper: {value!r}; released-code: {value!r}): {mark.reason}"
            in shown
        )
    assert "--steps 2500 --batch-size 256 --max-length 164 --learning-rate 0.0001 --max-gradient-norm 0" in shown
    _, plain, _ = call(monkeypatch, capsys, "methods", "none")
    assert "Departures" not in plain and "The paper adapts" not in plain
