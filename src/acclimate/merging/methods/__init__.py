"""The merges, one class for each."""
