"""Soft masks with a real optimizer: which weights they scale, and by how much."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from acclimate.base.errors import UserError
from acclimate.engine.steps import Engine
from acclimate.models.attention import split_heads
from acclimate.models.gates import LinearUnits, gate_units
from acclimate.models.probe import attach
from acclimate.parts.objectives import LanguageModelling
from acclimate.parts.updates import SoftMask, UpdateRule, rules
from acclimate.parts.updates.rules import COPIED_BYTES
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.tiny import tiny_model

WIDTH = 8


def train(kind, importance, on, steps=4, optimizer_class=torch.optim.AdamW, **options):
    """Train with and without the mask; return the change of every parameter in both runs, and the layers."""
    changes, layers = [], []
    for values in (importance, None):
        torch.manual_seed(1)
        model = tiny_model(kind)
        layers = attach(model)
        start = {name: value.detach().clone() for name, value in model.named_parameters()}
        mask = SoftMask({"H": layers}, {"H": values}, on) if values is not None else None
        optimizer = optimizer_class(model.parameters(), **{"lr": 1e-3, **options})
        engine = Engine(model.train(), [LanguageModelling()])
        for step in range(steps):
            engine.step(micro_batches(seed=step))
            (mask or UpdateRule()).step(optimizer, optimizer.step)
            optimizer.zero_grad()
        changes.append({name: (value - start[name]).detach() for name, value in model.named_parameters()})
    return changes[0], changes[1], layers


def test_a_head_of_importance_one_does_not_change():
    importance = torch.zeros(2, 4)
    importance[0, 1] = 1
    masked, _, _ = train("bert", importance, "update", weight_decay=0.1)
    rows = slice(WIDTH, 2 * WIDTH)
    others = [row for row in range(32) if not WIDTH <= row < 2 * WIDTH]
    for part in ("query", "key", "value"):
        name = f"bert.encoder.layer.0.attention.self.{part}"
        assert (masked[f"{name}.weight"][rows] == 0).all()
        assert (masked[f"{name}.weight"][others] != 0).any(1).all()
        if part != "key":  # the bias of the keys cancels in the softmax, so it has no gradient
            assert (masked[f"{name}.bias"][others] != 0).any()
        assert (masked[f"{name}.bias"][rows] == 0).all()
    output = masked["bert.encoder.layer.0.attention.output.dense.weight"]
    assert (output[:, rows] == 0).all()
    assert (output[:, others] != 0).any(0).all()
    assert (masked["bert.encoder.layer.0.attention.output.dense.bias"] != 0).any()
    assert (masked["bert.encoder.layer.1.attention.self.query.weight"] != 0).all(1).any()


def test_fused_projections_are_masked_per_head():
    importance = torch.zeros(2, 4)
    importance[1, 0] = 1
    masked, _, layers = train("modernbert", importance, "update")
    change = masked["model.layers.1.attn.Wqkv.weight"]
    for part in range(3):
        block = change[32 * part : 32 * (part + 1)]
        assert (block[:WIDTH] == 0).all()
        assert (block[WIDTH:] != 0).any(1).all()
    assert (masked["model.layers.1.attn.Wo.weight"][:, :WIDTH] == 0).all()
    assert layers[1].inputs[0].linear is layers[1].inputs[2].linear


def one_step(on, factor):
    """Return the change of layer 0's query weights in the first step, relative to training without a mask."""
    masked, free, _ = train("bert", torch.full((2, 4), 1 - factor), on, steps=1, weight_decay=0.0, eps=1e-12)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    return (masked[name].norm() / free[name].norm()).item()


@each("factor", [0.5, 0.1])
def test_masking_the_update_scales_the_step_and_adam_cancels_a_gradient_mask(factor):
    assert abs(one_step("update", factor) - factor) < 0.01
    assert one_step("gradient", factor) > 0.95


def test_a_gradient_mask_works_under_plain_sgd():
    masked, free, _ = train("bert", torch.full((2, 4), 0.75), "gradient", steps=1, optimizer_class=torch.optim.SGD)
    name = "bert.encoder.layer.0.attention.self.value.weight"
    torch.testing.assert_close(masked[name], free[name] * 0.25, rtol=1e-2, atol=1e-7)


def test_invalid_importance_is_an_error():
    model = tiny_model("bert")
    layers = attach(model)
    for bad in (torch.full((2, 4), float("nan")), torch.full((2, 4), 1.5)):
        with pytest.raises(UserError, match="between 0 and 1"):
            SoftMask({"H": layers}, {"H": bad})
    with pytest.raises(UserError, match="update"):
        SoftMask({"H": layers}, {"H": torch.zeros(2, 4)}, on="gradients")


PARTS = {"H": 4, "I": 48, "O": 32, "E": 32}


def model_with_units(kind="bert"):
    """A tiny model, its units, and an importance with zeros and ones."""
    torch.manual_seed(2)
    model = tiny_model(kind)
    units = gate_units(model, attach(model), PARTS)
    importance = {part: torch.rand(len(layers), layers[0].units) for part, layers in units.items()}
    for values in importance.values():
        values[:, 0], values[:, 1] = 0, 1
    return model, units, importance


def random_gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


@each(
    ("kind", "optimizer_class", "options"),
    [
        ("bert", torch.optim.AdamW, {"fused": True, "weight_decay": 0.1}),
        ("albert", torch.optim.AdamW, {"foreach": True}),
        ("gpt2", torch.optim.SGD, {"momentum": 0.9}),
        ("llama", torch.optim.Adafactor, {}),
    ],
)
def test_groups_of_weights_equal_one_copy_of_all_to_the_bit(kind, optimizer_class, options, monkeypatch):
    found = []
    for size in (None, 5_000):
        model, units, importance = model_with_units(kind)
        optimizer, calls = optimizer_class(model.parameters(), lr=1e-2, **options), []
        rule = SoftMask(units, importance)
        if size:
            monkeypatch.setattr("acclimate.parts.updates.rules.COPIED_BYTES", size)
        for step in range(3):
            random_gradients(model, step)
            if size:
                rule.step(optimizer, lambda: calls.append(optimizer.step()))  # noqa: B023
                continue
            copies = [weight.detach().clone() for weight, _ in rule.scaled]
            optimizer.step()
            with torch.no_grad():
                for (weight, factor), before in zip(rule.scaled, copies, strict=True):
                    weight.copy_(before + factor * (weight - before))
        assert len(calls) == 0 or len(calls) > 9, "several calls in each step"
        found.append({name: value.detach().clone() for name, value in model.named_parameters()})
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def test_weights_without_a_gradient_are_neither_copied_nor_changed():
    model, units, importance = model_with_units()
    random_gradients(model, 0)
    frozen = model.bert.encoder.layer[0].attention.self.query.weight
    frozen.grad, before = None, frozen.detach().clone()
    optimizer, calls = torch.optim.AdamW(model.parameters(), weight_decay=0.5), []
    SoftMask(units, importance).step(optimizer, lambda: calls.append(optimizer.step()))
    assert torch.equal(frozen, before) and frozen not in optimizer.state and len(calls) == 1
    assert all(weight.grad is None for weight in model.parameters())
    for weight in model.parameters():  # an overflow in fp16 skips the step
        assert weight.grad is None
    after = {name: value.detach().clone() for name, value in model.named_parameters()}
    SoftMask(units, importance).step(optimizer, optimizer.step)
    assert all(torch.equal(value, after[name]) for name, value in model.named_parameters())


class AliveCopies(TorchDispatchMode):
    """Adds up the bytes of clones that exist at the same time."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak, self.total = 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.clone.default:
            self.alive, self.total = self.alive + result.nbytes, self.total + result.nbytes
            self.peak = max(self.peak, self.alive)
            weakref.finalize(result, self.free, result.nbytes)
        return result

    def free(self, size):
        self.alive -= size


def test_copies_of_an_8b_model_take_256_mb():
    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128_256, head_dim=128,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        layers = split_heads(model, [(f"model.layers.{index}.self_attn", 32, 128) for index in range(32)])
        units = gate_units(model, layers, ["H", "I", "O"])
        for weight in model.parameters():
            weight.grad = torch.empty_like(weight)
    assert sum(weight.numel() for weight in model.parameters()) > 8e9
    importance = {part: torch.rand(len(found), found[0].units) for part, found in units.items()}
    rule = SoftMask(units, importance)
    all_bytes = sum(weight.nbytes for weight, _ in rule.scaled)
    with AliveCopies() as copies:
        rule.step(torch.optim.SGD(model.parameters()), lambda: None)
    assert copies.total == all_bytes > 25e9
    assert copies.peak <= COPIED_BYTES == 256e6


@each("importance", [0.0, 0.5, 1.0])
def test_bf16_weights_move_by_the_share_that_the_mask_leaves(importance):
    """1,000 steps of a hundredth of a unit in the last place, which rounding to the nearest would lose."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 64, bias=False)
    linear.weight.data = torch.full((64, 64), 1.5).bfloat16()
    last_place = 2.0**-7
    rule = SoftMask({"O": [LinearUnits(linear, 64)]}, {"O": torch.full((1, 64), importance)})
    optimizer = torch.optim.SGD(linear.parameters())

    @torch.no_grad()
    def take():
        linear.weight.copy_(rules._round_stochastically(linear.weight.float() - 0.01 * last_place))

    for _ in range(1_000):
        linear.weight.grad = torch.ones_like(linear.weight)
        rule.step(optimizer, take)
    moved = (1.5 - linear.weight.float()).mean().item() / last_place
    assert moved == pytest.approx(10 * (1 - importance), rel=0.05)


def test_stochastic_rounding_keeps_the_expected_value():
    exact = torch.randn(4_096).bfloat16().float()
    assert torch.equal(rules._round_stochastically(exact).float(), exact)
    for sign in (1, -1):
        values = torch.full((40_000,), sign * (1 + 0.3 * 2**-7))
        rounded = rules._round_stochastically(values).float()
        assert set((sign * rounded).tolist()) == {1.0, 1 + 2**-7}
        assert (sign * rounded - 1).mean().item() == pytest.approx(0.3 * 2**-7, rel=0.03)


@each("kind", ["bert", "gpt2"])
def test_a_shard_changes_as_the_same_rows_of_the_whole_weight(kind):
    whole, sharded = (model_with_units(kind) for _ in range(2))
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        mesh = init_device_mesh("cpu", (3,))

        def shard(values):
            return distribute_tensor(values.detach(), mesh, [Shard(0)], src_data_rank=None)

        rules_made = [SoftMask(units, importance) for _, units, importance in (whole, sharded)]
        random_gradients(whole[0], 1)
        shards = {}  # tied weights stay tied
        for module in sharded[0].modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                shards.setdefault(id(weight), (weight, torch.nn.Parameter(shard(weight))))
                setattr(module, name, shards[id(weight)][1])
        for name, weight in sharded[0].named_parameters():
            weight.grad = shard(whole[0].get_parameter(name).grad)
        for (model, *_), rule in zip((whole, sharded), rules_made, strict=True):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            rule.step(optimizer, optimizer.step)
        for name, weight in sharded[0].named_parameters():
            expected = shard(whole[0].get_parameter(name)).to_local()
            assert torch.equal(weight.to_local(), expected), name
    finally:
        dist.destroy_process_group()
