"""EWC and DER++ over two domains of a tiny model, and the mathematics of what they carry."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.carried import CARRIED_TENSORS, Carried
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.models.probe import attach
from acclimate.papers.der.method import DrawKept, Example, LogitReplay, ReplayedLanguageModelling, pack, unpack
from acclimate.papers.ewc import method as ewc
from acclimate.papers.ewc.method import add_quadratic
from acclimate.parts.objectives import LanguageModelling
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.tiny import TEXTS, save_tiny, tiny_model, tiny_tokenizer

SHORT = {"steps": 2, "batch_size": 8, "max_length": 24, "precision": "fp32", "progress": False, "learning_rate": 1e-3}
FIRST, SECOND = (Corpus.of([f"{text} {word}" for text in TEXTS]) for word in ("one", "two"))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("base") / "base")


def weights(folder):
    return load_file(folder / "model.safetensors")


# EWC


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


def test_ewc_sums_the_fisher_information_of_domains_and_holds_the_weights(base, tmp_path, monkeypatch):
    """The first domain is that of ``lm``: the released code of ContinualLM fails there."""
    measured, measure = [], ewc.measure_fisher
    monkeypatch.setattr(
        ewc, "measure_fisher", lambda *args, **how: measured.append(measure(*args, **how)) or measured[-1]
    )
    plain = adapt(base, FIRST, "lm", tmp_path / "lm", **SHORT).out
    first = adapt(base, FIRST, "ewc", tmp_path / "1", settings={"tokens": 300}, **SHORT).out
    assert all(torch.equal(value, weights(first)[name]) for name, value in weights(plain).items())
    long = SHORT | {"steps": 4, "warmup": 0.0}
    moved = {}
    for strength in (1e-6, 1e6):
        out = tmp_path / f"{strength:g}"
        adapt(first, SECOND, "ewc", out, settings={"tokens": 300, "strength": strength}, **long)
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
def test_the_online_rule_equals_the_sum_in_the_second_domain_and_stores_half(base, tmp_path):
    sizes = {}
    for rule in ("summed", "online"):
        start = base
        for name, corpus in (("1", FIRST), ("2", SECOND)):
            given = {"tokens": 300, "rule": rule, "strength": 100.0}
            start = adapt(start, corpus, "ewc", tmp_path / f"{rule}{name}", settings=given, **SHORT).out
        sizes[rule] = (start / CARRIED_TENSORS).stat().st_size
    summed, online = (weights(tmp_path / f"{rule}2") for rule in sizes)
    assert all(torch.equal(value, online[name]) for name, value in summed.items())
    assert sizes["summed"] > 1.8 * sizes["online"]
    with pytest.raises(UserError, match="use rule=online"):
        adapt(tmp_path / "online2", FIRST, "ewc", tmp_path / "3", **SHORT)


# DER++


def example(ids, top, rng):
    """A text whose places 1 and 3 are predicted."""
    entries = torch.stack([torch.randperm(90, generator=rng)[:top] for _ in range(2)]).int()
    targets, logits = torch.randint(5, 90, (2,), generator=rng).int(), torch.randn(2, top or 100, generator=rng).half()
    return Example(torch.tensor(ids).int(), torch.tensor([1, 3]), targets, entries, logits)


@each("top", [7, 0])
def test_both_terms_equal_a_loop_over_drawn_texts_and_predicted_tokens(top):
    rng, model, plain = torch.Generator().manual_seed(0), tiny_model("bert"), tiny_model("bert")
    vocabulary = plain.config.vocab_size
    texts = [tiny_tokenizer()(text)["input_ids"][:length] for text, length in zip(TEXTS[:3], (6, 9, 7), strict=True)]
    examples = [example(ids, top, rng) for ids in texts]
    if not top:  # more tokens were added to the vocabulary after the texts were kept
        examples = [one._replace(logits=one.logits[:, : vocabulary - 5]) for one in examples]
    attach(model)
    kept = DrawKept(examples)
    terms = [LanguageModelling(0.0), LogitReplay(kept, 0.5), ReplayedLanguageModelling(kept, 2.0)]
    engine = Engine(model.eval(), terms)
    (batch,) = micro_batches(10_000)
    collated = replace(batch, rewritten=_rewrite(batch, kept))
    found = engine.step([collated], backward=False)
    squared, losses = [], []
    for (index,) in collated.rewritten[kept].known.tolist():
        one = examples[index]
        logits = plain(one.ids[None].long()).logits[0].detach()
        for number, place in enumerate(one.places.tolist()):
            row = logits[place]
            mine = row[one.entries[number].long()] if top else row[: one.logits.shape[1]]
            squared.append((mine - one.logits[number].float()).square().mean())
            losses.append(-row.log_softmax(-1)[int(one.targets[number])])
    torch.testing.assert_close(found["logits"], torch.stack(squared).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["replay"], torch.stack(losses).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["loss"], 0.5 * found["logits"] + 2 * found["replay"])
    rounded = Engine(model, terms, "bf16").step([collated], backward=False)
    torch.testing.assert_close(rounded["logits"], found["logits"], rtol=0.05, atol=0)


def _rewrite(batch, kept):
    from acclimate.parts.objectives.base import ViewInput

    made = kept(batch.original.numpy(), batch.text.numpy(), None, None, range(batch.texts))
    return {kept: ViewInput(*(torch.as_tensor(part) for part in made))}


def test_kept_texts_have_the_logits_of_their_model_and_are_replayed(base, tmp_path):
    given = {"memory": 6, "top": 5}
    first = adapt(base, FIRST, "der++", tmp_path / "1", settings=given, **SHORT).out
    examples = unpack(_carried(first))
    # A short text may have no masked token.
    assert 4 <= len(examples) <= 6 and Carried.read(first).records["der++"] == {"texts": [len(examples)], "top": 5}
    model = transformers.AutoModelForMaskedLM.from_pretrained(first).eval()
    for one in examples:
        logits = model(one.ids[None].long()).logits[0, one.places.long()].detach()
        torch.testing.assert_close(logits.topk(5).values, one.logits.float(), atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(logits.gather(1, one.entries.long()), one.logits.float(), atol=2e-3, rtol=2e-3)
    second = adapt(first, SECOND, "der++", tmp_path / "2", settings=given, **SHORT, dropout=0.0)
    assert Carried.read(second.out).records["der++"]["texts"][0] == 3
    both = unpack(_carried(second.out))
    assert [one.ids.tolist() for one in both[:3]] == [one.ids.tolist() for one in examples[:3]]
    line = json.loads((second.out / "log.jsonl").read_text().splitlines()[0])
    assert line["terms"]["logits"] < 1e-5, "before the first step the logits are those that were kept"
    assert line["terms"]["replay"] > 0
    with pytest.raises(UserError, match="have 5 logits per token; use top=5"):
        adapt(first, SECOND, "der++", tmp_path / "3", **SHORT)


def _carried(folder):
    tensors = load_file(folder / CARRIED_TENSORS)
    return {name.removeprefix("der++/"): value for name, value in tensors.items() if name.startswith("der++/")}


def test_kd_distills_from_the_model_of_the_domain_before(base, tmp_path):
    """Without dropout, its term is zero in the first step of the second domain; then the model leaves its teacher."""
    first = adapt(base, FIRST, "lm", tmp_path / "1", **SHORT).out
    second = adapt(first, SECOND, "kd", tmp_path / "2", **SHORT, dropout=0.0).out
    lines = [json.loads(line) for line in (second / "log.jsonl").read_text().splitlines()]
    assert abs(lines[0]["terms"]["kd"]) < 1e-6 < lines[1]["terms"]["kd"]


@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), max_size=5), top=st.integers(0, 3))
def test_packed_examples_are_unpacked_as_they_were(sizes, top):
    made = [
        Example(
            torch.arange(tokens).int(),
            torch.arange(places).int(),
            torch.arange(places).int() + 7,
            torch.arange(places * top).view(places, top).int(),
            torch.rand(places, top or 9).half(),
        )
        for tokens, places in sizes
    ]
    for one, other in zip(made, unpack(pack(made)), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@each(
    ("method", "given", "words"),
    [
        ("der++", {"alpha": 0, "beta": 0}, "use the method lm"),
        ("der++", {"memory": 0}, "memory"),
        ("ewc", {"strength": 0}, "strength"),
        ("ewc", {"decay": 2}, "decay must be at most 1"),
    ],
)
def test_parameters_that_do_not_fit_are_explained(method, given, words, base, tmp_path):
    with pytest.raises(UserError, match=words):
        adapt(base, FIRST, method, tmp_path / "out", settings=given, **SHORT)
