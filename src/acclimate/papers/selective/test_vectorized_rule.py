"""Annotating all units at once gives the same labels as one buffer at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from acclimate.papers.selective.annotation import annotate, make_stop_word_mask, make_units
from acclimate.papers.selective.annotator import ClassifierConfidence, SpecialTokenFrame
from acclimate.papers.selective.importance_rule import Unit, annotate_units
from acclimate.papers.selective.options import annotation_options
from acclimate.tasks.kinds.classification.data import Example
from tests.cases import each
from tests.papers.classifiers import examples, ids_of, probability, reference, sharp_classifier
from tests.tiny import save_tiny


@pytest.fixture(scope="module", params=["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def classifier(request, tmp_path_factory):
    return sharp_classifier(save_tiny(request.param, tmp_path_factory.mktemp("m") / request.param))


OPTIONS = {
    "paper": {},
    "released-code": {},
    "low": {"delta": -0.02},
    "high": {"delta": 0.4},
    "sentence": {"unit": "sentence"},
    "stop words": {"stop_words": "english"},
    "negative": {"misclassified": "negative"},
    "drop": {"misclassified": "drop"},
    "marginal": {"criterion": "marginal", "epsilon": 0.02},
    "marginal negative": {"criterion": "marginal", "epsilon": 0.02, "misclassified": "negative"},
}


@each("name", OPTIONS)
def test_labels_equal_the_naive_reference(classifier, name):
    """Each option set runs on single texts with one classifier and on pairs with the other."""
    options = annotation_options("released-code" if name == "released-code" else "paper", **OPTIONS[name])
    pair = (list(OPTIONS).index(name) % 2 == 0) == (classifier.model.config.model_type == "bert")
    texts = examples(pair=pair)
    units = make_units(texts, classifier.tokenizer, classifier.max_length, options).units
    stop = make_stop_word_mask(classifier.tokenizer, options.stop_words)
    found = annotate(classifier, texts, options).annotated
    expected = []
    for unit in units:
        stop_ids = set() if stop is None else set(np.flatnonzero(stop[1]).tolist())
        marginal = options.epsilon if options.criterion == "marginal" else None
        second = None if unit.second is None else list(unit.second)
        made = reference(
            classifier, unit.tokens, unit.label, second, options.delta, marginal, options.misclassified, stop_ids
        )
        if made is not None:
            expected.append((unit, *made))
    assert [item.unit for item in found] == [unit for unit, *_ in expected]
    for item, (_, flags, scores) in zip(found, expected, strict=True):
        assert item.important.tolist() == flags
        np.testing.assert_allclose(item.scores, scores, atol=1e-5)
    share = np.mean(np.concatenate([item.important for item in found]))
    assert 0.02 < share < 0.98, "the labels must not all be equal"


@each("tokens", [1, 50, 5_000])
def test_labels_do_not_depend_on_the_batch_size(classifier, tokens):
    options = annotation_options()
    units = make_units(examples(), classifier.tokenizer, classifier.max_length, options).units
    some = annotate_units(units, ClassifierConfidence(classifier, False, tokens), options)
    usual = annotate_units(units, ClassifierConfidence(classifier, False), options)
    assert [item.important.tolist() for item in some] == [item.important.tolist() for item in usual]


def test_texts_beyond_the_maximum_length_are_truncated_and_counted(tmp_path):
    """The released code annotates the rest too, by repeating its last score."""
    classifier = sharp_classifier(save_tiny("bert", tmp_path / "m"), max_length=500)
    assert classifier.max_length == 80
    long, short = examples(1, seed=3, longest=6)[0], examples(1, seed=4)[0]
    long = dataclasses.replace(long, text="good food and cold soup " * 60)
    result = annotate(classifier, [long, short], annotation_options())
    assert result.summary["cut"] == 1
    assert len(result.annotated[0].important) == 78
    flags, _ = reference(classifier, result.annotated[0].unit.tokens, long.label)
    assert result.annotated[0].important.tolist() == flags
    pairs = [dataclasses.replace(long, text_pair="wine " * 200), dataclasses.replace(short, text_pair="wine")]
    units = make_units(pairs, classifier.tokenizer, classifier.max_length, annotation_options())
    assert units.truncated == 1
    assert len(units.units[0].tokens) + len(units.units[0].second) == 77
    assert annotate(classifier, pairs, annotation_options()).summary["units"] == 2


def test_no_units_give_no_annotations(classifier):
    assert annotate_units([], ClassifierConfidence(classifier, False), annotation_options()) == []


def test_probabilities_keep_the_order_of_the_requests(classifier):
    units = [Unit(ids_of("good", "food"), 0), Unit(ids_of("a"), 1), Unit(ids_of("the", "cold", "soup"), 2)]
    requests = [(unit, unit.tokens) for unit in units] + [(units[0], ())]
    found = ClassifierConfidence(classifier, False, 6)(requests)
    for row, (_, buffer) in zip(found, requests, strict=True):
        np.testing.assert_allclose(row, probability(classifier, list(buffer), None).numpy(), atol=1e-6)


@each("pair", [False, True])
def test_the_full_text_has_the_same_input_as_in_fine_tuning(classifier, pair):
    texts = [Example("good [MASK] food [SEP] bad wine", "[CLS] soup" if pair else None, 0), *examples(3, pair)]
    units = make_units(texts, classifier.tokenizer, classifier.max_length, annotation_options()).units
    found = ClassifierConfidence(classifier, pair)([(unit, unit.tokens) for unit in units])
    np.testing.assert_allclose(found, classifier.probabilities(texts, "fp32").numpy(), atol=1e-6)


def test_the_frame_equals_what_the_tokenizer_adds(classifier):
    tokenizer = classifier.tokenizer
    single, pair = SpecialTokenFrame.of(tokenizer, False), SpecialTokenFrame.of(tokenizer, True)
    assert single.around(ids_of("good"), ())[0] == tokenizer("good")["input_ids"]
    both = tokenizer("good food", "wine", return_token_type_ids=True)
    ids, kinds = pair.around(ids_of("good", "food"), ids_of("wine"))
    assert (ids, kinds) == (both["input_ids"], both["token_type_ids"])
    assert single.specials == 2
    assert pair.specials == 3


def test_the_classifier_runs_in_fp32(classifier, monkeypatch):
    kinds = set()
    forward = classifier.model.forward

    def watched(**inputs):
        found = forward(**inputs)
        kinds.add((found.logits.dtype, torch.is_autocast_enabled("cpu")))
        return found

    monkeypatch.setattr(classifier.model, "forward", watched)
    ClassifierConfidence(classifier, False)([(Unit(ids_of("good"), 0), ids_of("good"))])
    assert kinds == {(torch.float32, False)}
