"""Metrics, statistics, calibration and language-model loss."""
