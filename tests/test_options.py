"""Options that are declared once, and the interfaces that follow from the declaration."""

from __future__ import annotations

import inspect
import json
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError
from typer.testing import CliRunner

import acclimate
from acclimate.adaptation.options import AdaptOptions, PretrainOptions
from acclimate.base.bounds import Count
from acclimate.base.errors import UserError
from acclimate.base.options import MISSING, Option, accepts, build, option_fields, options, recorded, section, verb
from acclimate.base.verbs import Verb, find_verbs
from acclimate.cli import flags
from acclimate.cli import main as cli
from acclimate.data.documents import Corpus
from acclimate.labs.inspection import options as inspection
from acclimate.parts import masking
from acclimate.tasks.options import FinetuneOptions
from tests.cases import each
from tests.tiny import TEXTS


@options
class ExtendedOptions(AdaptOptions):
    """Options of ``adapt``, and one more."""

    _: KW_ONLY
    endurance: Annotated[Count, Option("Steps without progress.", "Training", unit="steps")] = 1_000


def test_a_new_option_is_an_argument_a_flag_a_key_of_the_study_and_a_field_of_the_manifest(tiny_bert, tmp_path):
    from acclimate.adaptation.adapt import adapt as original

    adapt = verb(ExtendedOptions)(original.__wrapped__)
    assert inspect.signature(adapt).parameters["endurance"].default == 1_000
    assert "endurance: Steps without progress (default: 1,000 steps)." in inspect.getdoc(adapt)
    small = {"steps": 1, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}
    adapt(tiny_bert, Corpus.of(TEXTS), out=tmp_path / "out", endurance=7, **small)
    assert json.loads((tmp_path / "out" / "acclimate.json").read_text())["endurance"] == 7
    with pytest.raises(UserError, match="overwrite"):  # it is part of the identity of the run
        adapt(tiny_bert, Corpus.of(TEXTS), out=tmp_path / "out", endurance=8, **small)

    app, given = typer.Typer(), []

    declared = Verb(
        name="train", help="Train.", example="adapt --model m", page="p.md", options=ExtendedOptions, run=""
    )
    flags.add_command(app, declared, lambda options, _: given.append(options), epilog="Example: adapt --model m")

    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "--endurance" in shown and "Steps without progress (default: 1,000 steps)." in shown
    assert shown.rstrip().endswith("Example: adapt --model m")
    (tmp_path / "run.yaml").write_text("endurance: 9\nbatch-size: 2\n")
    result = CliRunner().invoke(app, ["--model", "m", "--config", str(tmp_path / "run.yaml"), "--batch-size", "3"])
    assert result.exit_code == 0, result.exception
    assert given == [ExtendedOptions("m", endurance=9, batch_size=3, progress=True)]

    study = section(ExtendedOptions)
    assert study.model_validate({"endurance": "1e1"}).given() == {"endurance": 10}
    with pytest.raises(ValidationError, match="endurance"):
        study.model_validate({"endurance": 0})


VERBS = {verb.name: verb for verb in find_verbs()}
FIELDS = [(verb.options, field) for verb in VERBS.values() for field in option_fields(verb.options).values()]


@each("verb", VERBS.values())
def test_every_option_is_described_in_one_panel(verb):
    for field in option_fields(verb.options).values():
        assert field.option.panel in ("Data", "Model", "Training", "Method", "Output"), field.name
        assert field.option.help.endswith(".") and field.option.help[0].isupper(), field.name


def test_the_functions_have_the_signatures_of_the_classes():
    parameters = inspect.signature(acclimate.adapt).parameters
    positional = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert positional == ["model", "corpus", "method", "out"]
    assert acclimate.adapt.__name__ == "adapt" and "Raises:" in acclimate.adapt.__doc__
    assert list(inspect.signature(acclimate.pretrain).parameters)[:2] == ["corpus", "out"]
    for declared in VERBS.values():
        function = getattr(acclimate, declared.function_name)
        own = set(inspect.signature(function).parameters)
        assert own <= set(option_fields(declared.options)) or declared.name == "compare", declared.name
        assert not own or "Args:" in function.__doc__, declared.name
        own |= {"dry_run"} if declared.dry_run else set()
        assert declared.command or own == set(option_fields(declared.options)), declared.name


def test_the_flags_of_every_command_are_the_options_of_its_class():
    root = typer.main.get_command(cli.app)
    for declared in VERBS.values():
        if not declared.cli:
            continue
        first, _, second = declared.name.partition(" ")
        made = root.commands[first].commands[second] if second else root.commands[first]
        names = {one.name: [one.metavar] if one.param_type_name == "argument" else one.opts for one in made.params}
        flags = {name for found in names.values() for name in found}
        fields = {
            name: field for name, field in option_fields(declared.options).items() if name not in declared.without
        }
        expected = {field.flag for field in fields.values() if field.option.cli} | {"--json"}
        expected |= {"--config"} if fields else set()
        expected |= {"--quiet"} if "progress" in fields else set()
        expected |= {"--plugin"} if declared.plugins else set()
        assert flags - {"--help"} == expected, declared.name
        assert made.epilog.startswith(f"Example: acclimate {declared.name} "), declared.name
        required = {field.flag for field in fields.values() if field.default is MISSING}
        assert required == {name for one in made.params if "(required" in (one.help or "") for name in names[one.name]}


def test_the_study_is_given_by_position_or_in_a_file(tmp_path):
    (tmp_path / "run.yaml").write_text("study: ~/none.yaml\nout: out\n")
    for arguments, message in (
        (["compare", "--out", "o"], "STUDY is required: YAML or TOML file that describes the study."),
        (["compare", "s.yaml"], "--out is required: Output directory."),
        (["compare", "--config", str(tmp_path / "run.yaml")], f"No study file at '{Path.home() / 'none.yaml'}'"),
        (["push", "folder"], "REPO is required: Repository"),
    ):
        error = CliRunner().invoke(cli.app, arguments).exception
        assert isinstance(error, UserError) and str(error).startswith(message), error


def required_options(cls) -> dict:
    required = {name: field.type for name, field in option_fields(cls).items() if field.default is MISSING}
    numbers = {
        name: 1 if name == "minutes" else 0.5
        for name, kind in required.items()
        if accepts(kind, int) or accepts(kind, float)
    }
    return {
        name: {"x": "x", "y": "y"} if name in ("corpora", "experts", "domains", "results", "logs") else "x"
        for name in required
    } | numbers


ODD = st.one_of(
    st.integers(-3, 3), st.floats(), st.text(max_size=5), st.booleans(), st.none(), st.lists(st.integers()),
    st.sampled_from([10**400, -(10**400), 1e308, "9" * 400, "1e400", "~", "", "\0", "x" * 5000, b"x", {}, {1: 2}]),
)  # fmt: skip


def accept_or_refuse(cls, field, value):
    try:
        build(cls, **{**required_options(cls), field.name: value})
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000, (field.name, error)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FIELDS), ODD)
def test_any_value_of_any_option_is_accepted_or_refused_in_one_line(place, value):
    accept_or_refuse(*place, value)


def test_long_and_nested_values_of_every_option_are_accepted_or_refused_in_one_line():
    long = "x" * 5000
    for value in (long, [long], {long: 1}, {1: 2}, {long: "x", "x": long}, f"{long}=1"):
        for cls, field in FIELDS:
            accept_or_refuse(cls, field, value)


def test_every_number_has_a_limit():
    for cls, field in FIELDS:
        if accepts(field.type, int) or accepts(field.type, float):
            required = required_options(cls)
            unlimited = [float("inf"), float("nan"), 10**400, True]
            for value in unlimited + ([10**16] if accepts(field.type, int) else []):
                if not (value is True and accepts(field.type, bool)):
                    with pytest.raises(UserError, match=f"'{field.name}' (must be|expects)"):
                        build(cls, **{**required, field.name: value})


def test_every_path_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for cls, field in FIELDS:
        if accepts(field.type, Path) and not field.option.many:
            required = required_options(cls)
            for value, home in (("~/x", "/home/me/x"), (Path("~/x"), "/home/me/x"), ("a~", "a~")):
                assert str(getattr(build(cls, **{**required, field.name: value}), field.name)) == home
            with pytest.raises(UserError, match="NUL"):
                build(cls, **{**required, field.name: "a\0"})
    models = build(inspection.InspectEmbeddingsOptions, "x", ["~/m", "n=~/l", "runs/lr=1"]).after
    assert models == {"m": "/home/me/m", "n": "/home/me/l", "lr=1": "runs/lr=1"}


def test_the_default_mask_rate_is_that_of_masking():
    assert option_fields(AdaptOptions)["mask_rate"].default == masking.MASK_RATE


@options
class SmallOptions:
    """A few options of each type."""

    place: Annotated[str | Path, Option("Place.", "Data")]
    _: KW_ONLY
    count: Annotated[Count | None, Option("Count.")] = None
    share: Annotated[float, Field(ge=0, lt=1), Option("Share.")] = 0.1
    choice: Annotated[Literal["one", "two"], Option("Choice.")] = "one"
    pairs: Annotated[dict[str, int] | None, Option("Pairs.", flag="--set")] = None
    switch: Annotated[bool, Option("Switch.", recorded=False, study=False)] = False


@each(
    ("given", "message"),
    [
        ({}, "^'place' is required: Place.$"),
        ({"place": "p", "cont": 1}, "^Unknown option 'cont'. Did you mean 'count'"),
        ({"place": "p", "count": 0}, "^'count' must be at least 1, not 0.$"),
        ({"place": "p", "count": 1.5}, "^'count' must be an integer, not 1.5.$"),
        ({"place": "p", "share": "much"}, "^'share' must be a number, not 'much'.$"),
        ({"place": "p", "share": 1}, "^'share' must be less than 1, not 1.$"),
        ({"place": "p", "choice": "three"}, "^'choice' must be 'one' or 'two', not 'three'.$"),
        ({"place": "p", "pairs": [1]}, "^'pairs' must be a mapping of names"),
        ({"place": "p", "switch": "maybe"}, "^'switch' must be true or false, not 'maybe'.$"),
    ],
)
def test_a_wrong_value_is_one_line(given, message):
    with pytest.raises(UserError, match=message):
        build(SmallOptions, **given)


def test_what_is_recorded_and_what_a_study_may_set():
    made = build(SmallOptions, "p", count=2, switch=True)
    assert recorded(made, place="hash", more=1) == {
        "place": "hash", "count": 2, "share": 0.1, "choice": "one", "pairs": None, "more": 1
    }  # fmt: skip
    assert section(SmallOptions, without=("place",)).option_names == ("count", "share", "choice", "pairs")
    with pytest.raises(ValidationError, match="switch"):
        section(SmallOptions).model_validate({"switch": True})


def test_named_values_of_a_file_and_of_flags_are_joined(tmp_path):
    app, given = typer.Typer(), []

    declared = Verb(name="small", help="", example="small p", page="p.md", options=SmallOptions, run="")
    flags.add_command(app, declared, lambda options, _: given.append(options))
    (tmp_path / "run.toml").write_text('place = "p"\nset = {a = 1, b = 2}\n')
    result = CliRunner().invoke(app, ["--config", str(tmp_path / "run.toml"), "--set", "b=3"])
    assert result.exit_code == 0, result.exception
    assert given == [SmallOptions("p", pairs={"a": 1, "b": 3})]
    for arguments, message in (
        (["--set", "b"], "--set expects name=value, not 'b'."),
        (["--set", "b=1", "--set", "b=2"], "--set sets 'b' twice; give it once."),
        (["--place", "p", "--count", "0"], "--count must be at least 1, not 0."),
        (["--place", "p", "--count", "two"], "--count must be an integer, not 'two'."),
        (["--place", "p", "--count", "1e15"], "--count must be at most 1,000,000,000, not 1000000000000000."),
        ([], "--place is required: Place."),
    ):
        error = CliRunner().invoke(app, arguments).exception
        assert isinstance(error, UserError) and str(error) == message
    (tmp_path / "run.toml").write_text('place = "p"\ncount = 0\n')
    error = CliRunner().invoke(app, ["--config", str(tmp_path / "run.toml")]).exception
    assert str(error) == f"'{tmp_path / 'run.toml'}': 'count' must be at least 1, not 0."
    for text, message in (
        ("set = 1\npairs = 2", "sets 'pairs' twice"),
        ("set = 1\nplace = 2", "--set must be a mapping"),
    ):
        (tmp_path / "run.toml").write_text(text)
        error = CliRunner().invoke(app, ["--config", str(tmp_path / "run.toml"), "--set", "b=3"]).exception
        assert isinstance(error, UserError) and message in str(error)


def test_options_of_pretraining_are_recorded_once():
    """The training records those that it shares with ``adapt``, the method the others."""
    made = build(PretrainOptions, "text")
    shared = {name for name in option_fields(PretrainOptions) if name in option_fields(AdaptOptions)}
    configuration = {"architecture", "objective", "size", "changes"}
    assert set(recorded(made, configuration)) - shared == {
        "tokenizer", "vocab_size", "lowercase", "tokenizer_characters"
    }  # fmt: skip


@options
class ExtendedFinetuneOptions(FinetuneOptions):
    """Options of ``finetune``, and one more."""

    _: KW_ONLY
    patience: Annotated[Count, Option("Epochs without progress.")] = 3


def test_options_of_fine_tuning_are_part_of_the_identity_of_a_run(tiny_bert, tmp_path):
    from acclimate.tasks.finetune import finetune as original
    from acclimate.tasks.kinds.classification.data import Task

    rows = [{"text": text, "label": "no" if n % 2 else "yes"} for n, text in enumerate(TEXTS)]
    finetune = verb(ExtendedFinetuneOptions)(original.__wrapped__)
    given = {"epochs": 1, "precision": "fp32", "progress": False, "out": tmp_path / "out"}
    finetune(tiny_bert, Task.of("words", rows, rows), patience=2, **given)
    record = json.loads((tmp_path / "out" / "run.json").read_text())["identity"]["options"]
    assert (record["patience"], record["epochs"], record["max_length"]) == (2, 1, 128)
    assert not {"out", "progress", "report_to"} & record.keys()


def test_a_file_of_templates_is_read_however_it_is_given(tmp_path):
    file = tmp_path / "templates.yaml"
    file.write_text('["Q: {question}", "{question}\\nA:"]', encoding="utf-8")
    for given_file in (file, str(file), [str(file)]):  # the last is what the command line gives
        options = build(FinetuneOptions, "model", "task", template=given_file, epochs=0)
        assert options.template == ("Q: {question}", "{question}\nA:")
