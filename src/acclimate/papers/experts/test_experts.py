"""Experts per domain: equal to the dense model at first, each text read by its own, and ordinary models at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.domain_experts import DomainExperts
from acclimate.models.encoding import encode
from acclimate.models.families import reads_positions
from acclimate.models.probe import attach
from tests.papers import test_contract
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tiny import save_tiny, tiny_model

CITED = Path(test_contract.__file__).with_name("cited.jsonl")
CLS, SEP = 2, 3
TEXTS = [[CLS, 20, 21, SEP], [CLS, 30, 31, 32, 33, SEP], [CLS, 40, SEP], [CLS, 50, 51, 52, SEP], [CLS, 25, 35, SEP]]
DOMAINS = [2, 0, 1, 3, 2]
"""Domain of each text; 0 is none."""
LAYOUTS = [[[0], [1], [2], [3], [4]], [[0, 1, 2], [3, 4]], [[0, 1, 2, 3, 4]]]
"""Texts of each row."""


def rows(size, layout, texts=TEXTS, domains=DOMAINS):
    """Coded ids and text numbers of a layout."""
    lines = [[token + size * domains[place] for place in line for token in texts[place]] for line in layout]
    width = max(map(len, lines))
    numbers = [[place for place in line for _ in texts[place]] for line in layout]
    return (
        torch.tensor([line + [0] * (width - len(line)) for line in lines]),
        torch.tensor([line + [-1] * (width - len(line)) for line in numbers]),
    )


def read(model, size, layout, **options):
    """The states of each text of a layout."""
    ids, text = rows(size, layout, **options)
    states = encode(model, ids, text)
    return [states[text == place] for place in sorted(place for line in layout for place in line)]


def made(kind, domains=3):
    model = tiny_model(kind).eval()
    attach(model)
    return model, model.get_input_embeddings().num_embeddings, DomainExperts(model, domains, CLS)


def disturb(experts):
    """Give each expert and each first token other weights."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for routed in experts.routed.values():
            for weight in routed.parameters():
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
        experts.table.domains.add_(0.3 * torch.randn(experts.table.domains.shape, generator=generator))


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("distilbert", "modernbert", "electra")]


@pytest.mark.parametrize("kind", ["bert", "albert", *SLOW])
def test_a_text_is_read_as_the_ordinary_model_of_its_domain_reads_it(kind):
    """In padded and packed rows: at the start the base model, later the model that is written for the domain."""
    model, plain = tiny_model(kind).eval(), tiny_model(kind).eval()
    attach(plain)
    names, cut = plain.state_dict().keys(), reads_positions(plain)
    model, size, experts = made(kind)
    before = [read(plain, 0, [[place]])[0] for place in range(len(TEXTS))]
    for layout in LAYOUTS:
        for mine, expected in zip(read(model, size, layout), before, strict=True):
            torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-5)
    disturb(experts)
    found = [read(model, size, layout) for layout in LAYOUTS]
    experts.close()
    assert model.state_dict().keys() == names and reads_positions(model) == cut
    for domain in (0, 1, 2, 3):
        experts.use(domain - 1 if domain else None)
        for place in (place for place, own in enumerate(DOMAINS) if own == domain):
            (expected,) = read(model, 0, [[place]])
            assert (expected - before[place]).abs().max() > 0.01
            for states in found:
                torch.testing.assert_close(states[place], expected, atol=2e-6, rtol=1e-5)


def test_routing_changes_the_gradients_of_the_chosen_expert_only():
    """Its gradient is that of the dense model for the texts of its domain; texts without one are shared evenly."""
    model, size, experts = made("bert")
    dense = tiny_model("bert").eval()
    attach(dense)
    weights = [torch.linspace(-1, 1, len(text) * 32).view(len(text), 32) for text in TEXTS]

    def loss(states, places):
        return sum((states[place] * weights[place]).sum() for place in places)

    def gradients(places):
        dense.zero_grad()
        loss([read(dense, 0, [[place]])[0] for place in range(len(TEXTS))], places).backward()
        return {name: dense.get_submodule(name).weight.grad.clone() for name in experts.routed}

    for layout in LAYOUTS:
        model.zero_grad()
        loss(read(model, size, layout), [0, 2, 4]).backward()  # texts of domains 2, 1 and 2
        for name, expected in gradients([0, 4]).items():
            torch.testing.assert_close(experts.routed[name].experts[1].weight.grad, expected, atol=1e-5, rtol=1e-4)
        for name, expected in gradients([2]).items():
            torch.testing.assert_close(experts.routed[name].experts[0].weight.grad, expected, atol=1e-5, rtol=1e-4)
            assert not experts.routed[name].experts[2].weight.grad.any()
        assert experts.table.domains.grad[:2].abs().sum(1).gt(0).all() and not experts.table.domains.grad[2].any()
        model.zero_grad()
        loss(read(model, size, layout), [1]).backward()  # a text without a domain
        for name, expected in gradients([1]).items():
            for expert in experts.routed[name].experts:
                torch.testing.assert_close(3 * expert.weight.grad, expected, atol=1e-5, rtol=1e-4)


def test_layers_that_run_again_in_the_backward_pass_keep_the_domains_of_their_texts():
    model, size, experts = made("bert")
    disturb(experts)
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            model.train()
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        first, second = (read(model, size, LAYOUTS[0], domains=domains) for domains in (DOMAINS, [1, 1, 3, 2, 0]))
        sum(states.square().sum() for states in first + second).backward()
        found.append({name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-4, rtol=1e-3, msg=name)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of a base model, and that of its result."""
    folder = tmp_path_factory.mktemp("experts")
    base, method = save_tiny("bert", folder / "base"), {"experts": {"table": str(CITED)}}
    adapt(base, Corpus.of(DOCUMENTS), method, folder / "out", similarity="none", **SHORT)
    return base, folder / "out"


def test_the_results_are_ordinary_models_that_differ_in_their_feed_forward(results):
    _, out = results
    start, mean = (load_file(folder / "model.safetensors") for folder in results)
    folders = {name: out / "experts" / name for name in ("data", "food", "text")}
    assert sorted(path.name for path in (out / "experts").iterdir()) == sorted(folders)
    weights = {name: load_file(folder / "model.safetensors") for name, folder in folders.items()}
    table = "bert.embeddings.word_embeddings.weight"
    for name, value in mean.items():
        assert value.shape == start[name].shape
        each = torch.stack([found[name] for found in weights.values()])
        torch.testing.assert_close(value, each.mean(0), atol=1e-6, rtol=1e-5)
        own = ("intermediate.dense" in name or "output.dense" in name) and "attention" not in name
        if name == table:
            changed = (each != each[0]).any(-1).any(0)
            assert changed.nonzero().flatten().tolist() == [CLS]
        else:
            assert bool((each != each[0]).any()) == own, name
        assert "encoder" not in name or not torch.equal(value, start[name])
    _, info = transformers.AutoModelForMaskedLM.from_pretrained(folders["food"], output_loading_info=True)
    assert not info["missing_keys"]
    assert all((folder / "modules.json").is_file() for folder in (out, *folders.values()))


@pytest.mark.slow  # the import of sentence-transformers
def test_sentence_transformers_loads_each_encoder_and_routes_among_them(results):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folders, text = {path.name: path for path in (results[1] / "experts").iterdir()}, ["the soup was good"]
    alone = {name: sentence_transformers.SentenceTransformer(str(path)).encode(text) for name, path in folders.items()}
    assert abs(alone["food"] - alone["data"]).max() > 1e-4
    from sentence_transformers.models import Router

    routes = {name: list(sentence_transformers.SentenceTransformer(str(path))) for name, path in folders.items()}
    encoder = sentence_transformers.SentenceTransformer(modules=[Router(routes, default_route="text")])
    for name, vectors in alone.items():
        assert abs(encoder.encode(text, task=name) - vectors).max() < 1e-6


def test_mistakes_are_explained(tiny_bert, tmp_path):
    lines = [json.loads(line) for line in CITED.read_text().splitlines()]
    for found, message in (
        ([{**line, "domain": "food"} for line in lines], "only one domain; use the method pairs"),
        ([{**line, "domain": f"{line['domain']}/x"} for line in lines], "'data/x' of the table cannot be the name"),
        ([line for number, line in enumerate(lines) if number != 8], "'text' of the table has no two texts"),
        ([{**line, "domain": ""} if number else line for number, line in enumerate(lines)], "without a domain"),
    ):
        (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, found)))
        with pytest.raises(UserError, match=message):
            method = {"experts": {"table": str(tmp_path / "table.jsonl")}}
            adapt(tiny_bert, Corpus.of(DOCUMENTS), method, tmp_path / "x", **SHORT)
    for settings, options, message in (
        ({}, {}, "give a table of text, code and domain as 'experts table=FILE'"),
        ({"table": str(CITED)}, {"adapter": "lora"}, "copies of the feed-forward"),
    ):
        with pytest.raises(UserError, match=message):
            adapt(tiny_bert, Corpus.of(DOCUMENTS), {"experts": settings}, tmp_path / "x", **{**SHORT, **options})
