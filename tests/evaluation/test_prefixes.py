"""Losses of rows that begin alike: equal to the losses of each row by itself, with fewer tokens read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.evaluation.lm_loss import TargetRow, summed_losses
from acclimate.evaluation.prefixes import TREE_TOKENS, build_tree, shared_losses, tree_limit
from acclimate.models.probe import attach
from tests.cases import each
from tests.tiny import DECODERS, HYBRIDS, decoder_tokenizer, tiny_model, tiny_tokenizer

QUICK = {"llama", "gemma2", "qwen3_5"}
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in sorted(DECODERS)]
WIDE = {"sliding_window": 96}
"""Tiny decoders have windows of 8 tokens."""


def questions(count: int = 6, choices: int = 4, prompt: int = 40, seed: int = 0) -> list[TargetRow]:
    """Return rows of questions with choices; some choices begin alike, and one question has no long prompt."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        before = rng.integers(3, 200, prompt if number else 3)
        first = rng.integers(3, 200, 2)
        for choice in range(choices):
            own = rng.integers(3, 200, 1 + choice)
            ids = np.concatenate([before, first, own] if choice % 2 else [before, own])
            labels = np.full_like(ids, -100)
            labels[len(before) - 1 : -1] = ids[len(before) :]
            rows.append(TargetRow(ids, labels))
    return rows


class Reads:
    """Counts the tokens that a model looks up, padding included."""

    def __init__(self, model) -> None:
        self.tokens = 0
        model.get_input_embeddings().register_forward_pre_hook(self.add)

    def add(self, _, inputs) -> None:
        self.tokens += inputs[0].numel()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_losses_of_rows_by_themselves_in_any_order(kind):
    changes = WIDE if kind in ("gemma2", "gemma3", "mistral") else {}
    model, tokenizer = tiny_model(kind, **changes), decoder_tokenizer(kind)
    attach(model)
    rows = questions()
    expected, found = summed_losses(model, tokenizer, rows), shared_losses(model, tokenizer, rows)
    for one, other in zip(expected, found, strict=True):
        assert one[1] == other[1] and one[0] == pytest.approx(other[0], rel=1e-5)
    order = np.random.default_rng(1).permutation(len(rows))
    again = shared_losses(model, tokenizer, [rows[place] for place in order])
    assert again == [found[place] for place in order]
    assert (tree_limit(model) > 0) == (kind not in HYBRIDS)


def test_a_prompt_is_read_once():
    model, tokenizer = tiny_model("llama"), decoder_tokenizer()
    attach(model)
    rows, reads = questions(count=10, prompt=80), Reads(model)
    summed_losses(model, tokenizer, rows)
    apart, reads.tokens = reads.tokens, 0
    shared_losses(model, tokenizer, rows)
    assert apart >= 9 * 4 * 80 and reads.tokens < 0.3 * apart
    assert tree_limit(tiny_model("llama")) == 0  # not prepared


def test_few_shot_examples_are_read_once_for_many_questions():
    model, tokenizer = tiny_model("llama", max_position_embeddings=2048), decoder_tokenizer()
    attach(model)
    rows = [
        TargetRow(np.append(np.arange(500) % 200 + 3, row.ids), np.append(np.full(500, -100), row.labels))
        for row in questions(count=8, prompt=20)
    ]
    reads = Reads(model)
    found = shared_losses(model, tokenizer, rows)
    assert reads.tokens < 1_000 < 0.1 * sum(len(row.ids) for row in rows)
    assert [loss for loss, _ in found] == pytest.approx(
        [loss for loss, _ in summed_losses(model, tokenizer, rows)], rel=1e-5
    )


@each(
    ("kind", "changes", "limit"),
    [
        ("llama", {}, 128),
        ("llama", {"max_position_embeddings": 10_000}, TREE_TOKENS),
        ("mistral", {}, 8),
        ("mistral", {"sliding_window": None}, 128),
        ("bert", {}, 0),
    ],
)
def test_a_tree_is_no_longer_than_a_window_of_attention(kind, changes, limit):
    model = tiny_model(kind, **changes)
    attach(model)
    assert tree_limit(model) == limit


def test_rows_of_a_masked_model_are_read_as_ever():
    model, tokenizer = tiny_model("bert"), tiny_tokenizer()
    attach(model)
    rows = [TargetRow(row.ids % 60, np.where(row.labels < 0, -100, row.labels % 60)) for row in questions(2)]
    found, expected = shared_losses(model, tokenizer, rows), summed_losses(model, tokenizer, rows)
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in expected], rel=1e-5)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8))
def test_the_way_to_a_token_is_the_row_before_it(texts):
    rows = [TargetRow(np.array(text), np.array(text)) for text in sorted(texts)]
    tree = build_tree(rows)
    place = np.arange(len(tree.ids))
    assert len(tree.ids) == len({tuple(text[: stop + 1]) for text in texts for stop in range(len(text))})
    for row, path in zip(rows, tree.paths, strict=True):
        assert tree.ids[path].tolist() == row.ids.tolist()
        assert tree.depth[path].tolist() == list(range(len(path)))
        for step, node in enumerate(path):
            seen = place[(place <= node) & (node < tree.end)]
            assert seen.tolist() == path[: step + 1].tolist()
