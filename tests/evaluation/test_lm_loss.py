"""The masked-LM loss for comparisons: same questions for everyone, whatever the batches."""

from __future__ import annotations

import pytest
import torch

from acclimate.errors import UserError
from acclimate.evaluation import masked_lm_loss
from acclimate.evaluation.lm_loss import _mask
from tests.tiny import TEXTS, tiny_model, tiny_tokenizer


def measure(texts, kind="bert", **options):
    return masked_lm_loss(tiny_model(kind), texts, tokenizer=tiny_tokenizer(), max_length=40, **options)


def test_equals_a_loop_over_texts():
    tokenizer, model = tiny_tokenizer(), tiny_model("bert")
    found = measure(TEXTS)
    total = count = 0
    for index, text in enumerate(TEXTS):
        ids = torch.tensor(tokenizer(text, truncation=True, max_length=40)["input_ids"])
        places = _mask(ids.numpy(), tokenizer.all_special_ids, [], 0.15, 13)
        labels = torch.full_like(ids, -100)
        labels[places] = ids[places]
        asked = ids.clone()
        asked[places] = tokenizer.mask_token_id
        loss = model(input_ids=asked[None], labels=labels[None]).loss.item()
        assert abs(loss * len(places) - found["per_text"][index]) < 1e-4
        total, count = total + loss * len(places), count + len(places)
    assert abs(total / count - found["nats"]) < 1e-5
    assert found["masked"] == count == sum(found["per_text_masked"])


def test_order_and_company_do_not_matter(monkeypatch):
    forwards = measure(TEXTS)
    backwards = measure(TEXTS[::-1])
    assert forwards["per_text_masked"] == backwards["per_text_masked"][::-1]
    assert forwards["per_text"] == pytest.approx(backwards["per_text"][::-1], abs=1e-5)
    monkeypatch.setattr("acclimate.evaluation.lm_loss.micro_batch_tokens", lambda device: 8)
    assert measure(TEXTS)["per_text"] == pytest.approx(forwards["per_text"], abs=1e-5)


def test_text_without_an_ordinary_token():
    with pytest.raises(UserError, match="no token"):
        measure(["", ""])
    assert measure(["", "pizza"])["per_text_masked"] == [0, 1]
