"""Gates, packing and the head on every supported architecture."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from acclimate.base.errors import UserError
from acclimate.models.attention import head_rows
from acclimate.models.encoding import check_packable, encode, encode_layers
from acclimate.models.families import language_head
from acclimate.models.gates import gate_units
from acclimate.models.loading import load_language_model
from acclimate.models.probe import attach
from tests.cases import each
from tests.tiny import ENCODERS, save_tiny, tiny_model, tiny_tokenizer

IDS = torch.tensor([[2, 10, 11, 12, 13, 14, 15, 3], [2, 20, 21, 3, 0, 0, 0, 0]])
TEXT = torch.tensor([[0] * 8, [1] * 4 + [-1] * 4])


@pytest.fixture(params=sorted(ENCODERS))
def model(request):
    return tiny_model(request.param)


def test_hidden_states_equal_those_of_transformers(model):
    expected = model(input_ids=IDS, attention_mask=(TEXT >= 0).long()).logits
    attach(model)
    hidden = encode(model, IDS, TEXT)
    torch.testing.assert_close(language_head(model)(hidden)[TEXT >= 0], expected[TEXT >= 0], atol=1e-5, rtol=1e-5)


def test_a_gate_of_one_changes_nothing_and_a_gate_of_zero_does(model):
    layers = attach(model)
    plain = encode(model, IDS, TEXT)
    ones = torch.ones(len(layers), 2, layers[0].heads)
    torch.testing.assert_close(encode(model, IDS, TEXT, {"H": ones}), plain)
    for layer in range(len(layers)):
        gates = ones.clone()
        gates[layer, 0, 1] = 0
        gated = encode(model, IDS, TEXT, {"H": gates})
        assert (gated[0] - plain[0]).abs().max() > 1e-5
        torch.testing.assert_close(gated[1][:4], plain[1][:4])


def test_gradients_reach_every_gate(model):
    layers = attach(model)
    gates = torch.ones(len(layers), 2, layers[0].heads, requires_grad=True)
    encode(model, IDS, TEXT, {"H": gates})[TEXT >= 0].square().sum().backward()
    assert gates.grad is not None
    assert (gates.grad != 0).all()


def test_packed_rows_equal_separate_rows(model):
    attach(model)
    alone = encode(model, IDS, TEXT)
    packed_ids = torch.cat([IDS[0], IDS[1, :4]])[None]
    packed_text = torch.cat([TEXT[0], TEXT[1, :4]])[None]
    packed = encode(model, packed_ids, packed_text)
    torch.testing.assert_close(packed[0, :8], alone[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(packed[0, 8:], alone[1, :4], atol=1e-5, rtol=1e-4)


def test_texts_in_a_packed_row_are_independent(model):
    attach(model)
    text = torch.tensor([[0] * 4 + [1] * 4])
    ids = torch.tensor([[2, 10, 11, 3, 2, 12, 13, 3]])
    other = ids.clone()
    other[0, 5] = 30
    torch.testing.assert_close(encode(model, ids, text)[0, :4], encode(model, other, text)[0, :4])


def test_a_gate_silences_the_rows_of_its_head(model):
    """Zeroing the value rows of head h in the weights is the same as a gate of zero on it."""
    layers = attach(model)
    gates = torch.ones(len(layers), 2, layers[0].heads)
    gates[:, :, 2] = 0
    expected = encode(model, IDS, TEXT, {"H": gates})
    chosen = torch.zeros(layers[0].heads)
    chosen[2] = 1
    with torch.no_grad():
        for layer in layers:
            value = layer.inputs[2]
            rows = head_rows(chosen, value).bool()
            assert rows.sum() == layer.width
            value.linear.weight[rows] = 0
            if value.linear.bias is not None:
                value.linear.bias[rows] = 0
    torch.testing.assert_close(encode(model, IDS, TEXT), expected, atol=1e-6, rtol=1e-5)


def test_a_saved_model_does_not_need_acclimate(any_encoder, tmp_path):
    model = load_language_model(any_encoder).model
    attach(model)
    model.save_pretrained(tmp_path)
    assert "acclimate" not in (tmp_path / "config.json").read_text()
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation != "acclimate"


@each("kernels", ["auto", "torch"])
@each("kind", ["roberta", "xlm-roberta", "camembert", "bert"])
def test_tokens_with_the_padding_id_have_the_positions_of_transformers(kind, kernels, monkeypatch):
    """A tokenizer may pad with another id than the configuration; that id is then a token like others."""
    monkeypatch.setenv("ACCLIMATE_KERNELS", kernels)
    model = tiny_model(kind, pad_token_id=1)
    ids = torch.tensor([[2, 10, 1, 1, 13, 1, 15, 3], [1, 20, 1, 3, 0, 0, 0, 0]])
    expected = model(input_ids=ids, attention_mask=(TEXT >= 0).long()).logits
    attach(model)
    found = language_head(model)(encode(model, ids, TEXT))
    torch.testing.assert_close(found[TEXT >= 0], expected[TEXT >= 0], atol=1e-5, rtol=1e-5)
    packed = encode(model, torch.cat([ids[0], ids[1, :4]])[None], torch.cat([TEXT[0], TEXT[1, :4]])[None])
    whole = torch.cat([expected[0], expected[1, :4]])
    torch.testing.assert_close(language_head(model)(packed)[0], whole, atol=1e-5, rtol=1e-5)


SMALL = {
    **{"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    **{"max_position_embeddings": 80, "pad_token_id": 0},
}
OWN_ATTENTION = {
    "deberta": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "legacy": False},
    "mpnet": {},
    "roformer": {"embedding_size": 32},
    "longformer": {"attention_window": 8},
    "big_bird": {"attention_type": "original_full"},
    "squeezebert": {"embedding_size": 32, "q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1},
    "megatron-bert": {},
}


@each("kind", sorted(OWN_ATTENTION))
def test_a_model_with_its_own_attention_runs_without_gates(kind):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **OWN_ATTENTION[kind]})
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    expected = model(input_ids=IDS, attention_mask=(TEXT >= 0).long()).logits
    layers = attach(model)
    found = language_head(model)(encode(model, IDS, TEXT))
    torch.testing.assert_close(found[TEXT >= 0], expected[TEXT >= 0], atol=1e-5, rtol=1e-5)
    if not layers:
        with pytest.raises(UserError, match=r"cannot be gated or extended.* such as lm"):
            gate_units(model, layers, ["H"])
        with pytest.raises(UserError, match="use layout=padded"):
            check_packable(model)
        assert "acclimate" not in model.config._attn_implementation


@each("kind", ["fnet", "convbert"])
def test_a_model_whose_outputs_depend_on_padding_reads_texts_without_it(kind, caplog):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SMALL, embedding_size=32)
    model = transformers.AutoModelForMaskedLM.from_config(config).eval()
    expected = torch.cat([model(input_ids=IDS[:1]).logits[0], model(input_ids=IDS[1:, :4]).logits[0]])
    assert not attach(model)
    assert "outputs depend on padding" in caplog.text
    found = language_head(model)(encode(model, IDS, TEXT))
    torch.testing.assert_close(found[TEXT >= 0], expected, atol=1e-5, rtol=1e-5)
    flipped = language_head(model)(encode(model, IDS.flip(0), TEXT.flip(0)))
    torch.testing.assert_close(flipped.flip(0)[TEXT >= 0], expected, atol=1e-5, rtol=1e-5)
    layers = encode_layers(model, IDS, TEXT)
    torch.testing.assert_close(layers[-1][TEXT >= 0], encode(model, IDS, TEXT)[TEXT >= 0])
    found.sum().backward()
    assert all(value.grad is not None for name, value in model.named_parameters() if "pooler" not in name)


def test_a_model_whose_embeddings_depend_on_neighbours_is_not_packed(model):
    small = {"hidden_size": 32, "embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16}
    config = transformers.MobileBertConfig(vocab_size=50, num_hidden_layers=1, num_attention_heads=2, **small)
    mobile = transformers.MobileBertForMaskedLM(config).eval()
    with pytest.raises(UserError, match="attention was not replaced: use layout=padded"):
        check_packable(mobile)
    attach(mobile)
    with pytest.raises(UserError, match=r"row of MobileBertForMaskedLM, since they influence each other .* layout=pa"):
        check_packable(mobile)
    attach(model)
    check_packable(model)
    mobile = transformers.MobileBertForMaskedLM(
        transformers.MobileBertConfig(**{**config.to_dict(), "trigram_input": False})
    )
    attach(mobile)
    check_packable(mobile)


def test_absent_head_is_detected_and_tied(tmp_path):
    save_tiny("bert", tmp_path / "whole")
    assert not load_language_model(tmp_path / "whole").absent_head
    whole = transformers.AutoModel.from_pretrained(tmp_path / "whole", add_pooling_layer=False)
    whole.save_pretrained(tmp_path / "bare")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "bare")
    loaded = load_language_model(tmp_path / "bare")
    assert loaded.absent_head
    model = loaded.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    dense = model.cls.predictions.transform.dense
    torch.testing.assert_close(dense.weight, torch.eye(32), atol=0.06, rtol=0)


def test_ignored_weights_cause_a_warning(tmp_path, caplog):
    folder = save_tiny("bert", tmp_path / "model")
    load_language_model(folder)
    assert not caplog.text
    weights = load_file(folder / "model.safetensors")
    extra = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    save_file({**weights, extra: torch.zeros(3, 4)}, folder / "model.safetensors", metadata={"format": "pt"})
    load_language_model(folder)
    assert "1 encoder weights" in caplog.text and extra in caplog.text


def test_unused_heads_and_poolers_cause_no_warning(tmp_path, caplog):
    transformers.BertForPreTraining(tiny_model("bert").config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    load_language_model(tmp_path)
    assert not caplog.text


@pytest.mark.parametrize("name", ["no/such/folder", "./nowhere"])
def test_no_such_model(name):
    with pytest.raises(UserError):
        load_language_model(name)
