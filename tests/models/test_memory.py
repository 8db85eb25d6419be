"""Tokens per forward pass, and the memory that they are derived from."""

import pytest
import torch
from torch import nn
from transformers import BertConfig

from acclimate.base.errors import UserError
from acclimate.kernels import Kernels
from acclimate.models import batching
from acclimate.models.encoding import encode
from acclimate.models.probe import attach
from tests.cases import each
from tests.tiny import tiny_model


class Model(nn.Module):
    def __init__(self, kind, layers, width, vocabulary=30_522):
        super().__init__()
        self.device, self.acclimate_kernels = torch.device(kind), Kernels(kind, eager_attention=kind == "cpu")
        self.config = BertConfig(num_hidden_layers=layers, hidden_size=width, vocab_size=vocabulary)


@pytest.fixture
def gigabytes(monkeypatch):
    return lambda size: monkeypatch.setattr(batching, "machine_memory", lambda device: size * 2**30)


def test_small_models_read_the_fastest_number_of_tokens(gigabytes):
    gigabytes(24)
    assert batching.training_tokens(Model("cpu", 6, 384)) == 1_024
    assert batching.training_tokens(Model("cpu", 6, 384), 3) == 2_048 // 3
    assert batching.max_graph_tokens(Model("cpu", 6, 384)) == 16_384
    gigabytes(80)
    assert batching.training_tokens(Model("cuda", 6, 384)) == 65_536


@each("size", [8, 16, 80])
@each(("layers", "width"), [(6, 384), (12, 768), (24, 1024), (48, 2048)])
@each("kind", ["cpu", "cuda"])
def test_graphs_fit_into_the_memory_of_the_machine(gigabytes, size, layers, width, kind):
    gigabytes(size)
    model = Model(kind, layers, width)
    token_size = batching.token_bytes(model.config, eager_attention=kind == "cpu")
    assert batching.training_tokens(model, 3) * 3 * token_size <= batching.SHARE * size * 2**30
    assert batching.max_graph_tokens(model) * token_size <= batching.GRAPH_SHARE * size * 2**30
    assert batching.training_tokens(model, 3) >= 1


@each("size", [8, 24])
@each(("layers", "width", "vocabulary"), [(6, 384, 30_522), (12, 768, 50_265), (24, 1024, 250_002)])
def test_memory_does_not_limit_an_ordinary_cpu(gigabytes, size, layers, width, vocabulary):
    gigabytes(size)
    model = Model("cpu", layers, width, vocabulary)
    assert batching.micro_batch_tokens(model) == 2_048
    assert batching.micro_batch_tokens(model, times=2) == 4_096
    assert batching.micro_batch_tokens(model, 8 * (layers + 1) * width) == 2_048
    rows = batching.logit_rows(model)
    assert rows >= 128 and rows % 32 == 0 and rows * vocabulary <= batching.LOGITS_AT_ONCE["cpu"]


@each("size", [4, 8, 80])
@each("vocabulary", [30_522, 250_002])
def test_forward_passes_fit_into_an_accelerator(gigabytes, size, vocabulary):
    gigabytes(size)
    model, scored = Model("cuda", 12, 768, vocabulary), 8 * 0.15 * vocabulary
    available = batching.SHARE * size * 2**30
    assert batching.micro_batch_tokens(model) == min(65_536, int(available / (768 * batching.INFERENCE_BYTES)))
    assert batching.micro_batch_tokens(model, scored, times=2) * (768 * batching.INFERENCE_BYTES + scored) <= available
    assert 32 <= batching.logit_rows(model) <= available / (batching.LOGIT_BYTES * vocabulary)


def test_the_memory_limit_of_a_container_counts(monkeypatch, tmp_path):
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


def test_the_environment_can_limit_memory(monkeypatch):
    model = tiny_model("bert", hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=64)
    monkeypatch.setenv(batching.MEMORY_VARIABLE, "1.5")
    assert batching.machine_memory(torch.device("cpu")) == 1.5e9
    limited = batching.training_tokens(model, 3), batching.max_graph_tokens(model)
    monkeypatch.setenv(batching.MEMORY_VARIABLE, "3")
    assert batching.max_graph_tokens(model) == pytest.approx(2 * limited[1], abs=1)
    monkeypatch.delenv(batching.MEMORY_VARIABLE)
    assert limited[0] < batching.training_tokens(model, 3) and limited[1] < batching.max_graph_tokens(model)
    whole = batching.machine_memory(torch.device("cpu"))
    monkeypatch.setenv(batching.MEMORY_VARIABLE, "1e9")  # more than the machine has
    assert batching.machine_memory(torch.device("cpu")) == whole


@each("value", ["much", "0", "-2", "nan", "inf", "4GB"])
def test_a_wrong_size_of_memory_is_refused(monkeypatch, value):
    monkeypatch.setenv(batching.MEMORY_VARIABLE, value)
    with pytest.raises(UserError, match=f"ACCLIMATE_MEMORY_GB is '{value}'; set it to a positive number of gigabytes"):
        batching.machine_memory(torch.device("cpu"))


@each("length", [64, 512])
def test_the_estimate_is_close_to_the_size_of_a_graph(length):
    """Bytes per token that the graph of a BERT in training keeps."""
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
