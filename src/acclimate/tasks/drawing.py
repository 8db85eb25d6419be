"""Drawing the splits that a task lacks from its train split."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from acclimate.base.errors import UserError, warn_once
from acclimate.evaluation.significance import connect

TEST_SHARE, DEV_SHARE = 0.2, 0.1
"""Approximate shares of the rows that are drawn for test and dev, if a task has only train."""


def draw_splits(
    splits: dict[str, list[Any]],
    name: str,
    labels: Sequence[Sequence[Hashable]],
    seed: int,
    *,
    items: str,
    group_name: str,
    rule: str = "",
) -> str:
    """Move train items of a task without a test split to test, and to dev if that is empty, too.

    Items with the same text or of the same group stay together, see :func:`link_rows`; items of a group of an existing
    dev split remain in train.

    Args:
        splits: The items of each split, which are changed.
        name: Name of the task.
        labels: The classes of each train item.
        seed: Random seed.
        items: What the items are, in the plural, such as ``rows``.
        group_name: What a group is, such as ``document``.
        rule: What else holds for the draw, such as ``every class in proportion``.

    Returns:
        A sentence on the draw, which is also logged as a warning.

    Raises:
        UserError: If there are too few items.
    """
    train, dev = splits["train"], splits.get("dev") or []
    shares = {"test": TEST_SHARE} | ({} if dev else {"dev": DEV_SHARE})
    links = link_rows(train)
    groups, held = ({getattr(item, "group", None) for item in part} - {None} for part in (train, dev))
    kept = {link for link, item in zip(links, train, strict=True) if getattr(item, "group", None) in held}
    drawn = draw_rows(links, labels, shares, seed, kept)
    together = f"all {items} of the same {group_name}, and equal texts," if groups else "equal texts"
    if not drawn["test"]:
        shortage = f"too few train {items} ({len(train)}) to draw one from"
        classes = Counter(label for row in labels for label in row)
        if groups:
            shortage = f"its {len(groups)} {group_name}s are too few, or some have too many {items}, to draw one"
        elif (count := len(set(links))) < len(train):
            groups_of = f"its {len(train):,} train {items} form {count:,} group{'s' * (count > 1)} ({together})"
            shortage = f"{groups_of}, too few or too large to draw one from"
        elif len(classes) > 1 and len(train) > 2 / TEST_SHARE:
            most = max(classes.values())
            shortage = f"none of its {len(classes):,} classes has more than {most} of {len(train):,} {items}, too few"
            shortage += " to draw one of each from (are the labels numbers or texts? --label-column names others)"
        raise UserError(f"The task '{name}' has no test split, and {shortage}; add a test split.")
    moved = {place for places in drawn.values() for place in places}
    splits["train"] = [item for place, item in enumerate(train) if place not in moved]
    for split, places in drawn.items():
        splits[split] = [train[place] for place in places]
    counts = " and ".join(f"{len(places):,} {split} {items}" for split, places in drawn.items())
    sentence = (
        f"The task '{name}' has no test split, so {counts} were drawn from its {len(train):,} train {items} with the "
        f"seed {seed}: {f'{rule}, ' * bool(rule)}{together} in one split."
    )
    warn_once(sentence)
    return sentence


class Link(NamedTuple):
    """A group and a further name of a row, for :func:`link_rows`."""

    group: str | None
    item: str | None


def link_rows(rows: Sequence[Any], texts: Sequence[str] = ()) -> list[str]:
    """Return what each row must stay together with: rows are linked by a group, a document, an item or a text.

    Args:
        rows: Rows of a task of any kind; those attributes count that they have (``group``, ``document``, ``item``,
            ``passage``).
        texts: The text of each row, if that counts, too.

    Returns:
        A name for each row, equal for rows that are linked, also through others. It does not depend on the order of
        the rows: it is the smallest group, else the smallest text or item, among the linked rows.
    """
    keys: list[list[tuple[str, Any]]] = []
    for place, row in enumerate(rows):
        values = {name: getattr(row, name, None) for name in ("group", "document", "item", "passage")}
        values["text"] = texts[place] if texts else None
        keys.append([key for key in values.items() if key[1] is not None])
    if not any(keys):
        return []
    parts = connect(keys)
    names: dict[int, tuple[bool, str]] = {}
    named_by = "text" if texts else "item"
    for part, own in zip(parts, keys, strict=True):
        for kind, value in own:
            if kind in ("group", named_by):
                name = (kind != "group", str(value))
                names[part] = min(names.get(part, name), name)
    return [names.get(part, (True, f"row {place}"))[1] for place, part in enumerate(parts)]


def spread_groups(rows: Sequence[Any], order: Sequence[int]) -> list[int]:
    """Return places in another order: first one row of each group, then a second one, and so on.

    A draw of examples to learn from takes the first ones. Rows of one document are similar, so a budget of labels
    teaches most if it is spent on as many documents as possible, and draws with other seeds then differ in their
    documents, which is what their spread is about. Rows without groups keep their order.

    Args:
        rows: The rows of a split.
        order: The places of some of them, in a random order.
    """
    seen: Counter[str] = Counter()
    ranks: dict[int, int] = {}
    for place in order:
        group = getattr(rows[place], "group", None)
        ranks[place] = 0 if group is None else seen[group]
        seen.update([] if group is None else [group])
    return sorted(order, key=ranks.__getitem__)


def draw_places(rows: Sequence[Any], places: Sequence[int], count: int, generator: random.Random) -> list[int]:
    """Draw ``count`` of some places in rows, or all if there are fewer, from as many groups as possible."""
    if all(getattr(rows[place], "group", None) is None for place in places):
        return generator.sample(places, min(count, len(places)))
    return spread_groups(rows, generator.sample(places, len(places)))[:count]


def draw_rows(
    groups: Sequence[str],
    labels: Sequence[Sequence[Hashable]],
    shares: Mapping[str, float],
    seed: int,
    kept_in_train: Collection[str] = (),
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
        kept_in_train: Groups that are not drawn.

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
                if not fits or group in kept_in_train:
                    kept.append(group)
                    continue
                space -= len(members[group])
                left.subtract(of_group[group])
                drawn[split].append(group)
            remaining = kept
    return {split: sorted(place for group in found for place in members[group]) for split, found in drawn.items()}
