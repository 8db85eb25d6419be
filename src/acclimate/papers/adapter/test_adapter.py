"""Adapters: their place, what trains, and model folders that contain them."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.checkpoints import WEIGHTS
from acclimate.models.encoding import encode
from acclimate.models.extensions import Bottleneck, adapter_size, add_adapters
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from tests.cases import installed
from tests.models.test_encoders import IDS, TEXT
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tasks.test_classification import keyword_task
from tests.tiny import ENCODERS, tiny_model


def test_the_bottleneck_is_the_equation():
    torch.manual_seed(0)
    adapter = Bottleneck(5, 3)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter)
    hidden = torch.randn(2, 5)
    for row in range(2):
        inner = [
            torch.nn.functional.gelu(
                sum(adapter.down.weight[k, i] * hidden[row, i] for i in range(5)) + adapter.down.bias[k]
            )
            for k in range(3)
        ]
        for out in range(5):
            value = (
                hidden[row, out] + sum(adapter.up.weight[out, k] * inner[k] for k in range(3)) + adapter.up.bias[out]
            )
            torch.testing.assert_close(adapter(hidden)[row, out], value)


@pytest.mark.parametrize("kind", [*sorted(ENCODERS), "gpt2", "llama"])
def test_they_start_near_the_identity_and_are_all_used(kind):
    model = tiny_model(kind)
    layers = attach(model)
    plain = encode(model, IDS, TEXT)
    parameters = add_adapters(model, layers, 4)
    assert adapter_size(model) == 4
    assert len(parameters) == 2 * 4 * len(layers)
    near = encode(model, IDS, TEXT)
    assert (near - plain).abs().max() < 0.05
    near[TEXT >= 0].pow(3).sum().backward()
    assert all((parameter.grad != 0).any() for parameter in parameters)


def run(tiny_bert, out):
    return adapt(tiny_bert, Corpus.of(DOCUMENTS), {"adapter": {"size": 4}}, out, **SHORT)


def test_only_adapters_train_and_transformers_refuses_the_folder(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out")
    state, before = load_file(tmp_path / "out" / WEIGHTS), load_file(tiny_bert / "model.safetensors")
    for name, value in before.items():
        assert torch.equal(state[name], value)
    assert len([name for name in state if ".adapter." in name]) == 16
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert "acclimate" in (tmp_path / "out" / "README.md").read_text()

    loaded = load_language_model(tmp_path / "out").model
    attach(loaded)
    for name, value in loaded.state_dict().items():
        if name in state:
            assert torch.equal(value, state[name])
    plain = load_language_model(tiny_bert).model
    attach(plain)
    assert (encode(loaded, IDS, TEXT) - encode(plain, IDS, TEXT)).abs().max() > 1e-4


def test_everything_trains_in_the_end_task(tiny_bert, tmp_path):
    from acclimate import finetune

    tiny_task = keyword_task()

    run(tiny_bert, tmp_path / "out")
    finetune(tmp_path / "out", tiny_task, out=tmp_path / "tuned", epochs=1, learning_rate=1e-2, progress=False)
    before, after = load_file(tmp_path / "out" / WEIGHTS), load_file(tmp_path / "tuned" / WEIGHTS)
    for name in ("bert.encoder.layer.0.output.dense.adapter.up.weight", "bert.encoder.layer.0.output.dense.weight"):
        assert not torch.equal(before[name], after[name])
    again = finetune(tmp_path / "tuned", tiny_task, epochs=1, learning_rate=1e-12, progress=False)
    assert again.steps


def test_incomplete_adapters_are_refused(tiny_bert, tmp_path):
    run(tiny_bert, tmp_path / "out")
    file = tmp_path / "out" / WEIGHTS
    state = load_file(file)
    del state["bert.encoder.layer.0.output.dense.adapter.up.weight"]
    save_file(state, file)
    with pytest.raises(UserError, match="adapters"):
        load_language_model(tmp_path / "out")
    file.unlink()
    with pytest.raises(UserError, match="missing"):
        load_language_model(tmp_path / "out")


def test_a_second_set_of_adapters_is_refused(tiny_bert, tmp_path):
    """They would replace the trained ones. Another method trains the model with its adapters."""
    run(tiny_bert, tmp_path / "out")
    for method in installed(REGISTRY, ["adapter", "ensemble"]):
        with pytest.raises(UserError, match="adapters"):
            adapt(tmp_path / "out", Corpus.of(DOCUMENTS), method, tmp_path / method, **SHORT)
    adapt(tmp_path / "out", Corpus.of(DOCUMENTS), "mlm", tmp_path / "mlm", **SHORT)
    before, after = load_file(tmp_path / "out" / WEIGHTS), load_file(tmp_path / "mlm" / WEIGHTS)
    assert before.keys() == after.keys()
    assert all((before[name] != after[name]).any() for name in before if ".adapter.up.weight" in name)
