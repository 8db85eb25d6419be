"""DGA end to end on a tiny model."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from acclimate.corpus import Corpus
from acclimate.errors import UserError
from acclimate.training import adapt, cache_folder
from acclimate.training.method import Method
from tests.methods.test_contract import DOCUMENTS, SHORT


def test_the_update_of_a_head_is_scaled_by_one_minus_its_importance(tiny_bert, tmp_path):
    settings = {"importance_tokens": 300, "contrast_weight": 0}
    common = {**SHORT, "steps": 1, "weight_decay": 0.0, "warmup": 0.0}
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "mlm", **common)
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "dga", tmp_path / "dga", settings=settings, **common)
    start, mlm, dga = (
        load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "mlm", tmp_path / "dga")
    )
    from acclimate.updates import normalize_importance

    kept = cache_folder().glob("importance/*/*/tensors.safetensors")
    importance = normalize_importance(load_file(max(kept, key=lambda path: path.stat().st_mtime))["H"])
    for layer in range(2):
        name = f"bert.encoder.layer.{layer}.attention.self.value.weight"
        ratio = (dga[name] - start[name]).view(4, -1).norm(dim=1) / (mlm[name] - start[name]).view(4, -1).norm(dim=1)
        torch.testing.assert_close(ratio, 1 - importance[layer], atol=0.02, rtol=0.05)
    free = "bert.encoder.layer.0.intermediate.dense.weight"
    torch.testing.assert_close(dga[free], mlm[free], atol=1e-6, rtol=1e-4)


def test_the_cache_key_of_importance_covers_its_inputs(tiny_bert, tmp_path, monkeypatch):
    import acclimate.training.importance as module

    calls = []
    measure = module.summed_importance

    def counted(*args, **kwargs):
        calls.append(1)
        return measure(*args, **kwargs)

    monkeypatch.setattr(module, "summed_importance", counted)
    documents = [*DOCUMENTS, "a text of this test alone"]

    def run(name, seed=0, dropout=None, **settings):
        settings = {"importance_tokens": 100, **settings}
        options = {**SHORT, "seed": seed, "dropout": dropout}
        adapt(tiny_bert, Corpus.of(documents), "dga", tmp_path / name, settings=settings, **options)

    run("a")
    run("b", contrast_weight=0.5)
    assert len(calls) == 1
    run("c", importance_tokens=150)
    run("d", importance_reads="logits")
    run("e", seed=3)
    assert len(calls) == 4
    run("f", dropout=0.3)
    assert len(calls) == 5, "dropout is part of the cache key"


def test_a_registered_method_works_without_other_edits(tiny_bert, tmp_path):
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
        del registry.REGISTRY.entries["frozen-embeddings"]


ABLATIONS = {
    "without contrast": ({"contrast_weight": 0}, 1),
    "random": ({"importance": "random"}, 3),
    "domain": ({"knowledge": "domain"}, 4),
    "H,I": ({"parts": "H,I"}, 3),
    "H,I,O": ({"parts": "H,I,O"}, 3),
    "H,I,O,E": ({"parts": "H, I, O, E"}, 3),
}
PROTECTED = {"H": "attention.self.query", "I": "intermediate.dense", "O": ".0.output.dense", "E": "word_embeddings"}
"""For each part, a substring of the name of a weight that belongs only to its units."""


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_has_the_right_views_gates_and_masks(tiny_bert, tmp_path, name, monkeypatch):
    module = sys.modules["acclimate.training.adapt"]
    engines = []

    class Watched(module.Engine):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            engines.append(self)

    monkeypatch.setattr(module, "Engine", Watched)
    methods = []
    lookup = module.get

    def noted(*args, **options):
        methods.append(lookup(*args, **options))
        return methods[-1]

    monkeypatch.setattr(module, "get", noted)
    settings, views = ABLATIONS[name]
    result = adapt(
        tiny_bert,
        Corpus.of(DOCUMENTS),
        "dga",
        tmp_path / "out",
        settings={"importance_tokens": 100, **settings},
        **SHORT,
    )
    assert engines[-1].student_views == views
    assert ("contrast" in result.losses) == (views > 1)
    parts = settings.get("parts", "H").replace(" ", "").split(",")
    (method,) = methods
    assert list(method._importance) == parts
    for contrast in engines[-1].over_batch:
        assert list(contrast.general.gates.values) == parts
        assert (contrast.anchor.gates is None) == (name != "domain")
    protected = {id(weight) for weight, _ in method._mask.scaled}
    names = [key for key, weight in engines[-1].readers["student"].named_parameters() if id(weight) in protected]
    assert {part for part, piece in PROTECTED.items() if any(piece in key for key in names)} == set(parts)
    before, after = (load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "out"))
    assert not torch.equal(
        before["bert.encoder.layer.0.output.dense.weight"], after["bert.encoder.layer.0.output.dense.weight"]
    )


def test_the_domain_contrast_gates_with_one_minus_the_importance():
    from acclimate.objectives import GeneralKnowledgeContrast

    importance = {"H": torch.rand(2, 4), "O": torch.rand(2, 32)}
    term = GeneralKnowledgeContrast(importance, knowledge="domain")
    assert term.anchor.gates is term.positive.gates
    assert term.anchor.draw != term.positive.draw
    for part, values in importance.items():
        torch.testing.assert_close(term.anchor.gates.values[part] + values, torch.ones_like(values))
        assert torch.equal(term.general.gates.values[part], values)


def test_random_importance_is_determined_by_the_seed():
    from acclimate.training.method import get

    drawn = []
    for seed in (0, 0, 1):
        method = get("dga", importance="random")
        units = {"H": [SimpleNamespace(units=4)] * 2}
        run = SimpleNamespace(units=lambda parts, units=units: units, seed=seed, device="cpu", preparation={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("acclimate.methods.dga.SoftMask", lambda *args, **options: None)
            method.prepare(run)
        drawn.append(method._importance["H"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_an_unknown_part_is_an_error():
    from acclimate.training.method import get

    with pytest.raises(UserError, match=r"dga.*parts"):
        get("dga", parts="H,X")


def test_an_empty_list_of_parts_is_an_error():
    from acclimate.training.method import get

    with pytest.raises(UserError, match="parts is empty"):
        get("dga", parts=[])


def test_domain_knowledge_without_contrast_is_an_error():
    from acclimate.training.method import get

    with pytest.raises(UserError, match="has no effect"):
        get("dga", contrast_weight=0, knowledge="domain")
