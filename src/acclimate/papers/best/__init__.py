"""The documents with the highest scores of quality or fitness, with quotas for the sources of the corpus."""
