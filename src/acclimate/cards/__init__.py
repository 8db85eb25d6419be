"""Model cards (the ``README.md`` of every exported model, with Hub metadata), and uploading models to the Hub."""

from acclimate.cards.hub import push_to_hub
from acclimate.cards.writers import summarize_text, write_adapted_card, write_model_cards, write_task_model_card

__all__ = [
    "push_to_hub",
    "summarize_text",
    "write_adapted_card",
    "write_model_cards",
    "write_task_model_card",
]
