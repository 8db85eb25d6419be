"""Mixes in a training: realized shares, losses per source, what a mix measures, resuming, and errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from acclimate.corpus import Corpus
from acclimate.corpus.mix.base import AdaptiveMix, History, read_mix
from acclimate.errors import UserError
from acclimate.files import read_json
from acclimate.masking import RandomMasking
from acclimate.models import attach, load_language_model
from acclimate.objectives import LanguageModelling
from acclimate.options import AdaptOptions
from acclimate.training import adapt
from acclimate.training.batches import Collator
from acclimate.training.engine import Engine
from acclimate.training.ledger import SourceLedger
from acclimate.training.mixture import MIX_FILE
from tests.cases import each
from tests.kills import killed
from tests.tiny import TEXTS

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
LAW = Corpus.of([f"they {text} or {text} {number}" for text in TEXTS for number in range(2)])
NEWS = Corpus.of([f"{text} and {number}" for text in TEXTS for number in range(3)])
SHORT = {"batch_size": 6, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}
SOURCES = {"law": LAW, "news": NEWS}


def run(model, out, mix, **options):
    return adapt(model, Corpus.of(DOCUMENTS), "mlm", out, mix=mix, **{**SHORT, "sources": SOURCES, **options})


def log_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


@dataclass(frozen=True)
class Follower(AdaptiveMix):
    """Gives more to the sources with a high loss, and records what it was asked with."""

    name = "follower"
    asked = ()

    @property
    def reads(self):
        return ("train_loss", "heldout_loss")

    def propose(self, history: History) -> np.ndarray:
        type(self).asked = (*self.asked, history)
        loss = np.nan_to_num(history.now.train_loss, nan=1.0) * history.now.heldout_loss
        found = np.exp(loss - loss.max())
        return found / found.sum()


def test_weights_are_realized_and_the_loss_of_each_source_is_recorded(tiny_bert, tmp_path):
    result = run(
        tiny_bert, tmp_path / "out", {"fixed": {"domain": 1, "law": 2, "news": 1}}, steps=36,
        replay=LAW, replay_share=0.2,
    )  # fmt: skip
    assert [text["name"] for text in result.mix] == ["domain text", "law", "news", "memory"]
    assert [text["share"] for text in result.mix] == [0.2, 0.4, 0.2, 0.2]
    for text in result.mix:
        assert text["realized"] == pytest.approx(text["share"], abs=0.02)
    lines = log_lines(tmp_path / "out")
    assert set().union(*(line["source_losses"] for line in lines)) == lines[-1]["mix"].keys()
    assert result.mix[1]["loss"] == pytest.approx(lines[-1]["source_losses"]["law"], abs=1e-4)
    manifest = read_json(tmp_path / "out" / "acclimate.json")
    assert manifest["mix"]["name"] == "fixed" and [one["name"] for one in manifest["sources"]] == ["law", "news"]
    rounds = read_json(tmp_path / "out" / MIX_FILE)
    assert rounds["sources"] == ["domain", "law", "news"] and rounds["mean_weights"] == [0.25, 0.5, 0.25]


def test_the_ledger_adds_up_the_losses_of_the_texts_of_each_source(tiny_bert):
    """Compared with the loss that the model computes for each text by itself, in two steps of micro-batches."""
    loaded = load_language_model(tiny_bert, dropout=0.0)
    attach(loaded.model)
    texts = [np.array(loaded.tokenizer(text)["input_ids"]) for text in DOCUMENTS[:12]]
    sources = {place: place % 3 for place in range(12)}
    collator = Collator.of(loaded.tokenizer, RandomMasking(), loaded.kind, 60)
    engine, expected = Engine(loaded.model, [LanguageModelling()]), np.zeros((2, 3))
    engine.ledger = SourceLedger(3)
    for step in range(2):
        rng = np.random.default_rng(step)
        order = np.argsort([-len(text) for text in texts], kind="stable")
        parts = collator.plan([len(text) for text in texts])
        batches = collator.build(dict(enumerate(texts)), [(order, rng)], parts, sources)
        assert len(batches) > 1
        loss = engine.step(batches)["loss"].item()
        places = iter([place for part in parts for row in part for place in row])
        for batch in batches:
            for row in range(len(batch.masked)):
                ids, labels = batch.masked[row : row + 1], batch.labels[row : row + 1]
                real = batch.text[row] >= 0
                logits = loaded.model(input_ids=ids[:, real]).logits.log_softmax(-1)
                chosen = (labels[0, real] >= 0).nonzero()[:, 0]
                source = sources[next(places)]
                expected[0, source] -= logits[0, chosen, labels[0, real][chosen]].sum().item()
                expected[1, source] += len(chosen)
        if not step:
            assert loss == pytest.approx(expected[0].sum() / expected[1].sum(), rel=1e-5)
            first = engine.ledger.since("mix")
            np.testing.assert_allclose(first, expected[0] / expected[1], rtol=1e-5)
            done = expected.copy()
    engine.step(batches, backward=False)  # what is measured is not recorded
    np.testing.assert_allclose(engine.ledger.total(), expected, rtol=1e-5)
    np.testing.assert_allclose(engine.ledger.since("mix"), (expected - done)[0] / (expected - done)[1], rtol=1e-5)


def test_an_adaptive_mix_sees_the_training_and_its_weights_are_realized(tiny_bert, tmp_path):
    Follower.asked = ()
    result = run(tiny_bert, tmp_path / "out", Follower(every=6), steps=24, replay=NEWS, replay_share=0.1)
    assert [history.step for history in Follower.asked] == [0, 6, 12, 18]
    for number, history in enumerate(Follower.asked):
        assert history.names == ("domain", "law", "news") and history.progress == history.step / 24
        assert len(history.rounds) == number + 1 and history.weights.shape == (number, 3)
        assert np.isfinite(history.measured("heldout_loss")).all()
        assert np.isnan(history.rounds[0].train_loss).all() and history.rounds[0].tokens.sum() == 0
    last = Follower.asked[-1]
    assert (np.diff(last.measured("heldout_loss"), axis=0) < 0).mean() > 0.8  # the model learns
    assert last.measured("train_loss")[1:].mean() == pytest.approx(last.measured("heldout_loss")[1:].mean(), rel=0.2)
    assert result.mix[3]["realized"] == pytest.approx(0.1, abs=0.02)
    for number, text in enumerate(result.mix[:3]):
        assert [step for step, _ in text["weights"]] == [0, 7, 13, 19]
        assert text["realized"] == pytest.approx(text["share"], abs=0.02)
        expected = [0.9 * float(history.weights[-1][number]) for history in Follower.asked[1:]]
        assert [weight for _, weight in text["weights"][:3]] == pytest.approx(expected, abs=1e-4)


def test_a_killed_run_continues_with_the_same_weights(tiny_bert, tmp_path):
    options = {"steps": 12, "save_every": 2}
    whole = run(tiny_bert, tmp_path / "whole", Follower(every=3), **options)
    with killed(7):
        run(tiny_bert, tmp_path / "cut", Follower(every=3), **options)
    cut = run(tiny_bert, tmp_path / "cut", Follower(every=3), **options)
    assert cut.mix == whole.mix and read_json(cut.out / MIX_FILE) == read_json(whole.out / MIX_FILE)
    one, other = load_file(whole.out / "model.safetensors"), load_file(cut.out / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)


@each(
    ("mix", "options", "message"),
    [
        ("fixd", {}, "Unknown mix 'fixd'. Did you mean 'fixed'"),
        ("fixed wiki=1", {}, "Unknown source of the mix 'fixed' 'wiki'"),
        ("fixed", {"sources": None}, "needs text beside the domain text"),
        ("fixed", {"sources": {"domain": LAW}}, "'domain' is the name of the domain text"),
        (None, {}, "'sources' needs a mix"),
        ({"fixed": {"law": 1}}, {"epochs": 1}, "does not read the domain text, so it has no epochs"),
        ("bandit", {"method": "tsdae"}, "reads the language-model loss"),
        ("velocitune", {"sources": {"law": Corpus.of(["a single text"])}}, "'law', which has a single text"),
        ("fixed", {"method": "none"}, "does not train"),
    ],
)
def test_what_does_not_fit_is_explained(tiny_bert, tmp_path, mix, options, message):
    given = {"sources": SOURCES, "method": "mlm", **({} if "epochs" in options else {"steps": 1}), **SHORT, **options}
    with pytest.raises(UserError, match=message):
        adapt(tiny_bert, Corpus.of(DOCUMENTS), out=tmp_path / "out", mix=mix, **given)
    assert not (tmp_path / "out").exists()


def test_options_of_the_command_line():
    given = AdaptOptions("m", mix="fixed domain=0.7 law=0.3", sources={"law": "law.txt"})
    assert given.sources == {"law": "law.txt"}
    assert read_mix(given.mix).weights == {"domain": 0.7, "law": 0.3}
