"""Models and texts of the measurements: usual shapes with random weights, so that no file is needed."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, processors
from transformers import (
    AutoModelForMaskedLM,
    BertConfig,
    ModernBertConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from acclimate.errors import UserError, unknown_name_error
from acclimate.models import load_tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared"
LONGEST = 164


@dataclass(frozen=True)
class Shape:
    """The shape of a model: layers, width, heads, inner width, vocabulary; and how it treats special tokens."""

    family: str
    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int

    @property
    def special(self) -> dict[str, int]:
        """Ids of the special tokens, where the published vocabularies have them."""
        if self.family == "roberta":
            return {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": self.vocabulary - 1}
        if self.family == "modernbert":
            return {name: 50_280 + place for place, name in enumerate(("unk", "cls", "sep", "pad", "mask"))}
        return {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}


SHAPES = {
    "minilm": Shape("bert", 6, 384, 12, 1_536, 30_522),
    "base": Shape("roberta", 12, 768, 12, 3_072, 50_265),
    "modern": Shape("modernbert", 22, 768, 12, 1_152, 50_368),
    "tiny": Shape("bert", 2, 32, 4, 64, 300),
    "tiny-roberta": Shape("roberta", 2, 32, 4, 64, 300),
}


def shape_of(name: str) -> Shape:
    """Return a shape by name.

    Raises:
        UserError: If there is none of that name.
    """
    if name not in SHAPES:
        raise unknown_name_error("shape", name, SHAPES)
    return SHAPES[name]


def make_model(name: str, seed: int, attention: str | None = None) -> PreTrainedModel:
    """Return a masked LM of that shape with random weights, in training mode, on the CPU.

    Args:
        name: Key of :data:`SHAPES`.
        seed: Of the weights.
        attention: Which attention of ``transformers`` it runs; None leaves the choice to ``transformers``.
    """
    shape = shape_of(name)
    common: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "pad_token_id": shape.special["pad"],
    }
    config: PretrainedConfig
    if shape.family == "roberta":
        config = RobertaConfig(**common, max_position_embeddings=514, type_vocab_size=1)
    elif shape.family == "modernbert":
        ends = {f"{name}_token_id": shape.special[name] for name in ("cls", "sep")}
        config = ModernBertConfig(
            **common, **ends, bos_token_id=ends["cls_token_id"], eos_token_id=ends["sep_token_id"]
        )
    else:
        config = BertConfig(**common, max_position_embeddings=512)
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    torch.manual_seed(seed)
    return AutoModelForMaskedLM.from_config(config, **options).train()


def make_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that knows the ids of that shape; its words have no meaning."""
    shape = shape_of(name)
    names = {number: f"[{word.upper()}]" for word, number in shape.special.items()}
    words = {names.get(number, f"w{number}"): number for number in range(shape.vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(f"[{word.upper()}]", shape.special[word]) for word in ("cls", "sep")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=512,
        **{f"{word}_token": f"[{word.upper()}]" for word in shape.special},
    )


def draw_lengths(kind: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return lengths of texts in tokens, special tokens included: (count,).

    Args:
        kind: ``"lognormal"`` (median 64, sigma 0.65, clipped to 10 to 164: reviews and abstracts), ``"fixed:N"``, or
            ``"corpus:NAME"``, the lengths of a real corpus under ``../shared``.
        count: How many.
        rng: Source of chance.
    """
    name, _, value = kind.partition(":")
    if name == "fixed":
        return np.full(count, int(value))
    if name == "corpus":
        return rng.choice(_real_lengths(value), count)
    return np.clip(np.exp(rng.normal(np.log(64), 0.65, count)).round(), 10, LONGEST).astype(np.int64)


def make_texts(name: str, count: int, seed: int, lengths: str = "lognormal") -> list[np.ndarray]:
    """Return texts of random ordinary tokens between the two special ones."""
    shape = shape_of(name)
    rng = np.random.default_rng([seed, 7])
    ordinary = np.setdiff1d(np.arange(shape.vocabulary), list(shape.special.values()))
    texts = []
    for length in draw_lengths(lengths, count, rng):
        body = rng.choice(ordinary, int(length) - 2)
        texts.append(np.concatenate([[shape.special["cls"]], body, [shape.special["sep"]]]))
    return texts


def real_documents(name: str, limit: int, split: str = "train") -> list[str]:
    """Return the first documents of a real corpus under ``../shared``; empty if it is not there."""
    file = SHARED / "data" / "corpora" / name / f"{split}.jsonl.gz"
    if not file.is_file():
        return []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line, _ in zip(lines, range(limit), strict=False)]


def _real_lengths(name: str) -> np.ndarray:
    documents = real_documents(name, 2_000)
    if not documents:
        raise UserError(f"There is no corpus '{name}' in '{SHARED}'; leave --lengths out for synthetic lengths.")
    encoded = load_tokenizer(SHARED / "models" / "minilm-mlm")(documents, truncation=True, max_length=LONGEST)
    return np.maximum(10, [len(ids) for ids in encoded["input_ids"]])
