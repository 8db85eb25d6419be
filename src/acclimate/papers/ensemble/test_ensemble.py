"""Ensembles: adaptation leaves the base encoder unchanged; the end task trains both and averages their outputs."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from acclimate import finetune
from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.checkpoints import WEIGHTS
from acclimate.models.loading import load_language_model
from acclimate.tasks.kinds.classification.classifier import load_classifier
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tasks.test_classification import keyword_task
from tests.tiny import ENCODERS, save_tiny, with_old_names

IDS = torch.tensor([[2, 20, 21, 22, 3], [2, 30, 31, 3, 0]])
MASK = (IDS != 0).long()


def run(model, out):
    return adapt(model, Corpus.of(DOCUMENTS), "ensemble", out, **{**SHORT, "steps": 4, "learning_rate": 1e-2})


def test_a_model_with_old_weight_names(tmp_path):
    run(with_old_names(save_tiny("bert", tmp_path / "start")), tmp_path / "out")
    assert load_classifier(tmp_path / "out", ["a", "b"], 32, torch.device("cpu"))


@pytest.mark.parametrize("kind", [*sorted(ENCODERS), "llama"])
def test_the_head_reads_the_mean_of_both(kind, tmp_path):
    """Against both encoders run separately, averaged, and followed by the head of the classifier."""
    start = save_tiny(kind, tmp_path / "start")
    run(start, tmp_path / "out")
    torch.manual_seed(0)
    both = load_classifier(tmp_path / "out", ["a", "b"], 32, torch.device("cpu")).model.eval()
    found = both(input_ids=IDS, attention_mask=MASK).logits
    assert found.shape == (2, 2)
    adapted = load_language_model(tmp_path / "out").model.base_model
    original = load_language_model(start).model.base_model
    hidden = [encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state for encoder in (adapted, original)]
    assert (hidden[0] - hidden[1]).abs().max() > 1e-3
    mean = (hidden[0] + hidden[1]) / 2

    # The same head on a plain model whose encoder returns the mean.
    config = AutoConfig.from_pretrained(start, num_labels=2)
    plain = AutoModelForSequenceClassification.from_config(config).eval()
    head = {name: value for name, value in both.state_dict().items() if not name.startswith("original.")}
    plain.load_state_dict(head, strict=False)

    def give_mean(module, inputs, output):
        output.last_hidden_state = mean
        if kind == "albert":
            output.pooler_output = torch.tanh(module.pooler(mean[:, 0]))
        elif getattr(module, "pooler", None) is not None:
            output.pooler_output = module.pooler(mean)
        return output

    plain.base_model.register_forward_hook(give_mean)
    torch.testing.assert_close(found, plain(input_ids=IDS, attention_mask=MASK).logits, atol=1e-5, rtol=1e-4)


def test_adaptation_equals_mlm_and_keeps_the_original(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out")
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "mlm", **{**SHORT, "steps": 4, "learning_rate": 1e-2})
    state = load_file(tmp_path / "out" / WEIGHTS)
    start, mlm = load_file(tiny_bert / "model.safetensors"), load_file(tmp_path / "mlm" / "model.safetensors")
    for name, value in mlm.items():
        assert torch.equal(state[name], value)
        if name.startswith("bert."):
            assert torch.equal(state["original." + name.removeprefix("bert.")], start[name])


def test_both_train_in_the_end_task_and_the_classifier_can_be_loaded(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out")
    result = finetune(
        tmp_path / "out", keyword_task(), out=tmp_path / "tuned", epochs=2, learning_rate=1e-2, progress=False
    )
    before, after = load_file(tmp_path / "out" / WEIGHTS), load_file(tmp_path / "tuned" / WEIGHTS)
    for name in ("bert.encoder.layer.0.output.dense.weight", "original.encoder.layer.0.output.dense.weight"):
        assert not torch.equal(before[name], after[name])
    again = load_classifier(tmp_path / "tuned", result.labels, 128, torch.device("cpu"))
    probabilities = again.probabilities(keyword_task().test, "fp32")
    torch.testing.assert_close(probabilities, torch.tensor(result.probabilities), atol=0.02, rtol=0.05)


def test_as_a_language_model_it_is_the_adapted_encoder(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out")
    loaded = load_language_model(tmp_path / "out").model
    assert not hasattr(loaded, "original")
    adapt(tmp_path / "out", Corpus.of(DOCUMENTS), "mlm", tmp_path / "more", **SHORT)
    AutoModelForMaskedLM.from_pretrained(tmp_path / "more")


def test_a_missing_original_is_refused(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out")
    file = tmp_path / "out" / WEIGHTS
    state = load_file(file)
    save_file({name: value for name, value in state.items() if "original.encoder.layer.1" not in name}, file)
    with pytest.raises(UserError, match="original encoder"):
        load_classifier(tmp_path / "out", ["a", "b"], 32, torch.device("cpu"))
