"""Classification by the likelihood of label words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.evaluation.likelihood import CONTENT_FREE, classify_by_likelihood, fill_template, label_words
from tests.cases import each
from tests.tiny import TEXTS, decoder_tokenizer, tiny_model, tiny_tokenizer

LABELS = ["good", "a rude waiter", "price"]
TEMPLATE = "{text} it was"


def slow_scores(model, tokenizer, prompt, words):
    """The log-likelihood of each word after a prompt, and its number of tokens."""
    found = []
    for word in words:
        ids = tokenizer(f"{prompt} {word}")["input_ids"]
        start = len(tokenizer(prompt)["input_ids"])
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
        found.append((sum(logits[place - 1][ids[place]].item() for place in range(start, len(ids))), len(ids) - start))
    return np.array(found)


@each("kind", ["llama", "smollm3"])
def test_equals_a_loop_over_labels(kind):
    model, tokenizer = tiny_model(kind), decoder_tokenizer(kind)
    texts = [(text, None) for text in TEXTS]
    options = {"tokenizer": tokenizer, "template": TEMPLATE}
    with torch.no_grad():
        expected = np.stack([slow_scores(model, tokenizer, f"{text} it was", LABELS) for text in TEXTS])
        neutral = slow_scores(model, tokenizer, f"{CONTENT_FREE} it was", LABELS)[:, 0]
    sums, counts = expected[..., 0], expected[..., 1]
    assert len(set(counts[0])) > 1
    for score, values in (("sum", sums), ("mean", sums / counts), ("pmi", sums - neutral)):
        found = classify_by_likelihood(model, texts, LABELS, score=score, **options)
        np.testing.assert_allclose(found.scores, values, atol=1e-3)
        assert found.predicted == values.argmax(1).tolist() and found.truncated == 0


def test_a_long_prompt_loses_its_start():
    model, tokenizer = tiny_model("llama"), decoder_tokenizer()
    options = {"tokenizer": tokenizer, "template": TEMPLATE, "score": "sum"}
    long = classify_by_likelihood(model, [("pizza " * 100 + "cold", None)], LABELS, max_length=24, **options)
    assert long.truncated == 1
    ids = tokenizer("pizza " * 100 + "cold it was price")["input_ids"][-24:]
    (count,) = slow_scores(model, tokenizer, "x it was", ["price"])[:, 1]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    places = range(24 - int(count), 24)
    assert long.scores[0, 2] == pytest.approx(sum(logits[p - 1][ids[p]].item() for p in places), abs=1e-3)


def test_a_pair_of_texts_fills_both_places_once():
    assert fill_template("{text_pair} | {text} ", "a {text_pair}", "b {text}") == "b {text} | a {text_pair}"


@each(
    ("labels", "words", "message"),
    [
        (["a", "b"], {"c": "x"}, "label 'c'"),
        (["a", "b"], {"a": " "}, "The word of the label 'a' is empty"),
        (["a", "b"], {"a": "b"}, "Two labels have the word 'b'"),
    ],
)
def test_words_that_cannot_be_used(labels, words, message):
    with pytest.raises(UserError, match=message):
        label_words(labels, words)


def test_what_cannot_be_asked_is_refused():
    model, tokenizer = tiny_model("llama"), decoder_tokenizer()
    with pytest.raises(UserError, match=r"has no place for the text; write \{text\} where it belongs"):
        classify_by_likelihood(model, [("a", None)], LABELS, tokenizer=tokenizer, template="Label:")
    with pytest.raises(UserError, match=r"write \{text_pair\}"):
        classify_by_likelihood(model, [("a", "b")], LABELS, tokenizer=tokenizer)
    with pytest.raises(UserError, match="which the task does not have"):
        classify_by_likelihood(model, [("a", None)], LABELS, tokenizer=tokenizer, template="{text} {text_pair}:")
    with pytest.raises(UserError, match="needs a causal language model, not a masked one"):
        classify_by_likelihood(tiny_model("bert"), [("a", None)], LABELS, tokenizer=tiny_tokenizer())
