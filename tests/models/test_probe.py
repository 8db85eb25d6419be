"""What a model is found to do before a run: right, or caught."""

from __future__ import annotations

import copy
import json

import pytest
import torch
import transformers
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models import probe
from acclimate.models.attention import ATTENTION_NAME, EAGER_ATTENTION_NAME, gated_attention
from acclimate.models.encoding import check_packable, encode
from acclimate.models.families import language_head, probe_of
from acclimate.models.gates import gate_units
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from tests.cases import each
from tests.models.test_encoders import SMALL
from tests.tiny import DECODER_SIZES, DECODERS, HYBRIDS, TEXTS, VOCABULARY, tiny_model, tiny_tokenizer

LENGTHS = (19, 11)
"""Tokens of two texts: more than the sliding windows."""
SINKS = {**DECODER_SIZES, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8, "sliding_window": 8}


def decoder(kind):
    """Return a tiny decoder whose bounds, scales and sinks matter."""
    if kind == "gpt_oss":
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(transformers.GptOssConfig(**SINKS)).eval()
        for name, value in model.named_parameters():
            if "sinks" in name:
                torch.nn.init.normal_(value)
        return model
    changes = {"attn_logit_softcapping": 0.01, "final_logit_softcapping": 0.1} if kind == "gemma2" else {}
    return tiny_model(kind, **changes)


def rows_and_text(packed):
    """Return token ids and text indices of two texts, in one row or in two."""
    first, second = (
        torch.randint(5, 90, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS
    )
    if packed:
        return torch.cat([first, second])[None], torch.tensor([[0] * LENGTHS[0] + [1] * LENGTHS[1]])
    pad = torch.nn.utils.rnn.pad_sequence
    text = pad([torch.zeros_like(first), torch.ones_like(second)], batch_first=True, padding_value=-1)
    return pad([first, second], batch_first=True), text


@each("kernels", ["auto", "torch"])
@each("kind", [*DECODERS, "gpt_oss"])
def test_decoders_give_the_logits_and_gradients_of_transformers(kind, kernels, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_KERNELS", kernels)
    model = decoder(kind)
    own = copy.deepcopy(model)
    ids, text = rows_and_text(packed=False)
    expected = torch.cat([own(input_ids=ids[row : row + 1, :length]).logits[0] for row, length in enumerate(LENGTHS)])
    expected.square().sum().backward()
    attach(model)
    found = probe_of(model)
    assert found.attention == ATTENTION_NAME and found.pads and all(check.passed for check in found.checks)
    assert found.packs == (kind not in HYBRIDS)
    outputs = []
    model.base_model.register_forward_hook(lambda *call: outputs.append(call[2]))
    for packed in (False, True)[: 1 + found.packs]:
        ids, text = rows_and_text(packed)
        model.zero_grad()
        logits = language_head(model)(encode(model, ids, text))[text >= 0]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
        logits.square().sum().backward()
        for (name, value), other in zip(model.named_parameters(), own.parameters(), strict=True):
            assert (value.grad is None) == (other.grad is None), name
            if value.grad is not None:
                torch.testing.assert_close(value.grad, other.grad, atol=1e-4, rtol=1e-3)
    assert outputs and all(output.past_key_values is None for output in outputs)


MORE = {"opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}, "gpt_neox": {}, "persimmon": {}}


@each("kind", [*DECODERS, "gpt_oss", *MORE])
def test_the_weights_of_a_head_are_those_that_its_gate_silences(kind):
    """With a gate of zero the input weights of heads do not matter, and their output weights may as well be zero."""
    if kind in MORE:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **MORE[kind])).eval()
    else:
        model = decoder(kind)
    layers = attach(model)
    ids, text = rows_and_text(packed=False)
    silenced = torch.tensor([0.0, 0.0, 1.0, 1.0])  # a group of queries with the same key and value
    gates = (1 - silenced).expand(len(layers), 2, 4)
    expected = encode(model, ids, text, {"H": gates})[text >= 0]
    assert (expected - encode(model, ids, text)[text >= 0]).abs().max() > 1e-4
    with torch.no_grad():
        for layer in layers:
            *inputs, (output, columns) = layer.spread_over_parameters(silenced)
            for value, rows in inputs:
                assert rows.mean() == 0.5
                value += rows * torch.randn_like(value)
    torch.testing.assert_close(encode(model, ids, text, {"H": gates})[text >= 0], expected, atol=1e-5, rtol=1e-4)
    assert (encode(model, ids, text)[text >= 0] - expected).abs().max() > 1e-3
    with torch.no_grad():
        for layer in layers:
            output, columns = layer.spread_over_parameters(silenced)[-1]
            output *= 1 - columns
    torch.testing.assert_close(encode(model, ids, text)[text >= 0], expected, atol=1e-5, rtol=1e-4)


def without(*names, change=None):
    """Return an attention function that ignores arguments."""

    def faulty(module, query, key, value, attention_mask, **options):
        if "attention_mask" in names:
            attention_mask = torch.ones(1, 1, query.shape[2], query.shape[2], dtype=torch.bool)
        if change is not None and "head_gates" in options:
            options["head_gates"] = change(options["head_gates"])
        options = {name: value for name, value in options.items() if name not in names}
        return gated_attention(module, query, key, value, attention_mask, **options)

    return faulty


@each(
    ("kind", "faulty", "keeps", "words"),
    [
        ("llama", without("attention_mask"), True, "outputs would change by"),
        ("bert", without("attention_mask", "unpadded"), True, "outputs would change by"),
        ("gemma2", without("softcap"), True, "outputs would change by"),
        ("gpt_oss", without("s_aux"), True, "outputs would change by"),
        ("llama", without("scaling", "head_gates"), False, "gates of zero do not silence its heads"),
        ("bert", without("head_gates"), False, "gates of zero do not silence its heads"),
        ("qwen3", without(change=lambda gates: 1.5 * gates), False, "gates of one change it"),
        ("gpt2", without("block_mask"), False, "influence each other"),
        ("bert", without("block_mask"), False, "influence each other"),
    ],
)
def test_a_fault_of_the_attention_function_is_caught(kind, faulty, keeps, words, monkeypatch, caplog):
    monkeypatch.setattr(probe, "_FOUND", {})
    for name in (ATTENTION_NAME, EAGER_ATTENTION_NAME):
        monkeypatch.setitem(AttentionInterface._global_mapping, name, faulty)
    model = decoder(kind)
    ids, text = rows_and_text(packed=False)
    expected = torch.cat(
        [model(input_ids=ids[row : row + 1, :length]).logits[0] for row, length in enumerate(LENGTHS)]
    )
    layers = attach(model)
    found = probe_of(model)
    assert words in " ".join(found.obstacles.values())
    assert keeps == (found.attention == found.own_attention) == ("keeps its own attention" in caplog.text)
    if "gates" in found.obstacles:
        with pytest.raises(UserError, match="cannot be gated or extended"):
            gate_units(model, layers, ["H"])
    if keeps or "influence" in words:
        with pytest.raises(UserError, match="Texts cannot share a row"):
            check_packable(model)
    if "gates" not in words:
        found = language_head(model)(encode(model, ids, text))[text >= 0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_what_was_found_out_is_reused_for_other_weights(monkeypatch):
    monkeypatch.setattr(probe, "_FOUND", {})
    first, second, other = tiny_model("llama"), tiny_model("llama", seed=1), tiny_model("llama", rms_norm_eps=1e-5)
    attach(first)
    reads = []
    monkeypatch.setattr(probe, "encode", lambda *given: reads.append(given) or encode(*given))
    layers = attach(second)
    assert not reads and probe_of(second) is probe_of(first)
    assert [layer.output for layer in layers] == [layer.self_attn.o_proj for layer in second.model.layers]
    ids, text = rows_and_text(packed=True)
    expected = torch.cat([second(input_ids=part[None]).logits[0] for part in ids[0].split(LENGTHS)])
    torch.testing.assert_close(language_head(second)(encode(second, ids, text))[0], expected, atol=1e-5, rtol=1e-4)
    attach(other)
    assert reads
    assert "acclimate" not in json.dumps(second.config.to_dict())


@each("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_bounds_fit_the_type_of_the_weights(dtype):
    model = tiny_model("qwen3").to(dtype)
    assert attach(model)
    assert probe_of(model).packs


def test_a_model_that_sees_later_tokens_is_not_causal(tmp_path):
    config = transformers.BertConfig(**{**SMALL, "vocab_size": len(VOCABULARY)}, eos_token_id=3)
    model = transformers.BertLMHeadModel(config)
    with pytest.raises(UserError, match=r"BertLMHeadModel should predict the next token.* set is_decoder to true"):
        attach(model)
    config.is_decoder = True
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = load_language_model(tmp_path).model
    assert attach(model) and probe_of(model).packs


def test_weights_that_are_not_numbers_are_no_fault_of_the_architecture(monkeypatch):
    monkeypatch.setattr(probe, "_FOUND", {})
    model = tiny_model("bert")
    torch.nn.init.constant_(model.bert.embeddings.word_embeddings.weight, torch.nan)
    assert attach(model)
    assert probe_of(model).packs


@each(
    ("kind", "architecture", "words"),
    [
        ("mbart", "MBartModel", "is a MBartModel, an encoder-decoder without the language-model head"),
        ("bart", None, "is a BartModel, an encoder-decoder without the language-model head"),
        ("bert", "T5ForConditionalGeneration", "is a T5ForConditionalGeneration, a multimodal model;"),
        ("gemma3", "Gemma3ForConditionalGeneration", r"a multimodal model \(vision\)"),
        ("bert", "BertForMaskedLM", "is_decoder is true"),
    ],
)
def test_models_with_other_losses_are_refused_by_name(kind, architecture, words, tmp_path):
    config = AutoConfig.for_model(kind, is_decoder=architecture == "BertForMaskedLM")
    config.architectures = architecture and [architecture]
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=words):
        load_language_model(tmp_path)


VOCABULARY_SIZE = {**SMALL, "vocab_size": len(VOCABULARY)}
OWN = {
    "deberta": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "legacy": False},
    "mpnet": {"pad_token_id": 0},
    "roformer": {"embedding_size": 32},
    "longformer": {"attention_window": 8},
    "big_bird": {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
    "convbert": {"embedding_size": 32},
    "megatron-bert": {},
}


@pytest.mark.slow
@each("kind", OWN)
def test_plain_lm_adapts_encoders_that_keep_their_own_attention(kind, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **{**VOCABULARY_SIZE, **OWN[kind]}))
    model.save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    options = {"steps": 2, "batch_size": 4, "max_length": 32, "precision": "fp32", "progress": False}
    result = adapt(tmp_path / "base", Corpus.of(TEXTS), "lm", tmp_path / "out", **options)
    assert result.losses["mlm"] < 7
    after = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), after.parameters(), strict=True))


OTHERS = {
    "data2vec-text": {},
    "ernie": {},
    "esm": {"mask_token_id": 4, "position_embedding_type": "rotary", "token_dropout": False},
    "eurobert": {"num_key_value_heads": 2},
    "flaubert": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 97},
    "fnet": {},
    "funnel": {"block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
    "gte": {},
    "ibert": {},
    "jina_embeddings_v3": {},
    "layoutlm": {},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 16},
    "mra": {},
    "nomic_bert": {},
    "nystromformer": {},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "roberta-prelayernorm": {},
    "roc_bert": {"enable_pronunciation": False, "enable_shape": False},
    "squeezebert": {
        "embedding_size": 32,
        **{f"{name}_groups": 1 for name in ("q", "k", "v", "post_attention", "intermediate", "output")},
    },
    "tapas": {},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 97},
    "xlm-roberta-xl": {},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "yoso": {},
}
REFUSED = {
    "nystromformer": ({"num_landmarks": 4, "segment_means_seq_len": 16}, "is not supported: shape"),
    "reformer": ({"axial_pos_shape": [8, 10], "axial_pos_embds_dim": [16, 16]}, "rows of one length only"),
}
"""With landmarks, Nyströmformer only reads rows of one length, and so does Reformer in training. Perceiver, which has
no word embeddings, and sequence-to-sequence models are refused when they are loaded."""


BY_OTHER_NAMES = {"funnel": ("hidden_size", "num_hidden_layers", "num_attention_heads")}


def encoder(kind, changes):
    torch.manual_seed(0)
    given = {name: value for name, value in SMALL.items() if name not in BY_OTHER_NAMES.get(kind, ())}
    return AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **{**given, **changes})).eval()


@pytest.mark.slow
@each("kind", OTHERS)
def test_other_encoders_of_transformers_train_with_their_own_outputs(kind):
    model = encoder(kind, OTHERS[kind])
    ids, text = rows_and_text(packed=False)
    expected = torch.cat(
        [model(input_ids=ids[row : row + 1, :length]).logits[0] for row, length in enumerate(LENGTHS)]
    )
    attach(model)
    model.train()
    language_head(model)(encode(model, ids, text))[text >= 0].sum().backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
    model.eval()
    if kind != "yoso":  # which hashes at random
        found = language_head(model)(encode(model, ids, text))[text >= 0]
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@each("kind", REFUSED)
def test_encoders_that_cannot_read_texts_of_several_lengths_are_refused(kind):
    changes, words = REFUSED[kind]
    with pytest.raises(UserError, match=words):
        attach(encoder(kind, changes))
