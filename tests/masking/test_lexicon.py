"""Lexicons and lists of entities: what is found in texts, and that it comes first."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from acclimate.errors import UserError
from acclimate.masking import get
from acclimate.masking.lexicon import LexiconMatcher, read_entries
from acclimate.masking.words import Words
from acclimate.training.batches import make_vocabulary
from tests.cases import each
from tests.masking.kinds import KINDS, batches, tokenizer, vocabulary


@pytest.fixture
def write(tmp_path):
    def make(*lines, name="words.txt"):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
        return str(tmp_path / name)

    return make


def found(kind, entries, text, fold=True):
    """The entries found in a text, each as its words."""
    return found_with(vocabulary(kind), entries, text, fold)


def found_with(known, entries, text, fold=True):
    ids = np.array([known.tokenizer(text)["input_ids"]])
    allowed = ~np.isin(ids, known.tokenizer.all_special_ids)
    words = Words.of(ids, np.zeros_like(ids), allowed, known.pieces)
    inside, going_on = LexiconMatcher(entries, known, fold=fold).find(words, ids, known)
    spelled = words.spelled(ids, known.pieces, fold=False)
    result = []
    for word, one, more in zip(spelled, inside, going_on, strict=True):
        if more:
            result[-1] += f" {word}"
        elif one:
            result.append(word)
    return result


@each("kind", KINDS)
def test_entries_are_found_whatever_parts_they_are_cut_into(kind):
    text = "the unseen waiter was slow, slow soup was cold and the slow service was unseen."
    entries = ["slow", "unseen waiter", "slow service", "soup was", "was unseen.", "pizza"]
    assert found(kind, entries, text) == ["unseen waiter", "slow", "slow", "soup was", "slow service", "was unseen ."]


@each("merges", [0, 2, 4])
def test_entries_are_compared_by_characters_where_tokens_are_parts_of_them(merges):
    """Behind a space a character may be another token, or be cut into others, than alone."""
    steps = [("Ġ", "ð"), ("Ġð", "Ł"), ("ĠðŁ", "ĺ"), ("ĠðŁĺ", "Ĭ")][:merges]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(first + second for first, second in steps), "<mask>", "<pad>"]
    backend = Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, steps))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    known = make_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>", pad_token="<pad>"))
    assert found_with(known, ["😊"], "good 😊 soup 😊😊 😊") == ["😊", "😊"]
    assert found_with(known, ["good", "café 😊"], "good 😊 CAFÉ 😊 cafe") == ["good", "CAFÉ 😊"]
    assert found_with(known, ["café"], "good 😊 CAFÉ 😊 café", fold=False) == ["café"]


def test_capitals_matter_if_so_said():
    assert found("roberta", ["Cafe"], "the cafe") == ["cafe"]
    assert found("roberta", ["Cafe"], "the cafe", fold=False) == []
    assert found("roberta", ["cafe"], "the cafe", fold=False) == ["cafe"]


def test_an_entry_does_not_reach_over_a_special_token_or_into_the_next_text():
    ids = np.array([[2, 40, 1, 41, 3, 2, 40, 3, 2, 41, 3]])
    text = np.array([[0] * 5 + [1] * 3 + [2] * 3])
    allowed = ~np.isin(ids, [1, 2, 3])
    words = Words.of(ids, text, allowed, vocabulary("bert").pieces)
    entry = " ".join(tokenizer("bert").convert_ids_to_tokens([40, 41]))
    phrases = LexiconMatcher([entry], vocabulary("bert"), fold=True)
    assert not phrases.find(words, ids, vocabulary("bert"))[0].any()
    straight = np.array([[2, 40, 41, 3]])
    words = Words.of(straight, np.zeros_like(straight), straight > 3, vocabulary("bert").pieces)
    assert phrases.find(words, straight, vocabulary("bert"))[0].all()


def masked(made, kind="bert"):
    return Counter(
        tokenizer(kind).convert_ids_to_tokens([id_ for b in made for id_ in b.labels[b.labels >= 0].tolist()])
    )


TEXT = "the waiter was slow and the soup was cold and the price was not bad but it was a kind table"


def test_words_of_the_lexicon_come_first_and_others_fill_the_rest(write):
    made = batches(
        get("lexicon-first", 4 / 21, lexicon=write("soup", "", " slow ", "absent")), texts=[TEXT], copies=200
    )
    count = masked(made)
    assert count["soup"] == count["slow"] == 200, "two of the four tokens that the rate allows"
    others = [count[word] for word in set(TEXT.split()) - {"soup", "slow"}]
    assert 0 < min(others) < max(others) < 200
    assert sum(count.values()) == 800


def test_a_share_of_the_occurrences_comes_first(write):
    half = masked(batches(get("lexicon-first", 4 / 21, lexicon=write("soup"), share=0.5), texts=[TEXT], copies=400))
    assert 200 < half["soup"] < 280  # half of 400, and a sixth of the other half by chance


@each("share", [-3, 1.5, float("nan")])
def test_a_share_is_one(write, share):
    with pytest.raises(UserError, match="'share'"):
        get("lexicon-first", lexicon=write("soup"), share=share)


def test_which_entries_come_first_where_there_are_too_many(write):
    path = write("waiter", "slow", "soup", "cold", "price", "bad", "kind", "table")
    random, text = (
        masked(batches(get("lexicon-first", 4 / 21, lexicon=path, order=order), texts=[TEXT], copies=100))
        for order in ("random", "text")
    )
    assert {word for word in text} == {"waiter", "slow", "soup", "cold"}
    assert len(random) == 8 and max(random.values()) < 80


def test_entities_alone_or_first(write):
    path = write("slow and the soup", "kind table")
    alone = batches(get("entity-first", 0.2, entities=path, fill=False), texts=[TEXT, "the pizza"], copies=100)
    assert set(masked(alone)) == {"slow", "and", "the", "soup", "kind", "table"}
    made = batches(get("entity-first", 6 / 21, entities=path), texts=[TEXT], copies=100)
    count = masked(made)
    assert count["slow"] == count["kind"] == 100
    assert sum(count.values()) == 600
    assert len(masked(batches(get("entity-first", 0.4, entities=path), texts=[TEXT], copies=100))) > 8


def test_mistakes_in_lists_are_explained(write, tmp_path):
    with pytest.raises(UserError, match="wants 'lexicon'"):
        get("lexicon-first")
    with pytest.raises(UserError, match=r"there is no entities '.*absent'"):
        get("entity-first", entities=str(tmp_path / "absent"))
    with pytest.raises(UserError, match="is empty"):
        read_entries(write("", " "))
    with pytest.raises(UserError, match="no entry"):
        batches(get("lexicon-first", lexicon=write("喜")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="UTF-8"):
        read_entries(tmp_path / "binary")


def test_identity_is_what_the_file_holds(write):
    one, same, other = (get("lexicon-first", lexicon=write(word, name=name)) for word, name in
                        (("soup", "a"), ("soup", "b"), ("wine", "c")))  # fmt: skip
    assert one.identity() == same.identity() != other.identity()
