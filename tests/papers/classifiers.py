"""Tiny classifiers with input-dependent outputs, and a naive implementation of the importance rule."""

from __future__ import annotations

import functools
import random

import torch

from acclimate.tasks.kinds.classification.classifier import Classifier, load_classifier
from acclimate.tasks.kinds.classification.data import Example
from tests.tiny import VOCABULARY, WORDS

LABELS = ["negative", "neutral", "positive"]
CPU = torch.device("cpu")
CLS, SEP = 2, 3


def sharp_classifier(folder, max_length: int = 40, seed: int = 0) -> Classifier:
    """Return a random classifier with large weights, so that its probabilities differ between texts."""
    torch.manual_seed(seed)
    classifier = load_classifier(folder, LABELS, max_length, CPU)
    with torch.no_grad():
        for name, weight in classifier.model.named_parameters():
            if weight.dim() == 2:
                weight.copy_(torch.randn_like(weight) * (1.0 if name.startswith("classifier") else 0.3))
    return classifier


def examples(count: int = 24, pair: bool = False, seed: int = 0, longest: int = 14) -> list[Example]:
    """Return random texts over the tiny vocabulary, some with several sentences."""
    rng = random.Random(seed)
    words = [word for word in WORDS if not word.startswith("##") and len(word) > 1]
    made = []
    for number in range(count):
        text = " ".join(rng.choice([*words, ". the"]) for _ in range(rng.randint(1, longest)))
        made.append(Example(text, rng.choice(words) if pair else None, number % 3))
    return made


def probability(classifier: Classifier, buffer: list[int], second: list[int] | None) -> torch.Tensor:
    """Return the class probabilities of one text, without padding."""
    return _probability(classifier.model, tuple(buffer), None if second is None else tuple(second))


@functools.cache
@torch.no_grad()
def _probability(model: torch.nn.Module, buffer: tuple[int, ...], second: tuple[int, ...] | None) -> torch.Tensor:
    """Compute the probabilities once, as nothing trains the classifiers of these tests."""
    ids, kinds = [CLS, *buffer, SEP], [0] * (len(buffer) + 2)
    if second is not None:
        ids, kinds = [*ids, *second, SEP], [*kinds, *[1] * (len(second) + 1)]
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    if model.config.type_vocab_size > 1:
        inputs["token_type_ids"] = torch.tensor([kinds])
    return model.eval()(**inputs).logits[0].double().softmax(-1)


def reference(classifier, tokens, label, second=None, delta=0.05, marginal=None, misclassified="annotate", stop=()):
    """Apply the rule of Gu et al., section 2.2, to one buffer and one token at a time.

    Returns:
        Importance and scores of each token, or None if the text is dropped.
    """
    whole = probability(classifier, list(tokens), second)
    if int(whole.argmax()) != label and misclassified != "annotate":
        return None if misclassified == "drop" else ([False] * len(tokens), [])
    buffer: list[int] = []
    flags, scores = [], []
    for token in tokens:
        now = float(probability(classifier, [*buffer, token], second)[label])
        if marginal is None:
            score = float(whole[label]) - now
            important = score < delta
        else:
            score = float(probability(classifier, buffer, second)[label]) - now
            important = now - float(probability(classifier, buffer, second)[label]) > marginal
        if not important:
            buffer = [*buffer, token]
        scores.append(score)
        flags.append(important and token not in stop)
    return flags, scores


def ids_of(*words: str) -> tuple[int, ...]:
    """Return the token ids of words of the tiny vocabulary."""
    return tuple(VOCABULARY[word] for word in words)
