"""Entities: spans of words with a type, such as diseases or persons, learned as a tag per word."""

from acclimate.tasks.entities.data import Entity, EntityTask, Sentence
from acclimate.tasks.entities.tagger import Entities

__all__ = ["Entities", "Entity", "EntityTask", "Sentence"]
