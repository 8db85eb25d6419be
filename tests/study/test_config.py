"""The study file: short forms, defaults, relative paths, and a one-line error for every mistake."""

from __future__ import annotations

from pathlib import Path

import datasets
import pandas
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.bounds import MAX_SEED
from acclimate.base.errors import UserError
from acclimate.study.config import StudyConfig, section_types
from acclimate.study.graph import plan
from acclimate.study.inputs import StudyInputs, longest_text
from acclimate.study.method_inputs import read_method, read_methods
from acclimate.study.settings import TaskSpec
from acclimate.study.summary import limit_notes
from tests.cases import each
from tests.study.fakes import files, of_kind, study
from tests.study.fakes import read as read_inputs

TINY = {
    "models": ["m"],
    "methods": ["none", "mlm"],
    "domains": [{"name": "d", "corpus": "c.txt", "tasks": ["t/intent"]}],
}


def changed(**changes) -> dict:
    return {**TINY, **changes}


def task(**settings) -> dict:
    return {"name": "d", "corpus": "c", "tasks": [{"path": "t", **settings}]}


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


@pytest.mark.needs("selective", "tapter")
def test_files_among_parameters_and_searched_values_are_relative_to_the_study_file(tmp_path):
    for name in ("stop.txt", "other.txt", "words.txt"):
        (tmp_path / name).write_text("the")
    values = changed(
        methods=[
            {"name": "selective", "stop_words": "stop.txt"},
            {"name": "tapter", "search": {"stop_words": ["stop.txt", "other.txt", "english"]}},
            {"name": "mlm", "adapt": {"masking": "lexicon-first lexicon=words.txt"}},
        ],
        search={
            "adapt": {"masking": ["lexicon-first lexicon=words.txt", {"lexicon-first": {"lexicon": "other.txt"}}]}
        },
    )
    config = StudyConfig.of(values).relative_to(tmp_path)
    stop, other, words = (str(tmp_path / name) for name in ("stop.txt", "other.txt", "words.txt"))
    assert config.methods[0].parameters == {"stop_words": stop}
    assert config.methods[1].search.parameters["stop_words"] == [stop, other, "english"]
    assert config.methods[2].adapt["masking"] == {"lexicon-first": {"lexicon": words}}
    assert config.search.adapt["masking"] == [{"lexicon-first": {"lexicon": name}} for name in (words, other)]


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
        ({"adapt": {"precision": "fp8"}}, "'adapt.precision'"),
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
        ({"search": {"seeds": 0}}, "'search.seeds': give at least one seed, not 0"),
        ({"search": {"adapt": {"learning_rate": ["fast"]}}}, "'learning_rate' must be"),
        ({"methods": [{"name": "mlm", "search": {"adapt": {"mask_rate": [2]}}}]}, "'mask_rate' must be"),
        ({"methods": [{"name": "none", "adapt": {"learning_rate": 1e-4}}]}, "'none' is the base model"),
        ({"methods": [{"name": "none", "on": "task"}]}, "'none' is the base model"),
        ({"methods": [{"name": "none", "search": {"adapt": {"epochs": [1, 2]}}}]}, "'none' is the base model"),
        ({"other_tasks": [{"path": "t", "search": {"epochs": [1, 2]}}]}, "remove 'search'"),
        ({"samples": [{"txt": "hello"}]}, "unknown key 'samples[0].txt'. Did you mean 'text'?"),
        ({"adapt": {"learning_rate": float("inf")}}, "'adapt.learning_rate' must be a finite number"),
        ({"domains": [task(first="f", first_learning_rate=float("inf"))]}, "first_learning_rate' must be a finite"),
        ({"domains": [task(first_epochs=2)]}, "'first_epochs' needs a first task"),
        ({"domains": [task(limit_first=2)]}, "'limit_first' but no 'first'"),
        ({"domains": [task(negative={"a": 1})]}, "'domains[0].tasks[0].negative"),
        ({"methods": [{"name": "mlm", "adapt": {"learning_rate": float("inf")}}]}, "must be a finite number"),
        ({"seeds": [10**22]}, "seeds[0]: the number 10000000000000000000000 is too large"),
        ({"seeds": [10**12]}, "'seeds[0]' must be at most 4,294,967,295"),
        ({"adapt": {"seed": 10**12}}, "'adapt.seed' must be at most 4,294,967,295"),
        ({"seeds": "010"}, "not '010'"),
        ({"seeds": "1:30"}, "not '1:30'"),
        ({"adapt": {"steps": "1:30"}}, "'adapt.steps' must be an integer, not '1:30'"),
        ({"adapt": {"steps": True}}, "'adapt.steps': must be a number, not True"),
        ({"domains": [{"name": "d\0", "corpus": "c"}]}, "contains a NUL character"),
        ({"domains": [{"name": "d\n", "corpus": "c"}]}, "contains a control character"),
        ({"domains": [{"name": "", "corpus": "c"}]}, "'domains[0].name'"),
        ({"domains": [{"name": "d" * 3000, "corpus": "c"}]}, "has 3,000 characters"),
        ({"adapt": {"steps": 10**15}}, "'adapt.steps' must be at most 1,000,000,000"),
        ({"adapt": {"tokens": "1e21"}}, "'adapt.tokens' must be at most 1e+15"),
        ({"finetune": {"batch_size": 10**12}}, "'finetune.batch_size' must be at most 1,000,000"),
        ({"adapt": {"epochs": 1e299}}, "'adapt.epochs' must be at most 1,000,000"),
        ({"search": {"tolerance": float("inf")}}, "'search.tolerance' must be a finite number"),
        ({"methods": [{"lm": 3}]}, "method 'lm' expects named parameters, not 3"),
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


@given(st.sampled_from(sorted({*StudyConfig.model_fields, *section_types()})), VALUES)
def test_any_value_gives_a_study_or_a_user_error(key, value):
    try:
        StudyConfig.of(changed(**{key: value}))
    except UserError as error:
        assert "\n" not in str(error)


FULL = {
    **TINY,
    "domains": [task(epochs=1, limit_train=9, first="f", first_epochs=1, first_learning_rate=1e-4, repartition=0.5)],
    "methods": ["none", {"name": "dga", "contrast_weight": 0.5, "adapt": {"warmup": 0.1}}],
    "adapt": {"steps": 1, "learning_rate": 1e-4, "seed": 1, "max_gradient_norm": 0},
    "finetune": {"batch_size": 2, "weight_decay": 0.1},
    "seeds": [1, 2],
    "evaluate": {"documents": 3, "masked_texts": 1},
    "search": {"tolerance": 0.1, "seeds": 2, "finetune": {"epochs": [1, 2]}, "adapt": {"warmup": [0.1]}},
    "distill": [{"teacher": {"path": "p"}, "label": "l", "margin": 1, "epochs": 3, "search": {"scale": [0.1]}}],
}


def places(value, path=()):
    """The paths of all numbers in a study."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))
    elif isinstance(value, int | float):
        yield path


def replaced(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.needs("dga")
def test_absurd_numbers_are_refused_wherever_they_are():
    """In the study file, or when the parameters of the method are read; the line stays short."""
    assert read_method(StudyConfig.of(FULL).methods[1]).parameters["contrast_weight"] == 0.5
    for path in places(FULL):
        for absurd in (10**400, -(10**400), float("inf"), float("nan"), "9" * 500):
            with pytest.raises(UserError) as caught:
                read_method(StudyConfig.of(replaced(FULL, path, absurd)).methods[1])
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 400, (path, absurd)


def test_leading_zeros_and_colons_do_not_change_the_base(tmp_path):
    """YAML 1.1 reads 010 as 8 and 1:30 as 90."""
    path = tmp_path / "study.yaml"
    text = "models: [{name: 007, path: m}]\nmethods: [none]\ndomains: [{name: 1:30, corpus: c}]\nadapt: {steps: 010}\n"
    path.write_text(text)
    config = StudyConfig.load(path)
    assert (config.models[0].name, config.domains[0].name, config.adapt.steps) == ("007", "1:30", 10)
    for seeds in ("010", "1:30", "[1:30]"):
        path.write_text(f"{text}seeds: {seeds}\n")
        with pytest.raises(UserError, match="seeds"):
            StudyConfig.load(path)


def test_a_source_of_text_can_have_its_column_and_encoding(tmp_path):
    folder = files(tmp_path / "data")
    lines = [f"{n};größer {n}" for n in range(60)]
    (folder / "odd.csv").write_bytes("\n".join(["id;blurb", *lines]).encode("cp1252"))
    path = tmp_path / "study.yaml"
    odd = {"path": "data/odd.csv", "text_column": "blurb", "encoding": "cp1252"}
    values = study(folder, domains=[{"name": "cs", "corpus": [str(folder / "cs.txt"), odd], "heldout": odd}])
    path.write_text(yaml.safe_dump(values))
    config = StudyConfig.load(path)
    assert config.domains[0].heldout == [{**odd, "path": str(folder / "odd.csv")}]
    assert StudyConfig.of(config.resolved()) == config
    inputs = read_inputs(config.resolved())
    assert "größer 3" in list(inputs.corpora["cs"]) and len(inputs.heldout["cs"].texts) == 20
    values["domains"][0]["corpus"] = {**odd, "colum": "x"}
    with pytest.raises(UserError, match="has the keys path, text_column, encoding, not path"):
        read_inputs(values)


def test_texts_in_memory_are_the_text_of_a_study(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    folder = files(tmp_path / "data")
    texts = [f"cs document number {n} of many" for n in range(60)]
    forms = [pandas.Series(texts), pandas.DataFrame({"review": texts}), datasets.Dataset.from_dict({"text": texts})]
    configs = [
        StudyConfig.of(study(folder, domains=[{"name": "cs", "corpus": form}], general=forms[0])) for form in forms
    ]
    assert configs[0] == configs[1] == configs[2] == StudyConfig.of(configs[0].resolved())
    inputs = read_inputs(configs[0].resolved())
    assert {*inputs.corpora["cs"], *inputs.heldout["cs"].texts} == set(texts)


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
    assert config.sections["distill"][0].teacher.path == "BAAI/bge-base-en-v1.5"
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


FIRST = st.integers(0, 9) | st.just(MAX_SEED)
SEEDS = st.none() | st.integers(1, 4) | st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


@settings(max_examples=30, deadline=None)
@given(
    seeds=SEEDS,
    adapt_seeds=SEEDS,
    search_seeds=SEEDS,
    first=st.integers(0, 9) | st.just(MAX_SEED),
    distilled=st.booleans(),
)
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
    assert max(*config.adapt_seeds, *trial.seeds, *trial.adapt_seeds, 0) <= MAX_SEED


@pytest.mark.needs("prompt")
def test_an_adapter_that_a_method_cannot_train_is_refused_before_any_job():
    lora = {"name": "lm", "label": "lm with lora", "adapt": {"adapter": "lora r=4"}}
    config = StudyConfig.of(changed(methods=["none", "lm", lora, "prompt"]))
    assert config.methods[2].adapt == lora["adapt"] and read_methods(config).keys() == {
        "lm",
        "lm with lora",
        "prompt",
    }
    for changes, message in (
        (
            {"methods": ["none", "prompt"], "adapt": {"adapter": "lora"}},
            "Method 'prompt' does not work with an adapter",
        ),
        ({"methods": [{"name": "lm", "adapt": {"adapter": "lora rank=4"}}]}, "'rank'"),
    ):
        with pytest.raises(UserError, match=message):
            read_methods(StudyConfig.of(changed(**changes)))
    with pytest.raises(UserError, match=r"adapter_settings' is no key. Give it as adapter: lora r=8"):
        StudyConfig.of(changed(adapt={"adapter_settings": {"r": 4}}))


def test_a_task_is_a_file_with_columns_of_any_name(folder):
    rows = "".join(f"{'abc'[n % 3]},text {n}\n" for n in range(60))
    (folder / "reviews.csv").write_text(f"queue,title\n{rows}")
    (folder / "usual.csv").write_text(f"label,text\n{rows}")
    named = {"path": str(folder / "reviews.csv"), "text_column": "title", "label_column": "queue", "split_seed": 3}
    domain = {"name": "cs", "corpus": str(folder / "cs.txt")}
    jobs = {}
    for entry in (named, {"path": str(folder / "usual.csv"), "name": "reviews", "split_seed": 3}):
        inputs = read_inputs(study(folder, domains=[{**domain, "tasks": [entry]}]))
        task = inputs.tasks["cs", "reviews"].task
        assert (len(task.train), len(task.dev), len(task.test)) == (42, 6, 12)
        (note,) = limit_notes(inputs)
        assert "12 test rows and 6 dev rows were drawn" in note and "seed 3" in note
        jobs[entry["path"]] = [job.key for job in of_kind(plan(inputs), "finetune")]
    first, second = jobs.values()
    assert first == second and first  # the columns are no settings of fine-tuning, the rows are the same


def test_the_longest_text_is_named_by_its_setting():
    for changes, expected in (
        ({}, (128, "evaluate.max_length")),
        ({"adapt": {"max_length": 256}}, (256, "adapt.max_length")),
        ({"adapt": {"max_length": 32}, "evaluate": {"max_length": 64}}, (64, "evaluate.max_length")),
    ):
        assert longest_text(StudyConfig.of(changed(**changes)), {"max_length": 8}) == expected
