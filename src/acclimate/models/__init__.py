"""Internals of Hugging Face models: kinds, families, loading, attention, gates, batching and saving."""
