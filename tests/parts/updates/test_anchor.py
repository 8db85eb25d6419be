"""L2-SP and EWC: the gradient of their term, the Fisher information that EWC uses, and shards."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from acclimate.base.errors import UserError
from acclimate.models.probe import attach
from acclimate.parts.objectives import Batch
from acclimate.parts.updates import CombinedRules, PullToStart, SoftMask, UpdateRule, importance, summed_fisher
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.tiny import tiny_model


def moved_model(seed=0):
    """A small network, the rule on its start, and other weights with random gradients; one weight has none."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    model[2].weight.requires_grad_(False)
    return model


def move(model):
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
            weight.grad = torch.randn_like(weight) if weight.requires_grad else None
    model[1].bias.grad = None  # the loss does not read it


@each(("weighted", "anchored"), [(False, False), (True, False), (True, True)])
def test_the_gradient_is_that_of_the_penalty_by_autograd(weighted, anchored, monkeypatch):
    monkeypatch.setattr("acclimate.parts.updates.rules.COPIED_BYTES", 100)  # several groups
    model = moved_model()
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    fisher = {name: torch.rand_like(weight) for name, weight in model.named_parameters()} if weighted else None
    if anchored:  # as the weights of several earlier domains
        start = {name: torch.randn_like(weight) for name, weight in start.items()}
    rule = PullToStart(model, 0.3, fisher, start if anchored else None)
    move(model)
    before = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    rule.after_backward()
    free = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    terms = [
        ((1 if fisher is None else fisher[name]) * (weight - start[name]) ** 2).sum() for name, weight in free.items()
    ]
    (0.3 / 2 * sum(terms)).backward()
    assert set(before) == {"0.weight", "0.bias", "1.weight", "2.bias"}
    for name, gradient in before.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient + free[name].grad)


def test_a_strong_pull_keeps_the_weights_where_they_were():
    distances = []
    for strength in (0.0, 2.0, 40.0):
        model = moved_model(1)
        rule, start = PullToStart(model, strength), [weight.detach().clone() for weight in model.parameters()]
        optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
        inputs, wanted = torch.randn(40, 6), torch.randn(40, 2)
        for _ in range(50):
            optimizer.zero_grad()
            (model(inputs) - wanted).square().sum().div(40).backward()
            rule.after_backward()
            rule.step(optimizer, optimizer.step)
        distances.append(sum((a - b).square().sum().item() for a, b in zip(model.parameters(), start, strict=True)))
    assert distances[0] > 1.5 * distances[1] > 15 * distances[2] > 0


def test_a_shard_gets_the_same_rows_of_the_gradient():
    whole, sharded = moved_model(2), moved_model(2)
    fisher = {name: torch.rand_like(weight) for name, weight in whole.named_parameters()}
    rules = [PullToStart(model, 0.5, fisher) for model in (whole, sharded)]
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        mesh = init_device_mesh("cpu", (3,))
        move(whole)
        for name, weight in list(sharded.named_parameters()):
            other = whole.get_parameter(name)
            shard = torch.nn.Parameter(
                distribute_tensor(other.detach(), mesh, [Shard(0)], src_data_rank=None),
                requires_grad=weight.requires_grad,
            )
            if other.grad is not None:
                shard.grad = distribute_tensor(other.grad.clone(), mesh, [Shard(0)], src_data_rank=None)
            module, _, last = name.rpartition(".")
            setattr(sharded.get_submodule(module), last, shard)
        for rule in rules:
            assert not rule.needs_whole_weights
            rule.after_backward()
        for name, weight in whole.named_parameters():
            if weight.grad is not None:
                expected = distribute_tensor(weight.grad, mesh, [Shard(0)], src_data_rank=None).to_local()
                assert torch.equal(sharded.get_parameter(name).grad.to_local(), expected), name
    finally:
        dist.destroy_process_group()


def exact_fisher(model, batch):
    """Sum over positions and over all tokens of p(y) (d log p(y) / d w)^2, one at a time, with plain transformers.

    Also return the probabilities at the positions.
    """
    names = dict(model.named_parameters())
    total = {name: torch.zeros_like(weight) for name, weight in names.items()}
    logits = model(batch.masked, attention_mask=(batch.text >= 0).long()).logits[batch.labels >= 0]
    for log in logits.log_softmax(-1).flatten():
        gradients = torch.autograd.grad(log, list(names.values()), retain_graph=True, allow_unused=True)
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None:
                total[name] += log.exp().detach() * gradient.square()
    return total, logits.detach().softmax(-1)


def test_the_expectation_over_drawn_labels_is_the_exact_fisher_information(monkeypatch):
    """All pairs of labels of two predicted tokens, each with its probability instead of drawing."""
    size = 6
    model = tiny_model("bert", num_hidden_layers=1, hidden_size=8, num_attention_heads=2, vocab_size=size)
    text = torch.tensor([[0, 0, 0], [1, 1, -1]])
    ids, labels = torch.tensor([[2, 5, 3], [4, 2, 0]]), torch.tensor([[-100, 1, -100], [2, -100, -100]])
    batch = Batch(ids, ids, labels, text, 2)
    exact, (first, second) = exact_fisher(model, batch)
    attach(model)
    expected = {name: torch.zeros_like(weight) for name, weight in exact.items()}
    model.train()
    for one, other in itertools.product(range(size), repeat=2):
        monkeypatch.setattr(importance, "_draw_labels", lambda logits: torch.tensor([one, other]))  # noqa: B023
        tokens, found = summed_fisher(model, [batch])
        assert tokens == 2 and model.training and all(weight.grad is None for weight in model.parameters())
        for name, value in found.items():
            expected[name] += first[one] * second[other] * value
    for name, value in exact.items():
        torch.testing.assert_close(expected[name], value, rtol=1e-4, atol=1e-7)
    assert sum(value.sum() > 0 for value in exact.values()) >= 20


def test_labels_are_drawn_from_the_distribution_of_the_model():
    logits = torch.randn(2, 5)
    drawn = importance._draw_labels(logits.repeat(4000, 1)).view(4000, 2)
    shares = torch.stack([(drawn == token).float().mean(0) for token in range(5)], 1)
    torch.testing.assert_close(shares, logits.softmax(-1), atol=0.03, rtol=0)


def test_no_text_and_values_that_are_not_finite_are_errors(monkeypatch):
    model = tiny_model("bert")
    attach(model)
    with pytest.raises(UserError, match="No token is predicted"):
        summed_fisher(model, [])
    monkeypatch.setattr(importance, "cross_entropy", lambda logits, labels: logits.sum(-1) * float("inf"))
    with pytest.raises(UserError, match="not finite"):
        summed_fisher(model, micro_batches()[:1])


def test_combined_rules_run_all_hooks_with_the_last_rule_nearest_to_the_optimizer():
    calls = []

    class Recorded(UpdateRule):
        def __init__(self, name, whole):
            self.name, self.needs_whole_weights = name, whole

        def after_backward(self):
            calls.append(f"{self.name} backward")

        def before_step(self):
            calls.append(f"{self.name} before {self.steps_taken}")

        def after_step(self):
            calls.append(f"{self.name} after")

        def learning_rate_factors(self):
            return {"w": 0.5, self.name: 0.1}

    both = CombinedRules([Recorded("a", False), Recorded("b", True)])
    assert both.needs_whole_weights and not CombinedRules([Recorded("a", False)] * 2).needs_whole_weights
    assert both.learning_rate_factors() == {"w": 0.25, "a": 0.1, "b": 0.1}
    both.steps_taken = 7
    both.after_backward()
    both.step(None, lambda: calls.append("step"))
    assert calls == ["a backward", "b backward", "a before 7", "b before 7", "step", "b after", "a after"]
    assert SoftMask.learning_rate_factors(both) == {}
