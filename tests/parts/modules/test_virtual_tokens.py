"""Virtual tokens: appended to every text, saved in ordinary folders, never predicted."""

from __future__ import annotations

import pytest
import torch
import transformers

from acclimate.base.errors import UserError
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.models.loading import load_language_model, virtual_ids
from acclimate.parts.modules import add_virtual_tokens
from acclimate.parts.modules.virtual_tokens import VIRTUAL_TOKEN_BIAS
from tests.cases import each
from tests.tiny import ENCODERS

TEXTS = ["the food was good", "cold soup and a slow waiter, a rude one!"]


@each("kind", sorted(ENCODERS))
def test_every_text_and_pair_ends_with_them_also_after_saving(encoders, kind, tmp_path):
    loaded = load_language_model(encoders[kind])
    longer = add_virtual_tokens(loaded.model, loaded.tokenizer, 3)
    ids = virtual_ids(longer)
    assert len(ids) == 3
    assert not virtual_ids(loaded.tokenizer)
    longer.save_pretrained(tmp_path)
    for tokenizer in (longer, transformers.AutoTokenizer.from_pretrained(tmp_path)):
        assert virtual_ids(tokenizer) == ids
        for texts in [(TEXTS[0],), tuple(TEXTS)]:
            assert tokenizer(*texts)["input_ids"] == [*loaded.tokenizer(*texts)["input_ids"], *ids]
            short = tokenizer(*texts, truncation=True, max_length=10)["input_ids"]
            assert short == [*loaded.tokenizer(*texts, truncation=True, max_length=7)["input_ids"], *ids]
        assert set(ids) <= set(tokenizer.all_special_ids)
        assert tokenizer.mask_token_id == loaded.tokenizer.mask_token_id


def test_segment_ids_of_a_pair_stay_the_same(tiny_bert, tmp_path):
    """Plain transformers must encode texts as in training."""
    loaded = load_language_model(tiny_bert)
    with_segments = type(loaded.tokenizer)(
        tokenizer_object=loaded.tokenizer.backend_tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **loaded.tokenizer.special_tokens_map,
    )
    before = with_segments(*TEXTS)
    longer = add_virtual_tokens(loaded.model, with_segments, 2)
    longer.save_pretrained(tmp_path)
    for tokenizer in (longer, transformers.AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer(*TEXTS)["token_type_ids"] == [*before["token_type_ids"], 1, 1]


@each("kind", sorted(ENCODERS))
def test_the_model_reads_but_never_predicts_them_and_loads_in_transformers(encoders, kind, tmp_path):
    loaded = load_language_model(encoders[kind])
    longer = add_virtual_tokens(loaded.model, loaded.tokenizer, 3)
    loaded.model.save_pretrained(tmp_path)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    logits = model(**longer(TEXTS[0], return_tensors="pt")).logits
    assert logits.isfinite().all()
    assert (logits[..., virtual_ids(longer)] < VIRTUAL_TOKEN_BIAS / 2).all()
    table = model.get_input_embeddings().weight
    before = model(**longer(TEXTS[0], return_tensors="pt")).logits[0, 1, :50]
    with torch.no_grad():
        table[virtual_ids(longer)] += torch.linspace(-1, 1, table.shape[1])
    assert not torch.allclose(before, model(**longer(TEXTS[0], return_tensors="pt")).logits[0, 1, :50], atol=1e-6)


def test_initial_vectors_are_those_of_ordinary_tokens_or_uniform(tiny_bert):
    for start in ("vocabulary", "uniform"):
        loaded = load_language_model(tiny_bert)
        old = loaded.model.get_input_embeddings().weight.detach().clone()
        ids = virtual_ids(add_virtual_tokens(loaded.model, loaded.tokenizer, 4, start=start, seed=3))
        new = loaded.model.get_input_embeddings().weight
        torch.testing.assert_close(new[: len(old)][5:100], old[5:100])
        among = [(new[index] == old).all(1).nonzero().flatten().tolist() for index in ids]
        if start == "vocabulary":
            special = set(loaded.tokenizer.all_special_ids)
            assert all(len(found) == 1 and not set(found) & special for found in among)
        else:
            assert not any(among)
            assert new[ids].abs().max() <= 0.5
            assert new[ids].std() > 0.2


def test_adding_virtual_tokens_twice_is_refused(tiny_bert):
    loaded = load_language_model(tiny_bert)
    longer = add_virtual_tokens(loaded.model, loaded.tokenizer, 1)
    with pytest.raises(UserError, match="already has virtual tokens"):
        add_virtual_tokens(loaded.model, longer, 1)


def test_the_held_out_loss_masks_the_same_tokens(tiny_bert, tmp_path):
    """Losses differ, since the model attends to the virtual tokens, but the masked tokens are the same."""
    loaded = load_language_model(tiny_bert)
    plain = language_model_loss(loaded.model, TEXTS, tokenizer=loaded.tokenizer, max_length=8)
    longer = add_virtual_tokens(loaded.model, loaded.tokenizer, 3)
    prompted = language_model_loss(loaded.model, TEXTS, tokenizer=longer, max_length=8)
    assert prompted["per_text_masked"] == plain["per_text_masked"]
    assert prompted["per_text"] != plain["per_text"]
    assert abs(prompted["nats"] - plain["nats"]) < 0.5
