"""Tasks of generation."""
