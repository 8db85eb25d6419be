"""Generation: answers that a decoder writes, compared with references."""
