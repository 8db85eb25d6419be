"""Tiny random models and tokenizers."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *"the a of and to in is was it for on with he as at by this had not are but from or have an they which".split(),
    *"good bad food service waiter pasta pizza fresh cold slow quick kind rude table menu price wine soup".split(),
    *"model data train test loss layer token word text gradient method result paper table figure score".split(),
    *[chr(code) for code in range(ord("a"), ord("z") + 1)],
    *[f"##{chr(code)}" for code in range(ord("a"), ord("z") + 1)],
    *list(".,!?0123456789"),
]
VOCABULARY = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS]))}

SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
DISTIL = {
    "vocab_size": len(VOCABULARY),
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
MODERN = {"cls_token_id": 2, "sep_token_id": 3, "attention_dropout": 0.1, "mlp_dropout": 0.1, "local_attention": 8}
ENCODERS = {
    "bert": (transformers.BertConfig, SIZES),
    "roberta": (transformers.RobertaConfig, SIZES),
    "xlm-roberta": (transformers.XLMRobertaConfig, SIZES),
    "camembert": (transformers.CamembertConfig, SIZES),
    "electra": (transformers.ElectraConfig, {**SIZES, "embedding_size": 16}),
    "distilbert": (transformers.DistilBertConfig, DISTIL),
    "albert": (
        transformers.AlbertConfig,
        {**SIZES, "embedding_size": 16, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    ),
    "modernbert": (transformers.ModernBertConfig, {**SIZES, **MODERN}),
}

TEXTS = [
    "the food was good and the waiter was kind.",
    "cold soup, slow service and a rude waiter!",
    "the model has a layer for the text and a layer for the loss",
    "pizza",
    "we train the method on this data and test it on the table of the paper. the result is a good score.",
    "is it fresh?",
    "the price of the wine on the menu was not bad but the pasta was cold",
    "a figure of the gradient",
]


def tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer with a few words, all letters and all digits."""
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def tiny_model(kind: str, seed: int = 0, **changes) -> transformers.PreTrainedModel:
    """Return a random masked LM of an architecture, with 2 layers, 4 heads and width 32."""
    torch.manual_seed(seed)
    config, sizes = ENCODERS[kind]
    return transformers.AutoModelForMaskedLM.from_config(config(**{**sizes, **changes})).eval()


def add_token(folder: Path, token: str) -> None:
    """Add a token to a saved model and its tokenizer."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([token])
    tokenizer.save_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)


def save_tiny(kind: str, folder: Path, seed: int = 0, **changes) -> Path:
    """Save a tiny model with its tokenizer, and return the folder."""
    tiny_model(kind, seed, **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def with_old_names(folder: Path) -> Path:
    """Rename the weights of a model folder to the names used in files of 2018, such as bert-base-uncased."""
    weights = load_file(folder / "model.safetensors")
    named = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    assert named.keys() != weights.keys()
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
