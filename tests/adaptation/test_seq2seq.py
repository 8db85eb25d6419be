"""Adaptation of encoder-decoders: held-out loss, resuming, adapters, replay, rules, and what is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.evaluation.lm_loss import language_model_loss, read_targets
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.updates.layers import LayerwiseDecay
from tests.cases import each
from tests.tiny import TEXTS, pair_tokenizer, tiny_model

OPTIONS = {
    "steps": 3,
    "batch_size": 4,
    "precision": "fp32",
    "progress": False,
    "learning_rate": 1e-2,
    "max_length": 64,
}
TEXT = Corpus.of(TEXTS * 3)


@each("kind", ["t5", "bart"])
def test_the_held_out_loss_is_that_of_the_model_on_the_same_pairs(kind):
    model, tokenizer = tiny_model(kind), pair_tokenizer(kind)
    texts = [*TEXTS, ""]
    found = language_model_loss(model, texts, tokenizer=tokenizer, max_length=32)
    total = []
    for document in read_targets(model, tokenizer, texts, 32):
        for row in document.rows:
            ids = torch.from_numpy(row.ids)
            source, target = ids[ids >= 0], ~ids[ids < 0]
            logits = model(input_ids=source[None], labels=target[None]).logits[0]
            total.append(nn.functional.cross_entropy(logits, target, reduction="sum").item())
    assert found["per_text"][:-1] == pytest.approx(total, rel=1e-4) and found["per_text"][-1] == 0
    assert found["bits_per_byte"] == pytest.approx(sum(total) / found["bytes"] / np.log(2), rel=1e-4)
    again = language_model_loss(model, texts[::-1], tokenizer=tokenizer, max_length=32)
    assert again["per_text"][::-1] == pytest.approx(found["per_text"], rel=1e-5)
    sizes = [len(text.encode()) for text in TEXTS]  # infilling spells the whole text
    assert all(one <= size for one, size in zip(found["per_text_bytes"], sizes, strict=False))
    if kind == "bart":  # the target is the text
        assert sum(found["per_text_bytes"][:4]) == sum(sizes[:4])


def test_an_adapted_model_lowers_its_held_out_loss(encoder_decoders, tmp_path):
    measured = {"heldout": Corpus.of(TEXTS), "general": Corpus.of(TEXTS[:3]), "heldout_every": 1}
    made = adapt(encoder_decoders["t5"], TEXT, "lm", tmp_path / "whole", **measured, **{**OPTIONS, "steps": 6})
    lines = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    losses = [line["heldout"]["terms"]["denoising"] for line in lines if "heldout" in line]
    assert losses[-1] < losses[0] - 0.1 and all("general" in line for line in lines if "heldout" in line)
    manifest = json.loads((made.out / "acclimate.json").read_text())
    assert manifest["masking"]["name"] == "sentinels"
    assert "text2text-generation" in (made.out / "README.md").read_text()
    loaded = load_language_model(made.out)
    assert type(loaded.model).__name__ == "T5ForConditionalGeneration"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bart", {"adapter": "lora r=2", "replay": Corpus.of(TEXTS[:4])}),
        ("t5", {"rules": ["l2-sp strength=0.1", "layer-decay factor=0.5"], "masking": "denoisers"}),
        pytest.param(
            "t5",
            {"method": "kd", "precision": "bf16", "gradient_checkpointing": True},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "bart", {"rules": ["freeze names=encoder"], "masking": "infilling shuffle=false"}, marks=pytest.mark.slow
        ),
    ],
)
def test_what_trains(encoder_decoders, tmp_path, kind, options):
    place = tmp_path / "out"
    options = dict(options)
    method = options.pop("method", "lm")
    made = adapt(encoder_decoders[kind], TEXT, method, place, **{**OPTIONS, **options})
    before, after = (load_language_model(path).model.state_dict() for path in (encoder_decoders[kind], made.out))
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved and all(value.isfinite().all() for value in after.values())
    frozen = any("freeze" in rule for rule in options.get("rules", ()))
    assert any("encoder.layers" in name or "encoder.block" in name for name in moved) is not frozen
    if "adapter" in options:
        assert made.adapter["difference"]["relative"] < 1e-5 < made.adapter["change"]["relative"]


@each(
    ("options", "message"),
    [
        ({"method": "dga"}, "'dga' is for masked and causal language models"),
        ({"method": "mlm"}, "'mlm' is for masked language models"),
        ({"masking": "span"}, "choose one of denoisers, infilling, sentinels"),
        ({"masking": "infilling"}, "no mask token"),
        ({"layout": "packed"}, "one text per row"),
        ({"documents": "joined"}, "cannot be joined for a seq2seq"),
    ],
)
def test_what_is_refused_by_name(encoder_decoders, tmp_path, options, message):
    method = options.pop("method", "lm")
    with pytest.raises(UserError, match=message):
        adapt(encoder_decoders["t5"], TEXT, method, tmp_path / "out", **{**OPTIONS, **options})


def test_corruptions_are_refused_for_other_models(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="'sentinels' is for encoder-decoders"):
        adapt(tiny_bert, TEXT, "lm", tmp_path / "out", masking="sentinels", **OPTIONS)


def test_layer_decay_goes_down_both_stacks():
    model = tiny_model("bart")
    attach(model)
    factors = LayerwiseDecay(model, 0.5).learning_rate_factors()
    for stack in ("encoder", "decoder"):
        assert factors[f"model.{stack}.layers.1.fc1.weight"] == 0.5
        assert factors[f"model.{stack}.layers.0.fc1.weight"] == 0.25
        assert factors[f"model.{stack}.embed_positions.weight"] == 0.125
    assert factors["model.shared.weight"] == 0.125
