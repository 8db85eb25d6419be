"""Classification without training: a causal model is asked for the likelihood of a word for each label."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.device import to_device
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.data.tokenizing import read_as_text
from acclimate.evaluation.lm_loss import TargetRow, read_for_scoring
from acclimate.evaluation.prefixes import shared_losses
from acclimate.models.families import longest_text
from acclimate.models.kinds import kind_of
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import IGNORE_INDEX

Score = Literal["pmi", "mean", "sum"]
TEMPLATE = "{text}\n\nLabel:"
"""Default prompt; the word of a label follows after a space."""
CONTENT_FREE = "N/A"
"""Text of the prompt that says how likely each word is whatever the text (Zhao et al., 2021)."""
FIELD = re.compile(r"\{(text|text_pair)\}")
PROMPT_TOKENS = 1024
"""Default maximum tokens of a prompt with a label."""


@dataclass(frozen=True)
class LabelLikelihoods:
    """Likelihood of the word of each label after each prompt for a causal model.

    Attributes:
        predicted: Class number with the best score for each text.
        scores: The scores, float64 of shape (texts, labels).
        truncated: Number of prompts that were longer than the model, or ``max_length``, allows.
    """

    predicted: list[int]
    scores: np.ndarray
    truncated: int


def classify_by_likelihood(
    model: PreTrainedModel | str | Path,
    texts: Sequence[tuple[str, str | None]],
    labels: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    template: str = TEMPLATE,
    words: Mapping[str, str] | None = None,
    score: Score = "pmi",
    max_length: int = PROMPT_TOKENS,
) -> LabelLikelihoods:
    """Predict the label whose word is most likely after the text, without any training.

    The score of a label is the log-likelihood of its word after the prompt: as it is (``sum``), per token
    (``mean``), or minus its log-likelihood after a prompt without content (``pmi``; Holtzman et al., 2021), which
    cancels that some words are longer or more frequent than others. A prompt that is too long loses tokens at its
    start, so that what follows the text in the template is always read. As in ``lm-eval``, a prompt begins with the
    special tokens that the tokenizer puts there, if any.

    Args:
        model: A causal language model, or its folder or Hub name.
        texts: The texts, each with a second text or None.
        labels: Names of the labels.
        tokenizer: The tokenizer of a model in memory.
        template: The prompt, in which ``{text}`` and ``{text_pair}`` are replaced.
        words: Word or words for each label; labels that are missing stand for themselves.
        score: How labels are scored.
        max_length: Maximum tokens of a prompt with a label.

    Raises:
        UserError: If the model is not causal, the template has no place for the text, or two labels have the same
            word.
        ValueError: If a model in memory comes without a tokenizer.
    """
    continuations = [f" {word}" for word in label_words(labels, words)]
    check_template(template, any(second is not None for _, second in texts))
    if not isinstance(model, PreTrainedModel):
        loaded = load_language_model(model)
        model, tokenizer = to_device(loaded.model), loaded.tokenizer
    if tokenizer is None:
        raise ValueError("a model in memory needs its tokenizer")
    kind = kind_of(model)
    if kind.uses_masking:
        raise UserError(f"The likelihood of label words needs a causal language model, not a {kind.name} one.")
    attach(model)
    prompts = [fill_template(template, *text) for text in texts]
    if score == "pmi":
        prompts.append(fill_template(template, CONTENT_FREE, CONTENT_FREE))
    limit = min(max_length, longest_text(model) or max_length)
    reader = read_as_text(tokenizer)
    rows: list[TargetRow] = []
    truncated = 0
    for prompt in prompts:
        before, _ = read_for_scoring(reader, prompt)
        made = [continuation_row(reader, before, prompt + end, limit) for end in continuations]
        rows += [row for row, _ in made]
        truncated += any(is_cut for _, is_cut in made)
    found = np.array(shared_losses(model, tokenizer, rows)).reshape(len(prompts), len(labels), 2)
    scores = -found[..., 0]
    if score == "mean":
        scores = scores / np.maximum(found[..., 1], 1)
    if score == "pmi":
        scores = scores[:-1] - scores[-1]
    return LabelLikelihoods(scores.argmax(1).tolist(), scores, truncated)


def label_words(labels: Sequence[str], words: Mapping[str, str] | None) -> list[str]:
    """Return the word of each label.

    Raises:
        UserError: If a word is empty or of two labels, or the mapping has an unknown label.
    """
    given = dict(words or {})
    for label in given:
        if label not in labels:
            raise unknown_name_error("label", label, labels)
    chosen = [given.get(label, label).strip() for label in labels]
    for label, word in zip(labels, chosen, strict=True):
        if not word:
            raise UserError(f"The word of the label '{label}' is empty; give one.")
        if chosen.count(word) > 1:
            raise UserError(f"Two labels have the word '{word}', so they cannot be distinguished; change one.")
    return chosen


def check_template(template: str, is_pair: bool) -> None:
    """Check that a prompt has a place for each text.

    Raises:
        UserError: If a place is missing, or there is one for a second text that the task does not have.
    """
    wanted = {"text", "text_pair"} if is_pair else {"text"}
    found = set(FIELD.findall(template))
    if missing := sorted(wanted - found):
        raise UserError(f"The prompt {template!r} has no place for the text; write {{{missing[0]}}} where it belongs.")
    if found - wanted:
        raise UserError(f"The prompt {template!r} has {{text_pair}}, but the task has single texts; remove it.")


def fill_template(template: str, text: str, second: str | None) -> str:
    """Return the prompt for a text or a pair of texts."""
    values = {"text": text, "text_pair": second or ""}
    return FIELD.sub(lambda match: values[match[1]], template).rstrip(" ")


def continuation_row(
    tokenizer: PreTrainedTokenizerBase, before: Sequence[int], whole: str, limit: int
) -> tuple[TargetRow, bool]:
    """Return a row that predicts what follows a prompt, and whether the start of the prompt was cut off.

    Args:
        tokenizer: The tokenizer.
        before: Ids of the prompt. Its last token may change when the label follows, and is then predicted as well.
        whole: The prompt with the label.
        limit: Maximum tokens.
    """
    read, _ = read_for_scoring(tokenizer, whole)
    ids = np.array(read)
    shared = next((n for n, (one, other) in enumerate(zip(before, read, strict=False)) if one != other), len(before))
    labels = np.full_like(ids, IGNORE_INDEX)
    labels[max(shared, 1) - 1 : -1] = ids[max(shared, 1) :]
    return TargetRow(ids[-limit:], labels[-limit:]), len(ids) > limit
