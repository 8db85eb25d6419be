"""Text that models write: what a text depends on, and the distribution that it is sampled from."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from acclimate.models import generating
from acclimate.models.generating import Decoding, write_texts


@pytest.fixture(scope="module")
def writer(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama), AutoTokenizer.from_pretrained(tiny_llama)


ROWS = [[5, 6], [5, 6], [7], [8, 9, 10], [5, 6], [11, 12]]
PLACES = st.permutations(range(6)).flatmap(lambda order: st.integers(1, 6).map(lambda count: order[:count]))


@given(places=PLACES, tokens=st.sampled_from([1, 20, 10_000]))
def test_a_sampled_text_depends_on_its_seed_and_row_and_not_on_its_batch(writer, places, tokens):
    how, seeds = Decoding(6, (), 1.5, 3, 0.9), [3, 3, 3, 3, 4, 4]
    whole = write_texts(*writer, ROWS, how, seeds=seeds)
    assert len({tuple(one.ids) for one in whole}) == 6, "equal rows have other texts"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generating, "micro_batch_tokens", lambda model, times: tokens)
        state = torch.get_rng_state()
        some = write_texts(*writer, [ROWS[place] for place in places], how, seeds=[seeds[place] for place in places])
    assert torch.equal(state, torch.get_rng_state())
    wanted = [whole[place] for place in places]
    if 1 in places and (0 not in places or places.index(1) < places.index(0)):  # the first of two equal rows
        swap = {0: 1, 1: 0} if 0 in places else {1: 0}
        wanted = [whole[swap.get(place, place)] for place in places]
    assert some == wanted


def test_samples_have_the_probabilities_of_the_nucleus(writer):
    model, tokenizer = writer
    with torch.no_grad():
        chances = (model(torch.tensor([[5, 6]])).logits[0, -1] / 0.2).softmax(-1)
    ordered = chances.sort(descending=True)
    for top_p in (0.5, 1):
        kept = int((ordered.values.cumsum(0) < top_p).sum()) + 1 if top_p < 1 else len(chances)
        found = Counter(
            one.ids[0] if one.ids else tokenizer.eos_token_id
            for one in write_texts(model, tokenizer, [[5, 6]] * 3000, Decoding(1, (), 0.2, 1, top_p))
        )
        assert set(found) <= set(ordered.indices[:kept].tolist())
        for token in ordered.indices[:kept].tolist():
            chance = float(chances[token] / ordered.values[:kept].sum())
            assert abs(found[token] / 3000 - chance) < 4 * math.sqrt(chance / 3000) + 1e-3
