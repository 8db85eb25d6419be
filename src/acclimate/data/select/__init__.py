"""Selections: which documents of a corpus to adapt to; every module here is imported and registers its operations."""
