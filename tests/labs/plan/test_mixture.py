"""Simulated mixtures: single texts and weighted sums are exact, and the search finds a planted optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from acclimate import plan_mixture
from acclimate.base.errors import UserError
from acclimate.base.options import build
from acclimate.evaluation.lm_loss import language_model_loss
from acclimate.labs.plan import mixture
from acclimate.labs.plan.mixture import Simulator, search
from acclimate.labs.plan.options import BudgetOptions, MixtureOptions, RatioOptions
from acclimate.labs.plan.pilots import show_budget, show_mixture, show_ratio
from acclimate.labs.plan.plans import Plan, read_plan
from acclimate.models.loading import load_language_model
from tests.adaptation.test_learned_mixes import sentences
from tests.cases import each

ONE, OTHER = ("food", "service", "waiter"), ("pasta", "pizza", "table")


@pytest.fixture(scope="module")
def made(tiny_bert, tmp_path_factory):
    """A plan of two texts, the base model, and its folder."""
    folder = tmp_path_factory.mktemp("mixture")
    texts = {}
    for name, nouns in (("corpus", ONE), ("wiki", OTHER)):
        texts[name] = folder / f"{name}.txt"
        texts[name].write_text("\n".join(f"{line} {n}" for n, line in enumerate(sentences(nouns, 1500, 1))))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mixture, "STEPS", (0.25,))
        plan = plan_mixture(
            model=str(tiny_bert),
            corpus=str(texts["corpus"]),
            sources={"wiki": str(texts["wiki"])},
            tokens=6_000,
            mixtures=4,
            documents=20,
            max_length=24,
            out=folder / "plan",
            settings={"learning_rate": 3e-3, "batch_size": 8},
            progress=False,
        )
    return plan, tiny_bert, folder / "plan"


def test_a_weight_of_one_is_that_adaptation_and_other_weights_are_sums_of_changes(made, tmp_path):
    _, base, folder = made
    models = [folder / "adapters" / name for name in "01"]
    documents = sentences(ONE, 12, 5)
    simulator = Simulator(models, [documents, sentences(OTHER, 12, 6)], 24)
    for number, model in enumerate(models):
        weights = tuple(np.eye(2)[number].tolist())
        loaded = load_language_model(model)
        found = language_model_loss(loaded.model, documents, tokenizer=loaded.tokenizer, max_length=24)
        assert simulator.measure(weights)[0][0].tolist() == found["per_text"]
    simulator.write(tmp_path, (0.3, 0.7))
    before, one, other, mixed = (load_file(place / "model.safetensors") for place in (base, *models, tmp_path))
    changed = 0
    for name, value in mixed.items():
        expected = before[name] + 0.3 * (one[name] - before[name]) + 0.7 * (other[name] - before[name])
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
        changed += not torch.equal(value, before[name])
    assert changed


def test_the_plan_ranks_the_mixtures_and_is_written(made):
    plan, _, folder = made
    assert read_plan(folder)["weights"] == plan["weights"] and sum(plan["weights"].values()) == pytest.approx(1)
    goals = [row["goal"] for row in plan["rows"]]
    assert goals == sorted(goals) and plan["gain"]["low"] <= plan["gain"]["value"] <= plan["gain"]["high"]
    ends = {row["share of domain"]: row for row in plan["rows"] if row["share of domain"] in (0.0, 1.0)}
    if len(ends) == 2:  # each adaptation is better on its own text
        assert ends[1.0]["loss on domain"] < ends[0.0]["loss on domain"]
        assert ends[1.0]["loss on wiki"] > ends[0.0]["loss on wiki"]
    assert bool(plan["refused"]) == (plan["gain"]["high"] >= 0 and set(plan["weights"].values()) != {0.5})


@each("best", [(0.3, 0.7), (0.62, 0.3, 0.08), (0.1, 0.2, 0.3, 0.4), (1.0, 0.0, 0.0)])
def test_the_search_finds_a_planted_optimum(best):
    tried = search(lambda weights: float(np.sum((np.array(weights) - best) ** 2)), len(best), 16)
    found = min(tried, key=tried.__getitem__)
    assert np.abs(np.array(found) - best).max() < 0.07 and len(tried) < 120
    assert all(sum(weights) == pytest.approx(1, abs=1e-9) and min(weights) >= 0 for weights in tried)
    assert next(iter(tried)) == pytest.approx(np.full(len(best), 1 / len(best)), abs=1e-3)


@each(
    ("match", "more"),
    [
        ("give --source", {"sources": None}),
        ("give --tokens", {"tokens": None}),
        ("is the name of the domain text", {"sources": {"domain": "text.txt"}}),
        ("at least 2,000 tokens", {"tokens": 100}),
        ("--documents must be at least 10", {"documents": 9}),
        ("the plan sets 'out'", {"settings": {"out": "x"}}),
        ("documents are held out", {}),
    ],
)
def test_what_is_missing_is_named(tiny_bert, tmp_path, monkeypatch, match, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("".join(f"good soup {number}\n" for number in range(200)))
    given = {
        "model": str(tiny_bert),
        "corpus": "text.txt",
        "sources": {"wiki": "text.txt"},
        "tokens": 10_000,
        "out": "o",
    }
    with pytest.raises(UserError, match=match):
        plan_mixture(**{**given, **more}, progress=False)


def test_the_next_command_reads_the_texts_as_the_plan_did(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "text"}')
    given = {"model": "m", "corpus": str(file), "text_column": "body", "clean": "html"}
    column, values = f"{file}:body", {"refused": "", "share": {"value": 0.75}, "target_tokens": 9}
    for options, show, more in (
        (build(MixtureOptions, sources={"wiki": str(file)}, **given), show_mixture, ["--source", f"wiki={column}"]),
        (build(RatioOptions, (), general=str(file), **given), show_ratio, ["--replay", f"{column}=0.25"]),
        (build(BudgetOptions, (), price=1, budget=1, task="t.csv", **given), show_budget, ["--task", "t.csv"]),
    ):
        plan = Plan("", {"weights": {"domain": 0.5, "wiki": 0.5}, **values}, [], "", [{"a": 1}], print)
        words = list(map(str, [*show(plan, options)][-1].words))
        assert words[1:7] == ["--model", "m", "--corpus", column, "--clean", "html"] and words[7:9] == more
