"""Losses of rows that begin alike, such as the choices of a question: what they have in common is read once.

Such rows are read as one row that is a tree: each token attends to those on the way to it, and has the position of its
own row. No cache of keys and values is needed, so it works with every attention that can read several texts in a row,
and the losses are those of the rows by themselves up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.device import copy_to
from acclimate.evaluation.lm_loss import TargetRow, summed_losses
from acclimate.models.batching import chosen_positions, logit_rows, micro_batch_tokens, padding_policy
from acclimate.models.encoding import encode_tree
from acclimate.models.families import first_position, language_head, longest_text, probe_of, rotary_switch
from acclimate.models.kinds import kind_of
from acclimate.parts.objectives.vocabulary import cross_entropy, map_logits

TREE_TOKENS = 2_048
"""Maximum tokens of a tree: the cost of attention grows with the square of them."""
LEAST_SHARE = 0.25
"""A row is read together with the one before it if they have at least this share of its tokens in common."""


class Tree(NamedTuple):
    """Rows with common beginnings as one row; see :func:`acclimate.models.encoding.encode_tree`.

    Attributes:
        ids: Token ids (tokens,).
        depth: Number of tokens before each in its own row (tokens,).
        end: Place after the last token that continues each one (tokens,).
        paths: Place of each token of each row.
    """

    ids: np.ndarray
    depth: np.ndarray
    end: np.ndarray
    paths: list[np.ndarray]


def shared_losses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Sequence[TargetRow]
) -> list[tuple[float, int]]:
    """Return the same as :func:`acclimate.evaluation.lm_loss.summed_losses`, and read common beginnings once.

    Which rows are read together depends on their tokens alone, so the order of the rows changes nothing. Models that
    cannot read several texts in a row, such as hybrids with state-space layers, read each row by itself.

    Args:
        model: A language model that :func:`acclimate.models.probe.attach` has prepared.
        tokenizer: Its tokenizer.
        rows: The rows.
    """
    order = sorted(range(len(rows)), key=lambda row: (_sortable(rows[row].ids), _sortable(rows[row].labels)))
    groups = _group([rows[index] for index in order], tree_limit(model))
    places = iter(order)
    trees = [([next(places) for _ in group], group) for group in groups]
    alone = [index for indices, group in trees if len(group) == 1 for index in indices]
    found = [(0.0, 0)] * len(rows)
    for index, loss in zip(alone, summed_losses(model, tokenizer, [rows[place] for place in alone]), strict=True):
        found[index] = loss
    branched = [(indices, group, build_tree(group)) for indices, group in trees if len(group) > 1]
    branched.sort(key=lambda entry: -len(entry[2].ids))
    policy, budget = padding_policy(model), micro_batch_tokens(model, times=2)
    training = model.training
    model.eval()
    start = 0
    with torch.no_grad():
        while start < len(branched):
            width = policy.padded_width(len(branched[start][2].ids))
            batch = branched[start : start + max(1, budget // width)]
            start += len(batch)
            losses = _tree_losses(model, [(tree, group) for _, group, tree in batch], width)
            for index, loss in zip((index for indices, *_ in batch for index in indices), losses, strict=True):
                found[index] = loss
    model.train(training)
    return found


def tree_limit(model: PreTrainedModel) -> int:
    """Return the maximum tokens of a tree that a prepared model reads; 0 if it has to read each row by itself.

    Windows of attention count places in a row, so a tree must not be longer than a window.
    """
    probe = probe_of(model)
    if kind_of(model).targets is None or probe is None or not probe.packs or first_position(model):
        return 0
    config = model.config.get_text_config()
    limits = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return min(filter(None, (TREE_TOKENS, *limits, longest_text(model), rotary_switch(model))))


def build_tree(rows: Iterable[TargetRow]) -> Tree:
    """Return rows as a tree; those with the same beginning have to follow each other."""
    ids, depth = np.empty(0, np.int64), np.empty(0, np.int64)
    paths: list[np.ndarray] = []
    before = path = ids
    for row in rows:
        common = _common(before, row.ids)
        added = np.arange(common, len(row.ids))
        path = np.concatenate([path[:common], len(ids) + added - common])
        ids, depth = np.concatenate([ids, row.ids[common:]]), np.concatenate([depth, added])
        paths.append(path)
        before = row.ids
    end = np.arange(1, len(ids) + 1)
    for path in paths:
        end[path] = np.maximum(end[path], path[-1] + 1)
    return Tree(ids, depth, end, paths)


def _sortable(values: np.ndarray) -> bytes:
    return values.astype(">i8").tobytes()


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Return the number of tokens at the beginning of both rows."""
    shorter = min(len(one), len(other))
    differing = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differing[0]) if len(differing) else shorter


def _group(rows: Sequence[TargetRow], limit: int) -> list[list[TargetRow]]:
    """Return sorted rows in groups that are read as a tree of at most ``limit`` tokens, or alone."""
    groups: list[list[TargetRow]] = []
    size = 0
    for row in rows:
        common = _common(groups[-1][-1].ids, row.ids) if groups else 0
        size += len(row.ids) - common
        if groups and size <= limit and common >= LEAST_SHARE * len(row.ids):
            groups[-1].append(row)
        else:
            groups.append([row])
            size = len(row.ids)
    return groups


def _tree_losses(
    model: PreTrainedModel, trees: Sequence[tuple[Tree, Sequence[TargetRow]]], width: int
) -> list[tuple[float, int]]:
    """Return summed loss and number of predicted tokens of each row of all trees, from one forward pass."""
    ids, depth = np.zeros((2, len(trees), width), dtype=np.int64)
    end = np.tile(np.arange(1, width + 1), (len(trees), 1))
    places, wanted, counts = list[np.ndarray](), list[np.ndarray](), list[int]()
    for number, (tree, rows) in enumerate(trees):
        size = len(tree.ids)
        ids[number, :size], depth[number, :size], end[number, :size] = tree.ids, tree.depth, tree.end
        for path, row in zip(tree.paths, rows, strict=True):
            predicted = row.labels >= 0
            places.append(number * width + path[predicted])
            wanted.append(row.labels[predicted])
            counts.append(int(predicted.sum()))
    device = model.device
    inputs = (copy_to(torch.from_numpy(part), device) for part in (ids, depth, end))
    flat, labels = torch.from_numpy(np.concatenate(places)), torch.from_numpy(np.concatenate(wanted))
    used = chosen_positions(torch.ones_like(flat, dtype=torch.bool), device.type)
    states = encode_tree(model, *inputs).flatten(0, 1)[copy_to(flat[used], device)]
    targets = copy_to(labels[used], device)
    loss = map_logits(cross_entropy, [language_head(model)], [states], targets, rows=logit_rows(model))
    parts = loss[: len(flat)].cpu().double().split(counts)
    return [(float(part.sum()), count) for part, count in zip(parts, counts, strict=True)]
