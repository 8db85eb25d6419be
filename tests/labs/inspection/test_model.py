"""``acclimate inspect model``: facts, comparisons, abilities and memory."""

from __future__ import annotations

import importlib
import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM
from typer.testing import CliRunner

from acclimate import inspect_model
from acclimate.adaptation.method import lookup, names
from acclimate.base.errors import UserError
from acclimate.cli.main import app
from acclimate.data.tokenizing import tokenize
from acclimate.labs.inspection.model import estimate_memory
from acclimate.models.probe import attach
from tests.cases import each
from tests.models.test_encoders import SMALL
from tests.papers.test_contract import run
from tests.tiny import DECODERS, VOCABULARY, save_tiny, tiny_model, tiny_tokenizer

inputs_module = importlib.import_module("acclimate.adaptation.inputs")


@pytest.mark.needs("dga", "ewc", "memory")
def test_a_decoder(tmp_path):
    folder = save_tiny("qwen3", tmp_path / "model")
    run = CliRunner().invoke(app, ["inspect", "model", str(folder), "--out", str(tmp_path / "model.json")])
    assert run.exit_code == 0, run.output
    report = json.loads((tmp_path / "model.json").read_text())
    model = tiny_model("qwen3")
    size = sum(value.numel() for value in model.parameters())
    assert (report["class"], report["kind"], report["parameters"]) == ("Qwen3ForCausalLM", "causal", size)
    assert (report["layers"], report["heads"], report["key_heads"], report["positions"]) == (2, 4, 2, 128)
    assert report["tied_head"] == (model.lm_head.weight is model.model.embed_tokens.weight)
    assert report["checkpoint_dtype"] == "float32" and report["attention"]["used"] == "acclimate"
    assert report["gates"] == {"possible": True, "reason": "", "parts": ["H", "I", "O", "E"]}
    assert report["packing"]["possible"] and all(check["passed"] for check in report["checks"])
    assert {"lm", "ewc"} <= set(report["methods"]) and "mlm" not in report["methods"]
    assert "--dropout 0.1" in report["refused"]["dga"] and "--dropout 0.1" in " ".join(run.output.split())
    assert report["memory"]["training"]["full, AdamW"] == 16 * size and report["memory"]["length"] == 128
    for words in ("Qwen3ForCausalLM, a causal", "2 key heads", "texts that share a row", "8-bit AdamW"):
        assert words in " ".join(run.output.split())


def test_a_model_that_keeps_its_own_attention(tmp_path):
    config = AutoConfig.for_model("convbert", **{**SMALL, "vocab_size": len(VOCABULARY)}, embedding_size=32)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    report = inspect_model(tmp_path)
    assert report["attention"]["used"] == report["attention"]["own"] and report["attention"]["reason"]
    assert not any(report[ability]["possible"] for ability in ("gates", "packing", "padding"))
    assert report["padding"]["reason"] == "its outputs depend on padding" and report["gates"]["parts"] == []


def test_an_encoder_decoder(tmp_path):
    report = inspect_model(save_tiny("t5", tmp_path))
    assert report["kind"] == "seq2seq" and report["padding"]["possible"] and not report["packing"]["possible"]
    assert {"lm", "kd", "ewc"} <= set(report["methods"]) and not {"dga", "simcse"} & set(report["methods"])


@each("kind", ["llama", "gpt2", "bert", "phi3"])
def test_the_parameters_of_an_adapter_are_those_of_peft(kind):
    peft = pytest.importorskip("peft")
    model = tiny_model(kind)
    attach(model)
    memory = estimate_memory(model, 64)
    names = [
        name
        for name, module in model.base_model.named_modules(prefix=model.base_model_prefix)
        if isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
    ]
    made = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=names, fan_in_fan_out=kind == "gpt2"))
    assert memory["adapter"] == made.get_nb_trainable_parameters()[0]
    costs = memory["training"]
    assert costs["full, AdamW"] > costs["full, 8-bit AdamW"] and costs["LoRA"] > costs["QLoRA"]
    assert 0 < memory["checkpointed"] < memory["activations"]


@pytest.mark.needs("das", "dga", "tsdae", "adapter")
@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("mpnet", {}),
        *(
            pytest.param(kind, sizes, marks=pytest.mark.slow)
            for kind, sizes in (
                ("convbert", {"embedding_size": 32}),
                ("albert", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
                ("lfm2", {}),
                ("qwen3_5", {}),
                ("phi3", {}),
            )
        ),
    ],
)
def test_methods_are_listed_if_they_run_and_refused_before_any_work_if_not(kind, sizes, tmp_path, monkeypatch):
    """Before the text is tokenized and a missing head is trained; a quick run has the methods that need heads."""
    folder, quick = tmp_path / "model", kind == "mpnet"
    if kind in DECODERS or kind == "albert":
        save_tiny(kind, folder, **sizes)
    else:
        config = AutoConfig.for_model(kind, **{**SMALL, "vocab_size": len(VOCABULARY)}, **sizes)
        AutoModelForMaskedLM.from_config(config).base_model.save_pretrained(folder)  # without a head
        tiny_tokenizer().save_pretrained(folder)
    report = inspect_model(folder)
    works = []

    def work(*args, **kwargs):
        works.append(1)
        return tokenize(*args, **kwargs)

    monkeypatch.setattr(inputs_module, "tokenize", work)
    of_kind = {name for name in names() if report["kind"] in lookup(name).kinds and lookup(name).trains}
    assert of_kind == {name for name in (*report["methods"], *report["refused"]) if name != "none"}
    assert not quick or {"dga", "das", "adapter", "tsdae"} <= set(report["refused"])
    for name in sorted(of_kind & ({"dga", "adapter", "tsdae", "lm"} if quick else of_kind)):
        works.clear()
        try:
            run(folder, name, tmp_path / name, steps=3, head_tokens=40)
            assert name in report["methods"]
        except UserError as error:
            assert report["refused"].get(name) == str(error) and not works, name
