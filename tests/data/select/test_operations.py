"""Selections: accounts, budgets, the control of equal tokens, the cache, and what is said of mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import adapt, select
from acclimate.base.errors import UserError
from acclimate.cli import main as cli
from acclimate.data.documents import Corpus
from acclimate.data.ngrams import normalize_words
from acclimate.data.operations import (
    SELECTIONS,
    Context,
    Operation,
    find_accounts,
    operate,
    read_accounts,
    read_operations,
)
from acclimate.data.pool import Documents, count_words
from acclimate.data.select.control import Random, fill_tokens, match_control
from acclimate.data.select.nearest import Nearest, Task
from tests.cases import each

POOL = [f"{'word ' * (number % 7 + 1)}number {number}." for number in range(60)]


def pool(texts: Iterable[str]) -> Documents:
    return Documents.of(((text, 0) for text in texts), ("memory",))


@given(st.lists(st.text(min_size=1), max_size=20), st.data())
@settings(max_examples=25, deadline=None)
def test_documents_are_read_by_position(texts, data):
    documents = pool(texts)
    assert list(documents) == texts and documents[:] == texts
    if texts:
        chosen = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=10))
        taken = documents.take(chosen)
        assert list(taken) == [texts[place] for place in chosen]
        assert taken.tokens.tolist() == count_words([texts[place] for place in chosen])
        assert documents.are_in(taken).tolist() == [place in chosen for place in range(len(texts))]


def test_words_and_punctuation_marks_are_counted():
    assert count_words(["It's a test, 3.5!", "日本語 x", "", "café naïve"]) == [10, 4, 0, 2]


@given(st.text(st.characters(max_codepoint=127), max_size=30))
@settings(max_examples=60, deadline=None)
def test_ascii_texts_have_the_same_words_as_others(text):
    assert count_words([f"{text} é"])[0] == count_words([text])[0] + 1
    assert normalize_words(f"{text} é") == [*normalize_words(text), "é"]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 2000))
@settings(max_examples=60, deadline=None)
def test_a_budget_of_tokens_is_met_as_nearly_as_whole_documents_allow(tokens, limit):
    tokens = np.array(tokens)
    sums = np.cumsum(tokens)
    kept = fill_tokens(np.arange(len(tokens)), tokens, limit)
    assert kept.tolist() == list(range(len(kept))) and len(kept) >= 1
    assert abs(tokens[kept].sum() - limit) == np.abs(sums - limit).min()


def test_random_documents_do_not_depend_on_the_order_but_on_the_seed():
    one, other = (set(Random(documents=9).apply(pool(texts), Context())) for texts in (POOL, POOL[::-1]))
    assert one == other and len(one) == 9
    assert set(Random(documents=9, seed=1).apply(pool(POOL), Context())) != one
    half = Random(share=0.5).apply(pool(POOL), Context())
    assert abs(half.tokens.sum() - sum(count_words(POOL)) / 2) <= 5
    assert list(half) == [text for text in POOL if text in set(half)]  # in the order of the corpus


def test_the_control_has_as_many_tokens_and_the_same_filters():
    accounts = [account for account in find_accounts(select(POOL, [TASK, {"random": {"documents": 5}}], task=ROWS))]
    compared = read_operations([TASK, {"nearest": 2}, TASK])
    accounts = [*accounts, accounts[-1]]
    matched = match_control(read_operations("random seed=3"), compared, accounts)
    assert matched == [Task(), Random(tokens=accounts[1].tokens_out, seed=3), Task()]
    mine = read_operations({"task": 2, "random": "same"})
    assert match_control(mine, compared, accounts) == [Task(2), Random(tokens=accounts[1].tokens_out)]
    sized = read_operations({"random": 7})
    assert match_control(sized, compared, accounts) == sized
    with pytest.raises(UserError, match="has no size here"):
        select(POOL, "random")


TASK = "task"
ROWS = [{"text": f"word {number} {'yes' if number % 2 else 'no'}", "label": number % 2} for number in range(40)]


def test_the_account_says_what_went_in_and_came_out(tmp_path, caplog):
    out, control = tmp_path / "chosen.jsonl", tmp_path / "control.jsonl"
    chosen = select([*POOL, POOL[0]], {"nearest": {"k": 3}}, out, task=ROWS, control=control)
    texts = list(chosen)
    (account,) = find_accounts(chosen)
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == texts
    assert (account.documents_in, account.documents_out) == (len(POOL), len(texts))
    assert account.tokens_in == sum(count_words(POOL)) and account.tokens_out == sum(count_words(texts))
    assert set(account.kept) <= set(texts) and set(account.dropped) <= set(POOL) - set(texts)
    assert "1 duplicate" in account.notes["read"] and account.sources == ["memory"]
    (drawn,) = read_accounts(control)
    assert drawn.name == "random" and abs(drawn.tokens_out - account.tokens_out) <= 5
    assert account.public()["settings"]["k"] == 3
    assert not any(text in json.dumps(account.public()) for text in ("memory", "number"))
    assert find_accounts(Corpus(tmp_path))[0].operation == "nearest k=3"
    assert "left out" not in caplog.text  # accounts are no text
    out.write_text(out.read_text() + '{"text": "added by hand"}\n')
    assert find_accounts(Corpus(out)) == []


def test_documents_that_a_selection_repeats_are_read_repeatedly(tmp_path):
    out = tmp_path / "repeated.jsonl"
    chosen = select(POOL, {"random": {"documents": 4}, "task": 3}, out, task=ROWS)
    read = Corpus(out)
    assert list(read) == list(chosen) and len({*read}) < len(list(read)) == read.report.documents
    before = read.fingerprint
    (tmp_path / "repeated.jsonl.account.json").unlink()
    alone = Corpus(out)
    assert len(list(alone)) == len({*read}) and alone.fingerprint != before


def test_a_chain_adds_its_accounts_to_those_of_the_text_it_reads(tmp_path):
    first = select(POOL, {"random": {"share": 0.5}}, tmp_path / "first.jsonl")
    second = find_accounts(select(first, {"random": {"documents": 3}}))
    assert [account.name for account in second] == ["random", "random"]
    assert second[0].documents_out == second[1].documents_in


def test_results_come_from_the_cache_unless_something_changed(monkeypatch):
    calls = []
    apply = Random.apply
    monkeypatch.setattr(Random, "apply", lambda self, *given: calls.append(1) or apply(self, *given))
    corpus = Corpus.of(POOL)
    one = operate(corpus, [Random(documents=4)], Context())
    assert list(one) == list(operate(corpus, [Random(documents=4)], Context())) and len(calls) == 1
    assert one.fingerprint == operate(Corpus.of(POOL), [Random(documents=4)], Context()).fingerprint
    operate(Corpus.of(POOL[1:]), [Random(documents=4)], Context())
    operate(corpus, [Random(documents=4, seed=1)], Context())
    operate(corpus, [Random(documents=4)], Context(counted_by="others"))
    assert len(calls) == 4
    target = [Nearest(2)]
    keys = {operate(corpus, target, Context(target=texts)).sources[0].path for texts in (["word"], ["number"])}
    assert len(keys) == 2


def test_memory_does_not_grow_with_the_text():
    import tracemalloc

    peaks = []
    for count in (600, 2_400):
        texts = (f"{number} {'x' * 5_000}" for number in range(count))
        tracemalloc.start()
        documents = Documents.of(((text, 0) for text in texts), ("memory",))
        documents.take(Random(share=0.9).fill(np.arange(count), documents.tokens))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_800 * 300  # of 9 MB


@each(
    ("by", "message"),
    [
        ("nearset", "Did you mean 'nearest'"),
        ("nearest k=0", "k must be at least 1"),
        ("nearest k=x", "'k'"),
        ("nearest q=1", "'q'"),
        ("nearest k", "NAME parameter=value"),
        ("nearest 'k", "NAME parameter=value"),
        ({"random": {"tokens": 5, "share": 0.5}}, "give one of"),
        ({"random": {"share": 2}}, "above 0 and at most 1"),
        ({"random": "some"}, "or 'same'"),
        ({"nearest": {"tokens": -3}}, "at least 1"),
        (3, "A selection is NAME"),
        ("nearest", "needs the text of a task"),
        ([], "at least one operation"),
        (None, "at least one operation"),
    ],
)
def test_mistakes_are_explained(by, message):
    with pytest.raises(UserError, match=message):
        select(POOL, by)


def test_other_files_are_not_replaced(tmp_path):
    (tmp_path / "pool.jsonl").write_text('{"text": "mine"}\n')
    mistakes = {"pool.jsonl": "no selection or transform wrote it", "a.txt": "ends in .jsonl"}
    for out, message in ((tmp_path / name, message) for name, message in mistakes.items()):
        with pytest.raises(UserError, match=message):
            select(POOL, {"random": 5}, out)
    for documents in (3, 4):
        select(POOL, {"random": {"documents": documents}}, tmp_path / "mine.jsonl")
    assert len(list(Corpus(tmp_path / "mine.jsonl"))) == 4
    with pytest.raises(UserError, match="not both"):
        select(POOL, "nearest", task=ROWS, target=["some text"])


@pytest.fixture
def user_selection():
    @dataclass(frozen=True)
    class Shout(Operation):
        name = "shout"

        def apply(self, documents, context):
            return (text.upper() for text in documents if "7" in text)

    SELECTIONS.lookup("random")
    SELECTIONS.register("shout")(Shout)
    yield
    del SELECTIONS.entries["shout"]


def test_an_operation_may_make_new_documents(user_selection):
    made = select(POOL, ["shout", {"random": {"documents": 2}}])
    assert len(list(made)) == 2 and all(text.isupper() and "7" in text for text in made)


def test_no_document_left_is_an_error(user_selection):
    with pytest.raises(UserError, match="'shout' keeps none of 2 documents"):
        select(["a b", "c d"], "shout")


def test_the_command_line(tmp_path, monkeypatch, capsys):
    corpus, task = tmp_path / "pool.txt", tmp_path / "task.jsonl"
    corpus.write_text("\n".join(POOL))
    task.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["--corpus", corpus, "--task", task, "--by", "nearest k=2 order=rank", "--by", "task"]
    words += ["--out", tmp_path / "o.jsonl", "--control", tmp_path / "c.jsonl"]
    monkeypatch.setattr(sys, "argv", ["acclimate", "select", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    out = capsys.readouterr().out
    assert "nearest k=2 order=rank:" in out and "Control" in out
    assert (tmp_path / "o.jsonl.account.json").is_file() and "acclimate adapt" in out


@each("verb", ["select", "transform"])
def test_the_command_line_needs_a_file_to_write(verb, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["acclimate", verb, "--corpus", "pool.txt", "--by", "duplicates"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and "--out is required" in capsys.readouterr().err


def test_tokens_of_a_model_are_counted(tiny_bert):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    (account,) = find_accounts(select(POOL, {"random": {"documents": 10}}, tokenizer=tiny_bert))
    assert account.tokens_in == sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in POOL)
    assert account.counted_by.startswith("tokens of ")
    assert replace(account, notes={}).to_dict() != {}


def test_the_account_travels_into_manifest_and_card(tiny_bert, tmp_path):
    chosen = select(POOL, {"random": {"documents": 30}, "nearest": {"k": 4}}, task=ROWS)
    out = tmp_path / "adapted"
    adapt(tiny_bert, chosen, "lm", out, steps=1, batch_size=4, max_length=16, precision="fp32", progress=False)
    stored = json.loads((out / "acclimate.json").read_text())["text"]["selections"]
    assert [account["operation"] for account in stored] == ["random", "nearest"]
    assert stored[0]["documents_out"] == 30 and "kept" not in stored[0]
    card = (out / "README.md").read_text()
    assert "Selected with `random`, documents 30, seed 0: 30 of 60 documents" in card
    assert "Selected with `nearest`" in card and "number" not in card.split("## Data")[1].split("##")[0]
