"""A non-finite loss, gradient or weight: the error names step, term and texts, and checkpoints are kept."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.result import warn_of_explosion
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.callbacks import find_newest_checkpoint
from acclimate.engine.steps import Engine
from acclimate.parts.objectives import GeneralKnowledgeContrast
from tests.cases import each
from tests.tiny import TEXTS, save_tiny

LONG = "we train the method on this data and test it on the table of the paper. the result is a good score."
SHORT = {"batch_size": 8, "max_length": 30, "learning_rate": 1e-3, "precision": "fp32", "progress": False}


def broken(folder, change):
    """A model with a NaN weight."""
    save_tiny("bert", folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    return folder


def run(model, out, method="mlm", **options):
    with pytest.raises(UserError) as caught:
        adapt(model, Corpus.of(TEXTS), method, out, **{**SHORT, "steps": 4, **options})
    assert "\n" not in str(caught.value)
    assert not out.exists()
    return str(caught.value)


def test_the_text_that_causes_it_is_named(tmp_path):
    """Only one text is long enough to use the position embedding that is broken."""

    def change(model):
        model.bert.embeddings.position_embeddings.weight[21] = float("nan")

    message = run(broken(tmp_path / "model", change), tmp_path / "out")
    assert message.startswith("The loss is nan at step 1: the term 'mlm' is not finite. ")
    named = f"document {TEXTS.index(LONG) + 1} ('w ##e train the method on …')"
    assert f"Of the 8 texts of the step, only these are not finite by themselves: {named}." in message
    assert "now 0.001" in message and "the base model is unchanged" in message


def test_broken_weights_are_named_as_the_cause(tmp_path):
    def change(model):
        model.bert.encoder.layer[0].output.dense.weight.fill_(float("nan"))

    message = run(broken(tmp_path / "model", change), tmp_path / "out")
    assert "None of the 8 texts of the step is finite by itself, so weights must be broken: document " in message
    assert message.count("document ") == 3 and " and 5 more" in message


@pytest.mark.needs("dga")
def test_the_term_that_causes_it_is_named(tiny_bert, tmp_path, monkeypatch):
    loss = GeneralKnowledgeContrast.loss
    monkeypatch.setattr(GeneralKnowledgeContrast, "loss", lambda self, parts: loss(self, parts) * float("inf"))
    message = run(tiny_bert, tmp_path / "out", "dga importance_tokens=100")
    assert message.startswith("The loss is inf at step 1: the term 'contrast' is not finite. The step read document ")


def test_weights_that_break_in_the_last_step_are_not_saved(tiny_bert, tmp_path, monkeypatch):
    """The loss and the gradient of that step are finite."""
    step = torch.optim.AdamW.step

    def overflow(self, *args, **options):
        step(self, *args, **options)
        self.param_groups[0]["params"][0].data[0, 0] = float("inf")

    monkeypatch.setattr(torch.optim.AdamW, "step", overflow)
    message = run(tiny_bert, tmp_path / "out", steps=1)
    assert message.startswith("At step 1 the loss is finite (mlm ") and "the base model is unchanged" in message
    message = run(tiny_bert, tmp_path / "out", steps=2, keep_steps=[1])
    assert "tensors of the model are not finite" in message
    assert not [*tmp_path.rglob("model.safetensors")]


def test_broken_weights_of_the_base_model_are_not_copied(tmp_path):
    def change(model):
        model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("inf")

    message = run(broken(tmp_path / "model", change), tmp_path / "out", "none")
    assert "tensors of the model are not finite, such as 'bert.encoder.layer.0.output.dense.weight'" in message


def test_an_exploding_loss_is_reported_in_log_manifest_and_card(tiny_bert, tmp_path, caplog):
    options = {**SHORT, "learning_rate": 10.0, "steps": 3}
    result = adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "out", **options)
    assert "The mlm loss ended at " in result.warning and "the training probably diverged" in result.warning
    assert result.warning in caplog.text and "now 10" in result.warning
    caplog.clear()
    assert adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "out", **options).warning in caplog.text
    card = (tmp_path / "out" / "README.md").read_text()
    assert "## Warning" in card and "the training probably diverged" in card
    good = adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "good", **{**options, "learning_rate": 1e-3})
    assert good.warning == "" and "## Warning" not in (tmp_path / "good" / "README.md").read_text()


@each(
    ("losses", "warned"),
    [
        ([], False),
        ([0.7, 0.2], False),
        ([0.7, 2.0], False),
        ([0.7, 2.5], True),
        ([-0.1, 0.9], False),
        ([5, 10.9], False),
    ],
)
def test_a_loss_that_rises_far_above_the_first(losses, warned):
    lines = [{"step": 1, "heldout": {}}, *({"loss": loss, "terms": {"loss_of_task": loss}} for loss in losses)]
    assert bool(warn_of_explosion(lines, 1e-3)) == warned


@pytest.mark.parametrize("spoilt", ["loss", "gradient", "weights"])
def test_the_last_good_checkpoint_is_kept(tiny_bert, tmp_path, monkeypatch, spoilt):
    """Even if the loss is still finite: broken weights must not be saved before the next step reveals them."""
    step, taken = Engine.step, []

    def spoiling(self, batches, **options):
        terms = step(self, batches, **options)
        taken.append(terms)
        if len(taken) == 3:
            parameter = next(iter(self.readers["student"].parameters()))
            if spoilt == "loss":
                return {**terms, "mlm": terms["mlm"] * float("nan"), "loss": terms["loss"] * float("nan")}
            if spoilt == "gradient":
                parameter.grad[0, 0] = float("inf")
            else:
                parameter.data[0, 0] = float("inf")
        return terms

    monkeypatch.setattr(Engine, "step", spoiling)
    message = run(tiny_bert, tmp_path / "out", save_every=1)
    assert "the checkpoint of step 2 is kept" in message
    assert ("the loss is finite (mlm " in message) == (spoilt != "loss")
    assert len(taken) == 3
    kept = find_newest_checkpoint(tmp_path / ".out.work" / "steps")
    assert kept is not None and kept.name == "checkpoint-2"
    assert all(value.isfinite().all() for value in load_file(kept / "model.safetensors").values())
    monkeypatch.setattr(Engine, "step", step)
    assert adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "out", steps=4, save_every=1, **SHORT).steps == 4
