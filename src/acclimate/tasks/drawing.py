"""Drawing splits that a task lacks from its train rows: stratified by class, without duplicates across splits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence


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
