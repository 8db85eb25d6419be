"""Apple GPUs, emulated: which device is chosen, and that nothing there is float64 or of CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torchgen
from torch.utils._python_dispatch import TorchDispatchMode
from torchgen.gen import parse_native_yaml
from torchgen.model import DispatchKey

from acclimate.base.device import RandomState, choose_precision, default_device, in_full, mps_works
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.labs.bench.doctor import doctor, show_machine
from acclimate.labs.bench.options import DoctorOptions
from acclimate.models.batching import machine_memory
from acclimate.models.probe import attach, kernels_of
from acclimate.study.workers import LocalLauncher
from acclimate.tasks.finetune import finetune
from tests.accelerator import MPS, emulated
from tests.cases import each
from tests.papers.test_contract import DOCUMENTS, TASK, run, weights
from tests.tiny import save_tiny, tiny_model

SHORT = {"epochs": 1, "learning_rate": 1e-3, "precision": "auto", "progress": False}


def test_the_device_its_precision_kernels_memory_and_workers(tmp_path, monkeypatch):
    with emulated(device=MPS) as accelerator:
        assert default_device() == MPS and accelerator.used
        assert choose_precision() == "fp32" and choose_precision("bf16") == "bf16"
        with pytest.raises(UserError, match="fp16 is for GPUs with CUDA"):
            choose_precision("fp16")
        model = tiny_model("bert").to(MPS)
        attach(model)
        kernels = kernels_of(model)
        assert not (kernels.unpadding or kernels.varlen_attention or kernels.eager_attention or kernels.last_layer_cut)
        assert machine_memory(MPS) == 8 * 2**30
        assert LocalLauncher.of(tmp_path, "auto", None).size == 1
        assert in_full(torch.ones(1, device=MPS)).dtype == torch.float32
        for name, value in (("ACCELERATE_USE_CPU", "1"), ("WORLD_SIZE", "2")):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                assert default_device() == torch.device("cpu")
    assert default_device() == torch.device("cpu") and in_full(torch.ones(1)).dtype == torch.float64


def test_the_emulation_refuses_what_an_apple_gpu_refuses():
    with emulated(device=MPS):
        with pytest.raises(TypeError, match="float64"):
            torch.ones(2, device="mps").double()
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(2, device="mps", dtype=torch.float64)
        with pytest.raises(AssertionError, match="CUDA"):
            torch.cuda.get_rng_state()
        assert torch.ones(2, device="mps").device == MPS and not torch.ones(2, device="mps").is_cuda


def test_an_apple_gpu_that_computes_something_else_is_not_used(monkeypatch, caplog):
    grad = torch.autograd.grad

    def wrong(loss, values, **options):
        found = grad(loss, values, **options)
        return [part + 1 if values[0].device.type == "mps" else part for part in found]

    monkeypatch.setattr(torch.autograd, "grad", wrong)
    with emulated(device=MPS):
        state = torch.get_rng_state()
        assert default_device() == torch.device("cpu") and not mps_works()
        assert torch.equal(state, torch.get_rng_state())
        text = "\n".join(show_machine(doctor(), DoctorOptions()))
    assert "The Apple GPU is not used: its results differ" in caplog.text
    assert "mps: Apple GPU, 8.6 GB (not used)" in text and "Report this text to the developers" in text


def test_doctor_says_that_it_is_untested():
    with emulated(device=MPS):
        text = "\n".join(show_machine(doctor(), DoctorOptions()))
    assert "mps: Apple GPU, 8.6 GB\n" in text and "Nobody has run acclimate on an Apple GPU yet" in text


def test_random_numbers_of_the_device_are_restored(monkeypatch):
    states = []
    with emulated(device=MPS):
        monkeypatch.setattr(torch.mps, "set_rng_state", states.append)
        before = RandomState(MPS)
        torch.rand(3)
        before.restore()
    assert len(states) == 1


def test_without_randomness_the_weights_equal_those_of_the_cpu(tmp_path):
    model = save_tiny("bert", tmp_path / "model", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    run(model, "lm", tmp_path / "here")
    with emulated(device=MPS) as accelerator:
        run(model, "lm", tmp_path / "there", heldout=Corpus.of(DOCUMENTS[:4]), heldout_every=2)
        assert accelerator.used
    here, there = weights(tmp_path / "here"), weights(tmp_path / "there")
    assert all(torch.allclose(here[name], there[name], atol=1e-5) for name in here)


class Operators(TorchDispatchMode):
    """Collects the operators that compute something on the emulated device."""

    def __init__(self, accelerator):
        super().__init__()
        self._accelerator, self.found = accelerator, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = torch.utils._pytree.tree_leaves((args, kwargs))
        backward = torch._C._current_autograd_node() is not None  # whose tensors the emulation does not see
        if backward or any(isinstance(one, torch.Tensor) and self._accelerator.holds(one) for one in tensors):
            self.found.add(func)
        return result


SUBSTITUTES = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
"""Operators of the CPU for which an Apple GPU has its own."""


@pytest.fixture(scope="module")
def has_kernel():
    """Return whether the registry of torch has an operator on Apple GPUs, by itself or made of others."""
    native = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
    parsed = parse_native_yaml(str(native / "native_functions.yaml"), str(native / "tags.yaml"))
    known = {str(one.func.name): one for one in parsed.native_functions}
    composite = (DispatchKey.CompositeExplicitAutograd, DispatchKey.CompositeExplicitAutogradNonFunctional)

    def has(operator) -> bool:
        name = operator.name().removeprefix("aten::")
        one = known.get(name)
        if one is None:
            return False
        delegate = known.get(str(one.structured_delegate)) if one.structured_delegate else None
        keys = (DispatchKey.MPS, *composite)
        return (
            one.has_composite_implicit_autograd_kernel
            or any(parsed.backend_indices[key].has_kernel(one) for key in keys)
            or (delegate is not None and parsed.backend_indices[DispatchKey.MPS].has_kernel(delegate))
        )

    return has


@pytest.mark.slow
@each("kind", ["bert", "modernbert", "llama", "gemma3"])
def test_apple_gpus_have_all_operators(kind, has_kernel, tmp_path):
    base = save_tiny(kind, tmp_path / "base")
    with emulated(device=MPS) as accelerator, Operators(accelerator) as operators:
        run(base, "lm", tmp_path / "adapted", heldout=Corpus.of(DOCUMENTS[:4]), batch_size="auto")
        finetune(base, TASK, out=tmp_path / "tuned", **SHORT)
        assert language_model_loss(tmp_path / "adapted", DOCUMENTS, max_length=24)["nats"] > 0
    names = {one.name().removeprefix("aten::"): one for one in operators.found if one.namespace == "aten"}
    assert (len(names) > 50 and "native_layer_norm_backward" in names) or kind != "bert"
    missing = sorted(name for name, one in names.items() if not has_kernel(one) and name not in SUBSTITUTES)
    assert not missing
    assert not has_kernel(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
