"""Text and tasks over time: splits by period, how fast models age, and how models of periods differ."""

from acclimate.periods.gap import temporal_gap
from acclimate.periods.questions import temporal_questions
from acclimate.periods.self_training import temporal_self_training
from acclimate.periods.split import split_periods
from acclimate.periods.surprisal import temporal_surprisal

__all__ = ["split_periods", "temporal_gap", "temporal_questions", "temporal_self_training", "temporal_surprisal"]
