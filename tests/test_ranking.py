"""Ranking by settled scores: independent of the last bits, of the order of the texts, and of the kernels of BLAS."""

import itertools
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.base.ranking import DECIMALS, best_first, content_ranks, settle, top_positions
from acclimate.data.operations import SELECTIONS, TRANSFORMS, Context
from acclimate.data.select.nearest import Nearest
from acclimate.evaluation.retrieval import rank_with_bm25
from acclimate.labs.inspection.experts import _best
from acclimate.labs.sequence.planned import similar_order
from acclimate.merging.experts import compare_domains
from tests.data.select.test_operations import pool

GRID = st.integers(-(10**DECIMALS), 10**DECIMALS).map(lambda number: number / 10**DECIMALS)


@given(st.lists(st.lists(GRID, min_size=6, max_size=6), min_size=1, max_size=3), st.integers(1, 8), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_last_bits_and_the_order_change_no_ranking(rows, k, chance):
    scores, names = np.array(rows), [f"text {number}" for number in range(6)]
    noise = np.array([[chance.uniform(-1e-8, 1e-8) for _ in row] for row in rows])
    ranks = content_ranks(names)
    found = top_positions(scores + noise, ranks, k)
    expected = [sorted(range(6), key=lambda place: (-row[place], ranks[place]))[:k] for row in rows]
    assert found.tolist() == expected
    assert [best_first(row, ranks).tolist()[:k] for row in scores + noise] == expected
    shuffled = chance.sample(range(6), 6)
    again = top_positions(scores[:, shuffled], content_ranks([names[place] for place in shuffled]), k)
    assert [[shuffled[place] for place in row] for row in again.tolist()] == expected


def test_missing_scores_come_last():
    order = best_first([0.5, np.nan, 0.5 + 1e-9, -np.inf, np.inf, -0.0], [3, 0, 1, 2, 4, 5])
    assert order.tolist() == [4, 2, 0, 5, 3, 1]
    assert str(settle(-1e-9)) == "0.0"


def select_everything() -> list[list[str]]:
    """Return the result of each ranking of texts, most of which are equally near: the same words in another order."""
    chance = random.Random(0)
    words = ["".join(letters) for letters in itertools.product("bdfgk", "aeiou", "lmnrst", "aei")]
    bags = [chance.sample(words, 7) for _ in range(50)]
    texts = list({" ".join(chance.sample(bag, len(bag))): 0 for bag in bags for _ in range(11)})
    target = [" ".join(bag[:4]) for bag in bags[:9]]
    documents, context = pool(texts), Context(target=target)
    by_id = {f"d{number}": text for number, text in enumerate(texts)}
    similarity = compare_domains({"sea": texts[:40], "law": texts[40:]}, target, None)
    papers = [
        (registry.lookup(name), given)
        for registry, name, given in (
            (SELECTIONS, "transport", {"documents": 20}),
            (SELECTIONS, "best", {"by": "domain", "documents": 20}),
            (TRANSFORMS, "with-neighbors", {"k": 3}),
        )
        if name in registry.names()
    ]
    return [
        list(Nearest(k=5).apply(documents, context)),
        *([str(one) for one in cls(**given).apply(documents, context)] for cls, given in papers),
        [by_id[key] for row in rank_with_bm25(by_id, target, 10) for key in row],
        [f"{value:.6f}" for value in similarity.values()],
    ]


@pytest.mark.slow
def test_selections_are_the_same_under_two_kernels_of_blas():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    kernels = {one.get("architecture") for one in threadpoolctl.threadpool_info() if one["internal_api"] == "openblas"}
    if not kernels & {"Haswell", "SkylakeX", "Zen", "Cooperlake", "Sapphirerapids"}:
        pytest.skip("NumPy does not use OpenBLAS on x86")
    code = "import json; from tests.test_ranking import select_everything; print(json.dumps(select_everything()))"
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Prescott"}  # all processors have its instructions
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(ran.stdout.splitlines()[-1]) == select_everything()


def test_what_is_as_near_or_as_good_is_ordered_by_its_name_whatever_the_order_it_is_given_in():
    texts = {"start": ["soup of the day"], "b": ["a match of the day"], "a": ["a match of the day"], "c": ["goal"]}
    orders = {similar_order({"start": texts["start"], **{name: texts[name] for name in names}})
              for names in itertools.permutations("abc")}  # fmt: skip
    assert len(orders) == 1
    rows = [{"expert": name, "nats": 2.0 + noise} for name, noise in zip("abcd", (0, 1e-9, -1e-9, 1), strict=True)]
    for lowest in (True, False):
        assert len({tuple(_best(one, "nats", 4, lowest)) for one in itertools.permutations(rows)}) == 1
