"""Weights that stay zero: against a training of masked weights, over a kill, and dense in the end task."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.utils import parametrize

from acclimate import finetune
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.pretrain import pretrain
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.parts.updates import StaticSparsity
from tests.adaptation.test_update_options import DOCUMENTS, SHORT, models, weights  # noqa: F401
from tests.kills import killed
from tests.tasks.test_classification import keyword_task
from tests.tiny import tiny_model


class Masked(torch.nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, weight):
        return weight * self.kept


@pytest.mark.parametrize("choice", ["magnitude", "random"])
def test_steps_are_those_of_masked_weights(choice):
    """The same training with a parametrization by the mask, which plain sorting chooses for magnitudes."""
    ours, theirs, ids = tiny_model("bert").eval(), tiny_model("bert").eval(), torch.tensor([[2, 10, 11, 12, 3]])
    rule = StaticSparsity(ours, 0.6, choice, seed=3)
    assert len(rule.kept) == 2 * 6
    for name, module in ours.named_modules():
        kept = [kept for weight, kept in rule.kept if weight is getattr(module, "weight", None)]
        if kept:
            plain = theirs.get_submodule(name)
            values = np.sort(plain.weight.detach().abs().flatten().numpy())
            assert int((~kept[0]).sum()) == int(0.6 * values.size)
            if choice == "magnitude":
                assert torch.equal(kept[0], plain.weight.abs() >= float(values[int(0.6 * values.size)]))
            parametrize.register_parametrization(plain, "weight", Masked(kept[0]))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1) for model in (ours, theirs)]
    for _ in range(3):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
        rule.after_backward()
        assert all(not (weight.grad * ~kept).any() for weight, kept in rule.kept), "clipping does not count them"
        rule.step(optimizers[0], optimizers[0].step)
        optimizers[1].step()
    torch.testing.assert_close(ours(input_ids=ids).logits, theirs(input_ids=ids).logits, atol=1e-5, rtol=1e-4)
    assert all(not (weight * ~kept).any() and weight[kept].all() for weight, kept in rule.kept)


@pytest.mark.slow
def test_zeros_stay_over_a_kill_and_become_weights_in_the_end_task(models, tmp_path):  # noqa: F811
    options = {**SHORT, "rules": {"sparsity": 0.5, "l2-sp": 0.1}, "save_every": 2, "steps": 5}
    adapt(models["bert"], Corpus.of(DOCUMENTS), "lm", tmp_path / "whole", **options)
    with killed(3):
        adapt(models["bert"], Corpus.of(DOCUMENTS), "lm", tmp_path / "cut", **options)
    adapt(models["bert"], Corpus.of(DOCUMENTS), "lm", tmp_path / "cut", **options)
    whole, cut, before = weights(tmp_path / "whole"), weights(tmp_path / "cut"), weights(models["bert"])
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    sparse = [name for name, value in whole.items() if (value == 0).float().mean() == 0.5]
    assert len(sparse) == 12 and all(".layer." in name for name in sparse)
    assert all(not torch.equal(whole[name][whole[name] != 0], before[name][whole[name] != 0]) for name in sparse)
    tuned = {"epochs": 1, "learning_rate": 1e-2, "progress": False}
    finetune(tmp_path / "whole", keyword_task(), out=tmp_path / "tuned", **tuned)
    dense = load_file(tmp_path / "tuned" / "model.safetensors")
    assert all((dense[name] == 0).float().mean() < 0.05 for name in sparse)


def test_a_model_from_scratch_can_be_sparse(tmp_path, capsys):
    made = {"size": "tiny", "vocab_size": 150, "steps": 1, "batch_size": 4, "max_length": 16, "precision": "fp32"}
    pretrain(Corpus.of(DOCUMENTS), tmp_path / "out", rules="sparsity share=0.75 choice=random", **made)
    heard = " ".join(capsys.readouterr().err.split())
    assert "of 12 linear layers are zero and stay zero, chosen at random" in heard
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert sum((value == 0).float().mean() == 0.75 for value in found.values()) == 12


def test_what_does_not_fit_is_named(models, tmp_path):  # noqa: F811
    for options, message in (
        ({"rules": "sparsity share=1"}, "less than 1"),
        ({"rules": "sparsity choice=random"}, "needs the parameter 'share'"),
        ({"rules": "sparsity share=0.5", "adapter": "lora"}, "which an adapter freezes"),
        ({"rules": {"sparsity": 0.5, "freeze": "layer"}}, "no linear layer of BertForMaskedLM trains"),
    ):
        with pytest.raises(UserError, match=message):
            adapt(models["bert"], Corpus.of(DOCUMENTS), "lm", tmp_path / "out", **SHORT, **options)
