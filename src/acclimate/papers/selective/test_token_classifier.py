"""The token classifier: training, its quality figures, and predictions on a corpus."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.data.token_dataset import TokenDataset
from acclimate.papers.selective import stages, token_classifier
from acclimate.papers.selective.options import TokenTrainingOptions
from acclimate.papers.selective.token_classifier import (
    IGNORE_INDEX,
    load_token_classifier,
    make_rows,
    make_weighted_loss,
    mark_rows,
    measure_quality,
    train_token_classifier,
    weighted_items,
)
from acclimate.parts.masking.token_importance_store import TokenImportanceStore
from tests.cases import each
from tests.papers.classifiers import ids_of
from tests.tiny import ENCODERS, VOCABULARY, tiny_tokenizer

GOOD, BAD, THE, SOUP = ids_of("good", "bad", "the", "soup")
IMPORTANT = {GOOD, BAD}
FAST = TokenTrainingOptions(epochs=6, learning_rate=5e-3, batch_size=8)


def texts(count=60, seed=0):
    """Return random texts in which "good" and "bad" are important."""
    rng = np.random.default_rng(seed)
    words = [GOOD, BAD, THE, SOUP, *ids_of("food", "wine", "and", "was")]
    made = [rng.choice(words, rng.integers(2, 12)).tolist() for _ in range(count)]
    return [(ids, [token in IMPORTANT for token in ids]) for ids in made]


@pytest.fixture(scope="module")
def trained(tiny_bert):
    return train_token_classifier(tiny_bert, texts(), FAST, seed=0, precision="fp32")


def test_training_reports_the_quality_on_held_out_texts(trained):
    _, summary = trained
    assert summary["held_out_texts"] == 6
    assert summary["train_texts"] == 54
    assert summary["f1"] > 0.95 > summary["f1_of_all"]
    assert 0.1 < summary["share"] < 0.5


def test_the_same_seed_gives_the_same_weights(trained, tiny_bert):
    again, summary = train_token_classifier(tiny_bert, texts(), FAST, seed=0, precision="fp32")
    assert summary == trained[1]
    pairs = zip(again.model.parameters(), trained[0].model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_predictions_do_not_depend_on_the_batch(trained):
    rows = [row["input_ids"] for row in make_rows(texts(20, 1), trained[0], 80, False)]
    together = trained[0].logits(rows, "fp32")
    for row, found in zip(rows, together, strict=True):
        np.testing.assert_allclose(trained[0].logits([row], "fp32")[0], found, atol=1e-5)


def test_the_last_layer_runs_in_fp32_under_autocast(trained):
    """In bfloat16, the two logits of a token are often equal, and "other" would win all ties."""
    rows = [row["input_ids"] for row in make_rows(texts(20, 1), trained[0], 80, False)]
    logits = torch.from_numpy(np.concatenate(trained[0].logits(rows, "bf16")))
    assert (logits != logits.bfloat16().float()).float().mean() > 0.9


def test_the_loss_is_a_weighted_mean_over_tokens(trained):
    classifier = trained[0]
    classifier.model.eval()
    batch = classifier.collate(make_rows(texts(5, 2), classifier, 80, True))
    value = make_weighted_loss(1.5)(classifier.model, dict(batch), 0)
    logits = classifier.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    total = weights = 0.0
    for row, marks in zip(logits, batch["labels"], strict=True):
        for scores, mark in zip(row, marks, strict=True):
            if mark == IGNORE_INDEX:
                continue
            weight = 1.5 if mark == 1 else 1.0
            total = total - weight * torch.log(torch.exp(scores[mark]) / torch.exp(scores).sum())
            weights += weight
    torch.testing.assert_close(value, total / weights)
    assert weighted_items(1.5)(batch, 0) == weights
    gradients = []
    for loss in (value, total / weights):
        classifier.model.zero_grad()
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in classifier.model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_count_in_the_loss_only_with_the_option(trained, special):
    (row,) = make_rows([([GOOD, THE], [True, False])], trained[0], 80, special)
    outside = 0 if special else IGNORE_INDEX
    assert row == {"input_ids": [2, GOOD, THE, 3], "labels": [outside, 1, 0, outside]}
    (cut,) = make_rows([([GOOD] * 50, [True] * 50)], trained[0], 10, special)
    assert len(cut["input_ids"]) == len(cut["labels"]) == 10


def test_quality_counts_ordinary_tokens(trained, monkeypatch):
    rows = make_rows([([GOOD, THE, BAD, SOUP], [True, True, False, False])], trained[0], 80, True)
    logits = np.array([[0, 9], [0, 1], [1, 0], [0, 1], [1, 0], [0, 9]], dtype=np.float32)
    monkeypatch.setattr(trained[0], "logits", lambda *_: [logits])
    found = measure_quality(trained[0], rows, "fp32")
    loss = np.mean([np.log1p(np.exp(gap)) for gap in (-1, 1, 1, -1)])  # wrong minus right logit of each ordinary token
    assert found == pytest.approx(
        {"precision": 0.5, "recall": 0.5, "f1": 0.5, "share": 0.5, "predicted_share": 0.5, "f1_of_all": 2 / 3}
        | {"loss": loss}
    )


def test_the_loss_breaks_ties_between_epochs_of_equal_f1(tiny_bert, monkeypatch):
    """F1 is 0 until an important token is found, so the first epoch must not win by default."""
    losses = iter([3.0, 1.0, 2.0, 1.0])
    monkeypatch.setattr(token_classifier, "measure_quality", lambda *_: {"f1": 0.0, "loss": next(losses)})
    options = TokenTrainingOptions(epochs=3, batch_size=8)
    _, summary = train_token_classifier(tiny_bert, texts(16), options, seed=0, precision="fp32")
    assert summary["epoch"] == 2


def test_the_last_epoch_is_kept_if_no_held_out_token_is_important(tiny_bert):
    made = texts(20)
    for place in np.random.default_rng([0, 5]).permutation(20)[:2]:  # the held-out texts
        made[place] = [THE, SOUP, VOCABULARY["[UNK]"]], [False, False, True]
    options = TokenTrainingOptions(epochs=12, learning_rate=5e-3, batch_size=8)
    classifier, summary = train_token_classifier(tiny_bert, made, options, seed=0, precision="fp32")
    assert (summary["f1"], summary["share"], summary["epoch"]) == (0, 0, 12)
    assert measure_quality(classifier, make_rows(made, classifier, 80, False), "fp32")["f1"] > 0.9


def test_mark_rows_ranks_the_predicted_tokens(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("acclimate.papers.selective.token_classifier.TOKENS_PER_CHUNK", 40)
    corpus = TokenDataset.of([[2, *ids, 3] for ids, _ in texts(30, 3)] + [[2, THE, VOCABULARY["[UNK]"], 3]])
    summary = mark_rows(trained[0], corpus, tmp_path, precision="fp32")
    marks = TokenImportanceStore.load(tmp_path)
    important = without = 0
    for row in corpus:
        (logits,) = trained[0].logits([row.tolist()], "fp32")
        expected = [score[1] > score[0] and token > 4 for token, score in zip(row, logits, strict=True)]
        ranks = marks.lookup(row)
        assert (ranks > 0).tolist() == expected
        best = np.flatnonzero(ranks == 1)
        assert not any(expected) or logits[best[0], 1] == max(logits[expected, 1])
        important, without = important + sum(expected), without + (not any(expected))
    assert (summary["important"], summary["texts_without"], summary["texts"]) == (important, without, 31)
    assert summary["tokens"] == sum(len(ids) for ids, _ in texts(30, 3)) + 1


def test_a_saved_classifier_loads_with_the_same_predictions(trained, tmp_path):
    trained[0].save(tmp_path)
    again = load_token_classifier(tmp_path)
    row = [2, GOOD, THE, 3]
    assert (again.logits([row], "fp32")[0] == trained[0].logits([row], "fp32")[0]).all()


@each(
    ("count", "options", "message"),
    [
        (1, {}, "at least 2"),
        (9, {"class_weight": 0}, "class_weight"),
        (9, {"learning_rate": float("inf")}, "learning_rate"),
        (9, {"held_out": 1.0}, "held_out"),
        (9, {"max_length": 3}, "Token classifier: max_length=3"),
    ],
)
def test_invalid_options_and_too_few_texts_are_errors(tiny_bert, count, options, message):
    with pytest.raises(UserError, match=message):
        train_token_classifier(tiny_bert, texts(count), TokenTrainingOptions(**options), seed=0, precision="fp32")


@each("kind", sorted(ENCODERS))
def test_every_architecture_trains(encoders, kind):
    fast = TokenTrainingOptions(epochs=1, batch_size=8)
    _, summary = train_token_classifier(encoders[kind], texts(16), fast, seed=0, precision="fp32")
    assert 0 <= summary["f1"] <= 1
    assert tiny_tokenizer().pad_token_id == 0


def test_marking_hardly_any_token_logs_a_warning(caplog):
    summary = {"texts": 50, "tokens": 1000, "important": 1, "share": 0.001, "texts_without": 49}
    with caplog.at_level(logging.WARNING):
        token_classifier.warn_if_marked_share_is_extreme(summary)
        token_classifier.warn_if_marked_share_is_extreme(
            {**summary, "important": 0, "share": 0.0}
        )  # the caller raises an error
        token_classifier.warn_if_marked_share_is_extreme({**summary, "important": 200, "share": 0.2})
    (message,) = caplog.messages
    assert "1 of the 1000 tokens" in message and "49 of 50 texts" in message


def test_a_token_classifier_no_better_than_marking_everything_logs_a_warning(caplog):
    summary = {
        "f1": 0.3, "f1_of_all": 0.4, "held_out_texts": 9, "precision": 0.2,
        "recall": 0.6, "share": 0.25, "predicted_share": 0.7,
    }  # fmt: skip
    with caplog.at_level(logging.WARNING):
        stages._warn_if_useless(summary)
        stages._warn_if_useless({**summary, "f1": 0.5})
    (message,) = caplog.messages
    assert "F1 0.300 on 9 held-out texts, against 0.400" in message
