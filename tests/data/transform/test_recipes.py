"""Recipes with a function as writer: what is asked, what is made of the answers, and what is not used."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import adapt, transform
from acclimate.base.errors import UserError
from acclimate.data.chat import read_conversation
from acclimate.data.documents import Corpus
from acclimate.data.operations import TRANSFORMS, Context, find_accounts, read_operations
from acclimate.data.pool import count_words
from acclimate.data.task_kinds import load_task
from acclimate.data.transform.generate import hash_text
from acclimate.data.transform.questions import Instructions, Questions, locate
from acclimate.data.transform.recipe import Pieces
from acclimate.data.transform.rewrite import Rewrite
from tests.cases import each
from tests.data.select.test_operations import pool
from tests.data.test_answer_parsing import ODD
from tests.data.transform.recipes import DOCUMENTS, say, write
from tests.servers import completion, serve


def rows(by, recipe, tmp_path, texts=DOCUMENTS, **context):
    made = transform(Corpus.of(texts), {recipe.pop("name"): {"by": by, **recipe}}, tmp_path / "o.jsonl", **context)
    found = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    return found, find_accounts(made)[0]


def test_each_document_is_rewritten_in_each_style(tmp_path):
    made, account = rows(write, {"name": "rewrite", "styles": "plain, expert", "key": "v1"}, tmp_path)
    assert [(row["made_from"], row["style"]) for row in made] == [
        (hash_text(text), style) for text in DOCUMENTS for style in ("plain", "expert")
    ]
    prompt = read_operations({"rewrite": {"by": write}}, TRANSFORMS)[0].templates["rewrite"]
    plain = prompt.replace("{style}", "in plain language that a newcomer to the subject understands")
    assert made[0]["text"] == say(plain.replace("{text}", DOCUMENTS[0]))
    origin = {"made_by": "write", "made_with": "v1", "prompt": f"rewrite/rewrite {hash_text(prompt)[:12]}"}
    assert all(row.items() >= origin.items() for row in made)
    assert account.notes["prompts"]["rewrite"] == hash_text(prompt)[:12] and account.notes["calls"] == 6
    shown = {"generator": "write", "prompts": account.notes["prompts"]}
    assert account.public().items() >= shown.items() and account.without_texts().notes.items() >= shown.items()


@each("recipe", ["rewrite", "repeat"])
def test_controls_have_as_many_tokens_as_another_text(recipe, tmp_path):
    other = transform(Corpus.of(DOCUMENTS), {"rewrite": {"by": write}}, tmp_path / "other.jsonl")
    wanted = sum(count_words(list(other)))
    by = {"by": write, "styles": "paraphrase"} if recipe == "rewrite" else {}
    made = transform(Corpus.of(DOCUMENTS), {recipe: {**by, "like": str(tmp_path / "other.jsonl")}})
    texts = [text for source in made.sources for text in Corpus(source.path, dedup=False)]
    longest = max(map(len, map(str.split, [*texts, *DOCUMENTS])))
    assert abs(sum(count_words(texts)) - wanted) <= longest / 2 + 1
    if recipe == "rewrite":
        assert len(set(texts)) == len(texts)
    else:
        assert {texts.count(text) for text in DOCUMENTS} <= {len(texts) // 3, len(texts) // 3 + 1}
    (account,) = find_accounts(made)
    assert account.notes["wanted_tokens"] == wanted and account.tokens_out == sum(count_words(texts))
    size = {recipe: {**by, "tokens": wanted}}
    assert find_accounts(transform(Corpus.of(DOCUMENTS), size))[0].tokens_out == account.tokens_out


def test_a_writer_that_has_nothing_new_ends_a_text_of_any_size():
    made = transform(
        Corpus.of(DOCUMENTS), {"rewrite": {"by": lambda prompt: "It is always the same.", "tokens": 10**6}}
    )
    assert list(made) == ["It is always the same."]
    assert find_accounts(made)[0].notes["unused"]["repeated"] == 2 * len(DOCUMENTS) * 4 - 1


def test_what_is_not_used_is_counted():
    prompt = Rewrite(by=write).templates["rewrite"]
    answers = {
        0: "I'm sorry, but I cannot help with that.",
        1: " ",
        2: "<think>hm, what</think>",
        3: "Rewrite the document: {text}",
        4: prompt.replace("{text}", "something"),
        5: "A good text about many things that happened in the harbour.",
        6: "A good text about many things that happened in the harbour!",
        7: "A good text about many things that happened in the harbor.",
        8: "Another text of this kind, about a number of other things.",
        9: "the evaluated text has eight words or more of them",
    }
    texts = [f"{DOCUMENTS[0]} Document {number}." for number in range(10)]

    def by(given):
        place = next(place for place, text in enumerate(texts) if text in given)
        return answers[place].replace("{text}", texts[place].upper())

    context = Context(evaluated=["The evaluated text has eight words, or more of them."])
    made = list(Rewrite(by=by, styles="plain", key=1).apply(pool(texts), context))
    assert [one.text for one in made] == [answers[5], answers[8]]
    unused = {"contaminated": 1, "copied": 2, "only thoughts": 1, "refused": 1, "repeated": 2}
    assert context.notes["unused"] == unused and context.notes["empty"] == 1 and len(context.notes["dropped"]) == 3


def test_text_of_the_evaluated_splits_is_not_written(tmp_path):
    leaked = "The soup was cold, the waiter rude, and we will never come back here."
    task = {"train": [{"text": f"text {n}", "label": n % 2} for n in range(8)]}
    task |= {"dev": task["train"], "test": [{"text": leaked, "label": 0}, {"text": "good", "label": 1}]}
    by = lambda prompt: leaked if "Document 1" in prompt else say(prompt)  # noqa: E731
    recipe = {"name": "rewrite", "styles": "plain", "key": "leak"}
    texts = ["Document 1 is here.", "Document 2 is there."]
    made, account = rows(by, dict(recipe), tmp_path, texts, task=task)
    assert len(made) == 1 and account.notes["unused"] == {"contaminated": 1}
    assert len(rows(by, dict(recipe), tmp_path, texts)[0]) == 2  # without the task, and not from the cache


def test_questions_have_answers_of_the_text(tmp_path):
    made, account = rows(write, {"name": "questions", "form": "rows"}, tmp_path)
    assert [row["answers"] for row in made] == [
        {"text": [name], "answer_start": [text.index(name)]}
        for text, name in zip(DOCUMENTS, ("Alpha Corp", "The", "Epsilon"), strict=True)
    ]
    assert account.notes["unused"] == {"not_in_text": 3}
    task = load_task(tmp_path / "o.jsonl")
    assert task.task_kind == "qa" and sum(map(len, (task.train, task.dev, task.test))) == 3
    made, account = rows(write, {"name": "questions"}, tmp_path)
    assert made[0]["text"] == f"{DOCUMENTS[0]}\n\nQuestion: Who comes first, proC ahplA?\nAnswer: Alpha Corp"
    free, account = rows(write, {"name": "questions", "form": "rows", "extractive": False}, tmp_path)
    assert len(free) == 6 and not account.notes["unused"] and free[1]["answer"] == "Omega"


@given(st.text(max_size=30), st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_an_answer_is_located_as_the_text_has_it(answer, text):
    found = locate(answer, text)
    if answer in text:
        assert found is not None
    if found is not None:
        assert text[found[0] :].startswith(found[1])
        assert found[1] == answer or found[1].lower().split() == answer.lower().split() or not answer.isascii()


def test_instructions_are_conversations(tmp_path):
    made, _ = rows(write, {"name": "instructions", "number": 2}, tmp_path)
    assert [row["messages"][0]["content"] for row in made[:2]] == ["tell me of Alpha Corp", "tell me of Beta Ltd"]
    assert all(len(read_conversation(row).turns) == 2 for row in made) and len(made) == 6


@each(
    ("name", "answer", "made"),
    [
        ("instructions", "Request: one\nResponse: two\n\nRequest: three\nResponse: fo", "one\n\ntwo"),
        (
            "questions",
            "Q: what?\nA: Alpha Corp\n\nQ: who?\nA: Be",
            f"{DOCUMENTS[0]}\n\nQuestion: what?\nAnswer: Alpha Corp",
        ),
        ("active-reading", "1. Make a time line\n2. Draw a m", "A text on make a time line."),
    ],
)
def test_the_last_entry_of_an_answer_that_was_cut_off_is_not_used(name, answer, made):
    def reply(prompt, number):
        return completion(answer, "length") if number == 1 else completion("A text on make a time line.")

    with serve(reply) as server:
        found = transform(Corpus.of(DOCUMENTS[:1]), {name: {"by": server.url, "model": f"m {name}"}})
    assert list(found) == [made] and find_accounts(found)[0].notes["unused"] == {"cut off": 1}


def test_the_card_says_who_wrote_the_text(tiny_bert, tmp_path):
    made = transform(Corpus.of(DOCUMENTS), {"rewrite": {"by": write}})
    adapt(
        tiny_bert, made, "lm", tmp_path / "a", steps=1, batch_size=4, max_length=16, precision="fp32", progress=False
    )
    digest = find_accounts(made)[0].notes["prompts"]["rewrite"]
    assert f"Written by `write`, prompts `rewrite` {digest}" in (tmp_path / "a" / "README.md").read_text()


@given(
    st.lists(st.sampled_from(["One two three.", "Four, five!", "Six seven eight nine ten", " "]), max_size=9),
    st.integers(1, 12),
)
@settings(max_examples=40, deadline=None)
def test_long_documents_are_read_in_pieces(parts, words):
    text = " ".join(parts)
    pieces = list(Pieces([text], [0], words))
    assert " ".join(piece.text for piece in pieces).split() == text.split()
    assert {piece.digest for piece in pieces} <= {hash_text(text)}
    assert all(len(piece.text.split(". ")) == 1 for piece in pieces if count_words([piece.text])[0] > words)


@given(st.lists(ODD, min_size=3, max_size=3))
@settings(max_examples=15, deadline=None)
def test_any_answer_is_handled(answers):
    for operation in (Rewrite, Questions, Instructions):
        by = lambda prompt: answers[next(n for n, text in enumerate(DOCUMENTS) if text in prompt)]  # noqa: E731
        context = Context()
        made = list(operation(by=by, key=json.dumps(answers)).apply(pool(DOCUMENTS), context))
        assert all(one.text.strip() and one.fields["made_from"] for one in made)
        assert sum(context.notes["unused"].values()) + len(made) + context.notes["empty"] >= 3


def test_prompts_are_replaced_by_files(tmp_path):
    (tmp_path / "rewrite.txt").write_text("Say {text} {style} and keep {braces}.")
    (tmp_path / "styles.txt").write_text("loud: in capitals\n\n# comment\nodd\n")
    asked = []

    def by(prompt):
        asked.append(prompt)
        return say(prompt)

    made = transform(["a {style} text"], {"rewrite": {"by": by, "prompts": str(tmp_path), "styles": "loud", "key": 1}})
    assert asked == ["Say a {style} text in capitals and keep {braces}."] and len(list(made)) == 1
    (tmp_path / "styles.txt").write_text("loud: with shouts")
    transform(["a {style} text"], {"rewrite": {"by": by, "prompts": str(tmp_path), "styles": "loud", "key": 1}})
    assert asked[1:] == ["Say a {style} text with shouts and keep {braces}."]
    (tmp_path / "own.txt").write_text("Requests about {text}, {number} of them")
    assert Instructions(by=by, prompts=str(tmp_path / "own.txt")).templates == {
        "instructions": "Requests about {text}, {number} of them"
    }


@each(
    ("name", "given", "message"),
    [
        ("rewrite", {}, "needs a writer: give by=http"),
        ("rewrite", {"styles": "plain,plan"}, "unknown style 'plan'; styles.txt has plain, expert"),
        ("rewrite", {"tokens": 0}, "tokens is at least 1"),
        ("rewrite", {"tokens": 5, "like": "x"}, "goes without like"),
        ("rewrite", {"words": 0}, "words is at least 1"),
        ("rewrite", {"prompts": "nowhere"}, "is no folder with rewrite.txt or styles.txt"),
        ("rewrite", {"prompts": __file__}, "is no folder with"),
        ("instructions", {"prompts": json.__file__}, "lacks the placeholder {"),
        ("questions", {"number": 0}, "number is at least 1"),
        ("repeat", {"times": 0}, "times is at least 1"),
        ("rewrite", {"by": "http://localhost:1/v1"}, "give model=NAME"),
    ],
)
def test_mistakes_are_explained(name, given, message):
    usual = {} if name == "repeat" or not given else {"by": write}
    with pytest.raises(UserError, match=message):
        read_operations({name: {**usual, **given}}, TRANSFORMS)
