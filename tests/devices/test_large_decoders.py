"""A step of an 8 B decoder on ``meta`` tensors: what it would hold, and that no value of the device is asked for."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.kernels import Kernels, varlen
from acclimate.models import batching
from acclimate.models.attention import split_heads, use_attention
from acclimate.models.batching import padding_policy
from acclimate.models.families import KERNELS_ATTRIBUTE
from acclimate.models.kinds import CAUSAL
from acclimate.models.lora import LoRA
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling
from tests.tiny import decoder_tokenizer

LENGTHS = (1999, 1777, 1511, 997)
"""Primes, so that the numbers of tokens of a text are no factors of other sizes."""
VOCABULARY, WIDTH, INNER = 128_256, 4_096, 14_336


class Tensors(TorchDispatchMode):
    """The shapes of all tensors that operators return, of the forward and the backward pass."""

    def __init__(self):
        super().__init__()
        self.shapes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.shapes.setdefault(tuple(value.shape), func)
        return result


def decoder(layers):
    """A decoder of the shape of Llama 3 8B with some of its layers, on ``meta``, in bf16, as on a new GPU."""
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=VOCABULARY, head_dim=128, max_position_embeddings=8_192, pad_token_id=0,
        attention_dropout=0.1,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).bfloat16().train()
    kernels = Kernels("meta", unpadding=True, varlen_attention=True)
    setattr(model, KERNELS_ATTRIBUTE, kernels)
    use_attention(model, kernels)
    return model, split_heads(model, [(f"model.layers.{index}.self_attn", 32, 128) for index in range(layers)])


def step(layers, method, adapter, monkeypatch):
    """The shapes of all tensors of a step, and the positions whose logits are computed at a time."""
    monkeypatch.setattr(varlen, "_device_has_flash", lambda: True)
    monkeypatch.setitem(batching.LOGITS_AT_ONCE, "cuda", 2**27)  # a step of these texts has several parts
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)  # autocast does not know the device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    model, _ = decoder(layers)
    objectives = [LanguageModelling()]
    if method == "dga":
        objectives.append(GeneralKnowledgeContrast({"H": torch.rand(layers, 32, device="meta")}))
    if adapter:
        with torch.device("meta"):
            LoRA().insert(model)
    engine = Engine(model, objectives)
    policy = padding_policy(model)
    tokenizer = decoder_tokenizer("llama")
    collator = Collator.of(tokenizer, RandomMasking(0.3), CAUSAL, 10_000, "padded", engine.rewritings, policy, 2_048)
    rng = np.random.default_rng(0)
    (batch,) = collator([rng.integers(10, 300, length) for length in LENGTHS], rng)
    with Tensors() as tensors:
        engine.step([batch.to(torch.device("meta"))])
    assert engine.logit_rows < sum(LENGTHS) / 4
    return tensors.shapes, engine.logit_rows


SLOW = [(layers, method, adapter) for layers in (2, 32) for method in ("lm", "dga") for adapter in (False, True)]
SLOW.remove((2, "dga", True))


@pytest.mark.parametrize(
    ("layers", "method", "adapter"),
    [(2, "dga", True), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_no_tensor_has_pairs_of_tokens_or_all_logits(layers, method, adapter, monkeypatch):
    shapes, chunk = step(layers, method, adapter, monkeypatch)
    read = (3 if method == "dga" else 1) * sum(LENGTHS)
    read += -read % 16 or 16
    assert (1, read, INNER) in shapes and (chunk, VOCABULARY) in shapes, "the feed-forward and the logits were seen"
    many = {*LENGTHS, sum(LENGTHS), read}
    for shape, operator in shapes.items():
        size, name = math.prod(shape), f"{operator}: {shape}"
        assert sum(dim in many for dim in shape) < 2, name
        assert not size or all(size % dim**2 for dim in many), name
        if VOCABULARY in shape:
            assert size <= VOCABULARY * (WIDTH if WIDTH in shape else chunk), name
