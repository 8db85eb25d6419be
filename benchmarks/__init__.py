"""Benchmarks of training speed and memory against ``transformers.Trainer``, and of the token annotator."""
