"""Vectors that a method trains, from its own forward pass."""

from __future__ import annotations

import torch

from acclimate.evaluation.embeddings import load_pooling_head
from acclimate.models.encoding import encode
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.objectives import Outputs, View
from tests.parts.objectives.layouts import packed, padded
from tests.tiny import TEXTS, tiny_tokenizer

ALONE = {"lm_weight": 0}


DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]


def our_vectors(folder, pooling):
    """Return the vectors that a method would train for some texts, in packed rows."""
    model = load_language_model(folder).model
    attach(model)
    batch = packed(padded([tiny_tokenizer()(text)["input_ids"] for text in TEXTS]))
    view = View("original")
    with torch.no_grad():
        outputs = Outputs({view: encode(model, batch.original, batch.text)}, batch, {})
        vectors = outputs.pooled(view, load_pooling_head(folder, model.device) if pooling == "own" else None)
        if pooling == "cls":
            vectors = torch.stack([outputs.hidden(view)[batch.text == n][0] for n in range(batch.texts)])
    order = [tiny_tokenizer().decode(batch.original[batch.text == n]) for n in range(batch.texts)]
    texts = [tiny_tokenizer().decode(tiny_tokenizer()(text)["input_ids"]) for text in TEXTS]
    return vectors[[order.index(text) for text in texts]].numpy()
