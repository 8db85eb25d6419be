"""The end of a layer in one pass is what its parts do one after the other."""

import copy

import pytest
import torch
from tests.tiny import ENCODERS, tiny_model
from torch import nn

from acclimate.backbone.add_and_norm import AddAndNorm, join_layer_ends
from acclimate.backbone.dropout import CheapDropout, cheapen_dropout
from acclimate.backbone.last_layer import KIN


class Plain(nn.Module):
    """What modules of that shape do in ``transformers``."""

    def __init__(self, inner, width):
        super().__init__()
        self.dense, self.dropout, self.LayerNorm = (
            nn.Linear(inner, width),
            CheapDropout(0.25),
            nn.LayerNorm(width, 1e-5),
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + input_tensor)


def pair(dtype=torch.float32, inner=5, width=12):
    torch.manual_seed(0)
    plain = Plain(inner, width).to(dtype)
    joined = copy.deepcopy(plain)
    joined.__class__ = AddAndNorm
    return plain, joined


def run(module, dtype=torch.float32, rows=(3, 7), inner=5, width=12):
    """Return what a module gives and all its gradients, dropout being drawn from one seed."""
    generator = torch.Generator().manual_seed(1)
    hidden, stream, slope = (torch.randn(*rows, size, generator=generator) for size in (inner, width, width))
    hidden, stream = hidden.to(dtype).requires_grad_(), stream.to(dtype).requires_grad_()
    torch.manual_seed(2)
    out = module(hidden, stream)
    wanted = [hidden, stream, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
    return [out.detach(), *torch.autograd.grad(out, wanted, slope.to(dtype))]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("rows", "width"), [((3, 7), 12), ((1, 40), 384), ((2, 1), 3), ((0, 4), 8)])
def test_values_and_gradients_are_those_of_the_parts(each_way, training, rows, width):
    plain, joined = (module.train(training) for module in pair(width=width))
    for mine, theirs in zip(run(joined, rows=rows, width=width), run(plain, rows=rows, width=width), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_in_bfloat16_it_is_as_close_to_float32_as_the_parts_are(each_way):
    plain, joined = pair(torch.bfloat16, width=384)
    exact = run(copy.deepcopy(plain).float(), rows=(1, 50), width=384)
    for mine, theirs, right in zip(
        run(joined, torch.bfloat16, (1, 50), width=384),
        run(plain, torch.bfloat16, (1, 50), width=384),
        exact,
        strict=True,
    ):
        error, usual = ((some.float() - right).norm() / right.norm() for some in (mine, theirs))
        assert error < max(1.2 * usual, 0.01)


def test_what_does_not_learn_gets_no_gradient(each_way):
    plain, joined = pair()
    for module in (plain, joined):
        module.LayerNorm.requires_grad_(False)
    for mine, theirs in zip(run(joined), run(plain), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_hooks_on_the_parts_are_called(each_way):
    for name in ("dense", "dropout", "LayerNorm"):
        plain, joined = pair()
        for module in (plain, joined):
            getattr(module, name).register_forward_hook(lambda module, inputs, output: 2 * output)
        for mine, theirs in zip(run(joined), run(plain), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"bias": False}, {"elementwise_affine": False}])
def test_a_normalisation_without_weights_is_left_to_torch(each_way, options):
    plain, joined = pair()
    for module in (plain, joined):
        module.LayerNorm = nn.LayerNorm(12, **options)
    for mine, theirs in zip(run(joined), run(plain), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_other_types_than_those_of_the_weights_are_left_to_torch(each_way):
    plain, joined = pair()
    for module in (plain, joined):
        module.double()
    for mine, theirs in zip(run(joined, torch.float64), run(plain, torch.float64), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_both_ends_of_every_layer_are_found_and_weights_keep_their_names(kind):
    model = tiny_model(kind)
    names = list(model.state_dict())
    join_layer_ends(model)
    assert not any(type(module) is AddAndNorm for module in model.modules())  # their dropout is not the cheap one yet
    cheapen_dropout(model)
    join_layer_ends(model)
    ends = [name for name, module in model.named_modules() if type(module) is AddAndNorm]
    assert len(ends) == (2 * model.config.num_hidden_layers if model.config.model_type in KIN else 0)
    assert all(name.endswith("output") for name in ends)
    assert list(model.state_dict()) == names


def test_modules_of_others_are_left_alone():
    plain, _ = pair()
    join_layer_ends(plain)
    assert type(plain) is Plain
