"""The best documents: scores against direct computations, quotas, repetitions, and the cache of scores."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import select
from acclimate.base.errors import UserError
from acclimate.data.ngrams import normalize_words
from acclimate.data.operations import Context, find_accounts
from acclimate.data.pool import Documents, count_words
from acclimate.data.task_kinds import load_task
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.papers.best import select as best
from acclimate.papers.best.select import Best, NgramModel, divide, rule_score, train_rater
from tests.cases import each
from tests.data.select.test_nearest import LAW, SEA, sentences
from tests.data.select.test_operations import POOL, pool

TRAINING = ["a b a c", "a b b", "b a b"]


def direct_probability(word: str, history: tuple[str, ...]) -> float:
    """Witten-Bell smoothing, counted anew for every probability."""
    padded = [["<s>", "<s>", *normalize_words(text)] for text in TRAINING]
    words = {word for text in padded for word in text[2:]}
    followers = Counter(
        text[place]
        for text in padded
        for place in range(2, len(text))
        if tuple(text[place - len(history) : place]) == history
    )
    lower = direct_probability(word, history[1:]) if history else 1 / (len(words) + 1)
    total, types = followers.total(), len(followers)
    return (followers[word] + types * lower) / (total + types) if total else lower


def test_the_trigram_model_equals_its_definition_and_sums_to_one():
    model = NgramModel(TRAINING)
    for history in ((), ("a",), ("a", "b"), ("<s>", "<s>"), ("z", "a"), ("z", "z")):
        known = [model.probability(word, history) for word in ("a", "b", "c", "z")]
        assert known == pytest.approx([direct_probability(word, history) for word in ("a", "b", "c", "z")])
        assert sum(known) == pytest.approx(1)
    logs = [model.probability("a", ("<s>", "<s>")), model.probability("z", ("<s>", "a"))]
    assert model.score("a z") == pytest.approx(np.log(logs).mean()) and model.score("!") == -math.inf


def test_rules_are_those_of_the_paper():
    page = "\n".join(["The cook and the waiter have to be with the guests of that house today."] * 6)
    assert rule_score(page) == 1 and rule_score("") == 0
    assert [rule_score(text) for text in (page.replace(" ", " # "), page.replace("The", "- The"))] == [5 / 8, 7 / 8]
    assert rule_score("...\n" * 60) == 4 / 8  # the number of words, their length, no hashes, no bullets


@given(st.integers(1, 10_000), st.lists(st.integers(0, 500), min_size=1, max_size=8).filter(any))
@settings(max_examples=50, deadline=None)
def test_quotas_add_up_to_the_budget(budget, sizes):
    parts = divide(budget, np.array(sizes))
    assert parts.sum() == budget
    assert np.abs(parts - budget * np.array(sizes) / sum(sizes)).max() < 1


@pytest.fixture
def rater(tmp_path):
    file = tmp_path / "rate_by_number.py"
    file.write_text("def rate(text):\n    return float(text.rstrip('.').split()[-1]) if text[0] == 'w' else None\n")
    return f"{file}:rate"


def test_a_rater_orders_the_documents_and_its_scores_are_cached(rater, monkeypatch):
    chosen = select([*POOL, "x"], {"best": {"by": "rater", "rater": rater, "documents": 5}})
    assert list(chosen) == POOL[-5:]
    monkeypatch.setattr(best, "CachedFunction", lambda *given: pytest.fail("the scores are in the cache"))
    given = {"by": "rater", "rater": rater}
    assert list(select([*POOL, "x"], {"best": {**given, "least": 57}})) == POOL[57:]
    (account,) = find_accounts(select([*POOL, "x"], {"best": {**given, "tokens": 30}}))
    assert account.notes["scores"]["kept"]["1"] == 59 and abs(account.tokens_out - 30) <= 5
    assert account.notes["without_score"] == 1 and account.notes["scores"]["dropped"]["0"] == 0


def test_a_function_of_python_rates_each_document_once_also_after_a_failure():
    rated = []

    def rate(text):
        rated.append(text)
        if len(rated) == 4:
            raise ConnectionError("no answer")
        return len(rated)

    given = {"best": {"by": "rater", "rater": rate, "key": "v1", "documents": 1}}
    with pytest.raises(UserError, match=r"The rater '.*rate' failed for .*no answer.*continues from here"):
        select(POOL, given)
    assert list(select(POOL, given)) == [POOL[-1]]
    assert rated == [*POOL[:4], *POOL[3:]]


@pytest.fixture(scope="module")
def sources() -> Documents:
    """A large and a small source; the number at the end of each text is its rank."""
    texts = [(f"word word word {number}", number % 10 == 0) for number in range(200)]
    return Documents.of(((text, int(small)) for text, small in texts), ("large", "small"))


@pytest.fixture
def by_number(monkeypatch):
    monkeypatch.setattr(best, "rule_score", lambda text: int(text.split()[-1]))


def test_quotas_of_sources(sources, by_number):
    context = Context()
    kept = list(Best(tokens=200, quota="original").apply(sources, context))
    numbers = sorted(int(text.split()[-1]) for text in kept)
    assert sum(number % 10 == 0 for number in numbers) == 5 and len(numbers) == 50
    assert numbers[0] == 150 and numbers[-1] == 199
    assert {name: found["quota"] for name, found in context.notes["quotas"].items()} == {"large": 180, "small": 20}
    for tokens in (96, 400):  # the small source has 80 tokens
        taken = Best(tokens=tokens, quota="equal").apply(sources, context)
        by_source = [int(taken.tokens[taken.source == number].sum()) for number in (0, 1)]
        assert by_source == [tokens // 2, tokens // 2]
        again = context.notes["quotas"]["small"]["repeated"]
        assert again == (0 if tokens == 96 else 30)
        assert len({*taken}) == len(taken) - again
    seeds = [sorted(Best(tokens=400, quota="equal", seed=seed).apply(sources, Context())) for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_the_best_subset_for_several_epochs_has_the_tokens_of_the_budget(sources, by_number):
    whole = int(sources.tokens.sum())
    for repeat in (1, 4, 5):
        kept = Best(share=0.5, repeat=repeat).apply(sources, Context())
        assert kept.tokens.sum() == whole / 2
        counts = Counter(kept)
        assert set(counts.values()) == {repeat} and len(counts) == 100 // repeat
        assert min(int(text.split()[-1]) for text in counts) == 200 - 100 // repeat


def test_the_classifier_and_the_trigrams_find_planted_documents():
    texts = [*sentences(LAW, 60, 1), *sentences(SEA, 60, 2)]
    context = Context(target=sentences(SEA, 40, 3))
    for found in (Best(by="domain", documents=50), Best(by="perplexity", documents=50)):
        kept = list(found.apply(pool(texts), context))
        assert len(kept) == 50 and all(text.split()[0] in SEA for text in kept), found


@pytest.fixture
def rated(tmp_path):
    """Rated texts: the rating is the share of words about the sea, and ``order`` is by chance."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(200):
        sea = rng.random(12) < rng.random()
        text = " ".join(rng.choice(SEA if one else LAW) for one in sea)
        rows.append(
            {"text": f"{text} {number}", "rating": 1 + 4 * sea.mean() + rng.normal(0, 0.2), "order": rng.random()}
        )
    file = tmp_path / "rated.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_rater_learns_from_given_ratings_and_its_agreement_is_measured_on_others(rated, caplog, capsys):
    texts = [*sentences(LAW, 60, 1), *sentences(SEA, 60, 2)]
    for _ in range(2):  # the second time too, as scores are cached
        chosen = select(
            texts, {"best": {"by": "ratings", "ratings": str(rated), "criterion": "rating", "documents": 50}}
        )
        (account,) = find_accounts(chosen)
        found = account.notes["rater"]
        assert all(text.split()[0] in SEA for text in chosen) and "no agreement" not in caplog.text
        assert (found["read"], found["held_out"]) == (160, 40) and found["low"] > 0.7
        assert found["low"] < found["spearman"] < found["high"] and found["error"] < found["error_of_mean"] / 2
    heard = " ".join(capsys.readouterr().err.split())
    assert f"agrees with the 40 ratings held out (Spearman {found['spearman']:.2f}, 95 % interval" in heard
    task = load_task(str(rated), label_column="rating", task_kind="regression")
    score, again = train_rater(task)
    held = np.array([example.target for example in task.test])
    guesses = np.array(score([example.text for example in task.test]))
    ranks = [np.argsort(np.argsort(values)) for values in (held, guesses)]
    assert again["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=0.01) and again == pytest.approx(found)
    assert again["error"] == pytest.approx(np.abs(held - guesses).mean())
    select(texts, {"best": {"by": "ratings", "ratings": str(rated), "criterion": "order", "documents": 50}})
    assert "shows no agreement with the 40 ratings" in caplog.text


def test_a_rater_may_read_the_vectors_of_an_encoder(rated, tiny_bert):
    task = load_task(str(rated), label_column="rating", task_kind="regression")
    share = lambda texts: np.array([[sum(word in SEA for word in text.split())] for text in texts])  # noqa: E731
    assert train_rater(task, share)[1]["low"] > 0.9
    given = {"by": "ratings", "ratings": str(rated), "criterion": "rating", "model": str(tiny_bert), "documents": 7}
    assert len(list(select(POOL, {"best": given}))) == 7


def test_perplexity_is_that_of_the_model(tiny_bert):
    found = language_model_loss(tiny_bert, POOL)
    loss = np.array(found["per_text"]) / np.array(found["per_text_masked"])
    chosen = select(POOL, {"best": {"by": "perplexity", "model": str(tiny_bert), "documents": 7}})
    kept = np.isin(POOL, list(chosen))
    assert kept.sum() == 7 and loss[kept].max() <= loss[~kept].min()


def test_equal_scores_are_taken_at_random(monkeypatch):
    monkeypatch.setattr(best, "rule_score", lambda text: 1.0)
    kept = list(Best(share=0.5).apply(pool(POOL), Context()))
    assert kept != POOL[: len(kept)] and set(kept) != set(Best(share=0.5, seed=1).apply(pool(POOL), Context()))
    assert sum(count_words(kept)) == pytest.approx(sum(count_words(POOL)) / 2, abs=5)


@each(
    ("parameters", "message"),
    [
        ({}, "needs a limit"),
        ({"by": "nothing"}, "'by'"),
        ({"by": "ratings", "documents": 1}, "goes with ratings=FILE"),
        ({"criterion": "rating", "documents": 1}, "criterion with both"),
        ({"by": "ratings", "ratings": "missing.csv", "documents": 1}, "missing.csv"),
        ({"by": "rater", "documents": 1}, "goes with rater"),
        ({"rater": "x.py:f", "documents": 1}, "goes with rater"),
        ({"by": "rater", "rater": "missing.py:f", "documents": 1}, "There is no Python file"),
        ({"quota": "equal", "documents": 3}, "quotas are shares of tokens"),
        ({"repeat": 2, "documents": 3}, "repeat is at least 1"),
        ({"by": "domain", "documents": 3}, "the text of a task"),
        ({"by": "rater", "rater": lambda text: "good", "documents": 1}, "ValueError: could not convert"),
        ({"by": "rater", "rater": lambda text: float("nan"), "documents": 1}, "a finite number, not nan"),
        ({"by": "rater", "rater": lambda text: None, "documents": 1}, "no document has a score"),
        ({"tokens": 10, "repeat": 10}, "too small to hold a document 10 times"),
        ({"least": 2}, "keeps none"),
    ],
)
def test_mistakes_are_explained(parameters, message):
    with pytest.raises(UserError, match=message):
        select(POOL, {"best": parameters})
