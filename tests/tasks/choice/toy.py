"""Multiple-choice items that a tiny model learns in seconds: the choice with a good word is correct."""

from __future__ import annotations

import random

from acclimate.data.task_kinds import load_task

GOOD, BAD = ["good", "fresh", "kind", "quick"], ["bad", "cold", "rude", "slow"]
THINGS = ["food", "soup", "waiter", "pasta", "pizza", "menu"]
QUICK = {"progress": False, "precision": "fp32", "max_length": 32}


def rows(count, seed=0, sizes=(2, 3, 4), context=False):
    chance, made = random.Random(seed), []
    for number in range(count):
        size = chance.choice(sizes)
        answer = chance.randrange(size)
        words = [chance.choice(GOOD if place == answer else BAD) for place in range(size)]
        choices = [f"the {thing} was {word}" for thing, word in zip(chance.sample(THINGS, size), words, strict=True)]
        row = {"question": f"which {number} ?", "choices": choices, "answer": answer}
        made.append({**row, "context": f"a table {number // 2}"} if context else row)
    return made


def task_of(train=32, dev=0, test=24, **options):
    splits = {"train": rows(train, **options), "dev": rows(dev, 1, **options), "test": rows(test, 2, **options)}
    return load_task({split: made for split, made in splits.items() if made})
