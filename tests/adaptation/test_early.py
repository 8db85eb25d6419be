"""What needs no text is refused before the text is read and tokenized."""

from __future__ import annotations

import pytest

from acclimate.adaptation import adapt as module
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from tests.cases import each
from tests.tasks.test_classification import keyword_task
from tests.tiny import TEXTS

FILES = [(name, key) for name in REGISTRY.names() for key in REGISTRY.lookup(name).files]


@each(("name", "key"), FILES)
def test_a_file_that_does_not_exist_is_refused_before_the_text_is_tokenized(
    name, key, tiny_bert, decoders, monkeypatch
):
    monkeypatch.setattr(module, "tokenize_documents", lambda *_: pytest.fail("the text is tokenized"))
    model = tiny_bert if "masked" in REGISTRY.lookup(name).kinds else decoders["smollm3"]
    own = {"task": keyword_task()} if REGISTRY.lookup(name).needs_task else {}
    with pytest.raises(UserError):  # also for another parameter that the method needs
        adapt(model, Corpus.of(TEXTS), {name: {key: "./nope.txt"}}, steps=1, max_length=24, progress=False, **own)
