"""Leaving out the end of the last layer where nobody reads it: the same numbers for less work."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch

from acclimate.kernels.last_layer import BERT_LIKE, can_cut_last_layer
from acclimate.kernels.unpadding import Unpadded
from acclimate.models import attach
from acclimate.models.encoding import skip_unread_tokens
from acclimate.objectives import GeneralKnowledgeContrast, LanguageModelling, TokenAwareContrast
from acclimate.tasks.classification.classifier import load_classifier
from acclimate.training.engine import Engine
from tests.models.test_ensembles import run
from tests.tiny import ENCODERS, save_tiny, tiny_model
from tests.training.helpers import micro_batches

CPU = torch.device("cpu")
IDS = torch.tensor([[2, 20, 21, 22, 3], [2, 30, 31, 3, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS != 0).long(), "labels": torch.tensor([0, 1])}


def classifier(kind, folder):
    torch.manual_seed(0)
    return load_classifier(save_tiny(kind, folder), ["a", "b"], 32, CPU).model.eval()


def gradients(model):
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def count_rows(model, seen):
    """Count the tokens that each feed-forward reads, by the number of its layer."""
    for number, layer in enumerate(model.base_model.encoder.layer):
        layer.output.dense.register_forward_hook(
            lambda module, inputs, output, number=number: seen.update({number: inputs[0].shape[:-1].numel()})
        )


def test_which_models_can():
    assert {kind for kind in ENCODERS if can_cut_last_layer(tiny_model(kind))} == set(BERT_LIKE)
    assert not can_cut_last_layer(tiny_model("bert", chunk_size_feed_forward=4))


def test_code_of_its_own_computes_everything():
    model = tiny_model("bert")
    last = model.base_model.encoder.layer[-1]
    last.__class__ = type("BertLayer", (type(last),), {"__module__": "modeling_own"})
    assert not can_cut_last_layer(model)


@pytest.mark.parametrize("kind", sorted(ENCODERS))
@pytest.mark.parametrize("ensemble", [False, True])
def test_a_classifier_gives_the_same_logits_and_gradients(kind, ensemble, tmp_path):
    start = save_tiny(kind, tmp_path / "start")
    if ensemble:
        run(start, tmp_path / "out")
    torch.manual_seed(0)
    model = load_classifier(tmp_path / "out" if ensemble else start, ["a", "b"], 32, CPU).model.eval()
    expected = model(**INPUTS)
    expected.loss.backward()
    whole = gradients(model)
    model.zero_grad()
    with skip_unread_tokens(model):
        found = model(**INPUTS)
        found.loss.backward()
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-6, rtol=1e-5)
    assert gradients(model).keys() == whole.keys()
    for name, value in gradients(model).items():
        torch.testing.assert_close(value, whole[name], atol=1e-6, rtol=1e-4)
    model.zero_grad()
    model(**INPUTS).loss.backward()  # and is itself again
    assert all(torch.equal(value, whole[name]) for name, value in gradients(model).items())


@pytest.mark.parametrize("kind", BERT_LIKE)
def test_a_classifier_reads_on_from_the_first_token_only(kind, tmp_path):
    model = classifier(kind, tmp_path)
    seen: Counter[int] = Counter()
    count_rows(model, seen)
    with skip_unread_tokens(model), skip_unread_tokens(model):  # scored while it is trained
        model(**INPUTS)
    assert seen == {0: IDS.numel(), 1: len(IDS)}


@pytest.mark.parametrize("kind", BERT_LIKE)
def test_masked_language_modelling_reads_on_from_the_masked_tokens_only(kind):
    model = tiny_model(kind)
    attach(model)
    (batch,) = micro_batches(10_000)
    seen: Counter[int] = Counter()
    count_rows(model, seen)
    Engine(model, [LanguageModelling()]).step([batch])
    assert seen == {0: len(Unpadded(batch.text)), 1: len(batch.chosen)}
    assert len(batch.chosen) < batch.tokens / 2


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_what_another_term_reads_is_computed(kind):
    """MLM shares its view with a contrast of whole texts, and with one of tokens."""
    importance = torch.linspace(0, 1, 8).view(2, 4)
    for others in ([GeneralKnowledgeContrast({"H": importance})], [TokenAwareContrast()]):
        model = tiny_model(kind)
        attach(model)
        reference = copy.deepcopy(model)
        batches = micro_batches(10_000)
        alone = Engine(model, [LanguageModelling()]).step(batches, backward=False)
        both = Engine(model, [LanguageModelling(), *others], reference=reference).step(batches, backward=False)
        torch.testing.assert_close(both["mlm"], alone["mlm"], atol=1e-5, rtol=1e-5)


class AllStates(LanguageModelling):
    """Says that it reads the masked tokens only, as its parent does, and reads all."""

    def total(self, outputs):
        return outputs.hidden(self.view).sum()


def test_a_term_that_reads_more_than_it_says_is_told_so():
    model = tiny_model("bert")
    attach(model)
    with pytest.raises(ValueError, match="take that attribute back"):
        Engine(model, [AllStates()]).step(micro_batches())


def test_a_step_without_a_masked_token():
    model = tiny_model("bert")
    attach(model)
    (batch,) = micro_batches(10_000)
    batch.labels.fill_(-100)
    assert Engine(model, [LanguageModelling()]).step([batch])["mlm"] == 0
    assert all(torch.isfinite(value).all() for value in gradients(model).values())
