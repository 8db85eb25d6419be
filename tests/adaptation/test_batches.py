"""Steps depend only on the seed and their number; the split into micro-batches neither loses nor mixes texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.engine.batches import Collator, StepDataset
from acclimate.models.batching import MINIMAL_PADDING, PaddingPolicy
from acclimate.models.kinds import MASKED
from acclimate.parts.masking import RandomMasking, resolve
from tests.adaptation.helpers import rows
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(1, 200),
    st.sampled_from(["padded", "packed"]),
    st.integers(0, 99),
    st.sampled_from([MINIMAL_PADDING, PaddingPolicy(8, 16, max_width=42)]),
)
def test_every_text_occurs_once_and_complete(lengths, tokens, layout, seed, policy):
    texts = [np.array([2, *[5 + (i + k) % 90 for k in range(n)], 3]) for i, n in enumerate(lengths)]
    collator = Collator.of(TOKENIZER, RandomMasking(0.3), MASKED, tokens, layout, policy=policy)
    found = []
    for batch in collator(texts, np.random.default_rng(seed)):
        assert sorted(set(batch.text[batch.text >= 0].tolist())) == list(range(batch.texts))
        if len(batch.original) > 1:
            assert batch.original.numel() <= tokens
        if layout == "padded":
            assert len(batch.text) == batch.texts
        assert batch.text.shape[1] % policy.multiple == 0 or batch.text.shape[1] == policy.max_width
        assert (batch.masked[batch.text < 0] == TOKENIZER.pad_token_id).all()
        found += [tuple(batch.original[batch.text == number].tolist()) for number in range(batch.texts)]
        special = (batch.original == 2) | (batch.original == 3) | (batch.text < 0)
        assert (batch.labels[special] == -100).all()
        kept = batch.labels < 0
        assert (batch.masked[kept] == batch.original[kept]).all()
        assert (batch.labels[~kept] == batch.original[~kept]).all()
    assert sorted(found) == sorted(tuple(text.tolist()) for text in texts)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=30),
    st.integers(1, 200),
    st.sampled_from(["padded", "packed"]),
)
def test_sources_with_a_masking_of_their_own_are_masked_by_it_alone(read, tokens, layout):
    def all_or_none(masks):
        return lambda ids, text, allowed, vocabulary, rng: (ids, np.where(allowed & masks, ids, -100))

    texts = {i: np.array([2, *[5 + (i + k) % 90 for k in range(n)], 3]) for i, (n, _) in enumerate(read)}
    sources = {i: source for i, (_, source) in enumerate(read)}
    collator = Collator.of(TOKENIZER, all_or_none(False), MASKED, tokens, layout)
    collator = replace(collator, maskings={1: all_or_none(True), 2: all_or_none(False), 7: all_or_none(True)})
    lengths = [len(text) for text in texts.values()]
    order = np.argsort(-np.array(lengths), kind="stable")
    blocks = [(order[::2], np.random.default_rng(0)), (order[1::2], np.random.default_rng(1))][: 1 + (len(order) > 1)]
    seen = 0
    for batch in collator.build(texts, blocks, collator.plan(lengths), sources):
        for number in range(batch.texts):
            own = batch.text == number
            expected = batch.original[own] if batch.source[number] == 1 else torch.full_like(batch.original[own], -100)
            assert (batch.labels[own][1:-1] == expected[1:-1]).all()
            seen += 1
    assert seen == len(texts)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.sampled_from(["random", "whole-word", "span"]),
    st.integers(0, 99),
)
def test_masks_do_not_depend_on_the_split(lengths, strategy, seed):
    """All methods, with any number of views or processes, train on the same masks."""
    texts = [np.array([2, 5 + i, *[5 + (i + k) % 90 for k in range(n)], 3]) for i, n in enumerate(lengths)]
    seen = []
    for tokens, layout in ((1, "padded"), (60, "padded"), (10_000, "padded"), (90, "packed")):
        collator = Collator.of(TOKENIZER, resolve(strategy, 0.3), MASKED, tokens, layout)
        batches = collator(texts, np.random.default_rng(seed))
        here = [(batch, batch.text == number) for batch in batches for number in range(batch.texts)]
        seen.append(
            sorted(
                [batch.original[at].tolist(), batch.masked[at].tolist(), batch.labels[at].tolist()]
                for batch, at in here
            )
        )
    assert all(one == seen[0] for one in seen)


def steps(seed=0, **options):
    collator = Collator.of(TOKENIZER, RandomMasking(), MASKED, 100)
    return StepDataset(rows(3), collator, **{"batch_size": 7, "steps": 9, "seed": seed, **options})


def same(a, b):
    return all((x.masked == y.masked).all() and (x.original == y.original).all() for x, y in zip(a, b, strict=True))


def test_a_step_is_the_same_whenever_it_is_asked_for():
    assert same(steps()[5], steps()[5])
    first = steps()
    for step in range(5):
        first[step]
    assert same(first[5], steps()[5])


def test_seeds_and_steps_differ():
    assert steps().indices(0) != steps(1).indices(0)
    assert steps().indices(0) != steps().indices(1)


def test_an_epoch_visits_every_text_once():
    data = steps(batch_size=5, steps=100)
    total = len(data.rows)
    visited = [index for step in range(100) for index in data.indices(step)]
    for epoch in range(len(visited) // total):
        assert sorted(visited[epoch * total : (epoch + 1) * total]) == list(range(total))
    assert visited[:total] != visited[total : 2 * total]
