"""Retrieval: which documents of a collection answer a query."""

from acclimate.tasks.retrieval.data import Passage, Query, RetrievalTask
from acclimate.tasks.retrieval.model import Retrieval

__all__ = ["Passage", "Query", "Retrieval", "RetrievalTask"]
