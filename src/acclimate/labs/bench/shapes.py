"""Models and texts for timing: common shapes with random weights, so that no download is needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForMaskedLM, BertConfig, PreTrainedTokenizerFast, RobertaConfig
from transformers.utils import SAFE_WEIGHTS_NAME

from acclimate.base.errors import unknown_name_error
from acclimate.base.files import read_lines

MAX_LENGTH = 164
"""Maximum tokens per text."""
TEXTS_FILE = "texts.jsonl"


@dataclass(frozen=True)
class Shape:
    """The shape of a model, and how many texts one optimizer step reads in the benchmark."""

    family: str
    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    batch: int = 64

    @property
    def special(self) -> dict[str, int]:
        """Ids of the special tokens, as in the published vocabularies."""
        if self.family == "roberta":
            return {"cls": 0, "pad": 1, "sep": 2, "unk": 3, "mask": self.vocabulary - 1}
        return {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}


SHAPES = {
    "minilm": Shape("bert", 6, 384, 12, 1_536, 30_522),
    "base": Shape("roberta", 12, 768, 12, 3_072, 50_265, batch=32),
    "tiny": Shape("bert", 2, 32, 4, 64, 300, batch=8),
}


def find_shape(name: str) -> Shape:
    """Return a shape by its name.

    Raises:
        UserError: If no shape has that name.
    """
    if name not in SHAPES:
        raise unknown_name_error("shape", name, SHAPES)
    return SHAPES[name]


def make_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer for a shape; the word ``w17`` has token id 17."""
    shape = find_shape(name)
    names = {number: f"[{word.upper()}]" for word, number in shape.special.items()}
    words = {names.get(number, f"w{number}"): number for number in range(shape.vocabulary)}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
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


def draw_lengths(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw text lengths in tokens, special tokens included: (count,).

    They resemble reviews and abstracts: lognormal with median 64 and sigma 0.65, clipped to 10 to 164; the mean is 74.
    """
    return np.clip(np.exp(rng.normal(np.log(64), 0.65, count)).round(), 10, MAX_LENGTH).astype(np.int64)


def write_inputs(folder: Path, name: str, count: int, seed: int) -> None:
    """Write a masked language model with random weights, its tokenizer, and texts of random tokens.

    Args:
        folder: Output directory, for ``model/`` and ``texts.jsonl``.
        name: Key of :data:`SHAPES`.
        count: Number of texts.
        seed: Random seed of weights and texts.
    """
    shape = find_shape(name)
    common: dict[str, Any] = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "pad_token_id": shape.special["pad"],
    }
    if shape.family == "roberta":
        config: Any = RobertaConfig(**common, max_position_embeddings=514, type_vocab_size=1)
    else:
        config = BertConfig(**common, max_position_embeddings=512)
    torch.manual_seed(seed)
    model = AutoModelForMaskedLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder / "model")
    # In a run of several processes, ``model.save_pretrained`` writes in the first only.
    save_model(model, str(folder / "model" / SAFE_WEIGHTS_NAME), {"format": "pt"})
    make_tokenizer(name).save_pretrained(folder / "model")
    rng = np.random.default_rng([seed, 7])
    ordinary = np.setdiff1d(np.arange(shape.vocabulary), list(shape.special.values()))
    with (folder / TEXTS_FILE).open("w", encoding="utf-8") as file:
        for length in draw_lengths(count, rng):
            words = (f"w{token}" for token in rng.choice(ordinary, int(length) - 2))
            file.write(json.dumps({"text": " ".join(words)}) + "\n")


def read_texts(folder: Path) -> list[str]:
    """Return the texts that :func:`write_inputs` wrote."""
    return [json.loads(line)["text"] for line in read_lines(folder / TEXTS_FILE)]
