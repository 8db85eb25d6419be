"""The study file: short forms, defaults, relative paths, and a one-line error for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.errors import UserError
from acclimate.study import StudyConfig, TaskSpec
from acclimate.study.inputs import StudyInputs
from tests.cases import each
from tests.study.fakes import files, study

TINY = {
    "models": ["m"],
    "methods": ["none", "mlm"],
    "domains": [{"name": "d", "corpus": "c.txt", "tasks": ["t/intent"]}],
}


def changed(**changes) -> dict:
    return {**TINY, **changes}


def test_short_forms_and_defaults():
    config = StudyConfig.of(changed(seeds=3, methods=["none", {"name": "dga", "contrast_weight": 0}]))
    assert config.seeds == [0, 1, 2]
    assert config.baseline == "none"
    assert [method.label for method in config.methods] == ["none", "dga (contrast_weight=0)"]
    assert config.methods[1].parameters == {"contrast_weight": 0}
    assert config.domains[0].corpus == ["c.txt"]
    assert config.domains[0].tasks == [TaskSpec(path="t/intent", name="intent")]


def test_without_none_the_first_method_is_the_baseline():
    assert StudyConfig.of(changed(methods=["mlm", "dga"])).baseline == "mlm"


def test_numbers_written_with_an_exponent():
    config = StudyConfig.of(yaml.safe_load(yaml.safe_dump(changed()) + "adapt: {tokens: 1e6, learning_rate: 1e-4}"))
    assert config.adapt.given() == {"tokens": 1_000_000, "learning_rate": 1e-4, "seed": 0}


def test_settings_of_a_task_do_not_mix_with_those_of_the_study():
    config = StudyConfig.of(
        changed(domains=[{"name": "d", "corpus": "c", "tasks": [{"path": "t", "epochs": 2}]}], finetune={"epochs": 9})
    )
    assert config.domains[0].tasks[0].given() == {"epochs": 2}
    assert config.finetune.given() == {"epochs": 9}


@each("suffix", ["yaml", "toml"])
def test_paths_are_relative_to_the_study_file(tmp_path, suffix):
    folder = files(tmp_path / "data")
    (tmp_path / "studies").mkdir()
    path = tmp_path / "studies" / f"spine.{suffix}"
    if suffix == "yaml":
        text = "models: [../data/model, org/name]\nmethods: [mlm]\ndomains: [{name: d, corpus: [../data/*.txt]}]\n"
    else:
        text = 'models = ["../data/model", "org/name"]\nmethods = ["mlm"]\n'
        text += '[[domains]]\nname = "d"\ncorpus = "../data/*.txt"\n'
    path.write_text(text)
    config = StudyConfig.load(path)
    assert config.name == "spine"
    assert [model.path for model in config.models] == [str(folder / "model"), "org/name"]
    assert config.domains[0].corpus == [str(folder / "*.txt")]


def test_files_among_parameters_and_searched_values_are_relative_to_the_study_file(tmp_path):
    for name in ("stop.txt", "other.txt", "words.txt"):
        (tmp_path / name).write_text("the")
    values = changed(
        methods=[
            {"name": "selective", "stop_words": "stop.txt"},
            {"name": "tapter", "search": {"stop_words": ["stop.txt", "other.txt", "english"]}},
            {"name": "mlm", "adapt": {"masking": "lexicon-first", "masking_settings": {"lexicon": "words.txt"}}},
        ],
        search={"adapt": {"masking_settings": [{"lexicon": "words.txt"}, {"lexicon": "other.txt"}]}},
    )
    config = StudyConfig.of(values).relative_to(tmp_path)
    stop, other, words = (str(tmp_path / name) for name in ("stop.txt", "other.txt", "words.txt"))
    assert config.methods[0].parameters == {"stop_words": stop}
    assert config.methods[1].search.parameters["stop_words"] == [stop, other, "english"]
    assert config.methods[2].adapt["masking_settings"] == {"lexicon": words}
    assert config.search.adapt["masking_settings"] == [{"lexicon": words}, {"lexicon": other}]


@each(
    ("change", "message"),
    [
        ({"sedes": 3}, "unknown key 'sedes'. Did you mean 'seeds'?"),
        (
            {"domains": [{"name": "d", "corpus": "c", "task": []}]},
            "unknown key 'domains[0].task'. Did you mean 'tasks'?",
        ),
        (
            {"domains": [{"name": "d", "corpus": "c", "tasks": [{"path": "t", "epoch": 1}]}]},
            "unknown key 'domains[0].tasks[0].epoch'. Did you mean 'epochs'?",
        ),
        ({"finetune": {"learningrate": 1}}, "unknown key 'finetune.learningrate'. Did you mean 'learning_rate'?"),
        ({"domains": [{"corpus": "c"}]}, "the key 'domains[0].name' is missing"),
        ({"seeds": "many"}, "'seeds': give a number of them, or a list of seeds"),
        ({"adapt_seeds": "many"}, "'adapt_seeds': give a number of them, or a list of seeds"),
        ({"adapt_seeds": []}, "'adapt_seeds'"),
        ({"seeds": [3, 4], "search": {"seeds": [4, 5]}}, "search.seeds: seed 4 is also scored"),
        ({"domain": []}, "unknown key 'domain'. Did you mean 'domains'?"),
        ({"adapt": {"warmup": 5}}, "'adapt.warmup'"),
        ({"adapt": {"precision": "fp16"}}, "'adapt.precision'"),
        ({"finetune": {"precision": "half"}}, "'finetune.precision'"),
        ({"seeds": 0}, "'seeds'"),
        ({"seeds": [0, -1]}, "'seeds"),
        ({"adapt_seeds": [-1]}, "'adapt_seeds"),
        ({"adapt": {"steps": 2, "epochs": 1}}, "give one of steps, epochs, tokens and max_minutes"),
        ({"methods": ["none", {"name": "mlm", "adapt": {"learning_rate": -1}}]}, "'learning_rate' must be"),
        ({"methods": ["none", {"name": "mlm", "adapt": {"steps": 2, "epochs": 1}}]}, "give one of steps, epochs"),
        ({"seeds": 10**15}, "give a list"),
        ({"adapt": {"tokens": "lots"}}, "'adapt.tokens'"),
        ({"methods": ["mlm", "mlm"]}, "'mlm' is duplicated under methods"),
        ({"baseline": "nome"}, "Unknown baseline 'nome'. Did you mean 'none'?"),
        ({"models": []}, "'models'"),
        ({"adapt_seeds": [3, 3]}, "'3' is duplicated under adapt_seeds"),
        ({"search": {"seeds": [0, 0]}}, "'0' is duplicated under search.seeds"),
        ({"search": {"seeds": [-3]}}, "'search.seeds"),
        ({"search": {"seeds": 10**15}}, "give a list"),
        ({"search": {"adapt": {"learning_rate": ["fast"]}}}, "'learning_rate' must be"),
        ({"methods": [{"name": "mlm", "search": {"adapt": {"mask_rate": [2]}}}]}, "'mask_rate' must be"),
        ({"methods": [{"name": "none", "adapt": {"learning_rate": 1e-4}}]}, "'none' is the base model"),
        ({"methods": [{"name": "none", "on": "task"}]}, "'none' is the base model"),
        ({"methods": [{"name": "none", "search": {"adapt": {"epochs": [1, 2]}}}]}, "'none' is the base model"),
        ({"other_tasks": [{"path": "t", "search": {"epochs": [1, 2]}}]}, "remove 'search'"),
        ({"samples": [{"txt": "hello"}]}, "unknown key 'samples[0].txt'. Did you mean 'text'?"),
    ],
)
def test_mistakes_are_one_clear_line(change, message):
    with pytest.raises(UserError) as caught:
        StudyConfig.of(changed(**change), where="study.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@each(
    "text", ["a: [", "just words", "", "- 1", "seeds: 2\nseeds: 3", "adapt: {seed: 1, seed: 2}", "title: 2024-13-45"]
)
def test_an_invalid_study_file(tmp_path, text):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        StudyConfig.load(path)
    assert "study.yaml" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_study_file(tmp_path):
    with pytest.raises(UserError, match="No study file"):
        StudyConfig.load(tmp_path / "study.yaml")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(StudyConfig.model_fields)), VALUES)
def test_any_value_gives_a_study_or_a_user_error(key, value):
    try:
        StudyConfig.of(changed(**{key: value}))
    except UserError as error:
        assert "\n" not in str(error)


def test_the_resolved_study_can_be_read_again(tmp_path):
    config = StudyConfig.of(study(files(tmp_path / "data")))
    assert StudyConfig.of(config.resolved()) == config


def test_names_of_the_hub_may_have_a_dot(tmp_path):
    models = ["BAAI/bge-base-en-v1.5", "gpt-1.5", "here-v1.5", "./there", "a/b/c", "~/far"]
    (tmp_path / "here-v1.5").mkdir()
    teacher = {"label": "taught", "teacher": {"path": "BAAI/bge-base-en-v1.5"}}
    values = {
        "models": models,
        "methods": ["none"],
        "domains": [{"name": "d", "corpus": "c.v2"}],
        "distill": [teacher],
    }
    config = StudyConfig.of(values).relative_to(tmp_path)
    paths = [
        str(tmp_path / "here-v1.5"),
        str(tmp_path / "there"),
        str(tmp_path / "a/b/c"),
        str(Path("~/far").expanduser()),
    ]
    assert [model.path for model in config.models] == [*models[:2], *paths]
    assert config.distill[0].teacher.path == "BAAI/bge-base-en-v1.5"
    assert config.domains[0].corpus == [str(tmp_path / "c.v2")]


def test_sources_of_text_are_relative_to_the_study_file_or_on_the_hub(tmp_path, monkeypatch):
    """A folder of the same name in the working directory is not used."""
    typed, study = tmp_path / "typed", tmp_path / "study"
    (typed / "news").mkdir(parents=True)
    study.mkdir()
    monkeypatch.chdir(typed)
    text = ["hf:org/data-v1.5", "hf:wikitext:wikitext-2-raw-v1:validation", "news"]
    values = {"models": ["m"], "methods": ["none"], "general": text}
    values["domains"] = [{"name": "d", "corpus": text, "heldout": text}]
    config = StudyConfig.of(values).relative_to(study)
    for read in (config.domains[0].corpus, config.domains[0].heldout, config.general):
        assert read == [*text[:2], str(study / "news")]


def test_on_needs_no_quotes(tmp_path):
    """YAML 1.1 parses the bare word ``on`` as true."""
    path = tmp_path / "study.yaml"
    path.write_text("models: [m]\nmethods: [none, {name: tapter, on: task}]\ndomains: [{name: d, corpus: c}]\n")
    assert StudyConfig.load(path).methods[1].on == "task"


def test_a_resolved_search_can_be_read_again(tmp_path):
    search = {"finetune": {"epochs": [1, 2]}, "adapt": {"learning_rate": ["1e-4"]}}
    values = study(files(tmp_path / "data"), search=search)
    values["methods"].append({"name": "mlm", "label": "two", "search": {"x": [1], "adapt": {"mask_rate": [0.1]}}})
    config = StudyConfig.of(values)
    assert config.search.adapt == {"learning_rate": [1e-4]}
    assert config.methods[-1].search.parameters == {"x": [1]} and config.methods[-1].parameters == {}
    assert StudyConfig.of(config.resolved()) == config


SEEDS = st.none() | st.integers(1, 4) | st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


@settings(max_examples=30, deadline=None)
@given(seeds=SEEDS, adapt_seeds=SEEDS, search_seeds=SEEDS, first=st.integers(0, 9), distilled=st.booleans())
def test_no_seed_of_a_search_is_scored(seeds, adapt_seeds, search_seeds, first, distilled):
    values = {
        **{"models": ["m", "n"], "methods": ["none", "mlm"], "domains": [{"name": "d", "corpus": "c"}]},
        **{"adapt": {"seed": first}, "adapt_seeds": adapt_seeds, "search": {"seeds": search_seeds}},
        **({} if seeds is None else {"seeds": seeds}),
        **({"distill": [{"teacher": {"model": "m"}}]} if distilled else {}),
    }
    try:
        config = StudyConfig.of(values)
    except UserError as error:
        assert isinstance(search_seeds, list) and "is also scored" in str(error)
        return
    inputs = StudyInputs(config, {}, frozenset(), {}, None, {}, None, {}, {}, {}, {})
    trial = inputs.trial.config
    scored = {*config.seeds, *config.adapt_seeds}
    assert not set(trial.seeds) & set(scored if distilled else config.seeds) and not set(trial.adapt_seeds) & scored
    assert not set(trial.adapt_seeds) & set(trial.seeds)
    count = len(search_seeds) if isinstance(search_seeds, list) else search_seeds or len(config.seeds)
    assert len(trial.seeds) == count and StudyConfig.of(config.resolved()) == config
