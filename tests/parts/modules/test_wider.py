"""Wider models: they start as the base model, only new units train, and they are saved as ordinary larger models."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.adapters import ADAPTERS, compare_logits
from acclimate.models.probe import attach
from tests.cases import each
from tests.kills import killed
from tests.tiny import TEXTS, save_tiny, tiny_model

PROBE = [np.arange(5, 25), np.arange(30, 40)]
SHORT = {"steps": 4, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}


def widen(kind, **settings):
    """A tiny model with more units, and the model without."""
    model = tiny_model(kind)
    plain = copy.deepcopy(model)
    attach(model)
    attach(plain)
    return ADAPTERS.read({"wider": settings}).insert(model, probe=PROBE), plain


def train(model):
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad:
            value.data += 0.1 * torch.randn_like(value)


@each(
    ("kind", "heads"),
    [
        *((kind, 0) for kind in ("albert", "bert", "gpt2", "modernbert", "phi3")),
        *((kind, 2) for kind in ("gemma3", "llama")),
    ],
)
def test_it_starts_as_the_base_model_and_becomes_a_larger_one(kind, heads):
    adapter, plain = widen(kind, units=6, heads=heads)
    model = adapter.model
    assert compare_logits(model, plain, adapter.probe)["relative"] < 1e-6
    train(model)
    assert compare_logits(model, plain, adapter.probe)["relative"] > 1e-3
    assert compare_logits(adapter.base(), plain, adapter.probe)["absolute"] == 0
    merged = adapter.merged()
    attach(merged)
    assert compare_logits(merged, model, adapter.probe)["relative"] < 1e-6
    # Original weights are unchanged parts of the new ones: of each block of rows, and of the columns.
    before, after = plain.state_dict(), merged.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        blocks = 2 if name.endswith(("Wi.weight", "gate_up_proj.weight")) else 1
        for old, new in zip(value.chunk(blocks), after[name].chunk(blocks), strict=True):
            assert torch.equal(old, new[tuple(slice(size) for size in old.shape)])
    larger = {name for name in before if before[name].shape != after[name].shape}
    assert len(larger) >= 2 and all(part not in name for name in larger for part in ("embed", "norm"))


def test_new_units_are_the_equation_of_the_paper():
    """F(x) = W2 gelu(W1 x + b1) + b2 + V2 gelu(V1 x + c1), with V2 = 0 at first."""
    adapter, plain = widen("bert", units=5)
    train(adapter.model)
    merged = adapter.merged()
    x = torch.randn(3, 32)
    layer = "bert.encoder.layer.1."
    old, new = (model.get_submodule(layer + "intermediate.dense") for model in (plain, merged))
    old_out, new_out = (model.get_submodule(layer + "output.dense") for model in (plain, merged))
    added = nn.functional.gelu(x @ new.weight[48:].T + new.bias[48:]) @ new_out.weight[:, 48:].T
    expected = old_out(nn.functional.gelu(old(x))) + added
    torch.testing.assert_close(new_out(nn.functional.gelu(new(x))), expected)
    # Each new unit is drawn like those of its layer, and writes nothing at first.
    fresh = widen("bert", units=2000)[0].merged()
    inner, outer = (fresh.get_submodule(layer + name).weight for name in ("intermediate.dense", "output.dense"))
    assert inner[48:].std().item() == pytest.approx(inner[:48].std().item(), rel=0.05)
    assert not outer[:, 48:].any() and outer[:, :48].any()


@pytest.mark.slow
def test_an_adaptation_resumes_and_any_program_loads_the_result(tmp_path):
    base = save_tiny("llama", tmp_path / "base")
    options = {"adapter": "wider units=8 heads=2", **SHORT}
    whole = adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "whole", **options)
    with killed(3):
        adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "cut", save_every=2, **options)
    checkpoint = load_file(tmp_path / ".cut.work" / "steps" / "checkpoint-2" / "model.safetensors")
    assert checkpoint and all(name.endswith(".added") for name in checkpoint)
    adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "cut", save_every=2, **options)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.config.intermediate_size == 56 and model.config.num_attention_heads == 8
    assert any(value[:, 48:].any() for name, value in first.items() if "down_proj" in name)
    assert whole.adapter["difference"]["relative"] < 1e-6 < 1e-4 < whole.adapter["change"]["relative"]
    card = (tmp_path / "whole" / "README.md").read_text()
    assert "`wider`, with 8 more units in 2 feed-forward blocks and 2 more heads per layer" in card
    assert not (tmp_path / "whole" / "adapter").exists()
    # The reference of a method is the base model, and an adapted model can be made wider again.
    again = adapt(
        tmp_path / "whole", Corpus.of(TEXTS), "kd", tmp_path / "again", **{**options, "adapter": "wider units=8"}
    )
    assert again.adapter["difference"]["relative"] < 1e-6


@each(
    ("kind", "settings", "message"),
    [
        ("bert", {"units": 0}, "adds nothing"),
        ("bert", {"units": -1}, "units must"),
        ("bert", {"rank": 3}, "'rank'"),
        ("bert", {"heads": 1}, "BertForMaskedLM cannot have more heads.*Remove heads"),
        ("gpt2", {"heads": 1}, "GPT2LMHeadModel cannot have more heads"),
        ("llama", {"heads": 1}, r"larger in this way: The hidden size \(32\) is not a multiple of the number"),
    ],
)
def test_what_does_not_fit_is_refused(kind, settings, message):
    with pytest.raises(UserError, match=message) as error:
        widen(kind, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.needs("dga")
def test_methods_with_gates_and_quantized_models_are_refused(tiny_bert, tmp_path):
    options = {"adapter": "wider", **SHORT}
    with pytest.raises(UserError, match="This method protects units of the model, which the adapter 'wider' cannot"):
        adapt(tiny_bert, Corpus.of(TEXTS), {"dga": {"importance": "random"}}, tmp_path / "out", **options)
    with pytest.raises(UserError, match="'wider' has no low-rank factors; use lora, or remove the rule 'refactor'"):
        adapt(tiny_bert, Corpus.of(TEXTS), "lm", tmp_path / "out", rules="refactor every=2", **options)
    with pytest.raises(UserError, match="'quantize'"):
        adapt(tiny_bert, Corpus.of(TEXTS), "lm", tmp_path / "out", **{**options, "adapter": "wider quantize=4bit"})
