"""Reads documents and turns them into rows of token ids.

``Corpus`` reads documents lazily from files, folders, globs, Hugging Face datasets or memory. ``tokenize`` cuts them
into the rows of a ``TokenDataset``, in memory or in a cache folder on disk.
"""

from __future__ import annotations

from acclimate.corpus.documents import Corpus, CorpusReport
from acclimate.corpus.token_dataset import TokenDataset
from acclimate.corpus.tokenizing import tokenize

__all__ = ["Corpus", "CorpusReport", "TokenDataset", "tokenize"]
