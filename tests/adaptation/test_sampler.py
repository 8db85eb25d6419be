"""Each epoch visits every text once, and steps across its end have no duplicates."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.engine.sampler import EpochSampler

sizes = st.tuples(st.integers(1, 90), st.integers(1, 30))


@settings(deadline=None)
@given(sizes, st.integers(0, 3), st.integers(1, 9))
def test_each_epoch_visits_every_text_once(size, seed, epochs):
    texts, batch_size = size
    order = EpochSampler(texts, batch_size, seed)
    read = [text for step in range(epochs * texts // batch_size + 1) for text in order.of(step)]
    for epoch in range(len(read) // texts):
        assert sorted(read[epoch * texts : (epoch + 1) * texts]) == list(range(texts))


@settings(deadline=None)
@given(sizes, st.integers(0, 3))
def test_no_step_has_duplicate_texts_if_there_are_enough(size, seed):
    texts, batch_size = size
    order = EpochSampler(texts, batch_size, seed)
    for step in range(4 * texts // batch_size + 1):
        read = order.of(step)
        if texts >= 3 * batch_size:
            assert len(set(read)) == len(read)


@settings(deadline=None)
@given(sizes, st.integers(0, 3), st.integers(0, 200))
def test_a_step_does_not_depend_on_earlier_requests(size, seed, step):
    texts, batch_size = size
    in_turn = EpochSampler(texts, batch_size, seed)
    for earlier in range(step):
        in_turn.of(earlier)
    assert in_turn.of(step) == EpochSampler(texts, batch_size, seed).of(step)


def test_without_swapping_steps_would_have_duplicates():
    drawn = [np.random.default_rng([0, 1, epoch]).permutation(50) for epoch in range(8)]
    steps = np.concatenate(drawn).reshape(-1, 16)
    assert any(len(set(step)) < 16 for step in steps.tolist())
    order = EpochSampler(50, 16, 0)
    assert all(len(set(order.of(step))) == 16 for step in range(len(steps)))
    changed = sum(step != order.of(number) for number, step in enumerate(steps.tolist()))
    assert 0 < changed < len(steps) / 2  # all others keep the sampled order


def test_a_late_epoch_needs_no_earlier_ones(monkeypatch):
    drawn = []
    draw = EpochSampler._drawn
    monkeypatch.setattr(EpochSampler, "_drawn", lambda order, epoch: drawn.append(epoch) or draw(order, epoch))
    assert len(EpochSampler(1_001, 64, 0).of(10**12)) == 64
    assert len(drawn) <= 4  # a step spans at most two epochs, and each epoch needs the one before it
    assert len(set(EpochSampler(193, 64, 0).of(10**12))) == 64
