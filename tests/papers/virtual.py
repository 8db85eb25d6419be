"""Methods with virtual tokens, end to end on a tiny model."""

from __future__ import annotations

from acclimate.adaptation.adapt import adapt
from acclimate.data.documents import Corpus
from tests.papers.test_contract import DOCUMENTS, SHORT

TABLE = "bert.embeddings.word_embeddings.weight"


def run(model, method, out, settings=None, **options):
    options = {**SHORT, "steps": 4, **options}
    return adapt(model, Corpus.of(DOCUMENTS), {method: settings}, out, **options)
