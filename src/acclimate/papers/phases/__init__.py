"""Phases: one set of sources after the other."""
