"""Benchmarks of lm-eval and checkable instructions, for causal models: verbs and kinds of jobs."""
