"""Distillation from a teacher per source of text: domain experts that are switched by the domain of the text."""
