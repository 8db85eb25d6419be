"""A short training in which the terms that a method adds to the loss fall."""

from __future__ import annotations

from acclimate.adaptation.adapt import adapt
from acclimate.data.documents import Corpus
from tests.papers.test_contract import SHORT
from tests.tiny import TEXTS

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(8)]


HELD = Corpus.of(
    [
        "the soup was not fresh and the waiter was slow",
        "a table of the score and the loss of the model",
        "cold wine and a good price for the pizza",
        "we test the layer on the text of the paper",
        "the menu is bad but the food is good",
        "is the result of the method on the data good?",
    ]
)


def run(model, method, out, **options):
    options = {**SHORT, "steps": 40, "batch_size": 16, **options}
    return adapt(model, Corpus.of(DOCUMENTS), method, out, **options)
