"""Selection of the models that fit a new domain (SaM): by similarity of texts, or by performance on the domain."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from acclimate.adaptation.corpus_verbs import make_context
from acclimate.base.ranking import best_first
from acclimate.base.records import fingerprint
from acclimate.data.documents import Corpus, as_corpus, subsample_documents
from acclimate.data.pool import Documents
from acclimate.data.select.nearest import load_embedding
from acclimate.merging.measuring import open_data
from acclimate.merging.options import TOP, MergeOptions


class Experts:
    """The models that fit a domain best; see ``target`` of :class:`acclimate.merging.options.MergeOptions`."""

    def __init__(self, options: MergeOptions, model: str) -> None:
        """Open the texts.

        Args:
            options: The options of the merge.
            model: One of the models, whose kind says whether the target is text or a labelled task.

        Raises:
            UserError: If one cannot be read.
        """
        self._options, self._rank = options, options.rank or "performance"
        self._target = open_data(options.target, model, options)
        given = cast(Any, options.corpora) or ()
        self._corpora = [as_corpus(text, options) for text in given]

    def fingerprint(self) -> str:
        """Return a hash of the texts."""
        return fingerprint([self._target.fingerprint(), *(corpus.fingerprint for corpus in self._corpora)])

    def select(self, models: Sequence[str]) -> tuple[list[str], str]:
        """Return the best models, from the best to the worst, and a note on all of them.

        Args:
            models: The models, in the order of their texts.
        """
        if self._rank == "similarity":
            documents = self._options.documents
            texts = {
                model: subsample_documents(corpus, documents)
                for model, corpus in zip(models, self._corpora, strict=True)
            }
            scores, measure = compare_domains(texts, self._target.texts(), None), "similarity"
        else:
            scores, measure = {model: self._target.score(model) for model in models}, self._target.measure
        order = [models[place] for place in best_first([scores[model] for model in models], range(len(models)))]
        best = order[: self._options.top or TOP]
        shown = ", ".join(f"'{model}' ({scores[model]:.4f})" for model in order)
        return best, f"Merged the best {len(best)} of {len(models)} models, by {measure}: {shown}."


def compare_domains(texts: Mapping[str, Sequence[str]], target: Sequence[str], encoder: Any) -> dict[str, float]:
    """Return the cosine of the mean embedding of each text and that of the target.

    Args:
        texts: The documents of each domain, by name.
        target: Documents of the new domain.
        encoder: Model that embeds them; None for TF-IDF vectors, reduced by a singular value decomposition.

    Raises:
        UserError: If the encoder cannot be loaded, or the texts have no words.
    """
    if not texts:
        return {}
    everything = [text for documents in texts.values() for text in documents]
    corpus = Corpus.of(everything)
    documents = Documents.of(corpus.with_sources(), corpus.report.sources)
    embed = load_embedding(
        None if encoder is None else str(encoder), documents, target, make_context(None, None, None, False)
    )
    means = {name: np.asarray(embed(list(found)), dtype=np.float64).mean(axis=0) for name, found in texts.items()}
    center = np.asarray(embed(list(target)), dtype=np.float64).mean(axis=0)
    lengths = {name: math.sqrt(float(mean @ mean) * float(center @ center)) or 1.0 for name, mean in means.items()}
    return {name: float(mean @ center) / lengths[name] for name, mean in means.items()}
