"""Padded widths, and the number of chosen positions."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from acclimate.models.batching import PaddingPolicy, chosen_positions, padding_multiple, padding_policy
from tests.tiny import tiny_model


@given(st.integers(1, 600), st.integers(1, 64), st.integers(1, 600))
def test_rows_are_padded_to_a_multiple_that_the_model_can_read(width, multiple, widest):
    width = min(width, widest)
    padded = PaddingPolicy(multiple=multiple, max_width=widest).padded_width(width)
    assert width <= padded <= widest
    assert padded % multiple == 0 or padded == widest
    assert padded - width < multiple


def test_the_cost_of_padding():
    text = torch.tensor([[0, 0, 0, -1], [1, -1, -1, -1]])
    assert PaddingPolicy().batch_cost(text) == 8
    assert PaddingPolicy(padding_cost=0.25).batch_cost(text) == 5
    assert PaddingPolicy(padding_cost=0.25).batch_cost(text[:1, :3]) == 3


def test_a_tokenizer_pads_to_multiples_only_if_the_model_can_read_them():
    model = tiny_model("bert")
    model.config.max_position_embeddings = 64
    assert padding_multiple(model) == padding_policy(model).multiple == 8
    model.config.max_position_embeddings = 60
    assert padding_multiple(model) == 1
    assert padding_policy(model).max_width == 60


@given(st.lists(st.booleans(), max_size=80))
def test_chosen_positions_repeat_the_first_up_to_a_multiple(flags):
    chosen = torch.tensor(flags, dtype=torch.bool)
    places = chosen_positions(chosen).tolist()
    true = [place for place, flag in enumerate(flags) if flag]
    assert places[: len(true)] == true
    assert set(places[len(true) :]) <= set(true[:1])
    assert len(places) % 32 == 0
