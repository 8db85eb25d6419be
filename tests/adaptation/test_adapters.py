"""Adaptations that train a low-rank adapter instead of the weights."""

from __future__ import annotations

import json

import peft  # noqa: F401 (before the garbage collector is frozen, see conftest.py)
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get, lookup, names
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.engine.callbacks import is_complete
from acclimate.models.adapters import ADAPTER_FOLDER
from tests.cases import each
from tests.kills import counted, killed
from tests.papers.shapes import OTHERS
from tests.papers.test_contract import CHEAP, task_of
from tests.tiny import TEXTS, save_tiny

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
SHORT = {"steps": 2, "batch_size": 8, "max_length": 24, "precision": "fp32", "progress": False}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_tiny(kind, folder / kind) for kind in ("bert", "llama", "albert")}


def run(model, method, out, adapter="lora r=4", **options):
    options = {**SHORT, **options}
    return adapt(model, Corpus.of(DOCUMENTS), method, out, adapter=adapter, **options)


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OTHERS and not lookup(name).without_adapter else ())
        for name in names()
    ],
)
def test_every_method_trains_an_adapter_or_says_why_not(models, method, tmp_path):
    kind = lookup(method)
    given, options = {method: CHEAP.get(method)}, {"task": task_of(method)}
    if kind.without_adapter:
        with pytest.raises(UserError, match=f"Method '{method}' does not work with an adapter, since it trains"):
            run(models["bert"], given, tmp_path / "out", **options)
        return
    result = run(models["bert"], given, tmp_path / "out", **options)
    # The adapter of the last of several stages fits the model of the stage before, which is gone.
    assert (tmp_path / "out" / ADAPTER_FOLDER).exists() == (not get(method).stages())
    assert result.adapter["difference"]["relative"] < 1e-5
    if kind.loads_without_acclimate:
        before, after = weights(models["bert"]), weights(tmp_path / "out")
        assert before.keys() == after.keys()
        changed = {name for name in after if not torch.equal(before[name], after[name])}
        assert changed and all(name.startswith("bert.encoder.layer") and "weight" in name for name in changed)


@pytest.mark.parametrize(
    ("kind", "adapter", "method"),
    [
        pytest.param("llama", "pissa", "lm", marks=pytest.mark.slow),
        pytest.param("bert", "dora", "kd", marks=pytest.mark.slow),
        ("bert", "codyra", "lm"),
    ],
)
def test_a_killed_run_resumes_to_identical_weights(models, tmp_path, kind, adapter, method):
    """Its checkpoints hold the adapter alone, and writing intermediate models does not disturb it."""
    run(models[kind], method, tmp_path / "whole", adapter, steps=5)
    options = {"steps": 5, "save_every": 2, "keep_steps": (0, 2)}
    with killed(3):
        run(models[kind], method, tmp_path / "cut", adapter, **options)
    checkpoint = tmp_path / ".cut.work" / "steps" / "checkpoint-2"
    assert is_complete(checkpoint) and all(".lora_" in name for name in weights(checkpoint))
    with counted() as steps:
        run(models[kind], method, tmp_path / "cut", adapter, **options)
    assert steps == [2, 3, 4]
    whole, cut = (weights(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    start, first, second = (weights(at) for at in (models[kind], *sorted((tmp_path / "cut").glob("step-*"))))
    for name in start:
        torch.testing.assert_close(first[name], start[name], atol=1e-6, rtol=1e-6)
    assert any((second[name] - start[name]).abs().max() > 1e-4 for name in start)
    assert (tmp_path / "cut" / "step-000002" / ADAPTER_FOLDER / "adapter_config.json").is_file()


def test_components_that_are_shrunk_to_zero_leave_the_base_model(models, tmp_path):
    """A penalty far above what a step can move takes every component away once the dense part is over."""
    for dense, left in ((0.0, 0), (0.9, 48)):
        settings = {"r": 4, "sparsity": 1e6, "dense": dense}
        result = run(models["bert"], "lm", tmp_path / f"{dense}", {"codyra": settings})
        assert result.adapter["place"] == f"on 12 layers, {left} of 48 components"
        before, after = weights(models["bert"]), weights(tmp_path / f"{dense}")
        assert all(torch.equal(before[name], after[name]) for name in before) == (not left)


@pytest.mark.needs("dga")
def test_dga_measures_the_base_model_and_protects_it(models, tmp_path, monkeypatch):
    """On a decoder with grouped keys; heads of importance one keep their weights to the bit."""
    method, options = "dga importance_tokens=200", {"dropout": 0.1}
    run(models["llama"], method, tmp_path / "full", None, **options)
    run(models["llama"], method, tmp_path / "lora", **options)
    full, lora = (read_json(tmp_path / name / "importance.json") for name in ("full", "lora"))
    assert full == lora and any(value > 0 for layer in full["parts"]["H"]["protection"] for value in layer)
    monkeypatch.setattr(
        "acclimate.papers.dga.method.normalize_importance", lambda values, protect: torch.ones_like(values)
    )
    run(models["llama"], method, tmp_path / "all", **options)
    before, after = weights(models["llama"]), weights(tmp_path / "all")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "mlp" in name}


def test_manifest_card_and_folder_say_what_trained(models, tmp_path, capsys):
    result = run(models["llama"], "lm", tmp_path / "out", "lora r=2", progress=True)
    said = capsys.readouterr()
    assert "Learning rate 0.001: 10 times that of the method" in said.out + said.err
    assert "Adapter: lora on 14 layers" in said.out + said.err
    manifest = read_json(tmp_path / "out" / "acclimate.json")
    assert manifest["learning_rate"] == 1e-3
    chosen = {"r": 2, "alpha": 4, "dropout": 0.0, "targets": [], "quantize": None, "partial": False}
    assert manifest["adapter"] == {"name": "lora", **chosen}
    assert manifest["result"]["adapter"] == json.loads(json.dumps(result.adapter))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "An adapter (`lora`, rank 2, alpha 4, " in card and "in the folder `adapter`" in card
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert not [name for name in model.state_dict() if "lora" in name]
    with counted() as steps:
        again = run(models["llama"], "lm", tmp_path / "out", {"lora": {"r": 2}})
    assert steps == [] and again.adapter == json.loads(json.dumps(result.adapter))
    with pytest.raises(UserError, match="holds another adaptation"):
        run(models["llama"], "lm", tmp_path / "out", "dora r=2")


def test_four_bits_train_resume_and_merge_into_the_original_weights(models, tmp_path):
    pytest.importorskip("bitsandbytes")
    method, options = "dga importance_tokens=200", {"adapter": "lora r=4 quantize=4bit", "steps": 4, "save_every": 2}
    whole = run(models["bert"], method, tmp_path / "whole", **options)
    with killed(3):
        run(models["bert"], method, tmp_path / "cut", **options)
    cut = run(models["bert"], method, tmp_path / "cut", **options)
    assert cut.adapter == whole.adapter
    assert whole.adapter["difference"]["relative"] < 1e-5 < 1e-3 < whole.adapter["quantization"]["relative"]
    first, second = (weights(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    base = weights(models["bert"])
    assert all(torch.equal(base[name], first[name]) for name in base if "encoder.layer" not in name)
    assert "weights in four bits" in (tmp_path / "whole" / "README.md").read_text()


@pytest.mark.needs("dga")
@each(
    ("options", "message"),
    [
        ({"adapter": "lora rank=3"}, "'rank'"),
        ({"adapter_settings": {"r": 3}}, "'adapter_settings' is no option. Give it as adapter: lora r=8"),
        ({"adapter": "pissa quantize=4bit"}, "must not be quantized"),
        ({"adapter": "lore"}, "Did you mean 'lora'"),
        ({"adapter": "dora", "method": "dga importance=random"}, "'dora' cannot"),
        ({"method": "dga importance=random mask_on=gradient"}, "mask_on=update"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(models, tmp_path, options, message):
    with pytest.raises(UserError, match=message) as error:
        run(models["bert"], options.pop("method", "lm"), tmp_path / "out", **options)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
