"""Transforms: new documents made of those of a corpus; every module here is imported and registers its operations."""
