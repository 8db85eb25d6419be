"""Configurations of models from scratch, and one-line errors for invalid ones."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig

from acclimate.adaptation.pretrain import DECODERS, ENCODERS, SIZES, fit_config_to_tokenizer, init_model, make_config
from acclimate.base.errors import UserError
from acclimate.models.families import longest_text
from tests.cases import each
from tests.tiny import tiny_tokenizer


def test_bert_mini_is_that_of_turc_et_al():
    model = init_model(make_config("bert", "mini"), 0)
    # 11.2 M parameters (Turc et al., 2019, Table 1: 11.3 with the pooler, which a masked LM does not have).
    encoder = sum(parameter.numel() for parameter in model.bert.parameters())
    assert encoder == 30_522 * 256 + 514 * 256 + 2 * 256 + 4 * (4 * (256 * 257) + 2 * 256 * 1024 + 1280 + 4 * 256)


@each("family", ENCODERS)
@each("size", sorted(SIZES))
def test_sizes_mean_the_same_everywhere(family, size):
    config = make_config(family, size)
    assert (config.num_hidden_layers, config.hidden_size) == SIZES[size]
    assert config.hidden_size == 64 * config.num_attention_heads
    inner = config.hidden_dim if family == "distilbert" else config.intermediate_size
    # ModernBERT's feed-forward layers are gated: 1.5 times as wide as the model, not four times.
    assert inner == config.hidden_size * (1.5 if family == "modernbert" else 4)


@each("family", sorted(set(ENCODERS) - {"modernbert"}))
def test_all_read_512_tokens(family):
    config = make_config(family, "tiny")
    config.pad_token_id = 1
    assert longest_text(init_model(config, 0)) == 512


@each("family", DECODERS)
def test_decoders_have_named_sizes_and_consistent_heads(family):
    for size, (layers, width) in (("tiny", SIZES["tiny"]), (None, SIZES["base"])):
        config = make_config(family, size)
        assert (config.num_hidden_layers, config.hidden_size) == (layers, width)
        heads = config.num_attention_heads
        assert width == 64 * heads == heads * getattr(config, "head_dim", 64)
        assert getattr(config, "num_key_value_heads", heads) == heads
    narrow = {"hidden_size": 96, "num_attention_heads": 4, "num_hidden_layers": 3}
    config = make_config(family, "tiny", narrow)
    assert getattr(config, "head_dim", 24) == 24 and len(getattr(config, "layer_types", None) or "abc") == 3
    if family != "gpt2":
        shared = make_config(family, "tiny", {**narrow, "num_key_value_heads": "2", "intermediate_size": 99})
        assert (shared.num_key_value_heads, shared.intermediate_size) == (2, 99)


def test_single_settings_win_over_the_size_and_may_come_as_text():
    config = make_config("distilbert", "mini", {"num_hidden_layers": "3", "dropout": "0.2", "activation": "relu"})
    assert (config.n_layers, config.dim, config.dropout, config.activation) == (3, 256, 0.2, "relu")
    assert len(make_config("modernbert", "mini", {"num_hidden_layers": 7}).layer_types) == 7


def test_a_configuration_from_a_folder_and_from_a_file(tmp_path):
    make_config("electra", "tiny", {"embedding_size": 64}).save_pretrained(tmp_path)
    for place in (tmp_path, tmp_path / "config.json"):
        config = make_config(place, changes={"num_hidden_layers": 3})
        assert (config.model_type, config.embedding_size, config.num_hidden_layers) == ("electra", 64, 3)


def test_the_vocabulary_decides_on_size_and_special_tokens():
    tokenizer = tiny_tokenizer()
    config = fit_config_to_tokenizer(make_config("roberta", "tiny"), tokenizer)
    assert config.vocab_size == len(tokenizer)
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 2, 3)
    modern = fit_config_to_tokenizer(make_config("modernbert", "tiny"), tokenizer)
    assert (modern.cls_token_id, modern.sep_token_id, modern.bos_token_id) == (2, 3, 2)


def test_first_weights_come_from_the_seed_alone():
    config = make_config("bert", "tiny", {"num_hidden_layers": 1})
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = init_model(config, 3).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    assert all(torch.equal(value, first[name]) for name, value in init_model(config, 3).state_dict().items())
    words = "bert.embeddings.word_embeddings.weight"
    assert not torch.equal(init_model(config, 4).state_dict()[words], first[words])


@each(
    ("architecture", "size", "changes", "message"),
    [
        ("robreta", None, {}, "Unknown architecture 'robreta'. Did you mean 'roberta'"),
        ("./no/such/folder", None, {}, "Unknown architecture './no/such/folder'"),
        ("no-such.json", None, {}, "Unknown architecture 'no-such.json'"),
        ("bert", "minni", {}, "Unknown size 'minni'"),
        ("bert", None, {"hiden_size": 64}, "Unknown setting of bert 'hiden_size'. Did you mean 'hidden_size'"),
        ("bert", None, {"hidden_size": 250}, "hidden_size 250 is not divisible by 12 heads"),
        ("bert", None, {"hidden_size": "wide"}, "hidden_size"),
        ("bert", None, {"num_hidden_layers": 0}, "between 1 and"),
        ("bert", None, {"hidden_act": "nope"}, "'nope'"),
        ("bert", None, {"max_position_embeddings": -3}, "cannot be built"),
        ("bert", None, {"vocab_size": 100}, "use the option vocab_size"),
    ],
)
def test_mistakes_are_explained(architecture, size, changes, message):
    with pytest.raises(UserError, match=message) as raised:
        make_config(architecture, size, changes)
    assert len(str(raised.value).splitlines()) == 1


def test_a_padding_id_beyond_the_positions_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = "figure"  # a token with a high id
    tight = {"max_position_embeddings": tokenizer.pad_token_id + 1}
    with pytest.raises(UserError, match=f"id {tokenizer.pad_token_id}, .* low id"):
        fit_config_to_tokenizer(make_config("roberta", "tiny", tight), tokenizer)
    for kind, changes in (("bert", tight), ("roberta", {"max_position_embeddings": tokenizer.pad_token_id + 5})):
        init_model(fit_config_to_tokenizer(make_config(kind, "tiny", changes), tokenizer), 0)


def test_a_configuration_of_another_kind_is_refused(tmp_path):
    AutoConfig.for_model("t5").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="t5"):
        make_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 3}))
    with pytest.raises(UserError, match="No configuration could be read"):
        make_config(tmp_path)
