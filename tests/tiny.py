"""Tiny random models and tokenizers."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

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

DECODER_VOCABULARY = 352
DECODER_SPECIAL = ["<pad>", "<s>", "</s>"]
DECODER_SIZES = {
    "vocab_size": DECODER_VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": DECODER_VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "pad_token_id": 2,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
WINDOWED = {"head_dim": 8, "sliding_window": 8}
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
DECODERS = {
    "llama": (transformers.LlamaConfig, DECODER_SIZES),
    "qwen3": (transformers.Qwen3Config, {**DECODER_SIZES, "head_dim": 8}),
    "gemma2": (transformers.Gemma2Config, {**DECODER_SIZES, **WINDOWED}),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {**DECODER_SIZES, **WINDOWED, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": (transformers.GPT2Config, GPT2),
    "mistral": (transformers.MistralConfig, {**DECODER_SIZES, "sliding_window": 8}),
    "phi3": (transformers.Phi3Config, DECODER_SIZES),
    "olmo": (transformers.OlmoConfig, DECODER_SIZES),
    "granite": (
        transformers.GraniteConfig,
        {**DECODER_SIZES, "embedding_multiplier": 12.0, "residual_multiplier": 0.5, "logits_scaling": 8.0},
    ),
    "smollm3": (transformers.SmolLM3Config, {**DECODER_SIZES, "no_rope_layers": [1, 0]}),
    "lfm2": (
        transformers.Lfm2Config,
        {**DECODER_SIZES, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    "qwen3_5": (
        transformers.Qwen3_5TextConfig,
        {**DECODER_SIZES, **DELTA_NET, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    ),
}
"""Decoder families. ``lfm2`` and ``qwen3_5`` are hybrids: one of their two layers is not attention."""
EXPERTS = {
    "qwen3_moe": (
        transformers.Qwen3MoeConfig,
        {**DECODER_SIZES, "head_dim": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "mixtral": (transformers.MixtralConfig, {**DECODER_SIZES, "num_local_experts": 4}),
    "gpt_oss": (
        transformers.GptOssConfig,
        {**DECODER_SIZES, "head_dim": 8, "num_local_experts": 4, "sliding_window": 8, "num_experts_per_tok": 2},
    ),
    "deepseek_v3": (
        transformers.DeepseekV3Config,
        {**DECODER_SIZES, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
         "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1, "q_lora_rank": 16,
         "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    ),
}  # fmt: skip
"""Mixtures of experts. ``deepseek_v3`` also has a dense layer and shared experts."""
HYBRIDS = ("lfm2", "qwen3_5")
PAIRED = {"vocab_size": DECODER_VOCABULARY + 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
T5 = {**PAIRED, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
BART = {
    **{f"{stack}_layers": 2 for stack in ("encoder", "decoder")},
    **{f"{stack}_attention_heads": 4 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 48 for stack in ("encoder", "decoder")},
    **{**PAIRED, "d_model": 32, "max_position_embeddings": 128, "decoder_start_token_id": 2},
}
GEMMA = {
    **DECODER_SIZES,
    "vocab_size": DECODER_VOCABULARY + 20,
    **WINDOWED,
    "layer_types": ["sliding_attention", "full_attention"],
}
ENCODER_DECODERS = {
    "t5": (transformers.T5Config, T5),
    "mt5": (transformers.MT5Config, {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": (transformers.BartConfig, BART),
    "mbart": (transformers.MBartConfig, {**BART, "decoder_start_token_id": None}),
    "pegasus": (transformers.PegasusConfig, {**BART, "decoder_start_token_id": 0}),
    "led": (transformers.LEDConfig, {**BART, "max_encoder_position_embeddings": 128, "attention_window": 8}),
    "t5gemma": (transformers.T5GemmaConfig, {"encoder": GEMMA, "decoder": GEMMA, **PAIRED}),
}
"""Encoder-decoder families."""
SENTINELS = [f"<extra_id_{number}>" for number in range(20)]
PAD_IS_EOS = ("gpt2", "smollm3")
"""Decoders whose padding token is the end token. Of these, ``gpt2`` has no other special token."""

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


@functools.cache
def _decoder_tokenizer_json(adds_start: bool) -> str:
    """Return a byte-level BPE tokenizer trained on :data:`TEXTS`, which encodes any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXTS,
        BpeTrainer(
            vocab_size=DECODER_VOCABULARY,
            special_tokens=DECODER_SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if adds_start:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
        )
    return tokenizer.to_str()


def decoder_tokenizer(kind: str = "llama") -> transformers.PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with the special tokens of a decoder family.

    Like those of real checkpoints, it puts ``<s>`` before a text for most families and no end token after it.
    """
    names = {"pad_token": "</s>" if kind in PAD_IS_EOS else "<pad>", "eos_token": "</s>"}
    names["bos_token"] = "</s>" if kind == "gpt2" else "<s>"
    tokenizer = Tokenizer.from_str(_decoder_tokenizer_json(kind not in PAD_IS_EOS))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def pair_tokenizer(kind: str = "t5") -> transformers.PreTrainedTokenizerFast:
    """Return a byte-level tokenizer of an encoder-decoder, with sentinels or, like BART, with a mask token."""
    tokenizer = Tokenizer.from_str(_decoder_tokenizer_json(False))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    ends = "$A </s>" if kind in ("t5", "mt5", "t5gemma", "pegasus") else "<s> $A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=ends, pair=f"{ends} $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    added = SENTINELS if "t5" in kind else ["<mask>"]
    made.add_special_tokens({"extra_special_tokens": added} if "t5" in kind else {"mask_token": "<mask>"})
    return made


def tiny_model(kind: str, seed: int = 0, **changes) -> transformers.PreTrainedModel:
    """Return a random language model of an architecture, with 2 layers, 4 heads and width 32."""
    torch.manual_seed(seed)
    if kind in DECODERS or kind in EXPERTS:
        config, sizes = DECODERS[kind] if kind in DECODERS else EXPERTS[kind]
        sizes = {**sizes, "pad_token_id": 2} if kind in PAD_IS_EOS else sizes
        return transformers.AutoModelForCausalLM.from_config(config(**{**sizes, **changes})).eval()
    if kind in ENCODER_DECODERS:
        config, sizes = ENCODER_DECODERS[kind]
        return transformers.AutoModelForSeq2SeqLM.from_config(config(**{**sizes, **changes})).eval()
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
    decodes = kind in DECODERS or kind in EXPERTS
    made = pair_tokenizer if kind in ENCODER_DECODERS else decoder_tokenizer if decodes else None
    (tiny_tokenizer() if made is None else made(kind)).save_pretrained(folder)
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
