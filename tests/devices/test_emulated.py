"""The emulated accelerator refuses what a real one refuses."""

import pytest
import torch
from torch import nn

from tests.accelerator import CUDA, emulated


@pytest.fixture
def accelerator():
    with emulated() as found:
        yield found


def test_tensors_on_different_devices_do_not_mix(accelerator):
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    assert there.device == CUDA
    assert here.device.type == "cpu"
    assert (2 * there[1:]).sum().device == CUDA
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(RuntimeError, match="same device"):
        nn.functional.embedding(torch.tensor([0]), torch.ones(2, 2, device="cuda"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat([here, there])
    assert torch.equal(there.cpu() + here, torch.full((3,), 2.0))


def test_operations_allowed_on_the_device(accelerator):
    there = torch.ones(3, device="cuda")
    assert (there * torch.tensor(2.0)).device == CUDA  # zero-dimensional tensors may be on another device
    assert there[torch.tensor([0, 2])].device == CUDA
    here = torch.zeros(3)
    here.copy_(there)
    assert here.device.type == "cpu"
    with pytest.raises(RuntimeError, match="same device"):
        here[torch.tensor([0], device="cuda")]


def test_numpy_and_cpu_generators_are_refused(accelerator):
    with pytest.raises(TypeError, match="numpy"):
        torch.ones(2, device="cuda").numpy()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())


def test_modules_and_gradients(accelerator):
    layer = nn.Linear(2, 2).to("cuda")
    assert layer.weight.device == CUDA
    loss = layer(torch.ones(1, 2, device="cuda")).sum()
    loss.backward()
    assert layer.weight.grad.device == CUDA
    assert torch.autograd.grad(layer(torch.ones(1, 2, device="cuda")).sum(), layer.bias)[0].device == CUDA
    with pytest.raises(RuntimeError, match="same device"):
        layer(torch.ones(1, 2))
    nn.Module.to(layer, "cpu")
    assert layer(torch.ones(1, 2)).device.type == "cpu"


def test_the_emulation_is_fully_removed():
    with emulated():
        kept = torch.ones(2, device="cuda")
    assert kept.device.type == "cpu"
    assert not torch.cuda.is_available()
