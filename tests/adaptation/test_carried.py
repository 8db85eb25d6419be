"""State that a model folder carries from one adaptation to the next."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.carried import CARRIED_FILE, CARRIED_TENSORS, MEMORY_CHARACTERS, Carried, share_memory
from acclimate.adaptation.method import Method
from acclimate.adaptation.options import AdaptOptions
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.base.options import build
from acclimate.data.documents import Corpus
from tests.cases import each
from tests.test_records import mutated, replaced
from tests.tiny import TEXTS, save_tiny

SHORT = {"steps": 2, "batch_size": 8, "max_length": 24, "precision": "fp32", "progress": False}
FIRST, SECOND, THIRD = (Corpus.of([f"{text} {word}" for text in TEXTS]) for word in ("one", "two", "three"))


@dataclass
class Counting(Method):
    """Leaves the number of adaptations so far, and a tensor for each."""

    name = "counting"

    def finish(self, context):
        number = len(context.carried.domains)
        context.carried.tensors[f"counting/{number}"] = torch.full((number + 1,), float(number))
        context.carried.records["counting"] = {"adaptations": number + 1}


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A model after one, two and three domains; the second method carries nothing itself."""
    folder = tmp_path_factory.mktemp("chain")
    start = save_tiny("bert", folder / "base")
    for number, (corpus, method) in enumerate([(FIRST, Counting()), (SECOND, "lm"), (THIRD, Counting())]):
        start = adapt(start, corpus, method, folder / str(number), **SHORT).out
    return folder


def test_state_travels_through_methods_that_do_not_use_it(chain):
    found = Carried.read(chain / "2")
    assert [domain["method"] for domain in found.domains] == ["counting", "lm", "counting"]
    assert [domain["documents"] for domain in found.domains] == [len(TEXTS)] * 3
    assert found.records == {"counting": {"adaptations": 3}}
    tensors = load_file(chain / "2" / CARRIED_TENSORS)
    assert {name: value.tolist() for name, value in tensors.items()} == {
        "counting/0": [0.0],
        "counting/2": [2.0, 2.0, 2.0],
    }
    assert not (chain / "base" / CARRIED_FILE).exists()
    assert CARRIED_TENSORS in read_json(chain / "2" / "acclimate.json")["checksums"]


def test_a_run_that_carries_nothing_writes_nothing_and_a_repeated_domain_counts_once(chain, tmp_path):
    plain = adapt(chain / "base", FIRST, "lm", tmp_path / "plain", **SHORT).out
    assert not list(plain.glob("carried.*")) and not Carried.read(plain)
    again = adapt(chain / "0", FIRST, "lm", tmp_path / "again", **SHORT).out
    assert len(Carried.read(again).domains) == 1


def test_a_model_of_another_shape_is_refused_by_name(chain, tmp_path):
    other = save_tiny("bert", tmp_path / "other", num_hidden_layers=1)
    for name in (CARRIED_FILE, CARRIED_TENSORS):
        shutil.copy(chain / "2" / name, other / name)
    with pytest.raises(UserError, match=r"belongs to a model whose num_hidden_layers is 2, but here it is 1"):
        adapt(other, FIRST, "lm", tmp_path / "out", **SHORT)
    state = Carried(tensors={"fisher/weight": torch.zeros(2, 3)})
    with pytest.raises(UserError, match=r"has the shape \(2, 3\), and in the model it is \(4, 3\)"):
        state.select("fisher/", like={"weight": torch.zeros(4, 3)})


def test_a_run_does_not_start_anew_where_tensors_are_gone(chain, tmp_path):
    start = shutil.copytree(chain / "2", tmp_path / "start")
    (start / CARRIED_TENSORS).unlink()
    with pytest.raises(UserError, match=r"is missing, or lacks 'counting/0', which carried.json next to it names"):
        adapt(start, FIRST, "lm", tmp_path / "out", **SHORT)


@each(("content", "words"), [("{", "is damaged"), ("[]", "is damaged"), (json.dumps({"format": 9}), "has format 9")])
def test_a_damaged_file_is_an_error_in_one_line(content, words, tmp_path):
    (tmp_path / CARRIED_FILE).write_text(content)
    with pytest.raises(UserError, match=words) as error:
        Carried.read(tmp_path)
    assert "\n" not in str(error.value)


def test_kept_texts_are_replayed_without_the_corpus_of_the_past(tmp_path, chain):
    keep = {"replay": "memory:6=0.5", "steps": 4}
    first = adapt(chain / "base", FIRST, "lm", tmp_path / "1", **SHORT | keep)
    assert not first.mix
    second = adapt(first.out, SECOND, "lm", tmp_path / "2", **SHORT | keep)
    replayed = second.mix[1]
    assert replayed["share"] == 0.5 and replayed["tokens"] > 0 and replayed["documents"] == 6
    one, two = (read_json(folder / CARRIED_FILE)["records"]["memory"] for folder in (first.out, second.out))
    assert [len(part["texts"]) for part in one] == [6] and [len(part["texts"]) for part in two] == [3, 3]
    assert {*two[0]["texts"]} <= {*one[0]["texts"]} <= {*FIRST} and {*two[1]["texts"]} <= {*SECOND}
    assert adapt(first.out, SECOND, "lm", tmp_path / "2", **SHORT | keep).steps == 4  # finished before
    with pytest.raises(UserError, match=re.escape("needs a number of texts to keep, as memory:500")):
        adapt(chain / "base", FIRST, "lm", tmp_path / "3", replay="memory:few", **SHORT)


def test_a_long_document_gives_a_piece_of_whole_words(chain, tmp_path):
    corpus = Corpus.of([" ".join(["food"] * 2000), "good food"])
    made = adapt(chain / "base", corpus, "lm", tmp_path / "out", replay="memory:2", **SHORT)
    texts = Carried.read(made.out).records["memory"][0]["texts"]
    assert {*map(len, texts)} <= {*range(MEMORY_CHARACTERS - 9, MEMORY_CHARACTERS + 1), 9}
    assert {word for text in texts for word in text.split()} == {"food", "good"}


def reservoir(sizes, most, rng):
    """Algorithm R of Vitter over the documents of all domains, one by one; the number that is kept of each domain."""
    kept = []
    for number, domain in enumerate(np.repeat(np.arange(len(sizes)), sizes)):
        if number < most:
            kept.append(domain)
        elif (place := rng.integers(number + 1)) < most:
            kept[place] = domain
    return np.bincount(kept, minlength=len(sizes))


def chained(sizes, most, rule, rng):
    parts = []
    for number, size in enumerate(sizes):
        texts = [f"{number}/{index}" for index in rng.permutation(size)[:most]]
        parts = share_memory([*parts, {"seen": size, "texts": texts}], most, rule, rng)
    return parts


def test_a_reservoir_has_the_distribution_of_the_sequential_algorithm():
    sizes, most, rng = (30, 10, 60), 12, np.random.default_rng(0)
    ours = np.array([[len(part["texts"]) for part in chained(sizes, most, "reservoir", rng)] for _ in range(1500)])
    theirs = np.array([reservoir(sizes, most, rng) for _ in range(1500)])
    error = np.sqrt(theirs.var(0) / 1500 * 2)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error).all()
    assert np.allclose(ours.var(0), theirs.var(0), rtol=0.25)


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    most=st.integers(1, 30),
    rule=st.sampled_from(["equal", "reservoir"]),
    seed=st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_a_memory_keeps_distinct_texts_of_their_domain_within_the_limit(sizes, most, rule, seed):
    parts = chained(sizes, most, rule, np.random.default_rng(seed))
    texts = [text for part in parts for text in part["texts"]]
    assert len(set(texts)) == len(texts) <= most
    assert all(text.startswith(f"{number}/") for number, part in enumerate(parts) for text in part["texts"])
    assert [part["seen"] for part in parts] == sizes
    if rule == "reservoir":
        assert len(texts) == min(most, sum(sizes))


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Models after a domain of each method that keeps state, and texts of the domain."""
    folder = tmp_path_factory.mktemp("states")
    start = save_tiny("bert", folder / "base")
    for method in ("ewc", "das", "der++"):
        adapt(start, FIRST, method, folder / method, replay="memory:4", **SHORT)
    return folder


@pytest.mark.needs("ewc", "das", "der")
@each("method", ["ewc", "das", "der++"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_state_of_any_form_is_read_or_refused_before_the_work(states, method, data, tmp_path_factory):
    """What is accepted also has the form that the end of a run needs."""
    folder = tmp_path_factory.getbasetemp() / "changed"
    folder.mkdir(exist_ok=True)
    valid = read_json(states / method / CARRIED_FILE)
    shutil.copy(states / method / CARRIED_TENSORS, folder)
    shutil.copy(states / method / "config.json", folder)
    (folder / CARRIED_FILE).write_text(json.dumps(mutated(data, valid)))
    try:
        found = Carried.read(folder)
    except UserError as error:
        assert CARRIED_FILE in str(error) or CARRIED_TENSORS in str(error)
        return
    found.kept_texts()
    options = build(AdaptOptions, states / "base", FIRST, "lm", folder / "out", replay="memory:2")
    found.close(options, SECOND, "lm")
    assert all(isinstance(text, str) for part in found.records["memory"] for text in part["texts"])


@pytest.mark.needs("ewc", "das", "der")
@each(
    ("method", "change", "words"),
    [
        ("ewc", lambda tensors: {name: -value for name, value in tensors.items()}, "negative or not finite"),
        ("das", lambda tensors: {name: value * float("nan") for name, value in tensors.items()}, "negative or not"),
        ("der++", lambda tensors: tensors | {"der++/places": tensors["der++/places"] + 99}, "damaged"),
        ("der++", lambda tensors: tensors | {"der++/entries": tensors["der++/entries"] + 9999}, "damaged"),
        ("der++", lambda tensors: tensors | {"der++/sizes": tensors["der++/sizes"] + 1}, "damaged"),
        ("ewc", None, "is damaged"),
        ("lm", None, "is damaged"),
    ],
)
def test_tensors_that_no_run_wrote_are_refused_before_the_training(states, tmp_path, method, change, words):
    folder = shutil.copytree(states / ("ewc" if method == "lm" else method), tmp_path / "state")
    file = folder / CARRIED_TENSORS
    if change is None:
        file.write_bytes(file.read_bytes()[:50])
    else:
        save_file(change(load_file(file)), file)
    with pytest.raises(UserError, match=words) as error:
        adapt(folder, SECOND, method, tmp_path / "out", **SHORT)
    assert "carried.safetensors" in str(error.value) or "der++" in str(error.value)


@pytest.mark.needs("ewc", "das", "der")
@each(("name", "value"), [("ewc", 5), ("ewc", {"domains": -1}), ("das", 5), ("das", [1]), ("der++", {}), ("der++", 1)])
def test_records_of_another_form_are_refused_before_the_training(states, tmp_path, name, value):
    folder = shutil.copytree(states / name, tmp_path / "state")
    state = read_json(folder / CARRIED_FILE)
    (folder / CARRIED_FILE).write_text(json.dumps(replaced(state, ("records", name), value)))
    with pytest.raises(UserError, match=rf"carried.json' is damaged \(records.{re.escape(name)}.* must be|is missing"):
        adapt(folder, SECOND, name, tmp_path / "out", **SHORT)
