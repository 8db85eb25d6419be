"""Seeds that began with the same adaptation are one draw of luck, on whichever side of a comparison it stands."""

import numpy as np
import pytest

from acclimate.study.cells import HEAD, Cell
from acclimate.study.luck import draws
from acclimate.study.scored import against
from tests.cases import each


class Chain:
    """Cells that need each other."""

    def __init__(self):
        self.cells = {}

    def add(self, *identity, needs=None, method="mlm"):
        cell = Cell("finetune", {"of": identity}, {"method": method, "seed": identity[-1]}, needs)
        self.cells[cell.key] = cell
        return cell

    def runs(self, name, origins):
        """One cell a seed, from an adaptation of that name, or from the model as it came."""
        made = {origin: self.add("adapt", name, origin).key for origin in origins if origin is not None}
        return [self.add(name, seed, needs=made.get(origin)) for seed, origin in enumerate(origins)]


@each(
    ("ours", "theirs", "expected"),
    [
        ("abab", [None] * 4, [0, 1, 0, 1]),
        ([None] * 4, "abab", [0, 1, 0, 1]),
        ("abab", "abab", [0, 1, 0, 1]),
        ("aaaa", [None] * 4, [0, 1, 2, 3]),  # one adaptation for all: its luck cannot be seen
        ("aaaa", "abab", [0, 1, 0, 1]),
        ("abcd", "aabb", [0, 0, 2, 2]),
        ("aabc", "abbc", [0, 0, 0, 3]),  # 0 and 1 share ours, 1 and 2 theirs
        (["a", None, "a", None], [None] * 4, [0, 1, 0, 3]),
    ],
)
def test_which_seeds_share_a_draw(ours, theirs, expected):
    chain = Chain()
    pairs = list(zip(chain.runs("ours", ours), chain.runs("theirs", theirs), strict=True))
    found = draws(pairs, chain.cells)
    assert [[one == other for other in found] for one in found] == [
        [one == other for other in expected] for one in expected
    ]


def test_a_warm_up_is_no_draw_and_a_teacher_has_that_of_its_adaptation():
    chain = Chain()
    head = chain.add("head", method=HEAD).key
    adapted = [chain.add("adapted", number, needs=head).key for number in range(2)]
    taught = [chain.add("teacher", seed, needs=adapted[seed % 2]).key for seed in range(4)]
    students = [chain.add("student", seed, needs=taught[seed]) for seed in range(4)]
    plain = [chain.add("plain", seed, needs=head) for seed in range(4)]
    found = draws(list(zip(students, plain, strict=True)), chain.cells)
    assert found[0] == found[2] != found[1] == found[3]
    assert len(set(draws(list(zip(plain, plain, strict=True)), chain.cells))) == 4


def test_swapping_the_sides_turns_the_interval_round():
    rng = np.random.default_rng(0)
    chain, gold = Chain(), [0, 1, 2] * 40
    adapted, plain = chain.runs("mlm", "ababab"), chain.runs("none", [None] * 6)

    def results(cells, luck):
        for number, cell in enumerate(cells):
            wrong = rng.random(len(gold)) < 0.3 + luck[number % 2]
            predicted = [(label + int(miss)) % 3 for label, miss in zip(gold, wrong, strict=True)]
            accuracy = float(np.mean(np.equal(gold, predicted)))
            metrics = dict.fromkeys(("macro_f1", "micro_f1", "accuracy"), accuracy)
            yield cell, {"gold": gold, "predicted": predicted, "metrics": metrics}

    one, other = list(results(adapted, (0.0, 0.3))), list(results(plain, (0.0, 0.0)))
    there, back = against(one, other, chain.cells), against(other, one, chain.cells)
    for metric in ("macro_f1", "accuracy"):
        assert there[metric]["low"] == pytest.approx(-back[metric]["high"])
        assert there[metric]["p"] == pytest.approx(back[metric]["p"])
    alone = against(one, other, {**chain.cells, **{cell.key: cell for cell in adapted}})
    assert alone["macro_f1"]["high"] - alone["macro_f1"]["low"] > 0.2  # two draws, not six
