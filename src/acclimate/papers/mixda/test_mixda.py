"""Domain adapters with a gate: against a slow computation of each text by itself, and in training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file

from acclimate import finetune
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import REGISTRY, get
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine
from acclimate.models.checkpoints import WEIGHTS
from acclimate.models.encoding import encode, skip_unread_tokens
from acclimate.models.extensions import DomainAdapters, add_domain_adapters, domain_adapters
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from acclimate.papers.mixda.method import GateRate
from acclimate.papers.mixda.objective import DomainLanguageModelling, StateRetention
from acclimate.parts.objectives import LanguageModelling
from tests.cases import each, installed
from tests.models.test_skip_unread import HEADS, outputs, with_head
from tests.papers.first_step import checked_steps
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.parts.objectives.layouts import packed, padded
from tests.tasks.test_classification import keyword_task
from tests.tiny import save_tiny, tiny_model

OWN, GENERAL = DOCUMENTS[:16], DOCUMENTS[16:]
TINY = {"gate_size": 8}


KINDS = ("bert", "distilbert", "modernbert")
"""An architecture of each kind of layers whose gates read texts."""
FILES = ("model.safetensors", WEIGHTS, WEIGHTS)


def mixture_model(kind, reads="text", weighs="adapters"):
    """A model with two adapters in its first layer, of which all weights are random."""
    model = tiny_model(kind).eval()
    attach(model)
    add_domain_adapters(model, DomainAdapters((0,), (3, 4), 8, reads, weighs))
    torch.manual_seed(1)
    for name, value in model.named_parameters():
        if ".domains." in name:
            torch.nn.init.normal_(value, std=0.5)
    return model


def slow_mixture(mixture, inner, output):
    """The output of a block for one text (tokens, units) and (tokens, width), one token and adapter at a time."""

    def linear(layer, values):
        return layer.weight @ values + layer.bias

    rows = []
    for x, y in zip(inner, output, strict=True):
        hidden = inner[0] if mixture.reads == "text" else x
        for layer in (mixture.gate[place] for place in (0, 3, 6)):
            hidden = linear(layer, hidden).clamp(min=0)
        exps = linear(mixture.gate[9], hidden).exp()
        shares = exps / exps.sum()
        row = shares[0] * y if mixture.weighs == "all" else y
        for share, adapter in zip(shares[1:], mixture.adapters, strict=True):
            row = row + share * linear(adapter[2], torch.nn.functional.gelu(linear(adapter[0], x)))
        rows.append(row)
    return torch.stack(rows)


@each(
    ("kind", "reads", "weighs"),
    [
        *((kind, "text", "adapters") for kind in KINDS),
        ("bert", "text", "all"),
        ("bert", "token", "adapters"),
        ("albert", "token", "adapters"),
        ("llama", "token", "all"),
    ],
)
def test_the_block_of_each_text_is_the_equation_in_every_layout(kind, reads, weighs):
    model = mixture_model(kind, reads, weighs)
    seen = []
    for module in model.modules():
        if hasattr(module, "domains"):
            mixture = module.domains
            hook = module.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    whole = padded()
    texts = [whole.original[number, whole.text[number] >= 0] for number in range(whole.texts)]
    alone = []
    with torch.no_grad():
        for ids in texts:
            states = encode(model, ids[None], torch.zeros_like(ids[None]))[0]
            inner, output = seen[0][0][0], seen[0][1][0]
            seen.clear()
            plain, mixture.first = torch.nn.functional.linear(inner, *_linear_of(model)), None
            torch.testing.assert_close(output, slow_mixture(mixture, inner, plain), atol=1e-5, rtol=1e-4)
            alone.append(states)
        hook.remove()
        for batch in (whole, packed(whole, 3)):
            found = encode(model, batch.original, batch.text)
            for number, states in enumerate(alone):
                torch.testing.assert_close(found[batch.text == number], states, atol=2e-5, rtol=1e-3)


def test_the_gate_has_its_own_learning_rate():
    model = mixture_model("bert")
    factors = GateRate(model, 3.0).learning_rate_factors()
    assert factors and set(factors.values()) == {3.0}
    assert set(factors) == {name for name, _ in model.named_parameters() if ".domains.gate." in name}


def _linear_of(model):
    """Weight and bias of the linear layer that has the adapters."""
    (found,) = (module for module in model.modules() if hasattr(module, "domains"))
    return found.weight, found.bias


@each("kind", KINDS)
def test_the_gate_reads_no_padding_in_calls_of_other_code(kind):
    """End tasks call the model itself, with padding on either side."""
    model, ids = mixture_model(kind), padded().original[0][padded().text[0] >= 0]
    with torch.no_grad():
        alone = model.base_model(input_ids=ids[None], attention_mask=torch.ones_like(ids[None])).last_hidden_state[0]
        other, first = torch.randint(5, 50, (4,)), getattr(model.config, "pad_token_id", 0)
        for sides in ((ids, other), (other, ids)) if kind == "bert" else ((ids, other),):
            mask = torch.cat([torch.ones_like(part) if part is ids else torch.zeros_like(part) for part in sides])
            rows = torch.stack([torch.cat(sides), torch.cat(sides)])
            rows[1, mask == 0] = first
            places = torch.cat([torch.arange(len(part)) for part in sides])[None].expand(2, -1)
            given = {"position_ids": places} if kind == "bert" else {}
            found = model.base_model(input_ids=rows, attention_mask=mask.expand(2, -1), **given).last_hidden_state
            for row in found:
                torch.testing.assert_close(row[mask == 1], alone, atol=2e-5, rtol=1e-3)


def test_the_model_starts_as_the_base_model_and_one_more_adapter_changes_nothing():
    model, batch = tiny_model("bert").eval(), padded()
    attach(model)
    plain = encode(model, batch.original, batch.text)
    what = DomainAdapters((0,), (3,), 8, "text", "adapters")
    add_domain_adapters(model, what)
    assert torch.equal(encode(model, batch.original, batch.text)[batch.text >= 0], plain[batch.text >= 0])
    (mixture,) = (module.domains for module in model.modules() if hasattr(module, "domains"))
    for value in mixture.parameters():
        torch.nn.init.normal_(value)
    kept = {name: value.clone() for name, value in mixture.adapters[0].named_parameters()}
    shares = mixture.gate(torch.ones(1, 48)).softmax(-1)
    add_domain_adapters(model, replace(what, sizes=(3, 5)))
    assert all(torch.equal(value, kept[name]) for name, value in mixture.adapters[0].named_parameters())
    grown = mixture.gate.eval()(torch.ones(1, 48)).softmax(-1)
    torch.testing.assert_close(grown[:, 0] / grown[:, 1], shares[:, 0] / shares[:, 1])
    assert domain_adapters(model).sizes == (3, 5)


@each(("layout", "sources"), [(lambda one: one, [0, 1, 2, 1, 0, 2, 1, 0]), (packed, [0, 1, 0, 0, 0, 2, 1, 0])])
def test_the_terms_are_those_of_their_sources(layout, sources):
    """Every text is read by itself; tokens and texts of other sources do not count."""
    model, base = mixture_model("bert"), tiny_model("bert", seed=3).eval()
    attach(base)
    batch = replace(layout(padded()), source=torch.tensor(sources))
    engine = Engine(model, [DomainLanguageModelling(0.5), StateRetention(base, 2.0)])
    terms = engine.step([batch])
    losses, distances = [], []
    for number, source in enumerate(sources):
        mine = batch.text == number
        ids, labels = batch.masked[mine][None], batch.labels[mine][None]
        if source:
            pair = [encode(one, ids, torch.zeros_like(ids))[0] for one in (model, base)]
            distances += [float(((a - b) ** 2).mean().detach()) for a, b in zip(*pair, strict=True)]
        else:
            logits = model(input_ids=ids).logits[0]
            losses += [-float(logits[i].log_softmax(0)[t].detach()) for i, t in enumerate(labels[0]) if t >= 0]
    wanted = {"mlm": sum(losses) / len(losses), "retention": sum(distances) / len(distances)}
    for name, value in wanted.items():
        assert float(terms[name]) == pytest.approx(value, rel=1e-4)
    assert float(terms["loss"]) == pytest.approx(0.5 * wanted["mlm"] + 2 * wanted["retention"], rel=1e-4)
    nothing = replace(batch, source=torch.zeros(len(sources), dtype=torch.long))
    terms = engine.step([nothing])
    assert float(terms["retention"]) == 0
    assert terms["mlm"] == Engine(model, [LanguageModelling()]).step([nothing])["mlm"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The base model, and results of the method: on one domain, on another, and on the other after the one."""
    folder = tmp_path_factory.mktemp("mixda")
    base = save_tiny("bert", folder / "base")
    options = {**SHORT, "replay": Corpus.of(GENERAL), "steps": 2}
    adapt(base, Corpus.of(OWN), {"mixda": TINY}, folder / "a", **options)
    adapt(base, Corpus.of(GENERAL), {"mixda": TINY}, folder / "b", **options)
    with checked_steps():
        adapt(folder / "a", Corpus.of(GENERAL), {"mixda": TINY}, folder / "ab", **options)
    return folder


def test_only_the_new_adapter_and_the_gate_train(results):
    base, a, ab = (load_file(results / name / file) for name, file in zip(("base", "a", "ab"), FILES, strict=True))
    for name, value in base.items():
        assert torch.equal(a[name], value) and torch.equal(ab[name], value)
    changed = {name for name in ab if name not in a or not torch.equal(a[name], ab[name])}
    assert changed and all(".domains.gate." in name or ".domains.adapters.1." in name for name in changed)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModelForMaskedLM.from_pretrained(results / "ab")
    assert "2 domain adapters and a gate" in (results / "ab" / "README.md").read_text(encoding="utf-8")


def test_adapters_of_several_results_share_a_gate(results, tmp_path):
    both = {"adapters": f"{results / 'a'}, {results / 'b'}"}
    adapt(results / "base", Corpus.of(DOCUMENTS), {"mixda": both}, tmp_path / "both", **SHORT)
    assert read_json(tmp_path / "both" / "acclimate.json")["files"].keys() == {"adapter 0", "adapter 1"}
    found, a, b = (load_file(folder / WEIGHTS) for folder in (tmp_path / "both", results / "a", results / "b"))
    for name, value in a.items():
        if ".adapters." in name:
            assert torch.equal(found[name], value)
            assert torch.equal(found[name.replace("adapters.0", "adapters.1")], b[name])
    assert load_language_model(tmp_path / "both").model.config.acclimate_domain_adapters["sizes"] == [3, 3]
    names = {name for name in found if ".gate.9.weight" in name}
    assert names and all(found[name].abs().max() > 0 for name in names)


def test_an_end_task_uses_the_adapters(results, tmp_path):
    options = {"epochs": 1, "learning_rate": 1e-2, "progress": False}
    finetune(results / "ab", keyword_task(), out=tmp_path / "tuned", freeze=["adapters"], **options)
    before, after = load_file(results / "ab" / WEIGHTS), load_file(tmp_path / "tuned" / WEIGHTS)
    for name, value in before.items():
        if ".domains." in name:
            assert torch.equal(value, after[name]) == (".adapters." in name)


@each("auto", list(HEADS))
def test_end_tasks_that_skip_unread_tokens_compute_the_same(results, auto):
    model = with_head(auto, results / "ab")
    torch.manual_seed(1)
    for name, value in model.named_parameters():
        if ".domains." in name:
            torch.nn.init.normal_(value, std=0.5)
    expected = outputs(model, HEADS[auto])
    with skip_unread_tokens(model):
        found = outputs(model, HEADS[auto])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)


def test_what_does_not_fit_is_named(results, tmp_path, capsys):
    run = {**SHORT, "steps": 1}
    adapt(results / "base", Corpus.of(OWN), {"mixda": TINY}, tmp_path / "out", **{**run, "progress": True})
    heard = " ".join(capsys.readouterr().err.split())
    assert "There is no general text" in heard and "the gate reads the first token of each text" in heard
    save_tiny("bert", results / "other", seed=1)
    for start, settings, message in (
        ("other", {"adapters": str(results / "a")}, "were trained with another base model: '.*' differs"),
        ("a", {"adapters": str(results / "b")}, "has domain adapters already"),
        ("base", {"adapters": str(results / "base")}, "is no result of mixda"),
        ("base", {"layers": "0,2"}, "There is no layer 2: .* are 0 to 1"),
        ("base", {"layers": "1", "gate": "text"}, "the last layer may run for some tokens only; use gate=token"),
    ):
        with pytest.raises(UserError, match=message):
            adapt(results / start, Corpus.of(OWN), {"mixda": settings}, tmp_path / "x", **run)
    for method in installed(REGISTRY, ["adapter", "ensemble"]):
        with pytest.raises(UserError, match="adapters"):
            adapt(results / "a", Corpus.of(OWN), method, tmp_path / "x", **run)
    with pytest.raises(UserError, match="'mixda' does not work with an adapter"):
        adapt(results / "base", Corpus.of(OWN), "mixda", tmp_path / "x", adapter="lora", **run)
    with pytest.raises(UserError, match="has adapters, prompts or entity vectors of its own"):
        adapt(results / "a", Corpus.of(OWN), "lm", tmp_path / "x", adapter="lora", **run)
    for settings in ({"reduction": 0}, {"retention": -1}, {"gate_rate": 0}, {"layers": "x"}):
        with pytest.raises(UserError, match=next(iter(settings)).replace("_", ".")):
            get("mixda", **settings)
