"""What other programs read in the folders that are written: llama.cpp, vLLM, ONNX, and servers of embeddings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from acclimate import adapt, finetune, merge
from acclimate.data.documents import Corpus
from acclimate.models.loading import load_language_model
from acclimate.models.saving import write_pooling, write_portable_modules
from acclimate.tasks.kinds.classification.data import Task
from tests.cases import each
from tests.papers.test_contract import DOCUMENTS
from tests.tiny import DECODERS, ENCODERS, TEXTS, decoder_tokenizer, save_tiny, tiny_model, tiny_tokenizer

SHORT = {"steps": 2, "batch_size": 4, "max_length": 24, "precision": "fp32", "progress": False}
OURS = shutil.ignore_patterns("acclimate.json", "run.json", "*.jsonl", "README.md", "adapter")


def families(quick: str):
    """Return all families; all but one are tested with the slow tests."""
    return [pytest.param(kind, marks=() if kind == quick else pytest.mark.slow) for kind in (*ENCODERS, *DECODERS)]


TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"


def tensors(folder: Path) -> dict[str, tuple]:
    """Return type and shape of each tensor in a folder."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (no dictionary)
        return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}


def load_plainly(folder: Path, auto, tmp_path: Path):
    """Load model and tokenizer with transformers alone, from a copy without the files that are only ours."""
    bare = shutil.copytree(folder, tmp_path / f"bare-{folder.name}", ignore=OURS)
    model, found = auto.from_pretrained(bare, output_loading_info=True)
    assert not any(found.values()), found
    return model.eval(), transformers.AutoTokenizer.from_pretrained(bare)


def check_like_base(base: Path, folder: Path, tmp_path: Path):
    """Check that files, tensors, types and configuration are those that transformers saves of the base model."""
    assert tensors(folder) == tensors(base)
    for name in {path.name for path in base.iterdir()} - {"model.safetensors"}:
        written, first = (json.loads((place / name).read_text()) for place in (folder, base))
        added = {"tokenizer_config.json": written, "config.json": ("use_cache",)}.get(name, ())  # of a loaded encoder
        assert {key: value for key, value in written.items() if key in first or key not in added} == first, name
    auto = getattr(transformers, json.loads((base / "config.json").read_text())["architectures"][0])
    model, tokenizer = load_plainly(folder, auto, tmp_path)
    inputs = dict(tokenizer(TEXTS[0], return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        found, expected = (one.eval()(**inputs).logits for one in (model, load_language_model(folder).model))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", families("llama"))
def test_adapted_and_merged_folders_are_those_of_the_base(kind, tmp_path):
    base = save_tiny(kind, tmp_path / "base")
    adapt(base, Corpus.of(DOCUMENTS), "lm", tmp_path / "full", **SHORT)
    check_like_base(base, tmp_path / "full", tmp_path)
    assert not torch.equal(
        *(next(iter(load_file(tmp_path / one / "model.safetensors").values())) for one in ("base", "full"))
    )
    merge([base, tmp_path / "full"], "soup", tmp_path / "soup", progress=False)
    check_like_base(base, tmp_path / "soup", tmp_path)
    pytest.importorskip("peft")
    adapt(base, Corpus.of(DOCUMENTS), "lm", tmp_path / "lora", adapter="lora", **SHORT)
    check_like_base(base, tmp_path / "lora", tmp_path)
    check_adapter(tmp_path / "lora", base, tmp_path)


def check_adapter(folder: Path, base: Path, tmp_path: Path):
    """Check that the adapter by itself is one of peft, with what servers refuse turned off."""
    from peft import PeftModel

    settings = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(base) and settings["peft_type"] == "LORA"
    assert settings["bias"] == "none" and not settings["use_dora"] and not settings["modules_to_save"]
    names = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert all(name.startswith("base_model.model.") and name.split(".")[-2] in ("lora_A", "lora_B") for name in names)
    auto = getattr(transformers, json.loads((base / "config.json").read_text())["architectures"][0])
    merged, plain = auto.from_pretrained(folder), auto.from_pretrained(base)
    added = PeftModel.from_pretrained(plain, folder / "adapter").merge_and_unload()
    state = merged.state_dict()
    for name, value in added.state_dict().items():
        torch.testing.assert_close(value, state[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", families("bert"))
def test_classifiers_have_labels_and_need_nothing_of_ours(kind, tmp_path):
    rows = [{"text": text, "label": ("calm", "rude", "other")[number % 3]} for number, text in enumerate(TEXTS * 2)]
    options = {"epochs": 1, "max_length": 24, "precision": "fp32", "progress": False}
    heads = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if type(tiny_model(kind).config) not in heads:
        pytest.skip("transformers has no classifier of this architecture")
    found = finetune(save_tiny(kind, tmp_path / "base"), Task.of("t", rows, rows), out=tmp_path / "out", **options)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["architectures"] == [heads[type(tiny_model(kind).config)].__name__]
    assert settings["id2label"] == {"0": "calm", "1": "other", "2": "rude"}
    assert settings["label2id"] == {"calm": 0, "other": 1, "rude": 2}
    auto = transformers.AutoModelForSequenceClassification
    model, tokenizer = load_plainly(tmp_path / "out", auto, tmp_path)
    for text, expected in zip(TEXTS, found.probabilities, strict=False):
        with torch.no_grad():
            logits = model(**tokenizer(text, truncation=True, return_tensors="pt")).logits
        np.testing.assert_allclose(logits.softmax(-1)[0], expected, atol=1e-5)


def test_a_chat_model_keeps_template_settings_and_vocabulary_file(tmp_path):
    base = save_tiny("llama", tmp_path / "base")
    tiny_model("llama").to(torch.bfloat16).save_pretrained(base)
    tokenizer = decoder_tokenizer("llama")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(base)
    transformers.GenerationConfig(eos_token_id=[2, 7], do_sample=True, temperature=0.3).save_pretrained(base)
    (base / "tokenizer.model").write_bytes(b"pieces")
    for name, more in (("out", {}), ("words", {"new_tokens": {("espresso", "ristretto"): None}}), ("again", {})):
        start = base if name != "again" else tmp_path / "out"
        adapt(start, Corpus.of([*DOCUMENTS, "espresso ristretto"]), "lm", tmp_path / name, **SHORT, **more)
        settings = json.loads((tmp_path / name / "generation_config.json").read_text())
        assert (settings["eos_token_id"], settings["temperature"]) == ([2, 7], 0.3)
        assert (tmp_path / name / "chat_template.jinja").read_text() == TEMPLATE
        kept = tmp_path / name / "tokenizer.model"
        assert kept.is_file() == (name != "words")  # whose vocabulary is another
        stored = {value.dtype for value in load_file(tmp_path / name / "model.safetensors").values()}
        assert stored == {getattr(torch, json.loads((tmp_path / name / "config.json").read_text())["dtype"])}


@pytest.fixture
def encoder(tmp_path):
    """Make a sentence encoder that pools in a given way, as its library writes it."""
    library = pytest.importorskip("sentence_transformers")
    modules = library.sentence_transformer.modules

    def make(mode: str) -> Path:
        parts = [modules.Transformer(str(save_tiny("bert", tmp_path / "bert")), max_seq_length=40)]
        parts += [modules.Pooling(32, mode), modules.Dense(32, 8), modules.Normalize()]
        library.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / mode), create_model_card=False)
        return tmp_path / mode

    return make


def check_encoder(folder: Path, classic: str, base: Path):
    """Check the names that llama.cpp, vLLM and text-embeddings-inference read, and the vectors."""
    from sentence_transformers import SentenceTransformer

    kinds = [entry["type"] for entry in json.loads((folder / "modules.json").read_text())]
    assert kinds == [
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Dense", "Normalize")
    ]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert next(key for key, value in pooling.items() if value is True) == f"pooling_mode_{classic}"
    needed = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    assert sum(pooling[f"pooling_mode_{mode}"] for mode in needed) == 1
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 40
    found, expected = (SentenceTransformer(str(one), device="cpu") for one in (folder, base))
    np.testing.assert_allclose(found.encode(TEXTS), expected.encode(TEXTS), atol=1e-6)
    assert found.max_seq_length == 40


@each(("mode", "classic"), [("cls", "cls_token"), ("mean", "mean_tokens"), ("lasttoken", "lasttoken")])
def test_files_of_sentence_encoders_have_the_names_that_servers_know(mode, classic, encoder, tmp_path):
    base = encoder(mode)
    again = shutil.copytree(base, tmp_path / "again")
    write_portable_modules(again)
    check_encoder(again, classic, base)
    write_portable_modules(again)
    check_encoder(again, classic, base)


def test_no_file_outside_of_the_folder_is_changed(tmp_path):
    for place in ("out", "secret"):
        (tmp_path / place).mkdir()
    outside = tmp_path / "secret" / "config.json"
    outside.write_text('{"pooling_mode": "cls"}')
    for path in ("../secret", str(tmp_path / "secret")):
        modules = [{"path": path, "type": "sentence_transformers.models.Pooling"}]
        (tmp_path / "out" / "modules.json").write_text(json.dumps(modules))
        write_portable_modules(tmp_path / "out")
    assert outside.read_text() == '{"pooling_mode": "cls"}'


@pytest.mark.slow
def test_trained_sentence_encoders_have_the_names_that_servers_know(encoder, tmp_path):
    base = encoder("mean")
    adapt(base, Corpus.of(DOCUMENTS), "none", tmp_path / "adapted", head_tokens=200, max_length=24, progress=False)
    rows = [{"query": text, "positive": text.upper()} for text in TEXTS]
    finetune(base, {"train": rows, "test": rows}, out=tmp_path / "tuned", epochs=0, max_length=40, progress=False)
    check_encoder(tmp_path / "adapted", "mean_tokens", base)
    check_encoder(tmp_path / "tuned", "mean_tokens", base)
    write_pooling(plain := save_tiny("bert", tmp_path / "plain"), "cls", 32)
    pooling = json.loads((plain / "1_Pooling" / "config.json").read_text())
    assert [mode for mode, chosen in pooling.items() if chosen is True] == ["pooling_mode_cls_token"]
    assert {f"pooling_mode_{mode}" for mode in ("max_tokens", "mean_sqrt_len_tokens")} < {*pooling}


@pytest.mark.slow
@each("kind", ["bert", "roberta", "distilbert", "modernbert"])
@each("labels", [True, False])
def test_onnx_gives_the_same_outputs(kind, labels, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    base = save_tiny(kind, tmp_path / "base")
    if labels:
        rows = [{"text": text, "label": f"{number % 2}"} for number, text in enumerate(TEXTS * 2)]
        finetune(base, Task.of("t", rows, rows), out=tmp_path / "out", epochs=1, max_length=24, progress=False)
    else:
        adapt(base, Corpus.of(DOCUMENTS), "lm", tmp_path / "out", **SHORT)
    auto = transformers.AutoModelForSequenceClassification if labels else transformers.AutoModelForMaskedLM
    model = auto.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids, attention_mask):
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    names = ["input_ids", "attention_mask"]
    one, two = (tiny_tokenizer()(texts, padding=True, return_tensors="pt") for texts in (TEXTS[:2], TEXTS[2:5]))
    axes = {name: {0: "texts", 1: "tokens"} for name in names}
    given, file = tuple(one[name] for name in names), str(tmp_path / "model.onnx")
    torch.onnx.export(Named().eval(), given, file, input_names=names, dynamic_axes=axes, dynamo=False)
    (found,) = runtime.InferenceSession(file).run(None, {name: two[name].numpy() for name in names})
    with torch.no_grad():
        expected = model(**{name: two[name] for name in names}).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
@each("kind", ["llama", "qwen3", "gemma2", "gemma3", "gpt2", "phi3", "granite", "smollm3", "bert"])
def test_gguf_names_every_tensor_and_reads_it_back(kind, tmp_path):
    """The names and the file format of llama.cpp; its converter, which changes some tensors, is no package."""
    gguf = pytest.importorskip("gguf")
    adapt(save_tiny(kind, tmp_path / "base"), Corpus.of(DOCUMENTS), "lm", tmp_path / "out", **SHORT)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], 2)
    stored = {
        one.removeprefix("bert."): value for one, value in load_file(tmp_path / "out" / "model.safetensors").items()
    }
    mapped = {names.get_name(one, try_suffixes=(".weight", ".bias")): value for one, value in stored.items()
              if not one.startswith("cls.")}  # fmt: skip
    assert None not in mapped and len(mapped) == len([one for one in stored if not one.startswith("cls.")])
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[kind.upper()]])
    for one, value in mapped.items():
        writer.add_tensor(one, value.numpy())
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    read = {one.name: one.data for one in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert {*read} == {*mapped} and all(np.array_equal(read[one], value) for one, value in mapped.items())
