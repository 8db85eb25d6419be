"""A skill that was trained on the base model, such as that of a sentence encoder, is added to an adapted model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from acclimate import merge
from acclimate.base.errors import UserError
from tests.tiny import TEXTS, save_tiny

sentence_transformers = pytest.importorskip("sentence_transformers")


def changed(model, folder, seed):
    """Save a model whose weights were moved a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.05)
    model.save_pretrained(folder) if hasattr(model, "save_pretrained") else model.save(str(folder))
    return folder


def test_an_adapted_model_with_the_skill_of_a_sentence_encoder_is_one(tmp_path):
    base = save_tiny("bert", tmp_path / "base")
    adapted = save_tiny("bert", tmp_path / "adapted")
    changed(transformers.AutoModelForMaskedLM.from_pretrained(base), adapted, 1)
    modules = sentence_transformers.sentence_transformer.modules
    encoder = sentence_transformers.SentenceTransformer(
        modules=[modules.Transformer(str(base)), modules.Pooling(32, "cls"), modules.Normalize()],
        prompts={"query": "the question : "},
        device="cpu",
    )
    skill = changed(encoder, tmp_path / "skill", 2)
    result = merge(adapted, {"skill": {"skill": skill, "weight": 0.5}}, tmp_path / "out", base=base, progress=False)
    assert any("modules of a sentence encoder" in note for note in result.notes)
    states = [transformers.AutoModel.from_pretrained(folder).state_dict() for folder in (adapted, skill, base)]
    made = {name: one + 0.5 * (states[1][name] - states[2][name]) for name, one in states[0].items()}
    encoder[0].model.load_state_dict(
        {name: made[name] for name in encoder[0].model.state_dict() if name in made}, strict=False
    )
    found = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert [type(module).__name__ for module in found] == ["Transformer", "Pooling", "Normalize"]
    assert found.prompts["query"] == "the question : "
    assert np.abs(found.encode(TEXTS) - encoder.encode(TEXTS)).max() < 1e-5
    assert (
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)[1][
            "missing_keys"
        ]
        == set()
    )
    with pytest.raises(UserError, match="needs the parameter 'skill'"):
        merge(adapted, "skill", tmp_path / "other", base=base, progress=False)
