"""Precision, caches of the math libraries, and the default device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from acclimate.base import device


def test_fast_products_are_enabled_on_each_call(monkeypatch):
    """The result of the test product is cached, but another library may have reset the precision."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        if device.enable_fast_fp32_matmul():
            assert torch.get_float32_matmul_precision() == "medium"
            torch.set_float32_matmul_precision("highest")
            assert device.enable_fast_fp32_matmul()
            assert torch.get_float32_matmul_precision() == "medium"
        else:
            assert torch.get_float32_matmul_precision() == "highest"
        torch.set_float32_matmul_precision("highest")
        monkeypatch.setattr(device, "_medium_precision_is_exact", lambda: False)
        assert not device.enable_fast_fp32_matmul()
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


def test_cudnn_attention_is_off_on_an_accelerator(monkeypatch):
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        device.enable_fast_fp32_matmul()
        assert torch.backends.cuda.cudnn_sdp_enabled()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert not device.enable_fast_fp32_matmul()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(("amx", "kept"), [(False, device.ONEDNN_CACHE_SIZE), (True, device.ONEDNN_CACHE_SIZE_AMX)])
def test_more_compiled_products_are_kept_with_amx(monkeypatch, amx, kept):
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        monkeypatch.setenv(name, "")  # monkeypatch then restores the variable
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(device, "_medium_precision_is_exact", lambda: False)
    device.enable_fast_fp32_matmul()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == str(kept)
    assert os.environ["LRU_CACHE_CAPACITY"] == str(device.TORCH_LRU_CACHE_SIZE)


def test_environment_variables_take_precedence(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "77")
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    device.enable_fast_fp32_matmul()
    assert (os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"], os.environ["LRU_CACHE_CAPACITY"]) == ("77", "7")


SHAPES = """
import torch
from acclimate.base.device import enable_fast_fp32_matmul
enable_fast_fp32_matmul()
own = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
weight, texts = torch.randn(768, 256).bfloat16(), torch.randn(1024, 768).bfloat16()
for rows in range(1, 25):
    texts[:rows] @ weight
before = own()
for rows in range(25, 1025):
    texts[:rows] @ weight
print(own() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not (sys.platform == "linux" and device.has_fast_bf16()), reason="reads /proc, multiplies bf16 by oneDNN"
)
def test_a_thousand_shapes_do_not_fill_the_memory():
    """oneDNN's own limit is not enough, because each thread would cache a thousand kernels."""

    def growth(of_a_thread: int) -> int:
        kept = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "40", "LRU_CACHE_CAPACITY": str(of_a_thread)}
        done = subprocess.run(
            [sys.executable, "-c", SHAPES], env={**os.environ, **kept}, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert growth(device.TORCH_LRU_CACHE_SIZE) < growth(1_024) / 4


@pytest.mark.parametrize(("precision", "is_fast"), [("bf16", False), ("bf16", True), ("auto", False), ("fp32", False)])
def test_bf16_without_instructions_for_it_is_reported(monkeypatch, caplog, precision, is_fast):
    monkeypatch.setattr(device, "has_fast_bf16", lambda kind: is_fast)
    device.choose_precision(precision, torch.device("cpu"))
    assert ("no bf16 instructions" in caplog.text) == (precision == "bf16" and not is_fast)
