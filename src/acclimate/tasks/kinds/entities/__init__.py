"""Entities: spans of words with a type, such as diseases or persons, learned as a tag per word."""
