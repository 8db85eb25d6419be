"""Files become documents, documents become token rows.

``Corpus`` reads text lazily from files, folders, globs, data sets of the hub or a list in memory; ``tokenize`` cuts
its documents into ``TokenDataset``, which stay on disk when a cache folder is given.
"""

from __future__ import annotations

from acclimate.corpus.documents import Corpus, CorpusReport
from acclimate.corpus.token_dataset import TokenDataset
from acclimate.corpus.tokenizing import tokenize

__all__ = ["Corpus", "CorpusReport", "TokenDataset", "tokenize"]
