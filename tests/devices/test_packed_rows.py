"""Packed rows in the fused attention kernel of an accelerator, which can return NaN for queries without keys."""

from __future__ import annotations

import torch
from torch.nn import functional

from acclimate.base.device import to_device
from acclimate.models.encoding import encode
from acclimate.models.probe import attach
from tests.accelerator import emulated
from tests.cases import each
from tests.tiny import ENCODERS, tiny_model

TEXT = torch.tensor([[0] * 3 + [1] * 5 + [-1] * 4, [2] * 6 + [3] * 5 + [-1]])
IDS = torch.arange(10, 34).view(2, 12) * (TEXT >= 0)


@each("family", sorted(ENCODERS))
def test_every_query_attends_to_something_and_padding_to_no_text(family, monkeypatch):
    masks, kernel = [], functional.scaled_dot_product_attention

    def spy(*args, attn_mask, **options):
        masks.append(attn_mask)
        return kernel(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", spy)
    with emulated():
        model = to_device(tiny_model(family))
        attach(model)
        masks.clear()
        packed = encode(model, IDS.to("cuda"), TEXT.to("cuda")).cpu()
        assert masks
        assert all(mask.any(-1).all() for mask in masks)
        for row in range(2):
            alone = [IDS[row][TEXT[row] == text][None].to("cuda") for text in TEXT[row].unique() if text >= 0]
            expected = [encode(model, ids, torch.zeros_like(ids)).cpu()[0] for ids in alone]
            torch.testing.assert_close(packed[row][TEXT[row] >= 0], torch.cat(expected), atol=1e-5, rtol=1e-4)
