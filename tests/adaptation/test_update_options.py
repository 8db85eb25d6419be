"""Options that limit how far weights move: with any method, over a kill, with an adapter or refused by name."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation import rules
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.rules import measure_fisher
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.parts.updates import summed_fisher
from tests.cases import each
from tests.kills import killed
from tests.papers.test_contract import CHEAP
from tests.test_cli import call
from tests.tiny import TEXTS, save_tiny

DOCUMENTS = [f"{text} {number}" for text in TEXTS for number in range(4)]
GENERAL = Corpus.of([f"{text} {number} is not new" for text in TEXTS for number in range(3)])
SHORT = {"steps": 4, "batch_size": 8, "max_length": 24, "learning_rate": 1e-3, "precision": "fp32", "progress": False}
RULES = {
    "rules": {
        "l2-sp": 0.5,
        "ewc": {"strength": 50, "text": GENERAL},
        "layer-decay": {"factor": 0.5},
        "freeze": ("embed*",),
    }
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: save_tiny(kind, folder / kind) for kind in ("bert", "llama")}


def run(model, out, method="lm", **options):
    return adapt(model, Corpus.of(DOCUMENTS), {method: CHEAP.get(method)}, out, **{**SHORT, **options})


def weights(folder):
    return load_file(folder / "model.safetensors")


def distance(base, folder):
    before, after = weights(base), weights(folder)
    return sum(float((after[name] - before[name]).square().sum()) for name in before) ** 0.5


def test_a_stronger_pull_leaves_the_model_nearer_to_its_base(models, tmp_path):
    found = []
    for number, given in enumerate(
        [(), "l2-sp strength=1", {"l2-sp": 100}, {"ewc": {"strength": 100_000, "text": GENERAL}}]
    ):
        run(models["bert"], tmp_path / str(number), max_gradient_norm=0, rules=given)
        found.append(distance(models["bert"], tmp_path / str(number)))
    assert found[0] > found[1] > found[2] > 0 and found[0] > 1.2 * found[2] and found[0] > 1.1 * found[3] > 0


SLOW = [pytest.param("llama", "lm", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("kind", "method"), [pytest.param("bert", "dga", marks=pytest.mark.needs("dga")), *SLOW])
def test_all_rules_work_together_with_a_method_and_over_a_kill(models, tmp_path, kind, method):
    options = {**RULES, "dropout": 0.1, "save_every": 2}
    run(models[kind], tmp_path / "whole", method, **options)
    with killed(3):
        run(models[kind], tmp_path / "cut", method, **options)
    run(models[kind], tmp_path / "cut", method, **options)
    before, whole, cut = weights(models[kind]), weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    changed = {name for name in whole if not torch.equal(before[name], whole[name])}
    assert changed and not any("embed" in name for name in changed)
    manifest = read_json(tmp_path / "whole" / "acclimate.json")
    recorded = {rule["name"]: rule for rule in manifest["rules"]}
    assert [*recorded] == ["freeze", "layer-decay", "l2-sp", "ewc"], "in the order in which they act"
    assert recorded["ewc"] == {"name": "ewc", "strength": 50, "text": GENERAL.fingerprint}
    assert recorded["layer-decay"]["factor"] == 0.5


def test_lower_layers_move_less_with_layer_decay(models, tmp_path):
    run(models["bert"], tmp_path / "plain", max_gradient_norm=0)
    run(models["bert"], tmp_path / "slow", max_gradient_norm=0, rules="layer-decay factor=0.25")
    before = weights(models["bert"])
    plain, slow = (
        {name: float((value - before[name]).norm()) for name, value in weights(tmp_path / out).items()}
        for out in ("plain", "slow")
    )
    for part, factor in (("embeddings.word", 4**-3), ("layer.0.", 4**-2), ("layer.1.", 4**-1), ("transform", 1)):
        names = [name for name in plain if part in name and name.endswith(("dense.weight", "embeddings.weight"))]
        ratios = [slow[name] / plain[name] for name in names]
        assert ratios and all(0.7 * factor < ratio < 1.5 * factor for ratio in ratios), (part, ratios)


def test_the_importance_is_measured_once_per_model_and_text(models, tmp_path, monkeypatch):
    calls, measured = [], []
    monkeypatch.setattr(rules, "measure_fisher", lambda context: calls.append(measure_fisher(context)) or calls[-1])
    monkeypatch.setattr(rules, "summed_fisher", lambda *a, **k: measured.append(1) or summed_fisher(*a, **k))
    text = Corpus.of([f"another {text}" for text in TEXTS])
    for number, strength in enumerate((1, 2)):
        run(models["bert"], tmp_path / str(number), steps=1, rules={"ewc": {"strength": strength, "text": text}})
    assert len(calls) == 2 and measured == [1]
    assert all(torch.equal(calls[0][name], calls[1][name]) for name in calls[0])
    assert all((values >= 0).all() for values in calls[0].values())


def test_an_adapter_freezes_and_decays_by_layer(models, tmp_path):
    options = {"adapter": "lora r=2", "rules": ["freeze names=layer.0", "layer-decay factor=0.5"]}
    run(models["bert"], tmp_path / "out", **options)
    before, after = weights(models["bert"]), weights(tmp_path / "out")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(".layer.1." in name for name in changed)


@each(
    ("options", "message"),
    [
        ({"rules": "l2-sp strength=1", "adapter": "lora"}, "'l2-sp' pulls the weights of the model.*'weight_decay'"),
        ({"rules": {"ewc": {"strength": 1, "text": GENERAL}}, "adapter": "lora"}, "'ewc' pulls the weights"),
        ({"rules": "sparsity share=0.5", "adapter": "lora"}, "'sparsity' is for weights that train"),
        ({"rules": "refactor every=2"}, "'refactor' is for adapters"),
        ({"rules": "ewc strength=1"}, "'ewc' needs general text .* text=FILE"),
        ({"rules": "l2-sp"}, "needs the parameter 'strength'"),
        ({"rules": "l2-sp strength=-1"}, "greater than 0"),
        ({"rules": "layer-decay factor=0"}, "greater than 0"),
        ({"rules": ["l2-sp strength=1", {"l2-sp": 2}]}, "'l2-sp' is given twice"),
        ({"rules": "freeze names="}, "it is empty; give at least one name"),
        ({"rules": "freeze names=embedings"}, "Did you mean 'embeddings'"),
        ({"rules": "l2_sp strength=1"}, "Did you mean 'l2-sp'"),
        ({"layer_decay": 0.5}, "Give it as rules: layer-decay factor=0.9"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(models, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(models["bert"], tmp_path / "out", **options)


def test_the_command_line(models, tmp_path, monkeypatch, capsys):
    for name, texts in (("corpus", DOCUMENTS), ("general", GENERAL)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts))
    code, out, err = call(
        monkeypatch, capsys, "adapt", "--model", models["bert"], "--corpus", tmp_path / "corpus.txt", "--steps", 1,
        "--max-length", 24, "--out", tmp_path / "out", "--rule", "freeze names=embeddings,layer.0,*.bias",
        "--rule", "l2-sp strength=0.1", "--rule", f"ewc strength=2 text={tmp_path / 'general.txt'}",
        "--rule", "layer-decay factor=0.9",
    )  # fmt: skip
    assert code == 0 and re.search(r"Frozen: [\d,]+ of [\d,]+ parameters", out + err), err
    manifest = read_json(tmp_path / "out" / "acclimate.json")
    assert manifest["rules"][0]["names"] == ["embeddings", "layer.0", "*.bias"]
    assert [rule.get("strength") for rule in manifest["rules"]] == [None, None, 0.1, 2]


@pytest.mark.slow
def test_an_adapter_is_factored_anew_at_the_same_steps_after_a_kill(models, tmp_path):
    options = {"adapter": "lora r=2", "rules": "refactor every=2", "save_every": 1, "steps": 5}
    run(models["llama"], tmp_path / "whole", **options)
    with killed(3):
        run(models["llama"], tmp_path / "cut", **options)
    run(models["llama"], tmp_path / "cut", **options)
    run(models["llama"], tmp_path / "plain", **{**options, "rules": ()})
    whole, cut, plain = (weights(tmp_path / name) for name in ("whole", "cut", "plain"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert any(not torch.equal(whole[name], plain[name]) for name in whole)
