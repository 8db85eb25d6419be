"""Reading-comprehension text: patterns, answers that are parts of documents, and pairs that a task can be made of."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import transform
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.data.operations import Context, find_accounts
from acclimate.data.task_kinds import load_task
from acclimate.papers.comprehension.transform import CONNECTIVES, Comprehension, Pair, mine_pairs, read_answers
from tests.cases import each
from tests.data.select.test_operations import pool

PARTS = (
    "Appeals in civil cases",
    "The court dismissed the appeal of the tenant. Therefore, the order of the district court remains in force.",
    "It had been lower. However, costs were awarded. A lien is defined as a right to keep property of a debtor.",
    "The hearing was postponed for six weeks because the counsel of the plaintiff fell ill.",
)
TEXT = "\n\n".join(PARTS)


@each(
    ("text", "pairs"),
    [
        ("It rained. Therefore, the road was wet.", [("consequence", "It rained.", "the road was wet.")]),
        ("It rained. As a result, it flooded!", [("consequence", "It rained.", "it flooded!")]),
        ("It rained. However, we went.", [("contrast", "It rained.", "we went.")]),
        ("It rained. Moreover, it hailed.", [("addition", "It rained.", "it hailed.")]),
        ("It rained. In other words, it was wet.", [("restatement", "It rained.", "it was wet.")]),
        ("It rained. For example, in May.", [("example", "It rained.", "in May.")]),
        ("We left because it rained.", [("cause", "We left", "it rained")]),
        ("We left, because of the rain.", [("cause", "We left", "the rain")]),
        ("A tort is defined as a civil wrong.", [("definition", "tort", "a civil wrong")]),
        ("The term tort refers to a civil wrong.", [("definition", "tort", "a civil wrong")]),
        ("Torts\nThey are wrongs.", [("title", "", "Torts")]),
        ("They are wrongs.\nThey are not crimes.", []),
        ("Therefore, it rained.", []),
        ("It rained. Therefore it was wet.", []),
        ("The report refers to page 3.", []),
    ],
)
def test_patterns_find_pairs(text, pairs):
    assert mine_pairs(text) == [Pair(*pair) for pair in pairs]


def test_questions_follow_the_document_without_its_title():
    context = Context()
    (found,) = Comprehension(least=10).apply(pool([TEXT]), context)
    passage, *questions = found.text.split("\n\nQuestion: ")
    assert passage == TEXT.partition("\n")[2].strip()
    answers = [question.split("\nAnswer: ")[1] for question in questions]
    assert set(answers) == {
        "Appeals in civil cases",
        "the order of the district court remains in force.",
        "costs were awarded.",
        "a right to keep property of a debtor",
        "the counsel of the plaintiff fell ill",
    }
    assert context.notes["questions"] == dict.fromkeys(("title", "consequence", "contrast", "definition", "cause"), 1)


WORDS = [word.capitalize() for words in CONNECTIVES.values() for word in words.split("|")]
SENTENCES = st.lists(
    st.one_of(
        st.text("ab .,\n", max_size=12),
        st.builds("{}, {}.".format, st.sampled_from(WORDS), st.text("ab ", max_size=9)),
        st.builds("{} because {}.".format, st.text("ab ", max_size=6), st.text("ab \n", max_size=6)),
        st.builds("{} is defined as {}!".format, st.text("ab ", max_size=6), st.text("abé", max_size=6)),
    ),
    max_size=6,
)


@given(SENTENCES, st.integers(0, 4), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_answer_is_a_part_of_the_document(parts, least, most):
    text = " ".join(parts)
    for pair in mine_pairs(text, least):
        assert pair.second in text and pair.first in text and pair.second
        assert pair.relation == "title" or len(pair.second) >= least
    (found,) = Comprehension(least=least, most=most).apply(pool([text]), Context())
    answers = re.findall(r"\n\nQuestion: (?:.|\n)*?\nAnswer: ((?:.|\n)*?)(?=\n\nQuestion: |\Z)", found.text)
    assert all(answer in text for answer in answers)
    assert answers or found.text == text


def test_at_most_so_many_questions_of_a_relation_and_other_forms_with_another_seed():
    text = " ".join(
        f"It rained {number} hours in the valley. Therefore, road {number} was closed." for number in range(9)
    )
    found = {
        seed: [one.text for one in Comprehension(least=0, seed=seed).apply(pool([text]), Context())]
        for seed in range(8)
    }
    assert (
        all(texts[0].count("Answer: road") == 2 for texts in found.values()) and len({*map(str, found.values())}) > 1
    )
    (three,) = Comprehension(least=0, most=3).apply(pool([text]), Context())
    assert three.text.count("Answer: ") == 3


def test_documents_without_questions_are_kept_or_dropped():
    texts = ["Nothing to ask.", "It rained. Therefore, the road was wet."]
    kept, dropped = (Comprehension(least=0, plain=plain).apply(pool(texts), Context()) for plain in ("keep", "drop"))
    assert [one.text.partition("\n")[0] for one in kept] == texts
    assert [one.text.partition("\n")[0] for one in dropped] == texts[1:]


def test_pairs_are_a_task(tmp_path):
    texts = [
        f"Case {number} was closed early. {word}, the {number} parties agreed on the costs."
        for number in range(30)
        for word in ("Therefore", "However")
    ]
    made = transform(Corpus.of(texts), "comprehension form=pairs least=5", tmp_path / "pairs.jsonl")
    task = load_task(tmp_path / "pairs.jsonl")
    assert task.labels == ("consequence", "contrast") or list(task.labels) == ["consequence", "contrast"]
    row = json.loads((tmp_path / "pairs.jsonl").read_text().splitlines()[0])
    assert row == {
        "text": "Case 0 was closed early.",
        "text_pair": "the 0 parties agreed on the costs.",
        "label": "consequence",
    }
    assert find_accounts(made)[0].notes["questions"] == {"consequence": 30, "contrast": 30}


def asks(text):
    return [("What?", text[:4]), {"question": "Who?", "answer": "not there"}] if "rain" in text else None


def test_a_function_asks_and_only_answers_in_the_document_are_kept():
    made = transform(Corpus.of(["It rained.", "It was dry."]), {"comprehension": {"generator": asks}})
    assert list(made) == ["It rained.\n\nQuestion: What?\nAnswer: It r", "It was dry."]
    (account,) = find_accounts(made)
    assert account.notes["answers_not_in_the_document"] == 1 and account.notes["questions"] == {"generated": 1}
    pairs = transform(Corpus.of(["It rained."]), {"comprehension": {"generator": asks, "form": "pairs"}})
    assert list(pairs) == ["What?"]


@each("returned", [3, "ab", [("a",)], [("a", 3)], [{"question": "a"}], ["ab"], [("a", " ")]])
def test_other_results_of_a_function_are_refused(returned):
    with pytest.raises(TypeError, match="pairs of a question and an answer"):
        read_answers(returned)


@each("given", [{"most": 0}, {"least": -1}])
def test_parameters_are_checked(given):
    with pytest.raises(UserError, match="at least"):
        Comprehension(**given)
