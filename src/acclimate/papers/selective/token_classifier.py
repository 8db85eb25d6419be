"""Token classifier that predicts important tokens.

It is trained on the annotated texts of a task (stage "Train NN") and applied to the domain text ("In-domain Mask").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification, PreTrainedModel, set_seed

from acclimate.api import (
    IGNORE_INDEX,
    HeadModel,
    Precision,
    Progress,
    ResolvedOptions,
    TaskLoss,
    TokenImportanceStore,
    TrainingHooks,
    UserError,
    default_device,
    load_with_head,
    rank_important_tokens,
    to_device,
    train_task,
)
from acclimate.papers.selective.annotation import MAX_IMPORTANT_SHARE, MIN_IMPORTANT_SHARE
from acclimate.papers.selective.annotator import SpecialTokenFrame
from acclimate.papers.selective.options import TokenTrainingOptions

LabelledTokens = tuple[list[int], list[bool]]
"""Token ids of a text without special tokens, and whether each is important."""
Row = dict[str, list[int]]
"""``input_ids`` with special tokens, and ``labels``: 1, 0, or ``IGNORE_INDEX`` for tokens that the loss ignores."""


class TokenClassifier(HeadModel):
    """A token classification model with its tokenizer; class 1 is "important"."""

    token_targets: ClassVar[tuple[str, ...]] = ("labels",)
    pads_right: ClassVar[bool] = True

    def logits(self, rows: Sequence[Sequence[int]], precision: Precision) -> list[np.ndarray]:
        """Return the logits (tokens, 2) of each row, in the order of the rows; float32.

        Args:
            rows: Token ids with special tokens.
            precision: Precision of the forward pass; the last layer is always computed in fp32.
        """
        found = self.predict([{"input_ids": list(row)} for row in rows], precision)
        return [logits[: len(row)].numpy() for row, logits in zip(rows, found, strict=True)]


def load_token_classifier(path: str | Path, max_length: int = 128) -> TokenClassifier:
    """Load a checkpoint as a token classifier on the default device; missing weights are initialized randomly.

    Args:
        path: A model folder.
        max_length: Maximum tokens per text.

    Raises:
        UserError: As :func:`acclimate.tasks.loading.load_with_head`.
    """
    names = {0: "other", 1: "important"}
    settings = {"num_labels": 2, "id2label": names, "label2id": {name: number for number, name in names.items()}}
    model, tokenizer, length = load_with_head(
        AutoModelForTokenClassification, path, settings, max_length, default_device(), "token classifier"
    )
    return TokenClassifier(to_device(model), tokenizer, length)


def train_token_classifier(
    model: str | Path,
    texts: Sequence[LabelledTokens],
    options: TokenTrainingOptions,
    *,
    seed: int,
    precision: Precision,
    progress: bool = False,
) -> tuple[TokenClassifier, dict[str, Any]]:
    """Train a token classifier on annotated texts; keep the weights of the best epoch on the held-out texts.

    The loss is a cross-entropy with a higher weight for important tokens. The best epoch has the highest F1 and, among
    equal F1, the lowest loss, since F1 is 0 until an important token is found. If the held-out texts have no important
    token, the last epoch is kept.

    Args:
        model: The model to start from; in the paper, the model that will be adapted.
        texts: Annotated texts.
        options: Options of the training.
        seed: Random seed of the new layer, the held-out texts, the order and dropout.
        precision: Precision of the forward pass.
        progress: Show a progress bar.

    Returns:
        The classifier, and a summary as JSON values: numbers of texts, epoch, and the quality on the held-out texts.

    Raises:
        UserError: If there are fewer than two texts, or the loss becomes NaN.
    """
    if len(texts) < 2:
        raise UserError(f"A token classifier needs at least 2 annotated texts for training; there are {len(texts)}.")
    set_seed(seed)
    classifier = load_token_classifier(model, options.max_length)
    rows = make_rows(texts, classifier, classifier.max_length, options.special_tokens)
    order = np.random.default_rng([seed, 5]).permutation(len(rows))
    held_out = max(1, round(options.held_out * len(rows)))
    held, trained = ([rows[index] for index in sorted(part)] for part in (order[:held_out], order[held_out:]))

    def score() -> tuple[float, float]:
        found = measure_quality(classifier, held, precision)
        return found["f1"], -found["loss"]

    done = train_task(
        classifier,
        trained,
        ResolvedOptions(
            seed=seed,
            epochs=options.epochs,
            learning_rate=options.learning_rate,
            batch_size=options.batch_size,
            max_length=classifier.max_length,
            few_shot=None,
            select="dev",
            metric="f1",
            warmup=0.1,
            weight_decay=0.01,
            precision=precision,
            progress=progress,
            negative=(),
        ),
        precision,
        title="train the token classifier",
        score=score if _ordinary_tokens(classifier, held)[1].any() else None,
        hooks=TrainingHooks(make_weighted_loss(options.class_weight), items=weighted_items(options.class_weight)),
    )
    found = {**measure_quality(classifier, held, precision), "epoch": done.epoch, "train_loss": done.loss}
    return classifier, {"train_texts": len(trained), "held_out_texts": len(held), **found}


def make_weighted_loss(class_weight: float) -> TaskLoss:
    """Return a loss function: cross-entropy, with weight ``class_weight`` for important tokens and 1 for others."""

    def loss(model: PreTrainedModel, inputs: dict[str, Tensor], step: int) -> Tensor:
        wanted = inputs.pop("labels")
        logits = model(**inputs).logits.float()
        weight = torch.tensor([1.0, class_weight], device=logits.device)
        return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), weight, ignore_index=IGNORE_INDEX)

    return loss


def weighted_items(class_weight: float) -> Callable[[dict[str, Tensor], int], float]:
    """Return the function of the sum of the weights by which that loss is divided."""

    def items(inputs: dict[str, Tensor], step: int) -> float:
        return int((inputs["labels"] == 0).sum()) + class_weight * int((inputs["labels"] == 1).sum())

    return items


def make_rows(
    texts: Sequence[LabelledTokens], classifier: TokenClassifier, longest: int, special_tokens: bool
) -> list[Row]:
    """Truncate texts and add special tokens; with ``special_tokens`` these count in the loss, as unimportant."""
    frame = SpecialTokenFrame.of(classifier.tokenizer, pair=False)
    room = longest - frame.specials
    outside = 0 if special_tokens else IGNORE_INDEX
    head, tail = [outside] * len(frame.before), [outside] * (frame.specials - len(frame.before))
    return [
        {"input_ids": frame.around(ids[:room], ())[0], "labels": [*head, *map(int, marks[:room]), *tail]}
        for ids, marks in texts
    ]


def measure_quality(classifier: TokenClassifier, rows: Sequence[Row], precision: Precision) -> dict[str, float]:
    """Return precision, recall and F1 of "important" over the ordinary (not special) tokens of rows, with baselines.

    ``share`` is the share of important tokens, which is also the precision of marking tokens at random; ``f1_of_all``
    is the F1 of marking every token; ``predicted_share`` is the share of tokens predicted as important; ``loss`` is
    the unweighted mean cross-entropy in nats.
    """
    logits = np.concatenate(classifier.logits([row["input_ids"] for row in rows], precision))
    counted, true = _ordinary_tokens(classifier, rows)
    predicted = logits.argmax(1)[counted] == 1
    hits, total = int((predicted & true).sum()), max(1, int(true.size))
    marked, important = int(predicted.sum()), int(true.sum())
    losses = np.logaddexp(0, (logits[:, 1] - logits[:, 0])[counted] * np.where(true, -1, 1))
    return {
        "precision": hits / marked if marked else 0.0,
        "recall": hits / important if important else 0.0,
        "f1": 2 * hits / (marked + important) if marked + important else 0.0,
        "share": important / total,
        "predicted_share": marked / total,
        "f1_of_all": 2 * important / (total + important) if important else 0.0,
        "loss": float(losses.sum()) / total,
    }


def _ordinary_tokens(classifier: TokenClassifier, rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return which tokens of all rows are not special (tokens,), and which of these are important (ordinary,)."""
    ids, marks = (np.array([entry for row in rows for entry in row[name]]) for name in ("input_ids", "labels"))
    ordinary = ~np.isin(ids, classifier.tokenizer.all_special_ids)
    return ordinary, marks[ordinary] == 1


log = logging.getLogger(__name__)
TOKENS_PER_CHUNK = 200_000
"""Rows are sorted by length within chunks of about this many tokens, which bounds memory."""


def mark_rows(
    classifier: TokenClassifier,
    rows: Sequence[np.ndarray],
    folder: Path,
    *,
    precision: Precision,
    progress: bool = False,
) -> dict[str, Any]:
    """Predict the important tokens of each row and write them to a folder, with constant memory.

    A token is important if class 1 has the higher logit (paper). The important tokens of a row are ranked by that
    logit, for masking with a cap (code). Special tokens are never important.

    Args:
        classifier: The token classifier.
        rows: Token ids with special tokens.
        folder: An existing folder for a :class:`acclimate.parts.masking.token_importance_store.TokenImportanceStore`.
        precision: Precision of the forward pass.
        progress: Show a progress bar.

    Returns:
        Counts as JSON values.
    """
    special = np.array(sorted(classifier.tokenizer.all_special_ids))
    counts = np.zeros(3, dtype=np.int64)

    def marked() -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        read = 0
        total = getattr(rows, "tokens", None)
        with Progress("Finding important tokens", total, unit="tokens", enabled=progress) as bar:
            for part in _iterate_chunks(rows):
                for ids, logits in zip(
                    part, classifier.logits([ids.tolist() for ids in part], precision), strict=True
                ):
                    allowed = ~np.isin(ids, special)
                    ranks = rank_important_tokens((logits[:, 1] > logits[:, 0]) & allowed, logits[:, 1])
                    counts[:] += (allowed.sum(), (ranks > 0).sum(), not ranks.any())
                    yield ids, ranks, int(allowed.sum())
                    read += len(ids)
                bar.update(read)

    TokenImportanceStore.write(folder, marked())
    tokens, important, without = map(int, counts)
    return {
        "texts": len(rows),
        "tokens": tokens,
        "important": important,
        "share": important / max(1, tokens),
        "texts_without": without,
    }


def warn_if_marked_share_is_extreme(summary: dict[str, Any]) -> None:
    """Log a warning if hardly any or nearly all tokens are important; the caller raises an error if none is."""
    if not summary["important"] or MIN_IMPORTANT_SHARE <= summary["share"] <= MAX_IMPORTANT_SHARE:
        return
    few = summary["share"] < MIN_IMPORTANT_SHARE
    log.warning(
        "The token classifier finds %d of the %d tokens of the text important (%.2f %%): %s. %d of %d texts have no "
        "important token.",
        summary["important"],
        summary["tokens"],
        100 * summary["share"],
        "too few to learn from" if few else "masking them leaves too few tokens to predict them from",
        summary["texts_without"],
        summary["texts"],
    )


def _iterate_chunks(rows: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    part: list[np.ndarray] = []
    size = 0
    for index in range(len(rows)):
        row = np.asarray(rows[index])
        part.append(row)
        size += len(row)
        if size >= TOKENS_PER_CHUNK:
            yield part
            part, size = [], 0
    if part:
        yield part
