"""Drawing the splits that a task lacks from its train split."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from acclimate.errors import UserError, warn_once

TEST_SHARE, DEV_SHARE = 0.2, 0.1
"""Approximate shares of the rows that are drawn for test and dev, if a task has only train."""


def draw_splits(
    splits: dict[str, list[Any]],
    name: str,
    groups: Sequence[str],
    labels: Sequence[Sequence[Hashable]],
    seed: int,
    *,
    items: str,
    rule: str,
    shortage: str = "",
) -> str:
    """Move train items of a task without a test split to test, and to dev if that is empty, too.

    Args:
        splits: The items of each split, which are changed.
        name: Name of the task.
        groups: What each train item must stay together with, see :func:`draw_rows`.
        labels: The classes of each train item.
        seed: Random seed.
        items: What the items are, in the plural, such as ``rows``.
        rule: How they are drawn, such as ``equal texts in one split``.
        shortage: Why there is nothing to draw from, if that is not the number of items.

    Returns:
        A sentence on the draw, which is also logged as a warning.

    Raises:
        UserError: If there are too few items.
    """
    train = splits["train"]
    shares = {"test": TEST_SHARE} | ({} if splits.get("dev") else {"dev": DEV_SHARE})
    drawn = draw_rows(groups, labels, shares, seed)
    if not drawn["test"]:
        few = f"too few train {items} ({len(train)}) to draw one from"
        if (count := len(set(groups))) < len(train):
            groups_of = f"its {len(train):,} train {items} form {count:,} group{'s' * (count > 1)} ({rule})"
            few = f"{groups_of}, too few or too large to draw one from"
        shortage = shortage or few
        raise UserError(f"The task '{name}' has no test split, and {shortage}; add a test split.")
    moved = {place for places in drawn.values() for place in places}
    splits["train"] = [item for place, item in enumerate(train) if place not in moved]
    for split, places in drawn.items():
        splits[split] = [train[place] for place in places]
    counts = " and ".join(f"{len(places):,} {split} {items}" for split, places in drawn.items())
    sentence = (
        f"The task '{name}' has no test split, so {counts} were drawn from its {len(train):,} train {items} with the "
        f"seed {seed}: {rule}."
    )
    warn_once(sentence)
    return sentence


def draw_rows(
    groups: Sequence[str], labels: Sequence[Sequence[Hashable]], shares: Mapping[str, float], seed: int
) -> dict[str, list[int]]:
    """Draw rows for several splits; those that are not drawn remain in train.

    A group is drawn as a whole and counts for the rarest class among its rows. Of every class, each split gets at most
    its share of the rows, rounded, so that all classes keep the same shares in all splits as far as that is possible.
    Every class keeps a row in train. The draw does not depend on the order of the rows.

    Args:
        groups: What each row must stay together with, such as its text.
        labels: The classes of each row.
        shares: Share of all rows by split.
        seed: Random seed.

    Returns:
        The indices of the rows of each split, ascending.
    """
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    counts = Counter(label for row in labels for label in row)
    of_group = {group: {label for place in places for label in labels[place]} for group, places in members.items()}
    strata: dict[str, list[str]] = {}
    for group in sorted(members):
        rarest = min(of_group[group], key=lambda label: (counts[label], str(label)), default="")
        strata.setdefault(str(rarest), []).append(group)
    drawn: dict[str, list[str]] = {split: [] for split in shares}
    left: Counter[Hashable] = Counter(label for found in of_group.values() for label in found)  # groups in train
    for stratum, found in sorted(strata.items()):
        # Each class has its own generator, so that rows of one class do not affect the draws of others.
        random.Random(f"{seed}/split/{stratum}").shuffle(found)
        rows = sum(len(members[group]) for group in found)
        remaining = found
        for split, share in shares.items():
            space, kept = round(share * rows), []
            for group in remaining:
                fits = len(members[group]) <= space and all(left[label] > 1 for label in of_group[group])
                if not fits:
                    kept.append(group)
                    continue
                space -= len(members[group])
                left.subtract(of_group[group])
                drawn[split].append(group)
            remaining = kept
    return {split: sorted(place for group in found for place in members[group]) for split, found in drawn.items()}
