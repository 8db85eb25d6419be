"""Deeper models: copies of layers that start as nothing, which layers are copied, and how fast their tensors learn."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.adapters import ADAPTERS, compare_logits
from acclimate.models.probe import attach
from acclimate.parts.modules.deeper import GATE, RATES, OpenGates, TensorRates, relative_rates
from tests.cases import each
from tests.kills import killed
from tests.tiny import TEXTS, save_tiny, tiny_model

PROBE = [np.arange(5, 25), np.arange(30, 40)]
PROBE_IDS = [torch.as_tensor(row) for row in PROBE]
IDS = torch.stack([torch.arange(5, 25), torch.arange(40, 20, -1)])
SHORT = {"steps": 4, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}


class Text:
    """General text for a model: two parts, read by the model itself."""

    def __init__(self, model):
        self.model = model

    def loss(self):
        with torch.no_grad():
            return sum(self.model(input_ids=ids[None], labels=ids[None], use_cache=False).loss.item() for ids in IDS)

    def gradients(self):
        for ids in IDS:
            self.model.zero_grad()
            self.model(input_ids=ids[None], labels=ids[None], use_cache=False).loss.backward()
            yield
        self.model.zero_grad()


def deepen(kind, general=False, changes=None, **settings):
    """A tiny model with copies of layers, and the model without."""
    model = change_norms(tiny_model(kind, **(changes or {})))
    plain = copy.deepcopy(model)
    attach(model)
    attach(plain)
    given = {"general": Text(model)} if general else {}
    return ADAPTERS.read({"deeper": settings}).insert(model, probe=PROBE, **given), plain


def change_norms(model):
    """Give normalizations other weights than new ones, with which one after the other would change nothing."""
    draw = torch.Generator().manual_seed(1)
    for value in model.parameters():
        if value.dim() == 1:
            value.data += 0.2 * torch.randn(value.shape, generator=draw)
    return model


def trained_zeros(model):
    """The names of the weights that train and are zero."""
    return [
        name for name, value in model.named_parameters() if value.requires_grad and value.dim() > 1 and not value.any()
    ]


@each("kind", ["gemma2", "gpt2", "modernbert", "smollm3"])
def test_it_starts_as_the_base_model_and_becomes_a_deeper_one(kind):
    adapter, plain = deepen(kind, layers=1)
    model = adapter.model
    assert compare_logits(model, plain, adapter.probe)["relative"] < 1e-6
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert trained and all(".2." in name for name in trained)
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad:
            value.data += 0.1 * torch.randn_like(value)
    assert compare_logits(model, plain, adapter.probe)["relative"] > 1e-3
    assert compare_logits(adapter.base(), plain, adapter.probe)["absolute"] == 0
    merged = adapter.merged()
    attach(merged)
    assert compare_logits(merged, model, adapter.probe)["relative"] < 1e-6
    before, after = plain.state_dict(), merged.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert {name.replace(".1.", ".2.", 1) for name in before if ".1." in name} == after.keys() - before.keys()


@each("kind", ["bert", "distilbert", "roberta"])
def test_a_gate_opens_where_layers_normalize_at_their_end(kind):
    adapter, plain = deepen(kind, layers=1, general=kind == "roberta")
    model, rule = adapter.model, adapter.update_rule()
    assert compare_logits(model, plain, PROBE_IDS)["absolute"] == 0 and "gates open" in adapter.describe()
    assert all(name.endswith("weight") for name in trained_zeros(model)) and trained_zeros(model)
    with pytest.raises(UserError, match="count by 0%, which transformers cannot load"):
        adapter.merged()
    gates = [buffer for name, buffer in model.named_buffers() if name.endswith(GATE)]
    opener = rule.rules[0] if kind == "roberta" else rule
    assert isinstance(opener, OpenGates) and len(gates) == 1
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.1)
    opened, complete = [], []
    for step in range(4):
        opener.progress = step / 4
        opener.step(optimizer, lambda: None)
        opened.append(float(gates[0]))
        complete.append(rule.is_complete)
    assert opened == [0.0, 0.5, 1.0, 1.0] and complete == [False, False, True, True]
    assert compare_logits(model, plain, PROBE_IDS)["relative"] < 0.1, (
        "an open gate changes little before it is trained"
    )
    merged = adapter.merged()
    attach(merged)
    assert (
        compare_logits(merged, model, PROBE_IDS)["relative"]
        < 1e-6
        < compare_logits(merged, plain, PROBE_IDS)["relative"]
    )
    assert not any(name.endswith(GATE) for name in merged.state_dict()) and merged.config.num_hidden_layers == 3
    gates[0].fill_(0.25)
    assert compare_logits(adapter.base(), plain, PROBE_IDS)["absolute"] == 0


def test_a_gate_mixes_the_input_of_a_copy_with_its_output():
    adapter, _ = deepen("bert", layers=1)
    states = {}
    for gate in (0.0, 1.0, 0.25):
        getattr(adapter.model.bert.encoder.layer[2], GATE).fill_(gate)
        states[gate] = adapter.model.eval().bert(IDS).last_hidden_state
    torch.testing.assert_close(states[0.25], states[0.0] + 0.25 * (states[1.0] - states[0.0]))
    assert not torch.equal(states[0.0], states[1.0])


@pytest.mark.slow
def test_a_training_with_gates_resumes_and_any_program_loads_the_result(tmp_path):
    base = save_tiny("bert", tmp_path / "base")
    change_norms(transformers.AutoModelForMaskedLM.from_pretrained(base)).save_pretrained(base)
    options = {"adapter": "deeper layers=1", **SHORT, "steps": 6}
    whole = adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "whole", **options)
    with killed(3):
        adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "cut", save_every=2, **options)
    adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "cut", save_every=2, **options)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and model.config.num_hidden_layers == 3
    assert whole.adapter["difference"]["relative"] < 1e-6 < 1e-5 < whole.adapter["change"]["relative"]
    assert "whose gates open in the first half" in (tmp_path / "whole" / "README.md").read_text()
    # The held-out loss only rises; the best step is the first that can be the result.
    best = {"heldout": Corpus.of(["cold soup"]), "heldout_every": 1, "keep_best": True, "learning_rate": 0.3}
    kept = adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "best", **options | best)
    assert kept.kept_step is None or kept.kept_step >= 4
    with pytest.raises(UserError, match="train for more steps"):
        adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "short", **options | {"steps": 1})


def test_copies_are_spread_evenly_or_are_the_layers_that_general_text_needs_least():
    spread = [deepen("llama", layers=number, changes={"num_hidden_layers": 6})[0].chosen for number in (1, 2, 3, 6)]
    assert spread == [[5], [2, 5], [1, 3, 5], [0, 1, 2, 3, 4, 5]]
    adapter, plain = deepen("llama", general=True, layers=2, changes={"num_hidden_layers": 4})
    losses = []
    for place in range(4):
        without = copy.deepcopy(plain)
        del without.model.layers[place]
        without.config.num_hidden_layers = 3
        losses.append(Text(without).loss())
    assert adapter.chosen == sorted(np.argsort(losses)[:2].tolist())
    assert "which matter least to the general text" in adapter.describe()


def test_rates_are_those_of_the_released_code():
    importance, norms = [0.5, 3.0, 1.0, 2.0], [False, False, True, True]
    expected = []
    for value, norm in zip(importance, norms, strict=True):
        others = [one for one, other in zip(importance, norms, strict=True) if norm or not other]
        expected.append(2 * (max(others) - value) / (max(others) - min(others)))
    assert relative_rates(torch.tensor(importance), torch.tensor(norms)).tolist() == pytest.approx(expected)
    assert relative_rates(torch.ones(3), torch.tensor([True, False, False])).tolist() == [1, 1, 1]


def test_the_rule_scales_the_step_of_each_tensor_and_leaves_gradients_alone():
    adapter, _ = deepen("llama", general=True, layers=1)
    rule, model = adapter.update_rule(), adapter.model
    assert isinstance(rule, TensorRates) and not rule.importance().any(), "copies do nothing at first"
    for value in rule.weights:
        value.data += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    ordinary = adapter.merged().requires_grad_(True)
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    sums = dict.fromkeys(names, 0.0)
    for ids in IDS:
        ordinary.zero_grad()
        ordinary(input_ids=ids[None], labels=ids[None], use_cache=False).loss.backward()
        for name in names:
            sums[name] = sums[name] + ordinary.get_parameter(name).grad.abs() / len(IDS)
    importance = [(sums[name] * ordinary.get_parameter(name).abs()).mean().item() for name in names]
    optimizer = torch.optim.SGD(rule.weights, lr=0.1)
    for weight in rule.weights:
        weight.grad = torch.ones_like(weight)
    before = [weight.detach().clone() for weight in rule.weights]
    rule.step(optimizer, optimizer.step)
    wanted = relative_rates(torch.tensor(importance), rule.norms)
    torch.testing.assert_close(rule.rates, wanted, atol=1e-4, rtol=1e-4)
    assert wanted.max() > 1.5 and wanted.min() == 0
    for weight, old, rate in zip(rule.weights, before, wanted, strict=True):
        torch.testing.assert_close(weight, old - 0.1 * rate, atol=1e-5, rtol=1e-4)
        assert (weight.grad == 1).all()
    nn.init.zeros_(rule.rates)
    rule.steps_taken = 1  # rates are not measured again before the next hundred
    old = [weight.detach().clone() for weight in rule.weights]
    rule.step(optimizer, optimizer.step)
    assert all(torch.equal(weight, value) for weight, value in zip(rule.weights, old, strict=True))


@pytest.mark.slow
def test_an_adaptation_with_general_text_resumes_and_any_program_loads_the_result(tmp_path):
    base = save_tiny("llama", tmp_path / "base")
    (tmp_path / "general.txt").write_text("\n\n".join(TEXTS))
    chosen = {"layers": 1, "general": str(tmp_path / "general.txt"), "every": 2, "tokens": 100}
    options = {"adapter": {"deeper": chosen}, **SHORT, "steps": 5}
    whole = adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "whole", **options)
    with killed(4):
        adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "cut", save_every=3, **options)
    checkpoint = load_file(tmp_path / ".cut.work" / "steps" / "checkpoint-3" / "model.safetensors")
    assert RATES in checkpoint and len(checkpoint) == 10 and checkpoint[RATES].std() > 0
    adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "cut", save_every=3, **options)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first) and RATES not in first
    model, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and model.config.num_hidden_layers == 3
    assert whole.adapter["difference"]["relative"] < 1e-6 < 1e-5 < whole.adapter["change"]["relative"]
    assert "as copies of 1 layers" in (tmp_path / "whole" / "README.md").read_text()
    (tmp_path / "general.txt").write_text("\n\n".join(TEXTS[:4]))
    with pytest.raises(UserError, match="holds another adaptation"):
        adapt(base, Corpus.of(TEXTS), "lm", tmp_path / "whole", **options)


@each(
    ("kind", "settings", "message"),
    [
        ("albert", {}, "cannot be copied"),
        ("llama", {"layers": 3}, "3 layers are to be copied, but the model has 2"),
        ("llama", {"layers": 0}, "layers must"),
    ],
)
def test_what_does_not_fit_is_refused(kind, settings, message):
    with pytest.raises(UserError, match=message) as error:
        deepen(kind, **settings)
    assert "\n" not in str(error.value)
