"""Text and tasks over time: splits by period, how fast models age, and how models of periods differ."""

from acclimate.periods.gap import temporal_gap
from acclimate.periods.self_training import temporal_self_training
from acclimate.periods.split import split_periods

__all__ = ["split_periods", "temporal_gap", "temporal_self_training"]
