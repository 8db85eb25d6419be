"""Entries of a lexicon or an entity list are found in texts and masked first."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from acclimate.base.errors import UserError
from acclimate.parts.masking import get
from acclimate.parts.masking.base import make_vocabulary
from acclimate.parts.masking.lexicon import LexiconMatcher, read_entries
from acclimate.parts.masking.words import Words
from tests.cases import each
from tests.parts.masking.kinds import KINDS, batches, tokenizer, vocabulary


@pytest.fixture
def write(tmp_path):
    def make(*lines, name="words.txt"):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
        return str(tmp_path / name)

    return make


def find_entries(kind, entries, text, ignore_case=True):
    """Return the entries found in a text, spelled as in the text."""
    return find_with(vocabulary(kind), entries, text, ignore_case)


def find_with(known, entries, text, ignore_case=True):
    ids = np.array([known.tokenizer(text)["input_ids"]])
    allowed = ~np.isin(ids, known.tokenizer.all_special_ids)
    words = Words.of(ids, np.zeros_like(ids), allowed, known.subwords)
    inside, continues = LexiconMatcher(entries, known, ignore_case=ignore_case).find(words, ids, known)
    forms = words.surface_forms(ids, known.subwords, lowercase=False)
    result = []
    for word, is_found, is_continued in zip(forms, inside, continues, strict=True):
        if is_continued:
            result[-1] += f" {word}"
        elif is_found:
            result.append(word)
    return result


@each("kind", KINDS)
def test_entries_are_found_whatever_subwords_they_have(kind):
    text = "the unseen waiter was slow, slow soup was cold and the slow service was unseen."
    entries = ["slow", "unseen waiter", "slow service", "soup was", "was unseen.", "pizza"]
    assert find_entries(kind, entries, text) == [
        "unseen waiter",
        "slow",
        "slow",
        "soup was",
        "slow service",
        "was unseen .",
    ]


@each("merges", [0, 2, 4])
def test_entries_are_compared_by_characters_if_tokens_are_parts_of_characters(merges):
    """The tokens of a character after a space can differ from those of the same character elsewhere."""
    steps = [("Ġ", "ð"), ("Ġð", "Ł"), ("ĠðŁ", "ĺ"), ("ĠðŁĺ", "Ĭ")][:merges]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *(first + second for first, second in steps), "<mask>", "<pad>"]
    backend = Tokenizer(models.BPE({name: place for place, name in enumerate(names)}, steps))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    known = make_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="<mask>", pad_token="<pad>"))
    assert find_with(known, ["😊"], "good 😊 soup 😊😊 😊") == ["😊", "😊"]
    assert find_with(known, ["good", "café 😊"], "good 😊 CAFÉ 😊 cafe") == ["good", "CAFÉ 😊"]
    assert find_with(known, ["café"], "good 😊 CAFÉ 😊 café", ignore_case=False) == ["café"]


def test_case():
    assert find_entries("roberta", ["Cafe"], "the cafe") == ["cafe"]
    assert find_entries("roberta", ["Cafe"], "the cafe", ignore_case=False) == []
    assert find_entries("roberta", ["cafe"], "the cafe", ignore_case=False) == ["cafe"]


def test_an_entry_does_not_span_a_special_token_or_two_texts():
    ids = np.array([[2, 40, 1, 41, 3, 2, 40, 3, 2, 41, 3]])
    text = np.array([[0] * 5 + [1] * 3 + [2] * 3])
    allowed = ~np.isin(ids, [1, 2, 3])
    words = Words.of(ids, text, allowed, vocabulary("bert").subwords)
    entry = " ".join(tokenizer("bert").convert_ids_to_tokens([40, 41]))
    matcher = LexiconMatcher([entry], vocabulary("bert"), ignore_case=True)
    assert not matcher.find(words, ids, vocabulary("bert"))[0].any()
    adjacent = np.array([[2, 40, 41, 3]])
    words = Words.of(adjacent, np.zeros_like(adjacent), adjacent > 3, vocabulary("bert").subwords)
    assert matcher.find(words, adjacent, vocabulary("bert"))[0].all()


def masked(made, kind="bert"):
    """Count how often each token is masked."""
    return Counter(
        tokenizer(kind).convert_ids_to_tokens([id_ for b in made for id_ in b.labels[b.labels >= 0].tolist()])
    )


TEXT = "the waiter was slow and the soup was cold and the price was not bad but it was a kind table"


def test_terms_are_masked_first_and_other_words_until_the_rate_is_reached(write):
    made = batches(
        get("lexicon-first", 4 / 21, lexicon=write("soup", "", " slow ", "absent")), texts=[TEXT], copies=200
    )
    count = masked(made)
    assert count["soup"] == count["slow"] == 200, "two of the four tokens that the rate allows"
    others = [count[word] for word in set(TEXT.split()) - {"soup", "slow"}]
    assert 0 < min(others) < max(others) < 200
    assert sum(count.values()) == 800


def test_the_share_of_occurrences_that_take_precedence(write):
    half = masked(batches(get("lexicon-first", 4 / 21, lexicon=write("soup"), share=0.5), texts=[TEXT], copies=400))
    assert 200 < half["soup"] < 280  # half of 400 as an entry, and a sixth of the other half by chance


@each("share", [-3, 1.5, float("nan")])
def test_an_invalid_share(write, share):
    with pytest.raises(UserError, match="'share'"):
        get("lexicon-first", lexicon=write("soup"), share=share)


def test_the_order_of_terms_if_a_text_has_more_than_the_rate_allows(write):
    path = write("waiter", "slow", "soup", "cold", "price", "bad", "kind", "table")
    random, text = (
        masked(batches(get("lexicon-first", 4 / 21, lexicon=path, order=order), texts=[TEXT], copies=100))
        for order in ("random", "text")
    )
    assert {word for word in text} == {"waiter", "slow", "soup", "cold"}
    assert len(random) == 8 and max(random.values()) < 80


def test_a_term_of_a_higher_weight_is_taken_first_more_often(write):
    """Of three terms the rate allows one: each with the probability of its share of the weights."""
    path = write("soup\t6", "slow\t3.0", "kind", "not there\t9")
    count = masked(batches(get("lexicon-first", 1 / 21, lexicon=path), texts=[TEXT], copies=1000))
    for word, share in (("soup", 0.6), ("slow", 0.3), ("kind", 0.1)):
        assert abs(count[word] / 1000 - share) < 0.06, count
    assert sum(count.values()) == 1000


def test_equal_weights_mask_as_no_weights(write):
    plain, weighted = write("soup", "slow", "kind"), write("soup\t2", "slow\t2", "kind\t2", name="weights.txt")
    one, other = (
        batches(get("lexicon-first", 0.1, lexicon=path), texts=[TEXT], copies=20) for path in (plain, weighted)
    )
    assert all(first.masked.equal(second.masked) for first, second in zip(one, other, strict=True))


def test_lines_with_and_without_weights(write):
    assert read_entries(write("a b\t2", "c\td", "e\t", "\t3", "f", "a b\t5", " g \t 1e-2")) == {
        "a b": 2.0, "c\td": 1.0, "e": 1.0, "3": 1.0, "f": 1.0, "g": 0.01,
    }  # fmt: skip
    for bad in ("0", "-1", "nan", "inf"):
        with pytest.raises(UserError, match=rf"line 2 of .* has the weight {bad}; give a number above 0"):
            read_entries(write("a\t1", f"b\t{bad}"))
    with pytest.raises(UserError, match="no effect with order=text"):
        get("lexicon-first", lexicon=write("a\t2"), order="text")


def test_entities_only_or_first(write):
    path = write("slow and the soup", "kind table")
    alone = batches(get("entity-first", 0.2, entities=path, fill=False), texts=[TEXT, "the pizza"], copies=100)
    assert set(masked(alone)) == {"slow", "and", "the", "soup", "kind", "table"}
    made = batches(get("entity-first", 6 / 21, entities=path), texts=[TEXT], copies=100)
    count = masked(made)
    assert count["slow"] == count["kind"] == 100
    assert sum(count.values()) == 600
    assert len(masked(batches(get("entity-first", 0.4, entities=path), texts=[TEXT], copies=100))) > 8


def test_invalid_lists(write, tmp_path):
    with pytest.raises(UserError, match="needs 'lexicon'"):
        get("lexicon-first")
    with pytest.raises(UserError, match=r"there is no file '.*absent' \(entities\)"):
        get("entity-first", entities=str(tmp_path / "absent"))
    with pytest.raises(UserError, match="is empty"):
        read_entries(write("", " "))
    with pytest.raises(UserError, match="every entry of the list"):
        batches(get("lexicon-first", lexicon=write("喜")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="UTF-8"):
        read_entries(tmp_path / "binary")


def test_the_identity_depends_on_the_content_of_the_file(write):
    one, same, other = (get("lexicon-first", lexicon=write(word, name=name)) for word, name in
                        (("soup", "a"), ("soup", "b"), ("wine", "c")))  # fmt: skip
    assert one.identity() == same.identity() != other.identity()
