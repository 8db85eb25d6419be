"""Artificial states and their predictions, one token at a time."""

from __future__ import annotations

import torch
from torch import nn

from acclimate.parts.objectives import Outputs, View
from tests.parts.objectives.layouts import by_text, spread

WORDS, WIDTH = 130, 6


STUDENT, TEACHER = View(), View(reader="reference")


torch.manual_seed(0)
HEADS = {"student": nn.Linear(WIDTH, WORDS).double(), "reference": nn.Linear(WIDTH, WORDS).double()}


def read(batch, states, rows=None):
    """Outputs of artificial states by view, whose logits are computed ``rows`` positions at a time."""
    return Outputs({view: spread(each, batch) for view, each in states.items()}, batch, HEADS, logit_rows=rows)


def predictions(batch, states, reader="student"):
    """The logits (tokens, words) and labels (tokens,) at the labelled tokens of each text."""
    for mine, labels in zip(states, by_text(batch, "labels"), strict=True):
        yield HEADS[reader](mine)[labels >= 0], labels[labels >= 0]
