"""A memory of a domain: neighbors by brute force, its loss, training, and its mixture with other models."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import merge
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.evaluation.lm_loss import Memory as Mixture
from acclimate.evaluation.lm_loss import language_model_loss, mix_logits
from acclimate.models.loading import load_language_model
from acclimate.papers.memory.merge import MemoryProcessor
from acclimate.papers.memory.method import Datastore, _divergence, find_places
from tests.parts.objectives.layouts import cut, packed, padded
from tests.tiny import TEXTS, decoder_tokenizer, save_tiny

OPTIONS = {"steps": 12, "batch_size": 8, "max_length": 24, "precision": "fp32", "progress": False}


def brute_force(keys, tokens, places, query, place, neighbors, temperature, vocabulary):
    """Return the distribution of the nearest entries of other places, sorted one by one."""
    others = [number for number in range(len(keys)) if places[number] != place]
    distances = sorted((float(((keys[number] - query) ** 2).sum()), number) for number in others)
    weights = np.zeros(vocabulary)
    for distance, number in distances[:neighbors]:
        weights[tokens[number]] += math.exp(-distance / temperature)
    return weights / weights.sum()


@settings(max_examples=30, deadline=None)
@given(
    entries=st.integers(2, 30), neighbors=st.integers(1, 12), temperature=st.floats(0.5, 20), seed=st.integers(0, 99)
)
def test_the_distribution_equals_that_of_brute_force(entries, neighbors, temperature, seed):
    rng = np.random.default_rng(seed)
    keys, tokens = rng.normal(size=(entries, 3)), rng.integers(0, 7, entries)
    places = np.arange(entries)
    # One of another place; the state of an entry at another place; the places of entries, near their states.
    queries = np.concatenate([rng.normal(size=(1, 3)), keys[:1], keys[:2] + 0.1 * rng.normal(size=(2, 3))])
    asked = np.array([-1, -2, 0, 1])
    values = (torch.tensor(keys, dtype=torch.float32), torch.tensor(tokens), torch.tensor(places))
    store = Datastore(*values, neighbors, temperature)
    found, chances = store.find(torch.tensor(queries, dtype=torch.float32), torch.tensor(asked))
    made = torch.zeros(len(queries), 7).scatter_add_(1, found, chances)
    pairs = zip(queries, asked, strict=True)
    expected = [brute_force(keys, tokens, places, *one, neighbors, temperature, 7) for one in pairs]
    np.testing.assert_allclose(made, np.array(expected), atol=1e-4)
    logits = torch.tensor(rng.normal(size=(len(queries), 7)), dtype=torch.float32)
    slow = [
        sum(p * (math.log(p) - float(logs)) for p, logs in zip(row, own, strict=True) if p > 0)
        for row, own in zip(made.tolist(), logits.log_softmax(-1), strict=True)
    ]
    np.testing.assert_allclose(_divergence(logits, found, chances), slow, atol=1e-4)


def test_entries_of_the_same_place_alone_predict_nothing():
    store = Datastore(torch.ones(2, 3), torch.tensor([1, 2]), torch.tensor([5, 5]), 4, 1.0)
    assert not store.find(torch.ones(1, 3), torch.tensor([5]))[1].any()


def test_places_depend_on_text_and_position_alone():
    """Not on masks, packing or micro-batches."""
    whole, again = padded(rate=0.5), padded(rate=0.5, seed=1)
    full = [replace(batch, labels=torch.where(batch.text >= 0, batch.original, -100)) for batch in (whole, again)]
    places = find_places(full[0])
    assert len(places.unique()) == full[0].tokens and torch.equal(places, find_places(full[1]))
    assert torch.equal(places, find_places(packed(full[0], 3)))
    assert torch.equal(places, torch.cat([find_places(piece) for piece in cut(full[0], 2)]))
    chosen = full[0].original.where(whole.labels >= 0, -100)[whole.text >= 0] >= 0
    assert torch.equal(places[chosen], find_places(whole))


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    """A memory that was trained with a larger expert of the same tokenizer, and the expert."""
    folder = tmp_path_factory.mktemp("memory")
    expert = save_tiny("llama", folder / "expert", 3, hidden_size=48, intermediate_size=64, head_dim=12)
    start = save_tiny("llama", folder / "start", 1)
    given = {"expert": str(expert), "neighbors": 8, "entries": 150}
    result = adapt(start, Corpus.of(TEXTS), {"memory": given}, folder / "out", learning_rate=5e-3, **OPTIONS)
    return folder / "out", expert, result


def test_a_memory_learns_from_an_expert_and_loads_anywhere(memory):
    folder, _, result = memory
    assert set(result.losses) == {"clm", "memory", "loss"}
    log = [json.loads(line)["terms"] for line in (folder / "log.jsonl").read_text().splitlines()]
    assert log[-1]["memory"] < log[0]["memory"] and log[-1]["clm"] < log[0]["clm"]
    _, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())


def test_a_mixture_is_measured_like_one_model(memory, tmp_path):
    folder, expert, _ = memory
    loaded, other = load_language_model(expert), load_language_model(folder)
    found = language_model_loss(
        loaded.model, TEXTS, tokenizer=loaded.tokenizer, max_length=16, memory=Mixture(other.model, 0.3)
    )
    plain, small = (transformers.AutoModelForCausalLM.from_pretrained(one).eval() for one in (expert, folder))
    tokenizer, total, count = decoder_tokenizer("llama"), 0.0, 0
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        if ids.shape[1] > 16:
            continue
        with torch.no_grad():
            chances = [model(ids).logits.softmax(-1)[0, :-1].double() for model in (plain, small)]
        mixed = (0.7 * chances[0] + 0.3 * chances[1]).log().gather(1, ids[0, 1:, None])
        total, count = total - float(mixed.sum()), count + 1
        index = TEXTS.index(text)
        assert found["per_text"][index] == pytest.approx(-float(mixed.sum()), rel=1e-5)
    assert count
    for name, some in (("domain", TEXTS[:5]), ("general", TEXTS[5:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(some))
    texts = {name: tmp_path / f"{name}.txt" for name in ("domain", "general")}
    result = merge(expert, {"memory": {"memory": folder}}, tmp_path / "path", alphas="0.25", progress=False, **texts)
    assert [row["alpha"] for row in result.path] == [0, 0.25, 1] and not result.has_model
    for place, model in ((0, expert), (2, folder)):
        nats = language_model_loss(model, TEXTS[:5])["nats"]
        assert result.path[place]["domain"]["nats"] == pytest.approx(nats, abs=1e-5)
    with pytest.raises(UserError, match="other tokens than"):
        grown = save_tiny("llama", tmp_path / "grown")
        tokenizer.add_tokens(["new"])
        tokenizer.save_pretrained(grown)
        model = transformers.AutoModelForCausalLM.from_pretrained(grown)
        model.resize_token_embeddings(len(tokenizer))
        model.save_pretrained(grown)
        merge(expert, {"memory": {"memory": grown}}, tmp_path / "no", alphas="0.25", progress=False, **texts)
    with pytest.raises(UserError, match="'memory' needs the parameter 'memory'"):
        merge(expert, "memory", tmp_path / "no", alphas="0.25", progress=False, **texts)


def test_generation_with_a_memory_takes_the_most_probable_token_of_the_mixture(memory):
    folder, expert, _ = memory
    large, small = (transformers.AutoModelForCausalLM.from_pretrained(one).eval() for one in (expert, folder))
    ids = decoder_tokenizer("llama")("the food", return_tensors="pt")["input_ids"].repeat(2, 1)
    ids[1, -1] = 9
    processors = transformers.LogitsProcessorList([MemoryProcessor(small, 0.4)])
    made = large.generate(ids, logits_processor=processors, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    expected = ids
    for _ in range(5):
        with torch.no_grad():
            own, other = (model(expected).logits[:, -1] for model in (large, small))
        own[:, large.generation_config.eos_token_id] = -torch.inf  # min_new_tokens
        mixed = (0.6 * own.softmax(-1) + 0.4 * other.softmax(-1)) * own.isfinite()
        expected = torch.cat([expected, mixed.argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(made, expected)
    read = large.generate(ids[:1], logits_processor=processors, max_new_tokens=2, min_new_tokens=2, do_sample=False)
    assert torch.equal(read, expected[:1, : ids.shape[1] + 2])  # another text with the same processor
    with pytest.raises(ValueError, match="between 0 and 1"):
        MemoryProcessor(small, 2)


def test_vocabularies_with_unused_rows_are_mixed():
    logits, wide = torch.randn(3, 5), torch.randn(3, 7)
    for memory in (wide, wide[:, :4]):
        kept = memory[:, :5].softmax(-1)
        kept = torch.cat([kept, torch.zeros(3, 5 - kept.shape[1])], dim=1)
        for share in (0.0, 0.25, 1.0):
            expected = (1 - share) * logits.softmax(-1) + share * kept
            torch.testing.assert_close(mix_logits(logits, memory, share).exp(), expected)


def test_parameters_that_do_not_fit_are_refused(tiny_bert, tiny_llama, tmp_path):
    for wrong, message in (({"weight": 0}, "share of the loss"), ({"neighbors": 0}, "neighbors")):
        with pytest.raises(UserError, match=message):
            get("memory", **wrong)
    with pytest.raises(UserError, match="cannot be the teacher"):
        adapt(tiny_llama, Corpus.of(TEXTS), {"memory": {"expert": str(tiny_bert)}}, tmp_path / "out", **OPTIONS)
