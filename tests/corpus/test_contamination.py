"""Texts that a model is judged on, planted in a corpus: found whole, nearly and inside, and nowhere else."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acclimate.corpus import Corpus, contamination
from acclimate.corpus.contamination import MatchRules, TextIndex, find_contamination, normalize_words
from acclimate.errors import UserError
from tests.cases import each

TEXT = "The waiter brought us a cold soup, and nobody at the table was surprised by that any more."
LETTERS = "abcdefghijklm"
WORD = st.text(alphabet=LETTERS, min_size=1, max_size=7)
FOREIGN = st.text(alphabet="nopqrstuvwxyz", min_size=1, max_size=7)
WORDS = st.lists(WORD, min_size=8, max_size=40)
FEW = st.lists(st.sampled_from(["aa", "bb", "cc"]), min_size=1, max_size=40)


def kinds(document: str, *texts: str, rules: MatchRules | None = None) -> dict[int, str]:
    return TextIndex(texts, rules or MatchRules()).find(document)


def oracle(document: str, text: str, rules: MatchRules) -> str | None:
    """The rules of the module, word by word."""
    one, other = normalize_words(document), normalize_words(text)
    if not other:
        return None
    if one == other:
        return "exact"
    if len(other) < rules.fewest_words:
        return None
    letters = [{" ".join(words)[i : i + 5] for i in range(len(" ".join(words)) - 4)} for words in (one, other)]
    union = letters[0] | letters[1]
    if union and len(letters[0] & letters[1]) / len(union) >= rules.near:
        return "near"
    sequences = [{tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (one, other)]
    held = len(sequences[0] & sequences[1]) / len(sequences[1])
    return "contained" if held >= rules.contained - 1e-9 else None


@each(
    ("document", "kind"),
    [
        (TEXT, "exact"),
        (f"  {TEXT.upper().replace(' ', '  ')}!!", "exact"),
        (TEXT.replace("surprised", "suprised"), "near"),
        (f"Last week we went out. {TEXT} So we left early, and without paying for any of it.", "contained"),
        (" ".join(map(str, range(300))) + f" {TEXT} " + " ".join(map(str, range(300))), "contained"),
        ("A quite different text about the weather in the north, where it rains more often than not.", None),
        ("The waiter brought us a cold soup, and then something happened that we did not expect at all.", None),
    ],
)
def test_by_hand(document, kind):
    assert kinds(document, TEXT) == ({0: kind} if kind else {})


def test_short_texts_are_looked_for_as_whole_documents_only():
    texts = ["Good food!", "the staff was kind to us all"]
    index = TextIndex(texts, MatchRules())
    assert index.short == {0, 1}
    assert index.find("good food") == {0: "exact"}
    assert index.find("We had good food, and the staff was kind to us all, all night long.") == {}
    assert TextIndex(texts, MatchRules(fewest_words=6)).find(
        "Indeed the staff was kind to us all. Truly, always."
    ) == {1: "contained"}


def test_other_scripts():
    chinese = "我们昨天在餐厅吃了一碗冷汤服务员很慢"
    assert kinds(f"他说{chinese}我不信", chinese) == {0: "contained"}
    greek = "Ο σερβιτόρος έφερε μια κρύα σούπα στο τραπέζι μας χθες"
    assert kinds(greek.upper(), greek)[0] in ("exact", "near")  # capitals have no accents


def test_texts_that_differ_in_their_vowels_are_not_the_same():
    """The letters of both are the same: what tells them apart are marks."""
    assert kinds("के लिए", "को लाए") == {}
    assert kinds("को लाए।", "को लाए") == {0: "exact"}


def test_long_documents_are_not_cut_at_marks(monkeypatch):
    monkeypatch.setattr(contamination, "MAX_PIECE_CHARACTERS", 80)
    document = " ".join(f"विद्यार्थी{number} सामान्यतः" for number in range(20))
    found: list[str] = []
    for piece in contamination._iterate_word_pieces(document):
        found += piece[contamination.WORD_NGRAM_SIZE - 1 :] if found else piece
    assert found == normalize_words(document)


@given(WORDS, st.sampled_from(["{}", "  {}.", "«{}»"]))
def test_a_planted_document_is_found_whatever_its_case_and_signs(words, form):
    text = " ".join(words)
    assert kinds(form.format(text.upper()), text) == {0: "exact"}


@settings(max_examples=150)
@given(WORDS, st.lists(FOREIGN, max_size=30), st.lists(FOREIGN, max_size=30))
def test_a_text_inside_a_document_is_found(words, before, after):
    text = " ".join(words)
    assert 0 in kinds(" ".join([*before, *words, *after]), text)


@given(WORDS, st.data())
def test_one_letter_more_or_less_is_near(words, data):
    text = " ".join(words)
    place = data.draw(st.integers(0, len(text)))
    changed = text[:place] + data.draw(st.sampled_from(["x", "xy", ""])) + text[place + 1 :]
    found, wanted = kinds(changed, text).get(0), oracle(changed, text, MatchRules())
    assert found == wanted


@settings(max_examples=300)
@given(
    st.lists(FEW, min_size=1, max_size=6),
    FEW,
    st.sampled_from([MatchRules(), MatchRules(0.5, 0.5, 5), MatchRules(1, 1, 6)]),
)
def test_against_the_rules_word_by_word(texts, document, rules):
    given_texts = [" ".join(words) for words in texts]
    index = TextIndex(given_texts, rules)
    found = index.find(" ".join(document))
    wanted = {i: kind for i, text in enumerate(index.texts) if (kind := oracle(" ".join(document), text, rules))}
    for number in range(len(index.texts)):
        # Below 0.8 the hash tables were not made for it: a near pair may be missed, but none is made up.
        if wanted.get(number) != "near" or rules.near >= 0.8:
            assert found.get(number) == wanted.get(number)
        elif found.get(number) not in ("near", None):
            assert found[number] == "contained"


@given(WORDS, st.lists(FOREIGN, min_size=1, max_size=60))
def test_unrelated_text_is_not_found(words, others):
    assert kinds(" ".join(others), " ".join(words)) == {}


@example(["a"] * 6 + ["aa", "aaaaaaa"], [], 10)  # the end of the document is less than a word away
@given(WORDS, st.lists(st.one_of(WORD, FOREIGN), max_size=40), st.integers(10, 80))
def test_a_long_document_read_in_pieces_gives_the_same(words, around, long):
    document = " ".join([*around, *words, *around])
    whole = kinds(document, " ".join(words)).get(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contamination, "MAX_PIECE_CHARACTERS", long)
        found = kinds(document, " ".join(words)).get(0)
    assert found == ("contained" if len(document) > long else whole)


def test_counts_examples_and_groups():
    other = "Nothing in this sentence has anything to do with the other one, as far as I can see."
    texts = {"a test": [TEXT, other, "Good food!", TEXT.upper()], "b dev": [other, "..."]}
    documents = [
        TEXT,
        f"{TEXT} {other} And so it went on for the whole of the evening, hour by hour.",
        "good food",
        "x",
    ]
    found = find_contamination(Corpus.of(documents), texts)
    assert (found.documents, found.flagged, len(found.digests)) == (4, 3, 3)
    assert found.groups["a test"] == {"texts": 3, "short": 1, "found": 3, "exact": 2, "near": 0, "contained": 1}
    assert found.groups["b dev"] == {"texts": 1, "short": 0, "found": 1, "exact": 0, "near": 0, "contained": 1}
    assert [example["kind"] for example in found.examples] == ["exact", "contained", "exact"]
    assert find_contamination(Corpus.of(documents[3:]), texts).flagged == 0


def test_a_corpus_without_them_is_another_corpus():
    corpus = Corpus.of([TEXT, "a text of its own", f"Also here: {TEXT}"])
    found = find_contamination(corpus, {"t": [TEXT]})
    clean = corpus.without(found.digests)
    assert list(clean) == ["a text of its own"]
    assert clean.report.leaked == 2 and "2 with texts that a task is judged on" in clean.report.summary()
    assert clean.fingerprint != corpus.fingerprint == corpus.without([]).fingerprint
    assert clean.fingerprint == corpus.without(reversed(found.digests)).fingerprint
    assert len(list(corpus)) == 3 and not find_contamination(clean, {"t": [TEXT]}).flagged
    with pytest.raises(UserError, match="Nothing of the corpus is left"):
        list(Corpus.of([TEXT]).without(found.digests))


def test_a_limit_reaches_no_document_that_was_not_looked_at():
    corpus = Corpus.of(
        [TEXT, "a text of its own", f"Also here: {TEXT}", f"{TEXT} Once more, behind the limit."], limit=3
    )
    found = find_contamination(corpus, {"t": [TEXT]})
    assert (found.documents, found.flagged) == (3, 2)
    assert list(corpus.without(found.digests)) == ["a text of its own"]


def test_a_split_of_it_stays_without_them():
    texts = [f"document number {number}" for number in range(50)]
    corpus = Corpus.of([*texts, TEXT])
    clean = corpus.without(find_contamination(corpus, {"t": [TEXT]}).digests)
    one, other = clean.split(0.3, 0)
    assert sorted([*one, *other]) == sorted(texts)


def test_memory_does_not_grow_with_the_corpus():
    def peak(count: int) -> int:
        documents = (f"{TEXT} {number} " + "and more of it " * 50 for number in range(count))
        tracemalloc.start()
        flagged = find_contamination(
            documents, {"t": ["some other text that is never found in any of them, not once"]}
        ).flagged
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert not flagged
        return size

    peak(10)
    assert peak(2000) < peak(100) + 200_000


def test_rules_that_make_no_sense():
    for wrong in ({"near": 0}, {"contained": 1.5}, {"fewest_words": 3}):
        with pytest.raises(UserError):
            MatchRules(**wrong)


def test_without_datasketch(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(UserError, match="pip install datasketch"):
        find_contamination(["a"], {"t": [TEXT]})
