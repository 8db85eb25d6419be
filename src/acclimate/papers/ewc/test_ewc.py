"""EWC over two domains of a tiny model, and the mathematics of what it carries."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.carried import CARRIED_TENSORS, Carried
from acclimate.base.errors import UserError
from acclimate.papers.ewc import method as ewc
from acclimate.papers.ewc.method import add_quadratic
from tests.cases import each
from tests.papers.domains import FIRST, SECOND, SHORT, weights


@each("decay", [1.0, 0.25])
def test_the_carried_quadratic_is_the_sum_of_those_of_all_domains(decay):
    """Gradients of explicit sums by autograd; a weight that did not train in some domain has no term for it."""
    torch.manual_seed(0)
    domains = [
        ({"a": torch.rand(3, 2), "b": torch.rand(4)}, {"a": torch.randn(3, 2), "b": torch.randn(4)}) for _ in "123"
    ]
    del domains[1][0]["b"]
    domains[0][0]["a"][0] = domains[1][0]["a"][0] = domains[2][0]["a"][0] = 0  # the loss never depends on it
    fisher, anchors = {}, {}
    for new, at in domains:
        fisher, anchors = add_quadratic(fisher, anchors, new, at, decay)
    free = {"a": torch.randn(3, 2, requires_grad=True), "b": torch.randn(4, requires_grad=True)}
    total = 0
    for age, (new, at) in enumerate(reversed(domains)):
        total += decay**age * sum((new[name] * (free[name] - at[name]).square()).sum() for name in new) / 2
    for name, gradient in zip(free, torch.autograd.grad(total, list(free.values())), strict=True):
        torch.testing.assert_close(fisher[name] * (free[name] - anchors[name]).detach(), gradient)
    assert anchors["a"].isfinite().all()


def test_ewc_sums_the_fisher_information_of_domains_and_holds_the_weights(tiny_bert, tmp_path, monkeypatch):
    """The first domain is trained as with ``lm``: the released code of ContinualLM fails there."""
    measured, measure = [], ewc.measure_fisher
    monkeypatch.setattr(
        ewc, "measure_fisher", lambda *args, **how: measured.append(measure(*args, **how)) or measured[-1]
    )
    plain = adapt(tiny_bert, FIRST, "lm", tmp_path / "lm", **SHORT).out
    first = adapt(tiny_bert, FIRST, {"ewc": {"tokens": 300}}, tmp_path / "1", **SHORT).out
    assert all(torch.equal(value, weights(first)[name]) for name, value in weights(plain).items())
    long = SHORT | {"steps": 4, "warmup": 0.0}
    moved = {}
    for strength in (1e-6, 1e6):
        out = tmp_path / f"{strength:g}"
        adapt(first, SECOND, {"ewc": {"tokens": 300, "strength": strength}}, out, **long)
        after, start = weights(out), weights(first)
        held = [name for name in measured[0] if name in after]  # without the tied head
        moved[strength] = sum((measured[0][name] * (after[name] - start[name]).square()).sum() for name in held)
    assert moved[1e6] < 0.3 * moved[1e-6]
    carried = load_file(tmp_path / "1e-06" / CARRIED_TENSORS)
    assert Carried.read(tmp_path / "1e-06").records["ewc"] == {"domains": 2}
    for name, values in measured[0].items():
        torch.testing.assert_close(carried[f"ewc/fisher/{name}"], values + measured[1][name])
        assert torch.equal(load_file(first / CARRIED_TENSORS)[f"ewc/anchor/{name}"], weights(first)[name])


@pytest.mark.slow
def test_the_online_rule_equals_the_sum_in_the_second_domain_and_stores_half(tiny_bert, tmp_path):
    sizes = {}
    for rule in ("summed", "online"):
        start = tiny_bert
        for name, corpus in (("1", FIRST), ("2", SECOND)):
            given = {"tokens": 300, "rule": rule, "strength": 100.0}
            start = adapt(start, corpus, {"ewc": given}, tmp_path / f"{rule}{name}", **SHORT).out
        sizes[rule] = (start / CARRIED_TENSORS).stat().st_size
    summed, online = (weights(tmp_path / f"{rule}2") for rule in sizes)
    assert all(torch.equal(value, online[name]) for name, value in summed.items())
    assert sizes["summed"] > 1.8 * sizes["online"]
    with pytest.raises(UserError, match="use rule=online"):
        adapt(tmp_path / "online2", FIRST, "ewc", tmp_path / "3", **SHORT)


@each(
    ("given", "words"),
    [
        ({"strength": 0}, "strength"),
        ({"decay": 2}, "decay must be at most 1"),
    ],
)
def test_parameters_that_do_not_fit_are_explained(given, words, tiny_bert, tmp_path):
    with pytest.raises(UserError, match=words):
        adapt(tiny_bert, FIRST, {"ewc": given}, tmp_path / "out", **SHORT)
