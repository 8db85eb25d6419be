"""All kernels together against plain torch: the same loss and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from acclimate.base.device import KERNELS_VARIABLE
from acclimate.base.errors import UserError
from acclimate.engine.steps import Engine
from acclimate.kernels import Kernels
from acclimate.kernels import gradients as module
from acclimate.kernels.attention import FastDropout
from acclimate.models.attention import ATTENTION_NAME, EAGER_ATTENTION_NAME
from acclimate.models.families import kernels_of, use_kernels
from acclimate.models.probe import attach
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.kernels.helpers import count_tokens, gradients
from tests.tiny import ENCODERS, tiny_model

CPU = torch.device("cpu")
REPLACED = (FastDropout, module.RowEmbedding, module.RowProjection)
OFF = Kernels("cpu")


def objectives(name):
    """MLM, and DGA: gates on the heads, and a loss over all texts of the step."""
    mlm = LanguageModelling()
    gates = {"H": torch.linspace(0, 1, 8).view(2, 4)}
    return [mlm] if name == "mlm" else [mlm, GeneralKnowledgeContrast(gates, temperature=0.2, weight=0.7)]


def two_steps(kind, method, layout, tied, precision="fp32"):
    """Return the losses and summed gradients of two steps of several micro-batches, and the model."""
    model = tiny_model(kind)
    if not tied:
        head = model.get_output_embeddings()
        head.weight = nn.Parameter(head.weight.detach() + 0.1)
    layers = attach(model)
    terms = objectives(method)
    if len(terms) > 1 and len(layers) == 1:  # ALBERT's layers share their heads
        terms = [terms[0], GeneralKnowledgeContrast({"H": torch.linspace(0, 1, 4).view(1, 4)}, 0.2, 0.7)]
    engine = Engine(model, terms, precision, graph_tokens=110)
    seen = count_tokens(model)
    losses = [engine.step(micro_batches(100, layout=layout, seed=seed))["loss"] for seed in range(2)]
    return losses, gradients(model), model, sum(seen)


@pytest.mark.parametrize(
    "method",
    [pytest.param("mlm", marks=pytest.mark.slow), pytest.param("dga", marks=pytest.mark.needs("dga"))],
)  # dga has the term of mlm
@pytest.mark.parametrize("tied", [pytest.param(True, marks=pytest.mark.slow), False])
@each("layout", ["padded", "packed"])
@each("kind", sorted(ENCODERS))
def test_loss_and_gradients(kind, tied, layout, method, monkeypatch):
    monkeypatch.setattr(module, "MIN_OUTPUTS", 11)  # so that the vocabulary of a tiny model counts as large
    found = two_steps(kind, method, layout, tied)
    monkeypatch.setenv(KERNELS_VARIABLE, "torch")
    expected = two_steps(kind, method, layout, tied)
    torch.testing.assert_close(found[:2], expected[:2], atol=1e-5, rtol=1e-4)
    assert kernels_of(found[2]).unpadding and kernels_of(found[2]).eager_attention
    assert kernels_of(expected[2]) == OFF
    assert found[3] < expected[3] or layout == "packed", "the kernels skip padding"


@pytest.mark.slow
@pytest.mark.needs("dga")
@each("kind", sorted(ENCODERS))
def test_bf16_is_as_near_to_fp32_as_under_autocast(kind, monkeypatch):
    exact = two_steps(kind, "dga", "padded", True)[1]
    whole = torch.cat([value.flatten() for value in exact.values()])

    def error():
        found = two_steps(kind, "dga", "padded", True, "bf16")[1]
        return float((torch.cat([found[name].flatten() for name in exact]) - whole).norm() / whole.norm())

    with_kernels = error()
    monkeypatch.setenv(KERNELS_VARIABLE, "torch")
    assert 0 < with_kernels < 0.02 and 0 < error() < 0.02


@each("kind", sorted(ENCODERS))
def test_torch_means_torch(kind, monkeypatch):
    monkeypatch.setattr(module, "MIN_OUTPUTS", 11)
    fast, plain = tiny_model(kind), tiny_model(kind)
    classes = {name: type(module) for name, module in plain.named_modules()}
    attach(fast)
    assert {type(module) for module in fast.modules()} > set(REPLACED)
    assert fast.config._attn_implementation == EAGER_ATTENTION_NAME
    assert all(classes[name] is type(module) or type(module) in REPLACED for name, module in fast.named_modules())
    monkeypatch.setenv(KERNELS_VARIABLE, "torch")
    attach(plain)
    assert {name: type(module) for name, module in plain.named_modules()} == classes
    assert plain.config._attn_implementation == ATTENTION_NAME
    assert not kernels_of(plain).callbacks()


@each("kind", sorted(ENCODERS))
def test_replaced_layers_keep_names_ties_hooks_and_files(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MIN_OUTPUTS", 11)
    model = tiny_model(kind)
    weights = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    calls = []
    model.get_input_embeddings().register_forward_hook(lambda *_: calls.append("lookup"))
    use_kernels(model, CPU)
    assert {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)} == weights
    assert type(model.get_input_embeddings()) is module.RowEmbedding
    model(input_ids=torch.tensor([[2, 20, 3]]))
    assert calls == ["lookup"]
    copied = copy.deepcopy(model)
    assert copied.get_output_embeddings().weight is copied.get_input_embeddings().weight
    assert copied.get_output_embeddings().weight is not model.get_output_embeddings().weight
    copied.resize_token_embeddings(200, mean_resizing=False)
    assert len(copied.get_input_embeddings().weight) == copied.get_output_embeddings().out_features == 200
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())
    assert type(again.get_input_embeddings()) is nn.Embedding


def test_a_module_that_occurs_twice_is_replaced_by_one():
    model = nn.ModuleDict({"a": nn.Dropout(0.5), "b": nn.Sequential(nn.ReLU())})
    model["b"].append(model["a"])
    model.eval()
    Kernels("cpu", fast_dropout=True).replace_layers(model)
    assert model["a"] is model["b"][1] and type(model["a"]) is FastDropout
    assert model["a"].p == 0.5 and not model["a"].training


def test_a_wrong_value_is_refused(monkeypatch):
    monkeypatch.setenv(KERNELS_VARIABLE, "fast")
    with pytest.raises(UserError, match="ACCLIMATE_KERNELS is 'fast'; set it to auto or torch"):
        kernels_of(tiny_model("bert"))


def test_kernels_follow_the_device_of_a_model():
    model = tiny_model("bert")
    assert kernels_of(model) is kernels_of(model) and kernels_of(model).unpadding
    assert kernels_of(model.to("meta")) == Kernels("meta", keep_freed_memory=True)


def test_kernels_of_other_architectures():
    """Padding is kept for remote code, and for models that split rows or cache keys by row."""
    own = tiny_model("bert")
    layer = own.base_model.encoder.layer[0]
    layer.__class__ = type("BertLayer", (type(layer),), {"__module__": "modeling_own"})
    unknown = tiny_model("bert")
    unknown.config.model_type = "unheard-of"
    chunked, decoder = tiny_model("bert", chunk_size_feed_forward=4), tiny_model("bert", is_decoder=True)
    for model in (own, unknown, chunked, decoder):
        assert not kernels_of(model).unpadding and kernels_of(model).eager_attention
    for model in (own, unknown, chunked):
        assert not kernels_of(model).last_layer_cut
