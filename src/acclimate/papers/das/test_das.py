"""DAS over two domains of a tiny model: what is carried, what is protected, and the ablations."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.carried import CARRIED_TENSORS, Carried
from acclimate.adaptation.method import get
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.papers.das import method as das
from acclimate.papers.dga import method as dga
from acclimate.parts.objectives import GeneralKnowledgeContrast, TextContrast
from acclimate.parts.updates import normalize_importance
from tests.cases import each
from tests.tiny import TEXTS, save_tiny

SHORT = {"steps": 2, "batch_size": 8, "max_length": 24, "precision": "fp32", "progress": False, "learning_rate": 1e-3}
CHEAP = {"importance_tokens": 200}
FIRST, SECOND = (Corpus.of([f"{text} {word}" for text in TEXTS]) for word in ("one", "two"))
LAYER = "bert.encoder.layer.{}."
PLACES = {"H": "attention.self.value.weight", "I": "intermediate.dense.weight", "O": "output.dense.weight"}
"""Weights whose rows are the units of a part."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A model after two domains, and what was measured on the way: what was read, and the importance."""
    folder, measured = tmp_path_factory.mktemp("das"), []

    def record(run, units, tokens, reads, error):
        found = measure(run, units, tokens, reads, error)
        assert all(weight.grad is None for weight in run.model.parameters()), "no gradient is left for the first step"
        measured.append((reads, found.raw))
        return found

    measure = dga.measure_importance
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dga, "measure_importance", record)
        start = save_tiny("bert", folder / "base")
        for name, corpus in (("first", FIRST), ("second", SECOND)):
            start = adapt(start, corpus, {"das": CHEAP}, folder / name, **SHORT).out
    return folder, measured


def test_what_is_carried_is_the_maximum_of_the_normalized_importances(chain):
    """General knowledge is measured once, before the first domain, and each domain after its last step."""
    folder, measured = chain
    assert [reads for reads, _ in measured] == ["hidden", "loss", "loss"]
    for name, count in (("first", 2), ("second", 3)):
        carried = Carried.read(folder / name)
        tensors = load_file(folder / name / CARRIED_TENSORS)
        assert set(tensors) == {"das/H", "das/I", "das/O"} and len(carried.records["das"]) == count - 1
        for part in ("H", "I", "O"):
            each_normalized = [normalize_importance(raw[part]) for _, raw in measured[:count]]
            torch.testing.assert_close(tensors[f"das/{part}"], torch.stack(each_normalized).amax(0))
            assert not torch.allclose(each_normalized[0], each_normalized[1])
    assert len({round(carried.records["das"][0]["mean_protection"][part], 6) for part in "HIO"}) == 3


def test_the_second_domain_moves_each_unit_by_one_minus_what_is_carried(chain, tmp_path):
    folder, _ = chain
    options = SHORT | {"steps": 1, "weight_decay": 0.0, "warmup": 0.0}
    adapt(folder / "first", SECOND, "lm", tmp_path / "lm", **options)
    adapt(folder / "first", SECOND, {"das": CHEAP | {"contrast_weight": 0}}, tmp_path / "das", **options)
    start, free, held = (
        load_file(path / "model.safetensors") for path in (folder / "first", tmp_path / "lm", tmp_path / "das")
    )
    importance = load_file(folder / "first" / CARRIED_TENSORS)
    for layer in range(2):
        for part, place in PLACES.items():
            name, values = LAYER.format(layer) + place, importance[f"das/{part}"][layer]
            shape = (len(values), -1)
            moved = [(after[name] - start[name]).view(shape).norm(dim=1) for after in (held, free)]
            torch.testing.assert_close(moved[0] / moved[1], 1 - values, atol=0.02, rtol=0.05)
    norm = LAYER.format(0) + "output.LayerNorm.weight"
    torch.testing.assert_close(held[norm], free[norm])


def test_units_that_are_fully_protected_do_not_move_under_adamw(chain, tmp_path):
    """The released code scales gradients, which Adam undoes, and those of queries on the wrong axis."""
    folder, _ = chain
    start = shutil.copytree(folder / "first", tmp_path / "start")
    carried = load_file(start / CARRIED_TENSORS)
    save_file({name: (values > 0.7).float() for name, values in carried.items()}, start / CARRIED_TENSORS)
    adapt(start, SECOND, {"das": CHEAP | {"contrast_weight": 0}}, tmp_path / "out", **SHORT)
    before, after = (load_file(path / "model.safetensors") for path in (start, tmp_path / "out"))
    for layer in range(2):
        for part, place in (*PLACES.items(), ("H", "attention.self.query.weight")):
            name, held = LAYER.format(layer) + place, carried[f"das/{part}"][layer] > 0.7
            rows = [values[name].view(len(held), -1) for values in (before, after)]
            unmoved = (rows[0] == rows[1]).all(1)
            assert torch.equal(unmoved, held), name


def test_the_contrast_of_the_second_domain_gates_with_what_is_carried(chain, monkeypatch, tmp_path):
    folder, terms = chain[0], []
    objectives = das.DAS.objectives
    monkeypatch.setattr(das.DAS, "objectives", lambda self: terms.extend(objectives(self)) or list(terms))
    result = adapt(folder / "first", SECOND, {"das": CHEAP}, tmp_path / "out", **SHORT | {"steps": 1})
    (contrast,) = (term for term in terms if isinstance(term, GeneralKnowledgeContrast))
    carried = load_file(folder / "first" / CARRIED_TENSORS)
    assert {f"das/{part}" for part in contrast.general.gates.values} == set(carried)
    for part, values in contrast.general.gates.values.items():
        assert torch.equal(values, carried[f"das/{part}"])
    assert {"mlm", "contrast"} <= set(result.losses)


def test_without_general_knowledge_the_first_domain_is_not_protected(chain, tmp_path):
    base = chain[0] / "base"
    method = get("das", general=False, importance="random")
    adapt(base, FIRST, method, tmp_path / "out", **SHORT | {"steps": 1})
    assert method.update_rule() is None and any(isinstance(term, TextContrast) for term in method.objectives())
    assert not (tmp_path / "out" / "importance.json").exists()
    carried = load_file(tmp_path / "out" / CARRIED_TENSORS)
    raw, _ = method.measure(type("Run", (), {"seed": 0, "device": "cpu"}), sized_units(), "loss", 1)
    for part, values in raw.items():
        torch.testing.assert_close(carried[f"das/{part}"], normalize_importance(values))


def sized_units():
    """Units of the tiny model, of which only the numbers are known."""
    return {part: [type("Units", (), {"units": size})] * 2 for part, size in (("H", 4), ("I", 48), ("O", 32))}


def test_without_the_soft_mask_importance_acts_through_the_contrast_alone(chain, tmp_path):
    method = get("das", softmask=False, **CHEAP)
    adapt(chain[0] / "first", SECOND, method, tmp_path / "out", **SHORT | {"steps": 1})
    assert method.update_rule() is None
    assert any(isinstance(term, GeneralKnowledgeContrast) for term in method.objectives())


@each(
    ("settings", "words"),
    [
        ({"parts": "H"}, r"carries the importance of H \(2 x 4\), I \(2 x 48\), O \(2 x 32\).*use parts=H,I,O"),
        ({"softmask": False, "contrast_weight": 0}, "use the method lm"),
        ({"knowledge": "domain", "contrast_weight": 0}, "has no effect"),
    ],
)
def test_parameters_that_do_not_fit_are_explained(settings, words, chain, tmp_path):
    with pytest.raises(UserError, match=words):
        adapt(chain[0] / "first", SECOND, {"das": settings}, tmp_path / "out", **SHORT)
