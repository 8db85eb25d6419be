"""Knowledge in source texts: what sees what, where it is, and which words get it."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.models.encoding import encode, encode_visible
from acclimate.models.families import first_position
from acclimate.models.probe import attach
from acclimate.papers.dask.knowledge import Mention, Trees, grow_trees, read_branches
from acclimate.papers.dask.method import find_mentions
from acclimate.papers.dask.objective import Polarity
from acclimate.papers.pivots.method import score_words
from acclimate.parts.masking.words import SubwordTable
from tests.cases import each
from tests.papers.test_contract import CHEAP, TASK
from tests.papers.test_labelled import FOODS, PAIRS, run
from tests.tiny import tiny_model, tiny_tokenizer

TEXTS = [([2, 20, 21, 22, 23, 24, 3], [Mention(1, 2, 0), Mention(3, 5, 7), Mention(5, 6, 1)]), ([2, 30, 3], [])]
BRANCHES = {0: [[40, 41], [42]], 7: [[43, 44, 45]]}


def slow_tree(ids, mentions, branches):
    """Each token as (id, position, what it is of): ("text", None), or the mention and the number of its branch."""
    made = []
    for place, token in enumerate(ids):
        made.append((token, place, ("text", None)))
        for mention in mentions:
            if place == mention.stop - 1:
                for number, branch in enumerate(branches.get(mention.word, [])):
                    made += [(token, mention.stop + depth, (mention, number)) for depth, token in enumerate(branch)]
    return made


def sees(one, other):
    """Whether a token of a tree attends to another, by the definition of K-BERT."""
    (_, here, mine), (_, there, its) = one, other
    if mine == its:
        return True
    if mine[0] == "text":
        return its[0].start <= here < its[0].stop
    return its[0] == "text" and mine[0].start <= there < mine[0].stop


def random_text(chance):
    ids = [2, *(chance.randint(20, 60) for _ in range(chance.randint(1, 8))), 3]
    mentions, place = [], 1
    while place < len(ids) - 1:
        stop = min(place + chance.randint(1, 2), len(ids) - 1)
        mentions += [Mention(place, stop, chance.randrange(4))] * (chance.random() < 0.6)
        place = stop
    return ids, mentions


def test_trees_equal_those_of_a_definition_per_pair_of_tokens():
    chance = random.Random(0)
    for number in range(30):
        branches = {word: [[chance.randint(61, 90)] * chance.randint(1, 3) for _ in range(2)] for word in range(3)}
        texts, known = (TEXTS, BRANCHES) if not number else ([random_text(chance) for _ in range(3)], branches)
        trees = grow_trees(texts, known, 100)
        visible = trees.visible()
        for row, (ids, mentions) in enumerate(texts):
            wanted = slow_tree(ids, mentions, known)
            size = len(wanted)
            assert trees.ids[row, :size].tolist() == [token for token, _, _ in wanted]
            assert trees.position[row, :size].tolist() == [place for _, place, _ in wanted]
            assert visible[row, :size, :size].tolist() == [[sees(a, b) for b in wanted] for a in wanted]
            assert not visible[row, :size, size:].any() and not visible[row, size:, :size].any()
            assert visible[row].diagonal().all()
    cut = grow_trees(TEXTS, BRANCHES, 8)  # the branch of one token fits
    assert cut.ids[0].tolist() == [2, 20, 42, 21, 22, 23, 24, 3]
    near = grow_trees(TEXTS, BRANCHES, 100, 7)  # the branch of three tokens would end after the last position
    assert near.ids[0].tolist() == [2, 20, 40, 41, 42, 21, 22, 23, 24, 3] and int(near.position.max()) == 6


@each("kind", ["bert", "roberta", "distilbert", "electra", "albert"])
def test_a_model_computes_each_state_from_the_tokens_that_it_sees_at_their_positions(kind):
    """In one layer, the state of a token is that of a row of the tokens that it sees, without any mask."""
    changes = {"n_layers": 1} if kind == "distilbert" else {"num_hidden_layers": 1}
    model = tiny_model(kind, **changes)
    attach(model)
    trees = grow_trees(TEXTS, BRANCHES, 100)
    visible = trees.visible()
    with torch.no_grad():
        states = encode_visible(model, trees.ids, trees.position, visible)
        for row, place in ((row, place) for row in range(2) for place in range(trees.ids.shape[1])):
            if trees.branch[row, place] >= 0:
                seen = visible[row, place].nonzero()[:, 0]
                alone = model.base_model(
                    input_ids=trees.ids[row, seen][None],
                    position_ids=trees.position[row, seen][None] + first_position(model),
                ).last_hidden_state[0, seen.tolist().index(place)]
                torch.testing.assert_close(states[row, place], alone, atol=1e-5, rtol=1e-4)
        ids = torch.tensor([TEXTS[0][0]])
        plain = grow_trees(TEXTS[:1], {}, 100)
        torch.testing.assert_close(
            encode_visible(model, ids, plain.position, plain.visible()), encode(model, ids, torch.zeros_like(ids)),
            atol=1e-5, rtol=1e-4,
        )  # fmt: skip


def test_branches_are_what_triples_say_about_either_end():
    triples = [
        ("Soup", "is_a", "hot_meal"),
        ("soup", "at", "menu"),
        ("Soup", "is_a", "hot_meal"),
        ("wine", "at", "soup"),
    ]
    assert read_branches(triples, 2) == {
        **{"soup": ["is a hot meal", "at menu"], "hot meal": ["Soup is a"], "menu": ["soup at"]},
        "wine": ["at soup"],
    }
    tokenizer = tiny_tokenizer()
    row = np.array(tokenizer("the wines, Wine")["input_ids"])
    found = find_mentions(row, SubwordTable.of(tokenizer), tokenizer.all_special_ids, {"wine": 3, "wines": 4})
    assert [(mention.start, mention.stop, mention.word) for mention in found] == [(2, 4, 4), (5, 6, 3)]


def test_pseudo_labels_move_the_shares_as_text_by_text_and_decide_the_pivots_of_the_next_step():
    words = [f"w{number}" for number in range(6)]
    labels = np.array([0, 1, 2, 0, 1, 2, 0])
    texts = [set(words[: number + 1]) for number in (5, 0, 3, 2, 4, 5, 1)]
    scores, counts = score_words(words, texts, labels, 3, "polarity")
    polarity = Polarity(counts / counts.sum(1, keepdims=True), rate=0.1)
    order = sorted(range(6), key=lambda number: (-round(scores[number], 9), number))
    assert polarity.pivots(4) == order[:4]  # as method `pivots` chooses, before any text of the target
    polarity.advance(0.0)
    polarity.observe(torch.tensor([5, 5, 5, 2]), torch.tensor([1, 1, 1, 0]))
    before = polarity.target.clone()
    polarity.advance(0.0)  # the same step
    assert torch.equal(polarity.target, before)
    polarity.advance(0.25)
    for word, label, count in ((5, 1, 3), (2, 0, 1)):
        wanted = before[word]
        for _ in range(count):
            wanted = 0.9 * wanted + 0.1 * torch.eye(3)[label]
        torch.testing.assert_close(polarity.target[word], wanted)
    assert torch.equal(polarity.target[[0, 1, 3, 4]], before[[0, 1, 3, 4]]) and not polarity.pending.any()
    polarity.target[3] = torch.tensor([0.0, 0.0, 1.0])
    polarity.source[3] = torch.tensor([0.0, 0.0, 1.0])
    assert polarity.pivots(1) == [3]


@pytest.mark.slow
def test_what_a_run_records_and_learns(tiny_bert, tmp_path):
    settings = {**CHEAP["dask"], "confidence": 0.01, "rate": 0.5}
    run(tiny_bert, tmp_path / "out", "dask", TASK, **settings, options={"steps": 4})
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert set(lines[0]["terms"]) == {"mlm", "classification"}
    found = json.loads((tmp_path / "out" / "pivots.json").read_text())
    assert found["candidates"] >= found["with_triples"] > 0 and {*found["first"]} == {*found["last"]}


def test_models_and_settings_that_cannot_be_used(tiny_bert, tmp_path):
    model = tiny_model("modernbert")
    model.save_pretrained(tmp_path / "modern")
    tiny_tokenizer().save_pretrained(tmp_path / "modern")
    other = tmp_path / "other.csv"
    other.write_text("head,relation,tail\nquark,is a,particle\n")
    pairs = type(TASK).of("pairs", PAIRS, PAIRS[:4])
    good = CHEAP["dask"]
    for start, task, settings, wrong in (
        (tmp_path / "modern", TASK, good, "which ModernBertForMaskedLM cannot: its local attention"),
        (tiny_bert, TASK, {}, "needs triples"),
        (tiny_bert, TASK, {**good, "triples": "no.csv"}, "no file 'no.csv' with the triples"),
        (tiny_bert, TASK, {**good, "triples": str(other)}, "such as '.*', is a head or tail in"),
        (tiny_bert, pairs, good, "reads single texts"),
        (tiny_bert, FOODS, {**good, "least": 99}, "No word occurs in 99 texts"),
        (tiny_bert, TASK, {**good, "rate": 1}, "rate must be between 0 and 1"),
    ):
        with pytest.raises(UserError, match=wrong):
            run(start, tmp_path / "out", "dask", task, **settings, options={"steps": 1})


def test_padding_of_trees_has_no_branch():
    trees = grow_trees([TEXTS[1], TEXTS[0]], {}, 9)
    assert isinstance(trees, Trees) and trees.branch[0].tolist() == [0, 0, 0, -1, -1, -1, -1]
