"""Shapes are rounded up as far as the model can read, and padding at chosen positions changes nothing."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from acclimate.models.batching import PaddingPolicy, chosen_positions, padding_multiple, padding_policy
from tests.tiny import tiny_model


@given(st.integers(1, 600), st.integers(1, 64), st.integers(1, 600))
def test_rows_are_padded_to_a_multiple_that_the_model_can_read(width, multiple, widest):
    width = min(width, widest)
    padded = PaddingPolicy(width=multiple, widest=widest).wide(width)
    assert width <= padded <= widest
    assert padded % multiple == 0 or padded == widest
    assert padded - width < multiple


def test_padding_counts_by_its_price():
    text = torch.tensor([[0, 0, 0, -1], [1, -1, -1, -1]])
    assert PaddingPolicy().batch_cost(text) == 8
    assert PaddingPolicy(padding=0.25).batch_cost(text) == 5
    assert PaddingPolicy(padding=0.25).batch_cost(text[:1, :3]) == 3


def test_a_model_whose_positions_are_no_multiple_is_not_padded_by_its_tokenizer():
    model = tiny_model("bert")
    model.config.max_position_embeddings = 64
    assert padding_multiple(model) == padding_policy(model).width == 8
    model.config.max_position_embeddings = 60
    assert padding_multiple(model) == 1
    assert padding_policy(model).widest == 60


@given(st.lists(st.booleans(), max_size=80))
def test_chosen_positions_repeat_the_first_until_their_number_is_round(flags):
    chosen = torch.tensor(flags, dtype=torch.bool)
    places = chosen_positions(chosen).tolist()
    true = [place for place, flag in enumerate(flags) if flag]
    assert places[: len(true)] == true
    assert set(places[len(true) :]) <= set(true[:1])
    assert len(places) % 32 == 0
