"""Compiled layers: as eager, one graph per kind of layer whatever the shapes, and named if they cannot be compiled.

No code is generated: the backends run the graphs that ``torch.compile`` has captured.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from functools import partial
from importlib import import_module

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from acclimate.adaptation.adapt import adapt
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.kernels import varlen
from acclimate.models.attention import LAYER_INDEX_TENSOR, use_attention
from acclimate.models.compiling import compiled_layers, layers_of
from acclimate.models.encoding import encode, encode_positions
from acclimate.models.families import KERNELS_ATTRIBUTE, is_compiled, kernels_of
from acclimate.models.gates import gate_units
from acclimate.models.kinds import kind_of
from acclimate.models.lora import LoRA
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling
from acclimate.parts.updates import SoftMask
from acclimate.tasks.finetune import finetune
from tests.accelerator import attention_kernels
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tasks.test_classification import keyword_task
from tests.tiny import DECODERS, TEXTS, decoder_tokenizer, save_tiny, tiny_model, tiny_tokenizer

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NO_DROPOUT = {
    "modernbert": {"attention_dropout": 0.0, "mlp_dropout": 0.0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


class Graphs(list):
    """A backend that keeps what was captured, and runs it as it is."""

    def __call__(self, graph, inputs):
        self.append(graph)
        return graph.forward


def rows_of(count, width, short):
    """Token ids and texts of padded rows, the first of which is ``short``."""
    generator = torch.Generator().manual_seed(width)
    text = torch.arange(count)[:, None].expand(count, width).clone()
    text[0, short:] = -1
    return torch.randint(10, 60, (count, width), generator=generator), text


@pytest.mark.slow
def test_encode_and_then_positions_equal_eager():
    """The cut of the last layer was a hook that came and went, which compiled code did not notice."""
    torch.manual_seed(0)
    model = tiny_model("bert").eval()
    attach(model)
    plain = copy.deepcopy(model)
    graphs, places = Graphs(), torch.tensor([0, 3, 20])
    with compiled_layers([model], graphs):
        for shape in ((3, 14, 6), (2, 9, 4), (5, 17, 17)):
            ids, text = rows_of(*shape)
            torch.testing.assert_close(encode(model, ids, text)[text >= 0], encode(plain, ids, text)[text >= 0])
        assert len(graphs) == 1, "both layers share one graph for all shapes"
        for shape in ((3, 14, 6), (4, 11, 5)):
            found, expected = (encode_positions(one, *rows_of(*shape), places) for one in (model, plain))
            assert found.shape == (3, 32)
            torch.testing.assert_close(found, expected)
        assert len(graphs) == 2, "the cut last layer has another one"
    assert not is_compiled(model) and all(layer._compiled_call_impl is None for layer in layers_of(model))
    assert LAYER_INDEX_TENSOR not in dict(model.named_buffers()) and len(graphs) == 2
    encode(model, ids, text)
    assert len(graphs) == 2


class Blocks(nn.Module):
    """A model of some layers, instead of one of transformers."""

    class Plain(nn.Module):
        def forward(self, values):
            return values + 1

    class Branching(nn.Module):
        """A layer that depends on a value, which the host would have to wait for."""

        def forward(self, values):
            return 2 * values if values.sum() > 0 else values

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.device = torch.device("cpu")

    @property
    def base_model(self):
        return self

    def forward(self, values):
        for layer in self.layers:
            values = layer(values)
        return values


class SingleBlock(Blocks.Plain):
    """A model without a list of layers."""

    device = torch.device("cpu")

    @property
    def base_model(self):
        return self


def test_what_cannot_be_compiled_is_named_and_runs_as_it_is(caplog):
    model = Blocks(Blocks.Plain(), Blocks.Branching(), Blocks.Plain())
    graphs = Graphs()
    with caplog.at_level(logging.WARNING), compiled_layers([model], graphs):
        for size in (2, 3):
            assert torch.equal(model(torch.ones(size)), torch.full((size,), 5.0))
    assert len(graphs) == 1
    assert (
        caplog.text.count("Branching cannot be compiled and runs as it is: ") == 1
        and "Plain cannot" not in caplog.text
    )
    with caplog.at_level(logging.WARNING), compiled_layers([SingleBlock()], graphs):
        assert "SingleBlock has no list of layers" in caplog.text


def test_a_failing_backend_is_named(caplog):
    def failing(graph, inputs):
        raise RuntimeError("no compiler found")

    model = Blocks(Blocks.Plain(), Blocks.Plain())
    with caplog.at_level(logging.WARNING), compiled_layers([model], failing):
        assert torch.equal(model(torch.ones(2)), torch.full((2,), 3.0))
    assert "Plain cannot be compiled" in caplog.text and "no compiler found" in caplog.text


def step_batches(model, seed):
    """The micro-batch of a step, of random size."""
    kind = model.config.model_type
    tokenizer = decoder_tokenizer(kind) if kind in DECODERS else tiny_tokenizer()
    collator = Collator.of(tokenizer, RandomMasking(0.3), kind_of(model), 10_000)
    rng = np.random.default_rng(seed)
    texts = rng.choice(TEXTS, rng.integers(2, 12))
    return collator([np.array(tokenizer(text)["input_ids"]) for text in texts], rng)


def prepared(kind, parts, lora=False, checkpointing=False, kernel=None):
    """A model without dropout, and the objectives of ``lm``, or of a contrast that gates some parts."""
    model = tiny_model(kind, **NO_DROPOUT.get(kind, {} if kind in DECODERS else STILL))
    layers = attach(model)
    objectives = [LanguageModelling()]
    if parts:
        units = gate_units(model, layers, parts)
        importance = {part: torch.rand(len(found), found[0].units) for part, found in units.items()}
        objectives.append(GeneralKnowledgeContrast(importance))
    if lora:
        adapter = LoRA(r=4).insert(model)
        adapter.mask(SoftMask({"H": layers}, {"H": torch.rand(len(layers), layers[0].heads)}).delta_factors())
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if kernel:
        kernels = replace(kernels_of(model), eager_attention=False, unpadding=True, varlen_attention=True)
        setattr(model, KERNELS_ATTRIBUTE, kernels)
        use_attention(model, kernels)
    return model.train(), objectives


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "graphs", "options"),
    [
        ("bert", 2, {}),
        ("bert", 2, {"precision": "bf16"}),
        ("bert", 1, {"parts": ["H"]}),
        ("roberta", 1, {"parts": ["H", "I", "O", "E"]}),
        ("bert", 2, {"kernel": "efficient"}),
        ("bert", 2, {"kernel": "flash", "precision": "bf16"}),
        ("modernbert", 2, {"parts": ["H"], "kernel": "flash", "precision": "bf16"}),
        ("albert", 1, {}),
        ("llama", 1, {}),
        ("llama", 1, {"parts": ["H", "I"]}),
        ("llama", 1, {"checkpointing": True}),
        ("qwen3", 2, {"lora": True}),  # the input of the first layer needs no gradient
        ("gemma2", 2, {}),
        ("gpt2", 1, {}),
        ("lfm2", 2, {}),
    ],
)
def test_fifty_steps_of_different_shapes(kind, graphs, options, monkeypatch, caplog):
    """One graph per kind of layer (the last one is cut, some have a window), and at most two more, such as for rows
    without padding. Loss and gradients are those of eager.
    """
    precision, parts = options.pop("precision", "fp32"), options.pop("parts", [])
    torch.manual_seed(0)
    found, shapes = Graphs(), set()
    monkeypatch.setattr(varlen, "find_kernel", lambda dtype, *_: "flash" if dtype == torch.bfloat16 else "efficient")
    with attention_kernels(), caplog.at_level(logging.WARNING):
        model, objectives = prepared(kind, parts, **options)
        plain = copy.deepcopy(model)
        engines = [Engine(one, objectives, precision) for one in (model, plain)]
        with compiled_layers([model], found):
            for number in range(50):
                batches = step_batches(model, number)
                shapes.add(batches[0].masked.shape)
                terms = [engine.step(batches) for engine in engines[: 2 if number in (0, 49) else 1]]
                if len(terms) == 2:
                    gradients = [
                        {name: value.grad for name, value in one.named_parameters() if value.grad is not None}
                        for one in (model, plain)
                    ]
                    assert len(gradients[0]) > 4
                    close = {"rtol": 0.05, "atol": 0.01} if precision == "bf16" else {"rtol": 1e-3, "atol": 1e-5}
                    torch.testing.assert_close(terms[0], terms[1], **close)
                    torch.testing.assert_close(*gradients, **close)
                model.zero_grad(), plain.zero_grad()
    assert len(shapes) > 15 and graphs <= len(found) <= graphs + 2
    assert "cannot be compiled" not in caplog.text


@pytest.fixture
def backend(monkeypatch):
    """The graphs that ``adapt`` and ``finetune`` compile."""
    found = Graphs()
    for module in ("acclimate.adaptation.execution", "acclimate.tasks.trainer"):
        monkeypatch.setattr(import_module(module), "compiled_layers", partial(compiled_layers, backend=found))
    return found


@pytest.mark.slow
def test_adapting_compiled_ends_with_the_same_weights(backend, tmp_path):
    """With text that is measured in between, with other graphs: without gradients."""
    model = save_tiny("bert", tmp_path / "bert", **STILL)
    options = {**SHORT, "steps": 6, "heldout": Corpus.of(TEXTS), "heldout_every": 3}
    for compiled in (True, False):
        adapt(model, Corpus.of(DOCUMENTS), "lm", tmp_path / str(compiled), compile=compiled, **options)
    assert len(backend) == 4
    found, expected, start = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "True", tmp_path / "False", model)
    )
    moved = max((expected[name] - start[name]).abs().max() for name in start)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0.02 * float(moved), msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_fine_tuning_compiled_gives_the_same_predictions(kind, backend, tmp_path):
    model = save_tiny(kind, tmp_path / kind, classifier_dropout=0.0, **NO_DROPOUT.get(kind, STILL))
    options = {"epochs": 3, "select": "dev", "learning_rate": 1e-3}
    found, expected = (finetune(model, keyword_task(), compile=compiled, **options) for compiled in (True, False))
    assert 2 <= len(backend) <= 6
    assert found.train_loss == pytest.approx(expected.train_loss, rel=1e-3)
    assert found.predicted == expected.predicted
