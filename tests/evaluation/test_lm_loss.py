"""The held-out loss: the same masked tokens for all models, whatever the batches."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.evaluation.lm_loss import _choose_masked_positions, language_model_loss
from acclimate.models.encoding import encode
from acclimate.models.families import language_head
from acclimate.models.probe import attach
from tests.cases import each
from tests.tiny import TEXTS, tiny_model, tiny_tokenizer


def measure(texts, kind="bert", **options):
    return language_model_loss(tiny_model(kind), texts, tokenizer=tiny_tokenizer(), max_length=40, **options)


def test_equals_a_loop_over_texts():
    tokenizer, model = tiny_tokenizer(), tiny_model("bert")
    found = measure(TEXTS)
    total = count = 0
    for index, text in enumerate(TEXTS):
        ids = torch.tensor(tokenizer(text, truncation=True, max_length=40)["input_ids"])
        places = _choose_masked_positions(ids.numpy(), tokenizer.all_special_ids, [], 0.15, 13)
        labels = torch.full_like(ids, -100)
        labels[places] = ids[places]
        asked = ids.clone()
        asked[places] = tokenizer.mask_token_id
        loss = model(input_ids=asked[None], labels=labels[None]).loss.item()
        assert abs(loss * len(places) - found["per_text"][index]) < 1e-4
        total, count = total + loss * len(places), count + len(places)
    assert abs(total / count - found["nats"]) < 1e-5
    assert found["masked"] == count == sum(found["per_text_masked"])


def test_a_special_token_in_a_text_is_text():
    model, tokenizer = tiny_model("bert").eval(), tiny_tokenizer()
    with patch("acclimate.evaluation.lm_loss._choose_masked_positions", wraps=_choose_masked_positions) as asked:
        language_model_loss(model, ["the food [MASK] was [SEP] good"], tokenizer=tokenizer)
    ids = asked.call_args.args[0].tolist()
    assert tokenizer.mask_token_id not in ids and ids.count(tokenizer.sep_token_id) == 1


def test_neither_order_nor_batches_matter(monkeypatch):
    forwards = measure(TEXTS)
    backwards = measure(TEXTS[::-1])
    assert forwards["per_text_masked"] == backwards["per_text_masked"][::-1]
    assert forwards["per_text"] == pytest.approx(backwards["per_text"][::-1], abs=1e-5)
    monkeypatch.setattr("acclimate.evaluation.lm_loss.micro_batch_tokens", lambda *_, **__: 16)
    assert measure(TEXTS)["per_text"] == pytest.approx(forwards["per_text"], abs=1e-5)


def test_less_memory_is_more_forwards(monkeypatch):
    whole, read = measure(TEXTS), []
    monkeypatch.setattr(
        "acclimate.evaluation.lm_loss.encode",
        lambda model, ids, text, **known: read.append(ids.shape) or encode(model, ids, text, **known),
    )
    monkeypatch.setenv("ACCLIMATE_MEMORY_GB", "0.0005")
    assert measure(TEXTS)["per_text"] == pytest.approx(whole["per_text"], abs=1e-5)
    assert len(read) > 2
    assert all(rows == 1 or rows * width * 44 * 32 < 1e5 for rows, width in read)


def test_text_without_an_ordinary_token():
    with pytest.raises(UserError, match="no token"):
        measure(["", ""])
    assert measure(["", "pizza"])["per_text_masked"] == [0, 1]


@each("kind", ["bert", "roberta", "modernbert"])
def test_the_loss_depends_on_neither_batches_nor_packing(kind, monkeypatch):
    """The loss that a study reports does not depend on the texts per forward pass, nor on packing."""
    model, tokenizer = tiny_model(kind), tiny_tokenizer()
    found = []
    for budget in (1, 24, 100_000):
        monkeypatch.setattr("acclimate.evaluation.lm_loss.micro_batch_tokens", lambda *_, size=2 * budget, **__: size)
        found.append(language_model_loss(model, TEXTS, tokenizer=tokenizer, max_length=40))
    for other in found[1:]:
        assert other["nats"] == pytest.approx(found[0]["nats"], abs=1e-5)
        assert other["bits_per_byte"] == pytest.approx(found[0]["bits_per_byte"], abs=1e-5)
    attach(model)
    encoded = [np.array(ids) for ids in tokenizer(TEXTS[:4], truncation=True, max_length=40)["input_ids"]]
    asked, labels = [], []
    for ids in encoded:
        places = _choose_masked_positions(ids, tokenizer.all_special_ids, [], 0.15, 13)
        label = np.full(len(ids), -100)
        label[places] = ids[places]
        asked.append(np.where(label >= 0, tokenizer.mask_token_id, ids))
        labels.append(label)
    row = torch.from_numpy(np.concatenate(asked))[None]
    text = torch.from_numpy(np.repeat(np.arange(4), [len(ids) for ids in encoded]))[None]
    with torch.no_grad():
        logits = language_head(model)(encode(model, row, text))[0]
    losses = torch.nn.functional.cross_entropy(
        logits, torch.from_numpy(np.concatenate(labels)), ignore_index=-100, reduction="none"
    )
    packed = [float(losses[text[0] == number].sum()) for number in range(4)]
    assert packed == pytest.approx(found[0]["per_text"][:4], abs=1e-4)


def test_bits_per_byte_by_hand():
    tokenizer = tiny_tokenizer()
    texts = ["pizza, déjà  vu!", "", "the food was good and the waiter was kind. \n"]
    found = language_model_loss(tiny_model("bert"), texts, tokenizer=tokenizer, max_length=40)
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts)
    size = len(texts[0].encode()) + len(texts[2].encode())
    assert (found["tokens"], found["bytes"]) == (tokens, size)
    assert found["bits_per_byte"] == pytest.approx(found["nats"] * tokens / size / math.log(2))


def test_bytes_are_those_of_the_tokens_that_were_read():
    tokenizer = tiny_tokenizer()
    found = language_model_loss(tiny_model("bert"), ["the soup was so cold"], tokenizer=tokenizer, max_length=5)
    assert (found["tokens"], found["bytes"]) == (3, len("the soup was"))
    whole = language_model_loss(tiny_model("bert"), ["the soup was  "], tokenizer=tokenizer, max_length=5)
    assert (whole["tokens"], whole["bytes"]) == (3, len("the soup was  "))


def test_an_unknown_token_counts_with_the_mean_loss():
    tokenizer = tiny_tokenizer()
    found = language_model_loss(tiny_model("bert"), ["the soup was 漢 cold"], tokenizer=tokenizer, max_length=40)
    assert tokenizer.unk_token_id in tokenizer("漢")["input_ids"]
    assert found["tokens"] == 5 and found["bytes"] == len("the soup was 漢 cold".encode())


def test_bytes_are_those_of_the_tokens_that_were_read_from_the_end():
    tokenizer = tiny_tokenizer()
    tokenizer.truncation_side = "left"
    found = language_model_loss(tiny_model("bert"), ["the soup was so cold "], tokenizer=tokenizer, max_length=5)
    assert (found["tokens"], found["bytes"]) == (3, len("so cold "))


def test_texts_longer_than_the_model_can_read_are_refused():
    tokenizer = tiny_tokenizer()
    long = "the soup was cold " * 40
    with pytest.raises(UserError, match="max_length=100 is more than the 80 positions"):
        language_model_loss(tiny_model("bert"), [long], tokenizer=tokenizer, max_length=100)
    assert language_model_loss(tiny_model("bert"), ["cold soup"], tokenizer=tokenizer, max_length=100)["tokens"] == 2
    assert language_model_loss(tiny_model("bert"), [long], tokenizer=tokenizer, max_length=80)["tokens"] == 78
