"""Answers of models: lists, pairs and labels in any form, and no error whatever they say."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.data.answer_parsing import (
    clean_answer,
    cut_to_sentences,
    find_json,
    is_refusal,
    parse_label,
    parse_list,
    parse_pairs,
)
from tests.cases import each

QUESTION, ANSWER = ("question", "q"), ("answer", "a")
SCRAPS = [*'[]{}":,\\\n', "```", "```json\n", "- ", "1. ", "2) ", "**", "Q: ", "A: ", "null", "question", "answer"]
SCRAPS += ["<think>", "</think>", "1e999", "9" * 5000, " a ", "é", "\ud800", "\0", "[" * 3000]
ODD = st.text() | st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=25).map("".join)


@given(ODD)
@settings(max_examples=150, deadline=None)
def test_any_answer_is_read(answer):
    for found in (parse_list(answer), parse_list(answer, commas=True)):
        assert all(isinstance(one, str) and one.strip() == one != "" for one in found) and len(set(found)) == len(
            found
        )
    pairs = parse_pairs(answer, QUESTION, ANSWER)
    assert all(len(pair) == 2 and all(isinstance(part, str) and part for part in pair) for pair in pairs)
    assert parse_label(answer, ["one", "two", "+"]) in (None, "one", "two", "+")
    assert isinstance(is_refusal(answer), bool) and len(clean_answer(answer)) <= len(answer)
    assert answer.startswith(cut_to_sentences(answer))


WORDS = st.text("abcdefghijk", min_size=1, max_size=8)
FORMS = {
    "json": lambda names: json.dumps(names),
    "object": lambda names: "Sure!\n" + json.dumps({"summary": "It is short.", "entities": names}, indent=1),
    "rows": lambda names: json.dumps([{"name": name, "score": 3} for name in names]),
    "fence": lambda names: f"Here are the entities:\n```json\n{json.dumps(names, indent=2)}\n```\nDo you need more?",
    "thought": lambda names: f'<think>["no", or {{}}</think>\n{json.dumps(names)}',
    "bullets": lambda names: "Here is the list:\n\n" + "\n".join(f"- {name}" for name in names) + "\n\nThat is all.",
    "numbers": lambda names: "".join(f"{place}. **{name}**\n" for place, name in enumerate(names, 1)),
    "parentheses": lambda names: "\n\n".join(f'  {place}) "{name}"' for place, name in enumerate(names, 1)),
    "lines": lambda names: "Entities:\n" + "\n".join(names),
    "commas": lambda names: f"Entities: {', '.join(names)}",
}


@given(st.lists(WORDS, min_size=2, max_size=6, unique=True))
@settings(max_examples=25, deadline=None)
def test_a_list_is_found_in_each_form(names):
    for form, write in FORMS.items():
        assert parse_list(write(names), commas=True) == names, form


PAIR_FORMS = {
    "json": lambda pairs: json.dumps([{"question": one, "answer": two} for one, two in pairs]),
    "keys": lambda pairs: json.dumps({"pairs": [{"Q": one, "Answer": two, "n": 1} for one, two in pairs]}),
    "lists": lambda pairs: json.dumps([["x", "y", "z"], *pairs])[:-1] + "]",
    "lines": lambda pairs: "".join(f"Q: {one}\nA: {two}\n\n" for one, two in pairs),
    "numbered": lambda pairs: "".join(
        f"{n}. **Question {n}:** {one}\n   **Answer:** {two}\n" for n, (one, two) in enumerate(pairs, 1)
    ),
    "fence": lambda pairs: "Certainly:\n```json\n" + PAIR_FORMS["json"](pairs) + "\n```",
    "rows": lambda pairs: "\n".join(json.dumps({"question": one, "answer": two}) for one, two in pairs),
}


@given(st.lists(st.tuples(WORDS.map(lambda word: f"what is {word}?"), WORDS), min_size=1, max_size=5, unique=True))
@settings(max_examples=25, deadline=None)
def test_pairs_are_found_in_each_form(pairs):
    for form, write in PAIR_FORMS.items():
        assert parse_pairs(write(pairs), QUESTION, ANSWER) == pairs, form


@each(
    ("answer", "found"),
    [
        ('{"entities": ["one", "two, three", "fou', ["one", "two, three"]),
        ('```json\n[{"name": "one", "n": 1}, {"name": "two", "n', ["one"]),
        ('["one"', []),
        ('{"entities": {"one": "two"', []),
        ("- one\x1f\n- \u2003two", ["one", "two"]),
        ("see [1, 2] and\n- one\n- two", ["one", "two"]),
    ],
)
def test_of_a_list_that_is_cut_the_whole_entries_are_read(answer, found):
    assert parse_list(answer, commas=True) == found


def test_of_pairs_that_are_cut_the_whole_ones_are_read():
    answer = '[{"question": "one?", "answer": "a, b"}, {"question": "two, or three?", "answer": "c'
    assert parse_pairs(answer, QUESTION, ANSWER) == [("one?", "a, b")]


def test_parts_without_their_other_half_are_left_out():
    answer = "Q: one?\nQ: two?\nA: 2\nA: nobody asked\nQ: three?\nA:\n"
    assert parse_pairs(answer, QUESTION, ANSWER) == [("two?", "2")]
    assert parse_pairs('[{"q": "one?"}, {"answer": 2}, {"q": "three?", "a": 3.5}]', QUESTION, ANSWER) == [
        ("three?", "3.5")
    ]
    twice = json.dumps([{"q": "x", "a": "y"}] * 2)
    assert (
        len(parse_pairs(twice, QUESTION, ANSWER)) == 1 and len(parse_pairs(twice, QUESTION, ANSWER, once=False)) == 2
    )


@each(
    ("answer", "label"),
    [
        ("positive", "positive"),
        ("**Positive.**", "positive"),
        ('{"reason": "not negative", "label": "very positive"}', "very positive"),
        ("The label is VERY  positive, I think", "very positive"),
        ("<think>negative?</think> Label: positive", "positive"),
        ("negative or positive", "negative"),
        ("nonpositive", None),
        ("", None),
        ("none of these", None),
        ("+", "+"),
    ],
)
def test_labels(answer, label):
    assert parse_label(answer, ["positive", "negative", "very positive", "+"]) == label


@each(
    ("answer", "text"),
    [
        ("Sure, here is the text:\n\nIt rains.", "It rains."),
        ("```\nIt rains.\n```", "It rains."),
        ("<think>\nhm\n</think>\n\nIt rains.", "It rains."),
        ("<think> and no end", ""),
        ("Here is why it rains. Clouds: they form.", "Here is why it rains. Clouds: they form."),
        ("Use\n```\ncode\n```\nhere.", "Use\n```\ncode\n```\nhere."),
    ],
)
def test_what_surrounds_a_text_is_removed(answer, text):
    assert clean_answer(answer) == text


@each(
    ("answer", "refused"),
    [
        ("I'm sorry, but I can't assist with that.", True),
        ("I’m sorry, I cannot provide this text.", True),
        ("As an AI language model, I have no opinion.", True),
        ("Unfortunately, I am not able to fulfill this request", True),
        ("I'm sorry to say that the soup was cold.", False),
        ("Sorry seems to be the hardest word.", False),
        ("The company said: I cannot provide it.", False),
    ],
)
def test_refusals(answer, refused):
    assert is_refusal(answer) == refused


def test_json_and_whole_sentences():
    assert list(find_json('a {"b": [1]} c [2] {x} [3')) == [{"b": [1]}, [2]]
    assert (
        cut_to_sentences('One. "Two!" Three') == 'One. "Two!"' and cut_to_sentences("version 1.5 of") == "version 1.5"
    )
