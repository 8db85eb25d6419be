"""Low-rank adapters in a model, against peft by itself and explicit products of matrices."""

from __future__ import annotations

import copy
import math
import sys

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from acclimate.base.errors import UserError
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine, make_reference
from acclimate.models.adapters import ADAPTERS, compare_logits, warn_of_export
from acclimate.models.encoding import encode
from acclimate.models.families import language_head
from acclimate.models.gates import gate_units
from acclimate.models.kinds import kind_of
from acclimate.models.loading import load_language_model
from acclimate.models.lora import LowRankAdapter
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import Distillation, LanguageModelling
from acclimate.parts.updates import SoftMask, parameter_groups
from tests.cases import each
from tests.tiny import TEXTS, decoder_tokenizer, save_tiny, tiny_model, tiny_tokenizer

PROBE = [np.arange(5, 25), np.arange(30, 40)]


LOW_RANK = [
    name for name in ADAPTERS.names() if issubclass(ADAPTERS.lookup(name), LowRankAdapter) and name != "codyra"
]


def with_adapter(kind: str, name: str = "lora", **settings):
    """A tiny model with attached attention and an adapter of rank 4, the unchanged model, and the attention layers."""
    model = tiny_model(kind)
    plain, layers = copy.deepcopy(model), attach(model)
    attach(plain)
    return ADAPTERS.make(name, **{"r": 4, **settings}).insert(model, probe=PROBE), plain, layers


def train(adapter: LowRankAdapter) -> None:
    """Move all trained parameters, as a training would."""
    torch.manual_seed(1)
    for value in adapter.model.parameters():
        if value.requires_grad:
            value.data += 0.05 * torch.randn_like(value)


@each(
    ("kind", "name"),
    [
        *zip(["bert", "llama"] * 4, LOW_RANK, strict=True),
        ("llama", "lora"),
        ("llama", "dora"),
        ("gpt2", "pissa"),
        ("gpt2", "soma"),
        ("bert", "codyra"),
        ("gpt2", "codyra"),
    ],
)
def test_starts_as_the_base_model_and_merges_to_what_was_trained(tmp_path, kind, name):
    adapter, plain, _ = with_adapter(kind, name)
    model = adapter.model
    assert type(model) is type(plain)
    assert compare_logits(model, plain, adapter.probe)["absolute"] < 1e-5
    assert all(".lora_" in name for name, value in model.named_parameters() if value.requires_grad)
    train(adapter)
    assert compare_logits(model, plain, adapter.probe)["relative"] > 1e-3
    merged = adapter.merged()
    assert compare_logits(merged, model, adapter.probe)["absolute"] < 1e-5
    assert merged.state_dict().keys() == plain.state_dict().keys()
    base = {name.replace(".base_layer", ""): value for name, value in model.named_parameters()}
    assert all(torch.equal(base[name], value) for name, value in plain.named_parameters())
    # What is kept next to the model loads with peft alone.
    adapter.save(tmp_path / "adapter", "base")
    loaded = peft.PeftModel.from_pretrained(tiny_model(kind), tmp_path / "adapter").eval()
    for ids in adapter.probe:
        with torch.no_grad():
            found = loaded(input_ids=ids[None]).logits[0]
            wanted = language_head(model)(encode(model, ids[None], torch.zeros_like(ids[None])))[0]
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@each(("kind", "name"), [("bert", "soma"), ("gpt2", "soma"), ("llama", "mica"), ("llama", "pissa")])
def test_components_of_the_weights_are_where_they_train(kind, name):
    """PiSSA trains the largest components of each weight, SoMA the smallest; MiCA writes into their directions."""
    adapter, plain, _ = with_adapter(kind, name)
    for place, layer in adapter.layers.items():
        weight = plain.get_submodule(place).weight.detach().double()
        weight = (weight.T if kind == "gpt2" else weight).numpy()
        left, values, right = np.linalg.svd(weight, full_matrices=False)
        chosen = slice(4) if name == "pissa" else slice(-4, None)
        a, b = (factor["default"].weight for factor in (layer.lora_A, layer.lora_B))
        if name == "mica":
            assert not a.any() and not b.requires_grad and a.requires_grad
            assert np.allclose(np.abs(left[:, chosen].T @ b.detach().numpy()), np.eye(4), atol=1e-4)
            continue
        part = (left[:, chosen] * values[chosen]) @ right[chosen]
        product = (b @ a).detach().numpy() * layer.scaling["default"]
        assert np.allclose(product, part, atol=1e-6)
        assert np.allclose((a @ a.T).detach().diagonal(), values[chosen], atol=1e-5), "both factors share each value"


@each(("kind", "layout"), [("bert", "padded"), ("bert", "packed"), ("llama", "padded"), ("llama", "packed")])
def test_a_step_is_that_of_plain_peft(kind, layout):
    adapter, _, _ = with_adapter(kind)
    train(adapter)
    model = adapter.model
    tokenizer = decoder_tokenizer() if kind == "llama" else tiny_tokenizer()
    rows = [np.asarray(tokenizer(text)["input_ids"]) for text in TEXTS]
    batches = Collator.of(tokenizer, RandomMasking(0.3), kind_of(model), 10_000, layout)(
        rows, np.random.default_rng(0)
    )
    assert (len(batches[0].text) < len(TEXTS)) == (layout == "packed")
    term = "clm" if kind == "llama" else "mlm"
    loss = Engine(model, [LanguageModelling()]).step(batches)[term]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(adapter.layers))
    other = peft.get_peft_model(tiny_model(kind), config).eval()
    state = {f"base_model.model.{name}": value for name, value in model.state_dict().items()}
    assert not other.load_state_dict(state, strict=False).unexpected_keys
    total, count = torch.zeros(()), 0
    for batch in batches:
        for number in range(batch.texts):
            here = batch.text == number
            logits = other(input_ids=batch.masked[here][None]).logits[0]
            labels = batch.labels[here]
            total = total + nn.functional.cross_entropy(logits[labels >= 0], labels[labels >= 0], reduction="sum")
            count += int((labels >= 0).sum())
    (total / count).backward()
    assert loss.item() == pytest.approx((total / count).item(), rel=1e-5)
    for name, value in model.named_parameters():
        expected = other.get_parameter(f"base_model.model.{name}").grad
        assert (value.grad is None) == (expected is None)
        if value.grad is not None:
            torch.testing.assert_close(value.grad, expected, atol=1e-6, rtol=1e-4)


def soft_mask(adapter, layers, importance):
    """Apply a soft mask on the heads to an adapter; return the factor of the change of each weight, by layer name."""
    rule = SoftMask({"H": layers}, {"H": importance})
    adapter.mask(rule.delta_factors())
    names = {id(layer.get_base_layer().weight): name for name, layer in adapter.layers.items()}
    factors = {names[id(weight)]: factor for weight, factor in rule.scaled if id(weight) in names}
    assert len(factors) in (4, 8)  # of two layers: a fused layer and o, or q, k, v and o
    return factors


@each(
    ("kind", "name"),
    [("llama", "lora"), ("llama", "pissa"), ("bert", "rslora"), ("modernbert", "lora"), ("gpt2", "lora")],
)
def test_a_soft_mask_scales_the_change_of_the_weights(tmp_path, kind, name):
    adapter, plain, layers = with_adapter(kind, name)
    importance = torch.rand(len(layers), 4)
    importance[0, 1] = 1.0
    factors = soft_mask(adapter, layers, importance)
    train(adapter)
    merged = adapter.merged()
    assert compare_logits(merged, adapter.model, adapter.probe)["absolute"] < 1e-5
    for place, layer in adapter.layers.items():
        change = sum(layer.get_delta_weight(part) for part in layer.lora_A).detach()
        factor = factors.get(place, torch.ones(()))
        before, after = plain.get_submodule(place).weight, merged.get_submodule(place).weight
        torch.testing.assert_close(after, before + factor * change, atol=1e-6, rtol=1e-5)
        if name != "pissa":
            untouched = torch.broadcast_to(factor == 0, before.shape)
            assert torch.equal(after[untouched], before[untouched])
    adapter.save(tmp_path / "adapter", "base")
    loaded = peft.PeftModel.from_pretrained(tiny_model(kind), tmp_path / "adapter").merge_and_unload()
    for (place, found), wanted in zip(loaded.named_parameters(), merged.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5, msg=place)


def test_weights_of_components_are_shrunk_by_proximal_steps_after_the_dense_part():
    """w = sign(w) max(|w| - sparsity x learning rate, 0) after the step of the optimizer, entry by entry."""
    adapter, _, _ = with_adapter("bert", "codyra", sparsity=5.0, dense=0.5)
    rule = adapter.update_rule()
    assert set(rule.learning_rate_factors().values()) == {20.0} and len(rule.weights) == len(adapter.layers)
    groups = parameter_groups(adapter.model, 0.01, 0.0, rule.learning_rate_factors())
    optimizer = torch.optim.SGD(groups, lr=0.01)
    torch.manual_seed(0)
    for progress in (0.2, 0.5):
        expected = {}
        for name, value in adapter.model.named_parameters():
            if value.requires_grad:
                value.grad = torch.randn_like(value)
                moved = (value - (0.2 if name in rule.weights else 0.01) * value.grad).tolist()
                if name in rule.weights and progress == 0.5:
                    moved = [math.copysign(max(abs(one) - 5.0 * 0.2, 0.0), one) for one in moved]
                expected[name] = torch.tensor(moved)
        rule.progress = progress
        rule.step(optimizer, optimizer.step)
        for name, values in expected.items():
            torch.testing.assert_close(adapter.model.get_parameter(name).detach(), values)
    left = sum(int((values != 0).sum()) for values in rule.weights.values())
    assert 0 < left < 4 * len(rule.weights)
    assert adapter.place == f"on 12 layers, {left} of 48 components"
    with pytest.raises(UserError, match="weighs its components"):
        adapter.factors()


def test_a_component_of_weight_zero_is_no_part_of_the_merged_model():
    adapter, plain, _ = with_adapter("llama", "codyra")
    train(adapter)
    for layer in adapter.layers.values():
        layer.lora_A["default"].component_weights.data[1:] = 0
    merged = adapter.merged()
    for name, layer in adapter.layers.items():
        change = merged.get_submodule(name).weight - plain.get_submodule(name).weight
        a, b = (factor["default"].weight.detach() for factor in (layer.lora_A, layer.lora_B))
        weight = layer.lora_A["default"].component_weights[0].item()
        torch.testing.assert_close(change, 2 * weight * torch.outer(b[:, 0], a[0]), atol=1e-6, rtol=1e-4)


@each("kind", ["llama", "bert"])
def test_full_importance_leaves_the_weights_as_they_were(kind):
    adapter, plain, layers = with_adapter(kind)
    factors = soft_mask(adapter, layers, torch.ones(len(layers), 4))
    train(adapter)
    merged = adapter.merged()
    for place in adapter.layers:
        same = torch.equal(plain.get_submodule(place).weight, merged.get_submodule(place).weight)
        assert same == (place in factors)


def test_gradients_under_a_soft_mask_are_those_of_the_scaled_change():
    """dL/dA = s B^T (f o G) and dL/dB = s (f o G) A^T, where G = dL/dW at the merged weights."""
    adapter, _, layers = with_adapter("llama")
    factors = soft_mask(adapter, layers, torch.rand(len(layers), 4))
    train(adapter)
    ids = adapter.probe[0][None]
    adapter.model(input_ids=ids, labels=ids).loss.backward()
    merged = adapter.merged().requires_grad_(True)
    merged(input_ids=ids, labels=ids).loss.backward()
    for place, layer in adapter.layers.items():
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        scaled = layer.scaling["default"] * factors.get(place, 1) * merged.get_submodule(place).weight.grad
        torch.testing.assert_close(a.grad, b.detach().T @ scaled, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(b.grad, scaled @ a.detach().T, atol=1e-6, rtol=1e-4)


def test_a_soft_mask_needs_an_additive_change():
    adapter, _, layers = with_adapter("llama", "dora")
    importance = {"H": torch.zeros(len(layers), 4)}
    with pytest.raises(UserError, match="'dora' cannot"):
        adapter.mask(SoftMask({"H": layers}, importance).delta_factors())
    with pytest.raises(UserError, match="mask_on=update"):
        SoftMask({"H": layers}, importance, on="gradient").delta_factors()


def test_gates_on_a_layer_apply_to_its_adapter_too():
    model = tiny_model("bert")
    layers = attach(model)
    units = gate_units(model, layers, ["O"])["O"]
    adapter = ADAPTERS.read("lora targets=output.dense").insert(model, probe=PROBE)
    ids = torch.arange(5, 25)[None]
    zero = {"O": torch.zeros(len(layers), 1, units[0].units)}

    def states(gates):
        with torch.no_grad():
            return encode(model, ids, torch.zeros_like(ids), gates)

    before, silent = states(None), states(zero)
    for name, layer in adapter.layers.items():
        if "attention" not in name:
            nn.init.normal_(layer.lora_B["default"].weight)
    assert not torch.allclose(states(None), before)
    assert torch.equal(states(zero), silent)


@each("name", ["lora", "pissa"])
def test_the_reference_is_the_base_model_and_shares_its_weights(name):
    model = tiny_model("bert")
    attach(model)
    plain = copy.deepcopy(model)
    reference = make_reference([Distillation()], model, shared=True)
    adapter = ADAPTERS.make(name, r=4).insert(model, probe=PROBE)
    train(adapter)
    assert compare_logits(reference, plain, adapter.probe)["absolute"] == 0
    mine = {value.data_ptr() for value in model.parameters()}
    assert all(value.data_ptr() in mine and not value.requires_grad for value in reference.parameters())


def test_an_adapter_under_bfloat16_trains_the_float32_factors():
    adapter, _, _ = with_adapter("bert")
    rows = [np.asarray(tiny_tokenizer()(text)["input_ids"]) for text in TEXTS]
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), kind_of(adapter.model), 10_000)
    batches = collator(rows, np.random.default_rng(0))
    gradients = []
    for precision in ("fp32", "bf16"):
        Engine(adapter.model, [LanguageModelling()], precision).step(batches)
        found = {name: value.grad for name, value in adapter.model.named_parameters() if value.grad is not None}
        assert found and all(".lora_" in name and value.dtype == torch.float32 for name, value in found.items())
        gradients.append(torch.cat([value.flatten() for value in found.values()]))
        adapter.model.zero_grad()
    assert nn.functional.cosine_similarity(*gradients, dim=0) > 0.99


@each(
    ("name", "settings", "message"),
    [
        ("lora", {"rank": 4}, "parameter of adapter 'lora' 'rank'"),
        ("lora", {"r": 0}, "r must be"),
        ("lora", {"alpha": -1}, "alpha must be"),
        ("lora", {"dropout": 1}, "dropout of an adapter"),
        ("orthogonal", {"r": 3}, "even rank"),
        ("lora", {"targets": "q_proj,nothing"}, "named 'nothing'; there are .*q_proj"),
        ("lora", {"targets": "lm_head"}, "named 'lm_head'"),
        ("pissa", {"r": 17}, "r=17 is more than 16, the rank of the weights"),
        ("lora", {"r": 33}, "r=33 is more than 32, the rank of the weights"),
        ("lora", {"r": 10**12}, "the rank of the weights"),
    ],
)
def test_a_wrong_setting_is_one_line(name, settings, message):
    with pytest.raises(UserError, match=message) as error:
        ADAPTERS.make(name, **settings).insert(tiny_model("llama"))
    assert "\n" not in str(error.value)


def test_settings_may_be_text_and_choose_the_layers():
    adapter, _, _ = with_adapter("llama", r="2", alpha="6", targets="q_proj, v_proj")
    assert {name.rpartition(".")[2] for name in adapter.layers} == {"q_proj", "v_proj"} and len(adapter.layers) == 4
    assert adapter.config.r == 2 and adapter.config.lora_alpha == 6
    heads = [name for kind in ("bert", "gpt2", "modernbert") for name in with_adapter(kind)[0].layers]
    assert not [name for name in heads if "head" in name or "pooler" in name or "cls" in name]


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"acclimate\[lora\]"):
        ADAPTERS.read("lora")
    monkeypatch.undo()
    monkeypatch.setattr("acclimate.models.lora.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"acclimate\[qlora\]"):
        ADAPTERS.read("lora quantize=4bit")
    with pytest.raises(UserError, match="must not be quantized"):
        ADAPTERS.read("pissa quantize=4bit")


def test_an_adapter_trained_on_four_bits_is_merged_into_the_original_weights(tmp_path):
    pytest.importorskip("bitsandbytes")
    base = save_tiny("llama", tmp_path / "base", hidden_size=64, intermediate_size=64)
    loaded = load_language_model(base, quantize="4bit")
    attach(loaded.model)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    layer = loaded.model.model.layers[0].mlp.up_proj
    assert type(layer).__name__ == "Linear4bit"
    adapter = ADAPTERS.read("lora quantize=4bit").insert(loaded.model, probe=PROBE, source=base)
    train(adapter)
    (tmp_path / "out").mkdir()
    report = adapter.export(tmp_path / "out", loaded.tokenizer, tmp_path / "out", str(base))
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for name, wrapped in adapter.layers.items():
        expected = plain.get_submodule(name).weight + wrapped.get_delta_weight("default")
        torch.testing.assert_close(merged.get_submodule(name).weight, expected, atol=1e-6, rtol=1e-5)
    assert report["difference"]["relative"] < 1e-5 < 1e-3 < report["quantization"]["relative"]


def test_the_merged_model_has_the_type_of_the_checkpoint_and_stays_tied(tmp_path):
    model = tiny_model("llama", tie_word_embeddings=True).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "base")
    decoder_tokenizer().save_pretrained(tmp_path / "base")
    loaded = load_language_model(tmp_path / "base")
    attach(loaded.model)
    adapter = ADAPTERS.make("lora", r=4).insert(loaded.model, probe=PROBE)
    train(adapter)
    (tmp_path / "out").mkdir()
    report = adapter.export(tmp_path / "out", loaded.tokenizer, tmp_path / "out", "base")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "out"))
    assert first.keys() == second.keys() and {value.dtype for value in second.values()} == {torch.bfloat16}
    assert 1e-4 < report["difference"]["relative"] < report["change"]["relative"] / 2 and not warn_of_export(report)
    plain = load_language_model(tmp_path / "base").model
    attach(plain)
    assert report["change"] == compare_logits(plain, loaded.model, adapter.probe)
    assert "Rounding" in warn_of_export({**report, "change": {"relative": 1e-3}, "difference": {"relative": 2e-3}})
    assert not warn_of_export({**report, "change": {"relative": 0}, "difference": {"relative": 1e-6}})
    for name, layer in adapter.layers.items():
        exact = layer.get_base_layer().weight + layer.get_delta_weight("default")
        assert torch.equal(second[f"{name}.weight"], exact.to(torch.bfloat16))
    assert all(value.dtype == torch.float32 for value in loaded.model.parameters())
