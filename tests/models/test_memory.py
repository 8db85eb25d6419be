"""Sizes of what is read at once."""

import pytest
import torch
from transformers import BertConfig

from acclimate.errors import UserError
from acclimate.models import attach, batching, encode
from tests.tiny import tiny_model


class Model:
    def __init__(self, kind, layers, width, vocabulary=30_522):
        self.device = torch.device(kind)
        self.config = BertConfig(num_hidden_layers=layers, hidden_size=width, vocab_size=vocabulary)


@pytest.fixture
def gigabytes(monkeypatch):
    return lambda size: monkeypatch.setattr(batching, "machine_memory", lambda device: size * 2**30)


def test_small_models_read_what_is_fastest(gigabytes):
    gigabytes(24)
    assert batching.training_tokens(Model("cpu", 6, 384)) == 1_024
    assert batching.training_tokens(Model("cpu", 6, 384), 3) == 2_048 // 3
    assert batching.max_graph_tokens(Model("cpu", 6, 384)) == 16_384
    gigabytes(80)
    assert batching.training_tokens(Model("cuda", 6, 384)) == 65_536


@pytest.mark.parametrize("size", [8, 16, 80])
@pytest.mark.parametrize(("layers", "width"), [(6, 384), (12, 768), (24, 1024), (48, 2048)])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_graphs_fit_into_the_memory_of_the_machine(gigabytes, size, layers, width, kind):
    gigabytes(size)
    model = Model(kind, layers, width)
    each = batching.token_bytes(model.config, written_out=kind == "cpu")
    assert batching.training_tokens(model, 3) * 3 * each <= batching.SHARE * size * 2**30
    assert batching.max_graph_tokens(model) * each <= batching.GRAPH_SHARE * size * 2**30
    assert batching.training_tokens(model, 3) >= 1


@pytest.mark.parametrize("size", [8, 24])
@pytest.mark.parametrize(("layers", "width", "vocabulary"), [(6, 384, 30_522), (12, 768, 50_265), (24, 1024, 250_002)])
def test_on_an_ordinary_cpu_memory_decides_nothing_of_what_is_read(gigabytes, size, layers, width, vocabulary):
    gigabytes(size)
    model = Model("cpu", layers, width, vocabulary)
    assert batching.micro_batch_tokens(model) == 2_048
    assert batching.micro_batch_tokens(model, 8 * 0.15 * vocabulary, times=2) == 4_096
    assert batching.micro_batch_tokens(model, 8 * (layers + 1) * width) == 2_048
    assert batching.training_tokens(model, 2, logits=True) == batching.training_tokens(model, 2)


@pytest.mark.parametrize("size", [4, 8, 80])
@pytest.mark.parametrize("vocabulary", [30_522, 250_002])
def test_what_is_read_fits_into_an_accelerator(gigabytes, size, vocabulary):
    gigabytes(size)
    model, scored = Model("cuda", 12, 768, vocabulary), 8 * 0.15 * vocabulary
    room = batching.SHARE * size * 2**30
    assert batching.micro_batch_tokens(model) == min(65_536, int(room / (768 * batching.INFERENCE_BYTES)))
    assert batching.micro_batch_tokens(model, scored, times=2) * (768 * batching.INFERENCE_BYTES + scored) <= room
    distributions = 2 * batching.training_tokens(model, 2, logits=True) * batching.LOGIT_BYTES * vocabulary
    assert distributions <= batching.LOGIT_SHARE * size * 2**30
    assert batching.training_tokens(model, 2, logits=True) <= batching.training_tokens(model, 2)


def test_the_limit_of_a_container_counts(monkeypatch, tmp_path):
    whole = batching.machine_memory(torch.device("cpu"))
    assert whole > 2**28
    monkeypatch.setattr(batching, "CGROUP_LIMIT", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("max\n")
    assert batching.machine_memory(torch.device("cpu")) >= whole
    (tmp_path / "memory.max").write_text(f"{2**28}\n")
    assert batching.machine_memory(torch.device("cpu")) == 2**28


def test_processes_of_one_machine_share_its_memory(monkeypatch):
    whole = batching.machine_memory(torch.device("cpu"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert batching.machine_memory(torch.device("cpu")) == whole // 4


def test_less_memory_can_be_asked_for(monkeypatch):
    model = tiny_model("bert", hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=64)
    monkeypatch.setenv(batching.MEMORY_VARIABLE, "1.5")
    assert batching.machine_memory(torch.device("cpu")) == 1.5e9
    asked = batching.training_tokens(model, 3), batching.max_graph_tokens(model)
    monkeypatch.setenv(batching.MEMORY_VARIABLE, "3")
    assert batching.max_graph_tokens(model) == pytest.approx(2 * asked[1], abs=1)
    monkeypatch.delenv(batching.MEMORY_VARIABLE)
    assert asked[0] < batching.training_tokens(model, 3) and asked[1] < batching.max_graph_tokens(model)
    whole = batching.machine_memory(torch.device("cpu"))
    monkeypatch.setenv(batching.MEMORY_VARIABLE, "1e9")  # more than there is
    assert batching.machine_memory(torch.device("cpu")) == whole


@pytest.mark.parametrize("value", ["much", "0", "-2", "nan", "inf", "4GB"])
def test_a_wrong_size_of_memory_is_named(monkeypatch, value):
    monkeypatch.setenv(batching.MEMORY_VARIABLE, value)
    with pytest.raises(UserError, match=f"ACCLIMATE_MEMORY_GB is '{value}'; give the gigabytes"):
        batching.machine_memory(torch.device("cpu"))


@pytest.mark.parametrize("length", [64, 512])
def test_the_estimate_is_about_what_a_graph_takes(length):
    """Bytes that the graph of a BERT in training keeps, a token, on the way that the engine takes."""
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 384}
    model = tiny_model("bert", max_position_embeddings=length, **sizes).train()
    attach(model)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.randint(5, 20, (4, length))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        encode(model, ids, torch.zeros_like(ids) + torch.arange(4)[:, None])
    measured = sum(size for place, size in kept.items() if place not in weights) / ids.numel()
    estimate = batching.token_bytes(model.config, length)
    assert 0.9 * estimate < measured < 1.1 * estimate
