"""What reaches the weights of a model that are not modules: the stacked experts of mixtures, in every family."""

from __future__ import annotations

import copy
import re

import numpy as np
import peft
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.labs.inspection.model import estimate_memory
from acclimate.models.adapters import ADAPTERS, compare_logits
from acclimate.models.gates import gate_units
from acclimate.models.loading import load_language_model
from acclimate.models.lora import LowRankAdapter
from acclimate.models.probe import attach
from acclimate.models.reach import VECTORS, body_weights, describe_reach, stacked_experts
from acclimate.parts.updates import LayerwiseDecay, StaticSparsity, freeze
from tests.cases import each
from tests.kills import killed
from tests.tiny import DECODERS, ENCODERS, EXPERTS, TEXTS, save_tiny, tiny_model

PROBE = [np.arange(5, 25), np.arange(30, 40)]
FAMILIES = (*ENCODERS, *DECODERS, *EXPERTS)


def mixture(kind: str):
    """A tiny mixture whose routers choose different experts for different tokens, and a copy of it."""
    model = tiny_model(kind)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("mlp.gate.weight", "router.weight")):
                weight.normal_(0, 0.3)
    return model, copy.deepcopy(model)


@torch.no_grad()
def difference(model, other) -> float:
    """The largest difference of the logits of two models."""
    ids = [torch.as_tensor(text)[None] for text in PROBE]
    return max(float((model(input_ids=text).logits - other(input_ids=text).logits).abs().max()) for text in ids)


def names_of_linear_weights(model) -> set[str]:
    """The names of the matrices that adapters are for, by the names and classes of modules alone."""
    return {
        name
        for name, weight in model.base_model.named_parameters()
        if (weight.dim() == 3 and ".experts." in name)
        or (
            name.endswith(".weight")
            and isinstance(model.base_model.get_submodule(name.removesuffix(".weight")), nn.Linear | Conv1D)
        )
    }


@each("kind", FAMILIES)
def test_each_weight_is_reached_or_named_and_the_share_is_a_count_by_names(kind):
    model = tiny_model(kind)
    base, reached = model.base_model, names_of_linear_weights(model)
    tables = {id(module.weight) for module in base.modules() if isinstance(module, nn.Embedding)}
    body = {name: weight for name, weight in base.named_parameters() if id(weight) not in tables}
    left = {name: weight.numel() for name, weight in body.items() if name not in reached}
    total = sum(weight.numel() for weight in body.values())
    assert body.keys() > left.keys() and len(body_weights(model)) == len(body)
    said = ADAPTERS.make("lora", r=2).insert(model, probe=PROBE).describe()
    assert f"'lora' does not reach {sum(left.values()) / total:.1%} of the weights of the layers" in said
    assert sum(left.values()) / total < 0.2
    for name in left:
        shown = re.sub(r"\.\d+\.", ".*.", name)
        assert (VECTORS if body[name].dim() == 1 else shown) in said, name
    assert describe_reach(model, [], "Nothing").startswith("Nothing does not reach 100.0%")
    assert len(body_weights(model)) == len(body), "with an adapter too"
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert estimate_memory(tiny_model(kind), 8)["adapter"] == 8 * trained


@each(
    ("kind", "name"),
    [
        ("qwen3_moe", "lora"),
        ("gpt_oss", "soma"),
        ("mixtral", "mica"),
        ("mixtral", "olora"),
        ("gpt_oss", "orthogonal"),
        ("deepseek_v3", "rslora"),
    ],
)
def test_experts_are_adapted_merged_and_read_by_peft(tmp_path, kind, name):
    model, plain = mixture(kind)
    adapter = ADAPTERS.make(name, r=4).insert(model, probe=PROBE)
    assert len(adapter.experts) == len(stacked_experts(plain))
    assert difference(model, plain) < 1e-5
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad:
            value.data += 0.05 * torch.randn_like(value)
    merged = adapter.merged()
    assert difference(model, plain) > 1e-3 and difference(merged, model) < 1e-5
    assert difference(adapter.base(), plain) == 0
    base = {name.replace(".base_layer", ""): value for name, value in model.named_parameters()}
    assert all(torch.equal(base[name], value) for name, value in plain.named_parameters())
    state, before = merged.state_dict(), plain.state_dict()
    assert state.keys() == before.keys()
    for expert in stacked_experts(plain):
        assert all(not torch.equal(*pair) for pair in zip(state[expert], before[expert], strict=True)), expert
    adapter.save(tmp_path / "adapter", "base")
    assert (tmp_path / "adapter").exists() != (kind == "deepseek_v3"), "peft takes its dense layers for experts"
    if kind != "deepseek_v3":
        loaded = peft.PeftModel.from_pretrained(mixture(kind)[1], tmp_path / "adapter").eval()
        assert difference(loaded, merged) < 1e-5


def test_the_memory_of_adapted_experts_is_counted():
    """peft adds the product of the factors to the whole stack, which the backward pass reads."""
    model, plain = mixture("mixtral")
    estimate, total = estimate_memory(plain, 8), plain.num_parameters()
    ADAPTERS.make("lora", r=2).insert(model, probe=PROBE)
    own = {value.untyped_storage().data_ptr() for value in model.state_dict(keep_vars=True).values()}
    kept: dict[int, torch.UntypedStorage] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda value: kept.setdefault(value.untyped_storage().data_ptr(), value.untyped_storage()) and value,
        lambda value: value,
    ):
        model.train()(input_ids=torch.tensor([[5, 6, 7]]))
    least = min(weight.nbytes for weight in stacked_experts(plain).values())
    stacks = sum(storage.nbytes() for place, storage in kept.items() if place not in own and storage.nbytes() >= least)
    assert stacks == estimate["training"]["LoRA"] - 4 * total - 16 * estimate["adapter"] > 0


@each("name", [name for name in ADAPTERS.names() if issubclass(ADAPTERS.lookup(name), LowRankAdapter)])
def test_what_cannot_adapt_experts_says_so(name):
    kind = ADAPTERS.lookup(name)
    if kind.stacks:
        with pytest.raises(UserError, match="with dropout cannot adapt the stacked experts"):
            ADAPTERS.make(name, r=2, dropout=0.1).insert(mixture("mixtral")[0])
        return
    with pytest.raises(
        UserError, match=r"does not reach 8\d\.\d% .*experts.gate_up_proj.*accept it with partial=true"
    ):
        ADAPTERS.make(name, r=2).insert(mixture("mixtral")[0])
    with pytest.raises(UserError, match="cannot adapt the stacked experts"):
        ADAPTERS.make(name, r=2, targets="gate_up_proj").insert(mixture("mixtral")[0])
    for asked in ({"partial": True}, {"targets": "q_proj,v_proj"}):
        said = ADAPTERS.make(name, r=2, **asked).insert(mixture("mixtral")[0]).describe()
        assert "experts.down_proj" in said


def test_experts_by_name_are_adapted_alone():
    adapter = ADAPTERS.make("lora", r=2, targets="down_proj").insert(mixture("qwen3_moe")[0], probe=PROBE)
    assert adapter.place == "on 0 layers and 2 stacks of experts" and not adapter.shards
    with pytest.raises(UserError, match="there are down_proj, gate_up_proj, k_proj"):
        ADAPTERS.make("lora", targets="w1").insert(mixture("mixtral")[0])
    with pytest.raises(UserError, match="remove the rule 'refactor'"):
        adapter.factors()


@each("kind", ["mixtral", "gpt_oss", "deepseek_v3"])
def test_rules_and_larger_models_see_experts(kind):
    model, plain = mixture(kind)
    factors = LayerwiseDecay(model, 0.5).learning_rate_factors()
    for name in stacked_experts(model):
        assert factors[name] == 0.5 ** (2 - int(name.split(".")[2]))
    frozen = sum(weight.numel() for weight in stacked_experts(model).values())
    assert f"Frozen: {sum(w.numel() for n, w in model.named_parameters() if '.experts.' in n):,} of" in freeze(
        model, ["experts"]
    )
    assert frozen and not any(weight.requires_grad for weight in stacked_experts(model).values())
    rule = StaticSparsity(plain, 0.25, "magnitude")
    for weight in stacked_experts(plain).values():
        assert all(int((expert == 0).sum()) == expert.numel() // 4 for expert in weight)
    assert "Sparsity does not reach" in rule.describe()
    mixed = tiny_model("mixtral")
    layers = attach(mixed)
    for part in ("I", "O"):
        with pytest.raises(UserError, match="mixture of experts"):
            gate_units(mixed, layers, [part])
    with pytest.raises(UserError, match="mixture of experts"):
        ADAPTERS.make("wider", units=8).insert(mixture(kind)[0], probe=PROBE)


@each("kind", ["gpt_oss", "qwen3_moe"])
def test_copies_of_layers_with_experts_first_do_nothing(kind):
    model, plain = mixture(kind)
    attach(model)
    attach(plain)
    adapter = ADAPTERS.make("deeper", layers=1).insert(model, probe=PROBE)
    assert compare_logits(model, plain, adapter.probe)["absolute"] < 1e-5
    assert len(stacked_experts(model)) == len(stacked_experts(plain)) + 2


@pytest.mark.slow
def test_an_adaptation_of_experts_survives_a_kill(tmp_path):
    start = save_tiny("mixtral", tmp_path / "start")
    options = {"steps": 4, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False, "save_every": 1}
    text = Corpus.of([f"{text} {number}" for text in TEXTS for number in range(3)])
    for name in ("whole", "cut"):
        if name == "cut":
            with killed(2):
                adapt(start, text, "lm", tmp_path / name, adapter="lora r=2", **options)
        result = adapt(start, text, "lm", tmp_path / name, adapter="lora r=2", **options)
        assert result.adapter["difference"]["absolute"] < 1e-4 and "stacks of experts" in result.adapter["place"]
    before, *after = (load_language_model(tmp_path / name).model for name in ("start", "whole", "cut"))
    for name in stacked_experts(before):
        one, two = (model.get_parameter(name) for model in after)
        assert torch.equal(one, two) and not torch.equal(one, before.get_parameter(name))
