"""Commands that nothing else needs, one folder each."""
