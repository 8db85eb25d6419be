"""Windows over passages."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from acclimate.base.errors import UserError
from acclimate.data.tokenizing import read_as_text
from acclimate.parts.modules import add_virtual_tokens
from acclimate.tasks.kinds.qa.data import Answer, Question
from acclimate.tasks.kinds.qa.windows import WindowConfig, Windows, split_into_windows
from tests.cases import each
from tests.tiny import tiny_model, tiny_tokenizer


def byte_tokenizer(space=False):
    """A byte-level BPE without merges: a character outside of ASCII is several tokens.

    With ``space``, the post-processor does not know of the space before the first word, and cuts off a letter.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate(["<s>", "</s>", "<pad>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()
    ends = ("</s>", 1), ("<s>", 0)
    tokenizer.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, add_prefix_space=not space)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def sentence_piece_tokenizer():
    """A character-level Unigram model with a normalizer that composes and reorders characters, as in XLM-R."""
    letters = [*("▁abcde.éß猫fi"), *map(chr, range(97, 123))]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((x, -1.0) for x in dict.fromkeys(letters))], unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.NFC()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["</s>"])
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B:1 </s>:1", [("</s>", end)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {
    "words": read_as_text(tiny_tokenizer()),
    "bytes": read_as_text(byte_tokenizer()),
    "pieces": read_as_text(sentence_piece_tokenizer()),
    "spaced": read_as_text(byte_tokenizer(space=True)),
}
LETTERS = st.text(alphabet="ab cde.é–ß猫\n ", min_size=1, max_size=150)
ANY = st.text(alphabet="ab cde.é–ß猫ﬁÅİ\u0301\u0323\u200d\ufe0f😀\n ", min_size=1, max_size=60)


@st.composite
def asked(draw, letters=LETTERS):
    """A question whose answer is a random span of a random passage."""
    passage = draw(letters.filter(lambda text: text.strip()))
    start = draw(st.integers(0, len(passage) - 1))
    text = passage[start : draw(st.integers(start + 1, len(passage)))]
    start += len(text) - len(text.lstrip())
    text = text.strip() or passage.strip()
    start = start if passage.startswith(text, start) else passage.index(text)
    return Question("q", draw(LETTERS), passage, (Answer(text, start),))


@settings(deadline=None, max_examples=100)
@given(asked(ANY), st.sampled_from(sorted(TOKENIZERS)))
def test_an_answer_comes_back_letter_for_letter(question, kind):
    """Unless its ends are inside of a token, or are characters that the tokenizer drops."""
    windows = Windows([question], TOKENIZERS[kind], WindowConfig(1000, 8, 8), segments=True)
    tokens, answer = windows.tokens(0), question.answers[0]
    stop = answer.start + len(answer.text)
    span = tokens.span(answer.start, stop)
    inside = np.flatnonzero(tokens.starts < tokens.ends)
    covered = {place for n in inside for place in range(int(tokens.starts[n]), int(tokens.ends[n]))}
    if not covered & set(range(answer.start, stop)):
        assert span is None
        return
    found = windows.text(0, *span)
    cut = any(tokens.starts[n] < place < tokens.ends[n] for n in inside for place in (answer.start, stop))
    dropped = {place for place in (answer.start, stop - 1) if place not in covered}
    if not cut and not {answer.start, stop} - {len(question.passage)} - covered and not dropped:
        assert found == answer.text
    letter = answer.start + len(answer.text.rstrip("\u0301\u0323\u200d\ufe0f")) - 1  # which marks at the end follow
    marks = dropped == {stop - 1} and unicodedata.combining(question.passage[stop - 1]) and letter in covered
    if not cut and marks:
        assert found.startswith(answer.text.rstrip("\u200d"))


def test_dropped_accents_and_reordered_marks_come_back():
    for kind, answer in (("words", "cafe\u0301"), ("pieces", "a\u0301\u0323"), ("words", "e\u0323\u0301e\u0301")):
        passage = f"the {answer} was good"
        windows = Windows(
            [Question("q", "what?", passage, (Answer(answer, 4),))], TOKENIZERS[kind], WindowConfig(60, 12, 8), False
        )
        span = windows.tokens(0).span(4, 4 + len(answer))
        assert windows.text(0, *span) == answer


def test_answers_within_a_token_are_listed():
    passage = "the goodfood was cold"
    asked = [Question(str(n), "what?", passage, (Answer(text, passage.index(text)),)) for n, text in enumerate(
        ["the", "ood was", "good"]
    )]  # fmt: skip
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["goodfood"])
    windows = Windows(asked, read_as_text(tokenizer), WindowConfig(60, 12, 8), False)
    assert windows.inexact_answers() == [("ood was", "goodfood was"), ("good", "goodfood")]


@each("kind", sorted(TOKENIZERS))
@each("text", [" " * 300 + "who paid?", "who" + " \n" * 200 + "paid?", "who paid?" + "\t" * 300])
def test_blanks_do_not_take_the_place_of_words(kind, text):
    tokenizer = TOKENIZERS[kind]
    (row,) = Windows([Question("q", text, "b", (Answer("b", 0),))], tokenizer, WindowConfig(200), segments=False)
    (plain,) = Windows([Question("q", "who paid?", "b", (Answer("b", 0),))], tokenizer, WindowConfig(200), False)
    assert len(row["input_ids"]) < 80
    if kind == "bytes" or len(row["input_ids"]) == len(plain["input_ids"]):
        assert list(row["input_ids"]) == list(plain["input_ids"])


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_a_special_token_in_a_text_is_read_as_text(kind):
    tokenizer = TOKENIZERS[kind]
    mark = tokenizer.sep_token or tokenizer.eos_token
    passage = f"one {mark} two"
    asked = Question("q", f"what {mark}?", passage, (Answer("two", passage.index("two")),))
    windows = Windows([asked], tokenizer, WindowConfig(60, 12, 8), segments=True)
    (row,), tokens = list(windows), windows.tokens(0)
    plain = tokenizer("what?", "one two", return_token_type_ids=True)["input_ids"]
    number = tokenizer.convert_tokens_to_ids(mark)
    assert list(row["input_ids"]).count(number) == plain.count(number) > 0
    assert passage[tokens.starts[-1] : tokens.ends[-1]] in "two"


@settings(deadline=None, max_examples=200)
@given(asked(), st.sampled_from(sorted(TOKENIZERS)), st.integers(12, 60), st.integers(0, 40))
def test_every_answer_that_fits_is_complete_in_some_window(question, kind, length, overlap):
    windows = Windows([question], TOKENIZERS[kind], WindowConfig(length, 8, overlap), segments=True)
    tokens, answer = windows.tokens(0), question.answers[0]
    span = tokens.span(answer.start, answer.start + len(answer.text))
    assert span is not None
    begin, end = int(tokens.starts[span[0]]), int(tokens.ends[span[1]])
    # A split between tokens may add characters at the edges, but none are lost.
    assert begin <= answer.start
    assert end >= answer.start + len(answer.text)
    assert tokens.ends[span[0]] > answer.start
    assert tokens.starts[span[1]] < answer.start + len(answer.text)
    first = windows.windows[0]
    width = length - windows.layout.special - (first.offset - windows.layout.before)
    hits = [window for window in windows.windows if window.answer != (0, 0)]
    if span[1] - span[0] + 1 <= min(overlap, width // 2) or len(tokens.ids) <= width:
        assert hits
    for window in hits:
        places = [place - window.offset + window.first for place in window.answer]
        assert tuple(places) == span
        row = windows[windows.windows.index(window)]
        assert list(row["input_ids"][window.answer[0] : window.answer[1] + 1]) == list(
            tokens.ids[span[0] : span[1] + 1]
        )


@settings(deadline=None, max_examples=100)
@given(asked(), st.sampled_from(sorted(TOKENIZERS)), st.integers(14, 60), st.integers(0, 20))
def test_rows_are_those_of_the_tokenizer_itself(question, kind, length, overlap):
    tokenizer = TOKENIZERS[kind]
    windows = Windows([question], tokenizer, WindowConfig(length, 1000, overlap), segments=True)
    asked_tokens = len(tokenizer(question.text, add_special_tokens=False)["input_ids"])
    room = length - windows.layout.special
    if asked_tokens > room // 2:
        return  # the tokenizer itself cannot truncate the question as we do
    stride = min(overlap, (room - asked_tokens) // 2)
    theirs = tokenizer(
        question.text,
        question.passage,
        truncation="only_second",
        max_length=length,
        stride=stride,
        return_overflowing_tokens=True,
        return_token_type_ids=True,
        return_offsets_mapping=True,
    )
    assert [list(row["input_ids"]) for row in windows] == theirs["input_ids"]
    assert [row["token_type_ids"] for row in windows] == theirs["token_type_ids"]
    assert windows.lengths() == [len(row) for row in theirs["input_ids"]]
    for window, offsets in zip(windows.windows, theirs["offset_mapping"], strict=True):
        tokens = windows.tokens(0)
        ours = zip(tokens.starts[window.first : window.stop], tokens.ends[window.first : window.stop], strict=True)
        for mine, other in zip(ours, offsets[window.offset :], strict=False):
            # A token of white space alone covers no letter, and its offsets depend on the tokenizer.
            assert mine == other or (mine[0] == mine[1] and other[0] == other[1])


@given(st.integers(0, 300), st.integers(1, 60), st.integers(0, 80))
def test_windows_cover_the_text_and_none_is_redundant(tokens, width, overlap):
    pieces = split_into_windows(tokens, width, overlap)
    assert pieces[0][0] == 0
    assert pieces[-1][1] == tokens
    assert all(stop - first == width for first, stop in pieces[:-1])
    shared = min(overlap, width // 2)
    assert all(one[1] - two[0] == shared for one, two in pairwise(pieces))
    assert all(one[1] < two[1] for one, two in pairwise(pieces))


def long_question(count=1, answer="wine"):
    passage = "the " * 60 + "wine " + "was " * 60
    return [Question(f"q{n}", "which wine", passage, (Answer(answer, passage.index(answer)),)) for n in range(count)]


def test_windows_without_the_answer_have_position_zero():
    windows = Windows(long_question(), tiny_tokenizer(), WindowConfig(40, 8, 10), segments=False)
    hits = [row for row in windows if row["start_positions"]]
    assert 1 <= len(hits) < len(windows)
    assert all(row["end_positions"] == 0 for row in windows if row["start_positions"] == 0)
    wine = tiny_tokenizer().convert_tokens_to_ids("wine")
    assert all(row["input_ids"][row["start_positions"]] == wine for row in hits)
    assert "token_type_ids" not in windows[0]


def test_only_some_windows_without_answer_are_trained_on():
    reading = WindowConfig(40, 8, 10)
    everything = Windows(long_question(3), tiny_tokenizer(), reading, segments=False)
    some = Windows(long_question(3), tiny_tokenizer(), reading, segments=False).subsample_empty_windows(1, seed=0)
    same = Windows(long_question(3), tiny_tokenizer(), reading, segments=False).subsample_empty_windows(1, seed=0)
    assert some.windows == same.windows
    for number in range(3):
        own = [window for window in some.windows if window.question == number]
        assert sum(window.answer == (0, 0) for window in own) == 1
        with_answer = [w for w in everything.windows if w.question == number and w.answer != (0, 0)]
        assert [window for window in own if window.answer != (0, 0)] == with_answer
    none = Windows(long_question(3), tiny_tokenizer(), reading, segments=False).subsample_empty_windows(0, seed=0)
    assert all(window.answer != (0, 0) for window in none.windows)
    full = Windows(long_question(3), tiny_tokenizer(), reading, segments=False).subsample_empty_windows(99, seed=0)
    assert full.windows == everything.windows


def test_long_questions_are_truncated_to_half_a_row():
    question = Question("q", "the " * 90, "a good wine", (Answer("wine", 7),))
    windows = Windows([question], tiny_tokenizer(), WindowConfig(384, 64, 128), segments=False)
    assert windows.windows[0].offset == 1 + 64 + 1
    windows = Windows([question], tiny_tokenizer(), WindowConfig(23, 64, 128), segments=False)
    assert windows.windows[0].offset == 1 + 10 + 1


def test_virtual_tokens_are_at_the_end():
    tokenizer = add_virtual_tokens(tiny_model("bert"), tiny_tokenizer(), 3)
    windows = Windows(long_question(), tokenizer, WindowConfig(40, 8, 10), segments=False)
    names = tokenizer.convert_ids_to_tokens(windows[0]["input_ids"].tolist())
    assert len(names) == 40
    assert names[-4:] == ["[SEP]", "[VIRTUAL0]", "[VIRTUAL1]", "[VIRTUAL2]"]


def test_rows_without_space_for_a_passage_are_an_error():
    with pytest.raises(UserError, match="max_length=4 leaves no space"):
        Windows(long_question(), tiny_tokenizer(), WindowConfig(4), segments=False)
