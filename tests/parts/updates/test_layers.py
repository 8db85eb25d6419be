"""Freezing by name, layer-wise decay, and the groups of the optimizer that follow from it."""

from __future__ import annotations

import pytest

from acclimate.base.errors import UserError
from acclimate.parts.updates import LayerwiseDecay, freeze, parameter_groups
from tests.cases import each
from tests.tiny import DECODERS, ENCODERS, tiny_model


def frozen(model):
    return {name for name, weight in model.named_parameters() if not weight.requires_grad}


@each(
    ("patterns", "expected"),
    [
        (["embeddings"], lambda name: ".embeddings." in name),
        (["layer.0"], lambda name: ".layer.0." in name),
        (["layer.[0-9]", "transform"], lambda name: ".layer." in name or ".transform." in name),
        (["LayerNorm", "query.bias"], lambda name: ".LayerNorm." in name or name.endswith("query.bias")),
        (["bert.encoder.*.weight"], lambda name: name.startswith("bert.encoder.") and name.endswith(".weight")),
    ],
)
def test_a_pattern_matches_whole_parts_of_names(patterns, expected):
    model = tiny_model("bert", num_hidden_layers=11)
    names = {name for name, _ in model.named_parameters() if expected(name)}
    said = freeze(model, patterns)
    # A pattern over parts between dots, so layer.0 is not layer.10, and layer.[0-9] is no layer of two digits.
    assert frozen(model) == {name for name in names if ".layer.10." not in name or "[" not in patterns[0]}
    count = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    assert said == f"Frozen: {count:,} of {model.num_parameters():,} parameters."


def test_a_tied_weight_is_found_by_each_of_its_names():
    model = tiny_model("gpt2")
    freeze(model, ["lm_head"])
    assert frozen(model) == {"transformer.wte.weight"}


@each(
    ("patterns", "message"),
    [
        (["embedings"], "has such a part in its name. Did you mean 'embeddings'"),
        (["layer.7"], "no weight that matches 'layer.7'"),
        (["layer.0.*", "layer.0.output.dense"], "trains anyway"),
        (["bert", "cls"], "match all weights"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything_are_errors(patterns, message):
    model = tiny_model("bert")
    if "trains anyway" in message:
        freeze(model, patterns[:1])
        patterns = patterns[1:]
    with pytest.raises(UserError, match=message):
        freeze(model, patterns)


@each("kind", [*ENCODERS, *DECODERS])
def test_every_weight_has_the_rate_of_its_depth(kind):
    model = tiny_model(kind)
    if kind == "albert":
        with pytest.raises(UserError, match="2 layers and 1 sets of weights"):
            LayerwiseDecay(model, 0.5)
        return
    factors = LayerwiseDecay(model, 0.5).learning_rate_factors()
    assert factors.keys() == dict(model.named_parameters()).keys()
    embedding = model.get_input_embeddings().weight
    inside = {id(weight) for weight in model.base_model.parameters()}
    for name, weight in model.named_parameters():
        depth = next((int(part) + 1 for part in name.split(".") if part.isdigit()), None)
        if depth is None:
            early = ("embed", "wte", "wpe")  # in the names of all families
            is_early = (
                id(weight) in inside and any(word in name for word in early) and name != "model.embedding_norm.weight"
            )
            depth = 0 if weight is embedding or is_early else 3
        assert factors[name] == 0.5 ** (3 - depth), name
    assert {*factors.values()} == {1.0, 0.5, 0.25, 0.125}


def test_groups_have_one_rate_each_and_the_first_the_highest():
    model = tiny_model("bert")
    plain = parameter_groups(model, 1e-3, 0.1, {})
    assert [(group["lr"], group["weight_decay"]) for group in plain] == [(1e-3, 0.1), (1e-3, 0.0)]
    assert plain[0]["params"] == [weight for weight in model.parameters() if weight.dim() > 1]
    assert plain[1]["params"] == [weight for weight in model.parameters() if weight.dim() <= 1]
    factors = LayerwiseDecay(model, 0.5).learning_rate_factors()
    groups = parameter_groups(model, 1e-3, 0.1, factors)
    assert [group["lr"] for group in groups] == [
        1e-3 * factor for factor in (1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125)
    ]
    rates = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    assert rates == {id(weight): 1e-3 * factors[name] for name, weight in model.named_parameters()}
