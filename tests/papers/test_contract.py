"""Contract of every registered method on the supported architectures; new methods are tested automatically."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY, Method, get, lookup, names
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.models.checkpoints import WEIGHTS
from acclimate.models.loading import dropout_rates, load_language_model
from acclimate.parts.objectives import View
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import installed
from tests.kills import counted, killed
from tests.papers.first_step import checked_steps
from tests.papers.shapes import ALIKE, OTHERS, marked
from tests.tiny import DECODERS, ENCODERS, TEXTS, save_tiny, tiny_model

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
SHORT = {"steps": 3, "batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}
HELD = Corpus.of(["the soup was not fresh", "a table of the score and the loss", "cold wine", "the model", "rude!"])
DIALOGUES, CITED = (Path(__file__).with_name(f"{name}.jsonl") for name in ("dialogues", "cited"))
TRIPLES, VECTORS = Path(__file__).with_name("triples.csv"), Path(__file__).with_name("entities.vec")
CHEAP = {
    "dga": {"importance_tokens": 200},
    "das": {"importance_tokens": 200},
    "der++": {"memory": 8},
    "ewc": {"tokens": 200},
    "adapter": {"size": 4},
    "corruption": {"documents": str(DIALOGUES), "split": "lines"},
    "detour": {"causal": 0.5},  # both phases in two or three steps
    "dask": {"triples": str(TRIPLES), "least": 2},
    "entity-vectors": {"vectors": str(VECTORS)},
    "experts": {"table": str(CITED), "lm_weight": 0.5},
    "hyper-prompt": {"length": 4, "components": 4},
    "mixda": {"gate_size": 8},
    "pairs": {"lm_weight": 0.5},
    "pivots": {"least": 2},
    "prompt": {"length": 4},
    "memory": {"entries": 300},
    "tapter": {"dimension": 8, "epochs": 2, "min_count": 2, "buckets": 5_000},
    "dapt+tapt": {"task_steps": 3},
    "selective": {"finetune_epochs": 1, "token_epochs": 2, "token_learning_rate": 1e-2},
}
"""Settings that make a method fast enough for tests."""
TAKES_TASK = ("fastdoc", "muppet", "pairs", "relations")
"""Methods that read the task of the run if nothing else is given."""
ROWS = [{"text": text, "label": ("no", "yes")[number % 2]} for number, text in enumerate(DOCUMENTS)]
TASK = Task.of("contract", ROWS[:20], ROWS[20:28], ROWS[28:])
SIMILAR = [["bert", "roberta", "xlm-roberta", "camembert", "electra"], ["distilbert", "albert"], ["modernbert"]]
"""Groups of architectures with similar layers."""
assert sorted(kind for group in SIMILAR for kind in group) == sorted(ENCODERS)
PAIRS = {(method, group[number % len(group)]) for number, method in enumerate(names()) for group in SIMILAR}
"""Pairs of method and architecture: each method with one architecture per group, in rotation."""
PAIRS |= {(method, kind) for method in installed(REGISTRY, ["mlm", "dga"]) for kind in ENCODERS}
QUICK = {
    (method, group[number % len(group)])
    for number, method in enumerate(name for name in names() if name not in OTHERS)
    for group in [SIMILAR[number % len(SIMILAR)]]
} | {("mlm", kind) for kind in ENCODERS}
"""Those of the quick suite: a method of each path with one architecture, and one method with all."""
PAIRS |= QUICK
REFUSED = {("dask", "modernbert")}
"""Pairs of which the method refuses the architecture by name."""
SINGLE_STAGE = [name for name in names() if lookup(name).trains and not get(name).stages()]
"""Methods with a single stage."""
STATEFUL = ("lm", "dga", "ewc", "memory", "relations", "mixda", "dask")
"""Those that differ in what a run must restore: nothing, gates, a rule, another model, drawn examples, new layers, and
what was seen of the target."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_tiny(kind, folder / kind) for kind in ENCODERS}


def task_of(method):
    """The task, for methods that read it."""
    return TASK if lookup(method).needs_task or method in TAKES_TASK else None


def run(model, method, out, **options):
    options = {**SHORT, "task": task_of(method), **options}
    return adapt(model, Corpus.of(DOCUMENTS), {method: CHEAP.get(method)}, out, **options)


def weights(folder):
    file = folder / "model.safetensors"
    return load_file(file if file.is_file() else folder / WEIGHTS)


def load(folder, method):
    """Load with plain transformers; for a method that declares this impossible, check that it fails."""
    if lookup(method).loads_without_acclimate:
        model, info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"]
        return model
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModelForMaskedLM.from_pretrained(folder)
    return load_language_model(folder).model


@pytest.mark.parametrize(
    ("method", "kind"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in sorted(PAIRS)],
)
def test_trains_saves_and_loads_without_acclimate(models, method, kind, tmp_path):
    if (method, kind) in REFUSED:
        with pytest.raises(UserError, match=f"'{method}' .* cannot"):
            run(models[kind], method, tmp_path / "out")
        return
    with checked_steps() as checked:
        result = run(models[kind], method, tmp_path / "out")
    trains = lookup(method).trains
    assert bool(checked) == trains
    assert result.steps == (3 * max(1, len(get(method).stages())) if trains else 0)
    assert bool(result.tokens) == trains
    model = load(tmp_path / "out", method)
    before, after = weights(models[kind]), weights(tmp_path / "out")
    assert before.keys() <= after.keys()
    assert before.keys() == after.keys() or not lookup(method).loads_without_acclimate
    assert all(value.isfinite().all() for value in after.values())
    changed = [name for name in after if name not in before or not torch.equal(before[name], after[name])]
    assert bool(changed) == trains
    if trains and lookup(method).loads_without_acclimate:
        assert any("embed" in name for name in changed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model(**tokenizer("the food", return_tensors="pt")).logits.isfinite().all()
    assert not list(tmp_path.glob(".out*")), "the working folder was not removed"


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        pytest.param(
            method, kind, marks=pytest.mark.slow if method in OTHERS and "causal" in lookup(method).kinds else ()
        )
        for method, kind in zip(names(), itertools.cycle(sorted(DECODERS)), strict=False)
    ],
)
def test_adapts_a_decoder_or_says_why_not(decoders, method, kind, tmp_path):
    cls, start = lookup(method), decoders[kind]
    if "causal" not in cls.kinds:
        with pytest.raises(UserError, match=f"Method '{method}' .*is for masked language models, but .*use .* lm"):
            run(start, method, tmp_path / "out", steps=1)
        assert not (tmp_path / "out").exists()
        return
    result = run(start, method, tmp_path / "out", steps=2, dropout=0.1)
    before, after = weights(start), weights(tmp_path / "out")
    assert before.keys() <= after.keys()
    assert all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(value, after[name]) for name, value in before.items()) == (
        cls.trains and method not in ("adapter", "mixda")
    )
    assert ("clm" in result.losses) == cls.trains
    if cls.loads_without_acclimate:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert dropout_rates(model) == dropout_rates(tiny_model(kind))
    else:
        with pytest.raises(OSError, match=r"model\.safetensors"):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        model = load_language_model(tmp_path / "out").model
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer("the food", return_tensors="pt")["input_ids"]
    assert model(input_ids=ids).logits.isfinite().all()


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=() if name in ("lm", "kd", "dga") else pytest.mark.slow) for name in names()],
)
def test_adapts_an_encoder_decoder_or_says_why_not(encoder_decoders, method, tmp_path):
    cls, start = lookup(method), encoder_decoders["t5" if len(method) % 2 else "bart"]
    if "seq2seq" not in cls.kinds:
        with pytest.raises(
            UserError, match=f"Method '{re.escape(method)}' .*a seq2seq one; use another method, such as lm"
        ):
            run(start, method, tmp_path / "out", steps=1)
        assert not (tmp_path / "out").exists()
        return
    result = run(start, method, tmp_path / "out", steps=2)
    before, after = weights(start), weights(tmp_path / "out")
    assert before.keys() == after.keys() and all(value.isfinite().all() for value in after.values())
    assert any(not torch.equal(value, after[name]) for name, value in before.items()) == cls.trains
    assert ("denoising" in result.losses) == cls.trains
    _, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_an_interrupted_run_of_an_encoder_decoder_resumes_to_identical_weights(encoder_decoders, tmp_path):
    run(encoder_decoders["bart"], "lm", tmp_path / "whole", steps=3)
    with killed(2):
        run(encoder_decoders["bart"], "lm", tmp_path / "cut", steps=3, save_every=1, heldout=HELD)
    with counted() as steps:
        run(encoder_decoders["bart"], "lm", tmp_path / "cut", steps=3, save_every=1, heldout=HELD)
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert steps == [2] and all(torch.equal(whole[name], cut[name]) for name in whole)


@pytest.mark.parametrize("method", installed(REGISTRY, ["dga", "das", "simcse"]))
def test_a_contrast_of_dropout_masks_needs_dropout(tiny_llama, method, tmp_path):
    with pytest.raises(UserError, match=r"--dropout 0\.1"):
        run(tiny_llama, method, tmp_path / "out", steps=1)


@pytest.mark.parametrize("option", [{"masking": "whole-word"}, {"mask_rate": 0.2}])
def test_masking_options_do_not_apply_to_a_decoder(tiny_llama, option, tmp_path):
    with pytest.raises(UserError, match=f"trained without masking; remove the option '{next(iter(option))}'"):
        run(tiny_llama, "lm", tmp_path / "out", steps=1, **option)


@pytest.mark.parametrize(
    "method", marked(name for name in names() if lookup(name).trains and name not in SINGLE_STAGE)
)
def test_the_seed_determines_the_weights(models, method, tmp_path):
    """For methods with several stages; the next test covers the others."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(models["bert"], method, tmp_path / name, seed=seed)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in STATEFUL else pytest.mark.slow) for name in SINGLE_STAGE]
)
def test_an_interrupted_run_resumes_to_identical_weights(models, method, tmp_path):
    """The same seed gives the same weights, also if held-out text is measured; another seed of ``lm`` gives others."""
    run(models["bert"], method, tmp_path / "whole", steps=4)
    options = {"steps": 4, "save_every": 2, "heldout": HELD, "heldout_every": 2}
    with killed(3):
        run(models["bert"], method, tmp_path / "cut", **options)
    assert not (tmp_path / "cut").exists()
    with counted() as steps:
        result = run(models["bert"], method, tmp_path / "cut", **options)
    assert steps == [2, 3]
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert result.tokens == read_json(tmp_path / "whole" / "acclimate.json")["result"]["tokens"]
    files = (tmp_path / name / "log.jsonl" for name in ("whole", "cut"))
    without, log = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    trained, measured = ([line for line in log if ("heldout" in line) is wanted] for wanted in (False, True))
    assert len(without) == 4 and [line["loss"] for line in without] == [line["loss"] for line in trained]
    assert [line["step"] for line in measured] == [0, 2, 4]
    terms = {name for line in trained for name in line.get("terms", {})} - {"clm"}  # of the detour, in training only
    for values in (line["heldout"] for line in measured):
        assert set(values["terms"]) == terms and all(map(math.isfinite, [values["loss"], *values["terms"].values()]))
    if method == "lm":  # all draw their random numbers in the same way
        run(models["bert"], method, tmp_path / "other", steps=4, seed=1)
        other = weights(tmp_path / "other")
        assert any(not torch.equal(whole[name], other[name]) for name in whole)


def test_each_method_takes_one_path():
    listed = [*ALIKE, *(name for alike in ALIKE.values() for name in alike)]
    assert len(set(listed)) == len(listed)


def test_unknown_names_and_invalid_values_are_explained():
    with pytest.raises(UserError, match="Did you mean 'mlm'"):
        get("mln")
    with pytest.raises(UserError, match="has no parameters"):
        get("mlm", temperature=1)
    for name in names():
        number = next((field for field in dataclasses.fields(lookup(name)) if isinstance(field.default, float)), None)
        if number is not None:
            with pytest.raises(UserError, match=f"Did you mean '{number.name}'"):
                get(name, **{f"{number.name}s": 1})
            with pytest.raises(UserError, match=number.name):
                get(name, **{number.name: "warm"})
            assert get(name, **{number.name: str(number.default)}) == get(name)


def test_the_page_on_methods_lists_the_fields_of_view():
    page = (ROOT / "docs" / "write-your-own-method.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(View):
        assert f"| `{field.name}` |" in page, field.name


def test_a_registered_method_works_without_other_edits(tiny_bert, tmp_path):
    from dataclasses import dataclass

    from acclimate.adaptation import method as registry

    @registry.register("frozen-embeddings", summary="for this test")
    @dataclass
    class Frozen(Method):
        loud: bool = False

        def prepare(self, run):
            run.model.get_input_embeddings().weight.requires_grad_(False)

    try:
        assert "frozen-embeddings" in registry.names()
        adapt(tiny_bert, Corpus.of(DOCUMENTS), "frozen-embeddings loud=yes", tmp_path / "out", **SHORT)
        before, after = (load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "out"))
        name = "bert.embeddings.word_embeddings.weight"
        assert torch.equal(before[name], after[name])
        other = "bert.encoder.layer.0.output.dense.weight"
        assert not torch.equal(before[other], after[other])
    finally:
        del registry.REGISTRY.entries["frozen-embeddings"]
