"""DGA end to end on a tiny model."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from tests.methods.test_contract import DOCUMENTS, SHORT

from acclimate.corpus import Corpus
from acclimate.training import adapt, cache_folder
from acclimate.training.method import Method


def test_heads_move_less_the_more_important_they_are(tiny_bert, tmp_path):
    settings = {"importance_tokens": 300, "contrast_weight": 0}
    common = {**SHORT, "steps": 1, "weight_decay": 0.0, "warmup": 0.0}
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "mlm", **common)
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "dga", tmp_path / "dga", settings=settings, **common)
    start, mlm, dga = (
        load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "mlm", tmp_path / "dga")
    )
    from acclimate.updates import normalise

    file = max(cache_folder().glob("importance/*/tensor.safetensors"), key=lambda path: path.stat().st_mtime)
    importance = normalise(load_file(file)["tensor"])
    for layer in range(2):
        name = f"bert.encoder.layer.{layer}.attention.self.value.weight"
        ratio = (dga[name] - start[name]).view(4, -1).norm(dim=1) / (mlm[name] - start[name]).view(4, -1).norm(dim=1)
        torch.testing.assert_close(ratio, 1 - importance[layer], atol=0.02, rtol=0.05)
    free = "bert.encoder.layer.0.intermediate.dense.weight"
    torch.testing.assert_close(dga[free], mlm[free], atol=1e-6, rtol=1e-4)


def test_importance_is_cached_by_what_determines_it(tiny_bert, tmp_path, monkeypatch):
    import acclimate.methods.dga as module

    calls = []
    measure = module.dropout_importance

    def counted(*args, **kwargs):
        calls.append(1)
        return measure(*args, **kwargs)

    monkeypatch.setattr(module, "dropout_importance", counted)
    documents = [*DOCUMENTS, "a text of this test alone"]

    def run(name, seed=0, **settings):
        settings = {"importance_tokens": 100, **settings}
        adapt(tiny_bert, Corpus.of(documents), "dga", tmp_path / name, settings=settings, **{**SHORT, "seed": seed})

    run("a")
    run("b", contrast_weight=0.5)
    assert len(calls) == 1
    run("c", importance_tokens=150)
    run("d", importance_reads="logits")
    run("e", seed=3)
    assert len(calls) == 4


def test_a_method_in_one_file_shows_up_everywhere(tiny_bert, tmp_path):
    from dataclasses import dataclass

    from acclimate.training import method as registry

    @registry.register("frozen-embeddings", summary="for this test")
    @dataclass
    class Frozen(Method):
        loud: bool = False

        def prepare(self, run):
            run.model.get_input_embeddings().weight.requires_grad_(False)

    try:
        assert "frozen-embeddings" in registry.names()
        adapt(
            tiny_bert, Corpus.of(DOCUMENTS), "frozen-embeddings", tmp_path / "out", settings={"loud": "yes"}, **SHORT
        )
        before, after = (load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "out"))
        name = "bert.embeddings.word_embeddings.weight"
        assert torch.equal(before[name], after[name])
        other = "bert.encoder.layer.0.output.dense.weight"
        assert not torch.equal(before[other], after[other])
    finally:
        del registry._methods["frozen-embeddings"]
