"""Retrieval: which documents of a collection answer a query."""
