"""Transforms of a corpus into new documents; every module here is imported and registers its operations."""
