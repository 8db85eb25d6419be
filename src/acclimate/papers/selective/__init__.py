"""Selective masking: find the tokens that matter to a task, learn to predict them, and mask them in domain text.

Gu et al., "Train No Evil: Selective Masking for Task-Guided Pre-Training", EMNLP 2020.
"""
