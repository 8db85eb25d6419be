"""The similarity that the embeddings of a sentence encoder show before and after its adaptation."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acclimate.adaptation.options import NO_SIMILARITY
from acclimate.adaptation.run import Feature, Run
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus, subsample_documents
from acclimate.data.reading import default_task_name
from acclimate.data.task_kinds import TASK_KINDS, find_task_kind, open_task
from acclimate.evaluation.embeddings import (
    SentencePairs,
    SimilarityChange,
    compare_encoders,
    import_sentence_transformers,
    is_sentence_encoder,
    neighbor_pairs,
)

NEIGHBOR_DOCUMENTS = 2_000
"""Maximum number of documents that neighbouring sentences are taken from."""

log = logging.getLogger(__name__)


def open_pairs(given: Any) -> SentencePairs:
    """Return the pairs of sentences of a task, in any of its forms, or of a folder of retrieval tasks.

    Raises:
        UserError: If the task cannot be read or has no pairs, or ``sentence-transformers`` is not installed.
    """
    import_sentence_transformers()
    pairs: SentencePairs | None
    if isinstance(given, str | Path) and (folder := Path(given).expanduser()).is_dir():
        for name in TASK_KINDS.names():
            if (pairs := TASK_KINDS.lookup(name)().read_general(folder, default_task_name(folder))) is not None:
                return pairs
    task = open_task(given)
    pairs = find_task_kind(task).sentence_pairs(task)
    if pairs is None:
        raise UserError(f"'{task.name}' has no pairs of sentences; give pairs, with or without scores.")
    return pairs


@dataclass(frozen=True)
class SimilarityCheck(Feature):
    """The pairs on which a sentence encoder is measured before and after its adaptation.

    Attributes:
        base: The base model.
        pairs: Given pairs; None for neighbouring sentences.
        texts: Text with neighbouring sentences, by name.
    """

    base: str
    pairs: SentencePairs | None
    texts: dict[str, Corpus]

    @classmethod
    def of(cls, run: Run) -> SimilarityCheck | None:
        """Return what a run measures; None if it measures nothing.

        A method may make a sentence encoder of any model; before it, a model that is none is measured by the mean over
        tokens.

        Raises:
            UserError: If pairs are given for a model that is no sentence encoder, ``sentence-transformers`` is
                missing, or the task has no pairs.
        """
        model, given = str(run.options.model), run.options.similarity
        makes_none = callable(run.options.model) or not (run.method.trains or run.method.stages())
        if makes_none or (isinstance(given, str) and given == NO_SIMILARITY):
            return None
        if run.method.sentence_pooling is None and not is_sentence_encoder(model):
            raise UserError(
                f"'similarity' measures sentence encoders, and '{model}' has no modules.json of "
                "sentence-transformers; remove it, or give such a model, or a method that makes one, such as tsdae."
            )
        if given is not None:
            return cls(model, open_pairs(given), {})
        try:
            import_sentence_transformers()
        except UserError as error:
            log.warning("The similarity that the embeddings show is not measured. %s", error)
            return None
        return cls(model, None, run.named_texts)

    def identity(self) -> dict[str, Any]:
        """Return the hash of the pairs, if they were given."""
        return {"similarity": self.pairs.fingerprint()} if self.pairs else {}

    def finish(self, run: Run, folder: Path) -> None:
        """Measure the model that was written."""
        run.result.add_similarity(self.measure(folder, run.progress))

    def measure(self, folder: Path, progress: bool) -> list[SimilarityChange]:
        """Measure the base model and the one in a folder; a failure is a warning, since the model is made."""
        sets = [self.pairs] if self.pairs else []
        for name, corpus in self.texts.items():
            found = neighbor_pairs(name, subsample_documents(corpus, NEIGHBOR_DOCUMENTS))
            if found is None:
                log.warning(
                    "Too few documents of the %s have several sentences, so similarity is not measured on it; give "
                    "pairs with --similarity.",
                    name,
                )
            else:
                sets.append(found)
        try:
            return compare_encoders(self.base, folder, sets, progress) if sets else []
        except UserError as error:
            log.warning("The similarity that the embeddings show was not measured. %s", error)
            return []
