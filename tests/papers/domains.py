"""Two domains, one after the other."""

from __future__ import annotations

from safetensors.torch import load_file

from acclimate.data.documents import Corpus
from tests.tiny import TEXTS

SHORT = {"steps": 2, "batch_size": 8, "max_length": 24, "precision": "fp32", "progress": False, "learning_rate": 1e-3}


FIRST, SECOND = (Corpus.of([f"{text} {word}" for text in TEXTS]) for word in ("one", "two"))


def weights(folder):
    return load_file(folder / "model.safetensors")
