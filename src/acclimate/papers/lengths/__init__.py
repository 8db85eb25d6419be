"""More tokens of long documents, with the same share of each source."""
