"""Parts of a model folder that do not fit are removed or reported in one line."""

from __future__ import annotations

import json
import pickle
import shutil

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import normalizers

from acclimate.adaptation.adapt import adapt
from acclimate.base.errors import UserError
from acclimate.data.documents import Corpus
from acclimate.models.loading import dropout_rates, load_language_model
from acclimate.tasks.kinds.classification.classifier import load_classifier
from tests.cases import each
from tests.tiny import SPECIAL, TEXTS, save_tiny, tiny_model, tiny_tokenizer

CPU = torch.device("cpu")
LABELS = ["negative", "neutral", "positive"]
SHORT = {"steps": 3, "batch_size": 2, "max_length": 24, "precision": "fp32", "progress": False}


def save_classifier(folder, names):
    """Save a classifier whose rows of the head follow the order of ``names``."""
    config = tiny_model("bert").config
    config.id2label = dict(enumerate(names))
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    by_name = {name.casefold(): number for number, name in enumerate(sorted(names, key=str.casefold))}
    order = [by_name[name.casefold()] for name in names]
    with torch.no_grad():
        model.classifier.weight.copy_(model.classifier.weight.clone()[order])
        model.classifier.bias.copy_(torch.arange(len(names)).float()[order])
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@settings(max_examples=4, deadline=None)
@given(st.permutations(LABELS), st.sampled_from([str, str.upper, str.title]))
def test_classes_are_matched_by_name(tmp_path_factory, names, spelling):
    folder = save_classifier(tmp_path_factory.mktemp("model"), [spelling(name) for name in names])
    head = load_classifier(folder, LABELS, 40, CPU).model
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.tensor([[2, 20, 21, 3]])
    order = [names.index(label) for label in LABELS]
    with torch.no_grad():
        torch.testing.assert_close(head.eval()(ids).logits, theirs(ids).logits[:, order])
    assert list(head.config.id2label.values()) == LABELS


def test_other_classes_get_a_new_layer_and_unnamed_ones_a_warning(tmp_path, caplog):
    folder = save_classifier(tmp_path / "other", ["cat", "dog", "eel"])
    torch.manual_seed(1)
    one, two = (load_classifier(folder, LABELS, 40, CPU).model for _ in range(2))
    assert not torch.equal(one.classifier.weight, two.classifier.weight) and (one.classifier.bias == 0).all()
    assert caplog.text.count("(cat, dog, eel) are not those of the task (negative, neutral, positive)") == 1
    caplog.clear()
    folder = save_classifier(tmp_path / "unnamed", ["LABEL_0", "LABEL_1", "LABEL_2"])
    assert (load_classifier(folder, LABELS, 40, CPU).model.classifier.bias == torch.arange(3)).all()
    assert "have no names, so they are taken to be, in order: negative, neutral, positive" in caplog.text
    caplog.clear()
    load_classifier(folder, ["0", "1", "2"], 40, CPU)
    load_classifier(save_classifier(tmp_path / "same", LABELS), LABELS, 40, CPU)
    assert not caplog.text


def save_words(folder, words, lowercase):
    """Save a BERT with a vocabulary of these words."""
    (folder / "words").mkdir(parents=True)
    names = [
        *SPECIAL,
        *words,
        *"abcdefghijklmnopqrstuvwxyz",
        *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    ]
    tokenizer = transformers.BertTokenizer(vocab={name: n for n, name in enumerate(names)}, do_lower_case=lowercase)
    tokenizer.save_pretrained(folder)
    tiny_model("bert", vocab_size=len(tokenizer)).save_pretrained(folder)
    return folder


def test_a_cased_vocabulary_that_is_lower_cased_is_reported(tmp_path, caplog):
    cased, uncased = ["Food", "Soup", "good"], ["food", "soup", "good"]
    for number, (words, lowercase) in enumerate([(uncased, True), (cased, False), (cased, True)]):
        assert not caplog.text
        load_language_model(save_words(tmp_path / str(number), words, lowercase))
    assert f"{tmp_path / '2'}' lower-cases text, so 2 tokens with capital letters can never occur" in caplog.text
    caplog.clear()
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens(["Foo", "Bar"])
    tokenizer.save_pretrained(tmp_path / "2")
    tiny_model("bert", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "2")
    load_language_model(tmp_path / "2")
    assert not caplog.text


def test_padding_and_missing_special_tokens_are_reported_once(tmp_path, caplog):
    folder = save_tiny("roberta", tmp_path / "model", pad_token_id=1)
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "padding_side": "left"}))
    for _ in range(2):
        loaded = load_language_model(folder)
        load_classifier(folder, LABELS, 40, CPU)
    assert loaded.tokenizer.padding_side == "right"
    for words in ("pads on the left", "pads with the id 0, but pad_token_id in config.json is 1", "no special tokens"):
        assert caplog.text.count(words) == 1, words
    assert caplog.text.count(str(folder)) == 3


@each(
    ("change", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be between 1 and"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": -32}, "hidden_size is -32"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"intermediate_size": 10**12}, "intermediate_size is 1000000000000"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000"),
        ({"vocab_size": 50}, "has the shape (130, 32) instead of (50, 32)"),
        ({"hidden_size": 64}, "do not fit its config.json"),
        ({"pad_token_id": 10**6}, "pad_token_id is 1000000, but vocab_size is only 130"),
        (None, "config.json is not a JSON object"),
    ],
)
def test_configurations_that_cannot_be_right(tiny_bert, tmp_path, change, words):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(None if change is None else {**config, **change}))
    for load in (load_language_model, lambda path: load_classifier(path, LABELS, 40, CPU)):
        with pytest.raises(UserError) as caught:
            load(folder)
        message = str(caught.value)
        assert words in message and str(folder) in message and "\n" not in message, message


@each(
    ("name", "value"),
    [
        *(("return_dict", False), ("output_attentions", True), ("output_hidden_states", True)),
        *(("chunk_size_feed_forward", 7), ("gradient_checkpointing", True)),
    ],
)
def test_settings_of_how_to_run_a_model_do_not_stop_its_training(tiny_bert, tmp_path, name, value):
    folder, texts = shutil.copytree(tiny_bert, tmp_path / "model"), Corpus.of(TEXTS)
    expected = adapt(folder, texts, steps=1, out=tmp_path / "plain", max_length=24, progress=False).losses
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    assert adapt(folder, texts, steps=1, out=tmp_path / "out", max_length=24, progress=False).losses == expected
    assert load_classifier(folder, LABELS, 40, CPU)


@each("family", ["roberta", "xlm-roberta", "camembert"])
def test_positions_that_are_counted_from_a_missing_padding_id_are_refused(tmp_path, family):
    folder = save_tiny(family, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    for load in (load_language_model, lambda path: load_classifier(path, LABELS, 40, CPU)):
        with pytest.raises(UserError, match=r"pad_token_id is missing, from which a .* model counts its positions"):
            load(folder)


def test_a_length_that_is_no_number_is_refused(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": "x"}))
    with pytest.raises(UserError, match="model_max_length is 'x', which is no number"):
        load_language_model(folder)


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=4) | st.just([]) | st.just({})
)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(tiny_model("bert").config.to_dict())), VALUES)
def test_any_value_in_a_configuration_loads_or_is_one_line(tiny_bert, tmp_path_factory, name, value):
    folder = shutil.copytree(tiny_bert, tmp_path_factory.mktemp("models") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    try:
        load_language_model(folder)
    except UserError as error:
        assert "\n" not in str(error) and str(folder) in str(error)


class Malicious:
    """An object that would run code when it is unpickled."""

    def __reduce__(self):
        return print, ("code ran",)


@each(
    ("damage", "words"),
    [
        ("int8", "are quantized: "),
        ("_orig_mod", "incomplete: .* All names in the file begin with '_orig_mod.'"),
        ("module", "All names in the file begin with 'module.'"),
        ("pickle", "pickle file with more than tensors .* Use a copy of the model in safetensors"),
        ("tokenizer", "there is no entry '"),
        ("sub-folder", "has no config.json.* The folder '.*0_Transformer' is one"),
        ("old sub-folder", "No model could be read .* The folder '.*0_Transformer' is one"),
    ],
)
def test_damaged_folders(tiny_bert, tmp_path, capsys, damage, words):
    folder = tmp_path / "model"
    shutil.copytree(tiny_bert, folder / "0_Transformer" if "sub" in damage else folder)
    weights = {} if "sub" in damage else load_file(folder / "model.safetensors")
    if damage == "int8":
        weights = {name: value.to(torch.int8) if value.dim() == 2 else value for name, value in weights.items()}
    elif damage == "pickle":
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Malicious()}, protocol=2))
    elif damage == "tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    elif damage == "old sub-folder":
        (folder / "config.json").write_text('{"__version__": {"sentence_transformers": "2.0.0"}}')
    else:
        weights = {f"{damage}.{name}": value for name, value in weights.items()}
    if weights and damage not in ("pickle", "tokenizer"):
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for load in (load_language_model, lambda path: load_classifier(path, LABELS, 40, CPU)):
        with pytest.raises(UserError, match=words) as caught:
            load(folder)
        assert "weights_only" not in str(caught.value) and "\n" not in str(caught.value)
    assert "code ran" not in capsys.readouterr().out


def test_files_of_a_sentence_encoder_are_copied_and_stay_in_the_folder(tmp_path):
    start = save_tiny("bert", tmp_path / "start")
    (start / "1_Pooling").mkdir()
    (start / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (start / "sentence_bert_config.json").write_text('{"max_seq_length": 64}')
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.json").write_text("{}")
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "../secret"}]
    (start / "modules.json").write_text(json.dumps(modules))
    adapt(start, Corpus.of(TEXTS), "none", tmp_path / "out", **{**SHORT, "steps": None})
    for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json"):
        assert (tmp_path / "out" / name).read_text() == (start / name).read_text()
    assert (tmp_path / "secret" / "config.json").read_text() == "{}"
    (start / "modules.json").write_text('{"path": 3}')
    adapt(start, Corpus.of(TEXTS), "none", tmp_path / "other", **{**SHORT, "steps": None})
    assert not (tmp_path / "other" / "1_Pooling").exists()


def test_text_outside_the_vocabulary(tiny_bert, tmp_path, caplog):
    thai = ["อาหารอร่อยมาก", "บริการช้า 很好吃", "😀 ลด ราคา"]
    with pytest.raises(UserError, match="no token of this text"):
        adapt(tiny_bert, Corpus.of(thai), "mlm", tmp_path / "out", **SHORT)
    assert not (tmp_path / "out").exists()
    assert not caplog.text
    adapt(tiny_bert, Corpus.of(TEXTS), "mlm", tmp_path / "known", **SHORT)
    assert not caplog.text
    adapt(tiny_bert, Corpus.of([*TEXTS, *(f"the {text} food" for text in thai)]), "mlm", tmp_path / "half", **SHORT)
    assert "% of the tokens of the text are not in the vocabulary" in caplog.text and "[UNK]" in caplog.text


def test_text_of_which_nothing_is_masked(tiny_bert, tmp_path):
    with pytest.raises(UserError, match="No token of the text is chosen for prediction in 1 steps"):
        adapt(tiny_bert, Corpus.of(["pizza"]), "mlm", tmp_path / "out", **{**SHORT, "steps": 1, "batch_size": 1})
    assert not (tmp_path / "out").exists()


@each("kind", ["bert", "albert", "modernbert", "distilbert"])
def test_the_dropout_option_applies_to_every_layer(kind, tmp_path):
    folder = save_tiny(kind, tmp_path / kind)
    assert dropout_rates(load_language_model(folder, dropout=0.25).model) == [0.25]
    assert not any(dropout_rates(load_language_model(folder, dropout=0).model))
    with pytest.raises(UserError, match="dropout must be from 0"):
        load_language_model(folder, dropout=1.5)
