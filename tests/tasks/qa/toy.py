"""A question answering task that a tiny random model learns in a second: which food does the passage name?"""

from __future__ import annotations

import random

from acclimate.tasks.kinds.qa.data import QATask

FILLER = "the a of and to in is was it for on with he as at by this had not are but from or have".split()
FOOD = "pizza pasta wine soup".split()


def squad(count, seed, words=(5, 25)):
    """Return the content of a SQuAD file with ``count`` passages, each with one question.

    ``words`` is the range of the number of filler words on each side of the answer.
    """
    chance = random.Random(seed)
    paragraphs = []
    for number in range(count):
        before, after = (" ".join(chance.choices(FILLER, k=chance.randint(*words))) for _ in range(2))
        food = chance.choice(FOOD)
        answer = {"text": food, "answer_start": len(before) + 1}
        question = {"id": f"{seed}-{number}", "question": "which food is good?", "answers": [answer]}
        paragraphs.append({"context": f"{before} {food} {after}", "qas": [question]})
    return {"version": "1.1", "data": [{"title": "toy", "paragraphs": paragraphs}]}


def food_task(train=48, test=12, seed=0, words=(5, 25)):
    """Return a question answering task of such passages."""
    return QATask.of(
        "food", squad(train, f"{seed}train", words), squad(test, f"{seed}test", words), squad(6, f"{seed}dev", words)
    )
