"""Adapt a language model to unlabelled domain text, keep what it already knows, and measure whether it helped."""
