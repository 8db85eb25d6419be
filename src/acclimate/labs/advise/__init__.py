"""Advice before an adaptation."""
