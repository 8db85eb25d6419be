"""The engine against plain Hugging Face models, and micro-batches against one large batch."""

from __future__ import annotations

import copy
import math
import weakref

import pytest
import torch

from acclimate.base.errors import UserError
from acclimate.engine.steps import Engine, check_objectives
from acclimate.models.batching import padding_policy
from acclimate.models.probe import attach
from acclimate.parts.objectives import BatchObjective, Gates, GeneralKnowledgeContrast, LanguageModelling, View
from tests.adaptation.helpers import micro_batches
from tests.cases import each
from tests.tiny import ENCODERS, tiny_model


def gradients(model):
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("kind", sorted(ENCODERS))
@each("layout", ["padded", "packed"])
def test_mlm_equals_transformers(kind, layout):
    """Loss and gradients equal ``model(labels=...)`` on all texts padded together, for any split."""
    ours = tiny_model(kind)
    theirs = copy.deepcopy(ours)
    attach(ours)
    whole = micro_batches(100_000)
    assert len(whole) == 1
    pieces = [micro_batches(tokens, layout=layout) for tokens in (40, 100_000)]
    batch = whole[0]
    loss = theirs(input_ids=batch.masked, attention_mask=(batch.text >= 0).long(), labels=batch.labels).loss
    loss.backward()
    expected = gradients(theirs)
    engine = Engine(ours, [LanguageModelling()])
    for cut in pieces:
        ours.zero_grad()
        terms = engine.step(cut)
        torch.testing.assert_close(terms["mlm"], loss.detach(), atol=1e-5, rtol=1e-5)
        found = gradients(ours)
        assert found.keys() == expected.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=1e-4)


@each("kind", sorted(ENCODERS))
def test_bf16_is_close_to_fp32_for_any_split(kind):
    """Matrix products are in bf16, but sums over micro-batches in fp32: more micro-batches are no less precise."""
    found = {}
    for precision, tokens, kept in (("fp32", 10_000, 10_000), ("bf16", 40, 10_000), ("bf16", 40, 0)):
        model = tiny_model(kind)
        layers = attach(model)
        importance = {"H": torch.linspace(0, 1, len(layers) * layers[0].heads).view(len(layers), -1)}
        engine = Engine(model, dga(importance), precision, graph_tokens=kept)
        batches = micro_batches(tokens)
        assert len(batches) == 1 if tokens > 40 else len(batches) > 3
        engine.step(batches)
        found[precision, kept] = torch.cat([value.flatten() for _, value in sorted(gradients(model).items())])
    exact = found["fp32", 10_000]
    for kept in (10_000, 0):
        assert (found["bf16", kept] - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("contrast", [False, True])
def test_gradient_buffers_are_reused(contrast):
    model = tiny_model("bert")
    attach(model)
    engine = Engine(model, dga({"H": torch.ones(2, 4)}) if contrast else [LanguageModelling()], "bf16")
    held, places = [], []
    for _ in range(2):
        engine.step(micro_batches(40))
        found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        places.append({name: gradient.data_ptr() for name, gradient in found.items()})
        held.append(found)  # keep the memory occupied, so that new buffers get other addresses
        model.zero_grad()
    assert places[0].keys() == places[1].keys()
    assert [places[0][name] == place for name, place in places[1].items()] == [not contrast] * len(places[1])


def dga(importance):
    return [LanguageModelling(), GeneralKnowledgeContrast(importance, temperature=0.2, weight=0.7)]


@each("kept", [0, 1, 2, 100])
@each("training", [False, True])
def test_micro_batches_equal_one_batch(training, kept, monkeypatch):
    """Value and gradient of DGA do not depend on the split, including the negatives of the whole batch.

    For any number of kept graphs, the result equals the naive loss below with the same dropout masks, and only
    micro-batches without a kept graph are read twice.
    """
    model = tiny_model("bert")
    attach(model)
    model.train(training)
    importance = {"H": torch.rand(2, 4)}
    many = micro_batches(60)
    assert len(many) > 2
    torch.manual_seed(4)
    room = 3 * sum(padding_policy(model).batch_cost(batch.text) for batch in many[:kept])
    engine = Engine(model, dga(importance), graph_tokens=math.ceil(room))
    reads = []
    monkeypatch.setattr(engine, "read", lambda batch, views: reads.append(batch) or Engine.read(engine, batch, views))
    terms = engine.step(many)
    assert len(reads) == len(many) + max(0, len(many) - kept)
    found = gradients(model)
    model.zero_grad()
    torch.manual_seed(4)
    objectives = engine.additive[0], engine.over_batch[0]
    outputs = [engine.read(batch, engine.views) for batch in many]
    count = sum(objectives[0].count(batch) for batch in many)
    mlm = sum(objectives[0].total(part) for part in outputs) / count
    contrast = objectives[1].loss(torch.cat([objectives[1].represent(part) for part in outputs]))
    (mlm + 0.7 * contrast).backward()
    torch.testing.assert_close(terms["loss"], (mlm + 0.7 * contrast).detach())
    torch.testing.assert_close(terms["contrast"], contrast.detach())
    for name, value in gradients(model).items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kept", [0, 100_000])
def test_only_graphs_are_alive_during_backward(kept, monkeypatch):
    """The logits of a micro-batch are the largest tensor, and the backward pass does not need them."""
    model = tiny_model("bert")
    attach(model)
    engine = Engine(model, dga({"H": torch.rand(2, 4)}), graph_tokens=kept)
    made, backward, left = [], torch.Tensor.backward, []

    def read(batch, views):
        outputs = Engine.read(engine, batch, views)
        made.append(weakref.ref(outputs))
        return outputs

    def watched(loss):
        left.append(sum(outputs() is not None for outputs in made))
        backward(loss)

    monkeypatch.setattr(engine, "read", read)
    monkeypatch.setattr(torch.Tensor, "backward", watched)
    many = micro_batches(60)
    engine.step(many)
    assert left == ([0] * len(many) if not kept else list(range(len(many)))[::-1])


def test_without_gradients_nothing_is_read_twice(monkeypatch):
    model = tiny_model("bert")
    attach(model)
    engine = Engine(model, dga({"H": torch.rand(2, 4)}), graph_tokens=0)
    reads = []
    monkeypatch.setattr(engine, "read", lambda batch, views: reads.append(batch) or Engine.read(engine, batch, views))
    many = micro_batches(60)
    engine.step(many, backward=False)
    assert len(reads) == len(many)


def test_equal_views_share_a_forward_pass():
    importance = {"H": torch.rand(2, 4)}
    model = tiny_model("bert")
    attach(model)
    assert Engine(model, dga(importance)).student_views == 3
    original = [LanguageModelling(), GeneralKnowledgeContrast(importance, tokens="original")]
    assert Engine(model, original).student_views == 4
    assert View(gates=Gates(importance)) != View(gates=Gates(importance))


@each("use", ["masked_logits", "pooled", "map_logits"])
def test_a_target_that_a_term_computes_without_gradients_is_not_the_input_of_others(use):
    """Terms that learn from the same view have the same gradient before and after a term that only looks at it."""

    class Reads(LanguageModelling):
        """Adds the squares of what it computes from its view, without gradients if it only looks."""

        def __init__(self, name, looks=False):
            super().__init__()
            self.name, self.looks, self.chosen_only = name, looks, False

        def token_losses(self, outputs):
            return None

        def total(self, outputs):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.looks):
                if use == "map_logits":
                    found = outputs.map_logits(lambda logits: logits.square().sum(-1), (self.view,))
                else:
                    found = getattr(outputs, use)(self.view)
            return found.square().sum() + 0 * outputs.hidden(self.view).sum()

    found = []
    for looks in ([], [Reads("looks", looks=True)]):
        model = tiny_model("bert")
        attach(model)
        Engine(model, [*looks, Reads("learns")]).step(micro_batches(10_000))
        found.append(gradients(model))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    assert any(value.any() for value in found[0].values())


def test_objectives_of_which_all_weights_are_0_are_refused():
    with pytest.raises(UserError, match="All weights of the objectives are 0"):
        check_objectives([LanguageModelling(0.0), GeneralKnowledgeContrast({}, weight=0.0)], tiny_model("bert"))


def test_views_get_what_they_ask_for():
    model = tiny_model("bert")
    attach(model)
    silent = Gates({"H": torch.zeros(2, 4)})
    views = (View("original"), View("masked"), View("original", gates=silent), View("original", draw=1))
    engine = Engine(model, [LanguageModelling()])
    batch = micro_batches(10_000)[0]
    out = engine.read(batch, views)
    assert not torch.allclose(out.hidden(views[0]), out.hidden(views[1]))
    assert not torch.allclose(out.hidden(views[0]), out.hidden(views[2]))
    torch.testing.assert_close(out.hidden(views[0]), out.hidden(views[3]))  # no dropout in evaluation
    model.train()
    out = engine.read(batch, views)
    assert not torch.allclose(out.hidden(views[0]), out.hidden(views[3]))


def test_a_batch_without_masked_tokens_gives_a_finite_loss():
    model = tiny_model("bert")
    attach(model)
    batches = micro_batches(rate=1e-9)
    assert not any((batch.labels >= 0).any() for batch in batches)
    terms = Engine(model, dga({"H": torch.rand(2, 4)})).step(batches)
    assert terms["mlm"] == 0
    assert all(value.isfinite() for value in terms.values())
    assert all(value.isfinite().all() for value in gradients(model).values())


def test_positives_of_the_general_contrast_are_views_of_the_same_text():
    """Without dropout the anchor and its positive are the same vector: their cosine is one for every text."""
    model = tiny_model("bert")
    attach(model)
    term = GeneralKnowledgeContrast({"H": torch.rand(2, 4)})
    assert isinstance(term, BatchObjective)
    engine = Engine(model, [term])
    representations = term.represent(engine.read(micro_batches(10_000)[0], engine.views))
    anchor, positive, general = representations.unbind(1)
    torch.testing.assert_close(torch.cosine_similarity(anchor, positive), torch.ones(len(anchor)))
    assert ((anchor - general).abs().amax(1) > 1e-4).all()
