"""Sparse encoders (SPLADE): a text is weighted words of the vocabulary, from the logits of a masked language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from acclimate.base.device import default_device
from acclimate.base.errors import UserError, first_line
from acclimate.base.progress import silence_transformers
from acclimate.evaluation.embeddings import SPARSE, encoder_type, import_sentence_transformers
from acclimate.models.checkpoints import load_config, trusts_remote_code
from acclimate.tasks.kinds.retrieval.encoder import BiEncoder, limit_length


class SparseRetriever(BiEncoder):
    """A ``SparseEncoder`` of ``sentence-transformers``, whose vectors are kept as sparse matrices."""

    def embed(self, texts: Sequence[str], encode: Callable[..., Any]) -> Any:
        """Return the vectors of texts: (texts, vocabulary), sparse, fp32 on the CPU.

        Raises:
            UserError: If one is NaN or infinite.
        """
        found = encode(list(texts), show_progress_bar=False, save_to_cpu=True).coalesce()
        if not bool(found.values().isfinite().all()):
            raise UserError("The model returns NaN or infinite weights of words; it cannot be used.")
        places, values = found.indices().numpy(), found.values().float().numpy()
        return csr_matrix((values, (places[0], places[1])), shape=tuple(found.shape))

    def compare(self, asked: Any, texts: Any) -> np.ndarray:
        """Return the dot products of queries and documents: (queries, documents)."""
        found: np.ndarray = (asked @ texts.T).toarray()
        return found

    def similarity(self, first: Sequence[str], second: Sequence[str]) -> list[float]:
        """Return the similarity of each pair of texts."""
        vectors = [self.embed(texts, self.model.encode) for texts in (first, second)]
        found: list[float] = np.asarray(vectors[0].multiply(vectors[1]).sum(axis=1))[:, 0].tolist()
        return found


def load_sparse(path: str | Path, max_length: int) -> SparseRetriever:
    """Load a sparse encoder in fp32, or a masked language model as one: the maximum over tokens of log(1 + relu).

    Args:
        path: A model folder or a name on the Hugging Face Hub.
        max_length: Maximum tokens per text; reduced to what the model can read.

    Raises:
        UserError: If it is neither, or ``sentence-transformers`` is not installed.
    """
    library, config = import_sentence_transformers(), load_config(path)
    if encoder_type(path) != SPARSE and not any("MaskedLM" in name for name in config.architectures or ()):
        raise UserError(
            f"'{path}' is no sparse encoder and has no head of a masked language model, so it gives words no weights; "
            "leave 'sparse' out."
        )
    try:
        with silence_transformers():
            given = {"device": str(default_device()), "trust_remote_code": trusts_remote_code()}
            encoder = library.SparseEncoder(str(path), **given).float().eval()
    except Exception as error:  # each kind of module has its own exceptions
        raise UserError(f"'{path}' cannot be loaded as a sparse encoder: {first_line(error)}") from error
    limit_length(encoder, config, max_length)
    return SparseRetriever(encoder)
