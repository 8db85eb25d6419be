"""Reads documents and turns them into rows of token ids.

``Corpus`` reads documents lazily from files, folders, globs, Hugging Face datasets or memory. ``tokenize`` cuts them
into the rows of a ``TokenDataset``, in memory or in a cache folder on disk.
"""
