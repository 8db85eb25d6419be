"""Trainings whose mix learns: planted sources, every mix from start to end, and a killed run."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.mixture import MixedText, Mixture
from acclimate.adaptation.source_measures import describe_cost, warn_of_delay
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.data.mix.base import read_mix
from acclimate.data.token_dataset import TokenDataset
from acclimate.engine.batches import StepDataset
from tests.cases import each
from tests.kills import killed
from tests.tiny import VOCABULARY

WORDS = [word for word in VOCABULARY if len(word) > 1 and word.isalpha()]
ADJECTIVES = ("good", "bad", "fresh", "cold", "slow", "quick")
OPTIONS = {"batch_size": 12, "max_length": 24, "learning_rate": 3e-3, "precision": "fp32", "progress": False}


def sentences(nouns, count, seed):
    rng = np.random.default_rng(seed)
    return [
        " and ".join(f"the {rng.choice(nouns)} is {rng.choice(ADJECTIVES)}" for _ in range(3)) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def texts():
    """A domain, a source that is like it, and one of random words."""
    rng = np.random.default_rng(0)
    return {
        "domain": Corpus.of(sentences(("food", "service", "waiter", "pasta", "pizza", "table"), 120, 1)),
        "like": Corpus.of(sentences(("pasta", "pizza", "table", "menu", "wine", "soup"), 120, 2)),
        "noise": Corpus.of([" ".join(rng.choice(WORDS, 12)) for _ in range(120)]),
    }


def run(model, texts, out, mix, steps, **options):
    sources = {name: text for name, text in texts.items() if name != "domain"}
    result = adapt(model, texts["domain"], "lm", out, mix=mix, sources=sources, steps=steps, **OPTIONS, **options)
    return result, read_json(out / "mix.json")


@pytest.fixture(scope="module")
def planted(tiny_bert, texts, tmp_path_factory):
    """A training with DoGE, whose target is the domain."""
    return run(tiny_bert, texts, tmp_path_factory.mktemp("doge") / "out", "doge target=domain strength=15 every=6", 24)


@pytest.mark.needs("doge")
def test_a_useless_source_goes_to_zero_under_doge(planted):
    result, record = planted
    weights = np.array([one["weights"] for one in record["rounds"]])
    assert record["sources"] == ["domain", "like", "noise"]
    assert weights[-1, 2] < min(0.01, weights[0, 2]) and weights[-1, :2].min() > 0.2
    read = {text["source"]: text["realized"] for text in result.mix}
    assert read["noise"] < 0.2 < min(read["domain"], read["like"])


@pytest.mark.needs("doge", "doremi")
def test_doremi_reads_more_where_the_reference_is_better(planted, tiny_bert, texts, tmp_path):
    """The reference has hardly read the noise, so it is better only on the other two sources."""
    mix = {"doremi": {"reference": str(planted[0].out), "every": 1}}
    _, record = run(tiny_bert, texts, tmp_path / "out", mix, 2)
    excess = record["rounds"][0]["excess_loss"]
    assert min(excess[:2]) > 0.5 and excess[2] < min(excess[:2])
    assert record["rounds"][-1]["weights"][2] < 1 / 4


@pytest.mark.needs("bandit")
def test_the_bandit_weights_each_source_with_each_objective(tiny_bert, tiny_llama, texts, tmp_path, monkeypatch):
    labelled = np.zeros((4, 2))

    class Recorded(StepDataset):
        def __getitem__(self, step):
            for batch in (found := super().__getitem__(step)):
                source = np.where(batch.text >= 0, batch.source.numpy()[batch.text], -1)
                for number in range(4):
                    own = source == number
                    labelled[number] += (batch.labels.numpy()[own] >= 0).sum(), own.sum()
            return found

    monkeypatch.setattr(importlib.import_module("acclimate.adaptation.adapt"), "StepDataset", Recorded)
    given = {name: texts[name] for name in ("domain", "like")}
    objectives = "random rate=0.05, random rate=0.9 mask=1 random=0"
    mix = {"bandit": {"objectives": objectives, "every": 6}}
    result, record = run(tiny_bert, given, tmp_path / "out", mix, 30)
    few, many = (one.strip() for one in objectives.split(","))
    assert record["sources"] == [f"{name} ({one})" for name in ("domain", "like") for one in (few, many)]
    weights = np.array([one["weights"] for one in record["rounds"]])
    assert weights.shape == (5, 4) and np.ptp(weights[-1]) > 0 and weights.min() >= 0.05
    shares = labelled[:, 0] / labelled[:, 1]  # the first and last token of each text are never masked
    assert shares[[0, 2]] == pytest.approx(0.05, abs=0.02) and shares[[1, 3]] == pytest.approx(0.8, abs=0.06)
    assert len({text["name"] for text in result.mix}) == 4
    run(tiny_bert, given, tmp_path / "out", mix, 30)  # finished: nothing is read again
    assert (shares == labelled[:, 0] / labelled[:, 1]).all()
    alone, _ = run(tiny_bert, {"domain": texts["domain"]}, tmp_path / "alone", mix, 1)
    assert len(alone.mix) == 2
    for model, more, said in (
        (tiny_bert, {"masking": "span"}, "remove --masking"),
        (tiny_llama, {}, "is no objective of its own"),
    ):
        with pytest.raises(UserError, match=said):
            run(model, given, tmp_path / "refused", "bandit objectives=random,span", 1, **more)


POLICY = """
def act(state):
    now = state["rounds"][-1]
    first = state["step"] == 0
    values = [1.0] * 3 if first else now["train_loss"]
    for name in ("heldout_loss", "reference_loss", "excess_loss", "gradient_norms"):
        values = [value + abs(more) for value, more in zip(values, now[name])]
    return [value + abs(row[0]) for value, row in zip(values, now["gradients"])]
"""


@pytest.mark.needs("agent")
def test_weights_hold_from_the_step_after_the_next_one_and_for_no_text_that_was_read(
    tiny_bert, texts, tmp_path, monkeypatch
):
    """So that a resumed run, which knows all weights from the start, reads the same texts."""
    (tmp_path / "late_policies.py").write_text(
        "def act(state): return [1, state['step'] % 2, (state['step'] + 1) % 2]"
    )
    read, data = {}, []

    class Recorded(StepDataset):
        def __getitem__(self, step):
            read[step] = self.indices(step)
            data.append(self)
            return super().__getitem__(step)

    monkeypatch.setattr(importlib.import_module("acclimate.adaptation.adapt"), "StepDataset", Recorded)
    mix = f"agent policy={tmp_path / 'late_policies.py'}:act observe=train_loss every=1"
    result, record = run(tiny_bert, texts, tmp_path / "out", mix, 6)
    assert sorted(read) == [*range(6)] and [one["step"] for one in record["rounds"]] == [*range(6)]
    assert [step for step, _ in result.mix[0]["weights"]] == [0, 2, 3, 4, 5]
    for step, indices in read.items():
        assert data[-1].indices(step) == indices, step


@pytest.mark.slow
def test_a_killed_run_continues_with_the_same_mix(tiny_bert, texts, tmp_path):
    """An agent observes all that can be measured, so each measurement must be repeated exactly."""
    (tmp_path / "policies.py").write_text(POLICY)
    measures = "train_loss,heldout_loss,reference_loss,excess_loss,gradients"
    mix = f"agent policy={tmp_path / 'policies.py'}:act observe={measures} every=2"
    _, record = run(tiny_bert, texts, tmp_path / "whole", mix, 6)
    with killed(5):
        run(tiny_bert, texts, tmp_path / "killed", mix, 6, save_every=3)
    _, again = run(tiny_bert, texts, tmp_path / "killed", mix, 6, save_every=3)
    assert again == record
    assert len(record["rounds"]) == 3 and record["rounds"][1]["weights"] != record["rounds"][2]["weights"]
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


@pytest.mark.needs("doge", "velocitune")
@each(
    ("given", "said"),
    [
        (
            "doge every=4 texts=10",
            "reads 30 texts forward and backward; the 4 steps until the next one read 48 texts",
        ),
        ("velocitune every=5", "reads 18 held-out texts; the 5 steps until the next one read 60 texts"),
    ],
)
def test_the_cost_of_a_proposal_is_said(texts, given, said):
    mixed = [
        MixedText(name, TokenDataset.of([[1] * 8] * 120), heldout=TokenDataset.of([[1] * 8] * 6)) for name in texts
    ]
    assert describe_cost(Mixture(mixed, 12, 0, mix=read_mix(given))).endswith(f"{said}.")


@pytest.mark.needs("bandit", "doge", "velocitune")
@each(
    ("given", "steps", "first"),
    [("bandit", 100, "100"), ("bandit", 101, None), ("velocitune every=5", 20, "20"), ("doge every=50", 1, None)],
)
def test_a_training_that_is_too_short_for_its_mix_is_said(given, steps, first, caplog):
    caplog.clear()
    mixture = Mixture([MixedText(name, TokenDataset.of([[1] * 8] * 120)) for name in "ab"], 12, 0, mix=read_mix(given))
    mixture.steps = steps
    warn_of_delay(mixture)
    assert (f"changes no weight before step {first}" in caplog.text) if first else not caplog.text


@pytest.mark.needs("doremi")
def test_a_reference_with_another_vocabulary_is_refused(tiny_llama, tiny_bert, texts, tmp_path):
    with pytest.raises(UserError, match="reads other tokens"):
        run(tiny_bert, texts, tmp_path / "out", f"doremi reference={tiny_llama}", 2)
