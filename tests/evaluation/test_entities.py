"""Entity metrics equal seqeval and conlleval; lenient ones equal an optimal matching; errors add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from acclimate.evaluation.entities import EntityScoring, count_errors, entity_metrics, match_overlaps
from acclimate.evaluation.scoring import make_scoring
from acclimate.evaluation.significance import bootstrap_intervals
from acclimate.tasks.kinds.entities.schemes import read_entities, split_tag

LABELS = ["DIS", "LOC", "PER"]
TAGS = ["O", *(f"{prefix}-{label}" for label in LABELS for prefix in "BI")]
any_tags = st.lists(st.sampled_from(TAGS), min_size=1, max_size=12)
pairs_of = st.lists(any_tags.flatmap(lambda gold: st.tuples(st.just(gold), st.lists(
    st.sampled_from(TAGS), min_size=len(gold), max_size=len(gold)))), min_size=1, max_size=6)  # fmt: skip


def numbered(tags, known=()):
    found = read_entities([split_tag(tag) for tag in tags])
    return [[first, stop, LABELS.index(name), int((first, stop) in known)] for first, stop, name in found]


def valid(tags):
    """The tags with B where an entity begins, as IOB2 demands."""
    made = list(tags)
    for first, _, name in read_entities([split_tag(tag) for tag in tags]):
        made[first] = f"B-{name}"
    return made


def conlleval(gold, predicted):  # noqa: C901 - in the structure of the original
    """Counts of conlleval by type (correct, true, predicted), with its rules for the start and the end of a chunk."""

    def parse(tag):
        return ("O", "") if tag == "O" else tuple(tag.split("-", 1))

    def ends(before, now):
        (tag, name), (other, new) = before, now
        return tag != "O" and (other in "BO" or name != new)

    def starts(before, now):
        (tag, name), (other, new) = before, now
        return other == "B" or (other != "O" and (tag == "O" or name != new))

    counts = {label: [0, 0, 0] for label in LABELS}
    for one, two in zip(gold, predicted, strict=True):
        last = [("O", ""), ("O", "")]
        inside = False
        for tags in [*zip(one, two, strict=True), ("O", "O")]:
            now = [parse(tag) for tag in tags]
            if inside:
                closed = [ends(before, tag) for before, tag in zip(last, now, strict=True)]
                if all(closed) and last[0][1] == last[1][1]:
                    counts[last[0][1]][0] += 1
                    inside = False
                elif closed[0] != closed[1] or now[0][1] != now[1][1]:
                    inside = False
            opened = [starts(before, tag) for before, tag in zip(last, now, strict=True)]
            if all(opened) and now[0][1] == now[1][1]:
                inside = True
            for side, (is_open, tag) in enumerate(zip(opened, now, strict=True)):
                if is_open:
                    counts[tag[1]][1 + side] += 1
            last = now
    return counts


def f1(correct, true, shown):
    return 2 * correct / (true + shown) if true + shown else 0.0


@settings(max_examples=60, deadline=None)
@given(pairs_of)
def test_strict_f1_equals_conlleval_also_for_broken_tags(pairs):
    gold, predicted = ([pair[side] for pair in pairs] for side in (0, 1))
    found = entity_metrics(*([numbered(tags) for tags in side] for side in (gold, predicted)), LABELS)
    counts = conlleval(gold, predicted)
    assert found["micro_f1"] == pytest.approx(f1(*map(sum, zip(*counts.values(), strict=True))))
    for label, (correct, true, shown) in counts.items():
        row = found["per_class"][label]
        assert (row["f1"], row["support"]) == (pytest.approx(f1(correct, true, shown)), true)
        assert row["precision"] == pytest.approx(correct / max(shown, 1))
        assert row["recall"] == pytest.approx(correct / max(true, 1))


@settings(max_examples=25, deadline=None)
@given(pairs_of)
def test_strict_f1_equals_seqeval(pairs):
    from seqeval.metrics import f1_score, precision_score, recall_score
    from seqeval.scheme import IOB2

    gold, predicted = ([valid(pair[side]) for pair in pairs] for side in (0, 1))
    found = entity_metrics(*([numbered(tags) for tags in side] for side in (gold, predicted)), LABELS)
    options = {"mode": "strict", "scheme": IOB2, "zero_division": 0}
    if not any(tag != "O" for side in (gold, predicted) for tags in side for tag in tags):
        return  # seqeval cannot score text without entities
    assert found["micro_f1"] == pytest.approx(f1_score(gold, predicted, average="micro", **options))
    assert found["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro", **options))
    assert found["precision"] == pytest.approx(precision_score(gold, predicted, average="micro", **options))
    assert found["recall"] == pytest.approx(recall_score(gold, predicted, average="micro", **options))


@settings(max_examples=60, deadline=None)
@given(pairs_of)
def test_overlaps_are_matched_optimally_and_errors_add_up(pairs):
    gold, predicted = ([numbered(pair[side]) for pair in pairs] for side in (0, 1))
    for one, two in zip(gold, predicted, strict=True):
        for same in (True, False):
            common = [[a[0] < b[1] and b[0] < a[1] and (a[2] == b[2] or not same) for b in two] for a in one]
            matrix = csr_matrix(np.array(common, dtype=int).reshape(len(one), len(two)))
            best = int((maximum_bipartite_matching(matrix) >= 0).sum()) if one and two else 0
            assert len(match_overlaps(one, two, same_type=same)) == best
    scores, errors = entity_metrics(gold, predicted, LABELS), count_errors(gold, predicted)
    assert scores["micro_f1"] <= min(scores["overlap_f1"], scores["boundary_f1"]) + 1e-12
    wrong = errors["boundary"] + errors["type"] + errors["boundary and type"]
    assert errors["correct"] + wrong + errors["missed"] == sum(map(len, gold))
    assert errors["correct"] + wrong + errors["spurious"] == sum(map(len, predicted))
    assert errors["correct"] == sum(len([e for e in a if e in b]) for a, b in zip(gold, predicted, strict=True))


def test_kinds_of_errors_and_unseen_entities():
    gold = [numbered("B-PER I-PER O B-LOC O B-DIS O B-DIS".split(), known=[(0, 2), (3, 4)]), numbered(["O", "B-PER"])]
    predicted = [
        numbered(
            "B-PER O O B-PER O O B-DIS B-DIS".split(), known=[]
        ),  # cut off, another type, missed, too much, right
        numbered(["O", "B-PER"]),
    ]
    found = entity_metrics(gold, predicted, LABELS)
    kinds = {"correct": 2, "boundary": 1, "type": 1, "boundary and type": 0, "missed": 1, "spurious": 1}
    assert found["errors"] == kinds
    assert found["micro_f1"] == 2 * 2 / (5 + 5)
    assert found["overlap_f1"] == 2 * 3 / 10 and found["boundary_f1"] == 2 * 3 / 10
    assert (found["seen_support"], found["unseen_support"]) == (2, 3)
    assert found["unseen_f1"] == 2 * 2 / (3 + 5) and found["seen_f1"] == 0
    assert "unseen_f1" not in entity_metrics([[[0, 1, 0, 1]]], [[[0, 1, 0, 1]]], LABELS)
    assert EntityScoring(1).equivalent_metric("macro_f1") == EntityScoring(1).equivalent_metric("boundary_f1")
    assert EntityScoring(2).equivalent_metric("macro_f1") == "macro_f1"
    with pytest.raises(ValueError, match="Unknown metric 'unseen_f1'"):
        EntityScoring(3, has_unseen=False).counts(gold, predicted, "unseen_f1")
    with pytest.raises(ValueError, match="do not match"):
        entity_metrics(gold, predicted[:1], LABELS)


def test_documents_are_resampled_as_a_whole():
    gold = [numbered(["B-PER"]), numbered(["B-LOC"]), numbered(["O"]), numbered(["B-DIS"])]
    predicted = [gold[0], gold[1], [], []]
    whole = make_scoring("entities", {"classes": 3, "has_unseen": True, "groups": [0, 0, 1, 1]})
    assert whole.counts(gold, predicted, "micro_f1").tolist() == [[2, 4], [0, 1]]
    assert whole.score(gold, predicted, "macro_f1") == EntityScoring(3).score(gold, predicted, "macro_f1")
    apart = bootstrap_intervals(EntityScoring(3), gold, predicted, ["micro_f1"])["micro_f1"]
    low, high = bootstrap_intervals(whole, gold, predicted, ["micro_f1"])["micro_f1"]
    assert (low, high) == (0.0, 1.0) and apart[1] <= 1.0
    assert make_scoring("entities", whole.details()) == whole
