"""DGA end to end on a tiny model."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.base.files import cache_folder
from acclimate.data.documents import Corpus
from acclimate.engine.batches import Collator
from acclimate.engine.steps import Engine
from acclimate.models.gates import gate_units
from acclimate.models.kinds import CAUSAL
from acclimate.models.loading import _drop_embeddings
from acclimate.models.probe import attach
from acclimate.parts.masking import RandomMasking
from acclimate.parts.objectives import GeneralKnowledgeContrast, LanguageModelling
from acclimate.parts.updates import SoftMask, mean_importance, normalize_importance, summed_importance
from tests.papers.terms import run
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tiny import TEXTS, decoder_tokenizer, save_tiny, tiny_model


def test_the_update_of_a_head_is_scaled_by_one_minus_its_importance(tiny_bert, tmp_path):
    settings = {"importance_tokens": 300, "contrast_weight": 0}
    common = {**SHORT, "steps": 1, "weight_decay": 0.0, "warmup": 0.0}
    adapt(tiny_bert, Corpus.of(DOCUMENTS), "mlm", tmp_path / "mlm", **common)
    adapt(tiny_bert, Corpus.of(DOCUMENTS), {"dga": settings}, tmp_path / "dga", **common)
    start, mlm, dga = (
        load_file(path / "model.safetensors") for path in (tiny_bert, tmp_path / "mlm", tmp_path / "dga")
    )
    kept = cache_folder().glob("importance/*/*/tensors.safetensors")
    importance = normalize_importance(load_file(max(kept, key=lambda path: path.stat().st_mtime))["H"])
    for layer in range(2):
        name = f"bert.encoder.layer.{layer}.attention.self.value.weight"
        ratio = (dga[name] - start[name]).view(4, -1).norm(dim=1) / (mlm[name] - start[name]).view(4, -1).norm(dim=1)
        torch.testing.assert_close(ratio, 1 - importance[layer], atol=0.02, rtol=0.05)
    free = "bert.encoder.layer.0.intermediate.dense.weight"
    torch.testing.assert_close(dga[free], mlm[free], atol=1e-6, rtol=1e-4)


def test_the_cache_key_of_importance_covers_its_inputs(tiny_bert, tmp_path, monkeypatch):
    import acclimate.adaptation.importance_measures as module

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
        adapt(tiny_bert, Corpus.of(documents), {"dga": settings}, tmp_path / name, **options)

    run("a")
    run("b", contrast_weight=0.5)
    assert len(calls) == 1
    run("c", importance_tokens=150)
    run("d", importance_reads="logits")
    run("e", seed=3)
    assert len(calls) == 4
    run("f", dropout=0.3)
    assert len(calls) == 5, "dropout is part of the cache key"


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
    module = sys.modules["acclimate.adaptation.adapt"]
    engines = []

    class Watched(module.Engine):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            engines.append(self)

    monkeypatch.setattr(module, "Engine", Watched)
    methods = []
    read = module.REGISTRY.read

    def noted(given):
        methods.append(read(given))
        return methods[-1]

    monkeypatch.setattr(module.REGISTRY, "read", noted)
    settings, views = ABLATIONS[name]
    result = adapt(
        tiny_bert,
        Corpus.of(DOCUMENTS),
        {"dga": {"importance_tokens": 100, **settings}},
        tmp_path / "out",
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
    importance = {"H": torch.rand(2, 4), "O": torch.rand(2, 32)}
    term = GeneralKnowledgeContrast(importance, knowledge="domain")
    assert term.anchor.gates is term.positive.gates
    assert term.anchor.draw != term.positive.draw
    for part, values in importance.items():
        torch.testing.assert_close(term.anchor.gates.values[part] + values, torch.ones_like(values))
        assert torch.equal(term.general.gates.values[part], values)


def test_random_importance_is_determined_by_the_seed():
    from acclimate.adaptation.method import get

    drawn = []
    for seed in (0, 0, 1):
        method = get("dga", importance="random")
        units = {"H": [SimpleNamespace(units=4)] * 2}
        run = SimpleNamespace(units=lambda parts, units=units: units, seed=seed, device="cpu", preparation={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("acclimate.papers.dga.method.SoftMask", lambda *args, **options: None)
            method.prepare(run)
        drawn.append(method._importance["H"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_an_unknown_part_is_an_error():
    from acclimate.adaptation.method import get

    with pytest.raises(UserError, match=r"dga.*parts"):
        get("dga", parts="H,X")


def test_an_empty_list_of_parts_is_an_error():
    from acclimate.adaptation.method import get

    with pytest.raises(UserError, match="parts is empty"):
        get("dga", parts=[])


def test_domain_knowledge_without_contrast_is_an_error():
    from acclimate.adaptation.method import get

    with pytest.raises(UserError, match="has no effect"):
        get("dga", contrast_weight=0, knowledge="domain")


class Slow:
    """A plain Llama that reads one text at a time, with dropout on the embeddings and gates on heads."""

    def __init__(self, model):
        self.model, self.layers = model, model.model.layers

    def read(self, ids, mask, gates=None):
        """Return the hidden states (tokens, width) of a text; masks are (tokens, width), gates (layers, heads)."""
        hooks = []
        for layer, values in zip(self.layers, torch.ones(2, 4) if gates is None else gates, strict=True):
            wide = values.repeat_interleave(8)
            hooks.append(
                layer.self_attn.o_proj.register_forward_pre_hook(lambda _, inputs, wide=wide: (inputs[0] * wide,))
            )
        embedded = self.model.model.embed_tokens(ids) * mask
        hidden = self.model.model(inputs_embeds=embedded[None], use_cache=False).last_hidden_state[0]
        for hook in hooks:
            hook.remove()
        return hidden


def slow_importance(slow, texts, masks):
    """Eq. 6 to 8 and 10: the mean over texts of the absolute gradient of the divergence with respect to each gate."""
    found = torch.zeros(2, 4)
    for number, ids in enumerate(texts):
        gates = torch.ones(2, 4, requires_grad=True)
        first, second = (
            slow.read(ids, masks[draw * len(texts) + number, : len(ids)], gates).softmax(-1) for draw in range(2)
        )
        divergence = (first * (first / second).log()).sum(-1).mean()
        found += torch.autograd.grad(divergence, gates)[0].abs() / len(texts)
    return found, torch.tanh((found - found.mean(1, keepdim=True)) / found.std(1, keepdim=True)).abs()


def slow_loss(slow, texts, masks, importance):
    """Eq. 11 to 16 with the next-token loss instead of the masked-LM loss."""
    pooled = [[], [], []]
    losses = []
    for number, ids in enumerate(texts):
        for draw in range(3):
            mask = masks[draw * len(texts) + number, : len(ids)]
            hidden = slow.read(ids, mask, importance if draw == 2 else None)
            pooled[draw].append(hidden.mean(0))
            if draw == 0:
                logits = slow.model.lm_head(hidden)[:-1].log_softmax(-1)
                losses += [-logits[place, ids[place + 1]] for place in range(len(ids) - 1)]
    anchor, positive, general = ([vector / vector.norm() for vector in vectors] for vectors in pooled)
    contrast = 0
    for number, one in enumerate(anchor):
        others = [torch.exp(one @ other / 0.05) for other in (*positive, *general)]
        contrast -= torch.log(others[number] / sum(others)) / len(texts)
    return sum(losses) / len(losses) + contrast


def test_the_equations_on_a_decoder_with_grouped_heads(monkeypatch):
    """Importance, contrast and masked update against loops over texts, heads and tokens of a plain Llama."""
    monkeypatch.setenv("ACCLIMATE_KERNELS", "torch")
    tokenizer, model, plain = decoder_tokenizer(), tiny_model("llama"), Slow(tiny_model("llama"))
    texts = [torch.tensor(tokenizer(text)["input_ids"]) for text in TEXTS[:4]]
    collator = Collator.of(tokenizer, RandomMasking(), CAUSAL, 10_000)
    (batch,) = collator([text.numpy() for text in texts], np.random.default_rng(0))
    texts = [row[text >= 0] for row, text in zip(batch.original, batch.text, strict=True)]
    units = gate_units(model, attach(model), ["H"])
    _drop_embeddings(model, 0.3)

    def drawn(draws):
        torch.manual_seed(6)
        masks = torch.nn.functional.dropout(torch.ones(draws * len(texts), batch.text.shape[1], 32), 0.3)
        torch.manual_seed(6)
        return masks

    raw, importance = slow_importance(plain, texts, drawn(2))
    found = mean_importance([summed_importance(model, units, [batch])])
    torch.testing.assert_close(found["H"], raw, rtol=1e-3, atol=1e-7)
    normalized = {"H": normalize_importance(found["H"])}
    torch.testing.assert_close(normalized["H"], importance, rtol=1e-3, atol=1e-4)

    expected = slow_loss(plain, texts, drawn(3), importance)
    engine = Engine(model.train(), [LanguageModelling(), GeneralKnowledgeContrast(normalized)])
    assert engine.student_views == 3
    assert engine.step([batch])["loss"].item() == pytest.approx(expected.item(), rel=1e-4)

    expected.backward()
    start = {name: value.detach().clone() for name, value in plain.model.named_parameters()}
    rule = SoftMask(units, normalized)
    options = {"lr": 0.1, "eps": 1e-2, "weight_decay": 0.1}
    optimizers = [torch.optim.AdamW(one.parameters(), **options) for one in (model, plain.model)]
    rule.step(optimizers[0], optimizers[0].step)
    optimizers[1].step()
    for (name, value), ours in zip(plain.model.named_parameters(), model.parameters(), strict=True):
        change = (value - start[name]).detach()
        if "self_attn" in name:
            of_layer = importance[int(name.split(".")[2])]
            for head in range(4):
                rows = slice(8 * head, 8 * head + 8)
                if "q_proj" in name:
                    change[rows] *= 1 - of_layer[head]
                elif "o_proj" in name:
                    change[:, rows] *= 1 - of_layer[head]
                elif head % 2 == 0:  # two query heads share a key head, which has the larger importance of the two
                    change[4 * head : 4 * head + 8] *= 1 - max(of_layer[head], of_layer[head + 1])
        torch.testing.assert_close((ours - start[name]).detach(), change, rtol=1e-2, atol=1e-4, msg=name)


def test_layers_without_heads_are_reported(decoders, tmp_path, caplog):
    settings = {"importance": "random", "contrast_weight": 0}
    adapt(decoders["lfm2"], Corpus.of(DOCUMENTS), {"dga": settings}, tmp_path / "out", **{**SHORT, "steps": 1})
    assert "1 of 2 layers of Lfm2ForCausalLM have no attention heads (conv)" in caplog.text


def test_models_without_dropout_need_the_option(tmp_path):
    """ALBERT and ModernBERT have none; ``dropout`` sets it for the adaptation only, not in the saved config."""
    dry = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    albert = save_tiny("albert", tmp_path / "albert", **dry)
    for settings in ({}, {"importance": "random"}):
        with pytest.raises(UserError, match=r"dropout 0\.1"):
            run(albert, {"dga": settings}, tmp_path / "out", steps=2)
    run(albert, "dga importance_tokens=100", tmp_path / "out", dropout=0.1, steps=2)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert {name: getattr(config, name) for name in dry} == dry
    assert json.loads((tmp_path / "out" / "acclimate.json").read_text())["dropout"] == 0.1
