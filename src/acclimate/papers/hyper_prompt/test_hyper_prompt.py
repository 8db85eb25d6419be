"""Prompts that a network makes from each text: what it computes in every layout, both terms, and use of the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from acclimate import finetune
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.engine.steps import Engine, make_reference
from acclimate.models.encoding import encode
from acclimate.models.loading import load_language_model, virtual_ids
from acclimate.models.probe import attach
from acclimate.models.prompts import Prompts, add_prompts, prompts_of
from acclimate.papers.hyper_prompt.objective import RandomPrompt, StateComparison, squared_cosine, squared_distance
from acclimate.parts.masking.base import Vocabulary
from acclimate.parts.objectives import ViewInput
from acclimate.tasks.loading import load_with_head
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.papers.virtual import run
from tests.parts.objectives.layouts import packed, padded
from tests.tasks.test_classification import keyword_task
from tests.tiny import save_tiny, tiny_model

PAD, CLS, SEP, MASK = 0, 2, 3, 4
LENGTH = 3
SETTINGS = {"length": LENGTH, "components": 4, "hidden": 5}


def prompted(kind="bert"):
    """A model with a network for prompts, the ids of its virtual tokens, and texts that end with them."""
    model = tiny_model(kind).eval()
    first = model.config.vocab_size
    model.resize_token_embeddings(first + LENGTH, mean_resizing=False)
    network = add_prompts(model, Prompts(first, LENGTH, 4, 5, (PAD, MASK)), seed=1)
    with torch.no_grad():  # far from equal shares
        network.weigh[-1].weight.mul_(20)
    attach(model)
    prompt = list(range(first, first + LENGTH))
    texts = [
        [CLS, 20, 21, SEP, *prompt],
        [CLS, 30, MASK, 31, MASK, MASK, 32, 33, SEP, *prompt],
        [CLS, 40, SEP, *prompt],
        [CLS, 50, 51, first + 1, 52, SEP, *prompt],  # a virtual token in the text is no prompt
    ]
    return model, network, prompt, texts


def slow_embeddings(model, network, text, words=None):
    """The embeddings of a text with its prompt, step by step."""
    table, own = model.get_input_embeddings().weight, text[:-LENGTH]
    vectors = [table[token] for token in own]
    if words is not None:
        return torch.stack(vectors + [table[word] for word in words])
    read = [table[token] for token in own if token not in (PAD, MASK)]
    norm, inner, _, outer = network.weigh
    mean = sum(read) / len(read)
    mean = (mean - mean.mean()) / (mean.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias
    scores = outer.weight @ torch.nn.functional.gelu(inner.weight @ mean + inner.bias) + outer.bias
    shares = scores.exp() / scores.exp().sum()
    mixed = sum(share * component for share, component in zip(shares, network.components, strict=True))
    return torch.stack([*vectors, *mixed])


def test_the_network_equals_plain_loops_in_padded_packed_and_joined_rows():
    model, network, prompt, texts = prompted()
    table, words = model.get_input_embeddings(), [7, 20, 11]
    size = table.num_embeddings
    coded = [*texts[0][:-LENGTH], *(i + size * (1 + word) for i, word in zip(prompt, words, strict=True))]
    given = [(text, None) for text in texts] + [(coded, words), (texts[1], None)]
    expected = [slow_embeddings(model, network, *one) for one in given]
    shares = {tuple(one[-LENGTH:].flatten().tolist()) for one in expected}
    assert len(shares) == 5, "prompts depend on the text, and on nothing else"
    rows = [ids for ids, _ in given]
    width = max(map(len, rows)) + 2
    layouts = [
        [[row] for row in rows],
        [rows],  # without padding
        [rows[:2], rows[2:3], rows[3:]],
    ]
    for layout in layouts:
        lines = [[token for text in line for token in text] for line in layout]
        width = max(map(len, lines)) + (2 if len(lines) > 1 else 0)
        ids = torch.tensor([line + [PAD] * (width - len(line)) for line in lines])
        found = table(ids)
        real = torch.cat([row[: len(line)] for row, line in zip(found, lines, strict=True)])
        torch.testing.assert_close(real, torch.cat(expected), atol=1e-6, rtol=1e-5)
    plain = torch.tensor([[CLS, 20, SEP, prompt[0], prompt[2], PAD]])
    assert torch.equal(table(plain), table.weight[plain]), "incomplete prompts are ordinary tokens"
    assert torch.equal(table(plain[:, :2]), table.weight[plain[:, :2]])


def test_gradients_reach_network_and_components_but_not_what_the_network_reads():
    model, network, _, texts = prompted()
    table = model.get_input_embeddings()
    table(torch.tensor([texts[0]]))[0, -LENGTH:].square().sum().backward()
    assert all(bool(weight.grad.abs().sum() > 0) for weight in network.parameters())
    assert table.weight.grad is None or not table.weight.grad.any()


def test_random_prompts_replace_the_virtual_tokens_of_each_text_by_its_own_words():
    ids = np.array([[2, 10, 100, 101, 2, 11, 100, 101], [2, 12, 13, 100, 101, 0, 0, 0]])
    text = np.array([[0] * 4 + [1] * 4, [2] * 5 + [-1] * 3])
    vocabulary = Vocabulary(4, np.arange(5, 100))
    drawn, same = RandomPrompt((100, 101), 102)(ids, text, ids > 4, vocabulary, [7, 8, 9])
    again, _ = RandomPrompt((100, 101), 102)(ids[1:], np.where(text[1:] < 0, -1, 0), ids[1:] > 4, vocabulary, [9])
    assert same is text and (drawn[1] == again[0]).all(), "the words depend on the seed of the text alone"
    virtual = np.isin(ids, (100, 101))
    assert (drawn[~virtual] == ids[~virtual]).all() and (drawn[virtual] % 102 == ids[virtual]).all()
    words = drawn[virtual] // 102 - 1
    assert ((words >= 5) & (words < 100)).all() and len({tuple(words[place : place + 2]) for place in (0, 2, 4)}) == 3


def test_both_terms_equal_plain_loops_in_padded_and_packed_rows():
    model, _, prompt, texts = prompted()
    size, texts = model.get_input_embeddings().num_embeddings, texts[:3]
    drawn, ids = RandomPrompt(tuple(prompt), size), tuple(prompt)
    terms = [
        StateComparison("agreement", squared_distance, drawn, ids, 2.0),
        StateComparison("disagreement", squared_cosine, "original", ids, 0.5),
    ]
    reference = make_reference(terms, model)
    with torch.no_grad():
        for weight in model.bert.encoder.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    batch = padded(texts, rewritings=Engine(model, terms, reference=reference).rewritings)
    coded = batch.view_input(drawn).ids
    squares, cosines = [], []
    for number in range(len(texts)):
        text = batch.original[number][batch.text[number] >= 0].tolist()
        states = []
        for reader, ids in ((model, coded[number, : len(text)]), (model, text), (reference, text[:-LENGTH])):
            ids = torch.as_tensor(ids)[None]
            states.append(encode(reader, ids, torch.zeros_like(ids))[0, : len(text) - LENGTH])
        drawn, own, before = states
        squares += [((a - b) ** 2).sum() / len(a) for a, b in zip(drawn, before, strict=True)]
        cosines += [((a @ b) / (a.norm() * b.norm())) ** 2 for a, b in zip(own, before, strict=True)]
    expected = [sum(squares) / len(squares), sum(cosines) / len(cosines)]
    (2.0 * expected[0] + 0.5 * expected[1]).backward()
    wanted = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    expected = [float(value.detach()) for value in expected]
    assert expected[0] > 1e-3 and expected[1] < 0.999
    shared = packed(batch)
    for how, (ids, number, *_) in shared.rewritten.items():
        shared.rewritten[how] = ViewInput(ids, torch.where(torch.isin(ids, torch.tensor(prompt)), -1, number))
    for rows in (batch, shared):
        model.zero_grad()
        found = Engine(model, terms, reference=reference).step([rows])
        assert [float(found[name]) for name in ("agreement", "disagreement")] == pytest.approx(expected, rel=1e-4)
        for name, value in model.named_parameters():
            if name in wanted:
                torch.testing.assert_close(value.grad, wanted[name], atol=1e-5, rtol=1e-3, msg=name)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A result from a tiny BERT, whose text is not the tests'."""
    folder = tmp_path_factory.mktemp("hyper")
    save_tiny("bert", folder / "base")
    run(folder / "base", "hyper-prompt", folder / "one", SETTINGS)
    return folder


def test_the_result_needs_acclimate_and_says_so(adapted):
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModelForMaskedLM.from_pretrained(adapted / "one")
    card = (adapted / "one" / "README.md").read_text()
    assert "needs acclimate" in card and "a network for prompts of 3 tokens" in card
    loaded = load_language_model(adapted / "one")
    assert len(virtual_ids(loaded.tokenizer)) == LENGTH == prompts_of(loaded.model.config).length
    first, second = (loaded.tokenizer(text, return_tensors="pt")["input_ids"] for text in ("bad soup", "test data"))
    table = loaded.model.get_input_embeddings()
    assert not torch.allclose(table(first)[0, -LENGTH:], table(second)[0, -LENGTH:])
    assert torch.equal(table(first)[0, :-LENGTH], table.weight[first[0, :-LENGTH]])


def test_an_end_task_reads_the_prompts_and_trains_the_network(adapted, tmp_path):
    finetune(adapted / "one", keyword_task(), out=tmp_path / "tuned", epochs=1, learning_rate=1e-3, progress=False)
    auto = transformers.AutoModelForSequenceClassification
    before = load_language_model(adapted / "one").model.get_input_embeddings().prompts.state_dict()
    model, tokenizer, _ = load_with_head(auto, tmp_path / "tuned", {}, 24, torch.device("cpu"), "classifier")
    after = model.get_input_embeddings().prompts.state_dict()
    assert before.keys() == after.keys() and not torch.equal(before["components"], after["components"])
    ids = tokenizer("the food", return_tensors="pt")
    logits = model.eval()(**ids).logits
    with torch.no_grad():
        model.get_input_embeddings().prompts.components.mul_(-5.0)
    assert not torch.allclose(logits, model(**ids).logits), "the classifier reads the prompt"


@pytest.mark.slow
def test_the_next_domain_trains_the_same_network(adapted, tmp_path):
    run(adapted / "one", "hyper-prompt", tmp_path / "two", SETTINGS)
    one, two = (load_language_model(folder).model for folder in (adapted / "one", tmp_path / "two"))
    assert one.get_input_embeddings().weight.shape == two.get_input_embeddings().weight.shape
    assert prompts_of(one.config) == prompts_of(two.config)
    changes = [float((a - b).detach().abs().max()) for a, b in zip(one.parameters(), two.parameters(), strict=True)]
    assert 0 < max(changes) < 0.1


def test_mistakes_are_explained(adapted, tmp_path):
    for options, message in (
        ({"method": {"hyper-prompt": {**SETTINGS, "length": 4}}}, "give length=3 components=4 hidden=5"),
        ({"method": "prompt"}, "already has virtual tokens"),
        ({"method": "lm", "adapter": "lora r=2"}, "adapters, prompts or entity vectors of its own"),
        ({"method": "lm", "new_tokens": 5}, "prompts of its own, whose embedding layer cannot grow"),
    ):
        with pytest.raises(UserError, match=message):
            adapt(adapted / "one", Corpus.of(DOCUMENTS), out=tmp_path / "x", **{**SHORT, **options})
    for given in ({"length": 0}, {"components": 0}, {"hidden": 0}, {"agreement": -1}, {"disagreement": -1}):
        with pytest.raises(UserError, match=next(iter(given))):
            get("hyper-prompt", **given)
