"""Classification with few labels: a sentence encoder learns pairs of examples, a logistic regression their classes.

This is SetFit (Tunstall et al., 2022): examples of one class attract each other, those of different classes do not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acclimate.base.device import Precision
from acclimate.base.errors import UserError
from acclimate.base.files import write_json
from acclimate.cards.card import LABELS_FILE
from acclimate.evaluation.embeddings import import_sentence_transformers
from acclimate.tasks.head_model import check_finite
from acclimate.tasks.kinds.classification.data import Example
from acclimate.tasks.kinds.retrieval.encoder import BiEncoder

ABSENT_CLASS = -1e4
"""Logit of a class without a train example."""


class SentenceClassifier(BiEncoder):
    """A sentence encoder with a linear classifier of its vectors.

    Attributes:
        labels: The classes.
        weight: (classes, dimensions); None before :meth:`fit`.
        bias: (classes,).
    """

    def __init__(self, model: Any, labels: Sequence[str]) -> None:
        super().__init__(model)
        self.labels = list(labels)
        self.weight: Tensor | None = None
        self.bias = torch.zeros(len(self.labels))

    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Return the vectors of texts in fp32 on the CPU: (texts, dimensions).

        Raises:
            UserError: If one is NaN or infinite.
        """
        found = self.model.encode(list(texts), convert_to_tensor=True, show_progress_bar=False).float().cpu()
        if not bool(found.isfinite().all()):
            raise UserError("The fine-tuned model returns NaN or infinite embeddings; lower the learning rate.")
        return found

    def fit(self, examples: Sequence[Example]) -> None:
        """Fit a logistic regression with L2 penalty to the vectors of examples (scikit-learn's defaults)."""
        from sklearn.linear_model import LogisticRegression

        vectors = self.vectors([example.text for example in examples]).numpy()
        classes = np.array([example.places[0] for example in examples])
        fitted = LogisticRegression(max_iter=1_000).fit(vectors, classes)
        weight, bias = torch.from_numpy(fitted.coef_).float(), torch.from_numpy(fitted.intercept_).float()
        if len(weight) == 1:  # of two classes, the logit of the first is 0
            weight, bias = torch.cat([0 * weight, weight]), torch.cat([0 * bias, bias])
        present = torch.from_numpy(fitted.classes_)
        self.weight = torch.zeros(len(self.labels), weight.shape[1]).index_copy(0, present, weight)
        self.bias = torch.full((len(self.labels),), ABSENT_CLASS).index_copy(0, present, bias)

    def probabilities(self, examples: Sequence[Example], precision: Precision) -> Tensor:
        """Return the softmax over the classes: (examples, classes), fp32 on the CPU."""
        assert self.weight is not None, "fit first"
        return (self.vectors([example.text for example in examples]) @ self.weight.T + self.bias).softmax(-1)

    def save(self, folder: Path, name: Path | None = None) -> None:
        """Write a ``SentenceTransformer`` whose last module is the classifier: it returns the logits of the classes.

        Raises:
            UserError: If a weight is not finite.
        """
        assert self.weight is not None, "fit first"
        modules = import_sentence_transformers().sentence_transformer.modules
        classes, width = self.weight.shape
        layer = modules.Dense(width, classes, activation_function=torch.nn.Identity())
        layer.linear.load_state_dict({"weight": self.weight, "bias": self.bias})
        self.model.append(layer)
        try:
            super().save(folder, name)
        finally:
            self.model.pop(-1)
        write_json(folder / LABELS_FILE, self.labels)


class FittedClassifier:
    """A sentence encoder that was saved with its classifier, so that its vectors are logits of classes."""

    def __init__(self, model: Any) -> None:
        """Set a ``SentenceTransformer`` whose last module is the classifier."""
        self.model = model

    def probabilities(self, examples: Sequence[Example], precision: Precision) -> Tensor:
        """Return the softmax over the classes: (examples, classes), fp32 on the CPU."""
        texts = [example.text for example in examples]
        logits = self.model.encode(texts, convert_to_tensor=True, show_progress_bar=False).float().cpu()
        check_finite(logits)
        return torch.softmax(logits, -1)


def draw_pairs(classes: Sequence[int], rounds: int, seed: int) -> list[tuple[int, int, float]]:
    """Draw pairs of examples: in every round, each with another of its class, and with one of another class.

    Args:
        classes: The class of each example.
        rounds: Number of rounds.
        seed: Random seed.

    Returns:
        The indices of both examples, and 1.0 if their classes are the same, else 0.0. The only example of a class is
        in no pair of the first kind, and a single class has none of the second.
    """
    chance, pairs = random.Random(seed), []
    members: dict[int, list[int]] = {}
    for index, label in enumerate(classes):
        members.setdefault(label, []).append(index)
    for _ in range(rounds):
        for index, label in enumerate(classes):
            if len(members[label]) > 1:
                other = chance.choice(members[label][:-1])  # skips the example itself
                pairs.append((index, other if other != index else members[label][-1], 1.0))
            if len(members) > 1:
                other = chance.choice([one for one in members if one != label])
                pairs.append((index, chance.choice(members[other]), 0.0))
    return pairs
