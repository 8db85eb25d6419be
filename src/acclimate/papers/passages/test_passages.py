"""Passages on the entities of a task: mined entities, retrieval by BM25, and generation."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.operations import Context, find_accounts
from acclimate.data.pool import count_words
from acclimate.data.sentences import split_sentences
from acclimate.papers.passages.transform import Passages, count_phrases, cut_passages
from tests.cases import each
from tests.data.select.test_operations import pool

STOP = frozenset("the of a is in for and to by".split())


@each(
    ("text", "phrases"),
    [
        ("The heart failure of a patient", ["heart failure", "patient"]),
        ("acute renal failure syndrome", ["acute renal failure", "renal failure syndrome"]),
        ("aspirin, ibuprofen", ["aspirin", "ibuprofen"]),
        ("Beta-blockers in the 3 x 12", ["beta blockers"]),
        ("heart failure and Heart Failure", ["heart failure"]),
        ("the of a", []),
    ],
)
def test_phrases_are_runs_between_stop_words_and_marks(text, phrases):
    assert sorted(count_phrases([text], STOP)) == sorted(phrases)
    assert set(count_phrases([text, text], STOP).values()) <= {2}


def test_a_part_of_a_phrase_counts_if_it_occurs_elsewhere():
    found = count_phrases(["acute heart failure", "heart failure", "acute pain"], STOP)
    assert found == {"acute heart failure": 1, "heart failure": 2, "acute pain": 1, "acute": 2}


@given(
    st.lists(st.sampled_from(["One two.", "Three four five six!", "Seven.", "Eight nine\n"]), max_size=12),
    st.integers(1, 9),
)
@settings(max_examples=40, deadline=None)
def test_passages_are_whole_sentences_that_fit(parts, length):
    text = " ".join(parts)
    passages = cut_passages(text, length, Context())
    assert " ".join(passage for passage, _ in passages) == " ".join(split_sentences(text))
    for passage, size in passages:
        assert size == sum(count_words([passage]))
        assert size <= length or len(split_sentences(passage)) == 1
    for (_, one), (second, _) in pairwise(passages):
        assert one + sum(count_words(split_sentences(second)[:1])) > length  # no passage could take one sentence more


TARGET = ["Does aspirin lower the risk of heart failure?", "Is aspirin given for heart failure and stroke?"]
POOL = [
    "Aspirin is a drug. It is old. Aspirin and aspirin again are in this longer sentence for the test.",
    "Heart failure is common. The risk is high. The risk is low. The risk is equal.",
    "The weather is fine and the risk is low.",
    "Aspirin.",
    "Stroke follows heart failure.",
]


def best(entities, texts, passages, length):
    """Return the passages with the highest BM25 for each entity, by sorting all of them."""
    cut = [one for text in texts for one, _ in cut_passages(text, length, Context())]
    kept = set()
    for entity in entities:
        words, scores = entity.split(), []
        for number, passage in enumerate(cut):
            own = [word.strip(".,?!").lower() for word in passage.split()]
            count = sum(own[place : place + len(words)] == words for place in range(len(own)))
            norm = 1.2 * (0.25 + 0.75 * count_words([passage])[0] / length)
            scores.append((-count * 2.2 / (count + norm), number))
        kept |= {number for score, number in sorted(scores)[:passages] if score}
    return [cut[number] for number in sorted(kept)]


@each(("passages", "length"), [(1, 8), (2, 8), (1, 20), (3, 20)])
def test_the_best_passages_of_a_list_are_retrieved(passages, length, tmp_path):
    (tmp_path / "words.txt").write_text("Aspirin\nheart failure\n\nunknown thing\n")
    settings = {"words": str(tmp_path / "words.txt"), "passages": passages, "length": length}
    made = transform(Corpus.of(POOL), {"passages": settings}, tmp_path / "o.jsonl")
    assert list(made) == best(["aspirin", "heart failure"], POOL, passages, length)
    assert find_accounts(made)[0].notes["without_passage"] == 1
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert {name for row in rows for name in row["entities"]} == {"Aspirin", "heart failure"}


def test_mined_entities_are_frequent_in_the_task_rare_in_the_corpus_and_long():
    context = Context(target=TARGET)
    made = list(Passages(entities=3, passages=2).apply(pool(POOL), context))
    counts = Counter({"aspirin": 2, "heart failure": 2, "stroke": 1, "risk": 1, "lower": 1, "given": 1})
    found = {"aspirin": 2, "heart failure": 2, "stroke": 1, "risk": 2}
    scores = {
        one: (1 + math.log(counts[one])) * math.log(6 / (1 + found[one])) * math.log2(1 + len(one.split()))
        for one in found
    }
    assert context.notes["entities"]["first"] == sorted(scores, key=lambda one: (-scores[one], one))[:3]
    assert {name for one in made for name in one.fields["entities"]} == {"aspirin", "heart failure", "stroke"}
    assert len({one.text for one in made}) == len(made)


def write(prompt):
    return None if "stroke" in prompt else [f"{prompt} 1", {"text": f"{prompt} 2", "n": 2}, f"{prompt} 3"]


def test_a_function_writes_passages_of_the_prompts():
    context = Context(target=TARGET)
    made = list(
        Passages(generator=write, passages=2, entities=3, prompt="On {entity}:", key="m").apply(pool(POOL), context)
    )
    assert [one.text for one in made if one.fields["entities"] == ["aspirin"]] == ["On aspirin: 1", "On aspirin: 2"]
    assert made[0].fields["made_by"] == "write" and made[0].fields["made_with"] == "m" and made[1].fields["n"] == 2
    assert len(made) == 2 * (3 - context.notes["without_passage"]) and context.notes["calls"] == 3


def test_a_model_writes_passages_that_depend_on_the_prompt_and_the_seed(tiny_llama):
    settings = {"model": str(tiny_llama), "passages": 3, "entities": 2, "length": 6}

    def written(**given):
        made = transform(Corpus.of(POOL), {"passages": settings | given}, target=Corpus.of(TARGET))
        return list(made), find_accounts(made)[0].notes

    texts, notes = written()
    assert len(texts) == 6 and (notes["calls"], notes["from_cache"]) == (2, 0)
    more, notes = written(entities=3)
    assert more[:6] == texts and (notes["calls"], notes["from_cache"]) == (1, 2)
    assert written(seed=1)[0] != texts
    with pytest.raises(
        UserError, match=r"^A prompt of .* do not fit into the 128 positions of '.*'; give a smaller length"
    ):
        written(length=128)


@each(
    ("given", "message"),
    [
        ({"model": "no-such-model", "generator": write}, "a model or a generator, not both"),
        ({"top_p": 0}, "top_p above 0"),
        ({"passages": 0}, "passages must be at least 1"),
        ({"prompt": "Title"}, "must contain {entity}"),
        ({"words": "no.txt"}, "cannot be read"),
        ({}, "needs the text of a task"),
    ],
)
def test_mistakes_are_explained(given, message):
    with pytest.raises(UserError, match=message):
        transform(Corpus.of(POOL), {"passages": given})


def test_texts_without_entities_are_an_error():
    with pytest.raises(UserError, match="finds no entity"):
        transform(Corpus.of(POOL), "passages", target=Corpus.of(["the of", "is it"]))
