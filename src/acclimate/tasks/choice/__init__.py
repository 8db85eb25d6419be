"""Multiple choice: which of the choices of a question is correct."""

from acclimate.tasks.choice.data import ChoiceTask, Item
from acclimate.tasks.choice.model import MultipleChoice

__all__ = ["ChoiceTask", "Item", "MultipleChoice"]
