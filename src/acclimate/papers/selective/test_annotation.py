"""The importance rule on hand-made classifiers, and annotations of a task."""

from __future__ import annotations

import logging
import math
import time

import numpy as np
import pytest

from acclimate.base.errors import UserError
from acclimate.papers.selective.annotation import (
    annotate,
    format_annotated_unit,
    make_stop_word_mask,
    make_training_texts,
    make_units,
    read_annotations,
    split_sentences,
    summarize_annotations,
    warn_if_share_is_extreme,
    write_annotations,
)
from acclimate.papers.selective.importance_rule import Unit, annotate_units
from acclimate.papers.selective.options import annotation_options
from acclimate.tasks.kinds.classification.data import Example
from tests.cases import each
from tests.papers.classifiers import examples, ids_of, sharp_classifier
from tests.parts.masking.kinds import tokenizer as byte_level
from tests.tiny import tiny_tokenizer

GOOD, FINE, BAD, THE = ids_of("good", "kind", "bad", "the")


class BagOfWords:
    """P(positive) = sigmoid(prior + sum of the weights of the words); records the buffers that it scored."""

    def __init__(self, weights, prior=0.0):
        self.weights, self.prior, self.asked = weights, prior, []

    def __call__(self, requests):
        self.asked += [tuple(buffer) for _, buffer in requests]
        logits = [self.prior + sum(self.weights.get(token, 0) for token in buffer) for _, buffer in requests]
        positive = [1 / (1 + math.exp(-logit)) for logit in logits]
        return np.array([[1 - value, value] for value in positive])


def flags(tokens, weights, prior=0.0, label=1, **options):
    unit = Unit(tuple(tokens), label)
    found = annotate_units([unit], BagOfWords(weights, prior), annotation_options(**options))
    return found[0].important.astype(int).tolist() if found else None


def test_the_decisive_word_is_important():
    assert flags([THE, GOOD, THE], {GOOD: 3}) == [0, 1, 0]


def test_an_important_token_is_not_added_to_the_buffer():
    assert flags([THE, GOOD, THE, FINE], {GOOD: 3, FINE: 3}) == [0, 1, 0, 1]
    classifier = BagOfWords({GOOD: 3, FINE: 3})
    annotate_units([Unit((THE, GOOD, THE, FINE), 1)], classifier, annotation_options())
    assert classifier.asked[1:] == [(THE,), (THE, GOOD), (THE, THE), (THE, THE, FINE)]


def test_the_score_is_the_confidence_of_the_text_minus_that_of_the_buffer():
    classifier = BagOfWords({GOOD: 2, BAD: -1})
    (found,) = annotate_units([Unit((BAD, GOOD), 1)], classifier, annotation_options(delta=-1))

    def positive(logit):
        return 1 / (1 + math.exp(-logit))

    np.testing.assert_allclose(found.scores, [positive(1) - positive(-1), 0], atol=1e-12)


def test_a_score_equal_to_the_threshold_is_not_important():
    found = flags([GOOD], {}, delta=0.0)
    assert found == [0], "S = 0 is not below 0"


def test_the_papers_criterion_marks_weak_words_after_a_strong_one():
    """The strong word stays in s', so every later word that adds a little is important."""
    tokens, weights = [GOOD, FINE, FINE, FINE], {GOOD: 2.0, FINE: 0.5}
    assert flags(tokens, weights) == [0, 1, 1, 1]
    assert flags(tokens, weights, criterion="marginal", epsilon=0.15) == [1, 0, 0, 0]


def test_the_papers_criterion_marks_the_first_tokens_if_the_class_is_likely():
    assert flags([THE, THE, GOOD], {GOOD: 0.1}, prior=3) == [1, 1, 1]
    assert flags([THE, THE, GOOD], {GOOD: 3}, prior=0, criterion="marginal") == [0, 0, 1]


def test_the_marginal_criterion_compares_with_the_previous_buffer():
    assert flags([THE, GOOD, BAD, GOOD], {GOOD: 2, BAD: -2}, criterion="marginal") == [0, 1, 0, 1]
    assert flags([GOOD], {GOOD: 2}, criterion="marginal", epsilon=0.9) == [0]


@each(("choice", "expected"), [("annotate", [0, 0, 1]), ("negative", [0, 0, 0]), ("drop", None)])
def test_misclassified_texts(choice, expected):
    # P(positive | s) = sigmoid(-1); only the last word raises it.
    assert flags([BAD, BAD, FINE], {BAD: -2, FINE: 3}, misclassified=choice) == expected


def test_stop_words_follow_the_rule_but_are_not_marked():
    tokenizer = tiny_tokenizer()
    stop = make_stop_word_mask(tokenizer, "english")
    assert stop[:, THE].all()
    assert not stop[:, GOOD].any()
    assert not stop[1, ids_of("##a")[0]], "a continuation piece is not a stop word"
    assert make_stop_word_mask(tokenizer, "none") is None
    classifier = BagOfWords({THE: 3})
    (found,) = annotate_units([Unit((GOOD, THE, BAD), 1)], classifier, annotation_options(), stop_words=stop)
    assert found.important.tolist() == [False, False, False]
    assert classifier.asked[1:] == [(GOOD,), (GOOD, THE), (GOOD, BAD)], (
        "by the rule it is important, so it is not in the buffer"
    )


def test_the_first_word_can_be_a_stop_word_without_a_space_before_it():
    tokenizer = byte_level("roberta")
    stop = make_stop_word_mask(tokenizer, "english")
    (unit,) = make_units([Example("the soup and the wine", None, 1)], tokenizer, 30, annotation_options()).units
    bare, spaced = unit.tokens[0], tokenizer.convert_tokens_to_ids("Ġthe")
    assert spaced in unit.tokens[1:]
    assert tokenizer.convert_ids_to_tokens(bare) == "the"
    (found,) = annotate_units([unit], BagOfWords({}), annotation_options(delta=1.0), stop_words=stop)
    assert not found.important[[0, unit.tokens.index(spaced)]].any()
    assert found.important[1]
    inside = Unit((spaced, bare), 1)  # a continuation piece, as in "bathe"
    (found,) = annotate_units([inside], BagOfWords({}), annotation_options(delta=1.0), stop_words=stop)
    assert found.important.tolist() == [False, True]


def test_tokens_near_the_threshold_are_counted():
    (found,) = annotate_units([Unit((GOOD, THE), 1)], BagOfWords({GOOD: 3}), annotation_options(delta=0.0005))
    assert found.near_threshold(annotation_options(delta=0.0005)) == 1
    assert found.near_threshold(annotation_options(delta=0.05)) == 0


@each(
    ("text", "parts"),
    [
        ("The soup was cold. The waiter was kind!", ["The soup was cold.", "The waiter was kind!"]),
        ("all too familiar . . . basically the same", ["all too familiar . . .", "basically the same"]),
        ("It cost 3.50 at Dr. Brown's, i.e. nothing?!", ["It cost 3.50 at Dr. Brown's, i.e. nothing?!"]),
        ('He said "no." Then he left\nand came back', ['He said "no."', "Then he left", "and came back"]),
        ("  ", []),
        ("我喜欢吃汤。汤很好喝！你呢？ 好……不好", ["我喜欢吃汤。", "汤很好喝！", "你呢？", "好……不好"]),
        ("「寒い。」と言った。Dr. Kを見た！？はい", ["「寒い。」", "と言った。", "Dr. Kを見た！？", "はい"]),
        ("यह सूप ठंडा है। रोटी गरम है॥ ठीक?", ["यह सूप ठंडा है।", "रोटी गरम है॥", "ठीक?"]),
        ("Ապուրը սառն էր։ Հացը տաք էր։", ["Ապուրը սառն էր։", "Հացը տաք էր։"]),
        ("یہ سوپ ہے۔ کیا؟ ሾርባ ነው። ዳቦ።", ["یہ سوپ ہے۔", "کیا؟", "ሾርባ ነው።", "ዳቦ።"]),
        ("See Fig. 3 and Sec. 2. We cooked No. 5.", ["See Fig. 3 and Sec. 2.", "We cooked No. 5."]),
        (
            "Brown et al. found approx. 3 (cf. p. 7). No. Not so.",
            ["Brown et al. found approx. 3 (cf. p. 7).", "No.", "Not so."],
        ),
        (
            "So say Brown et al. Others say no. He ate a pig. 5 cooks left.",
            ["So say Brown et al.", "Others say no.", "He ate a pig.", "5 cooks left."],
        ),
    ],
)
def test_split_sentences(text, parts):
    assert split_sentences(text) == parts


def test_splitting_takes_linear_time():
    """Anything that begins like an end of a sentence, or keeps one open."""
    for piece in ("!", '."', "Dr. ", "。」", ". ", "no. ", "\n ", "…", "a.", "Fig. "):
        start = time.process_time()
        split_sentences(piece * (60_000 // len(piece)) + "x")
        assert time.process_time() - start < 1, piece


def test_each_sentence_is_a_unit_with_the_label_of_its_text():
    tokenizer = tiny_tokenizer()
    rows = [Example("the soup. the wine.", None, 1), Example("pizza", None, 0), Example(" \u200b ", None, 0)]
    made = make_units(rows, tokenizer, 20, annotation_options(unit="sentence"))
    assert [(unit.row, unit.label, len(unit.tokens)) for unit in made.units] == [(0, 1, 3), (0, 1, 3), (1, 0, 1)]
    whole = make_units(rows, tokenizer, 20, annotation_options())
    assert [(unit.row, len(unit.tokens)) for unit in whole.units] == [(0, 6), (1, 1)]
    assert whole.empty == 1
    with pytest.raises(UserError, match="No row"):
        make_units(rows[2:], tokenizer, 20, annotation_options())


def test_texts_of_pairs_are_not_split_into_sentences():
    """The label is about the second text, which only one of the sentences may mention."""
    rows = [Example("the soup. the wine.", "wine", 1)]
    (unit,) = make_units(rows, tiny_tokenizer(), 20, annotation_options("released-code")).units
    assert (len(unit.tokens), unit.second) == (6, ids_of("wine"))


def test_special_tokens_in_a_text_are_tokenized_as_text():
    (unit,) = make_units([Example("good [SEP] food", None, 0)], tiny_tokenizer(), 20, annotation_options()).units
    assert not set(unit.tokens) & {0, 2, 3, 4}


def test_rows_that_differ_in_their_second_text_are_merged():
    first, second = Unit((THE, GOOD), 1, (BAD,), 0), Unit((THE, GOOD), 1, (FINE,), 1)
    weights = BagOfWords({GOOD: 3})
    found = annotate_units([first, second, Unit((THE,), 1, (BAD,), 2)], weights, annotation_options())
    one, two = (item.important.copy() for item in found[:2])
    one[:], two[:] = [True, False], [False, True]
    found[0].important[:], found[1].important[:] = one, two
    assert make_training_texts(found, annotation_options())[0] == ([THE, GOOD], [True, True])
    assert len(make_training_texts(found, annotation_options())) == 2
    assert len(make_training_texts(found, annotation_options(same_text="each"))) == 3
    alone = annotate_units([Unit((THE,), 1), Unit((THE,), 0)], weights, annotation_options())
    assert len(make_training_texts(alone, annotation_options())) == 2, "equal single texts are not merged"


def test_annotations_round_trip_through_a_file(tmp_path, tiny_bert):
    classifier = sharp_classifier(tiny_bert)
    labels = ["negative", "neutral", "positive"]
    options = annotation_options(misclassified="negative")
    made = annotate(classifier, examples(6, pair=True), options).annotated
    write_annotations(tmp_path / "a.jsonl", made, classifier.tokenizer, labels)
    again = read_annotations(tmp_path / "a.jsonl", labels)
    assert [item.unit for item in again] == [item.unit for item in made]
    assert all((a.important == b.important).all() for a, b in zip(again, made, strict=True))
    assert summarize_annotations(again, options)["important"] == summarize_annotations(made, options)["important"]
    marked = next(item for item in made if item.important.any())
    assert format_annotated_unit(marked, classifier.tokenizer).count("[") == marked.important.sum()


@pytest.mark.parametrize(("delta", "word"), [(-1.0, "few"), (1.0, "many")])
def test_marking_no_or_every_token_logs_a_warning(tiny_bert, caplog, delta, word):
    with caplog.at_level(logging.WARNING):
        result = annotate(sharp_classifier(tiny_bert), examples(), annotation_options(delta=delta))
    (record,) = caplog.records
    tokens = result.summary["tokens"]
    assert f"{0 if word == 'few' else tokens} of {tokens} tokens" in record.getMessage()
    assert word in record.getMessage()


def test_a_moderate_share_logs_no_warning(caplog):
    summary = {"share": 0.2, "options": {}}
    with caplog.at_level(logging.WARNING):
        warn_if_share_is_extreme(summary)
    assert not caplog.records


def test_a_task_without_rows_is_an_error(tiny_bert):
    with pytest.raises(UserError, match="No row"):
        annotate(sharp_classifier(tiny_bert), [], annotation_options())


def test_presets_and_invalid_options():
    assert annotation_options("released-code").delta == 0.01
    assert annotation_options("released-code", delta="0.2").delta == 0.2
    with pytest.raises(UserError, match="Did you mean 'paper'"):
        annotation_options("papr")
    for wrong, message in (
        ({"preset_name": "papr"}, "Unknown parameter"),
        ({"dleta": 1}, "Did you mean 'delta'"),
        ({"unit": "word"}, "unit"),
        ({"delta": 3}, "between -1 and 1"),
        ({"stop_words": "no-such-file"}, None),
    ):
        if message is None:
            with pytest.raises(UserError, match="no-such-file"):
                make_stop_word_mask(tiny_tokenizer(), "no-such-file")
            continue
        with pytest.raises(UserError, match=message):
            annotation_options(**wrong)
