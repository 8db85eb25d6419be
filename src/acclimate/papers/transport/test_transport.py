"""Selection by optimal transport: potentials and gradients against linear programs, and planted clusters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from acclimate import select
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.operations import Context
from acclimate.data.select.nearest import Nearest, normalize_rows
from acclimate.papers.transport.select import Transport, calibrate, extend_potential, solve_transport, transport_costs
from tests.cases import each
from tests.data.select.test_operations import POOL, pool

ot = pytest.importorskip("ot")


def points(count: int, seed: int) -> np.ndarray:
    return normalize_rows(np.random.default_rng(seed).normal(size=(count, 3)))


def program(masses: np.ndarray, others: np.ndarray, costs: np.ndarray) -> float:
    """The cost of optimal transport, from the linear program."""
    n, m = costs.shape
    rows = [np.repeat(np.eye(n)[i], m) for i in range(n)] + [np.tile(np.eye(m)[j], n) for j in range(m)]
    return float(linprog(costs.ravel(), A_eq=np.stack(rows), b_eq=np.concatenate([masses, others])).fun)


def test_potentials_equal_those_of_both_solvers():
    costs = transport_costs(points(9, 0), points(7, 1))
    np.testing.assert_allclose(costs, ((points(9, 0)[:, None] - points(7, 1)[None]) ** 2).sum(axis=2), atol=1e-5)
    masses = np.full(9, 1 / 9), np.full(7, 1 / 7)
    potential, cost = solve_transport(costs, 0)
    assert cost == pytest.approx(program(*masses, costs), abs=1e-7)
    own = extend_potential(costs, potential, 0)
    assert own @ masses[0] + potential @ masses[1] == pytest.approx(cost, abs=1e-7)  # strong duality
    _, log = ot.emd(*masses, costs, log=True)
    np.testing.assert_allclose(own, log["u"], atol=1e-4)
    potential, cost = solve_transport(costs, 0.2)
    _, log = ot.sinkhorn(*masses, costs, 0.2, stopThr=1e-12, log=True)
    own = extend_potential(costs, potential, 0.2)
    expected = 0.2 * np.log(log["u"])
    np.testing.assert_allclose(own - own.mean(), expected - expected.mean(), atol=1e-4)


def test_gradients_are_changes_of_the_cost():
    base, target, new = points(6, 2), points(5, 3), points(8, 4)
    masses, others = np.full(6, 1 / 6), np.full(5, 1 / 5)
    costs, moved = transport_costs(base, target), transport_costs(new, target)
    potential, cost = solve_transport(costs, 0)
    mean = extend_potential(costs, potential, 0) @ masses
    step = 1e-6
    for place, expected in enumerate(extend_potential(moved, potential, 0) - mean):
        changed = program(
            np.append(masses * (1 - step), step), others, np.concatenate([costs, moved[place : place + 1]])
        )
        assert (changed - cost) / step == pytest.approx(expected, abs=1e-3)


def test_calibrated_gradients_add_up_to_zero_and_equal_their_definition():
    potential = np.random.default_rng(5).normal(size=20)
    gradients = calibrate(potential)
    direct = [one - np.delete(potential, place).mean() for place, one in enumerate(potential)]
    np.testing.assert_allclose(gradients, direct)
    assert abs(gradients.sum()) < 1e-9 and calibrate(np.array([3.0])).tolist() == [0.0]


CENTERS = {"covered": (1, 0, 0), "second": (0, 1, 0), "third": (0, 0, 1), "foreign": (-1, -1, -1)}


def encode(texts):
    """Place each text near the center of its first word."""
    noise = [np.random.default_rng(int(text.split()[1])).normal(size=3) for text in texts]
    return np.array([CENTERS[text.split()[0]] for text in texts]) + 0.15 * np.array(noise)


def cluster(name: str, count: int, first: int) -> list[str]:
    return [f"{name} {number}" for number in range(first, first + count)]


@pytest.fixture(scope="module")
def clusters():
    """A pool that covers the first of the clusters of a target, and has little of the two others."""
    texts = [*cluster("covered", 160, 0), *cluster("second", 20, 200), *cluster("third", 20, 300)]
    texts += cluster("foreign", 40, 400)
    target = [*cluster("covered", 40, 500), *cluster("second", 20, 600), *cluster("third", 20, 700)]
    return texts, Context(target=target, load_encoder=lambda name: encode)


def shares(texts) -> dict[str, float]:
    names = [text.split()[0] for text in texts]
    return {name: names.count(name) / len(names) for name in CENTERS}


@each("regularization", [0, 0.05])
def test_under_covered_clusters_are_taken_where_similarity_takes_the_covered(clusters, regularization):
    texts, context = clusters
    kept = Transport(documents=40, encoder="e", regularization=regularization).apply(pool(texts), context)
    assert shares(kept)["covered"] + shares(kept)["foreign"] < 0.1
    similar = Nearest(documents=40, k=1, encoder="e").apply(pool(texts), context)
    assert shares(similar)["covered"] > 0.3
    assert context.notes["cost_of_base"] > 0


def test_general_text_is_the_base_on_demand(clusters):
    texts, context = clusters
    general = Corpus.of([*cluster("second", 50, 800), *cluster("third", 50, 900)])
    context = Context(target=context.target, general=general, load_encoder=context.load_encoder)
    kept = Transport(documents=40, encoder="e", base="general").apply(pool(texts), context)
    assert shares(kept)["covered"] == 1


def test_samples_give_nearly_the_same_selection(clusters):
    texts, context = clusters
    small = Transport(documents=40, encoder="e", sample=60).apply(pool(texts), context)
    assert context.notes["base_documents"] == 60 and context.notes["target_texts"] == 60
    assert shares(small)["covered"] + shares(small)["foreign"] < 0.2


@each(
    ("parameters", "message"),
    [
        ({}, "give tokens, documents or share"),
        ({"share": 0.5, "regularization": -1}, "at least 0"),
        ({"share": 0.5}, "the text of a task"),
        ({"share": 0.5, "base": "general"}, "the text of a task"),
    ],
)
def test_mistakes_are_explained(parameters, message):
    with pytest.raises(UserError, match=message):
        select(POOL, {"transport": parameters})


def test_iterations_that_do_not_converge_are_an_error(monkeypatch):
    monkeypatch.setattr("acclimate.papers.transport.select.MAX_ITERATIONS", 2)
    with pytest.raises(UserError, match="does not converge"):
        solve_transport(transport_costs(points(9, 0), points(7, 1)), 0.01)
