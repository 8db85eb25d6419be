"""The input of the first layer, on every supported architecture."""

from __future__ import annotations

import pytest
import torch

from acclimate.models.encoding import encode, encode_with_embeddings
from acclimate.models.probe import attach
from tests.tiny import ENCODERS, tiny_model

IDS = torch.tensor([[2, 10, 11, 12, 3], [2, 20, 3, 0, 0]])
TEXT = torch.tensor([[0] * 5, [1] * 3 + [-1] * 2])
FIRST = {
    "albert": "encoder.albert_layer_groups.0.albert_layers.0",
    "distilbert": "transformer.layer.0",
    "modernbert": "layers.0",
}


@pytest.mark.parametrize("kind", sorted(ENCODERS))
def test_embeddings_are_the_input_of_the_first_layer_in_the_same_pass(kind):
    """With dropout, so that another pass would give other numbers. ELECTRA and ALBERT widen their embeddings."""
    model = tiny_model(kind)
    attach(model)
    given = []
    layer = model.base_model.get_submodule(FIRST.get(kind, "encoder.layer.0"))
    layer.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    model.train()
    hidden, embedded = encode_with_embeddings(model, IDS, TEXT)
    assert embedded.shape == hidden.shape == (2, 5, 32)
    assert embedded.requires_grad
    torch.testing.assert_close(embedded, given[0], atol=0, rtol=0)
    model.eval()
    torch.testing.assert_close(encode_with_embeddings(model, IDS, TEXT)[0], encode(model, IDS, TEXT), atol=0, rtol=0)
