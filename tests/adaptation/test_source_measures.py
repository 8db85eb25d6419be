"""Inner products of the gradients of sources, and their excess loss, against plain autograd."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from acclimate.adaptation.source_measures import (
    SourceMeter,
    SourceSampler,
    measure_excess_loss,
    measure_gradient_products,
)
from acclimate.base.errors import UserError
from acclimate.base.files import read_json, write_json
from acclimate.engine.batches import Collator, SharedTexts
from acclimate.engine.distributed import ProcessGroup, join_process_group, leave_process_group
from acclimate.engine.steps import Engine
from acclimate.models.kinds import MASKED
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import LanguageModelling
from tests.adaptation.helpers import rows
from tests.adaptation.together import launch
from tests.tiny import tiny_model, tiny_tokenizer

SIZES = (10, 7, 4)


def make_sampler(group):
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.4), MASKED, 40)
    texts = [np.asarray(row) for row in rows(3)][: sum(SIZES)]
    return SourceSampler(SharedTexts(texts, collator, (0, 6), group), SIZES, 6, 0)


@pytest.fixture(scope="module")
def sampler():
    return make_sampler(ProcessGroup())


def exact_model(seed=0):
    model = tiny_model("bert", seed=seed, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return model, copy.deepcopy(model)


def token_losses(model, batches):
    found = []
    for batch in batches:
        logits = model(input_ids=batch.masked, attention_mask=(batch.text >= 0).long()).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.labels, reduction="none")
        found.append(losses[batch.labels >= 0])
    return torch.cat(found)


def plain_gradient(model, batches):
    parts = torch.autograd.grad(
        token_losses(model, batches).mean(), [*model.parameters()], allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.flatten() for part in parts]).double()


def test_gradient_products_equal_autograd(sampler):
    ours, plain = exact_model()
    attach(ours)
    ours.eval()
    before = torch.get_rng_state()
    samples = sampler.draw(3)
    found = measure_gradient_products(Engine(ours, [LanguageModelling()]), samples)
    halves = [[plain_gradient(plain, half) for half in pair] for pair in samples]
    means = [(first + second) / 2 for first, second in halves]
    for row, mine in enumerate(means):
        assert found.norms[row] == pytest.approx(float(mine.norm()), rel=1e-4)
        for column, other in enumerate(means):
            expected = halves[row][0] @ halves[row][1] if row == column else mine @ other
            assert found.products[row, column] == pytest.approx(float(expected), rel=1e-3, abs=1e-5)
    assert all(weight.grad is None for weight in ours.parameters())
    assert not ours.training and torch.equal(before, torch.get_rng_state())


def test_loss_scale_does_not_change_the_products(sampler):
    model, _ = exact_model()
    attach(model)
    engine = Engine(model, [LanguageModelling()])
    plain = measure_gradient_products(engine, sampler.draw(0))
    engine.loss_scale = 1024.0
    np.testing.assert_allclose(measure_gradient_products(engine, sampler.draw(0)).products, plain.products, rtol=1e-4)


def test_excess_loss_is_clipped_per_token(sampler):
    (student, plain), (reference, other) = exact_model(0), exact_model(1)
    samples = sampler.draw(0)
    engines = []
    for model in (student, reference):
        attach(model)
        engines.append(Engine(model, [LanguageModelling()]))
    found = measure_excess_loss(*engines, samples)
    for number, (first, second) in enumerate(samples):
        with torch.no_grad():
            mine, theirs = (token_losses(model.eval(), [*first, *second]) for model in (plain, other))
        assert found.loss[number] == pytest.approx(float(mine.mean()), rel=1e-5)
        assert found.reference[number] == pytest.approx(float(theirs.mean()), rel=1e-5)
        assert found.excess[number] == pytest.approx(float((mine - theirs).clamp(min=0).mean()), rel=1e-4)
        assert found.excess[number] > max(
            0.0, found.loss[number] - found.reference[number]
        )  # not a mean that is clipped
    assert measure_excess_loss(engines[0], engines[0], samples).excess.tolist() == [0, 0, 0]


def test_samples_are_of_their_source_and_a_function_of_the_draw(sampler, monkeypatch):
    read = []
    monkeypatch.setattr(sampler._texts, "read", lambda place, indices: read.append((place, indices)) or [])
    for number in (0, 1, 0):
        sampler.draw(number)
    draws = [read[start : start + 6] for start in (0, 6, 12)]
    assert draws[0] == draws[2] != draws[1]
    ends = np.cumsum(SIZES)
    for draw in draws:
        for source in range(3):
            (place, first), (next_place, second) = draw[2 * source : 2 * source + 2]
            texts = first + second
            assert len(set(texts)) == len(texts) == min(6, SIZES[source])
            assert all(ends[source] - SIZES[source] <= text < ends[source] for text in texts)
            assert next_place == place + 1
    assert len({place for place, _ in draws[0] + draws[1]}) == 12  # other masks each time


def test_a_source_that_cannot_be_halved_is_refused(sampler):
    with pytest.raises(UserError, match="two halves"):
        SourceSampler(sampler._texts, (5, 1), 6, 0)


def measure_all(group):
    """Return all measurements of a sample, as lists."""
    engines = []
    for seed in (0, 1):
        model, _ = exact_model(seed)
        attach(model)
        engines.append(Engine(model, [LanguageModelling()], group=group))
    meter = SourceMeter(engines[0], make_sampler(group), ("gradients", "excess_loss"), engines[1], 0)
    return {name: values.tolist() for name, values in meter.measure(1).items()}


def measure_in_a_process(out):
    group = join_process_group()
    write_json(out / f"{group.rank}.json", measure_all(group))
    leave_process_group()


@pytest.mark.slow
def test_two_processes_measure_what_one_does(tmp_path):
    launch(measure_in_a_process, tmp_path)
    found, alone = [read_json(tmp_path / f"{rank}.json") for rank in range(2)], measure_all(ProcessGroup())
    assert found[0] == found[1]
    assert found[0].keys() == alone.keys() == {"gradients", "gradient_norms", "excess_loss"}
    for name, values in alone.items():
        np.testing.assert_allclose(found[0][name], values, rtol=1e-3, atol=1e-5)
