"""The gated attention function against that of transformers."""

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForSequenceClassification

from acclimate.models.attention import ATTENTION_NAME, EAGER_ATTENTION_NAME

COMMON = {"vocab_size": 60, "pad_token_id": 0, "num_labels": 3}
DECODERS = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "llama": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [ATTENTION_NAME, EAGER_ATTENTION_NAME])
def test_decoders_stay_causal(kind, padded, name):
    """Without padding, transformers passes no mask and leaves causality to the attention function."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **COMMON, **DECODERS[kind])
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="sdpa").eval()
    ids = torch.randint(5, 60, (3, 9))
    mask = torch.ones_like(ids)
    if padded:
        ids[1, 6:], mask[1, 6:] = 0, 0
    expected = model(input_ids=ids, attention_mask=mask)
    model.set_attn_implementation(name)
    found = model(input_ids=ids, attention_mask=mask)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-6)


def test_masks_of_packed_rows_are_combined_once_for_all_layers():
    from acclimate.models import attention

    mask, first, second = torch.ones(2, 1, 4, 4).bool(), torch.eye(4).bool()[None, None], torch.ones(1, 1, 4, 4).bool()
    once = attention._combined_mask(mask, first)
    assert torch.equal(once, mask & first)
    assert attention._combined_mask(mask, first) is once
    assert torch.equal(attention._combined_mask(mask, second), mask)


def test_autocast_with_inputs_of_several_types():
    """Rotary embeddings in float32 leave queries and keys in float32, and values in bfloat16."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 5, 5).bool()
    mask[1, :, :, 3:] = mask[0, :, 2] = False  # and a query that attends to nothing
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = AttentionInterface()[EAGER_ATTENTION_NAME](
            torch.nn.Identity(), query, key, value.bfloat16(), mask, dropout=0.1
        )
    assert found.dtype == torch.bfloat16
    found.float().square().sum().backward()
    assert all(bool(part.grad.isfinite().all()) and part.grad.dtype == torch.float32 for part in (query, key, value))
