"""Former names of methods: the same method, and the same results."""

from __future__ import annotations

import json

import pytest

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.method import current_name, get, lookup, names, oldest_name
from acclimate.base.errors import UserError
from acclimate.base.registry import Registry
from acclimate.data.documents import Corpus
from tests.kills import counted
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.study.fakes import files, graph_of, of_kind, study

RENAMED = ("adapter", "deit", "infoword", "kd", "prompt", "simcse", "taco", "tacl")


def test_a_former_name_gives_the_same_method():
    for name in RENAMED:
        former = f"mlm-{name}"
        assert lookup(former) is lookup(name) and get(former).name == name
        assert (current_name(former), oldest_name(name), oldest_name(former)) == (name, former, former)
    assert not any(name.startswith("mlm-") for name in names())
    assert current_name("unknown") == oldest_name("unknown") == "unknown"
    with pytest.raises(UserError, match="Did you mean 'kd'"):
        get("mkd")


def test_two_entries_cannot_share_a_name():
    registry = Registry("acclimate.methods", "method", "methods")
    registry.register("new", aliases=("old",))(type("First", (), {}))
    for name, aliases in (("old", ()), ("other", ("old",)), ("other", ("new",))):
        with pytest.raises(ValueError, match="two methods have the name"):
            registry.register(name, aliases=aliases)(type("Second", (), {}))


def test_a_result_under_the_former_name_is_found(tiny_bert, tmp_path):
    out, corpus = tmp_path / "out", Corpus.of(DOCUMENTS)
    first = adapt(tiny_bert, corpus, "kd", out, **SHORT)
    manifest = json.loads((out / "acclimate.json").read_text())
    assert manifest["method"] == "kd"
    (out / "acclimate.json").write_text(json.dumps(manifest | {"method": "mlm-kd"}))
    with counted() as steps:
        for name in ("kd", "mlm-kd"):
            found = adapt(tiny_bert, corpus, name, out, **SHORT)
            assert (found.method, found.losses) == ("kd", first.losses)
    assert not steps


def test_a_study_finds_results_under_both_names(tmp_path):
    folder = files(tmp_path / "data")
    now, before = (of_kind(graph_of(study(folder, methods=["none", name])), "adapt") for name in ("kd", "mlm-kd"))
    assert [job.key for job in now] == [job.key for job in before]
    assert {job.method for job in now} == {"mlm-kd"}, "the key of results that were stored under this name"
    assert {job.place.method for job in now} == {"kd"}


def test_a_study_refuses_a_method_without_meaning_for_a_model(tiny_llama):
    from acclimate.study.backend import Backend

    assert Backend().has_head(str(tiny_llama), 64, ["none", "lm", "kd"])
    with pytest.raises(UserError, match="Method 'selective' chooses the tokens to mask"):
        Backend().has_head(str(tiny_llama), 64, ["lm", "selective"])
