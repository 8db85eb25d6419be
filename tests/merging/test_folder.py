"""The output directory of a merge: chat files, card, manifest, repeated calls, and losses along an interpolation."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from acclimate import merge
from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.base.files import is_intact
from acclimate.base.options import build
from acclimate.cli import main as cli
from acclimate.data.documents import Corpus
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.merging.options import MergeOptions, read_method
from acclimate.merging.rules import linear
from acclimate.merging.weights import TYPES, Stored, write_weights
from tests.cases import each
from tests.tiny import TEXTS, decoder_tokenizer, save_tiny

TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
QUIET = {"progress": False}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """A base model, an adapted model and an instruction-tuned model, with random weights."""
    folder = tmp_path_factory.mktemp("private place")
    made = {name: save_tiny("llama", folder / name, seed) for seed, name in enumerate(("base", "adapted", "instruct"))}
    tokenizer = decoder_tokenizer("llama")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(made["instruct"])
    transformers.GenerationConfig(eos_token_id=[2, 7], max_length=9).save_pretrained(made["instruct"])
    return made


def manifest(folder: Path) -> dict:
    return json.loads((folder / "acclimate.json").read_text())


def call(monkeypatch, capsys, *words) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["acclimate", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, *capsys.readouterr()


def test_a_chat_vector_brings_template_and_generation_settings(models, tmp_path):
    result = merge(
        models["adapted"],
        {"chat-vector": {"instruct": models["instruct"]}},
        tmp_path / "chat",
        base=models["base"],
        **QUIET,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "chat")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<s>hi</s>"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "chat")
    assert model.generation_config.eos_token_id == [2, 7]
    assert model.generate(torch.tensor([[1, 9]])).shape[1] <= 9
    assert any("chat template and the generation settings" in note for note in result.notes)
    merge(models["adapted"], {"interpolation": {"alpha": 1}}, tmp_path / "plain", base=models["base"], **QUIET)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "plain").chat_template is None


def test_a_template_with_unknown_tokens_is_reported(models, tmp_path):
    instruct = shutil.copytree(models["instruct"], tmp_path / "instruct")
    tokenizer = decoder_tokenizer("llama")
    tokenizer.add_tokens(["<|turn|>"])
    tokenizer.chat_template = TEMPLATE.replace("<s>", "<|turn|>")
    tokenizer.save_pretrained(instruct)
    model = transformers.AutoModelForCausalLM.from_pretrained(instruct)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(instruct)
    result = merge(
        models["adapted"], {"chat-vector": {"instruct": instruct}}, tmp_path / "out", base=models["base"], **QUIET
    )
    assert any("chat template uses '<|turn|>'" in note for note in result.notes)
    assert any("1 fewer rows" in note for note in result.notes)


def test_vocabularies_that_differ_are_refused(models, tmp_path):
    base = shutil.copytree(models["base"], tmp_path / "base")
    file = base / "tokenizer.json"
    file.write_text(file.read_text().replace("</s>", "<end>"))
    settings_file = base / "tokenizer_config.json"
    settings_file.write_text(settings_file.read_text().replace("</s>", "<end>"))
    with pytest.raises(UserError, match=r"The token with the id 2 is '</s>' .* but '<end>'"):
        merge(models["adapted"], {"interpolation": {"alpha": 0.5}}, tmp_path / "out", base=base, **QUIET)


def test_settings_that_differ_are_reported(models, tmp_path):
    base = shutil.copytree(models["base"], tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5, "attention_dropout": 0.3}))
    result = merge(models["adapted"], {"interpolation": {"alpha": 0.5}}, tmp_path / "out", base=base, **QUIET)
    assert len(result.notes) == 1 and "rms_norm_eps" in result.notes[0]


def test_card_and_manifest(models, tmp_path):
    merge([models["adapted"], models["base"]], {"soup": {"weights": "3,1"}}, tmp_path / "soup", **QUIET)
    found = manifest(tmp_path / "soup")
    assert (
        found["settings"]["weights"] == [0.75, 0.25]
        and [source["role"] for source in found["sources"]] == ["model"] * 2
    )
    assert is_intact(tmp_path / "soup", "acclimate.json", "")
    card = ModelCard.load(tmp_path / "soup" / "README.md")
    assert card.data.pipeline_tag == "text-generation" and {"merge", "soup"} <= set(card.data.tags)
    assert "Wortsman et al., ICML 2022" in card.text and "0.75, 0.25" in card.text
    assert "AutoModelForCausalLM.from_pretrained('soup')" in card.text
    assert "private place" not in card.content and found["sources"][0]["files"] in card.text


def test_an_adapted_model_names_its_base(tiny_bert, tmp_path):
    """The base model is that of the manifest, and a merged model can be adapted and merged again."""
    options = {"steps": 1, "batch_size": 4, "max_length": 24, "precision": "fp32", **QUIET}
    adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "adapted", **options)
    assert not merge(tmp_path / "adapted", {"interpolation": {"alpha": 0.5}}, tmp_path / "half", **QUIET).notes
    assert manifest(tmp_path / "half")["sources"][1]["name"] == str(tiny_bert)
    adapt(tmp_path / "half", Corpus.of(TEXTS), "mlm", tmp_path / "more", **options)
    result = merge(tmp_path / "more", {"interpolation": {"alpha": 0.5}}, tmp_path / "again", base=tiny_bert, **QUIET)
    assert any("was not adapted from" in note for note in result.notes)
    with pytest.raises(UserError, match="needs the base model"):
        merge(save_tiny("bert", tmp_path / "bert"), {"interpolation": {"alpha": 0.5}}, tmp_path / "out", **QUIET)


def test_repeated_calls(models, tmp_path, monkeypatch):
    def run(**changes):
        method = {"interpolation": changes.pop("alpha", 0.5)}
        return merge(models["adapted"], method, tmp_path / "out", base=models["base"], **changes, **QUIET)

    first = run()
    weights = tmp_path / "out" / "model.safetensors"
    written = weights.stat().st_ino
    assert run() == first and weights.stat().st_ino == written
    with pytest.raises(UserError, match=r"another result; .*--overwrite"):
        run(alpha=0.25)
    run(alpha=0.25, overwrite=True)
    assert weights.stat().st_ino != written
    weights.write_bytes(b"damaged")
    with pytest.raises(UserError, match="not what was written there"):
        run(alpha=0.25)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not a result of the same kind"):
        merge(models["adapted"], {"interpolation": {"alpha": 0}}, tmp_path / "other", base=models["base"], **QUIET)


def test_a_result_that_is_not_finite_is_not_written(models, tmp_path):
    base = shutil.copytree(models["base"], tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][3] = torch.inf
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.norm\.weight is not finite in torch\.float32"):
        merge(models["adapted"], {"interpolation": {"alpha": 0.5}}, tmp_path / "out", base=base, **QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("texts")
    parts = {"domain": TEXTS[:5], "general": TEXTS[5:]}
    for name, some in parts.items():
        (folder / name).with_suffix(".txt").write_text("\n".join(some))
    return {name: folder / f"{name}.txt" for name in parts}


@pytest.mark.slow
def test_losses_along_an_interpolation(models, texts, tmp_path):
    given = {"base": models["base"], "alphas": [0.5], "max_length": 32, **texts, **QUIET}
    result = merge(models["adapted"], "interpolation", tmp_path / "path", **given)
    assert not result.has_model and not (tmp_path / "path" / "config.json").exists()
    assert sorted(path.name for path in (tmp_path / "path").iterdir()) == ["path.json", "path.png", "path.svg"]
    assert [row["alpha"] for row in result.path] == [0, 0.5, 1]
    assert json.loads((tmp_path / "path" / "path.json").read_text())["path"] == result.path
    half = merge(models["adapted"], {"interpolation": {"alpha": 0.5}}, tmp_path / "half", **given)
    assert half.path == result.path and half.has_model
    for row, folder in zip(result.path, (models["base"], tmp_path / "half", models["adapted"]), strict=True):
        for name, some in (("domain", TEXTS[:5]), ("general", TEXTS[5:])):
            expected = language_model_loss(folder, some, max_length=32)
            assert row[name]["nats"] == pytest.approx(expected["nats"], abs=1e-6)
            assert row[name]["bits_per_byte"] == pytest.approx(expected["bits_per_byte"], abs=1e-6)
            change = row[name]["change"]
            assert change["difference"] == pytest.approx(row[name]["nats"] - result.path[0][name]["nats"], abs=1e-6)
            assert change["low"] <= change["difference"] <= change["high"]
    card = (tmp_path / "half" / "README.md").read_text()
    assert "| 0.5 |" in card and "General text" in card
    assert merge(models["adapted"], "interpolation", tmp_path / "path", **given) == result
    assert "image/svg" not in card and "<svg" in (tmp_path / "path" / "path.svg").read_text()


def test_models_without_a_head_have_no_path(texts, tmp_path):
    a, base = (save_tiny("bert", tmp_path / name, seed) for seed, name in enumerate(("a", "base")))
    for folder in (a, base):
        transformers.AutoModel.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(UserError, match="no language-model head"):
        merge(a, "interpolation", tmp_path / "out", base=base, alphas=[0.5], **texts, **QUIET)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "base"]


def test_the_command(models, texts, tmp_path, monkeypatch, capsys):
    words = ("merge", "--method", "interpolation", "--model", models["adapted"], "--base", models["base"], "--quiet")
    path = ("--alphas", "0,0.5", "--domain", texts["domain"], "--general", texts["general"])
    code, out, err = call(monkeypatch, capsys, *words, *path, "--out", tmp_path / "path")
    assert code == 0, err
    assert "Domain text" in out and "General text" in out and "0.5" in out
    last = out.splitlines()[-1]
    assert last.startswith("Next, with an alpha of your choice: acclimate merge --method 'interpolation alpha=0.5' ")
    words = ("merge", "--method", "interpolation alpha=0.5", *words[3:])
    code, out, err = call(monkeypatch, capsys, *words, "--out", tmp_path / "half")
    assert code == 0 and out.startswith(f"{tmp_path / 'half'}: interpolation\n"), err


@each(
    ("given", "message"),
    [
        ({"method": "soup"}, "soup needs several models, not 1"),
        ({"method": "soup", "models": ["a", "b"], "base": "c"}, "'base' does not apply to soup"),
        ({"method": "soup weights=0,0", "models": ["a", "b"]}, "not all 0"),
        ({"method": {"soup": {"weights": [1]}}, "models": ["a", "b"]}, "1 weights for 2 models"),
        ({"method": {"interpolation": 1}, "models": ["a", "b"]}, "needs one --model, not 2"),
        ({"method": "interpolation"}, "needs --alphas, the shares to measure, or alpha"),
        ({"method": "interpolation alpha=2"}, "parameter 'alpha': .*less than or equal to 1"),
        ({"method": "interpolation", "alphas": "0,2"}, "'alphas' must be at most 1, not 2"),
        ({"method": "interpolation", "alphas": "0,x"}, "'alphas'"),
        ({"method": "interpolation", "alphas": []}, "'alphas' must not be empty"),
        ({"method": "interpolation", "alphas": [1], "domain": "d"}, "give --domain and --general"),
        ({"method": "interpolation alpha=1", "domain": "d"}, "only read with --alphas"),
        ({"method": "chat-vector"}, "'chat-vector' needs the parameter 'instruct'"),
        ({"method": "chat-vector instruct=i density=0.1"}, "Unknown parameter of .* 'chat-vector' 'density'"),
        ({"method": "ties density=0", "models": ["a", "b"]}, "parameter 'density': .*greater than 0"),
        ({"method": "sup"}, "Did you mean 'soup'"),
        ({"method": "soup", "models": []}, "'models' must not be empty"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        read_method(build(MergeOptions, **{"models": "a", "out": "out", **given}))


@each(
    ("flags", "message"),
    [
        (("--method", "ties", "--density", "0.3"), "Give it with the method: --method 'ties density=0.3'."),
        (("--weight=1,2", "--method", "ties trim=model"), "--method 'ties trim=model weights=1,2'."),
        (("--method", "soup", "--trim", "model"), "It is a parameter of ties: --method 'ties trim=VALUE'."),
        (("--method", "soup", "--basis", "x"), "Did you mean --base?"),
    ],
)
def test_a_flag_that_is_a_parameter_is_refused_with_the_new_spelling(flags, message, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "merge", *flags, "--model", "a", "--out", "o")
    assert code == 2 and err.strip().endswith(message), err


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_tensors_of_any_type_and_shape_are_written_as_safetensors_reads_them(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    names = st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__")
    kinds = st.tuples(st.sampled_from(sorted(TYPES)), st.lists(st.integers(0, 4), max_size=3).map(tuple))
    made = data.draw(st.dictionaries(names, kinds, min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randint(0, 100, shape, generator=generator).to(TYPES[code]) for name, (code, shape) in made.items()
    }
    stored = {name: Stored(folder, name, value.dtype, tuple(value.shape)) for name, value in tensors.items()}
    write_weights(folder, stored, tensors.__getitem__, data.draw(st.integers(1, 200)))
    files = [*folder.glob("*.safetensors")]
    found = {name: value for file in files for name, value in load_file(file).items()}
    assert found.keys() == tensors.keys()
    assert all(
        value.dtype == tensors[name].dtype and torch.equal(value, tensors[name]) for name, value in found.items()
    )
    if len(files) > 1:
        index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        assert all(name in load_file(folder / file) for name, file in index.items())


@settings(max_examples=40, deadline=None)
@given(
    factors=st.lists(st.floats(-3, 3).map(lambda value: round(value, 2)), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_linear_combinations_equal_the_sum(factors, seed):
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(7, generator=generator).bfloat16() for _ in factors]
    copies = [value.clone() for value in values]
    if not any(factors):
        return
    found = linear(factors)("w", [lambda value=value: value for value in values])
    expected = sum(factor * value.double().numpy() for factor, value in zip(factors, values, strict=True))
    np.testing.assert_allclose(found.double().numpy(), expected, atol=1e-5)
    assert all(torch.equal(value, copy) for value, copy in zip(values, copies, strict=True))  # sources are not changed
