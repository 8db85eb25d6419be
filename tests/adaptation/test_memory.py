"""Gradient checkpointing, 8-bit optimizer states, bfloat16 weights, and the limit on memory."""

from __future__ import annotations

import importlib.util
import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.device import to_device
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine import micro_batches as memory
from acclimate.engine.batches import Collator
from acclimate.engine.micro_batches import make_optimizer
from acclimate.engine.steps import Engine
from acclimate.models import batching
from acclimate.models.batching import limit_memory
from acclimate.models.families import kernels_of
from acclimate.models.gates import gate_units
from acclimate.models.kinds import kind_of
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling, vocabulary
from tests.accelerator import emulated
from tests.cases import each
from tests.kills import counted, killed
from tests.tiny import DECODERS, TEXTS, decoder_tokenizer, save_tiny, tiny_model, tiny_tokenizer

OPTIONS = {
    "max_length": 64,
    "steps": 4,
    "batch_size": 8,
    "precision": "fp32",
    "progress": False,
    "learning_rate": 1e-3,
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture
def interpreted():
    """Steps of torchao without compiling them, which takes longer than the tests."""
    pytest.importorskip("torchao")
    with torch.compiler.set_stance("force_eager"):
        yield


def step(kind, checkpointing, gates=None):
    """The terms and gradients of a step with dropout, and how often layers ran in it."""
    dropout = {"attention_dropout": 0.2} if kind in DECODERS or kind == "modernbert" else {}
    model, runs = tiny_model(kind, **dropout), []
    tokenizer = decoder_tokenizer(kind) if kind in DECODERS else tiny_tokenizer()
    layers = attach(model)
    objectives = [LanguageModelling()]
    if gates is not None:
        gate_units(model, layers, [gates])
        objectives.append(GeneralKnowledgeContrast({gates: torch.rand(2, 4 if gates == "H" else 48)}))
    engine = Engine(model.train(), objectives)
    if checkpointing:
        engine.set_gradient_checkpointing(True, 40)
    engine.chosen_only = set()  # without the cut, which changes the dropout masks
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            inside = next(module for module in layer.modules() if isinstance(module, nn.Linear))
            inside.register_forward_pre_hook(lambda *_: runs.append(1))
    collator = Collator.of(tokenizer, RandomMasking(0.3), kind_of(model), 10_000, "packed", engine.rewritings)
    batches = collator([np.array(tokenizer(text)["input_ids"]) for text in TEXTS], np.random.default_rng(0))
    torch.manual_seed(0)
    terms = engine.step(batches)
    return terms, {name: value.grad for name, value in model.named_parameters() if value.grad is not None}, len(runs)


@pytest.mark.parametrize(("kind", "gates"), [("llama", None), ("bert", None), ("bert", "H"), ("modernbert", None)])
def test_gradient_checkpointing_gives_the_same_gradients(kind, gates):
    """With dropout: the second pass of a layer draws the masks of the first."""
    terms, gradients, runs = step(kind, False, gates)
    found, recomputed, more = step(kind, True, gates)
    assert more == 2 * runs
    torch.testing.assert_close((found, recomputed), (terms, gradients), atol=1e-6, rtol=1e-5)


def test_gradient_checkpointing_is_on_where_a_row_does_not_fit():
    model = tiny_model("llama").train()
    attach(model)
    engine = Engine(model, [LanguageModelling()])
    engine.set_gradient_checkpointing(None, 128)
    engine.set_gradient_checkpointing(False, 10**9)
    assert not batching.recomputes_layers(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # transformers deprecates names
        tokens = batching.training_tokens(model, 1, 128)
    eager = kernels_of(model).eager_attention
    size = 128 * batching.token_bytes(model.config, 128, eager) / batching.SHARE / 10**9
    with limit_memory(0.99 * size):
        before = batching.training_tokens(model, 1, 128)
        engine.set_gradient_checkpointing(None, 128)
        assert batching.recomputes_layers(model) and before < 128 < batching.training_tokens(model, 1, 128)
    assert batching.training_tokens(model, 1, 128) == tokens, "the number of tokens that is fastest"


def test_what_gradient_checkpointing_cannot_do_is_refused(monkeypatch):
    with pytest.raises(UserError, match="the method gates parts of layers other than attention heads"):
        step("bert", True, "I")
    monkeypatch.setattr("transformers.LlamaForCausalLM.supports_gradient_checkpointing", False)
    with pytest.raises(UserError, match=r"LlamaForCausalLM does not support it\. Remove --gradient-checkpointing"):
        step("llama", True)


def test_the_limit_on_memory_is_that_of_the_environment(llama, tmp_path, monkeypatch):
    seen = []
    original = batching.machine_memory
    monkeypatch.setattr(batching, "machine_memory", lambda device: seen.append(original(device)) or seen[-1])
    adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "a", max_memory=0.5, **OPTIONS)
    assert set(seen) == {0.5e9}
    seen.clear()
    monkeypatch.setenv(batching.MEMORY_VARIABLE, "0.25")
    adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "b", **OPTIONS)
    assert set(seen) == {0.25e9}
    with pytest.raises(UserError, match="'max_memory' must be more than 0"):
        adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "c", max_memory=0, **OPTIONS)


@pytest.mark.parametrize("how", [{"optimizer": "adamw-8bit"}, {"weights": "bf16"}])
def test_a_killed_adaptation_ends_in_the_same_weights(how, llama, tmp_path, interpreted):
    options = {**OPTIONS, "dropout": 0.1, "save_every": 2, **how}
    adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "whole", **options)
    with killed(3):
        adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "killed", **options)
    with counted() as steps:
        adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "killed", **options)
    assert steps == [2, 3]
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    start = load_file(llama / "model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not any(torch.equal(whole[name], start[name].to(whole[name])) for name in whole)
    kept = torch.bfloat16 if "weights" in how else torch.float32
    assert {value.dtype for value in whole.values()} == {kept}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "whole").dtype == kept
    with pytest.raises(UserError, match="holds another adaptation"):
        adapt(
            llama,
            Corpus.of(TEXTS),
            "lm",
            tmp_path / "whole",
            **{name: value for name, value in options.items() if name not in how},
        )


def moved(optimizer, dtype, rate, steps=60):
    """How far a weight of 1 moves, relative to the exact distance, while its gradient stays the same."""
    weight = nn.Parameter(torch.ones(4_096, dtype=dtype))
    made = make_optimizer(optimizer, [{"params": [weight], "weight_decay": 0.0}], lr=rate)
    for _ in range(steps):
        weight.grad = torch.full_like(weight, 0.5)
        made.step()
    return float((1 - weight.detach().double()).mean()) / (rate * steps), made


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit"])
def test_small_updates_of_bf16_weights_are_not_lost(optimizer, interpreted):
    """Rounded to the nearest, a bfloat16 weight of 1 does not change by less than 1/512."""
    torch.manual_seed(0)
    share, made = moved(optimizer, torch.bfloat16, 1e-4)
    assert share == pytest.approx(1, abs=0.1)
    assert moved(optimizer, torch.float32, 1e-4)[0] == pytest.approx(1, abs=0.02)
    plain = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    plain.grad = torch.ones_like(plain)
    torch.optim.AdamW([plain], lr=1e-4, weight_decay=0).step()
    assert (plain == 1).all()
    (state,) = made.state.values()
    if optimizer == "adamw-8bit":
        assert state["exp_avg"].codes.dtype == torch.uint8


def test_protected_units_do_not_move_with_8_bit_states(tiny_bert, tmp_path, interpreted):
    """A soft mask constrains the update, whatever the optimizer."""
    method = get("dga", importance_tokens=200, importance_error=0, protect="important")
    adapt(tiny_bert, Corpus.of(TEXTS), method, tmp_path / "out", optimizer="adamw-8bit", **OPTIONS)
    start, end = (load_file(folder / "model.safetensors") for folder in (tiny_bert, tmp_path / "out"))
    name = "bert.encoder.layer.0.attention.self.query.weight"
    distance = (start[name] - end[name]).abs().view(4, -1).mean(1)
    kept = method._importance["H"][0]
    assert distance[kept.argmax()] < distance[kept.argmin()]


def test_masters_are_fp32_whatever_the_type_of_the_checkpoint(tmp_path):
    folder = save_tiny("llama", tmp_path / "bf16")
    model = AutoModelForCausalLM.from_pretrained(folder).to(torch.bfloat16)
    model.save_pretrained(folder)
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    assert {value.dtype for value in load_language_model(folder).model.parameters()} == {torch.float32}
    adapt(folder, Corpus.of(TEXTS), "lm", tmp_path / "out", **{**OPTIONS, "learning_rate": 1e-6})
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in load_file(folder / "model.safetensors").items():
        assert found[name].dtype == torch.float32 and not torch.equal(found[name], value.float()), "no update is lost"


def test_what_needs_torchao_says_so(llama, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torchao" else find(name, *rest)
    )
    with pytest.raises(UserError, match=r"--weights bf16 needs torchao: pip install .* 48 % as far as fp32 weights"):
        adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "no", weights="bf16", **OPTIONS)
    with pytest.raises(UserError, match=r"--optimizer adamw-8bit needs torchao: pip install 'acclimate\[memory\]'\.$"):
        adapt(llama, Corpus.of(TEXTS), "lm", tmp_path / "no", optimizer="adamw-8bit", **OPTIONS)


def test_adapters_need_fp32_weights(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="dapters are merged into fp32 weights"):
        adapt(tiny_bert, Corpus.of(TEXTS), "lm", tmp_path / "no", adapter="lora", weights="bf16", **OPTIONS)


def test_update_rules_work_with_bf16_weights(tiny_bert, tmp_path, interpreted):
    """Important heads move less than others, and all together as far as with fp32 weights."""
    moved = {}
    for weights in ("fp32", "bf16"):
        out = tmp_path / weights
        method = get("dga", importance_tokens=100, parts="H")
        adapt(tiny_bert, Corpus.of(TEXTS), method, out, weights=weights, **OPTIONS)
        protection = torch.tensor(json.loads((out / "importance.json").read_text())["parts"]["H"]["protection"])
        before, after = (load_file(folder / "model.safetensors") for folder in (tiny_bert, out))
        names = [f"bert.encoder.layer.{layer}.attention.self.value.weight" for layer in range(2)]
        change = torch.stack([(after[name].float() - before[name]).view(4, -1).abs().mean(1) for name in names])
        kept = change / (1 - protection)  # as far as the heads would have moved
        assert kept.std() / kept.mean() < 0.7 * change.std() / change.mean()
        moved[weights] = change.mean().item()
    assert moved["bf16"] == pytest.approx(moved["fp32"], rel=0.3)


@each(
    ("family", "precision"),
    [
        ("bert", "fp32"),
        ("bert", "bf16"),
        ("modernbert", "bf16"),
        ("llama", "fp32"),
        ("llama", "bf16"),
        ("gpt2", "fp16"),
    ],
)
def test_the_measured_graph_of_a_token_predicts_that_of_long_texts(family, precision):
    """Within 15 % of what a text of several times the length keeps on an accelerator."""
    length = 80 if family == "bert" else 120
    with emulated(bf16=precision != "fp16", capability=(7, 5) if precision == "fp16" else None):
        model = to_device(tiny_model(family))
        attach(model)
        per_token = memory.measure_graph(model, precision)
        model.train()
        kept = memory._kept_bytes(model, precision, length) - memory._kept_bytes(model, precision, 16)
        assert per_token * (length - 16) == pytest.approx(kept, rel=0.15)
        tokens = batching.training_tokens(model, 1, length)
        assert tokens * per_token <= batching.SHARE * 8 * 2**30 or tokens == 1


def test_half_precision_and_frozen_weights_keep_less():
    with emulated(bf16=True):
        model = to_device(tiny_model("llama"))
        attach(model)
        full, half = (memory.measure_graph(model, precision) for precision in ("fp32", "bf16"))
        state = torch.get_rng_state()
        for parameter in model.parameters():
            parameter.requires_grad = parameter.dim() == 1
        frozen = memory.measure_graph(model, "bf16")
    assert frozen < half < full
    assert torch.equal(torch.get_rng_state(), state)


def test_a_decoder_on_a_cpu_computes_no_logits_twice(tiny_llama, tmp_path, monkeypatch):
    """A micro-batch has at most the positions whose logits are held at once."""
    again, run = [], vocabulary.checkpoint
    monkeypatch.setattr(vocabulary, "checkpoint", lambda *args, **given: again.append(1) or run(*args, **given))
    monkeypatch.setitem(batching.LOGITS_AT_ONCE, "cpu", 1)  # 32 positions
    texts = Corpus.of([f"the soup was good and the wine of day {place} was fresh" for place in range(16)])
    adapt(tiny_llama, texts, "lm", tmp_path / "out", steps=2, batch_size=8, max_length=20, progress=False)
    assert not again
