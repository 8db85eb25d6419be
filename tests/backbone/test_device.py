"""Choices by the processor."""

from __future__ import annotations

import torch

from acclimate.backbone import device


def test_the_fast_products_are_switched_on_at_each_call(monkeypatch):
    """What was measured stays known; another library may have set the switch back meanwhile."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        if device.fast_fp32_matmul():
            assert torch.get_float32_matmul_precision() == "medium"
            torch.set_float32_matmul_precision("highest")
            assert device.fast_fp32_matmul()
            assert torch.get_float32_matmul_precision() == "medium"
        else:
            assert torch.get_float32_matmul_precision() == "highest"
        torch.set_float32_matmul_precision("highest")
        monkeypatch.setattr(device, "_medium_is_fp32", lambda: False)
        assert not device.fast_fp32_matmul()
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
