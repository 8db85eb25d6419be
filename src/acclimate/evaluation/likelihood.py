"""Classification without training: a causal model is asked for the likelihood of a word for each label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from acclimate.base.device import to_device
from acclimate.base.errors import UserError, unknown_name_error
from acclimate.data.tokenizing import read_as_text
from acclimate.evaluation.lm_loss import TargetRow, read_for_scoring
from acclimate.evaluation.prefixes import shared_losses
from acclimate.evaluation.prompts import check_fields, fill
from acclimate.models.families import longest_text
from acclimate.models.kinds import kind_of
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import IGNORE_INDEX

Score = Literal["pmi", "mean", "sum"]
TEMPLATES = (
    "{text}\n\nLabel:",  # a record, as in a table of texts and labels
    "Text: {text}\nCategory:",  # named fields, as in instructions
    "{text}\n\nIn a word, this is about",  # running text, which a base model has seen most of
    "{text}\n\nWhich of these fits best: {labels}?\nAnswer:",  # a question with its options, for tuned models
)
"""Default prompts, of which a study chooses; the word of a label follows after a space. ``{labels}``: all words."""
PAIR_TEMPLATES = (
    "{text}\n{text_pair}\n\nLabel:",
    "Text 1: {text}\nText 2: {text_pair}\nCategory:",
    "{text}\n{text_pair}\n\nIn a word, these two are",
    "{text}\n{text_pair}\n\nWhich of these fits best: {labels}?\nAnswer:",
)
"""The same for pairs of texts."""
CONTENT_FREE = "N/A"
"""Text of the prompt that says how likely each word is whatever the text (Zhao et al., 2021)."""
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
    template: str = TEMPLATES[0],
    words: Mapping[str, str] | None = None,
    score: Score = "pmi",
    max_length: int = PROMPT_TOKENS,
    examples: Sequence[tuple[tuple[str, str | None], str]] = (),
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
        template: The prompt, in which ``{text}``, ``{text_pair}`` and ``{labels}`` are replaced.
        words: Word or words for each label; labels that are missing stand for themselves.
        score: How labels are scored.
        max_length: Maximum tokens of a prompt with a label, without the examples.
        examples: Solved examples that every prompt begins with: texts, each with its label.

    Raises:
        UserError: If the model is not causal, the template has no place for the text, or two labels have the same
            word.
        ValueError: If a model in memory comes without a tokenizer.
    """
    own_words = label_words(labels, words)
    continuations = [f" {word}" for word in own_words]
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
    contents = [*texts, (CONTENT_FREE, CONTENT_FREE)] if score == "pmi" else texts
    word_of, shown = dict(zip(labels, own_words, strict=True)), ", ".join(own_words)
    solved = [f"{fill_template(template, *text, shown)} {word_of[label]}\n\n" for text, label in examples]
    prompts = ["".join([*solved, fill_template(template, *text, shown)]) for text in contents]
    reader = read_as_text(tokenizer)
    wanted = max_length + len(read_for_scoring(reader, "".join(solved))[0])
    limit = min(wanted, longest_text(model) or wanted)
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
    check_fields(template, ("text", "text_pair") if is_pair else ("text",), ("labels",))


def fill_template(template: str, text: str, second: str | None, labels: str = "") -> str:
    """Return the prompt for a text or a pair of texts."""
    return fill(template, {"text": text, "text_pair": second or "", "labels": labels})


def open_classifier(model: str | Path) -> Callable[..., LabelLikelihoods]:
    """Load a model once for many calls; return :func:`classify_by_likelihood` without its first argument."""
    loaded = load_language_model(model)
    return partial(classify_by_likelihood, to_device(loaded.model), tokenizer=loaded.tokenizer)


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
