"""The identity of an adaptation has every option: a default that changes never brings back an older result."""

from __future__ import annotations

import importlib
import json

from acclimate.adaptation.options import AdaptOptions
from acclimate.base.errors import UserError
from acclimate.base.options import build, defaults, option_fields
from acclimate.data.documents import Corpus
from acclimate.data.reading import LabelOptions
from tests.cases import each
from tests.tiny import TEXTS

adapting = importlib.import_module("acclimate.adaptation.adapt")  # the package has a function of this name
TEXT = Corpus.of([f"general: {text}" for text in TEXTS])
OTHERS = {
    **{"steps": 7, "epochs": 3.0, "tokens": 1_000, "max_minutes": 2.0, "seed": 3, "max_length": 40, "batch_size": 3},
    **{"mask_rate": 0.4, "masking": "span", "weight_decay": 0.2, "max_gradient_norm": 2.0, "warmup": 0.3},
    **{"dropout": 0.4, "precision": "bf16", "optimizer": "adamw-8bit", "weights": "bf16"},
    **{"layout": "packed", "documents": "joined", "text_column": "body", "heldout": TEXT, "heldout_every": 9},
    **{"keep_steps": (1,), "replay": {TEXT: 0.3}},
    **{"mix": "fixed", "sources": {"law": TEXT}},
    **{"corpus": TEXT, "method": "mlm", "task": "folder", "learning_rate": 0.5},
    **{"head_tokens": 9, "new_tokens": "5 min_count=2", "similarity": "pairs.csv"},
    **{"adapter": "lora r=2", "general": TEXT, "instructions": True, "monitor": True},
    **{"schedule": "wsd", "average_last": 3, "keep_best": True, "patience": 2, "rules": ("freeze names=embeddings",)},
}
"""Another value of each option."""
WITH = {
    "heldout_every": ("heldout",), "monitor": ("heldout",), "keep_best": ("heldout",),
    "patience": ("heldout",), "sources": ("mix",), "mix": ("sources",),
}  # fmt: skip
"""Options without which another one is refused."""
REFUSED = {"optimizer", "weights", "documents", "task", "similarity", "instructions"}
"""Options whose other value needs a model, a file or a library that is not here: an error, never silence."""
FIELDS = option_fields(AdaptOptions)
RECORDED = sorted(name for name, field in FIELDS.items() if field.option.recorded and name != "model")
NOT_RECORDED = {
    *("out", "overwrite", "report_to", "progress", "save_every", "loader_workers"),
    *("compile", "gradient_checkpointing", "max_memory", "fsdp", "encoding", "clean", "mask_personal"),
    *option_fields(LabelOptions),
}
"""Options that decide where and how a result is computed, or how texts and tasks are read, which have hashes."""


def identity(**given) -> str:
    """Return the identity of a run, or why there is none."""
    try:
        return json.dumps(adapting._open_run(build(AdaptOptions, **given)).config, sort_keys=True, default=str)
    except UserError as error:
        return f"refused: {error}"


def test_what_is_not_recorded_is_listed():
    assert {*FIELDS} - {*RECORDED} - {"model"} == NOT_RECORDED


@each("name", RECORDED)
def test_another_default_is_another_identity(tiny_bert, tmp_path, monkeypatch, name):
    """What code finds as the default is changed as well, so that no part of an identity may depend on it."""
    given = {"model": tiny_bert, "corpus": Corpus.of(TEXTS), "out": tmp_path / "out", "progress": False}
    given |= {other: OTHERS[other] for other in WITH.get(name, ())}
    before = identity(**given)
    monkeypatch.setattr(AdaptOptions.__dataclass_fields__[name], "default", OTHERS[name])
    option_fields.cache_clear()
    try:
        assert defaults(AdaptOptions)[name] == OTHERS[name]
        after = identity(**{**given, name: OTHERS[name]})
    finally:
        monkeypatch.undo()
        option_fields.cache_clear()
    assert after != before and (name in REFUSED or not after.startswith("refused: ")), after
