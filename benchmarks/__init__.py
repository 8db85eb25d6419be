"""Measurements: speed and memory against what people run today, how cost grows, and loss curves."""
