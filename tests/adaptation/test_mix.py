"""Mixes in a training: realized shares, losses per source, what a mix measures, resuming, and errors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.inputs import Budget
from acclimate.adaptation.mix_sources import divide
from acclimate.adaptation.mixture import MIX_FILE, MixedText, Mixture
from acclimate.adaptation.options import AdaptOptions
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.data.mix.base import DOMAIN, AdaptiveMix, History, read_mix
from acclimate.data.token_dataset import TokenDataset
from acclimate.engine.batches import Collator
from acclimate.engine.callbacks import Clock
from acclimate.engine.ledger import SourceLedger
from acclimate.engine.steps import Engine
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling
from acclimate.report.timing import mixtures
from tests.accelerator import emulated
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
        tiny_bert, tmp_path / "out", {"fixed": {"domain": 1, "law": 2, "news": 1}}, steps=24,
        replay={LAW: 0.2},
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
    card = (tmp_path / "out" / "README.md").read_text()
    assert "The mix `fixed` divided" in card and "| law | 40.0% | " in card and "| replayed text 3 | 20.0% | " in card
    table = mixtures(result.as_results())
    assert [(row[3].text, row[4].value) for row in table.rows] == [
        (text["name"], 100 * text["share"]) for text in result.mix
    ]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-2)])
def test_the_ledger_adds_up_the_losses_of_the_texts_of_each_source(tiny_bert, precision, tolerance):
    """Compared with the loss that the model computes for each text by itself, in two steps of micro-batches."""
    loaded = load_language_model(tiny_bert, dropout=0.0)
    attach(loaded.model)
    texts = [np.array(loaded.tokenizer(text)["input_ids"]) for text in DOCUMENTS[:12]]
    sources = {place: place % 3 for place in range(12)}
    collator = Collator.of(loaded.tokenizer, RandomMasking(), loaded.kind, 60)
    engine, expected = Engine(loaded.model, [LanguageModelling()], precision), np.zeros((2, 3))
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
            assert loss == pytest.approx(expected[0].sum() / expected[1].sum(), rel=tolerance)
            mine = engine.ledger.total()
            assert loss == pytest.approx(mine[0].sum() / mine[1].sum(), rel=1e-6), "in full precision"
            first = engine.ledger.since("mix")
            np.testing.assert_allclose(first, expected[0] / expected[1], rtol=tolerance)
            done = expected.copy()
    engine.step(batches, backward=False)  # what is measured is not recorded
    np.testing.assert_allclose(engine.ledger.total(), expected, rtol=tolerance)
    np.testing.assert_allclose(engine.ledger.since("mix"), (expected - done)[0] / (expected - done)[1], rtol=tolerance)


def test_an_adaptive_mix_sees_the_training_and_its_weights_are_realized(tiny_bert, tmp_path):
    Follower.asked = ()
    result = run(tiny_bert, tmp_path / "out", Follower(every=6), steps=24, replay={NEWS: 0.1})
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
    options = {"steps": 8, "save_every": 2}
    whole = run(tiny_bert, tmp_path / "whole", Follower(every=3), **options)
    with killed(5):
        run(tiny_bert, tmp_path / "cut", Follower(every=3), **options)
    cut = run(tiny_bert, tmp_path / "cut", Follower(every=3), **options)
    assert cut.mix == whole.mix and read_json(cut.out / MIX_FILE) == read_json(whole.out / MIX_FILE)
    one, other = load_file(whole.out / "model.safetensors"), load_file(cut.out / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.needs("phases")
def test_phases_follow_the_time_of_a_time_budget(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(Clock, "spent", property(lambda clock: min(1.0, clock.steps / 12)))
    monkeypatch.setattr(Clock, "steps", 0, raising=False)
    monkeypatch.setattr(Clock, "synchronize", lambda clock: setattr(clock, "steps", clock.steps + 1))
    result = run(tiny_bert, tmp_path / "out", {"phases": ["law", "law+news", "domain"]}, max_minutes=1)
    assert result.steps == 12
    assert [step for step, _ in result.mix[0]["weights"]] == [0, 5, 9]
    assert read_json(tmp_path / "out" / MIX_FILE)["mean_weights"][0] == pytest.approx(3 / 12, abs=0.05)
    for text in result.mix:
        assert text["realized"] == pytest.approx(text["share"], abs=0.02)


def test_an_accelerator_reads_and_measures_what_a_cpu_does(tiny_bert, tmp_path):
    options = {"steps": 4, "dropout": 0.0, "save_every": 2}
    here = run(tiny_bert, tmp_path / "here", Follower(every=2), **options)
    with emulated(bf16=False) as accelerator:
        there = run(tiny_bert, tmp_path / "there", Follower(every=2), **options)
        assert accelerator.used
    for one, other in zip(here.mix, there.mix, strict=True):
        assert one["tokens"] == other["tokens"] and one.get("loss") == pytest.approx(other.get("loss"), abs=1e-3)


@pytest.mark.needs("bandit", "tsdae", "velocitune")
@each(
    ("mix", "options", "message"),
    [
        ("fixd", {}, "Unknown mix 'fixd'. Did you mean 'fixed'"),
        ("fixed wiki=1", {}, "Unknown source of the mix 'fixed' 'wiki'"),
        ("fixed", {"sources": None}, "needs text in addition to the domain text"),
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


def rows_of(count, seed):
    """Documents of different lengths, some of several rows."""
    rng = np.random.default_rng(seed)
    documents = np.sort(rng.integers(0, max(2, count // 2), count))
    return TokenDataset.of([[1] * int(length) for length in rng.integers(2, 30, count)], document=documents.tolist())


def mixture_of(mix, sizes=(60, 40, 90)):
    names = ("domain text", "law", "news")
    texts = [
        MixedText(name, rows_of(size, number), key=DOMAIN if not number else name, parent=number)
        for number, (name, size) in enumerate(zip(names, sizes, strict=False))
    ]
    return Mixture([part for text in texts for part in divide(text, mix, 0)], 8, 0, mix=mix)


@pytest.mark.needs("phases")
@pytest.mark.parametrize("budget", [Budget(steps=90), Budget(tokens=10_000), Budget(epochs=2.0)], ids=str)
def test_each_phase_reads_its_sources_alone_and_the_budget_is_kept(budget):
    mixture = mixture_of(read_mix("phases chain=news,news+domain,domain+law lengths=1,1,1"))
    steps = mixture.plan(budget, progress=False)
    ends = [round(steps * part / 3) for part in (1, 2, 3)]
    read = {phase: set() for phase in range(3)}
    for step in range(steps):
        phase = next(number for number, end in enumerate(ends) if step < end)
        read[phase] |= {mixture.rows.source(index) for index in mixture.of(step)}
    assert read == {0: {2}, 1: {0, 2}, 2: {0, 1}}
    found = mixture.describe(steps)
    for text in found:
        assert text["realized"] == pytest.approx(text["share"], abs=0.01)
        assert [step for step, _ in text["weights"]] == [0, *ends[:2]]
    if budget.tokens:
        assert sum(text["tokens"] for text in found) == pytest.approx(budget.tokens, rel=0.03)
    if budget.epochs:
        assert found[0]["epochs"] == pytest.approx(budget.epochs, abs=0.2)


@pytest.mark.needs("lengths")
@settings(deadline=None, max_examples=10)
@given(st.integers(5, 60), st.sampled_from([0.5, 0.8]))
def test_long_documents_of_each_source_get_their_share(threshold, share):
    mixture = mixture_of(read_mix({"lengths": {"threshold": threshold, "share": share, "weights": "equal"}}))
    mixture.plan(Budget(steps=200), progress=False)
    tokens = dict.fromkeys(range(3), 0.0)
    for text in mixture.describe(200):
        assert text["realized"] == pytest.approx(text["share"], abs=0.02)
    for text, found in zip(mixture.texts, mixture.describe(200), strict=True):
        lengths = np.bincount(text.rows.document, text.rows.lengths)
        assert ((lengths[np.unique(text.rows.document)] > threshold) == ("(long)" in text.name)).all()
        tokens[text.parent] += found["tokens"]
    whole = sum(tokens.values())
    assert [count / whole for count in tokens.values()] == pytest.approx([1 / 3] * 3, abs=0.02)


@pytest.mark.needs("bandit")
@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=60), st.integers(0, 3))
def test_text_that_a_mix_measures_on_is_not_trained_on(counts, seed):
    documents = [number for number, count in enumerate(counts) for _ in range(count)]
    rows = TokenDataset.of([[1, 2, place] for place in range(len(documents))], document=documents)
    (text,) = divide(MixedText("law", rows, key="law", parent=1), read_mix("bandit loss=heldout"), seed)
    kept, held = ({int(row[2]) for row in part} for part in (text.rows, text.heldout))
    assert kept | held == set(range(len(rows))) and not kept & held and kept and held
    assert len(held) <= max(4, 0.1 * len(rows))
    if len(counts) >= 20:
        assert not {documents[place] for place in kept} & {documents[place] for place in held}


@pytest.mark.slow
def test_the_tail_starts_from_the_checkpoint_of_another_training(tiny_bert, tmp_path, monkeypatch):
    """The result is that of the whole training, and the steps before the tail are not repeated."""
    mix = {"upsample": {"sources": "law", "tail": 0.25, "start": "equal"}}
    options = {"steps": 8, "replay": {NEWS: 0.1}}
    whole = run(tiny_bert, tmp_path / "whole", {"upsample": {**mix["upsample"], "without": "news"}}, **options)
    run(tiny_bert, tmp_path / "all", {"upsample": {**mix["upsample"], "reuse": True}}, **options)
    taken, step = [], Engine.step
    monkeypatch.setattr(
        Engine, "step", lambda engine, batches, **given: taken.append(1) or step(engine, batches, **given)
    )
    reused = {"upsample": {**mix["upsample"], "without": "news", "reuse": True}}
    short = run(tiny_bert, tmp_path / "short", reused, **options)
    assert len(taken) == 2
    assert short.mix == whole.mix and short.tokens == whole.tokens and short.losses == whole.losses
    assert len(log_lines(short.out)) == len(log_lines(whole.out))
    one, other = load_file(whole.out / "model.safetensors"), load_file(short.out / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)
    run(tiny_bert, tmp_path / "other", reused, **{**options, "seed": 1})
    run(tiny_bert, tmp_path / "longer", {"upsample": {**reused["upsample"], "tail": 0.5}}, **options)
    assert len(taken) == 2 + 8 + 8
